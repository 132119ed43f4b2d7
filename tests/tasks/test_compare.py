"""Comparisons with and without ELMo: their numbers, their files, and what they refuse."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from elmokit.tasks.compare import Comparison, Variant, compare, compare_shares, share_table
from elmokit.tasks.trainer import train


def made_up(task: str, scores: dict[str, list[float]], **changes: object) -> Comparison:
    """A comparison with these scores; mixes that differ for each task and variant."""
    baseline = None if "none" not in scores else np.mean(scores["none"])
    variants = []
    for elmo_at, values in scores.items():
        reduction = None if elmo_at == "none" or baseline is None else (np.mean(values) - baseline) / (1 - baseline)
        mixes = {"none": (), "input": ((0.2, 0.5, 0.3),), "both": ((0.1, 0.6, 0.3), (0.7, 0.2, 0.1))}[elmo_at]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        variants.append(Variant(elmo_at, tuple(values), float(np.mean(values)), spread, reduction, mixes, 2.0))
    seeds = tuple(range(1, len(values) + 1))
    return dataclasses.replace(Comparison(task, "f1", "test", seeds, tuple(variants)), **changes)


def write_comparison(folder: Path, comparison: Comparison) -> Path:
    folder.mkdir(parents=True)
    (folder / "compare.json").write_text(json.dumps(dataclasses.asdict(comparison)))
    return folder


def test_a_comparison_of_one_seed_has_no_spread_and_bad_ones_are_refused(small):
    seen = set()
    config = small(epochs=1)
    comparison = compare(
        config, seeds=[4], variants=["input"], on_progress=lambda at, seed, progress: seen.add((at, seed))
    )
    assert seen == {("input", 4)}
    assert (comparison.part, comparison.variants[0].spread, comparison.variants[0].error_reduction) == ("dev", 0, None)
    with pytest.raises(ValueError, match="different seeds"):
        compare(config, seeds=[1, 1])
    with pytest.raises(ValueError, match="not 'top'"):
        compare(config, variants=["top"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_with_other_settings_is_refused_before_the_first_training(small, tmp_path, jobs):
    config = small(epochs=1)
    train(dataclasses.replace(config, elmo_at="none", seed=1, out=str(tmp_path / "run" / "none-1")))
    before = sorted(tmp_path.glob("run/**/*"))
    with pytest.raises(ValueError, match=r"run/none-1: contains a run with epochs = 1, not 2: choose another folder"):
        compare_shares(dataclasses.replace(config, epochs=2), [0.5, 1], seeds=[2, 1], variants=["none"], jobs=jobs)
    assert sorted(tmp_path.glob("run/**/*")) == before


def test_shares_name_the_smallest_one_that_is_as_good_as_all_data_without_elmo(small, monkeypatch):
    scores = {
        0.01: {"none": [0.2, 0.3], "input": [0.4, 0.5], "both": [0.3, 0.4]},
        0.1: {"none": [0.4, 0.5], "input": [0.6, 0.6], "both": [0.5, 0.6]},
        1.0: {"none": [0.5, 0.6], "input": [0.7, 0.7], "both": [0.8, 0.9]},
    }
    asked = []

    def instead(config, *, seeds, variants, jobs, on_progress):
        asked.append((config.share, Path(config.out).name))
        on_progress("none", 1, "somewhere")
        return made_up("ner", scores[config.share])

    monkeypatch.setattr("elmokit.tasks.compare.compare", instead)
    config, heard = small(), []
    Path(config.out).mkdir()
    found = compare_shares(config, [1, 0.01, 0.1], on_progress=lambda *one: heard.append(one))
    assert asked == [(0.01, "share-0.01"), (0.1, "share-0.1"), (1.0, "run")]
    assert heard == [(share, "none", 1, "somewhere") for share in (0.01, 0.1, 1)]
    columns, rows = share_table(found)
    assert columns == ["ner: f1 on test, 2 seeds", "baseline", "+ ELMo at the input", "+ ELMo at input and output"]
    assert rows[0] == ["1 %", "25.00 ± 7.07", "45.00 ± 7.07", "35.00 ± 7.07"]
    page = (Path(config.out) / "shares.md").read_text()
    assert "+ ELMo at the input: 10 % of train is at least as good as the baseline with 100 %." in page
    assert "+ ELMo at input and output: 10 % of train is at least as good as the baseline with 100 %." in page
    scores[0.1]["both"] = [0.5, 0.55]
    compare_shares(config, [0.01, 0.1, 1])
    assert "at input and output:" not in (Path(config.out) / "shares.md").read_text()
