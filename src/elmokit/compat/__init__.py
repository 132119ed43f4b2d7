"""The names that users of other ELMo packages know, each a few lines over `ELMo`.

Input: what those packages took. Output: the shapes that they gave. Vectors do not depend on what was embedded before,
unless `state="carry"` asks for AllenNLP's behaviour. docs/differences.md lists the other differences.

    allennlp.py          `Elmo`, `ElmoTokenEmbedder`, `ElmoEmbedder`; `batch_to_ids` is elmokit's own
    allennlp_parts.py    `ScalarMix`, `_ElmoBiLm`, `_ElmoCharacterEncoder`
    allennlp_weights.py  weights that AllenNLP saved
    tfhub.py             `TFHubELMo`
    manylangs.py         `Embedder`, of ELMoForManyLangs
    simple_elmo.py       `ElmoModel`
    seqvec.py            `SeqVecEmbedder`, `read_fasta`: proteins
"""

from elmokit.compat.allennlp import Elmo, ElmoEmbedder, ElmoTokenEmbedder
from elmokit.compat.allennlp_parts import ScalarMix, _ElmoBiLm, _ElmoCharacterEncoder
from elmokit.compat.manylangs import Embedder
from elmokit.compat.seqvec import SeqVecEmbedder, read_fasta
from elmokit.compat.simple_elmo import ElmoModel
from elmokit.compat.tfhub import TFHubELMo
from elmokit.text import batch_to_ids

__all__ = [
    "Elmo",
    "ElmoEmbedder",
    "ElmoModel",
    "ElmoTokenEmbedder",
    "Embedder",
    "ScalarMix",
    "SeqVecEmbedder",
    "TFHubELMo",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "batch_to_ids",
    "read_fasta",
]
