"""Readers of labelled datasets in their published formats, for tasks and probes.

Each reader takes the path of a file, plain or gzipped, and returns examples as dataclasses in the order of the file.
Tokens, tags and offsets stay as they are in the file. An error in a file is a ValueError that names the file and the
line.

    tagging.py     one tag per token: CoNLL-U, CoNLL-2000, CoNLL-2003, BIO
    sentiment.py   one label per text: sentiment trees, tables
    pairs.py       one label per pair of sentences: SNLI, MultiNLI, SICK
    questions.py   answers in a paragraph: SQuAD
    documents.py   semantic roles and coreference: CoNLL-2012; pronouns: GAP
    senses.py      words in context: WSD, WordNet's sense index, WiC, SCWS
    lines.py       what all readers share: lines, tables, JSON, errors
"""

from elmokit.datasets.documents import (
    AnnotatedSentence,
    Candidate,
    Document,
    PronounExample,
    Proposition,
    Span,
    read_conll2012,
    read_gap,
)
from elmokit.datasets.pairs import SentencePair, read_entailment, read_sick, read_snli
from elmokit.datasets.questions import Answer, Question, read_squad
from elmokit.datasets.senses import (
    SenseIndex,
    SenseInstance,
    SenseSentence,
    Word,
    WordInContext,
    WordPair,
    as_phrases,
    read_scws,
    read_sense_index,
    read_wic,
    read_wsd,
    word_of_sense,
)
from elmokit.datasets.sentiment import LabelledText, read_labelled_tsv, read_sst_trees
from elmokit.datasets.tagging import (
    TaggedSentence,
    read_bio,
    read_conll2000,
    read_conll2003,
    read_conllu,
    read_entities,
)

__all__ = [
    "AnnotatedSentence",
    "Answer",
    "Candidate",
    "Document",
    "LabelledText",
    "PronounExample",
    "Proposition",
    "Question",
    "SenseIndex",
    "SenseInstance",
    "SenseSentence",
    "SentencePair",
    "Span",
    "TaggedSentence",
    "Word",
    "WordInContext",
    "WordPair",
    "as_phrases",
    "read_bio",
    "read_conll2000",
    "read_conll2003",
    "read_conll2012",
    "read_conllu",
    "read_entailment",
    "read_entities",
    "read_gap",
    "read_labelled_tsv",
    "read_scws",
    "read_sense_index",
    "read_sick",
    "read_snli",
    "read_squad",
    "read_sst_trees",
    "read_wic",
    "read_wsd",
    "word_of_sense",
]
