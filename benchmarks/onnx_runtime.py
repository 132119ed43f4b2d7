"""ONNX Runtime compared with the CPU engine: the same ids, the same cores, milliseconds per call and their ratio.

    python benchmarks/onnx_runtime.py [--model MODEL] [--size small] [--text FILE] [--rows 1] [--rows 32] [--dtype int8]

The default is the embedded model; --size uses random weights.  Both compute all layers of one batch.  elmokit's call is
`ELMo.embed` of tokens, ONNX Runtime reads ids that were made before.  "new" words: both encode each distinct word from
its characters.  "known" words: `embed` has seen them; ONNX Runtime's model has a table of their context-free vectors.

ONNX Runtime runs with each of the settings of `SESSIONS`, and its fastest counts.  The contenders take turns, with a
pause between them in which idle threads stop.  Before that, their results are checked to agree.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from elmokit import BiLM, ELMo
from elmokit.bench import SIZES, Call, describe_machine, read_sentences, time_turns
from elmokit.integrations.onnx import export_onnx
from elmokit.network.int8 import quantized
from elmokit.text import BOS_TOKEN, EOS_TOKEN, UNK_TOKEN, Vocabulary

# (cores within an operation, cores for operations at the same time: the directions do not need each other)
SESSIONS = {"one core": (1, 1), "two cores": (2, 1), "directions at once": (1, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="Folder or name; by default the embedded model.")
    parser.add_argument("--size", choices=SIZES, help="Random weights of a published size instead.")
    parser.add_argument("--text", type=Path, help="File with one sentence per line; by default words by Zipf's law.")
    parser.add_argument("--tokens", type=int, default=25, help="Length of the sentences.")
    parser.add_argument("--rows", type=int, action="append", help="Number of sentences per batch; by default 1 and 32.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dtype", choices=["float32", "int8"], action="append", help="Of elmokit; by default both.")
    parser.add_argument("--json", type=Path, help="File for the figures.")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = ELMo(BiLM(SIZES[options.size])) if options.size else ELMo.from_pretrained(options.model)
    texts = [tokens for tokens in read_sentences(options.text, 5000) if len(tokens) >= options.tokens]
    print(describe_machine("cpu", torch.float32, torch.get_num_threads()), f"onnxruntime {onnxruntime.__version__}")
    print(
        "| words | sentences | | ms (fastest) | times as fast as ONNX Runtime (of the fastest) |",
        "|---" * 5 + "|",
        sep="\n",
    )
    figures: list[dict[str, Any]] = []
    models = {dtype: model if dtype == "float32" else int8_of(model) for dtype in options.dtype or ("float32", "int8")}
    for rows in options.rows or (1, 32):
        sentences = [tokens[: options.tokens] for tokens in texts[:rows]]
        for words in ("new", "known"):
            calls = {f"elmokit {dtype}": ours(one, sentences, words) for dtype, one in models.items()}
            theirs = sessions(model if words == "new" else with_word_table(model, sentences), sentences)
            check(calls | theirs, model.embed(sentences, layers="all"))
            figures += report(words, rows, time_turns(calls | theirs, options.rounds, pause=0.05))
    if options.json is not None:
        options.json.write_text(json.dumps(figures) + "\n", encoding="utf-8")


def with_word_table(model: ELMo, sentences: list[list[str]]) -> ELMo:
    """The same layers over a table of the context-free vectors of the sentences' words."""
    words = [BOS_TOKEN, EOS_TOKEN, UNK_TOKEN, *sorted({word for tokens in sentences for word in tokens})]
    tensors = {name: part for name, part in model.bilm.state_dict().items() if name.startswith("layers.")}
    with torch.no_grad():
        tensors["word_embedding"] = model.bilm.embed_words(torch.from_numpy(model.bilm.word_ids.ids(words)))
    bilm = BiLM(dataclasses.replace(model.config, num_words=len(words), bos_id=0, eos_id=1))
    bilm.load_weights(tensors)
    return ELMo(bilm, vocabulary=Vocabulary(words))


def int8_of(model: ELMo) -> ELMo:
    return ELMo(quantized(model.bilm), vocabulary=model.vocabulary)


def ours(model: ELMo, sentences: list[list[str]], words: str) -> Call:
    def call() -> list[np.ndarray]:
        if words == "new":
            model.forget_words()
        return model.embed(sentences, layers="all")

    return call


def sessions(model: ELMo, sentences: list[list[str]]) -> dict[str, Call]:
    ids = model.to_ids(sentences).numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(model, Path(folder) / "model.onnx").path
        opened = {f"onnxruntime, {name}": open_session(path, *cores) for name, cores in SESSIONS.items()}
    return {name: functools.partial(run_session, session, ids) for name, session in opened.items()}


def run_session(session: onnxruntime.InferenceSession, ids: np.ndarray) -> np.ndarray:
    return session.run(["layers"], {"ids": ids})[0].swapaxes(0, 1)  # sentences of equal lengths have no padding


def check(calls: dict[str, Call], expected: list[np.ndarray]) -> None:
    """Stop if a contender computes something else."""
    for name, call in calls.items():
        difference = max(float(np.abs(a - b).max()) for a, b in zip(call(), expected, strict=True))
        if difference > (2e-5 if "int8" not in name else 0.5):
            raise SystemExit(f"{name} differs by {difference:.1e}: these figures mean nothing")


def open_session(path: Path, within: int, at_once: int) -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = within, at_once
    if at_once > 1:
        settings.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    return onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def report(words: str, rows: int, seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Print one line per contender; the ratio is to the fastest session."""
    theirs = [taken for name, taken in seconds.items() if name.startswith("onnxruntime")]
    median, fastest = min(map(statistics.median, theirs)), min(map(min, theirs))
    figures = []
    for name, taken in seconds.items():
        ours, best = statistics.median(taken), min(taken)
        ratio = f"{median / ours:.2f} ({fastest / best:.2f})" if name.startswith("elmokit") else ""
        print(f"| {words} | {rows} | {name} | {ours * 1e3:.1f} ({best * 1e3:.1f}) | {ratio} |", flush=True)
        figures.append({"words": words, "rows": rows, "contender": name, "seconds": taken})
    return figures


if __name__ == "__main__":
    main()
