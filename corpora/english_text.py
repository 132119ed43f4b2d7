"""Turn clones of public repositories into the training text of the English model.

Input: git clones (bare or with a work tree), the sentences that no training text may hold (held-out files, task sets,
WikiText), the text of the first edition and the model's vocabulary. Output: one `NAME.txt.xz` per source: untokenized
sentences, one per line, with an empty line between documents, UTF-8 in NFC. Beside each lies `NAME.json` with the
counts, and `samples/NAME.txt` with random lines to read. `TABLE.md` sums up all of them.

    python english_text.py --clones CLONES --base 'pretrain/train-*.txt.xz' --heldout pretrain/heldout-wiki.txt \
        --heldout pretrain/heldout-books.txt --tasks data/tasks --vocabulary vocabulary.txt --out OUT

A clone of github.com/owner/name is looked for in CLONES/owner+name and CLONES/owner/name. Sources run in the order of
the table `SOURCES`; the result depends on that order, since a sentence of more than eight words is kept once, in the
first source that has it. A source whose `.json` exists is finished: its text is read again only to know its sentences.
A source without a clone is skipped with a message.

The file is long because every source has a reader of its own: they are short and independent of each other.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import glob
import gzip
import html
import json
import lzma
import random
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import sources
from sources import (
    TAG,
    M,
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

# ---- the table of sources --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Source(sources.Source):
    """A row of the table of sources. Numbers of words count runs of characters between spaces."""

    cap: int  # words to keep at most
    author_cap: int = 0  # words to keep at most per author, 0 for no limit
    overlap: float = 0.5  # share of sentences seen before from which a document counts as a copy
    unknown: float = 0.10  # share of lowercase words outside the vocabulary up to which a document is English
    holes: float = 1.0  # share of sentences with a hole, where markup was removed, from which a document is left out
    newest: str = ""  # regular expression with groups 1 (id) and 2 (version): only the newest version of an id is read


def newest_versions(files: list[tuple[str, str]], pattern: str) -> list[tuple[str, str]]:
    """Of the files whose path gives an id and a version, those with the highest version."""
    best: dict[str, tuple[int, tuple[str, str]]] = {}
    for file in files:
        found = re.search(pattern, file[0])
        if found and (found[1] not in best or best[found[1]][0] < int(found[2])):
            best[found[1]] = int(found[2]), file
    return [file for _, file in best.values()]


# ---- readers ---------------------------------------------------------------------------------------------------------

_SKIPPED_TITLE = re.compile(
    r"(?i)\(disambiguation\)|^(lists? ?of|index ?of|outline ?of|timeline ?of|wikinews:|template:)|^\d+"
)
_BACK_MATTER = re.compile(
    r"(?im)^=+ *(see also|references|notes|footnotes|bibliography|external links|further reading|sources|citations|"
    r"works cited|discography|filmography|notes and references|references and notes) *=+ *$"
)
_NOTE_MARK = re.compile(
    r"\[(?:\d+|[a-z]{1,3}|update|[ivx]+|(?:note|nb|lower-alpha|upper-alpha|fn|Note|n) ?\d+|[^\[\]]{0,60}\?|"
    r"[^\[\]]{0,40}(?:needed|source|research|inline|verification|disputed|dubious|clarify|link)[^\[\]]{0,40})\]"
)


def encyclopedia_lines(text: str) -> list[str]:
    """Paragraphs of an article with one paragraph per line: no headings, list stubs, note marks, formulas."""
    back = _BACK_MATTER.search(text)
    if back:
        text = text[: back.start()]
    lines = []
    for line in text.split("\n"):
        if line.count(" ") < 7 or line[0] in " =*#|!{:;" or "formula_" in line or "displaystyle" in line:
            continue
        lines.append(_NOTE_MARK.sub("", line) if "[" in line else line)
    return lines


def article(title: str, text: str) -> Iterator[Work]:
    """An article, unless its title tells that it is a list or a page of another kind."""
    if not _SKIPPED_TITLE.search(title):
        yield Work(title, [encyclopedia_lines(text)])


def read_numbered_article(path: str, text: str) -> Iterator[Work]:
    """A page number, a title, the text, and an information box at the end."""
    _, _, rest = text.partition("\n")
    _, _, body = rest.partition("\n")
    title = re.sub(r"^.*/|\.txt$", "", path)
    return article(title, body.split("\nInformation box\n")[0])


_DOC = re.compile(r'<doc [^>]*?title="([^"]*)"[^>]*>\n(.*?)\n?</doc>', re.S)


def read_doc_articles(path: str, text: str) -> Iterator[Work]:
    """Articles in <doc title="..."> elements; the first line repeats the title."""
    for title, body in _DOC.findall(text):
        yield from article(html.unescape(title), html.unescape(body.partition("\n")[2]))


def read_json_articles(path: str, text: str) -> Iterator[Work]:
    """One JSON object with `title` and `text` per line."""
    for line in text.split("\n"):
        if line:
            record = json.loads(line)
            yield from article(record["title"], html.unescape(record["text"]))


def read_sectioned_article(path: str, text: str) -> Iterator[Work]:
    """Sections marked by rows of #; the text is in the section CONTENT, with wiki headings."""
    _, found, content = text.partition("####### CONTENT #######\n")
    if found:
        content = re.sub(r"(?<=[a-z)\"”][a-z)\"”\d][.?!])(?=[A-Z][a-z ])", " ", content)  # where a note mark stood
        yield from article(re.sub(r"^.*/|\.txt$", "", path), content)


def joined(lines: list[str]) -> str:
    """One paragraph of hard-wrapped lines. A word divided at a line end becomes whole where the vocabulary knows it."""
    return _DIVIDED.sub(_undivide, "\n".join(lines)).replace("\n", " ")


_DIVIDED = re.compile(r"([^\W\d_]+)-\n\s*([a-z]+)")
KNOWN: set[str] = set()  # lowercase words of the vocabulary; filled by `main`


def _undivide(match: re.Match[str]) -> str:
    whole = match[1] + match[2]
    return whole if whole.lower() in KNOWN else f"{match[1]}-{match[2]}"


def wrapped_paragraphs(text: str) -> list[str]:
    """Paragraphs between empty lines, their lines joined."""
    return [joined(block.strip().split("\n")) for block in re.split(r"\n[ \t]*\n\s*", text) if block.strip()]


