"""Vectors of words in context from an exported model, with only NumPy and ONNX Runtime.

    elmokit export --onnx model.onnx --layers average --dtype int8
    python examples/onnx_runtime.py model.onnx

Without a file it exports the embedded model first.  It prints how much alike "bank" is in each two of four sentences:
the two banks that lend money come out nearer to each other than to those of a river.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

SENTENCES = [
    "The bank lent him money to buy a house .",
    "The bank raised its interest rates again .",
    "We sat on the bank of the river .",
    "The boat lay by the muddy bank of the stream .",
]


def main() -> None:
    if len(sys.argv) > 1:
        session = onnxruntime.InferenceSession(sys.argv[1])
    else:
        session = export_and_open()
    sentences = [sentence.split() for sentence in SENTENCES]  # tokens stand between spaces here
    config = json.loads(session.get_modelmeta().custom_metadata_map["config"])
    ids = character_ids(sentences, config["max_characters"])
    vectors, mask = session.run(["vectors", "mask"], {"ids": ids})
    print(f"ids {ids.shape} -> vectors {vectors.shape}, mask {mask.shape} with {mask.sum()} tokens")
    banks = np.stack([row[sentence.index("bank")] for row, sentence in zip(vectors, sentences, strict=True)])
    banks /= np.linalg.norm(banks, axis=1, keepdims=True)
    for sentence, cosines in zip(SENTENCES, banks @ banks.T, strict=True):
        print("  ".join(f"{cosine:.2f}" for cosine in cosines), sentence, sep="  ")


def character_ids(sentences: list[list[str]], max_characters: int) -> np.ndarray:
    """(B, T, max_characters): begin of word, UTF-8 bytes, end of word, pads; each id + 1, so that 0 is padding."""
    begin, end, pad = 259, 260, 261
    ids = np.zeros((len(sentences), max(map(len, sentences)), max_characters), np.int64)
    for row, sentence in zip(ids, sentences, strict=True):
        for word, token in zip(row, sentence, strict=False):
            encoded = [begin, *(byte + 1 for byte in token.encode()[: max_characters - 2]), end]
            word[:] = encoded + [pad] * (max_characters - len(encoded))
    return ids


def export_and_open() -> onnxruntime.InferenceSession:
    from elmokit import ELMo
    from elmokit.integrations.onnx import export_onnx

    with tempfile.TemporaryDirectory() as folder:
        file = export_onnx(ELMo.from_pretrained(), Path(folder) / "model.onnx", layers="average", dtype="int8")
        return onnxruntime.InferenceSession(file.path)


if __name__ == "__main__":
    main()
