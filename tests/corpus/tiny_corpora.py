"""Random documents and corpora that the tests of this folder share."""

import json
import random

import pytest

from elmokit.corpus import (
    build_vocabulary,
    prepare,
)

SPECIALS = ["<S>", "</S>", "<UNK>"]


FIELDS = ["forward_inputs", "forward_targets", "backward_inputs", "backward_targets"]


def make_documents(seed, num_documents=12):
    """Documents of sentences of words, some of them long, rare or not ASCII."""
    draw = random.Random(seed)
    words = [f"w{n}" for n in range(40)] + ["naïve", "日本語", "x" * 60, "<UNK>"]
    weights = [1 / (n + 1) for n in range(len(words))]
    return [
        [draw.choices(words, weights, k=draw.randint(1, 9)) for _ in range(draw.randint(1, 6))]
        for _ in range(num_documents)
    ]


def as_text(documents):
    return "\n".join("".join(" ".join(sentence) + "\n" for sentence in document) for document in documents)


def make_corpus(folder, documents, size=20, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(as_text(documents), encoding="utf-8")
    vocabulary = build_vocabulary(folder / "text.txt", tokenized=True, size=size)
    return prepare(
        folder / "text.txt", folder / "corpus", vocabulary=vocabulary, tokenized=True, **settings
    ), vocabulary


def spelled(row):
    """The word that a row of character ids spells."""
    ids = row.tolist()
    ids = ids[1 : ids.index(259)]
    return {256: "<S>", 257: "</S>"}.get(ids[0]) or bytes(ids).decode(errors="replace")


def read_back(corpus):
    """The documents of a corpus, from its arrays only."""
    words = [spelled(row) for row in corpus.forms]
    documents = []
    for start, end in zip(corpus.documents[:-1], corpus.documents[1:], strict=True):
        assert corpus.stream[start] == 0
        sentences = []
        for form in corpus.stream[start:end].tolist():
            if form == 0:
                sentences.append([])
            else:
                sentences[-1].append(words[form])
        documents.append(sentences)
    assert corpus.stream[-1] == 0
    return documents


def cut_to_48_bytes(documents):
    return [[[word.encode()[:48].decode() for word in sentence] for sentence in document] for document in documents]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def about(corpus):
    return json.loads((corpus.folder / "corpus.json").read_text())


def write_parquet(path, columns):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), path)
