"""The Chinese model on public sets: parts of speech, words from characters, senses of characters.

    python benchmarks/chinese.py data CLONES OUT       clones of the repositories below -> files of the sets
    python benchmarks/chinese.py probes OUT RESULTS [--model zh] [--only tags,words,mortxt,speed] [--most N]

`data` reads, from clones in CLONES/owner+name:

    tags       hankcs/multi-criteria-cws, UD Chinese GSD in simplified characters
    entities   hltcoe/golden-horse, Weibo
    senses     COOLPKU/MSD_task, MorTxt: a character and its sense in a sentence
    sentiment  pengming617/bert_classification, ChnSentiCorp

and writes OUT/gsd/*.conllu, OUT/weibo/*.bio, OUT/mortxt/*.csv and OUT/chnsenticorp/*.tsv. The recipes ner-weibo and
chnsenticorp of `elmokit task` read the second and the fourth (with --data, or from data/chinese).

`probes` writes RESULTS/NAME.json for each of:

    tags     accuracy of a linear classifier of tags on each layer of the model, and of the same network with random
             weights, beside the most frequent tag
    words    the same on the development set only, for several ways to make the vector of a word from its characters
    mortxt   accuracy of the sense of the nearest use of a character in the training set, beside its most frequent
             sense; the development set chooses the view
    speed    characters per second of `embed` on reviews, and the time to load the model, with two threads; also by CPU
             time, which says more on a machine that does other work

Sense triples and perplexity are measured by `elmokit probe`; benchmarks/chinese_card.py writes all of it into the
documents.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elmokit import ELMo
from elmokit.datasets import TaggedSentence
from elmokit.network import BiLM
from elmokit.probes import TaggedSplits, probe_tags
from elmokit.probes.vectors import Place, gather, read_all, view_names
from elmokit.text import Tokenizer

HAN = Tokenizer("han")
SETS = {
    "gsd": ("hankcs/multi-criteria-cws", "24be488d8861", "data/other/udc/{}.conll", ("train", "dev", "test"), "conllu"),
    "weibo": ("hltcoe/golden-horse", "7a73c08e45ed", "data/weiboNER_2nd_conll.{}", ("train", "dev", "test"), "bio"),
    "mortxt": ("COOLPKU/MSD_task", "8c855a7aad0d", "data/MorTxt/{}.csv", ("train", "valid", "test"), "csv"),
    "chnsenticorp": ("pengming617/bert_classification", "c155e73ee927", "data/{}.tsv", ("train", "dev", "test"), "tsv"),
}


# ---- files of the sets -----------------------------------------------------------------------------------------------


def write_data(clones: Path, out: Path) -> None:
    """Write the files of all sets, in the formats that elmokit reads."""
    for name, (repository, commit, pattern, splits, suffix) in SETS.items():
        (out / name).mkdir(parents=True, exist_ok=True)
        for split in splits:
            text = show(clones, repository, commit, pattern.format(split))
            if name == "weibo":
                text = re.sub(r"^(\S)\d*\t", r"\1\t", text, flags=re.M)  # a character and its place in its word
            elif name == "chnsenticorp":
                text = spaced_reviews(text)
            path = out / name / f"{'dev' if split == 'valid' else split}.{suffix}"
            path.write_text(text, encoding="utf-8")
            print(path)


def show(clones: Path, repository: str, commit: str, path: str) -> str:
    """The text of a file of a clone."""
    folder = clones / repository.replace("/", "+")
    for directory in (folder / "repo" / ".git", folder / "repo", folder / ".git", folder):
        if (directory / "HEAD").is_file():
            command = ["git", f"--git-dir={directory}", "show", f"{commit}:{path}"]
            return subprocess.run(command, check=True, capture_output=True).stdout.decode()
    raise SystemExit(f"no clone of {repository} in {clones}")


def spaced_reviews(text: str) -> str:
    """A table of labels and texts, whose tokens are separated by spaces."""
    rows = ["label\ttext"]
    for line in text.split("\n")[1:]:
        label, _, review = line.partition("\t")
        if tokens := HAN(review):
            rows.append(f"{label}\t{' '.join(tokens)}")
    return "\n".join(rows) + "\n"


def read_tags(path: Path) -> list[TaggedSentence]:
    """Words with universal parts of speech; the files have no comments and no sentence ids."""
    sentences = []
    for block in re.split(r"\n[ \t]*\n", path.read_text(encoding="utf-8").strip()):
        rows = [row.split("\t") for row in block.split("\n")]
        sentences.append(TaggedSentence([row[1] for row in rows], [row[3] for row in rows]))
    return sentences


@dataclass(frozen=True)
class Use:
    """A character in a sentence, with its sense."""

    tokens: list[str]
    position: int
    character: str
    sense: str


def read_senses(path: Path) -> list[Use]:
    """Rows of MorTxt: a sentence with ～ for the character, its sense, the character."""
    uses = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            if len(row) < 5:
                continue
            sentence, (sense, character) = ",".join(row[: len(row) - 4]), (row[-4], row[-3])
            before, mark, after = sentence.partition("～")
            if mark:
                left = HAN(before)
                uses.append(Use([*left, character, *HAN(after.replace("～", character))], len(left), character, sense))
    return uses


# ---- probes ----------------------------------------------------------------------------------------------------------


def untrained(model: ELMo) -> ELMo:
    """A model of the same sizes with random weights."""
    torch.manual_seed(1)
    return ELMo(BiLM(model.config), vocabulary=model.vocabulary, tokenizer=model.tokenizer.name).eval()


def tags(model: ELMo, data: Path, most: int | None) -> dict[str, Any]:
    """Accuracy of tags by layer."""
    splits = TaggedSplits(*(read_tags(data / "gsd" / f"{split}.conllu")[:most] for split in ("train", "dev", "test")))
    scores = probe_tags(model, {"upos": splits})["upos"]
    random = probe_tags(untrained(model), {"upos": splits})["upos"]
    return {
        "num_test": sum(len(one.tokens) for one in splits.test),
        "most_frequent_tag": scores.most_frequent_tag,
        "dev": scores.dev,
        "test": scores.test,
        "untrained": random.test,
        "mix_weights": scores.mix_weights,
        "best_layer": scores.best_layer,
    }


# How the vectors of a word's characters (B, K, D), of which the first n count, become one.
HOWS = ("mean", "ends", "first", "last", "attention")
EPOCHS, BATCH, LEARNING_RATE = 6, 256, 2e-3


def words(model: ELMo, data: Path, most: int | None) -> dict[str, Any]:
    """Accuracy of tags on the development set, by layer and by the way from characters to words."""
    train, dev = (read_tags(data / "gsd" / f"{split}.conllu")[:most] for split in ("train", "dev"))
    sentences = [[HAN.units(token) for token in one.tokens] for one in (*train, *dev)]
    sizes = torch.tensor([len(units) for sentence in sentences for units in sentence])
    starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)[:-1]])
    layers = character_layers(model, sentences, len(train))  # (L+1, N, 2P)
    names = [tag for one in (*train, *dev) for tag in one.tags]
    known = {tag: number for number, tag in enumerate(sorted(set(names)))}
    labels = torch.tensor([known[tag] for tag in names])
    num_train = sum(len(one.tokens) for one in train)
    result: dict[str, Any] = {"num_dev": len(labels) - num_train, "dev": {}}
    for how in HOWS:
        result["dev"][how] = [pooled_accuracy(layer, starts, sizes, labels, num_train, how) for layer in layers]
        print(how, result["dev"][how], flush=True)
    return result


def character_layers(model: ELMo, sentences: list[list[list[str]]], num_train: int) -> Tensor:
    """(L+1, N, 2P) in half precision: the layers of all characters, standardised on the first sentences."""
    flat = [[unit for units in sentence for unit in units] for sentence in sentences]
    begins = np.cumsum([0, *map(len, flat)])
    layers = torch.empty(model.num_layers, int(begins[-1]), model.dim, dtype=torch.float16)
    for number, reading in read_all(model, flat):
        layers[:, begins[number] : begins[number + 1]] = reading.layers[:, 0, 1:-1]
    for layer in layers:
        variance, mean = torch.var_mean(layer[: begins[num_train]].float(), dim=0, correction=0)
        layer.copy_((layer.float() - mean) / variance.sqrt().clamp(min=1e-6))
    return layers


def pooled_accuracy(layer: Tensor, starts: Tensor, sizes: Tensor, labels: Tensor, num_train: int, how: str) -> float:
    """The best accuracy on the development set over the epochs of a linear classifier of words."""
    torch.manual_seed(0)
    width = layer.shape[-1]
    linear, score = nn.Linear(width, int(labels.max()) + 1), nn.Linear(width, 1, bias=False)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(score.weight)
    optimizer = torch.optim.Adam([*linear.parameters(), *score.parameters()], lr=LEARNING_RATE)

    def classify(rows: Tensor) -> Tensor:
        start, size = starts[rows], sizes[rows]
        first, last = layer[start].float(), layer[start + size - 1].float()  # (B, D)
        if how in ("first", "last"):
            vectors = first if how == "first" else last
        elif how == "ends":  # what was read up to the last character, and down to the first
            vectors = torch.cat([last[:, : width // 2], first[:, width // 2 :]], dim=-1)
        else:
            place = torch.arange(int(size.max()))
            inside = place < size.unsqueeze(-1)  # (B, K)
            characters = layer[(start.unsqueeze(-1) + place).clamp(max=len(layer) - 1)].float()  # (B, K, D)
            scores = score(characters).squeeze(-1) if how == "attention" else torch.zeros(inside.shape)
            weights = scores.masked_fill(~inside, -torch.inf).softmax(dim=-1)
            vectors = (weights.unsqueeze(1) @ characters).squeeze(1)
        return linear(vectors)

    best = 0.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for rows in torch.randperm(num_train, generator=generator).split(BATCH):
            loss = nn.functional.cross_entropy(classify(rows), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            dev = torch.arange(num_train, len(labels)).split(4096)
            right = sum(int((classify(rows).argmax(dim=-1) == labels[rows]).sum()) for rows in dev)
        best = max(best, 100 * right / (len(labels) - num_train))
    return best


def mortxt(model: ELMo, data: Path, most: int | None) -> dict[str, Any]:
    """Accuracy of the sense of the nearest use of the same character in train, by layer and view."""
    splits = {split: read_senses(data / "mortxt" / f"{split}.csv")[:most] for split in ("train", "dev", "test")}
    uses = [use for split in splits.values() for use in split]
    places = [Place(number, use.position, use.position + 1) for number, use in enumerate(uses)]
    vectors = gather(model, [use.tokens for use in uses], places)  # (n, views, 2P)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    train, begin, result = splits["train"], len(splits["train"]), {}
    for split in ("dev", "test"):
        own = vectors[begin : begin + len(splits[split])]
        begin += len(splits[split])
        result[split] = nearest_senses(train, vectors, splits[split], own, view_names(model))
    nearest = result["dev"]["nearest"]
    return {"chosen": max(nearest, key=lambda name: nearest[name]), **result}


def nearest_senses(
    train: list[Use], train_vectors: np.ndarray, test: list[Use], test_vectors: np.ndarray, names: list[str]
) -> dict[str, Any]:
    """Accuracy of the nearest use and of the most frequent sense, of all uses and of characters of several senses."""
    by_character: dict[str, list[int]] = defaultdict(list)
    for number, use in enumerate(train):
        by_character[use.character].append(number)
    right: list[list[bool]] = []
    frequent: list[bool] = []
    is_ambiguous: list[bool] = []
    for use, vector in zip(test, test_vectors, strict=True):
        rows = by_character.get(use.character, [])  # a new character has no sense: wrong for all
        senses = [train[row].sense for row in rows]
        cosines = np.einsum("rvd,vd->vr", train_vectors[rows], vector)
        right.append([senses[place] == use.sense for place in cosines.argmax(axis=1)] if rows else [False] * len(names))
        frequent.append(bool(rows) and Counter(senses).most_common(1)[0][0] == use.sense)
        is_ambiguous.append(len(set(senses)) > 1)

    def accuracy(chosen: np.ndarray) -> dict[str, Any]:
        return {
            "num_uses": int(chosen.sum()),
            "most_frequent_sense": 100 * float(np.array(frequent)[chosen].mean()),
            "nearest": dict(zip(names, (100 * np.array(right)[chosen].mean(axis=0)).tolist(), strict=True)),
        }

    new = sum(use.character not in by_character for use in test)
    return {
        **accuracy(np.ones(len(test), bool)),
        "new_characters": new,
        "ambiguous": accuracy(np.array(is_ambiguous)),
    }


# In a new process, without the time of the imports: seconds, and seconds of CPU time.
LOADING = """
import time
from elmokit import ELMo
begin, cpu = time.perf_counter(), time.process_time()
ELMo.from_pretrained("zh")
print(time.perf_counter() - begin, time.process_time() - cpu)
"""


def speed(model: ELMo, data: Path, most: int | None) -> dict[str, Any]:
    """Characters per second, and the time to load the model."""
    rows = (data / "chnsenticorp" / "dev.tsv").read_text(encoding="utf-8").split("\n")[1:101]
    texts = [row.partition("\t")[2].replace(" ", "") for row in rows if row]
    torch.set_num_threads(2)
    loads, runs = [], []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", LOADING], check=True, capture_output=True, text=True)
        loads.append(tuple(map(float, done.stdout.split())))
    model.embed(texts[:20])
    for _ in range(3):
        begin, cpu = time.perf_counter(), time.process_time()
        model.embed(texts)
        runs.append((time.perf_counter() - begin, time.process_time() - cpu))
    num_characters = sum(map(len, texts))
    return {
        "num_characters": num_characters,
        "characters_per_second": num_characters / min(run[0] for run in runs),
        "characters_per_cpu_second": num_characters / min(run[1] for run in runs),
        "load_seconds": min(load[0] for load in loads),
        "load_cpu_seconds": min(load[1] for load in loads),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "num_cores": os.cpu_count(),
    }


PROBES = {"mortxt": mortxt, "tags": tags, "words": words, "speed": speed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    data = verbs.add_parser("data")
    data.add_argument("clones", type=Path)
    data.add_argument("out", type=Path)
    probes = verbs.add_parser("probes")
    probes.add_argument("data", type=Path)
    probes.add_argument("results", type=Path)
    probes.add_argument("--model", default="zh")
    probes.add_argument("--only", default=",".join(PROBES), help="Names of probes.  [default: all]")
    probes.add_argument("--most", type=int, help="Number of examples of each split, for a trial.")
    options = parser.parse_args()
    if options.verb == "data":
        write_data(options.clones, options.out)
        return
    model = ELMo.from_pretrained(options.model)
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(","):
        began = time.monotonic()
        result = PROBES[name](model, options.data, options.most)
        report = {"weights": model.digest(), "seconds": round(time.monotonic() - began, 1), "result": result}
        path = options.results / f"{name}.json"
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path, f"{report['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
