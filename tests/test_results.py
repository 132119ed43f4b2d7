"""The results page shows what the commands wrote, and nothing else."""

import json
from pathlib import Path
from statistics import fmean, stdev

import pytest

from elmokit.probes.mixes import TaskMixes, mix_table
from elmokit.settings import from_mapping
from elmokit.tasks.compare import read_comparisons, share_table, summary_table, to_markdown

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")


@pytest.fixture
def values():
    return lambda name: json.loads((DOCS / "results" / name).read_text(encoding="utf-8"))


@pytest.fixture
def read(values, tmp_path):
    """read(name): the comparisons in a file of values, by their names in it."""

    def comparisons(name):
        for key, one in values(name).items():
            (tmp_path / key).mkdir()
            (tmp_path / key / "compare.json").write_text(json.dumps(one))
        return read_comparisons([tmp_path / key for key in values(name)])

    return comparisons


@pytest.mark.parametrize(("name", "fewest"), [("second-edition.json", 5), ("summary.json", 6)])
def test_the_table_of_tasks_is_that_of_the_comparisons(read, name, fewest):
    comparisons = read(name)
    assert len(comparisons) >= fewest
    assert to_markdown(*summary_table(comparisons)) in PAGE
    for comparison in comparisons.values():
        assert all(len(variant.scores) == len(comparison.seeds) == 3 for variant in comparison.variants)


def test_the_second_reduction_of_sst5_is_that_against_the_first_baseline(values):
    means = {name: {one["elmo_at"]: one["mean"] for one in values(name)["sst5"]["variants"]}
             for name in ("second-edition.json", "summary.json")}  # fmt: skip
    baseline = means["summary.json"]["none"]
    assert f"removes {100 * (means['second-edition.json']['both'] - baseline) / (1 - baseline):.1f} % of" in PAGE


def test_the_table_of_mixes_is_that_of_the_trained_tasks(values):
    mixes = [from_mapping(TaskMixes, one, source=name) for name, one in values("mixes.json").items()]
    assert to_markdown(*mix_table(mixes)) in PAGE


def test_the_table_of_shares_is_that_of_their_comparisons(read):
    comparisons = {float(share): one for share, one in read("shares.json").items()}
    assert len(comparisons) >= 3
    assert to_markdown(*share_table(comparisons)) in PAGE


def test_the_figures_of_questions_are_those_of_the_evaluation(values):
    scores = values("squad.json")
    for name, row in zip(("baseline", "+ ELMo at input and output"), (scores["none"], scores["both"]), strict=True):
        cells = [f"{100 * fmean(row[key]):.2f} ± {100 * stdev(row[key]):.2f}" for key in ("f1", "exact_match")]
        assert f"| {name} | {row['epochs']} | {' | '.join(cells)} |" in PAGE
    baseline, with_elmo = (fmean(scores[elmo_at]["f1"]) for elmo_at in ("none", "both"))
    assert f"error reduction of {100 * (with_elmo - baseline) / (1 - baseline):.1f} %" in PAGE


@pytest.mark.parametrize(
    "page", [DOCS / "chinese.md", DOCS.parent / "src/elmokit/models/zh/README.md"], ids=lambda path: path.stem
)
def test_the_accuracies_of_chinese_reviews_are_those_of_the_comparison(values, page):
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.endswith("| elmokit |")]
    variants = values("chnsenticorp.json")["variants"]
    assert len(rows) == len(variants) == 2
    for row, variant in zip(rows, variants, strict=True):
        assert len(variant["scores"]) == 3
        assert f"| {100 * fmean(variant['scores']):.2f} ± {100 * stdev(variant['scores']):.2f} | elmokit |" in row
