"""What the scripts of all languages share: sources in git clones, Markdown, progress, tables.

Input: a row of a table of sources, and a folder of clones. A clone of github.com/owner/name is looked for in
CLONES/owner+name and CLONES/owner/name.
Output: the paths and texts of its files; the paragraphs of Markdown; rows of `TABLE.md`.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import html
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# ---- works and sources -----------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """A book, an article, a speech: documents, each a list of paragraphs."""

    title: str
    documents: list[list[str]]
    author: str = ""


Reader = Callable[[str, str], Iterator[Work]]  # (path in the repository, text of the file) -> works


@dataclasses.dataclass(frozen=True)
class Source:
    """What every row of a table of sources says; a language adds its own limits."""

    name: str
    repository: str
    commit: str
    paths: tuple[str, ...]  # folders or files of the repository
    pattern: str  # regular expression that a path must match
    kind: str
    licence: str
    reader: Reader
    fewest: int = dataclasses.field(default=3, kw_only=True)  # sentences that a document must have


# ---- git -------------------------------------------------------------------------------------------------------------


def git_directory(clones: Path, repository: str) -> Path | None:
    """The git directory of a clone, or None if there is none."""
    owner, name = repository.split("/")
    for folder in (clones / f"{owner}+{name}", clones / owner / name):
        for candidate in (folder, folder / ".git", folder / "repo", folder / "repo" / ".git"):
            if (candidate / "HEAD").is_file() and (candidate / "objects").is_dir():
                return candidate
    return None


def list_files(directory: Path, commit: str, paths: Iterable[str]) -> list[tuple[str, str]]:
    """(path, blob id) of every file under `paths` at `commit`."""
    command = ["git", f"--git-dir={directory}", "ls-tree", "-r", "-z", commit, "--", *paths]
    listing = subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8", "replace")
    files = []
    for row in filter(None, listing.split("\0")):
        meta, path = row.split("\t", 1)
        mode, kind, blob = meta.split()
        if kind == "blob" and mode != "120000":
            files.append((path, blob))
    return files


def read_files(directory: Path, files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(path, text) of each file whose blob the clone has."""
    command = ["git", f"--git-dir={directory}", "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for path, blob in files:
            process.stdin.write(f"{blob}\n".encode())
            process.stdin.flush()
            header = process.stdout.readline().split()
            if header[-1] == b"missing":
                continue
            content = process.stdout.read(int(header[2]) + 1)[:-1]
            yield path, decode(content)
        process.stdin.close()


def decode(content: bytes) -> str:
    """Text of a file in UTF-8 or else Windows-1252, with \\n as line end."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def shuffled(files: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The files in an order that depends on their paths alone, so that a cap takes a fair sample."""
    return sorted(files, key=lambda file: hashlib.blake2b(file[0].encode(), digest_size=8).digest())


def files_of(source: Source, clones: Path) -> tuple[Path, list[tuple[str, str]]] | None:
    """The git directory of a source and the files that its row names; None, with a message, if it has no clone."""
    directory = git_directory(clones, source.repository)
    if directory is None:
        print(f"{source.name}: no clone of {source.repository}, skipped", file=sys.stderr)
        return None
    listed = list_files(directory, source.commit, source.paths)
    return directory, [file for file in listed if re.search(source.pattern, file[0])]


# ---- Markdown --------------------------------------------------------------------------------------------------------

TAG = re.compile(r"<[^>]*>")
_MARKDOWN_BLOCK = re.compile(
    r"\A---\n.*?\n---\n|^[ >]*(```|~~~).*?^[ >]*\1[^\n]*$|<!--.*?-->|"
    r"<(table|pre|script|style|details)\b.*?</\2>|\{\{<? ?/?comment.*?\}\}",
    re.S | re.M,
)
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\](?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*\])")
_TOOLTIP = re.compile(r'\{\{< *glossary_tooltip[^>]*?text="([^"]*)"[^>]*>\}\}')


def _code_span(match: re.Match[str]) -> str:
    """Code in a sentence: a name stays, anything else marks the sentence as no prose."""
    return match[1] if re.fullmatch(r"[\w.,:/ '\"()-]+", match[1]) else "\ufffd"


def markdown_paragraphs(text: str) -> list[str]:
    """Paragraphs and list items of Markdown, without code, tables, headings, images and link targets."""
    text = _MARKDOWN_BLOCK.sub("", text)
    text = re.sub(r"`+([^`\n]+)`+", _code_span, text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = _TOOLTIP.sub(r"\1", _LINK.sub(r"\1", text))
    blocks: list[list[str]] = [[]]
    for line in text.split("\n"):
        bare = re.sub(r"^[\s>]*(?:[-*+] |\d+[.)] )?\s*", "", line)
        if not bare or (line.startswith(("    ", "\t")) and bare == line.lstrip() and not blocks[-1]):
            blocks.append([])  # an empty line, or indented code
        elif bare[0] in "#|:[!{<=-" and not re.match(r"\[[^\]]+\][^(:]", bare):
            blocks.append([])  # a heading, a table, a directive, a link definition
        else:
            if bare != line.lstrip():
                blocks.append([])
            blocks[-1].append(bare)
    paragraphs = []
    for block in filter(None, blocks):
        paragraph = re.sub(r"<(?:xref|https?)[^>]*>", "\ufffd", " ".join(block))
        paragraph = re.sub(r"\*{1,3}(?=\S)(.+?)(?<=\S)\*{1,3}", r"\1", TAG.sub("", paragraph))
        paragraph = re.sub(r"(?<!\w)__?(?=\S)(.+?)(?<=\S)__?(?!\w)", r"\1", paragraph)
        paragraphs.append(html.unescape(paragraph).replace("\\", ""))
    return paragraphs


# ---- numbers, progress, tables ---------------------------------------------------------------------------------------


def number_of(content: bytes) -> int:
    """A 64-bit number for a text: what sentences are compared by, or a title."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class Progress:
    """A line on stderr every few seconds."""

    def __init__(self, name: str) -> None:
        self.name, self.begin, self.last = name, time.monotonic(), 0.0

    def show(self, counts: collections.Counter[str], *, end: bool = False) -> None:
        now = time.monotonic()
        if end or now - self.last > 10:
            self.last = now
            print(
                f"{self.name}: {counts['files']:,} files, {counts['words read'] / 1e6:.2f}M words read, "
                f"{counts['words'] / 1e6:.2f}M kept, {now - self.begin:.0f} s",
                file=sys.stderr,
                flush=True,
            )


M = 1_000_000


def row(*cells: object) -> str:
    """A row of a Markdown table; numbers of words are given in millions by `million`."""
    return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |"


def million(words: int) -> str:
    """Words in millions, with two decimals."""
    return f"{words / M:.2f}"


def head(title: str, *columns: str, left: int) -> list[str]:
    """A heading and the first two lines of a Markdown table whose first `left` columns are text."""
    return ["", f"## {title}", "", row(*columns), "|" + "---|" * left + "---:|" * (len(columns) - left)]
