"""The English model on a CPU: what each part takes beside its operations, and the cases that users have.

    python benchmarks/cpu.py --text FILE [--only sentence,parts,perplexity,minilm,start] [--out FILE]

sentence    one sentence of 25 known tokens and of 25 new words, by `ELMo.embed`
parts       a new word, a token in the LSTM layers, a score: microseconds beside operations, those of products
perplexity  text scored as `elmokit perplexity` does, beside the operations of its products
minilm      token vectors of new sentences beside a transformer of the sizes of all-MiniLM-L6-v2
start       a new process: imports, the model, the first vectors

Medians and, in brackets, the fastest.  "of a product" is the share of the operations per second of one large product in
the same run.  Contenders take turns.  FILE has one tokenized sentence per line.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from transformer_sizes import MiniLM

from elmokit import ELMo
from elmokit.bench import Call, ceiling_flops, describe_machine, read_sentences, time_turns
from elmokit.corpus import prepare
from elmokit.corpus.heldout import heldout_perplexity

Row = list[str]

NUM_TOKENS = 25
STARTS = {
    "import torch": "import torch",
    "import elmokit": "import elmokit",
    "import elmokit, ELMo": "from elmokit import ELMo",
    "the model": "from elmokit import ELMo; ELMo.from_pretrained()",
    "the first vectors": "from elmokit import ELMo; ELMo.from_pretrained().embed(['The bank lent money .'])",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--only", default=",".join(PARTS), help="Parts to run.")
    parser.add_argument("--sentences", type=int, default=2000, help="Number of sentences of the text.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="File for the tables, in Markdown.")
    options = parser.parse_args()
    sentences = read_sentences(options.text, options.sentences)
    machine = describe_machine("cpu", torch.float32, torch.get_num_threads())
    models = {"float32": ELMo.from_pretrained(), "int8": ELMo.from_pretrained(quantize="int8")}
    tables = [", ".join(f"{name} {value}" for name, value in machine.items())]
    print(tables[0])
    for name in options.only.split(","):
        columns, rows = PARTS[name](models, sentences, options.rounds)
        lines = [f"| {' | '.join(row)} |" for row in (columns, *rows)]
        tables.append("\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]]))
        print("", tables[-1], sep="\n", flush=True)
    if options.out is not None:
        options.out.write_text("\n\n".join(tables) + "\n", encoding="utf-8")


def shown(seconds: list[float], per: float = 1.0, digits: int = 1) -> str:
    """The median and the fastest, per `per` seconds."""
    return f"{statistics.median(seconds) / per:,.{digits}f} ({min(seconds) / per:,.{digits}f})"


# ---- parts -----------------------------------------------------------------------------------------------------------


def time_sentence(models: dict[str, ELMo], sentences: list[list[str]], rounds: int) -> tuple[Row, list[Row]]:
    known = [next(tokens for tokens in sentences if len(tokens) == NUM_TOKENS)]

    def new(model: ELMo) -> None:
        model.forget_words()
        model.embed(known)

    calls: dict[str, Call] = {}
    for dtype, model in models.items():
        calls[f"{dtype}, known words"] = lambda m=model: m.embed(known)
        calls[f"{dtype}, known words, sense"] = lambda m=model: m.embed(known, layers="sense")
    known_times = time_turns(calls, 8 * rounds, pause=0.02)
    new_times = time_turns({f"{d}, new words": lambda m=m: new(m) for d, m in models.items()}, 8 * rounds, pause=0.02)
    rows = [[name, shown(seconds, 1e-3)] for name, seconds in (known_times | new_times).items()]
    return [f"one sentence of {NUM_TOKENS} tokens", "ms"], rows


def time_parts(models: dict[str, ELMo], sentences: list[list[str]], rounds: int) -> tuple[Row, list[Row]]:
    ceiling = ceiling_flops("cpu", torch.float32, rounds)
    config = models["float32"].config
    width = sum(channels for _, channels in config.filters)
    words = list(dict.fromkeys(word for tokens in sentences for word in tokens))[:2048]
    highways = (4 * config.num_highways * width + 2 * config.projection_dim) * width
    lstm = 2 * config.num_layers * 18 * config.cell_dim * config.projection_dim
    rows = []

    def add(part: str, operations: float, count: int, calls: dict[str, Call]) -> None:
        for dtype, seconds in time_turns(calls, rounds, pause=0.02).items():
            share = f"{operations * count / statistics.median(seconds) / ceiling:.0%}"
            rows.append([part, dtype, f"{operations / 1e6:.1f}", shown(seconds, 1e-6 * count), share])

    for count in (25, 512, 2048):
        ids = torch.from_numpy(models["float32"].bilm.word_ids.ids(words[:count]))
        encode = {dtype: lambda m=model, ids=ids: m.bilm.embed_words(ids) for dtype, model in models.items()}
        add(f"a new word, {count} at once", highways, count, encode)
    for num_rows in (1, 32, 64):
        vectors = torch.randn(NUM_TOKENS + 2, num_rows, config.projection_dim)
        lengths = torch.full((num_rows,), len(vectors))
        run = {dtype: layers_call(model, vectors, lengths) for dtype, model in models.items()}
        add(f"a token in the LSTM layers, {num_rows} at once", lstm, num_rows * len(vectors), run)
    scorer = models["float32"]
    scorer.load_language_model()
    assert scorer.output_layer is not None
    hidden = torch.randn(2048, config.projection_dim)
    targets = torch.randint(scorer.output_layer.num_words, (2048,))
    score = {"float32": lambda: scorer.output_layer.log_probs(hidden, targets)}
    operations = 2 * scorer.output_layer.num_words * config.projection_dim
    add("a score in one direction, 2048 tokens at once", operations, 2048, score)
    return ["part", "weights", "million operations", "us", "of a product"], rows


def layers_call(model: ELMo, vectors: torch.Tensor, lengths: torch.Tensor) -> Call:
    return lambda: model.bilm.contextualize(vectors, lengths, with_state=False)


def time_perplexity(models: dict[str, ELMo], sentences: list[list[str]], rounds: int) -> tuple[Row, list[Row]]:
    ceiling = ceiling_flops("cpu", torch.float32, rounds)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "text.txt"
        part.write_text("\n".join(" ".join(tokens) for tokens in sentences[:400]) + "\n", encoding="utf-8")
        scorer = models["float32"]
        scorer.load_language_model()
        layer, vocabulary, config = scorer.output_layer, scorer.vocabulary, scorer.config
        assert layer is not None
        assert vocabulary is not None
        corpus = prepare([str(part)], Path(folder) / "corpus", vocabulary=vocabulary, tokenized=True)
        lstm = 36 * config.num_layers * config.cell_dim * config.projection_dim
        operations = lstm + 4 * layer.num_words * config.projection_dim
        calls: dict[str, Call] = {
            dtype: lambda m=model: heldout_perplexity(m.bilm, layer, corpus, unk_id=vocabulary.unk_id)
            for dtype, model in models.items()
        }
        seconds = time_turns(calls, max(2, rounds // 2), pause=0.1)
        for dtype, taken in seconds.items():
            share = f"{operations * corpus.num_pairs / statistics.median(taken) / ceiling:.0%}"
            per_token = shown(taken, 1e-6 * corpus.num_pairs, 0)
            rows.append([dtype, f"{corpus.num_pairs:,}", f"{operations / 1e6:.1f}", per_token, share])
    return ["perplexity, LSTM layers in", "tokens", "million operations a token", "us a token", "of a product"], rows


def time_minilm(models: dict[str, ELMo], sentences: list[list[str]], rounds: int) -> tuple[Row, list[Row]]:
    lines = [" ".join(tokens) for tokens in sentences]
    num_words = sum(map(len, sentences))
    other = MiniLM(lines)

    def new(model: ELMo) -> None:
        model.forget_words()
        model.embed(lines, layers="top")

    calls: dict[str, Call] = {"MiniLM-L6": lambda: other.embed(lines)}
    calls |= {f"elmokit {dtype}": lambda m=model: new(m) for dtype, model in models.items()}
    seconds = time_turns(calls, max(2, rounds // 2), pause=0.1)
    theirs = statistics.median(seconds["MiniLM-L6"])
    label = f"{len(lines):,} new sentences, token vectors"
    rows = []
    for name, taken in seconds.items():
        note = f" ({other.batch_size} a batch, {other.pieces_per_word:.2f} pieces a word)" if "MiniLM" in name else ""
        speed = f"{num_words / statistics.median(taken):,.0f} ({num_words / min(taken):,.0f})"
        rows.append([name + note, speed, f"{theirs / statistics.median(taken):.2f}x"])
    return [label, "words/s", "of MiniLM-L6"], rows


def time_start(models: dict[str, ELMo], sentences: list[list[str]], rounds: int) -> tuple[Row, list[Row]]:
    calls: dict[str, Call] = {
        name: lambda c=code: subprocess.run([sys.executable, "-c", c], check=True) for name, code in STARTS.items()
    }
    seconds = time_turns(calls, rounds)
    return ["a new process to", "s"], [[name, shown(taken, 1.0, 2)] for name, taken in seconds.items()]


PARTS: dict[str, Callable[..., tuple[Row, list[Row]]]] = {
    "sentence": time_sentence,
    "parts": time_parts,
    "perplexity": time_perplexity,
    "minilm": time_minilm,
    "start": time_start,
}

if __name__ == "__main__":
    with torch.no_grad():
        main()
