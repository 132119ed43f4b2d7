"""The recipe and the model card of a run.

Input: the settings of a run, its data and its measurements.  Output: recipe.json, which ties a folder to one run, and
the text of README.md, which describes the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elmokit.config import BiLMConfig
from elmokit.files import write_json
from elmokit.pretraining.data import Data
from elmokit.pretraining.results import TrainingState
from elmokit.pretraining.settings import PretrainConfig
from elmokit.progress import format_count
from elmokit.settings import read_json, to_mapping

RECIPE_FILE = "recipe.json"
# settings that may change when a run is resumed; all others belong to the run
MAY_CHANGE = {
    "device", "steps", "epochs", "eval_every", "eval_batch_size", "checkpoint_every", "log_every", "patience",
    "tensorboard", "out",
}  # fmt: skip


def recipe_of(config: PretrainConfig, model: BiLMConfig) -> dict[str, Any]:
    """Every setting of a run as JSON values, the sizes of the biLM under "model"."""
    return {**to_mapping(config), "model": to_mapping(model)}


def check_recipe(path: Path, config: PretrainConfig, model: BiLMConfig) -> None:
    """Check that recipe.json, if it exists, describes the same run.

    Args:
        path: recipe.json in the run's folder.
        config: Settings of the run.
        model: Sizes of the biLM.

    Raises:
        ValueError: If the folder holds a run with other settings.
    """
    recipe = recipe_of(config, model)
    if path.exists():
        before = {"first_step": 0, **read_json(path)}  # runs of earlier versions do not have the setting
        for name in sorted({*recipe, *before} - MAY_CHANGE):
            if recipe.get(name) != before.get(name):
                raise ValueError(
                    f"{path.parent} holds a run with {name} = {before.get(name)}, not {recipe.get(name)}: "
                    "use another folder, or the settings of that run to resume it"
                )


def write_recipe(path: Path, config: PretrainConfig, model: BiLMConfig) -> None:
    """Write recipe.json."""
    write_json(path, recipe_of(config, model))


def model_card(
    config: PretrainConfig,
    model: BiLMConfig,
    data: Data,
    state: TrainingState,
    *,
    num_steps: int,
    unigram: float | None,
    tokenizer: str,
) -> str:
    """README.md of a model folder: sizes, data, held-out perplexities, recipe.

    Args:
        config: Settings of the run.
        model: Sizes of the biLM.
        data: Training and held-out text.
        state: Step and measurements so far.
        num_steps: Number of updates of the complete run.
        unigram: Held-out perplexity of a unigram model; None without held-out text.
        tokenizer: Name of the tokenizer that cut the training text.

    Returns:
        Markdown.
    """
    reads = "words" if model.num_words is not None else "characters"
    layers = f"{format_count(model.num_layers, 'layer')} of {model.cell_dim} cells"
    if model.architecture == "transformer":
        layers = format_count(model.num_layers, "transformer block")
    lines = [
        f"# A biLM: {layers}, {2 * model.projection_dim} dimensions",
        "",
        f"Trained with elmokit for {state.step:,} of {num_steps:,} steps of {config.batch_size} rows x "
        f"{config.unroll} tokens; it reads {reads} and predicts {format_count(len(data.vocabulary), 'word')}. "
        f"Its tokenizer is `{tokenizer}`.",
        "",
        '```python\nfrom elmokit import ELMo\n\nmodel = ELMo.from_pretrained("this folder")\n```',
        "",
        "## Data",
        "",
        f"Training text: {format_count(data.train.num_tokens, 'word')}, "
        f"{format_count(data.train.num_sentences, 'sentence')}, {format_count(data.train.num_documents, 'document')}.",
    ]
    if data.heldout is not None:
        lines += [
            f"Held-out text: {format_count(data.heldout.num_tokens, 'word')}; "
            f"a unigram model has perplexity {unigram:.1f}.",
            "",
            "## Held-out perplexity",
            "",
            "| step | forward | backward | both |",
            "|---:|---:|---:|---:|",
            *(f"| {step:,} | {f:.2f} | {b:.2f} | {both:.2f} |" for step, (f, b, both, _) in state.measured),
        ]
    recipe = json.dumps(recipe_of(config, model), indent=1)
    return "\n".join([*lines, "", "## Recipe", "", f"```json\n{recipe}\n```", ""])
