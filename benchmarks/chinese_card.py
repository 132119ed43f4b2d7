"""The figures of the Chinese model, from the files of its measurements into the card and the documents that quote them.

    elmokit probe --model zh --only senses,perplexity --heldout heldout-encyclopedia.txt --heldout … --out RESULTS
    python benchmarks/character_ngrams.py CORPUS heldout-encyclopedia.txt … --model zh --out RESULTS/ngrams.json
    python benchmarks/chinese.py probes DATA RESULTS
    elmokit task compare ner-weibo --data DATA/weibo --out RESULTS/ner-weibo
    elmokit task compare chnsenticorp --data DATA/chnsenticorp --out RESULTS/chnsenticorp
    python benchmarks/chinese_card.py RESULTS

Input: the folder of the results, with recipe.json, metrics.jsonl and speed.jsonl of the training in RESULTS/training.
Output: what is between `<!-- chinese:NAME -->` and `<!-- /chinese -->` in the card
(src/elmokit/models/zh/README.md), in README.zh-CN.md and in docs/chinese.md, written anew. A block whose files are not
in the folder stays as it is.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from english_card import in_bold, write

from elmokit import ELMo
from elmokit.probes import read_report
from elmokit.probes.report import tables, to_markdown
from elmokit.storage import names

ROOT = Path(__file__).parent.parent
TASKS = ("ner-weibo", "chnsenticorp")
DOCUMENTS = (
    ROOT / "src" / "elmokit" / "models" / "zh" / "README.md",
    ROOT / "README.zh-CN.md",
    ROOT / "docs" / "chinese.md",
)
KINDS = {"encyclopedia": "百科", "history": "史书今译", "technical": "技术文章"}
VIEWS = {"0": "layer 0", "1": "layer 1", "2": "layer 2", "mean": "mean", "slot": "slot", "sense": "sense"}
HOWS = {
    "mean": "mean of the characters",
    "ends": "forward half of the last, backward half of the first",
    "first": "first character",
    "last": "last character",
    "attention": "mean weighted by a trained attention",
}
VARIANTS = {"none": "without ELMo", "input": "ELMo at the input", "both": "ELMo at input and output"}
VARIANTS_CHINESE = {"none": "不用 ELMo", "input": "ELMo 加在输入", "both": "ELMo 加在输入和输出"}

# F1 on the test set of Weibo (second version, names and nominal mentions), accuracy on that of ChnSentiCorp; and where
# the figures were read.
PUBLISHED = (
    ("characters, LSTM and CRF", 52.77, None, "Zhang and Yang (2018)"),
    ("characters and bigrams, LSTM and CRF", 56.75, None, "Zhang and Yang (2018)"),
    ("lattice LSTM with a lexicon of words", 58.79, None, "Zhang and Yang (2018)"),
    ("SoftLexicon, LSTM and CRF", 61.42, None, "Ma et al. (2020)"),
    ("multi-channel CNN", None, 92.08, "Liu et al. (2018)"),
    ("LSTM with attention", None, 92.42, "eznlp"),
    ("BERT base", 67.33, 95.4, "Sun et al. (2021)"),
    ("ChineseBERT base", 69.02, 95.7, "Sun et al. (2021)"),
)


# Block of the documents -> the files of RESULTS that it is made of.
BLOCKS: dict[str, tuple[str, ...]] = {
    "size": (),
    "training": ("training",),
    "data": (),
    "perplexity": ("probe.json", "ngrams.json"),
    "tags": ("tags.json",),
    "words": ("words.json",),
    "mortxt": ("mortxt.json",),
    "triples": ("probe.json",),
    "tasks": TASKS,
    "speed": ("speed.json",),
    "summary-zh": ("probe.json", "ngrams.json", "tags.json", "mortxt.json"),
    "tasks-zh": TASKS,
    "speed-zh": ("speed.json",),
    "size-zh": (),
}


def main() -> None:
    folder = Path(sys.argv[1])
    model = ELMo.from_pretrained("zh")
    blocks = {
        name: figure(name, folder, model)
        for name, files in BLOCKS.items()
        if all((folder / file).exists() for file in files)
    }
    for path in DOCUMENTS:
        write(path, filled(path.read_text(encoding="utf-8"), blocks, path.name))


def filled(text: str, blocks: dict[str, str], source: str) -> str:
    """A document with its blocks written anew; those that were not measured again stay as they are."""

    def block(found: re.Match[str]) -> str:
        if found[1] not in {*BLOCKS, *blocks}:
            raise ValueError(f"{source}: there is no figure {found[1]!r}")
        if found[1] not in blocks:
            return found[0]
        return f"<!-- chinese:{found[1]} -->\n{blocks[found[1]].strip()}\n<!-- /chinese -->"

    return re.sub(r"<!-- chinese:(\S+) -->\n.*?<!-- /chinese -->", block, text, flags=re.S)


def figure(name: str, folder: Path, model: ELMo) -> str:
    """The Markdown of a block, from its files."""

    def of_model(file: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((folder / f"{file}.json").read_text(encoding="utf-8"))
        if content["weights"] != model.digest():
            raise ValueError(f"{folder / file}.json is of other weights: measure again")
        result: dict[str, Any] = content["result"]
        return result

    def probes() -> dict[str, Any]:
        return {probe: one["result"] for probe, one in read_report(folder / "probe.json").probes.items()}

    def ngrams() -> dict[str, Any]:
        content: dict[str, Any] = json.loads((folder / "ngrams.json").read_text(encoding="utf-8"))
        return content

    def triples() -> str:
        report = tables(read_report(folder / "probe.json"))
        table = next(one for one in report if one.title.startswith("Sense triples"))
        return f"Won of {probes()['senses']['num_triples']}:\n\n{to_markdown(table)}"

    def tasks(*, chinese: bool = False) -> str:
        return task_table({one: task_scores(folder / one) for one in TASKS}, chinese=chinese)

    makers: dict[str, Callable[[], str]] = {
        "size": lambda: size(model),
        "training": lambda: training(folder / "training"),
        "data": lambda: data((ROOT / "corpora" / "chinese.md").read_text(encoding="utf-8")),
        "perplexity": lambda: perplexity(probes()["perplexity"], ngrams()),
        "tags": lambda: tag_table(of_model("tags")),
        "words": lambda: word_table(of_model("words")),
        "mortxt": lambda: sense_table(of_model("mortxt")),
        "triples": triples,
        "tasks": tasks,
        "speed": lambda: speed_line(of_model("speed")),
        "summary-zh": lambda: summary(probes(), ngrams(), of_model("tags"), of_model("mortxt")),
        "tasks-zh": lambda: tasks(chinese=True),
        "speed-zh": lambda: speed_line(of_model("speed"), chinese=True),
        "size-zh": lambda: size(model, chinese=True),
    }
    return makers[name]()


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def size(model: ELMo, *, chinese: bool = False) -> str:
    assert model.output_layer is not None
    assert model.vocabulary is not None
    bilm = sum(parameter.numel() for parameter in model.bilm.parameters()) / 1e6
    softmax = sum(parameter.numel() for parameter in model.output_layer.parameters()) / 1e6
    (megabytes,) = (entry.size / 1e6 for entry in names.list_models() if entry.name == "zh" and entry.size)
    if chinese:
        return (
            f"自带的中文模型 {megabytes:.1f} MB，{100 * bilm:.0f} 万参数，另有覆盖 {len(model.vocabulary):,} 个字、"
            "标点和外文词的 softmax。"
        )
    return (
        f"Two layers of {model.config.cell_dim:,} cells in each direction, {model.dim} dimensions per token: "
        f"{bilm:.1f} million parameters,\nand {softmax:.1f} million of a softmax over {len(model.vocabulary):,} "
        f"tokens. Stored as int8: {megabytes:.1f} MB. Loads as float32."
    )


def data(table: str) -> str:
    """The sizes of the training text, from the table that corpora/chinese_text.py wrote."""
    rows = [line.strip("| ").split(" | ") for line in table.split("## Where")[0].splitlines() if line.startswith("| ")]
    kinds: dict[str, float] = {}
    for row in rows[1:-1]:
        kinds[row[1]] = kinds.get(row[1], 0.0) + float(row[-3])
    characters, sentences, documents = rows[-1][-3:]
    shares = ", ".join(f"{kind} {100 * size / float(characters):.1f}%" for kind, size in kinds.items())
    return f"{characters} million Han characters in {sentences} sentences and {documents} documents:\n{shares}."


def training(folder: Path) -> str:
    """How long the model was trained, and how its loss fell."""
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    lines, speeds = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("metrics", "speed")
    )
    size = recipe["batch_size"] * recipe["unroll"]
    losses = [line for line in lines if "loss" in line]
    steps = losses[-1]["step"]
    rate = statistics.median(line["tokens_per_second"] for line in speeds)
    optimizer = f"{recipe['optimizer'].capitalize()} with a learning rate of {recipe['learning_rate']:g}"
    minutes = f"{steps * size / rate / 60:.0f} minutes at {rate:,.0f} tokens per second"
    resets = f"{100 * recipe['state_reset']:.0f}% of the rows start a step from a zero state"
    text = (
        f"Recipe `chinese`, with this package, on one NVIDIA H200: {steps:,} steps of {recipe['batch_size']:,} rows x "
        f"{recipe['unroll']} tokens,\n{steps * size / 1e9:.2f} billion tokens, {minutes}. "
        f"{optimizer} and a cosine to\n{100 * recipe['final_rate']:g}%, weight decay "
        f"{recipe['weight_decay']:g}, clip {recipe['clip_norm']:g}, dropout {recipe['dropout']:g}, full softmax, "
        f"{resets},\naverage of the weights with decay {recipe['ema_decay']:g}, bfloat16 products."
    )
    rows = []
    for share in (0.02, 0.1, 0.25, 0.5, 0.75, 1):
        near = min(losses, key=lambda line: abs(line["step"] - share * steps))
        around = [line["loss"] for line in losses if abs(line["step"] - near["step"]) <= steps / 200]
        rows.append([f"{near['step']:,}", f"{near['step'] * size / 1e6:,.0f}", f"{statistics.fmean(around):.2f}"])
    return f"{text}\n\n{markdown(['step', 'million tokens', 'training loss'], rows)}"


def perplexity(texts: dict[str, Any], ngrams: dict[str, Any]) -> str:
    rows = []
    for kind in KINDS:
        name = f"heldout-{kind}.txt"
        one, gram = texts[name]["sentences"], ngrams["texts"][name]
        own = one["perplexity"]
        if own["num_tokens"] != gram["num_predictions"]:
            raise ValueError(f"{name}: {own['num_tokens']} and {gram['num_predictions']} predictions are compared")
        values = [own["forward"], own["backward"], own["both"], own["known"], texts[name]["both"]]
        cells = [f"{gram['num_predictions']:,}", f"{one['unknown']:.2f}", f"{gram['perplexity']:.1f}"]
        rows.append([kind, *cells, *(f"{value:.1f}" for value in values)])
    order = ngrams["order"]
    head = ["text", "predictions", "unknown, %", f"{order}-gram", "forward", "backward", "both"]
    return markdown([*head, "both, without unknown", "both, running text"], rows)


def tag_table(result: dict[str, Any]) -> str:
    views = ["0", "1", "2", "mean", "mix"]
    head = ["UPOS accuracy, %", *(VIEWS.get(view, view) for view in views)]
    rows = [
        ["dev", *in_bold([result["dev"][view] for view in views])],
        ["test", *in_bold([result["test"][view] for view in views])],
        ["test, untrained network", *(f"{result['untrained'][view]:.1f}" for view in views)],
    ]
    shares = ", ".join(f"{share:.2f}" for share in result["mix_weights"])
    return (
        f"{markdown(head, rows)}\n\nMost frequent tag of each word: {result['most_frequent_tag']:.1f}. "
        f"{result['num_test']:,} words. The learned mix is {shares} of layers 0, 1, 2."
    )


def word_table(result: dict[str, Any]) -> str:
    rows = []
    for how, name in HOWS.items():
        others = [result["dev"][one] for one in HOWS]
        best = [max(column) for column in zip(*others, strict=True)]
        values = result["dev"][how]
        rows.append([name, *(f"**{v:.2f}**" if v == top else f"{v:.2f}" for v, top in zip(values, best, strict=True))])
    return markdown(["UPOS accuracy on dev, %", "layer 0", "layer 1", "layer 2"], rows)


def sense_table(result: dict[str, Any]) -> str:
    head = ["nearest use, accuracy, %", *VIEWS.values(), "most frequent sense", "uses"]
    rows = []
    for name, part in (
        ("dev", result["dev"]),
        ("test", result["test"]),
        ("test, characters of several senses", result["test"]["ambiguous"]),
    ):
        values = in_bold([part["nearest"][view] for view in VIEWS])
        rows.append([name, *values, f"{part['most_frequent_sense']:.1f}", f"{part['num_uses']:,}"])
    return f"{markdown(head, rows)}\n\nChosen on dev: {VIEWS[result['chosen']]}."


def task_scores(folder: Path) -> dict[str, list[float]]:
    """Variant -> the test scores, in percent, of the finished runs in a folder of `elmokit task compare`."""
    scores: dict[str, list[float]] = {}
    for path in sorted(folder.glob("*-*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        scores.setdefault(path.parent.name.rpartition("-")[0], []).append(100 * result["test"][result["metric"]])
    return scores


def task_table(scores: dict[str, dict[str, list[float]]], *, chinese: bool = False) -> str:
    rows = []
    for variant, name in (VARIANTS_CHINESE if chinese else VARIANTS).items():
        cells = []
        for own in (one.get(variant, []) for one in scores.values()):
            spread = f" ± {statistics.stdev(own):.2f}" if len(own) > 1 else ""
            number = "" if len(own) in (0, 3) else f" ({len(own)})"
            cells.append(f"{statistics.fmean(own):.2f}{spread}{number}" if own else "")
        if any(cells):
            rows.append([name, *cells, "elmokit"])
    for name, weibo, sentiment, source in PUBLISHED:
        cells = ["" if figure is None else f"{figure:g}" for figure in (weibo, sentiment)]
        rows.append([name, *cells, source])
    head = ["test set", "Weibo entities, F1", "ChnSentiCorp, accuracy", "source"]
    if chinese:
        head = ["测试集", "微博命名实体，F1", "ChnSentiCorp，准确率", "来源"]
    is_complete = all(len(one.get(variant, [])) >= 3 for one in scores.values() for variant in ("none", "both"))
    left_out = "elmokit 空缺的格子尚未测量。" if chinese else "What is missing of elmokit is not measured yet."
    return markdown(head, rows) + ("" if is_complete else f"\n\n{left_out}")


def speed_line(speed: dict[str, Any], *, chinese: bool = False) -> str:
    per_second, per_cpu = speed["characters_per_second"], speed["characters_per_cpu_second"]
    load, cpu = speed["load_seconds"], speed["load_cpu_seconds"]
    average, cores = speed["load_average"], speed["num_cores"]
    if chinese:
        return (
            f"速度（float32，{speed['threads']} 个线程，{cores} 核的机器，测量时平均负载 {average:.1f}）："
            f"每秒 {per_second:,.0f} 字，每个 CPU 秒 {per_cpu:,.0f} 字；加载 {load:.2f} 秒，其中 CPU {cpu:.2f} 秒。"
        )
    return (
        f"`embed` of reviews, float32, {speed['threads']} threads, on a machine of {cores} cores with a load average "
        f"of {average:.1f}:\n{per_second:,.0f} characters per second, {per_cpu:,.0f} per second of CPU time. "
        f"Loading takes {load:.2f} s, {cpu:.2f} s of CPU time."
    )


def summary(probes: dict[str, Any], ngrams: dict[str, Any], tags: dict[str, Any], senses: dict[str, Any]) -> str:
    """The table of README.zh-CN.md: layers 0, 1, 2, sense, and what there is without vectors."""
    views = ("0", "1", "2", "sense")
    texts = [probes["perplexity"][f"heldout-{kind}.txt"]["sentences"]["perplexity"]["forward"] for kind in KINDS]
    grams = [ngrams["texts"][f"heldout-{kind}.txt"]["perplexity"] for kind in KINDS]
    rows = [
        [
            "词性标注（UD GSD 简体，按词），准确率",
            *in_bold([tags["test"][view] for view in views[:-1]]),
            "",
            f"最常见标签 {tags['most_frequent_tag']:.1f}，未训练的网络 {max(tags['untrained'].values()):.1f}",
        ],
        [
            "字义（MorTxt，最近邻），准确率",
            *in_bold([senses["test"]["nearest"][view] for view in views]),
            f"最常见义项 {senses['test']['most_frequent_sense']:.1f}",
        ],
        [
            f"{probes['senses']['num_triples']} 组例句中哪两句同义，%",
            *in_bold([probes["senses"]["layers"][view] for view in views]),
            "随机 33.3",
        ],
        [
            f"留出文本的困惑度，逐句：{'、'.join(KINDS.values())}",
            "",
            "",
            "、".join(f"{value:.1f}" for value in texts),
            "",
            f"{ngrams['order']} 元模型 {'、'.join(f'{value:.1f}' for value in grams)}",
        ],
    ]
    return markdown(["中文模型，逐层", "第 0 层：仅字", "第 1 层", "第 2 层", "词义向量", "对照"], rows)


if __name__ == "__main__":
    main()
