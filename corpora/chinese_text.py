"""Turn clones of public repositories into the training text of the Chinese model.

Input: git clones (bare or with a work tree) and the evaluation sets, whose sentences no training text may hold.
Output: `train-NN.txt.gz`: sentences, one per line, with an empty line between documents, in an order of documents that
depends on a fixed seed; `heldout-KIND.txt`; `counts.json`; `samples/NAME.txt` with random lines of each source;
`TABLE.md` with what each source gave.

    python chinese_text.py --clones CLONES --sets EVAL --out OUT

A clone of github.com/owner/name is looked for in CLONES/owner+name and CLONES/owner/name. Simplified and traditional
characters are both text: one article of Wikipedia in five is taken from a dump as it was written, the others from one
in simplified characters. A sentence of more than ten characters is kept once. In one document of sixteen the
punctuation is half-width, as people type it.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gzip
import html
import json
import random
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import sources
from sources import (
    Progress,
    Work,
    files_of,
    git_directory,
    head,
    list_files,
    markdown_paragraphs,
    million,
    number_of,
    read_files,
    row,
    shuffled,
)

from elmokit.text.han import sentence_ends


@dataclasses.dataclass(frozen=True)
class Source(sources.Source):
    """A row of the table of sources."""

    heldout: int  # one work in so many is held out


# ---- readers ---------------------------------------------------------------------------------------------------------

_DOC = re.compile(r'<doc id="(\d+)"[^>]*? title="([^"]*)">\n(.*?)\n?</doc>', re.S)
_SKIPPED_TITLE = re.compile(r"列表|消歧|[年月日世纪]{1,2}$|^\d+$|Wikipedia:|模板:|分[类類]:|Category:|一覽|一览")
AS_WRITTEN = 5  # one article in so many is taken as it was written


def read_simplified(path: str, text: str) -> Iterator[Work]:
    """Articles in <doc id title> elements of a dump in simplified characters, without those of `read_as_written`."""
    return (work for number, work in articles(text) if number % AS_WRITTEN)


def read_as_written(path: str, text: str) -> Iterator[Work]:
    """Articles of a dump in the characters in which they were written."""
    return (work for number, work in articles(text) if number % AS_WRITTEN == 0)


def articles(text: str) -> Iterator[tuple[int, Work]]:
    """(page number, article). The first line of an article repeats the title."""
    for number, title, body in _DOC.findall(text):
        if not _SKIPPED_TITLE.search(title):
            lines = html.unescape(body).split("\n")[1:]
            yield int(number), Work(number, [[line for line in lines if len(line) >= 10 and "formula_" not in line]])


def read_lines(path: str, text: str) -> Iterator[Work]:
    """One sentence or paragraph per line."""
    yield Work(path, [text.split("\n")])


def read_law(path: str, text: str) -> Iterator[Work]:
    """A law in Markdown: its articles, without their numbers."""
    body = text.rpartition("<!-- INFO END -->")[2]
    lines = [
        re.sub(r"^(?:第[一二三四五六七八九十百千零〇]+[条條]|[（(][一二三四五六七八九十]+[）)])\s*", "", line)
        for line in body.split("\n")
    ]
    yield Work(path, [[line for line in lines if not line.startswith("#")]])


def read_markdown(path: str, text: str) -> Iterator[Work]:
    """A page in Markdown: its paragraphs and list items."""
    text = re.sub(r"^-{30,}\n\nvia:.*", "", text, flags=re.S | re.M)  # what follows are the translator and the links
    text = re.sub(r"(?<=[一-鿿，。、；])\n(?=[一-鿿“（])", "", text)  # wrapped lines
    text = re.sub(r"\[([^\[\]\n]+)\]\[\d+\]", r"\1", text)
    yield Work(path, [markdown_paragraphs(text)])


def read_conversations(path: str, text: str) -> Iterator[Work]:
    """A JSON list of conversations with `messages`."""
    for number, conversation in enumerate(json.loads(text)):
        yield Work(f"{path} {number}", [[turn["message"] for turn in conversation["messages"]]])


SOURCES = [
    Source("wikipedia-as-written", "MustAndy/AI_for_NLP", "ec0e19bcb23c", ("zhwiki",), r"wiki_\d+$", "encyclopedia",
           "CC BY-SA 3.0", read_as_written, 1000),
    Source("wikipedia-simplified", "bopan3/Imperial-College-NPLproject-group2", "63b852c8c385", ("after_t2s",),
           r"wiki_\d+$", "encyclopedia", "CC BY-SA 3.0", read_simplified, 1000),
    Source("history", "NiuTrans/Classical-Modern", "4e746ea9fa99", ("双语数据",), r"/target\.txt$", "history",
           "MIT", read_lines, 100),
    Source("laws", "LawRefBook/Laws", "2f4c5c237162", (".",), r"\.md$", "laws", "official texts", read_law, 0),
    Source("linux-articles", "LCTT/TranslateProject", "494836071440", ("published", "translated"), r"\.md$",
           "technical", "Apache-2.0; originals vary", read_markdown, 40),
    Source("kubernetes-docs", "kubernetes/website", "56464fe6c846", ("content/zh-cn",), r"\.md$", "technical",
           "CC BY 4.0", read_markdown, 0),
    Source("conversations", "thu-coai/KdConv", "653db76432de", ("data",), r"(dev|test)\.json$", "speech",
           "Apache-2.0", read_conversations, 0),
]  # fmt: skip


# ---- sentences -------------------------------------------------------------------------------------------------------

_SPACES = re.compile(r"[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060\ufeff]")
_SPACE_AT_HAN = re.compile(
    r"(?<=[，。、；：！？“”‘’「」（）《》]) | (?=[，。、；：！？“”‘’「」（）《》])|(?<=[一-鿿]) (?=[一-鿿])"
)
# What removed markup leaves behind: empty brackets, and separators beside a bracket.
_EMPTY = re.compile(r"（[，、；：,;:／/\s]*）|\([，、；：,;:/\s]*\)|《》|“”|「」|‘’|\[\d*\]")
_BRACKET_LEFT = re.compile(r"([（(])[，、；：,;:/\s]+")
_BRACKET_RIGHT = re.compile(r"[，、；：,;:/\s]+([）)])")
_HOLE = re.compile(r"[，、；：][，、；：。]|^[，、；：。！？）」』”]")
_UNWANTED = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ufffd\ufffc|{}\\<>=_^#*`~•◦▪■□●→←↑↓⇒∈∑∫√≡∀∃\ue000-\uf8ff]|://|www\.|\.com|\.org|@\w"
)
_CLOSED = re.compile(r"[。！？!?….][”’」』）)】》\"']{0,3}$")
_HAN_RUNS = re.compile(r"[㐀-䶿一-鿿〇]+")
_KEY = re.compile(r"[㐀-䶿一-鿿〇a-z0-9]+")
REASONS = ("length", "no end", "characters", "hole", "script", "brackets")


def normalise(paragraph: str) -> str:
    """NFC, no invisible characters, single spaces and none beside Chinese marks, no empty brackets."""
    paragraph = _SPACES.sub(" ", _INVISIBLE.sub("", unicodedata.normalize("NFC", paragraph))).strip()
    if " " in paragraph:
        paragraph = _SPACE_AT_HAN.sub("", paragraph)
    if "（" in paragraph or "(" in paragraph or "《》" in paragraph or "“”" in paragraph or "「」" in paragraph:
        for _ in range(2):
            paragraph = _EMPTY.sub("", paragraph)
        paragraph = _BRACKET_RIGHT.sub(r"\1", _BRACKET_LEFT.sub(r"\1", paragraph))
    return paragraph


def split_sentences(paragraph: str) -> list[str]:
    """Sentences as the tokenizer "han" finds them."""
    ends = [*sentence_ends(paragraph), len(paragraph)]
    return [paragraph[begin:end].strip() for begin, end in zip([0, *ends], ends, strict=False) if end > begin]


def judge(sentence: str) -> tuple[str, int]:
    """(reason to reject it or "", number of Han characters)."""
    num_han = sum(map(len, _HAN_RUNS.findall(sentence)))
    if not 4 <= num_han <= 250 or len(sentence) > 400:
        return "length", num_han
    if not _CLOSED.search(sentence):
        return "no end", num_han
    if _UNWANTED.search(sentence):
        return "characters", num_han
    if _HOLE.search(sentence):
        return "hole", num_han
    if num_han * 2 < len(sentence.replace(" ", "")):
        return "script", num_han
    if sentence.count("（") != sentence.count("）") or sentence.count("《") != sentence.count("》"):
        return "brackets", num_han
    return "", num_han


_FULL_WIDTH = str.maketrans("，。：；！？（）", ",.:;!?()")


def half_width(sentence: str) -> str:
    """The sentence with the punctuation of the Latin keyboard."""
    return sentence.translate(_FULL_WIDTH)


# ---- traditional characters ------------------------------------------------------------------------------------------


def simplified_forms(pairs: Iterable[tuple[str, str]]) -> dict[int, str]:
    """Traditional -> simplified characters, counted from paragraphs that two dumps write in different characters.

    Args:
        pairs: (paragraph as written, paragraph of the same article in simplified characters).

    Returns:
        A table for `str.translate`: what a character most often is where two paragraphs are equal but for single
        characters. It serves comparisons only; the text keeps its characters.
    """
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for written, simplified in pairs:
        if len(written) == len(simplified):
            same = sum(map(str.__eq__, written, simplified))
            if same * 3 >= len(written) * 1.2:
                for a, b in zip(written, simplified, strict=True):
                    if "㐀" <= a <= "鿿" and "㐀" <= b <= "鿿":
                        counts[a][b] += 1
    best = {a: count.most_common(1)[0] for a, count in counts.items()}
    return {ord(a): b for a, (b, number) in best.items() if a != b and number >= 2 and number * 2 > counts[a].total()}


def aligned_paragraphs(clones: Path, most: int) -> Iterator[tuple[str, str]]:
    """Paragraphs of the same articles in both dumps of Wikipedia, by their place in the article."""
    written, simplified = SOURCES[0], SOURCES[1]
    directories = [git_directory(clones, source.repository) for source in (written, simplified)]
    if None in directories:
        return
    bodies: dict[str, list[str]] = {}
    listed = list_files(directories[0], written.commit, written.paths)  # type: ignore[arg-type]
    for _, text in read_files(directories[0], [file for file in shuffled(listed)[:most] if "wiki_" in file[0]]):  # type: ignore[arg-type]
        bodies.update((number, body.split("\n")) for number, _, body in _DOC.findall(text))
    listed = list_files(directories[1], simplified.commit, simplified.paths)  # type: ignore[arg-type]
    for _, text in read_files(directories[1], [file for file in listed if "wiki_" in file[0]]):  # type: ignore[arg-type]
        for number, _, body in _DOC.findall(text):
            if number in bodies:
                by_length = collections.defaultdict(list)
                for paragraph in bodies[number]:
                    by_length[len(paragraph)].append(paragraph)
                for paragraph in body.split("\n"):
                    yield from ((other, paragraph) for other in by_length[len(paragraph)] if len(paragraph) > 5)


# ---- what must stay out ----------------------------------------------------------------------------------------------

GRAM, STRIDE = 12, 6  # a run of 17 characters that a set has too is always found


class Blocked:
    """Sentences of the evaluation sets.

    A sentence is blocked if its letters are those of a sentence of a set, or if it shares a run of GRAM + STRIDE - 1
    letters with one. Traditional characters are compared in their simplified forms.
    """

    def __init__(self, forms: dict[int, str]) -> None:
        self.forms = forms
        self.whole: dict[str, str] = {}
        self.grams: dict[str, str] = {}
        self.sizes: collections.Counter[str] = collections.Counter()

    def key(self, sentence: str) -> str:
        """What two sentences are compared by: Han characters in simplified forms, a to z, digits."""
        return "".join(_KEY.findall(sentence.translate(self.forms).lower()))

    def add(self, text: str, name: str) -> None:
        """Block a text, and each of its sentences."""
        for sentence in {text, *split_sentences(text)}:
            key = self.key(sentence)
            if len(key) >= 6:
                self.whole.setdefault(key, name)
                self.sizes[name] += 1
            for begin in range(len(key) - GRAM + 1):
                self.grams.setdefault(key[begin : begin + GRAM], name)

    def find(self, key: str) -> str | None:
        """The set that blocks a sentence."""
        name = self.whole.get(key)
        if name is None and len(key) >= GRAM:
            for begin in (*range(0, len(key) - GRAM, STRIDE), len(key) - GRAM):
                if key[begin : begin + GRAM] in self.grams:
                    return self.grams[key[begin : begin + GRAM]]
        return name


def block_sets(blocked: Blocked, folder: Path) -> None:
    """Block every text of the evaluation sets, by the format that a file's name tells."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text, name = path.read_text(encoding="utf-8"), path.parent.name
        if path.suffix in (".conll", ".conllu"):
            for block in re.split(r"\n[ \t]*\n", text):
                rows = [line.split("\t") for line in block.split("\n") if line and not line.startswith("#")]
                if name == "entities":  # a character, and its place in its word
                    blocked.add("".join(cells[0][:1] for cells in rows), name)
                else:
                    blocked.add("".join(cells[1] for cells in rows if len(cells) > 1), name)
        elif path.suffix == ".tsv":
            for line in text.split("\n"):
                blocked.add(line.partition("\t")[2], name)
        elif path.suffix == ".csv":
            for line in text.split("\n"):
                cells = line.rsplit(",", 4)
                if len(cells) == 5:
                    blocked.add(cells[0].replace("～", cells[2]), name)


