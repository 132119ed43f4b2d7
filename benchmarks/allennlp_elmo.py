"""AllenNLP's ELMo module compared with elmokit: the same weights, the same ids, tokens/s and their ratio.

    python benchmarks/allennlp_elmo.py [--size small] [--size original] [--text FILE] [--rows 1] [--rows 32]

`allennlp.modules.elmo` must be importable.  Both read the character ids of one batch at a time, words new to both, and
compute one mix of all layers.  They take turns in one process, with a pause between them in which idle threads stop.
Before that, their results are checked to agree within 1e-5.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
from pathlib import Path

import torch
from allennlp.modules.elmo import Elmo

from elmokit import BiLM, ELMo, batch_to_ids
from elmokit.bench import SIZES, describe_machine, read_sentences, time_turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, action="append", help="By default small and original.")
    parser.add_argument("--text", type=Path, help="File with one sentence per line; by default words by Zipf's law.")
    parser.add_argument("--rows", type=int, action="append", help="Number of sentences per batch; by default 1 and 32.")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="File for the figures.")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # of the text, sentences of about the usual 25 tokens, so that one sentence is the same case as in a batch
    sentences = [tokens for tokens in read_sentences(options.text, 2000) if 20 <= len(tokens) <= 30][:64]
    print(describe_machine("cpu", torch.float32, options.threads))
    columns = ["size", "sentences", "elmokit, tokens/s", "AllenNLP", "ratio (of the fastest)", "largest difference"]
    print(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", sep="\n")
    figures = []
    for size in options.size or ("small", "original"):
        torch.manual_seed(0)
        ours = ELMo(BiLM(SIZES[size]), num_mixes=1, freeze=True).eval()
        with tempfile.TemporaryDirectory() as folder:
            ours.export_hdf5(folder)
            files = [str(next(Path(folder).glob(pattern))) for pattern in ("*options.json", "*.hdf5")]
            theirs = Elmo(*files, num_output_representations=1, dropout=0.0).eval()
        for rows in options.rows or (1, 32):
            num_batches = 8 if rows == 1 else 1
            batches = [batch_to_ids(sentences[rows * k : rows * (k + 1)]) for k in range(num_batches)]
            num_tokens = sum(map(len, sentences[: rows * num_batches]))
            difference = compare(ours, theirs, batches)
            seconds = time_turns(
                {
                    "elmokit": functools.partial(run_all, ours, batches),
                    "allennlp": functools.partial(run_all, theirs, batches),
                },
                options.rounds,
                pause=0.1,
            )
            a, b = (statistics.median(seconds[name]) for name in ("elmokit", "allennlp"))
            of_fastest = min(seconds["allennlp"]) / min(seconds["elmokit"])
            figures.append({"size": size, "rows": rows, "tokens": num_tokens, "difference": difference, **seconds})
            speeds = f"{num_tokens / a:,.0f} | {num_tokens / b:,.0f} | {b / a:.1f} ({of_fastest:.1f})"
            print(f"| {size} | {rows} | {speeds} | {difference:.1e} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures) + "\n", encoding="utf-8")


def run_all(module: torch.nn.Module, batches: list[torch.Tensor]) -> None:
    for ids in batches:
        module(ids)


@torch.inference_mode()
def compare(ours: ELMo, theirs: Elmo, batches: list[torch.Tensor]) -> float:
    """The largest difference of the two mixes from zero states."""
    largest = 0.0
    for ids in batches:
        theirs._elmo_lstm._elmo_lstm.reset_states()
        mask = (ids > 0).any(dim=-1, keepdim=True)
        found = ours(ids).mixes[0] - theirs(ids)["elmo_representations"][0]
        largest = max(largest, float((found * mask).abs().max()))
    if largest > 1e-5:
        raise SystemExit(f"the two differ by {largest}: their times cannot be compared")
    return largest


if __name__ == "__main__":
    with torch.inference_mode():
        main()
