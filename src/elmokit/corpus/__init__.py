"""Text becomes a vocabulary and a prepared corpus, and a corpus becomes the two token streams that training reads.

    text.py        text files -> blocks of lines -> sentences
    work.py        blocks are worked on by all cores
    vocabulary.py  sentences -> the words that a model predicts
    prepared.py    sentences -> a folder of memory-mapped arrays
    streams.py     the arrays -> batches, forward and backward

No file here needs torch: the processes that prepare text start fast.
"""

from elmokit.corpus.counts import WordCounts, build_vocabulary, count_words
from elmokit.corpus.prepared import Corpus, prepare
from elmokit.corpus.sources import Paths, Progress
from elmokit.corpus.streams import StreamPosition, Streams, TrainingBatch, evaluation_batches
from elmokit.text import Vocabulary

__all__ = [
    "Corpus",
    "Paths",
    "Progress",
    "StreamPosition",
    "Streams",
    "TrainingBatch",
    "Vocabulary",
    "WordCounts",
    "build_vocabulary",
    "count_words",
    "evaluation_batches",
    "prepare",
]
