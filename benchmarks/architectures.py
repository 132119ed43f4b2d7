"""LSTM and transformer biLMs of equal parameters, side by side: the tables of docs/transformer-bilm.md.

    python benchmarks/architectures.py speed [--recipes english transformer-english] [--device cpu] [--rows 1 32 1024]
                                             [--json speed.json]
    python benchmarks/architectures.py runs runs/lstm runs/transformer [--text wiki=FILE …] --json runs.json
    python benchmarks/architectures.py page docs/transformer-bilm.md [--speed FILE …] [--runs FILE …] [--probes FILE …]

`speed` times the layers and the complete model with random weights, in turns: the time does not depend on them.
`runs` reads finished runs of `elmokit pretrain`: parameters, tokens/s, and perplexities of texts, as running text with
the state carried and as single sentences.  `page` writes the tables of these files, and of reports of `elmokit probe`
(probe.json, one per model, in the same order), between the marks of the page.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from elmokit import ELMo
from elmokit.bench import Call, describe_machine, read_sentences, take_turns
from elmokit.corpus import prepare
from elmokit.corpus.heldout import heldout_perplexity
from elmokit.files import replacing
from elmokit.network import BiLM, find_device
from elmokit.pretraining import load_recipe
from elmokit.probes import read_report
from elmokit.probes.report import layer_figures

STEPS = 25  # tokens of each row
SENTENCES = 640


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    speed_parser = commands.add_parser("speed")
    speed_parser.add_argument("--recipes", nargs="+", default=["english", "transformer-english"])
    speed_parser.add_argument("--device", default="cpu")
    speed_parser.add_argument("--dtype", default="float32")
    speed_parser.add_argument("--rows", nargs="+", type=int, default=[1, 32, 1024])
    speed_parser.add_argument("--rounds", type=int, default=5)
    speed_parser.add_argument("--json", type=Path)
    runs_parser = commands.add_parser("runs")
    runs_parser.add_argument("folders", nargs="+", type=Path)
    runs_parser.add_argument("--text", nargs="+", default=[], metavar="NAME=FILE")
    runs_parser.add_argument("--device")
    runs_parser.add_argument("--json", type=Path)
    page_parser = commands.add_parser("page")
    page_parser.add_argument("page", type=Path)
    for name in ("speed", "runs", "probes"):
        page_parser.add_argument(f"--{name}", nargs="+", type=Path, default=[])
    arguments = parser.parse_args()
    if arguments.command == "page":
        write_page(arguments.page, arguments.speed, arguments.runs, arguments.probes)
        return
    if arguments.command == "speed":
        dtype = getattr(torch, arguments.dtype)
        result = speed(arguments.recipes, arguments.device, dtype, arguments.rows, arguments.rounds)
    else:
        texts = dict(one.split("=", 1) for one in arguments.text)
        result = {"runs": [describe_run(folder, texts, arguments.device) for folder in arguments.folders]}
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if arguments.json is not None:
        arguments.json.write_text(text)


# ---- speed ----------------------------------------------------------------------------------------------------------


def speed(recipes: list[str], device: str, dtype: torch.dtype, rows: list[int], rounds: int) -> dict[str, Any]:
    """Tokens/s of the layers at each number of rows, and of the complete model over sentences, words new and known."""
    torch.manual_seed(0)
    models = {name: ELMo(BiLM(load_recipe(name)[1])).to(device, dtype).eval() for name in recipes}
    result: dict[str, Any] = {"machine": describe_machine(device, dtype, torch.get_num_threads()), "layers": {}}
    result["parameters"] = {name: count(model.bilm) for name, model in models.items()}
    result["parameters in layers"] = {name: count(model.bilm.layers) for name, model in models.items()}
    for num_rows in rows:
        calls = {name: layer_call(model.bilm, num_rows, device, dtype) for name, model in models.items()}
        seconds = take_turns(calls, rounds, device)
        result["layers"][num_rows] = {name: num_rows * STEPS / taken for name, taken in seconds.items()}
    sentences = read_sentences(None, SENTENCES)
    num_tokens = sum(map(len, sentences))
    for kind in ("new", "known"):
        calls = {name: model_call(model, sentences, forget=kind == "new") for name, model in models.items()}
        seconds = take_turns(calls, rounds, device)
        result[f"{kind} words"] = {name: num_tokens / taken for name, taken in seconds.items()}
    return result


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def layer_call(bilm: BiLM, num_rows: int, device: str, dtype: torch.dtype) -> Call:
    tokens = torch.randn(STEPS, num_rows, bilm.config.projection_dim).to(device, dtype)
    lengths = torch.full((num_rows,), STEPS, device=device)

    def call() -> None:
        with torch.no_grad():
            bilm.contextualize(tokens, lengths, keep_boundaries=True, with_state=False)

    return call


def model_call(model: ELMo, sentences: list[list[str]], *, forget: bool) -> Call:
    def call() -> None:
        if forget:
            model.forget_words()
        model.embed(sentences, layers="top", batch_size=32, convert_to_tensor=True)

    return call


# ---- runs -----------------------------------------------------------------------------------------------------------


def describe_run(folder: Path, texts: dict[str, str], device: str | None) -> dict[str, Any]:
    """What a finished run is, how fast it was, and the perplexities of its model."""
    recipe = json.loads((folder / "recipe.json").read_text())
    speeds = [json.loads(line) for line in (folder / "speed.jsonl").read_text().splitlines()]
    rates = [line["tokens_per_second"] for line in speeds][1:] or [line["tokens_per_second"] for line in speeds]
    elmo = ELMo.from_pretrained(folder, device=str(find_device(device)))
    last = max(line["step"] for line in speeds)
    result: dict[str, Any] = {
        "run": folder.name,
        "architecture": elmo.config.architecture,
        "parameters": count(elmo.bilm),
        "steps": last,
        "tokens": last * recipe["batch_size"] * recipe["unroll"] * recipe["accumulation"],
        "tokens per second": statistics.median(rates),
        "seconds": last * recipe["batch_size"] * recipe["unroll"] * recipe["accumulation"] / statistics.median(rates),
        "running text": {},
        "single sentences": {},
    }
    assert elmo.output_layer is not None
    assert elmo.vocabulary is not None
    for name, path in texts.items():
        with tempfile.TemporaryDirectory() as temporary:
            corpus = prepare(path, temporary, vocabulary=elmo.vocabulary, max_characters=elmo.config.max_characters)
            running = heldout_perplexity(elmo.bilm, elmo.output_layer, corpus, unroll=recipe["unroll"])
        lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
        result["running text"][name] = running.both
        result["single sentences"][name] = elmo.perplexity([elmo.tokenizer(line) for line in lines]).both
    return result


# ---- the page -------------------------------------------------------------------------------------------------------


def write_page(page: Path, speeds: list[Path], runs: list[Path], probes: list[Path]) -> None:
    """Write the tables of the files between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    text = page.read_text(encoding="utf-8")
    if speeds:
        text = put(text, "speed", "\n\n".join(speed_table(json.loads(path.read_text())) for path in speeds))
    if runs:
        found = [run for path in runs for run in json.loads(path.read_text())["runs"]]
        text = put(text, "runs", runs_table(found))
    if probes:
        text = put(text, "probes", probes_table(probes))
    with replacing(page) as temporary:
        temporary.write_text(text, encoding="utf-8")


