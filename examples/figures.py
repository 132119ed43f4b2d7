"""The figures of docs/how-elmo-works.md, docs/sense-vectors.md and docs/pretraining.md that show the English model.

    python examples/figures.py                  # into docs/img
    python examples/figures.py OTHER_FOLDER

Input: the embedded model, the figures of its card, and the losses of its training (docs/results). Output: works-*.svg:
a word on its path through the model, the word "bank" in six sentences view by view, what each view knows, what a word's
slot and surroundings are, and how surprised the model is by each word; english-curve.svg: the loss. No number is
written by hand. Needs matplotlib (`pip install "elmokit[plot]"`) and some seconds.
"""

import json
import math
import re
import sys
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from elmokit import ELMo, tokenize
from elmokit.inference.views import HALF_DISTANCE

# Picked because the model tells them apart well; the card says how often it does.
SENTENCES = [
    "The bank raised its interest rates.",
    "He borrowed the money from a bank in London.",
    "She works for a large investment bank.",
    "We sat on the bank of the river.",
    "They fished from the muddy bank of the stream.",
    "Trees grew along the far bank of the lake.",
]
IN_ITS_PLACE = "We sat on the grassy bank of the quiet river."
SURPRISING = "The bank of England raised its interest umbrellas again."
# the colours of the explorer page
FORWARD, BACKWARD, LETTERS, MIX, INK = "#1f5fa6", "#c2410c", "#0f766e", "#7c3aad", "#333333"
STYLE = {
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "elmokit",  # the same file for the same numbers
}


# ---- the way of a word -----------------------------------------------------------------------------------------------


def draw_path(model: ELMo) -> Figure:
    """A word of a sentence from its letters to its vector, with the sizes of this model."""
    config = model.config
    words, columns = ["The", "bank", "lent", "money"], [3.2, 5.4, 7.6, 9.8]
    rows = {"letters": 0.0, "filters": 1.2, "highway": 2.3, "token": 3.4, "layer 1": 5.2, "layer 2": 7.1, "mix": 9.0}
    figure, axes = pyplot.subplots(figsize=(9.0, 7.8))
    axes.set(xlim=(-0.3, 11.0), ylim=(-0.5, 9.5))
    axes.set_axis_off()
    narrowest, widest = config.filters[0][0], config.filters[-1][0]
    cells = f"{config.cell_dim:,} cells each way,\nprojected to {config.projection_dim}"
    for row, text in {
        "letters": f"{config.max_characters} ids a word",
        "filters": f"{config.filters_dim:,} filters,\n{narrowest} to {widest} letters wide",
        "highway": f"{config.num_highways} highway, projection",
        "token": f"layer 0\n{config.projection_dim} numbers, twice",
        "layer 1": f"layer 1\n{cells}",
        "layer 2": f"layer 2\n{cells}",
        "mix": f"one vector of\n{model.dim} numbers",
    }.items():
        axes.text(-0.3, rows[row], text, ha="left", va="center", fontsize=9, color="#555555")

    chosen = columns[words.index("bank")]
    band = FancyBboxPatch((chosen - 1.02, 2.98), 2.04, 4.9, boxstyle="round,pad=0.02", color="#efe8f6", zorder=0)
    axes.add_patch(band)
    box(axes, chosen, rows["mix"], "γ ( s₀ · layer 0  +  s₁ · layer 1  +  s₂ · layer 2 )", MIX, width=5.4, filled=True)
    arrow(axes, (chosen, 7.9), (chosen, rows["mix"] - 0.3), MIX)
    for word, x in zip(words, columns, strict=True):
        box(axes, x, rows["letters"], " ".join(["^", *word, "$", "·", "·"]), LETTERS, width=2.0)
        box(axes, x, rows["filters"], "convolutions", LETTERS, width=2.0)
        box(axes, x, rows["highway"], "highway", LETTERS)
        box(axes, x, rows["token"], word, LETTERS, filled=True)
        for below, above in (("letters", "filters"), ("filters", "highway"), ("highway", "token")):
            arrow(axes, (x, rows[below] + 0.3), (x, rows[above] - 0.3), LETTERS)
        left, right = x - 0.45, x + 0.45
        arrow(axes, (left, rows["token"] + 0.3), (left, rows["layer 1"] - 0.6), FORWARD)
        arrow(axes, (right, rows["token"] + 0.3), (right, rows["layer 1"]), BACKWARD)
        arrow(axes, (left, rows["layer 1"]), (left, rows["layer 2"] - 0.6), FORWARD)
        arrow(axes, (right, rows["layer 1"] + 0.6), (right, rows["layer 2"]), BACKWARD)
        for layer in ("layer 1", "layer 2"):
            box(axes, left, rows[layer] - 0.3, "→", FORWARD, width=0.8)
            box(axes, right, rows[layer] + 0.3, "←", BACKWARD, width=0.8)
    for layer in ("layer 1", "layer 2"):
        for before, after in pairwise(columns):
            arrow(axes, (before - 0.05, rows[layer] - 0.3), (after - 0.85, rows[layer] - 0.3), FORWARD)
            arrow(axes, (after + 0.05, rows[layer] + 0.3), (before + 0.85, rows[layer] + 0.3), BACKWARD)
    axes.text(10.7, 9.15, "→  reads from the left", color=FORWARD, ha="right", fontsize=9)
    axes.text(10.7, 8.75, "←  reads from the right", color=BACKWARD, ha="right", fontsize=9)
    return figure


