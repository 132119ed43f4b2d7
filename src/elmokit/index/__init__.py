"""A searchable store of words in context: every word of a corpus with its vector, on disk.

store.py       `WordIndex`: create, open, add, search
batches.py     sentences -> batches that are embedded and committed together
same_model.py  whether a model is the one that an index was made with
files.py       the folder: settings, sentences, rows, words, vectors, contents
words.py       words in their sentences, neighbours, all occurrences of one, hashes by which they are found
graph.py       nearest vectors: an HNSW graph over most of them, exact comparison for the rest
"""

from elmokit.index.files import SETTINGS_FILE, IndexContents, IndexSettings, Source
from elmokit.index.graph import Hits
from elmokit.index.store import Added, Layer, Progress, WordIndex
from elmokit.index.words import Neighbour, Occurrences, StoredWord

__all__ = [
    "SETTINGS_FILE",
    "Added",
    "Hits",
    "IndexContents",
    "IndexSettings",
    "Layer",
    "Neighbour",
    "Occurrences",
    "Progress",
    "Source",
    "StoredWord",
    "WordIndex",
]
