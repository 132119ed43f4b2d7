"""The Chinese model on public sets: parts of speech, senses of characters, sense triples, speed.

    python benchmarks/chinese.py data CLONES OUT       clones of the repositories below -> files of the sets
    python benchmarks/chinese.py probes OUT [--model zh] [--most N]

`data` reads, from clones in CLONES/owner+name:

    tags       hankcs/multi-criteria-cws, UD Chinese GSD in simplified characters
    entities   hltcoe/golden-horse, Weibo
    senses     COOLPKU/MSD_task, MorTxt: a character and its sense in a sentence
    sentiment  pengming617/bert_classification, ChnSentiCorp

and writes OUT/gsd/*.conllu, OUT/weibo/*.bio, OUT/mortxt/*.csv and OUT/chnsenticorp/*.tsv. The recipes ner-weibo and
chnsenticorp of `elmokit task` read the second and the fourth (with --data, or from data/chinese).

`probes` prints, as one JSON object per line: the accuracy of a linear classifier of tags on each layer of the model and
of the same network with random weights, beside the most frequent tag; the accuracy of the nearest use in the training
set for the senses of characters, beside the most frequent sense; the sense triples that are won; characters per second.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch

from elmokit import ELMo
from elmokit.datasets import TaggedSentence
from elmokit.network import BiLM
from elmokit.probes import TaggedSplits, probe_tags, sense_triples
from elmokit.probes.chinese_senses import CHINESE_TRIPLES
from elmokit.probes.vectors import Place, gather, view_names
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


@dataclasses.dataclass(frozen=True)
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


def tags(model: ELMo, folder: Path, most: int | None) -> dict[str, object]:
    """Accuracy of tags by layer."""
    splits = TaggedSplits(*(read_tags(folder / f"{split}.conllu")[:most] for split in ("train", "dev", "test")))
    scores = probe_tags(model, {"upos": splits})["upos"]
    random = probe_tags(untrained(model), {"upos": splits})["upos"]
    return {
        "most_frequent_tag": scores.most_frequent_tag,
        "test": scores.test,
        "dev": scores.dev,
        "untrained": random.test,
        "mix_weights": scores.mix_weights,
    }


def character_senses(model: ELMo, folder: Path, most: int | None) -> dict[str, object]:
    """Accuracy of the sense of the nearest use of the same character in train, by layer and view."""
    train, test = (read_senses(folder / f"{split}.csv")[:most] for split in ("train", "test"))
    uses = [*train, *test]
    places = [Place(number, use.position, use.position + 1) for number, use in enumerate(uses)]
    vectors = gather(model, [use.tokens for use in uses], places)  # (n, views, 2P)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    by_character: dict[str, list[int]] = defaultdict(list)
    for number, use in enumerate(train):
        by_character[use.character].append(number)
    names = view_names(model)
    right, frequent, first = np.zeros(len(names)), 0, 0
    ambiguous, right_ambiguous, frequent_ambiguous = 0, np.zeros(len(names)), 0
    for number, use in enumerate(test, len(train)):
        rows = by_character.get(use.character, [])
        if not rows:
            first += 1  # no sense is known; counted as wrong for all
            continue
        senses = [train[row].sense for row in rows]
        cosines = np.einsum("rvd,vd->vr", vectors[rows], vectors[number])
        wins = np.array([senses[place] == use.sense for place in cosines.argmax(axis=1)])
        is_frequent = Counter(senses).most_common(1)[0][0] == use.sense
        right, frequent = right + wins, frequent + is_frequent
        if len(set(senses)) > 1:
            ambiguous, right_ambiguous = ambiguous + 1, right_ambiguous + wins
            frequent_ambiguous += is_frequent
    return {
        "num_test": len(test),
        "new_characters": first,
        "most_frequent_sense": 100 * frequent / len(test),
        "nearest": dict(zip(names, (100 * right / len(test)).round(2).tolist(), strict=True)),
        "ambiguous": {
            "num_test": ambiguous,
            "most_frequent_sense": 100 * frequent_ambiguous / max(1, ambiguous),
            "nearest": dict(zip(names, (100 * right_ambiguous / max(1, ambiguous)).round(2).tolist(), strict=True)),
        },
    }


def speed(model: ELMo, folder: Path) -> dict[str, object]:
    """Characters per second of `embed` on reviews."""
    rows = (folder / "test.tsv").read_text(encoding="utf-8").split("\n")[1:400]
    texts = [row.partition("\t")[2].replace(" ", "") for row in rows if row]
    model.embed(texts[:50])
    began = time.perf_counter()
    vectors = model.embed(texts)
    seconds = time.perf_counter() - began
    return {
        "characters_per_second": sum(map(len, texts)) / seconds,
        "tokens": sum(map(len, vectors)),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    data = verbs.add_parser("data")
    data.add_argument("clones", type=Path)
    data.add_argument("out", type=Path)
    probes = verbs.add_parser("probes")
    probes.add_argument("out", type=Path)
    probes.add_argument("--model", default="zh")
    probes.add_argument("--most", type=int, help="Number of examples of each split, for a trial.")
    options = parser.parse_args()
    if options.verb == "data":
        write_data(options.clones, options.out)
        return
    began = time.perf_counter()
    model = ELMo.from_pretrained(options.model)
    print(json.dumps({"probe": "load", "seconds": time.perf_counter() - began}), flush=True)
    for name, result in (
        ("triples", lambda: dataclasses.asdict(sense_triples(model, CHINESE_TRIPLES))),
        ("speed", lambda: speed(model, options.out / "chnsenticorp")),
        ("mortxt", lambda: character_senses(model, options.out / "mortxt", options.most)),
        ("tags", lambda: tags(model, options.out / "gsd", options.most)),
    ):
        print(json.dumps({"probe": name, **result()}, ensure_ascii=False), flush=True)
        print(f"{name} done", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