def put(text: str, name: str, table: str) -> str:
    """The text with a table between its marks."""
    pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end of {name} -->)"
    text, number = re.subn(pattern, lambda match: match[1] + table + match[2], text, flags=re.DOTALL)
    if number != 1:
        raise ValueError(f"the page has {number} places for the table {name!r}, not one")
    return text


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def speed_table(result: dict[str, Any]) -> str:
    """Tokens/s of each model, and the ratio of the last to the first."""
    names = list(result["parameters"])
    rows = [["parameters", *(f"{result['parameters'][name]:,}" for name in names), ""]]
    kinds = {f"layers, {rows_} rows": rates for rows_, rates in result["layers"].items()}
    kinds |= {f"complete, {kind}": result[kind] for kind in ("new words", "known words")}
    for kind, rates in kinds.items():
        rows.append([kind, *(f"{rates[name]:,.0f}" for name in names), f"{rates[names[-1]] / rates[names[0]]:.2f}"])
    machine = result["machine"]
    title = f"Inference on {machine['chip']} ({machine['threads']} threads, {machine['dtype']}), tokens/s"
    return f"{title}:\n\n{markdown(['', *names, 'ratio'], rows)}"


def runs_table(runs: list[dict[str, Any]]) -> str:
    """One column per run."""
    texts = list(runs[0]["running text"])
    rows = [
        ["parameters", *(f"{run['parameters']:,}" for run in runs)],
        ["training tokens, million", *(f"{run['tokens'] / 1e6:,.0f}" for run in runs)],
        ["training, tokens/s", *(f"{run['tokens per second']:,.0f}" for run in runs)],
        ["GPU seconds", *(f"{run['seconds']:,.0f}" for run in runs)],
    ]
    for kind in ("single sentences", "running text"):
        rows += [[f"perplexity, {kind}, {name}", *(f"{run[kind][name]:.1f}" for run in runs)] for name in texts]
    return markdown(["", *(run["run"] for run in runs)], rows)


def probes_table(paths: list[Path]) -> str:
    """One row per figure and model, one column per layer and view."""
    reports = [read_report(path) for path in paths]
    by_model = {report.model: {figure.title: figure.layers for figure in layer_figures(report)} for report in reports}
    found = {layer for figures in by_model.values() for layers in figures.values() for layer in layers}
    numbers = sorted((layer for layer in found if layer.isdigit()), key=int)
    columns = [*numbers, *(view for view in ("mean", "mix", "slot", "sense") if view in found)]
    rows = []
    for title in next(iter(by_model.values())):
        for model, figures in by_model.items():
            layers = figures.get(title, {})
            rows.append([f"{title}, {model}", *(f"{layers[one]:.1f}" if one in layers else "" for one in columns)])
    return markdown(["layer", *columns], rows)


if __name__ == "__main__":
    main()
