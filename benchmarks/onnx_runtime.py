"""ONNX Runtime compared with the CPU engine: the same ids, the same threads, tokens/s and their ratio.

    python benchmarks/onnx_runtime.py [--model MODEL] [--size small] [--text FILE] [--rows 1] [--rows 32] [--threads 1]

The default is the embedded model; --size uses random weights.  Both read the ids of one batch at a time, with padding,
and compute all layers: elmokit by `BiLM.forward`, without the cache of words in `ELMo.embed`.  They take turns in every
round and medians are compared.  Before that, their results are checked to agree within 1e-5.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from elmokit import BiLM, ELMo, batch_to_ids
from elmokit.bench import SIZES, describe_machine, read_sentences, take_turns
from elmokit.integrations.onnx import export_onnx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="Folder or name; by default the embedded model.")
    parser.add_argument("--size", choices=SIZES, help="Random weights of a published size instead.")
    parser.add_argument("--text", type=Path, help="File with one sentence per line; by default words by Zipf's law.")
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--rows", type=int, action="append", help="Number of sentences per batch; by default 1 and 32.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "float16", "int8"], default="float32")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = ELMo(BiLM(SIZES[options.size])) if options.size else ELMo.from_pretrained(options.model)
    with tempfile.TemporaryDirectory() as folder:
        file = export_onnx(model, Path(folder) / "model.onnx", dtype=options.dtype)
        session = open_session(file.path, options.threads)
    sentences = sorted(read_sentences(options.text, options.sentences), key=len)
    num_tokens = sum(map(len, sentences))
    print(describe_machine("cpu", torch.float32, options.threads), f"onnxruntime {onnxruntime.__version__}", sep="\n")
    print(f"{num_tokens:,} tokens; {options.dtype} file of {file.num_bytes / 1e6:.1f} MB")
    print("rows  elmokit  onnxruntime  ratio  largest difference")
    for rows in options.rows or (1, 32):
        batches = [batch_to_ids(sentences[begin : begin + rows]) for begin in range(0, len(sentences), rows)]
        arrays = [ids.numpy() for ids in batches]

        @torch.inference_mode()
        def ours(batches: list[torch.Tensor] = batches) -> list[np.ndarray]:
            return [model.bilm(ids).layers.numpy() for ids in batches]

        def theirs(arrays: list[np.ndarray] = arrays) -> list[np.ndarray]:
            return [session.run(["layers"], {"ids": ids})[0] for ids in arrays]

        difference = max(float(np.abs(a - b).max()) for a, b in zip(ours(), theirs(), strict=True))
        seconds = take_turns({"elmokit": ours, "onnxruntime": theirs}, options.rounds, "cpu")
        a, b = num_tokens / seconds["elmokit"], num_tokens / seconds["onnxruntime"]
        print(f"{rows:4}  {a:7,.0f}  {b:11,.0f}  {b / a:5.2f}  {difference:.1e}")
        if options.dtype == "float32" and difference > 1e-5:
            raise SystemExit("the two do not agree: these figures mean nothing")


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