# ---- all sources -----------------------------------------------------------------------------------------------------


class Corpus:
    """The sentences that have been kept so far, and the rules that a document must pass."""

    longest_free = 10  # Han characters; longer sentences occur once
    most_repeats = 20

    def __init__(self, blocked: Blocked) -> None:
        self.blocked = blocked
        self.seen: set[int] = set()
        self.short: collections.Counter[str] = collections.Counter()

    def admit(self, document: Iterable[str], fewest: int, counts: collections.Counter[str]) -> list[str]:
        """The sentences of a document that may be used; none if there are too few."""
        kept, numbers, shorts = [], set(), []
        size = kept_size = 0
        for paragraph in document:
            for sentence in split_sentences(normalise(paragraph)):
                reason, num_han = judge(sentence)
                counts["characters read"] += num_han
                if reason:
                    counts[f"characters, {reason}"] += num_han
                    continue
                key = self.blocked.key(sentence)
                size += num_han
                if block := self.blocked.find(key):
                    counts["characters, evaluation sets"] += num_han
                    counts[f"sentences, {block}"] += 1
                    continue
                number = number_of(key.encode())
                if number in numbers or (
                    number in self.seen if num_han > self.longest_free else self.short[key] >= self.most_repeats
                ):
                    counts["characters, repeated"] += num_han
                    continue
                numbers.add(number)
                if num_han <= self.longest_free:
                    shorts.append(key)
                kept.append(sentence)
                kept_size += num_han
        counts["characters, clean"] += size
        if len(kept) < fewest or kept_size * 3 < size:
            counts["characters, document too short or a copy"] += kept_size
            return []
        self.seen |= numbers
        self.short.update(shorts)
        counts["characters"] += kept_size
        counts["sentences"] += len(kept)
        counts["documents"] += 1
        return kept