def box(axes: Axes, x: float, y: float, text: str, color: str, *, width: float = 1.7, filled: bool = False) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - 0.28), width, 0.56, boxstyle="round,pad=0.02,rounding_size=0.1",
            edgecolor=color, facecolor=color if filled else "white", linewidth=1.2, zorder=3,
        )
    )  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", zorder=4, color="white" if filled else INK, fontsize=9.5)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    shape = {"arrowstyle": "-|>", "mutation_scale": 9, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(start, end, color=color, linewidth=1.1, zorder=2, **shape))


# ---- the word "bank" -------------------------------------------------------------------------------------------------


def draw_senses(model: ELMo) -> Figure:
    """The cosine of "bank" with "bank" in each two of six sentences, view by view."""
    tokens = [tokenize(sentence) for sentence in SENTENCES]
    places = [sentence.index("bank") for sentence in tokens]
    views = {f"layer {number}": number for number in range(model.num_layers)} | {"sense": "sense"}
    figure, panels = pyplot.subplots(1, len(views), figsize=(12.5, 3.2), layout="constrained")
    for panel, (name, view) in zip(panels, views.items(), strict=True):
        embedded = model.embed(tokens, layers=view)
        vectors = np.stack([found[place] for found, place in zip(embedded, places, strict=True)])  # (6, 2P)
        vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        values = vectors @ vectors.T
        panel.imshow(values, cmap="Blues", vmin=0.0, vmax=1.15)
        for (row, column), value in np.ndenumerate(values):
            color = "white" if value > 0.75 else INK
            panel.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
        panel.set_title(name + (": the letters alone" if view == 0 else ""), fontsize=10)
        panel.set_xticks([])
        rows = [shorten(s, p) for s, p in zip(tokens, places, strict=True)]
        panel.set_yticks(range(6), rows if view == 0 else [])
        panel.axhline(2.5, color="white", linewidth=2)
        panel.axvline(2.5, color="white", linewidth=2)
        panel.spines[:].set_visible(False)
        panel.tick_params(length=0)
    return figure


def draw_slot(model: ELMo) -> Figure:
    """What the slot of a word reads, and how much each other word counts in its surroundings."""
    tokens = tokenize(IN_ITS_PLACE)
    place = tokens.index("bank")
    distances = np.abs(np.arange(len(tokens)) - place)
    weights = np.where(distances > 0, model.word_weights(tokens) / (1 + distances / HALF_DISTANCE), 0)
    figure, axes = pyplot.subplots(figsize=(9.0, 3.9), layout="constrained")
    for column, (token, weight) in enumerate(zip(tokens, weights, strict=True)):
        is_word = column == place
        axes.text(column, 0, token, ha="center", va="center", fontsize=11, fontweight="bold" if is_word else "normal")
        axes.bar(column, -2.2 * weight, bottom=-0.35, width=0.55, color=LETTERS)
        if not is_word:
            axes.text(column, -2.2 * weight - 0.52, f"{weight:.2f}", ha="center", va="center", fontsize=8)
    for column in range(len(tokens)):
        if column < place:
            arrow(axes, (column - 0.3, 0.6), (column + 0.75, 0.6), FORWARD)
        elif column > place:
            arrow(axes, (column + 0.3, 0.6), (column - 0.75, 0.6), BACKWARD)
    box(axes, place, 1.5, "slot: what both sides expect here", MIX, width=4.6, filled=True)
    arrow(axes, (place - 0.5, 0.75), (place - 0.5, 1.18), FORWARD)
    arrow(axes, (place + 0.5, 0.75), (place + 0.5, 1.18), BACKWARD)
    axes.text(-0.4, 1.5, "forward, at the word before", color=FORWARD, fontsize=9, va="center")
    axes.text(
        len(tokens) - 0.6, 1.5, "backward, at the word after", color=BACKWARD, fontsize=9, ha="right", va="center"
    )
    axes.text(
        -0.4, -1.9, "surroundings: each word by its\nrarity and its nearness", color=LETTERS, fontsize=9, va="center"
    )
    axes.set_xlim(-0.8, len(tokens) - 0.2)
    axes.set_ylim(-2.4, 2.0)
    axes.set_axis_off()
    return figure


def shorten(tokens: list[str], place: int) -> str:
    """The word with its neighbours."""
    before, after = tokens[max(0, place - 2) : place], tokens[place + 1 : place + 3]
    return " ".join([*before, tokens[place].upper(), *(token for token in after if token != ".")])