def line_paragraphs(text: str) -> list[str]:
    """Paragraphs of a text that has one per line, or that is wrapped at a fixed width; the lengths of lines tell."""
    lines = [line.strip() for line in text.split("\n")]
    lines = [line for line in lines if not line or re.search(r"[a-z]{2}", line)]  # no numbers and heads of pages
    lengths = sorted(map(len, filter(None, lines)))
    if lengths and lengths[len(lengths) // 2] > 110:
        return list(filter(None, lines))
    return wrapped_paragraphs("\n".join(lines))


def read_debate(path: str, text: str) -> Iterator[Work]:
    """A speech; paragraphs may be numbered, documents are cited in square brackets."""
    text = re.sub(r"\[[^\[\]]{0,80}\]", "", text)
    paragraphs = [re.sub(r"^\d{1,3}\.?\s+(?=[A-Z\"“])", "", paragraph) for paragraph in line_paragraphs(text)]
    yield Work(path, [merge_broken(paragraphs)])


def merge_broken(paragraphs: list[str]) -> list[str]:
    """Join a paragraph that begins in lower case to one before it that has no end, as page breaks leave them."""
    merged: list[str] = []
    for paragraph in paragraphs:
        if merged and paragraph[:1].islower() and merged[-1].rstrip()[-1:] not in {".", "?", "!", ":", '"', "”"}:
            merged[-1] += " " + paragraph
        else:
            merged.append(paragraph)
    return merged


def read_press_release(path: str, text: str) -> Iterator[Work]:
    """One paragraph per line. Releases whose punctuation has been replaced by spaces are left out."""
    lines = [line.strip() for line in text.split("\n")]
    body = "\n".join(lines)
    if len(re.findall(r"\w {2,}\w", body)) * 40 <= body.count(" "):
        lines = [
            re.sub(r"^(?:[A-Z][A-Z .,()]{2,40}|\(?[A-Z][a-z]+, D\.?C\.?\)?) ?[-–—:]+ ?", "", line) for line in lines
        ]
        yield Work(path, [[line for line in lines if line.count(" ") > 5]])


_TEI_DROPPED = re.compile(
    r"<(note|table|figure|head|lg|listBibl|bibl|list|opener|closer|byline|dateline|salute|signed|trailer|fw|figDesc|"
    r"speaker|stage|argument|epigraph|frus:attachment-meta|abbr|del|sic)\b[^>]*?(?<!/)>.*?</\1>",
    re.S,
)
_P = re.compile(r"<p\b[^>]*?(?<!/)>(.*?)</p>", re.S)
_TEI_BODY = re.compile(r"<body\b.*</body>", re.S)
_COMMENT = re.compile(r"<!--.*?-->|<\?.*?\?>", re.S)


def strip_tags(markup: str) -> str:
    """The text of XML markup, with single spaces."""
    return " ".join(html.unescape(TAG.sub("", markup)).split())


def read_tei(path: str, text: str) -> Iterator[Work]:
    """A TEI book: the paragraphs of its body; a document is a division."""
    found = _TEI_BODY.search(text)
    title = re.search(r"<title\b[^>]*>(.*?)</title>", text, re.S)
    author = re.search(r"<author\b[^>]*>(.*?)</author>", text, re.S)
    if found:
        body = _TEI_DROPPED.sub(" ", _COMMENT.sub("", found[0]))
        documents = [list(map(strip_tags, _P.findall(part))) for part in re.split(r"<div\d?\b", body)]
        name = strip_tags(title[1]) if title else path
        yield Work(name, cut_long(documents), strip_tags(author[1]) if author else "")


def read_edited_tei(path: str, text: str) -> Iterator[Work]:
    """As `read_tei`, for a collection where only proofread texts have dashes and divisions."""
    if text.count("—") > 10 and text.count("</p>") > 50:
        yield from read_tei(path, text)


def read_diplomatic_tei(path: str, text: str) -> Iterator[Work]:
    """A TEI volume of documents: each is a work, without notes, headings, addresses and signatures."""
    parts = re.split(r'<div\b(?=[^>]*type="document")', text)
    for part in parts[1:]:
        body = _TEI_DROPPED.sub(" ", _COMMENT.sub("", part))
        paragraphs = [
            re.sub(r"^(?:\(?[0-9a-z]{1,3}[.)]|\[[^\]]*\]|\d+\.) +", "", strip_tags(p)) for p in _P.findall(body)
        ]
        # Brackets around a number are a note; around words they are the editors', and the sentence is left out.
        paragraphs = [
            re.sub(r"\[[^\[\]]*\]", "\ufffd", re.sub(r" ?\[\d+\]", "", paragraph)) for paragraph in paragraphs
        ]
        yield Work(path, [paragraphs])


_JATS_DROPPED = re.compile(
    r"<(table-wrap|fig|fig-group|disp-formula|disp-quote|boxed-text|supplementary-material|media|list|"
    r"ref-list|fn|label|title|code)\b[^>]*?(?<!/)>.*?</\1>",
    re.S,
)
_FORMULA = re.compile(r"<(inline-formula|tex-math|mml:math)\b[^>]*?(?<!/)>.*?</\1>", re.S)
_CITATION = re.compile(r'<xref\b[^>]*ref-type="bibr"[^>]*>.*?</xref>', re.S)
_BRACKETED_REFERENCE = re.compile(
    r" ?[(\[](?:[^()\[\]]*(?:<xref|[=<>±≥≤×\ufffd]|https?:|Fig|Table)[^()\[\]]*|"
    r"[\s;,.&]*(?:e\.g\.|see|reviewed in)?[\s;,.&]*)[)\]]"
)


def read_jats(path: str, text: str) -> Iterator[Work]:
    """A journal article in JATS: abstracts, digest and body, without citations, formulas, figures and tables."""
    text = _COMMENT.sub("", text.partition("<sub-article")[0])
    front, _, rest = text.partition("<body")
    body = rest.partition("</body>")[0]
    abstracts = re.findall(r"<abstract\b.*?</abstract>", front, re.S)
    # Methods are the part most like a list of materials; the sections before and after them are prose.
    body = re.sub(
        r'<sec\b[^>]*sec-type="(?:[^"]*methods|supplementary-material)[^"]*".*?(?=<sec\b[^>]*sec-type=|\Z)',
        " ",
        body,
        flags=re.S,
    )
    documents = []
    for part in [*abstracts, body]:
        part = _FORMULA.sub("\ufffd", _JATS_DROPPED.sub(" ", part))  # marks a sentence that is not words alone
        paragraphs = []
        for paragraph in _P.findall(part):
            paragraph = re.sub(r"<(?!/?xref)[^>]*>", "", _CITATION.sub("<xref/>", paragraph))
            for _ in range(2):
                paragraph = _BRACKETED_REFERENCE.sub("", paragraph)
            paragraph = re.sub(
                r"(?:[ ,;]|\band\b)*<xref/>", "\ufffd", paragraph
            )  # a citation that is part of the sentence
            paragraphs.append(strip_tags(paragraph))
        documents.append(paragraphs)
    yield Work(path, documents)


_GUTENBERG_START = re.compile(
    r"(?m)^.*(?:\*\*\* ?START OF|\*END\*? ?THE SMALL PRINT|START OF THE PROJECT GUTENBERG).*$", re.I
)
_GUTENBERG_END = re.compile(r"(?m)^.*(?:\*\*\* ?END OF|End of (?:the |this )?Project Gutenberg).*$", re.I)
_CHAPTER = re.compile(
    r"(?i)^(chapter|book|part|letter|canto|section|stave|act|scene|volume|introduction|preface|epilogue|prologue)\b.{0,60}$|"
    r"^[IVXLC]{1,7}\.?$"
)
_PART = re.compile(
    r"\s*_?(?:[A-Z][A-Z.' ]{2,30}|[A-Z][a-z]+(?: [A-Z][a-z]+)?)_?(?: ?\([^()]{1,60}\))?(?:[:]|(?<=[A-Z])\.)_?\s"
)  # of a play
_PRODUCER = re.compile(
    r"(?i)transcriber|gutenberg|e-?text|proofread|scanned|footnote|illustration:|produced by|copyright"
)


def read_gutenberg(path: str, text: str) -> Iterator[Work]:
    """A book of Project Gutenberg: its prose paragraphs; a document is a chapter."""
    head = text[:3000]
    if re.search(r"(?i)language: *(?!english)\w", head) or re.search(r"(?i)copyrighted project gutenberg", text[:8000]):
        return
    starts = list(_GUTENBERG_START.finditer(text[: len(text) // 3]))
    begin = starts[-1].end() if starts else 0
    end = _GUTENBERG_END.search(text, max(begin, len(text) // 2))
    body = text[begin : end.start() if end else len(text)]
    number = re.search(r"\[(?:EBook|eBook|Etext|E-Text) *#?(\d+)\]", head)
    documents: list[list[str]] = [[]]
    verse = prose = spoken = 0
    for block in re.split(r"\n[ \t]*\n\s*?(?=\S|[ \t]+\S)", body):
        if not block.strip():
            continue
        lines = [line.rstrip() for line in block.strip("\n").split("\n")]
        if len(lines) <= 3 and _CHAPTER.match(lines[0].strip()):
            documents.append([])
        elif sum(line.startswith("  ") for line in lines) * 2 > len(lines) or (
            len(lines) > 2 and max(map(len, lines[:-1])) < 50
        ):
            verse += len(lines)
        elif not _PRODUCER.search(block):
            prose += len(lines)
            spoken += len(lines) * bool(_PART.match(block))
            paragraph = joined([line.strip() for line in lines])
            paragraph = re.sub(r"^(?:[IVXLC]{2,7}|[VX])\.? +(?=[A-Z\"“])", "", paragraph)
            paragraph = re.sub(r"\[(?:\d+|[A-Z*+†]|Footnote[^\]]*)\]|\{\d+[a-z]?\}", "", paragraph)
            documents[-1].append(paragraph.replace("_", "").replace("=", ""))
    if prose > 2 * verse and prose > 5 * spoken:
        author, _, name = path.rpartition("/")
        title = re.sub(r"\.txt$", "", name) + (f" #{number[1]}" if number else "")
        yield Work(title, cut_long(documents), author)


def cut_long(documents: list[list[str]], words: int = 6000) -> list[list[str]]:
    """Documents of at most about so many words."""
    short: list[list[str]] = []
    for document in documents:
        size = words
        for paragraph in document:
            if size >= words:
                short.append([])
                size = 0
            short[-1].append(paragraph)
            size += paragraph.count(" ") + 1
    return short


def read_markdown(path: str, text: str) -> Iterator[Work]:
    """A page in Markdown: its paragraphs and list items of more than five words."""
    yield Work(path, [[paragraph for paragraph in markdown_paragraphs(text) if paragraph.count(" ") > 4]])


_SPEAKER = re.compile(r"^\*\*[^*\n]{1,80}:?\*\*:? *", re.M)


def read_podcast(path: str, text: str) -> Iterator[Work]:
    """A transcript in Markdown: **Speaker:** before each turn, times and noises in escaped brackets."""
    text = re.sub(r"\\\[[^\]\n]*\\?\]", "", _SPEAKER.sub("", text))
    paragraphs = markdown_paragraphs(re.sub(r"^#.*$|^\*\*Break\*\*.*$", "", text, flags=re.M))
    yield Work(path, cut_long([paragraphs]))


def read_restructured(path: str, text: str) -> Iterator[Work]:
    """A PEP that its authors gave to the public domain or CC0."""
    if not re.search(r"public\s+domain|CC0", text):
        return
    blocks = []
    for block in re.split(r"\n[ \t]*\n", text.partition("\n\n")[2]):
        if block[:1].isspace() or block.startswith("..") or re.search(r"^[=\-~^*+`'\"#]{3,}$|^\s*[+|]", block, re.M):
            continue
        for item in re.split(r"\n(?=[-*] |\d+\. )", block):
            item = " ".join(item.split())
            item = re.sub(r":pep:`(\d+)`", r"PEP \1", item)
            item = re.sub(r":[\w:+-]+:`([^`<]*?) ?(?:<[^`]*>)?`", r"\1", item)
            item = re.sub(r"`+([^`<]*?) ?(?:<[^`]*>)?`+_{0,2}|\[\#?[\w-]*\]_|\|\w+\|", r"\1", item)
            blocks.append(re.sub(r"^(?:[-*]|\d+\.) |\*{1,2}(?=\S)|(?<=\S)\*{1,2}", "", item))
    yield Work(path, [[block for block in blocks if block.count(" ") > 4]])


def read_presidential(path: str, text: str) -> Iterator[Work]:
    """A speech: a line with the speaker, then paragraphs; names of speakers in capitals."""
    paragraphs = wrapped_paragraphs(text.partition("\n")[2])
    paragraphs = [
        re.sub(r"^(?:[A-Z][A-Z.' ]+|Q\.?|The President|Mr\. [A-Z]\w+)[:.] +", "", paragraph) for paragraph in paragraphs
    ]
    yield Work(
        path, cut_long([[re.sub(r" ?[\[(](?:Applause|Laughter|applause|laughter)\.?[\])]", "", p) for p in paragraphs]])
    )


def read_dialogues(path: str, text: str) -> Iterator[Work]:
    """A JSON list of dialogues with `turns`, each with an `utterance`."""
    for dialogue in json.loads(text):
        yield Work(path, [[turn["utterance"] for turn in dialogue["turns"]]])


# ---- the table of sources --------------------------------------------------------------------------------------------

SOURCES = [
    Source("wikipedia-2023", "kirito-0512/data", "433692870f44", ("dump",), r"\.txt$", "encyclopedia",
           "CC BY-SA 4.0", read_numbered_article, 60 * M, fewest=5, overlap=0.3, unknown=0.15),
    Source("wikipedia-2019", "ag-gipp/wikiextractor", "6b6a412dda77", ("text-excellent", "text"), r"wiki_\d+$",
           "encyclopedia", "CC BY-SA 3.0", read_doc_articles, 25 * M, fewest=5, overlap=0.3, unknown=0.15),
    Source("wikipedia-core", "csupika/F21DL-Machine-Learning-Portfolio", "d5f908a188e4", ("articles",), r"\.txt$",
           "encyclopedia", "CC BY-SA 3.0", read_sectioned_article, 15 * M, fewest=5, overlap=0.3, unknown=0.15),
    Source("wikipedia-simple", "taminemelissa/quiz-generator", "d21d03334ce8", ("data/wikipedia",), r"wiki_\d+$",
           "encyclopedia", "CC BY-SA 3.0", read_json_articles, 20 * M, overlap=0.3, unknown=0.15),
    Source("wikinews", "jshepp27/countaBot", "eac9439eff52", ("text/AA",), r"wiki_\d+$", "news",
           "CC BY 2.5", read_json_articles, 10 * M, holes=0.03),
    Source("un-debates", "SarahFranzen/Emotions_in_the_United_Nations_General_Debates", "3b277c419f85",
           ("data/data_original/TXT",), r"/[^./][^/]*\.txt$", "speech", "CC0", read_debate, 35 * M),
    Source("senate-press", "lintool/GrimmerSenatePressReleases", "2c7bab8837f9", ("raw",), r"\.txt$", "news",
           "public domain (works of the US Government)", read_press_release, 20 * M),
    Source("podcasts", "thechangelog/transcripts", "44a0e16c5919",
           ("afk", "backstage", "brainscience", "founderstalk", "friends", "gotime", "jsparty", "news", "podcast",
            "practicalai", "rfc", "shipit", "spotlight"),
           r"\.md$", "speech", "CC BY-SA 4.0", read_podcast, 20 * M),
    Source("elife", "elifesciences/elife-article-xml", "72034a54ab58", ("articles",), r"\.xml$", "science",
           "CC BY 4.0 or CC0", read_jats, 60 * M, unknown=0.20, newest=r"elife-(\d+)-v(\d+)\.xml$"),
    Source("presidents", "kfogel/presidential-speeches", "a4c8b38eeba4", ("data",), r"\.txt$", "speech",
           "public domain (works of the US Government)", read_presidential, 6 * M, unknown=0.02),
    Source("service-dialogue", "google-research-datasets/dstc8-schema-guided-dialogue", "e852981ae349", ("train",),
           r"dialogues_\d+\.json$", "speech", "CC BY-SA 4.0", read_dialogues, 2 * M, fewest=5),
    Source("dotnet-docs", "dotnet/docs", "b7779bffad7a", ("docs",), r"\.md$", "documentation",
           "CC BY 4.0", read_markdown, 6 * M),
    Source("architecture-docs", "MicrosoftDocs/architecture-center", "d75937dbbc08", ("docs",), r"\.md$",
           "documentation", "CC BY 4.0", read_markdown, 2 * M),
    Source("kubernetes-docs", "kubernetes/website", "56464fe6c846", ("content/en",), r"\.md$", "documentation",
           "CC BY 4.0", read_markdown, 3 * M),
    Source("python-peps", "python/peps", "ba4deeb79695", ("peps",), r"\.rst$", "documentation",
           "public domain or CC0 (each PEP says so)", read_restructured, 2 * M),
    Source("rust-rfcs", "rust-lang/rfcs", "354518a8c902", ("text",), r"\.md$", "documentation",
           "MIT or Apache-2.0", read_markdown, 2 * M),
    Source("digital-gov", "GSA/digitalgov.gov", "4979583206d9", ("content",), r"\.md$", "documentation",
           "public domain, CC0", read_markdown, 2 * M),
    Source("frus", "HistoryAtState/frus", "d3dff1508b3e", ("volumes",), r"\.xml$", "diplomacy",
           "public domain (works of the US Government)", read_diplomatic_tei, 15 * M),
    Source("eltec", "COST-ELTeC/ELTeC-eng", "3db3b6738a83", ("level1",), r"\.xml$", "fiction",
           "public domain; markup CC BY 4.0", read_tei, 15 * M),
    Source("gutenberg", "rcdm-uga/Gutenberg_Text", "a0b16d35a985", (".",), r"\.txt$", "fiction",
           "public domain in the USA", read_gutenberg, 60 * M, author_cap=1_200_000),
    Source("victorian-women", "iulibdcs/tei_text", "728522e7adcc", ("vwwp_tei",), r"\.xml$", "fiction",
           "public domain; transcription CC BY 4.0", read_tei, 10 * M),
    Source("wright-fiction", "iulibdcs/tei_text", "728522e7adcc", ("wright_tei",), r"\.xml$", "fiction",
           "public domain; transcription CC BY 4.0", read_edited_tei, 25 * M, author_cap=300_000, unknown=0.03),
    Source("mdn", "mdn/content", "b2c48c8b7c09",
           ("files/en-us/learn_web_development", "files/en-us/glossary", "files/en-us/web"),
           r"\.md$", "documentation", "CC BY-SA 2.5", read_markdown, 2 * M),
    Source("carpentries", "carpentries/carpentries.org", "68751fe788b1", ("content",), r"\.md$", "documentation",
           "CC BY 4.0", read_markdown, 2 * M),
    Source("programming-historian", "programminghistorian/jekyll", "a1b7b29fa800", ("en/lessons",), r"\.md$",
           "documentation", "CC BY 4.0", read_markdown, 2 * M),
    Source("turing-way", "the-turing-way/the-turing-way", "c98a0e6ca474", ("book",), r"\.md$", "documentation",
           "CC BY 4.0", read_markdown, 2 * M),
    Source("wikipedia-2021", "eddy16112/sosp21_exp", "c0e27b36cc8d", ("data/wikipedia",), r"wiki_\d+$", "encyclopedia",
           "CC BY-SA 3.0", read_json_articles, 15 * M, fewest=5, overlap=0.3, unknown=0.15),
]  # fmt: skip
LICENCE_OF_BASE = "CC BY-SA 3.0 (Wikipedia), public domain (Gutenberg, FRUS), CC BY 4.0 (Indiana University)"
KIND_OF_BASE = "first edition (Wikipedia 78%, books 18%, history and diplomacy 3%)"


# ---- sentences -------------------------------------------------------------------------------------------------------

_SPACE_LIKE = re.compile(r"[\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060\ufeff]")
_BOUNDARY = re.compile(r"""[.!?…]["'”’»)\]]*\s+(?=["'“‘«(\[]*[^\sa-z"'“‘«(\[,;:–—-])""")
_BEFORE = r"(?:^|[\s(\[\"“‘'—–-])"
_NO_BOUNDARY = re.compile(  # an initial, letters with periods, a title, an abbreviation that ends no sentence
    rf"{_BEFORE}(?:[^\W\d_I]|(?:[^\W\d_]\.)+[^\W\d_]?|Mrs?|Ms|Messrs|Mme|Mlle|Dr|St|Ste|Prof|Gen|Col|Maj|Capt|Cpt|Lt|Lieut|"
    r"Sgt|Cpl|Pvt|Adm|Cmdr|Rev|Hon|Sens?|SENS?|Reps?|Gov|Pres|Supt|Atty|Mt|Ft|vs|cf|ca|al|[Ff]igs?|[Ee]qs?|viz|esp|spp?)$"
)
_NO_BOUNDARY_BEFORE_NUMBER = re.compile(
    rf"{_BEFORE}(?:Nos?|[Vv]ols?|pp|ch|art|[Ss]ecs?|[Rr]efs?|approx|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)$"
)


def split_sentences(paragraph: str) -> list[str]:
    """Sentences of a paragraph: they end at . ! ? … before a space, except before lower case or after an abbreviation.

    >>> split_sentences('Mr. A. Roe met us. (He did!) "So?" asked one. No. 5 was the U.S. team.')
    ['Mr. A. Roe met us.', '(He did!)', '"So?" asked one.', 'No. 5 was the U.S. team.']
    """
    sentences, begin = [], 0
    for match in _BOUNDARY.finditer(paragraph):
        stop = match.start()
        if paragraph[stop] == ".":
            place = max(begin - 1, stop - 14, 0), stop  # from the space before the sentence on
            number = paragraph[match.end()].isdigit()
            if _NO_BOUNDARY.search(paragraph, *place):
                continue
            if number and _NO_BOUNDARY_BEFORE_NUMBER.search(paragraph, *place):
                continue
        sentences.append(paragraph[begin : match.end()].rstrip())
        begin = match.end()
    sentences.append(paragraph[begin:].strip())
    return [sentence for sentence in sentences if sentence]


def normalise(paragraph: str) -> str:
    """NFC, plain single spaces, no invisible characters."""
    if not paragraph.isascii():
        paragraph = _INVISIBLE.sub("", unicodedata.normalize("NFC", paragraph))
    return _SPACE_LIKE.sub(" ", paragraph).strip()


# These expressions are tried at every character of the text, so each begins with few characters, or is tried only where
# a cheaper one has found something.
_UNWANTED = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ufffd\ufffc|{}\\<>=_^#*•◦▪■□●→←↑↓⇒∈∑∫√≡∀∃\ue000-\uf8ff]|"
    r"://|@\w|\.(?:com|org|net|gov|edu)\b|\'\'\'|``|"
    r"[\u0370-\u03ff\u0400-\u1cff\u3040-\ud7ff]{3,}"  # a run of another script
)
_UNWANTED_NAME = re.compile(r"www\.|\bISBN\b|\bdoi:")
_UNWANTED_BEGINNING = re.compile(r"\W*(?:CHAPTER|FIG)|[A-Z]{3,}\. [A-Z]")
# What removed markup leaves behind: marks, and words that miss a number between them.
_HOLE = re.compile(r"\s[,;:)\]](?=\s|$)|\s\.(?=\s*$)|[(\[]\s|[(\[][,;.)\]]|,,|,\.|;\.|\(;")
_MISSING_NUMBER = re.compile(
    r"\b(?:area|height|length|elevation|altitude|distance|radius|diameter|speed|weight|depth|width|temperature|total)"
    r" (?:of|is|was) (?:and|or|above|per|from|in|with) |"
    r"\b(?:about|approximately) (?:and|or|per|north|south|east|west) |"
    r"\b(?:over|about|around|approximately|nearly|roughly) of |"
    r"\b(?:approximately|roughly) (?:long|wide|high|deep|tall|away)\b|"
    r"\b(?:route|road|highway|trail|bridge|line|is|was|are|be) in (?:length|height|diameter|area)\b"
)
_MISSING_NUMBER_HINT = re.compile(
    r" (?:(?:of|is|was) (?:and|or|above|per|from|in|with) |in (?:length|height|diameter|area))"
)
_ABOUT_HINT = re.compile(
    r"(?:about|approximately|around|nearly|over|roughly)"
    r" (?:and|or|per|north|south|east|west|of|long|wide|high|deep|tall|away)"
)


def is_unwanted(sentence: str) -> bool:
    """Whether a sentence has markup, an address or another script in it."""
    return bool(
        _UNWANTED.search(sentence)
        or (("www." in sentence or "ISBN" in sentence or "doi:" in sentence) and _UNWANTED_NAME.search(sentence))
        or _UNWANTED_BEGINNING.match(sentence)
    )


def has_hole(sentence: str) -> bool:
    """Whether something is missing in a sentence, as removed templates and notes leave it."""
    return bool(
        _HOLE.search(sentence)
        or (
            (_MISSING_NUMBER_HINT.search(sentence) or _ABOUT_HINT.search(sentence)) and _MISSING_NUMBER.search(sentence)
        )
    )


_CLOSED = re.compile(r"""[.!?…]["'”’»)\]]{0,3}$""")
_CUT = re.compile(r"\b(?:Sens?|Reps?|Gov|Gen|Col|Capt|Lt|Mrs?|Ms|Dr|Prof|St|Rev|Hon|No|vs|cf)\.$")
_EDGES = "\"'“”‘’«»()[].,;:!?…-–—"
REASONS = ("length", "no end", "beginning", "characters", "hole", "letters", "brackets", "capitals", "unknown words")


def judge(sentence: str) -> tuple[str, int, int, int]:
    """(reason to reject it or "", words, lowercase words, lowercase words outside the vocabulary)."""
    words = sentence.split(" ")
    count = len(words)
    if not 3 <= count <= 120 or len(sentence) > 9 * count + 20:
        return "length", count, 0, 0
    if not _CLOSED.search(sentence) or _CUT.search(sentence[-8:]):
        return "no end", count, 0, 0
    first = sentence.lstrip("\"'“‘’«([")[:1]
    if not (first.isupper() or first.isdigit() or first in {"$", "£", "€"}):
        return "beginning", count, 0, 0
    if is_unwanted(sentence):
        return "characters", count, 0, 0
    if has_hole(sentence):
        return "hole", count, 0, 0
    size = len(sentence)
    letters = sum(map(str.isalpha, sentence))
    if letters + count - 1 < 0.75 * size - 2:
        return "letters", count, 0, 0
    if sentence.count("(") != sentence.count(")") or sentence.count("[") != sentence.count("]"):
        return "brackets", count, 0, 0
    lower = [word for word in [word.strip(_EDGES) for word in words] if word.islower() and word.isalpha()]
    unknown = len(lower) - sum(map(KNOWN.__contains__, lower))
    if count > 5 and len(lower) * 6 < count:
        return "capitals", count, 0, 0
    if unknown * 3 > len(lower) > 2:
        return "unknown words", count, 0, 0
    return "", count, len(lower), unknown


_NO_LETTERS = bytes(set(range(128)) - set(b"abcdefghijklmnopqrstuvwxyz0123456789"))


def letters_of(sentence: str) -> bytes:
    """What two sentences are compared by: letters a to z and digits, in lower case."""
    return sentence.lower().encode("ascii", "ignore").translate(None, _NO_LETTERS)


# ---- what must stay out ----------------------------------------------------------------------------------------------

END = 40  # letters by which two versions of a long sentence are recognised, at its beginning or at its end


class Blocked:
    """Sentences that no training text may hold, by the set that they come from.

    A sentence is blocked if it has more than three words and all its letters are those of a sentence of a set, or if it
    has more than eight words and its first or its last forty letters are those of a longer sentence of a set.
    """

    def __init__(self) -> None:
        self.whole: dict[int, str] = {}
        self.ends: dict[bytes, str] = {}
        self.titles: dict[bytes, str] = {}
        self.sizes: collections.Counter[str] = collections.Counter()

    def add(self, text: str, name: str) -> None:
        """Block a text, and each of its sentences."""
        text = normalise(re.sub(r"-(?:LRB|RRB|LSB|RSB|LCB|RCB)-", " ", text))
        for sentence in {text, *split_sentences(text)}:
            if sentence.count(" ") >= 3:
                letters = letters_of(sentence)
                self.whole.setdefault(number_of(letters), name)
                self.sizes[name] += 1
                if sentence.count(" ") >= 8 and len(letters) > END + 8:
                    self.ends.setdefault(letters[:END], name)
                    self.ends.setdefault(letters[-END:], name)

    def find(self, letters: bytes, number: int, words: int) -> str | None:
        """The set that blocks a sentence."""
        if words < 4:
            return None
        name = self.whole.get(number)
        if name is None and words > 8:
            name = self.ends.get(letters[:END]) or self.ends.get(letters[-END:])
        return name


def open_text(path: Path) -> str:
    """Text of a file that may be compressed with gzip."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode("utf-8", "replace")


def task_sentences(path: Path) -> Iterator[str]:
    """The texts of a file of a task set, by the format that its name tells."""
    name = path.name.removesuffix(".gz")
    if name.endswith((".md", ".books", ".key.txt", ".gold.txt", "LICENSE.txt", "index.sense")):
        return
    text = open_text(path)
    if name.endswith(".json"):
        for entry in json.loads(text)["data"]:
            for paragraph in entry["paragraphs"]:
                yield paragraph["context"]
                yield from (question["question"] for question in paragraph["qas"])
    elif name.endswith(".jsonl"):
        for record in map(json.loads, filter(None, text.split("\n"))):
            yield from (value for key, value in record.items() if key.startswith("sentence"))
    elif name.endswith(".xml"):
        for sentence in re.findall(r"<sentence\b.*?</sentence>", text, re.S):
            yield " ".join(map(html.unescape, re.findall(r"<(?:wf|instance)\b[^>]*>(.*?)</", sentence)))
    elif "sst5" in path.parts:
        for tree in text.split("\n"):
            yield " ".join(re.findall(r"\(\d ([^()]+)\)", tree))
    elif name.endswith((".conllu", "conll", ".bio")) or path.parent.name in ("chunking", "nested"):
        column = 3 if name.endswith("gold_conll") else 1 if name.endswith(".conllu") else 0
        for block in re.split(r"\n[ \t]*\n", text):
            rows = [
                re.split(r"[\t ]+", row) for row in block.split("\n") if row and not row.startswith(("#", "-DOCSTART-"))
            ]
            yield " ".join(row[column] for row in rows if len(row) > column)
            yield from re.findall(r"^# text = (.*)$", block, re.M)
    else:  # tables: every column that is a text
        for row in text.split("\n"):
            yield from (re.sub(r"</?b>", "", cell) for cell in row.split("\t") if cell.count(" ") >= 3)


def block_tasks(blocked: Blocked, folder: Path) -> None:
    """Block every text of every file under `folder`, by the folder that it is in."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = "/".join(path.relative_to(folder).parts[:-1][:2])
        for text in task_sentences(path):
            blocked.add(text, "task " + name)


def block_litbank_titles(blocked: Blocked, folder: Path) -> None:
    """Titles and Gutenberg numbers of LitBank's books, as its lists of books spell them."""
    for path in sorted(folder.rglob("*.books")):
        for line in path.read_text().split():
            number, _, title = line.removesuffix("_brat").partition("_")
            blocked.titles[letters_of(title)] = "LitBank"
            blocked.titles[b"#" + number.encode()] = "LitBank"


WIKITEXT = ("pytorch/examples", "77f55b912142", "word_language_model/data/wikitext-2")


def block_wikitext(blocked: Blocked, clones: Path) -> bool:
    """Titles and sentences of WikiText's articles, if the clone that has them is there."""
    directory = git_directory(clones, WIKITEXT[0])
    if directory is None:
        return False
    for path, text in read_files(directory, list_files(directory, WIKITEXT[1], [WIKITEXT[2]])):
        if path.endswith(".txt"):
            for line in text.split("\n"):
                heading = re.fullmatch(r" = ([^=].*[^=]) = ", line)
                if heading:
                    blocked.titles.setdefault(letters_of(re.sub(r" @(.)@ ", r"\1", heading[1])), "WikiText")
                for sentence in re.split(r"(?<= [.!?]) ", line):
                    if "<unk>" not in sentence:
                        blocked.add(re.sub(r" @(.)@ ", r"\1", sentence), "WikiText")
    return True


def block_litbank_books(blocked: Blocked, clones: Path) -> int:
    """Every longer sentence of the LitBank books that the Gutenberg clone has; returns how many books it found."""
    source = next(source for source in SOURCES if source.name == "gutenberg")
    directory, found = git_directory(clones, source.repository), 0
    if directory is not None:
        files = list_files(directory, source.commit, source.paths)
        files = [file for file in files if litbank_title(blocked, re.sub(r"^.*/|\.txt$", "", file[0]))]
        for path, text in read_files(directory, files):
            for work in source.reader(path, text):
                found += 1
                for document in work.documents:
                    for sentence in (s for p in document for s in split_sentences(normalise(p))):
                        if sentence.count(" ") >= 8:
                            blocked.whole.setdefault(number_of(letters_of(sentence)), "LitBank")
                            blocked.sizes["LitBank"] += 1
    return found


def litbank_title(blocked: Blocked, title: str) -> bool:
    """Whether a book is one of LitBank's, by its number or its title, with or without a subtitle."""
    title, _, number = title.partition(" #")
    names = [
        letters_of(title),
        *(letters_of(part) for part in re.split(r"[:;]|, or\b", title)[:1]),
        b"#" + number.encode(),
    ]
    return any(blocked.titles.get(name) == "LitBank" for name in names)


# ---- one source ------------------------------------------------------------------------------------------------------


class Sentence(NamedTuple):
    """A sentence with what decides whether it is kept: its 64-bit number and the set that blocks it."""

    text: str
    words: int
    number: int
    block: str | None


class Corpus:
    """The sentences that have been kept so far, and the rules that a document must pass."""

    longest_free = 8  # sentences of more words occur once
    most_repeats = 20  # of a sentence of 5 to 8 words

    def __init__(self, blocked: Blocked) -> None:
        self.blocked = blocked
        self.seen: set[int] = set()
        self.short: dict[int, int] = {}

    def clean(self, document: Iterable[str], source: Source, counts: collections.Counter[str]) -> list[Sentence]:
        """The good sentences of a document; none if the document is not English prose."""
        kept, lower, missed, holes, all_words, kept_words = [], 0, 0, 0, 0, 0
        for paragraph in document:
            for text in split_sentences(normalise(paragraph)):
                reason, words, some, unknowns = judge(text)
                all_words += words
                if reason:
                    counts[f"words, {reason}"] += words
                    holes += reason == "hole"
                    continue
                kept_words += words
                lower += some
                missed += unknowns
                letters = letters_of(text)
                number = number_of(letters)
                kept.append(Sentence(text, words, number, self.blocked.find(letters, number, words)))
        counts["words read"] += all_words
        counts["documents read"] += 1
        if missed > source.unknown * lower or kept_words * 3 < all_words or holes > source.holes * len(kept):
            counts["words, document is not English prose"] += kept_words
            return []
        return kept

    def admit(self, work: Work, source: Source, counts: collections.Counter[str]) -> list[list[str]]:
        """The documents of a work that may be used, as lists of sentences."""
        documents = [self.clean(document, source, counts) for document in work.documents]
        size = sum(sentence.words for document in documents for sentence in document)
        counts["words, clean"] += size
        if source.kind == "fiction" and litbank_title(self.blocked, work.title):
            counts["words, LitBank book"] += size
            return []
        if source.kind == "encyclopedia" and self.blocked.titles.get(letters_of(work.title)) == "WikiText":
            counts["words, WikiText article"] += size
            return []
        hits = collections.Counter(s.block for document in documents for s in document if s.block and s.words > 8)
        long = sum(s.words > 8 for document in documents for s in document)
        if sum(n for name, n in hits.items() if "LitBank" in name or "litbank" in name) >= max(3, min(25, 0.02 * long)):
            counts["words, LitBank book"] += size
            return []
        if hits["heldout-books"] > max(2, 0.02 * long):
            counts["words, held-out document"] += size
            return []
        return list(filter(None, (self.admit_document(document, source, counts) for document in documents)))

    def admit_document(self, document: list[Sentence], source: Source, counts: collections.Counter[str]) -> list[str]:
        """The sentences of a document that may be used; none if it must stay out or is a copy."""
        long = [s for s in document if s.words > self.longest_free]
        size = sum(s.words for s in document)
        hits = collections.Counter(s.block for s in long if s.block)
        if hits["WikiText"] >= max(2, 0.03 * len(long)):
            counts["words, WikiText article"] += size
            return []
        if hits["heldout-wiki"] + hits["heldout-books"] >= max(2, 0.05 * len(long)):
            counts["words, held-out document"] += size
            return []
        if len(long) > 1 and sum(s.number in self.seen for s in long) >= source.overlap * len(long):
            counts["words, copy of a document"] += size
            return []
        kept = []
        numbers = set()
        for s in document:
            if s.block:
                counts["words, held-out or task sentence"] += s.words
                counts[f"sentences, {s.block}"] += 1
            elif (s.words > self.longest_free and s.number in numbers) or self.is_repeated(s):
                counts["words, repeated sentence"] += s.words
            else:
                kept.append(s)
                numbers.add(s.number)
        if len(kept) < source.fewest:
            counts["words, document too short"] += sum(s.words for s in kept)
            return []
        for s in kept:
            self.remember(s.number, s.words)
        counts["words"] += sum(s.words for s in kept)
        counts["sentences"] += len(kept)
        counts["documents"] += 1
        return [s.text for s in kept]

    def is_repeated(self, sentence: Sentence) -> bool:
        """Whether a sentence has occurred as often as it may."""
        if sentence.words > self.longest_free:
            return sentence.number in self.seen
        return self.short.get(sentence.number, 0) >= self.most_repeats

    def remember(self, number: int, words: int) -> None:
        """Count a sentence that has been kept."""
        if words > self.longest_free:
            self.seen.add(number)
        elif words >= 5:
            self.short[number] = self.short.get(number, 0) + 1

    def remember_file(self, path: Path) -> None:
        """Know the sentences of a finished source again."""
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                sentence = line.rstrip("\n")
                if sentence:
                    self.remember(number_of(letters_of(sentence)), sentence.count(" ") + 1)


class Output:
    """The text of a source while it is written; it gets its name when it is finished."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.part = folder / f"{name}.part"
        self.file = lzma.open(self.part, "wt", encoding="utf-8", newline="\n", preset=1)  # noqa: SIM115
        self.random, self.lines, self.sample = random.Random(13), 0, [""] * 20

    def write(self, sentences: list[str]) -> None:
        self.file.write("\n".join(sentences) + "\n\n")
        for sentence in sentences:  # reservoir sampling
            place = self.lines if self.lines < len(self.sample) else int(self.random.random() * (self.lines + 1))
            if place < len(self.sample):
                self.sample[place] = sentence
            self.lines += 1

    def finish(self, record: dict[str, object]) -> None:
        self.file.close()
        samples = self.folder / "samples"
        samples.mkdir(exist_ok=True)
        (samples / f"{self.name}.txt").write_text("\n".join(filter(None, self.sample)) + "\n", encoding="utf-8")
        self.part.rename(self.folder / f"{self.name}.txt.xz")
        (self.folder / f"{self.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def make_source(source: Source, clones: Path, corpus: Corpus, out: Path) -> bool:
    """Write the text of one source; False if it has no clone."""
    found = files_of(source, clones)
    if found is None:
        return False
    directory, files = found
    if source.newest:
        files = newest_versions(files, source.newest)
    counts: collections.Counter[str] = collections.Counter()
    authors: collections.Counter[str] = collections.Counter()
    progress, output = Progress(source.name), Output(out, source.name)
    for path, text in read_files(directory, shuffled(files)):
        counts["files"] += 1
        for work in source.reader(path, text):
            if source.author_cap and authors[work.author] >= source.author_cap:
                continue
            before = counts["words"]
            for document in corpus.admit(work, source, counts):
                output.write(document)
            authors[work.author] += counts["words"] - before
        progress.show(counts)
        if counts["words"] >= source.cap:
            break
    progress.show(counts, end=True)
    output.finish({"repository": source.repository, "commit": source.commit, "paths": source.paths, "kind": source.kind,
                   "licence": source.licence, "files in all": len(files), **counts})  # fmt: skip
    return True


def make_base(path: Path, name: str, corpus: Corpus, out: Path) -> None:
    """The text of the first edition, as it is, without the sentences that must stay out."""
    counts: collections.Counter[str] = collections.Counter()
    progress, output = Progress(name), Output(out, name)
    counts["files"] = 1

    def flush(document: list[str]) -> None:
        kept = []
        counts["documents read"] += 1
        for sentence in document:
            words = sentence.count(" ") + 1
            counts["words read"] += words
            letters = letters_of(sentence)
            number = number_of(letters)
            block = corpus.blocked.find(letters, number, words)
            if block:
                counts["words, held-out or task sentence"] += words
                counts[f"sentences, {block}"] += 1
            else:
                kept.append(sentence)
                corpus.remember(number, words)
                counts["words"] += words
        if kept:
            output.write(kept)
            counts["sentences"] += len(kept)
            counts["documents"] += 1
        progress.show(counts)

    document: list[str] = []
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line != "\n":
                document.append(line.rstrip("\n"))
            elif document:
                flush(document)
                document = []
    if document:
        flush(document)
    counts["words, clean"] = counts["words read"]
    progress.show(counts, end=True)
    output.finish({"repository": "pretraining text", "commit": "", "paths": [path.name], "kind": KIND_OF_BASE,
                   "licence": LICENCE_OF_BASE, **counts})  # fmt: skip


# ---- the table -------------------------------------------------------------------------------------------------------

_STEPS = [
    ("copies of documents", ("copy of a document",)),
    ("repeated sentences", ("repeated sentence",)),
    (
        "held-out, task, WikiText, LitBank",
        ("held-out or task sentence", "held-out document", "WikiText article", "LitBank book"),
    ),
    ("documents too short", ("document too short",)),
]


def table(out: Path, blocked: Blocked) -> str:
    """TABLE.md from the counts of the finished sources."""
    records = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))}
    names = [name for name in records if name.startswith("base-")] + [s.name for s in SOURCES if s.name in records]
    counts = {name: collections.Counter(records[name]) for name in names}
    counts["**all**"] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    for name in names:
        counts["**all**"].update({key: value for key, value in records[name].items() if isinstance(value, int)})
        kinds[records[name]["kind"]] += counts[name]["words"]
    kind = {name: records[name]["kind"].split(" (")[0] for name in names}

    lines = ["# Training text of the English model, second edition", "", "Words are runs of characters between spaces."]
    steps = [f"- {step}" for step, _ in _STEPS]
    lines += head("Millions of words, step by step", "source", "kind", "read", "after cleaning", *steps, "kept",
                  "sentences", "documents", left=2)  # fmt: skip
    for name, count in counts.items():
        taken = [million(sum(count[f"words, {part}"] for part in parts)) for _, parts in _STEPS]
        read, clean, kept = (million(count[key]) for key in ("words read", "words, clean", "words"))
        lines.append(row(name, kind.get(name, ""), read, clean, *taken, kept, count["sentences"], count["documents"]))

    lines += head("By kind", "kind", "words, millions", "share", left=1)
    for name, words in kinds.most_common():
        lines.append(row(name, million(words), f"{words / max(1, kinds.total()):.1%}"))

    lines += head("Where it comes from", "source", "repository on github.com", "commit", "paths", "licence of the text",
                  "files read", "files in all", left=5)  # fmt: skip
    for name in names:
        record = records[name]
        paths = ", ".join(f"`{path}`" for path in record["paths"])
        files = record["files"], record.get("files in all", 1)
        lines.append(row(name, record["repository"], record["commit"], paths, record["licence"], *files))

    reasons = (*REASONS, "document is not English prose")
    lines += head("What cleaning took out, millions of words", "source", *reasons, left=1)
    for name in [name for name in counts if not name.startswith("base-")]:
        lines.append(row(name, *(million(counts[name][f"words, {reason}"]) for reason in reasons)))

    lines += head("Sentences taken out because a held-out or task set has them", "set", "its sentences",
                  "first edition", "new text", left=1)  # fmt: skip
    for block in sorted(blocked.sizes):
        taken = [counts[name][f"sentences, {block}"] for name in names if name.startswith("base-")]
        everywhere = counts["**all**"][f"sentences, {block}"]
        lines.append(row(block, blocked.sizes[block], sum(taken), everywhere - sum(taken)))
    return "\n".join(lines) + "\n"


# ---- command line ----------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> None:
    """Make what is missing in the output folder, source by source."""
    parser = argparse.ArgumentParser(description="Turn clones of public repositories into training text.")
    parser.add_argument("--clones", type=Path, required=True, help="Folder of the clones, owner+name or owner/name.")
    parser.add_argument(
        "--base", default="", help="Glob pattern of the first edition's .txt.xz files, read before the sources."
    )
    parser.add_argument(
        "--heldout", type=Path, action="append", default=[], help="Held-out text; its sentences are left out."
    )
    parser.add_argument("--tasks", type=Path, help="Folder of task sets; their sentences are left out.")
    parser.add_argument("--vocabulary", type=Path, required=True, help="Words of the model, one per line.")
    parser.add_argument("--out", type=Path, required=True, help="Folder of the results.")
    parser.add_argument(
        "--only", nargs="*", default=[], help="Names of sources to make, in the order of the table; all if none."
    )
    options = parser.parse_args(arguments)
    unknown = set(options.only) - {source.name for source in SOURCES}
    if unknown:
        parser.error(f"no such source: {', '.join(sorted(unknown))}")

    options.out.mkdir(parents=True, exist_ok=True)
    KNOWN.update(word.lower() for word in options.vocabulary.read_text(encoding="utf-8").split("\n"))
    blocked = Blocked()
    for path in options.heldout:
        for line in path.read_text(encoding="utf-8").split("\n"):
            blocked.add(line, path.stem)
    if options.tasks:
        block_tasks(blocked, options.tasks)
        block_litbank_titles(blocked, options.tasks)
    if not block_wikitext(blocked, options.clones):
        print(f"no clone of {WIKITEXT[0]}: WikiText's articles are not left out", file=sys.stderr)
    books = block_litbank_books(blocked, options.clones)
    print(f"blocked: {dict(blocked.sizes)}; LitBank books found: {books}", file=sys.stderr, flush=True)

    corpus = Corpus(blocked)
    bases = {f"base-{number}": Path(name) for number, name in enumerate(sorted(glob.glob(options.base)))}
    wanted = {source.name: source for source in SOURCES if not options.only or source.name in options.only}
    missing = [name for name in (*bases, *wanted) if not (options.out / f"{name}.json").exists()]
    for name in (*bases, *(source.name for source in SOURCES)):
        if not missing:
            break
        if (options.out / f"{name}.json").exists():
            corpus.remember_file(options.out / f"{name}.txt.xz")
        elif name in bases:
            make_base(bases[name], name, corpus, options.out)
        elif name in wanted:
            make_source(wanted[name], options.clones, corpus, options.out)
        if name in missing:
            missing.remove(name)
    (options.out / "TABLE.md").write_text(table(options.out, blocked), encoding="utf-8")


if __name__ == "__main__":
    main()
