"""Text as tokens, and tokens as the ids that a biLM reads.

    tokens.py      strings -> tokens, by the Penn Treebank rules
    han.py         strings -> tokens, by the rule of Chinese
    tokenizer.py   the tokenizers of models: tokens, offsets, sentences
    sentences.py   sentences of a user -> token lists
    characters.py  words -> character ids
    vocabulary.py  the words that a language model predicts
    lexicon.py     words -> ids of a model's own characters and words
    ids.py         words -> the ids that a biLM reads: one protocol, three implementations
    marked.py      where a word is in a sentence
    scripts.py     sentences -> a script that a model has not seen
    weights.py     words -> how much each tells about its context

No file here imports torch at its top, so that the processes that prepare text start fast.
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
from elmokit.text.ids import WordIds, make_word_ids, word_ids_of_sizes
from elmokit.text.lexicon import Lexicon
from elmokit.text.marked import MarkedPhrase, MarkedWord, find_phrase, marked_phrase, marked_word
from elmokit.text.scripts import KnownScripts
from elmokit.text.sentences import as_list, as_tokens, check_sentences, check_tokens
from elmokit.text.tokenizer import TREEBANK, Token, Tokenizer, TokenizerName, join_tokens
from elmokit.text.tokens import tokenize
from elmokit.text.vocabulary import Vocabulary
from elmokit.text.weights import WordWeights

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
    "TREEBANK",
    "UNK_TOKEN",
    "KnownScripts",
    "Lexicon",
    "MarkedPhrase",
    "MarkedWord",
    "Token",
    "Tokenizer",
    "TokenizerName",
    "Vocabulary",
    "WordIds",
    "WordWeights",
    "as_list",
    "as_tokens",
    "batch_to_ids",
    "check_sentences",
    "check_tokens",
    "find_phrase",
    "join_tokens",
    "make_word_ids",
    "marked_phrase",
    "marked_word",
    "tokenize",
    "word_ids_of_sizes",
    "words_to_ids",
]
