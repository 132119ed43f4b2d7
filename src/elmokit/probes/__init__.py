"""What the layers of a model know. Each probe is a function from a model and parsed data to a frozen dataclass.

vectors.py         words in context -> their vectors, layer by layer
tags.py            parts of speech, by a linear classifier on each layer
disambiguation.py  word senses, by the nearest sense of SemCor
similarity.py      WiC, SCWS, triples of sentences
senses.py          the triples; chinese_senses.py those of Chinese
blanks.py          everyday sentences with a blank
neighbours.py      nearest words by letters, nearest words in context
suite.py           a folder of data -> all of these; finished probes are kept
report.py          figures -> tables, Markdown, bars
mixes.py           folders of trained tasks -> the layers that they use, as a heat map
"""

from elmokit.probes.blanks import BLANKS, FilledBlank, fill_blanks
from elmokit.probes.chinese_senses import CHINESE_TRIPLES
from elmokit.probes.disambiguation import DisambiguationScores, disambiguate
from elmokit.probes.mixes import TaskMixes, read_mixes
from elmokit.probes.neighbours import ContextNeighbour, WordNeighbour, nearest_in_context, neighbours_of_words
from elmokit.probes.senses import SENSE_TRIPLES, SenseTriple
from elmokit.probes.similarity import (
    RatingScores,
    TripleScores,
    WordInContextScores,
    likeness,
    same_meaning,
    sense_triples,
)
from elmokit.probes.suite import (
    PROBES,
    ProbeReport,
    SentencePerplexity,
    find_probes,
    read_report,
    run_probes,
    sentence_perplexity,
    text_perplexity,
)
from elmokit.probes.tags import TaggedSplits, TagScores, probe_tags

__all__ = [
    "BLANKS",
    "CHINESE_TRIPLES",
    "PROBES",
    "SENSE_TRIPLES",
    "ContextNeighbour",
    "DisambiguationScores",
    "FilledBlank",
    "ProbeReport",
    "RatingScores",
    "SenseTriple",
    "SentencePerplexity",
    "TagScores",
    "TaggedSplits",
    "TaskMixes",
    "TripleScores",
    "WordInContextScores",
    "WordNeighbour",
    "disambiguate",
    "fill_blanks",
    "find_probes",
    "likeness",
    "nearest_in_context",
    "neighbours_of_words",
    "probe_tags",
    "read_mixes",
    "read_report",
    "run_probes",
    "same_meaning",
    "sense_triples",
    "sentence_perplexity",
    "text_perplexity",
]
