"""Text becomes tokens, and tokens become the ids that a biLM reads.

    tokens.py      strings -> tokens with offsets
    sentences.py   what a user gives as sentences -> token lists
    characters.py  words -> character ids
    marked.py      a sentence with one word in [brackets]
    lexicon.py     words -> ids of a model's own characters and words
    vocabulary.py  the words that a language model predicts

No file here needs torch: the processes that prepare text start fast.
"""

from elmokit.text.characters import (
    BOS,
    BOS_TOKEN,
    BOW,
    EOS,
    EOS_TOKEN,
    EOW,
    MAX_CHARACTERS,
    NUM_CHARACTERS,
    PAD,
    UNK_TOKEN,
    batch_to_ids,
    words_to_ids,
)
from elmokit.text.lexicon import Lexicon, lexicon_boundaries
from elmokit.text.marked import MarkedWord, marked_word
from elmokit.text.sentences import as_list, as_tokens
from elmokit.text.tokens import Token, tokenize, tokenize_sentences, tokenize_with_offsets
from elmokit.text.vocabulary import Vocabulary

__all__ = [
    "BOS",
    "BOS_TOKEN",
    "BOW",
    "EOS",
    "EOS_TOKEN",
    "EOW",
    "MAX_CHARACTERS",
    "NUM_CHARACTERS",
    "PAD",
    "UNK_TOKEN",
    "Lexicon",
    "MarkedWord",
    "Token",
    "Vocabulary",
    "as_list",
    "as_tokens",
    "batch_to_ids",
    "lexicon_boundaries",
    "marked_word",
    "tokenize",
    "tokenize_sentences",
    "tokenize_with_offsets",
    "words_to_ids",
]