def read_source(
    source: Source, clones: Path, corpus: Corpus, counts: collections.Counter[str], most_files: int | None
) -> Iterator[tuple[bool, list[str]]]:
    """(whether it is held out, sentences) of each document of a source."""
    found = files_of(source, clones)
    if found is None:
        return
    directory, files = found
    progress = Progress(source.name)
    for path, text in read_files(directory, shuffled(files)[:most_files]):
        counts["files"] += 1
        for work in source.reader(path, text):
            for document in work.documents:
                sentences = corpus.admit(document, source.fewest, counts)
                if sentences:
                    number = number_of(f"held out {work.title}".encode())
                    heldout = bool(source.heldout) and number % source.heldout == 7
                    yield heldout, sentences if heldout or number % 16 else list(map(half_width, sentences))
        shown = {"files": counts["files"], "words read": counts["characters read"], "words": counts["characters"]}
        progress.show(collections.Counter(shown))


def table(records: dict[str, dict[str, int]], sizes: dict[str, int], heldout: dict[str, int]) -> str:
    """TABLE.md from the counts of the sources."""
    lines = ["# Training text of the Chinese model", "", "Millions of Han characters, unless another unit is given."]
    steps = ("evaluation sets", "repeated", "document too short or a copy")
    lines += head("Step by step", "source", "kind", "read", "after cleaning", *(f"- {step}" for step in steps), "kept",
                  "sentences", "documents", left=2)  # fmt: skip
    total: collections.Counter[str] = collections.Counter()
    for record in records.values():
        total.update(record)
    kinds = {source.name: source.kind for source in SOURCES}
    for name, record in {**records, "**all**": dict(total)}.items():
        count = collections.Counter(record)
        taken = [million(count[f"characters, {step}"]) for step in steps]
        read, clean, kept = (million(count[key]) for key in ("characters read", "characters, clean", "characters"))
        lines.append(row(name, kinds.get(name, ""), read, clean, *taken, kept, count["sentences"], count["documents"]))
    lines += head("Where it comes from", "source", "repository on github.com", "commit", "paths", "licence of the text",
                  "files", left=5)  # fmt: skip
    for source in SOURCES:
        if source.name in records:
            paths = ", ".join(f"`{path}`" for path in source.paths)
            files = records[source.name].get("files", 0)
            lines.append(row(source.name, source.repository, source.commit, paths, source.licence, files))
    lines += head("What cleaning took out", "source", *REASONS, left=1)
    for name, record in records.items():
        lines.append(row(name, *(million(record.get(f"characters, {reason}", 0)) for reason in REASONS)))
    lines += head("Sentences taken out because an evaluation set has them", "set", "its sentences", "taken out", left=1)
    for name, size in sizes.items():
        lines.append(row(name, size, total[f"sentences, {name}"]))
    lines += head("Held-out text", "kind", "sentences", left=1)
    lines += [row(kind, size) for kind, size in heldout.items()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    """Read all sources, shuffle their documents and write the text."""
    parser = argparse.ArgumentParser(description="Turn clones of public repositories into Chinese training text.")
    parser.add_argument("--clones", type=Path, required=True, help="Folder of the clones, owner+name or owner/name.")
    parser.add_argument("--sets", type=Path, help="Folder of evaluation sets; their sentences are left out.")
    parser.add_argument("--out", type=Path, required=True, help="Folder of the results.")
    parser.add_argument("--parts", type=int, default=24, help="Number of train-NN.txt.gz files.")
    parser.add_argument("--most-files", type=int, help="Read at most this many files per source, for a trial.")
    options = parser.parse_args(arguments)
    (options.out / "samples").mkdir(parents=True, exist_ok=True)

    forms = simplified_forms(aligned_paragraphs(options.clones, options.most_files or 100))
    print(f"{len(forms)} traditional characters with a simplified form", file=sys.stderr)
    blocked = Blocked(forms)
    if options.sets:
        block_sets(blocked, options.sets)
    print(f"blocked: {dict(blocked.sizes)}", file=sys.stderr, flush=True)

    corpus = Corpus(blocked)
    documents: list[bytes] = []
    heldout: dict[str, list[list[str]]] = collections.defaultdict(list)
    records: dict[str, dict[str, int]] = {}
    for source in SOURCES:
        counts: collections.Counter[str] = collections.Counter()
        first = len(documents)
        for is_heldout, sentences in read_source(source, options.clones, corpus, counts, options.most_files):
            if is_heldout:
                heldout[source.kind].append(sentences)
            else:
                documents.append("\n".join(sentences).encode())
        if counts:
            records[source.name] = dict(counts)
            drawn = random.Random(13).sample(range(first, len(documents)), min(20, len(documents) - first))
            sample = [random.Random(at).choice(documents[at].decode().split("\n")) for at in drawn]
            (options.out / "samples" / f"{source.name}.txt").write_text("\n".join(sample) + "\n", encoding="utf-8")

    for kind, works in heldout.items():
        random.Random(13).shuffle(works)
        text = "\n\n".join("\n".join(sentences) for sentences in works)
        (options.out / f"heldout-{kind}.txt").write_text(text + "\n", encoding="utf-8")
    random.Random(13).shuffle(documents)
    for part in range(options.parts):
        path = options.out / f"train-{part:02d}.txt.gz"
        with gzip.open(path, "wb", compresslevel=6) as file:
            for document in documents[part :: options.parts]:
                file.write(document + b"\n\n")
    (options.out / "counts.json").write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sizes = {kind: sum(map(len, works)) for kind, works in heldout.items()}
    (options.out / "TABLE.md").write_text(table(records, dict(blocked.sizes), sizes), encoding="utf-8")


if __name__ == "__main__":
    main()
