"""Text files become a vocabulary and a prepared corpus; a corpus becomes the two token streams of training.

    sources.py    text files -> blocks of lines -> sentences
    workers.py    jobs run in one process per core
    counts.py     sentences -> word counts -> a vocabulary
    preparing.py  sentences -> the folder of a prepared corpus
    prepared.py   the folder -> memory-mapped arrays
    streams.py    the arrays -> batches, forward and backward
    heldout.py    the perplexity of a prepared corpus

Only heldout.py imports torch, so that the processes that prepare text start fast.
"""

from elmokit.corpus.counts import WordCounts, build_vocabulary, count_words
from elmokit.corpus.prepared import Corpus
from elmokit.corpus.preparing import prepare
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
