"""Figures of probes as tables, as Markdown and as bars.

Input: reports of `suite.run_probes`, of one model or of several side by side. Output: tables of text, a Markdown page,
a picture with one panel for each probe that has a figure per layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.extras import require
from elmokit.files import replacing
from elmokit.probes.disambiguation import ALL
from elmokit.probes.suite import ProbeReport
from elmokit.probes.tags import MIX
from elmokit.probes.vectors import MEAN, VIEWS


@dataclass(frozen=True)
class Table:
    """Text to print."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class LayerFigures:
    """One figure per layer, of one probe on its test data."""

    title: str
    layers: dict[str, float]
    best_layer: str | None
    """Chosen on other data than that of the figures; None if there is no such data."""
    baselines: dict[str, float]


def layer_figures(report: ProbeReport) -> list[LayerFigures]:
    """The figures of each layer, in percent (correlations times 100)."""
    found = {name: probe["result"] for name, probe in report.probes.items()}
    figures = []
    for column in ("upos", "xpos"):
        if scores := found.get("pos", {}).get(column):
            baselines = {"most frequent tag": scores["most_frequent_tag"]}
            figures.append(LayerFigures(f"{column.upper()} accuracy", scores["test"], scores["best_layer"], baselines))
    if scores := found.get("wsd"):
        layers = {layer: sets[ALL] for layer, sets in scores["layers"].items()}
        baselines = {"first sense": scores["first_sense"][ALL], "most frequent sense": scores["most_frequent"][ALL]}
        figures.append(LayerFigures("WSD F1", layers, scores["best_layer"], baselines))
    if scores := found.get("wic"):
        figures.append(LayerFigures("WiC accuracy", scores["test"], scores["best_layer"], {"chance": 50.0}))
    if scores := found.get("scws"):
        figures.append(LayerFigures("SCWS Spearman x 100", scores["layers"], None, {}))
        if same := scores.get("same_word"):
            figures.append(LayerFigures("SCWS, one word, Spearman x 100", same, None, {}))
    if scores := found.get("senses"):
        figures.append(LayerFigures("sense triples won, %", scores["layers"], None, {"chance": 100 / 3}))
    return figures


def tables(report: ProbeReport) -> list[Table]:
    """A summary of what the layers know, then one table per probe."""
    names = [*report.layers, MIX]
    figures = layer_figures(report)
    summary = [
        [
            one.title,
            *(_figure(one.layers.get(name)) for name in names),
            one.best_layer or "",
            ", ".join(f"{name} {value:.1f}" for name, value in one.baselines.items()),
        ]
        for one in figures
    ]
    results = [Table("What the layers know", ["probe", *_heads(names), "chosen", "without vectors"], summary)]
    makers = [
        ("perplexity", _perplexity_table),
        ("perplexity", _sentence_perplexity_table),
        ("pos", _tag_table),
        ("wsd", _disambiguation_table),
        ("wic", _threshold_table),
        ("senses", _triple_table),
        ("words", _word_table),
        ("blanks", _blank_table),
        ("contexts", _context_table),
    ]
    results += [make(report.probes[name]["result"]) for name, make in makers if name in report.probes]
    return [one for one in results if one.rows]


def comparison(reports: Sequence[ProbeReport]) -> Table:
    """A table of several models: one row per figure, one column per model."""
    columns = [_headlines(report) for report in reports]
    rows = list(dict.fromkeys(row for column in columns for row in column))
    return Table(
        "Side by side",
        ["figure", *(report.model for report in reports)],
        [[row, *(column.get(row, "") for column in columns)] for row in rows],
    )


def markdown(report: ProbeReport) -> str:
    """The report as a page."""
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    times = ", ".join(f"{name} {probe['seconds']:.0f} s" for name, probe in report.probes.items())
    dates = sorted({probe["date"] for probe in report.probes.values()})
    parts = [f"# Probes of {report.model}", f"Weights {report.weights[:16]}; {machine}; {' to '.join(dates)}; {times}."]
    for table in tables(report):
        parts += [f"## {table.title}", to_markdown(table)]
    return "\n\n".join(parts) + "\n"


