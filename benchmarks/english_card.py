"""The figures of the English model, from a report of `elmokit probe` into the card and the documents that quote them.

    elmokit probe --data DATA --heldout heldout-wiki.txt --heldout heldout-books.txt --out OUT
    python benchmarks/english_card.py OUT/probe.json

Input: the report. Output: the tables under "Measured" in the card (src/elmokit/models/en/README.md), those of README.md
and README.zh-CN.md, and that of docs/sense-vectors.md, written anew. Text around the tables is left as it is. Then
`python examples/figures.py` draws the figures.
"""

import re
import sys
from pathlib import Path
from typing import Any

from elmokit.files import replacing
from elmokit.probes import ProbeReport, read_report
from elmokit.probes.report import plot, tables, to_markdown

ROOT = Path(__file__).parent.parent
CARD = ROOT / "src" / "elmokit" / "models" / "en" / "README.md"
# rows of the READMEs: tags, senses, WiC, triples, running text, single sentences; then the words between figures
READMES = {
    "README.md": (
        "parts of speech (UD EWT, Penn tags), accuracy",
        "word senses (SemCor, nearest neighbour), F1",
        "one word in two contexts (WiC dev), accuracy",
        "which two of three uses mean the same, %",
        "perplexity of held-out Wikipedia, books",
        "perplexity of their single sentences",
        ", ",
    ),
    "README.zh-CN.md": (
        "词性标注（UD EWT，Penn 标签），准确率",
        "词义消歧（SemCor，最近邻），F1",
        "同一个词在两处语境中是否同义（WiC dev），准确率",
        "三个用例中哪两个同义，%",
        "留出文本的困惑度：维基百科、书籍",
        "其中逐句计算",
        "、",
    ),
}


def main() -> None:
    report = read_report(sys.argv[1])
    results = {name: probe["result"] for name, probe in report.probes.items()}
    write(CARD, card(CARD.read_text(encoding="utf-8"), report))
    for name, rows in READMES.items():
        write(ROOT / name, readme((ROOT / name).read_text(encoding="utf-8"), results, rows))
    page = ROOT / "docs" / "sense-vectors.md"
    write(page, sense_vectors(page.read_text(encoding="utf-8"), results))
    plot(report, ROOT / "docs" / "img" / "english-probe.svg")


def card(text: str, report: ProbeReport) -> str:
    """The card with the tables of the report, each under its title, and the line that says how it was measured."""
    seconds = ", ".join(f"{name} {probe['seconds']:.0f} s" for name, probe in report.probes.items())
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    dates = sorted({probe["date"] for probe in report.probes.values()})
    line = f"weights {report.weights[:16]};\n{machine}; {' to '.join(dates)}; {seconds}.\n"
    text = replace_once(r"weights [0-9a-f]{16};\n.*\n", line, text)
    for table in tables(report):
        title = re.sub(r"\d+", r"\\d+", re.escape(table.title))  # the number of accepted blanks may change
        text = replace_once(rf"### {title}\n\n(?:\|.*\n)+", f"### {table.title}\n\n{to_markdown(table)}\n", text)
    return text


def readme(text: str, results: dict[str, Any], rows: tuple[str, ...]) -> str:
    """A README with the figures of layers 0, 1, 2 and of the view "sense"."""
    tags, senses, pairs, triples, running, single, comma = rows
    views = ("0", "1", "2", "sense")
    of_tags = results["pos"]["xpos"]["test"]
    of_senses = {view: sets["all"] for view, sets in results["wsd"]["layers"].items()}
    texts = [results["perplexity"][f"heldout-{name}.txt"] for name in ("wiki", "books")]
    each = [text["sentences"]["perplexity"]["both"] for text in texts]
    cells = {
        tags: [*in_bold([of_tags[view] for view in views[:-1]]), ""],
        senses: in_bold([of_senses[view] for view in views]),
        pairs: in_bold([results["wic"]["test"][view] for view in views]),
        triples: in_bold([results["senses"]["layers"][view] for view in views]),
        running: ["", "", comma.join(f"{text['both']:.1f}" for text in texts), ""],
        single: ["", "", comma.join(f"{value:.1f}" for value in each), ""],
    }
    for row, figures in cells.items():
        text = replace_once(rf"\| {re.escape(row)} \|(?:[^|\n]*\|){{4}}", row_of(row, figures), text)
    return text


def sense_vectors(text: str, results: dict[str, Any]) -> str:
    """The page with the figures of layers 1 and 2 and of both views."""
    views = ("1", "2", "slot", "sense")
    senses = {view: sets["all"] for view, sets in results["wsd"]["layers"].items()}
    percent = {
        "WSD, nearest sense of SemCor; senseval2, senseval3 and semeval2013, F1": senses,
        "WiC dev, threshold from train, accuracy": results["wic"]["test"],
        "41 triples of the package, won, %": results["senses"]["layers"],
    }
    for row, figures in percent.items():
        new = row_of(row, in_bold([figures[view] for view in views]))
        text = replace_once(rf"\| {re.escape(row)} \|.*", new, text)
    scws, same = results["scws"]["layers"], results["scws"]["same_word"]
    mean = correlation(same["mean"])
    for row, new_row, figures in (
        ("SCWS, all 2,003 pairs, Spearman", "SCWS, all 2,003 pairs, Spearman", scws),
        (
            r"SCWS, 241 pairs of one word, Spearman \(mean of the layers: [.\d]+\)",
            f"SCWS, 241 pairs of one word, Spearman (mean of the layers: {mean})",
            same,
        ),
    ):
        new = row_of(new_row, in_bold([figures[view] for view in views], correlation))
        text = replace_once(rf"\| {row} \|.*", new, text)
    return text


def row_of(name: str, cells: list[str]) -> str:
    return f"| {name} |" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def in_bold(values: list[float], show: Any = "{:.1f}".format) -> list[str]:
    """The figures as text, the largest in bold."""
    return [f"**{show(value)}**" if value == max(values) else show(value) for value in values]


def correlation(value: float) -> str:
    return f"{value / 100:.3f}".removeprefix("0")


def replace_once(pattern: str, new: str, text: str) -> str:
    text, count = re.subn(pattern, lambda found: new, text)
    if count != 1:
        raise ValueError(f"there are {count} places, not one, for {pattern}")
    return text


def write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