# ---- what each layer knows -------------------------------------------------------------------------------------------


def draw_roles() -> Figure:
    """Parts of speech and senses by layer and view, as the card of the model has them."""
    card = (files("elmokit") / "models" / "en" / "README.md").read_text(encoding="utf-8")
    table = {}
    for line in re.search(r"### What the layers know\n\n(.*?)\n\n", card, re.DOTALL)[1].splitlines()[2:]:
        name, *values = (cell.strip() for cell in line.strip("|").split("|"))
        table[name] = [float(value) for value in values[:-2] if value], values[-1]
    rows = {
        "XPOS accuracy": "part of speech\n(linear classifier)",
        "WSD F1": "sense of a word\n(nearest in SemCor)",
        "sense triples won, %": "which two of three\nuses mean the same",
    }
    figure, panels = pyplot.subplots(1, len(rows), figsize=(10.5, 3.2), layout="constrained")
    for panel, (row, title) in zip(panels, rows.items(), strict=True):
        values, without = table[row]
        names = ["0", "1", "2", "mean", "slot", "sense"] if row != "XPOS accuracy" else ["0", "1", "2", "mean", "mix"]
        bars = panel.bar(
            range(len(names)), values, color=[LETTERS, *[FORWARD] * 2, *[MIX] * 3][: len(names)], width=0.7
        )
        panel.bar_label(bars, fmt="%.1f", fontsize=9, padding=2)
        panel.axhline(float(re.search(r"[\d.]+", without)[0]), color="#222222", linewidth=1, linestyle=":", zorder=3)
        panel.set_ylim(0, 105)
        panel.set_title(title, fontsize=10)
        panel.set_xticks(range(len(names)), names)
        panel.set_xlabel(f"dotted: {without.split(',')[0]}", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("%")
    return figure


# ---- surprise --------------------------------------------------------------------------------------------------------


def draw_surprise(model: ELMo) -> Figure:
    """Bits that each word costs a reader from the left (up) and one from the right (down)."""
    (scores,) = model.log_probs([SURPRISING])
    forward, backward = -scores.forward / math.log(2), -scores.backward / math.log(2)
    places = np.arange(len(scores.tokens))
    figure, axes = pyplot.subplots(figsize=(8.6, 3.4), layout="constrained")
    gap = 1.6  # room for the words between the bars
    up = axes.bar(places, forward, bottom=gap, color=FORWARD, width=0.7, label="given the words before it")
    down = axes.bar(places, -backward, bottom=-gap, color=BACKWARD, width=0.7, label="given the words after it")
    axes.bar_label(up, [f"{bits:.1f}" for bits in forward], fontsize=8, padding=2)
    axes.bar_label(down, [f"{bits:.1f}" for bits in backward], fontsize=8, padding=2)
    for place, token in zip(places, scores.tokens, strict=True):
        axes.text(place, 0, token, ha="center", va="center", fontsize=10)
    axes.set_ylim(-backward.max() - gap - 3, forward.max() + gap + 3)
    axes.set_axis_off()
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    return figure


# ---- training --------------------------------------------------------------------------------------------------------


def draw_training() -> Figure:
    """Loss and learning rate of the English model's training, which ran in parts."""
    file = Path(__file__).parent.parent / "docs" / "results" / "english-training.jsonl"
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    figure, axes = pyplot.subplots(figsize=(7.2, 3.4), layout="constrained")
    rate_axes = axes.twinx()
    for part in sorted({record["part"] for record in records}):
        rows = [record for record in records if record["part"] == part]
        steps = [row["step"] for row in rows]
        axes.plot(steps, [row["loss"] for row in rows], color=FORWARD, linewidth=1.6)
        rate_axes.plot(steps, [row["learning_rate"] for row in rows], color=BACKWARD, linewidth=1, linestyle=":")
    axes.set(xlabel="step", ylabel="loss (nats per token)", ylim=(3.5, 4.3))
    axes.yaxis.label.set_color(FORWARD)
    rate_axes.set(ylabel="learning rate", ylim=(0, None))
    rate_axes.yaxis.label.set_color(BACKWARD)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    for one in (axes, rate_axes):
        one.spines["top"].set_visible(False)
    return figure


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")
    folder.mkdir(parents=True, exist_ok=True)
    model = ELMo.from_pretrained()
    with matplotlib.rc_context(STYLE):
        for name, figure in {
            "works-path": draw_path(model),
            "works-senses": draw_senses(model),
            "works-roles": draw_roles(),
            "works-slot": draw_slot(model),
            "works-surprise": draw_surprise(model),
            "english-curve": draw_training(),
        }.items():
            target = folder / f"{name}.svg"
            figure.savefig(target, format="svg", metadata={"Date": None}, bbox_inches="tight")
            pyplot.close(figure)
            print(target)


if __name__ == "__main__":
    main()