def to_markdown(table: Table) -> str:
    """The columns and rows of a table, without its title."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


BLUE, ORANGE, GREEN, PURPLE, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#555555",
)  # of Okabe and Ito, for all eyes


def plot(report: ProbeReport, path: Path) -> None:
    """Draw bars of each layer, the mean, the mix and the views, one panel per probe; a star marks the chosen one.

    Args:
        report: The report.
        path: The file to write, such as probe.svg.

    Raises:
        ValueError: If no probe has a figure per layer.
        ImportError: If matplotlib is not installed.
    """
    require("matplotlib", extra="plot").use("agg")
    pyplot = require("matplotlib.pyplot", extra="plot")
    figures = layer_figures(report)
    if not figures:
        raise ValueError("there is no probe with a figure for each layer: run pos, wsd, wic, scws or senses")
    width = min(3, len(figures))
    height = -(-len(figures) // width)
    figure, axes = pyplot.subplots(height, width, figsize=(3.6 * width, 2.9 * height + 0.5), squeeze=False)
    for axis in axes.flat[len(figures) :]:
        axis.set_visible(False)
    for axis, one in zip(axes.flat, figures, strict=False):
        names, values = list(one.layers), list(one.layers.values())
        colors = [{MEAN: ORANGE, MIX: GREEN}.get(name, PURPLE if name in VIEWS else BLUE) for name in names]
        bars = axis.bar(range(len(names)), values, color=colors, width=0.7)
        labels = [f"{value:.1f}{' *' if name == one.best_layer else ''}" for name, value in one.layers.items()]
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # a baseline may cross the figure
        axis.bar_label(bars, labels, padding=2, fontsize=8, bbox=box)
        styles = iter(("--", ":"))
        for name, value in one.baselines.items():
            axis.axhline(value, color=GREY, linestyle=next(styles), linewidth=1, label=f"{name} {value:.1f}")
        low, high = min(*values, *one.baselines.values()), max(*values, *one.baselines.values())
        room = max(high - low, 5.0)
        bottom = max(0.0, 5 * ((low - room) // 5)) if low >= 0 else 1.2 * low
        axis.set_ylim(bottom, high + 0.5 * room)
        axis.set_xticks(
            range(len(names)),
            [name if len(names) > 5 or not name.isdecimal() else f"layer {name}" for name in names],
            fontsize=8,
        )
        axis.set_yticks(
            [tick for tick in axis.get_yticks() if bottom <= tick <= 100]
        )  # the room above is for the legend
        axis.tick_params(axis="y", labelsize=8)
        axis.set_title(f"{one.title} (axis from {bottom:.0f})" if bottom else one.title, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
        if one.baselines:
            axis.legend(fontsize=7, loc="upper left", frameon=False, ncols=2)
    star = " (* chosen on other data)" if any(one.best_layer for one in figures) else ""
    figure.suptitle(f"What the layers of {report.model} know{star}", fontsize=10)
    figure.tight_layout()
    with replacing(path) as temporary:
        # "tight": the title may be wider than one panel
        figure.savefig(temporary, format=path.suffix.removeprefix("."), bbox_inches="tight")
    pyplot.close(figure)


# ---- one table for each probe ----------------------------------------------------------------------------------------


def _headlines(report: ProbeReport) -> dict[str, str]:
    """The figures of one model in a comparison."""
    found = {}
    for name, scores in report.probes.get("perplexity", {}).get("result", {}).items():
        found[f"perplexity {name}"] = f"{scores['both']:.2f}"
        if one := scores.get("sentences"):  # version 0.2 had none
            found[f"perplexity {name}, single sentences"] = f"{one['perplexity']['both']:.2f}"
            found[f"perplexity {name}, single sentences, without unknown"] = f"{one['perplexity']['known']:.2f}"
    for one in layer_figures(report):
        if one.best_layer is not None:
            found[f"{one.title}, chosen layer"] = f"{one.layers[one.best_layer]:.2f} ({one.best_layer})"
        for layer, value in one.layers.items():
            found[f"{one.title}, {layer}"] = f"{value:.2f}"
    return found


def _heads(names: Sequence[str]) -> list[str]:
    return [f"layer {name}" if name.isdecimal() else name for name in names]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _perplexity_table(result: Mapping[str, Any]) -> Table:
    """Of running text. Figures of version 0.2 have no unknown tokens."""
    rows = [
        [
            name,
            *_perplexities(one),
            f"{one['num_tokens']:,}",
            "" if one.get("num_unknown") is None else f"{one['num_unknown']:,}",
        ]
        for name, one in result.items()
    ]
    columns = ["text", "both", "forward", "backward", "both, without unknown", "predictions", "unknown"]
    return Table("Perplexity, full softmax", columns, rows)


def _sentence_perplexity_table(result: Mapping[str, Any]) -> Table:
    rows = [
        [
            name,
            *_perplexities(one["perplexity"]),
            f"{one['num_sentences']:,}",
            f"{one['num_tokens']:,}",
            f"{one['unknown']:.2f}",
        ]
        for name, text in result.items()
        if (one := text.get("sentences"))
    ]
    columns = ["text", "both", "forward", "backward", "both, without unknown", "sentences", "tokens", "unknown, %"]
    return Table("Perplexity of single sentences, each from a zero state", columns, rows)


def _perplexities(scores: Mapping[str, Any]) -> list[str]:
    """Both, forward, backward, and both without unknown tokens."""
    values = [scores.get(key) for key in ("both", "forward", "backward", "known")]
    return ["" if value is None else f"{value:.2f}" for value in values]


def _tag_table(result: Mapping[str, Any]) -> Table:
    rows = []
    for column, scores in result.items():
        for part in ("dev", "test"):
            rows.append([f"{column.upper()} {part}", *(f"{value:.2f}" for value in scores[part].values())])
        rows.append([f"{column.upper()} epochs", *map(str, scores["epochs"].values())])
        fractions = " ".join(f"{fraction:.2f}" for fraction in scores["mix_weights"])
        rows.append([f"{column.upper()} mix of layers", *[""] * (len(scores["dev"]) - 1), fractions])
    names = list(next(iter(result.values()))["dev"])
    return Table("Parts of speech, linear classifier, accuracy", ["", *_heads(names)], rows)


def _disambiguation_table(result: Mapping[str, Any]) -> Table:
    sets = list(result["num_instances"])
    rows = [
        ["instances", *(f"{result['num_instances'][name]:,}" for name in sets)],
        ["  not in training", *(f"{result['num_unseen'][name]:,}" for name in sets)],
        ["first sense", *(_figure(result["first_sense"][name]) for name in sets)],
        ["most frequent sense", *(_figure(result["most_frequent"][name]) for name in sets)],
    ]
    heads = zip(_heads(list(result["layers"])), result["layers"].items(), strict=True)
    for head, (layer, scores) in heads:
        chosen = " (chosen)" if layer == result["best_layer"] else ""
        rows.append([head + chosen, *(_figure(scores[name]) for name in sets)])
    columns = [f"{name} (chooses)" if name == result["dev"] else name for name in sets]
    return Table("Word senses, nearest neighbour, F1", ["", *columns], rows)


def _threshold_table(result: Mapping[str, Any]) -> Table:
    rows = [
        [part, *(f"{value:.{digits}f}" for value in result[key].values())]
        for part, key, digits in (("train", "train", 1), ("dev", "test", 1), ("threshold", "thresholds", 3))
    ]
    return Table("Word in context, accuracy", ["", *_heads(list(result["test"]))], rows)


def _triple_table(result: Mapping[str, Any]) -> Table:
    rows = [
        [head, _figure(value), " ".join(result["lost"][layer])]
        for head, (layer, value) in zip(_heads(list(result["layers"])), result["layers"].items(), strict=True)
    ]
    return Table(f"Sense triples: {result['num_triples']} words", ["", "won, %", "lost"], rows)


def _word_table(result: Mapping[str, Any]) -> Table:
    rows = [[word, ", ".join(f"{one['word']} {one['cosine']:.2f}" for one in found)] for word, found in result.items()]
    return Table("Words by their letters", ["word", "nearest of the vocabulary"], rows)


def _blank_table(result: Mapping[str, Any]) -> Table:
    rows = [
        [
            sentence,
            ", ".join(f"{word} {100 * probability:.0f}%" for word, probability in one["words"].items()),
            "yes" if one["is_accepted"] else "no",
        ]
        for sentence, one in result.items()
    ]
    num_accepted = sum(one["is_accepted"] for one in result.values())
    title = f"Blanks: an accepted word is first in {num_accepted} of {len(rows)}"
    return Table(title, ["sentence", "words that fit", "accepted"], rows)


def _context_table(result: Mapping[str, Any]) -> Table:
    rows = []
    for query, found in result.items():
        for place, one in enumerate(found):
            tokens, position = one["tokens"], one["position"]
            begin = max(0, position - 8)
            near = [*tokens[begin:position], f"[{tokens[position]}]", *tokens[position + 1 : position + 8]]
            rows.append([query if place == 0 else "", f"{one['cosine']:.2f}", " ".join(near)])
    return Table("Nearest words in context", ["query", "cosine", "found"], rows)
