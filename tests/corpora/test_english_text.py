"""Contracts of english_text.py, on made-up text."""

from __future__ import annotations

import collections
import dataclasses
import gzip
import json
import lzma
import subprocess
from pathlib import Path

import english_text as text
import pytest

WORDS = """
a about after again all along and another are at away before book bread bridge brought by came children city
clear cold come country day days door down each early evening every farmers fields fish for found from garden
gave green had harbour he her high hill his home horses house in it its kept laid light long made many market
men morning mother near new night no of old on one opened our over people rain river road sailed sat sea she
ships shop small so soft some stood stone stories street summer sun that the their them there they this three
through to told town trees under until up walked wall was water we went were when where which white wide wind
window winter with women wrote years young
"""


@pytest.fixture(autouse=True)
def _vocabulary():
    text.KNOWN.clear()
    text.KNOWN.update(WORDS.split())
    yield
    text.KNOWN.clear()


def source(**changes: object) -> text.Source:
    row = text.Source(
        "made-up", "owner/name", "HEAD", (".",), r"\.txt$", "news", "CC0", text.read_press_release, 1000, fewest=1
    )
    return dataclasses.replace(row, **changes)


def admit(corpus: text.Corpus, *documents: list[str], **changes: object) -> list[list[str]]:
    return corpus.admit(text.Work("Title", list(documents)), source(**changes), collections.Counter())


LONG = [
    "The ships sailed from the harbour early in the morning and came home again at night.",
    "Three old women sat by the stone bridge and told stories to the young children there.",
    "After the rain the farmers went up the hill to see the green fields near the river.",
    "In winter the wind from the sea was cold and the people kept to the house all day.",
]


# ---- sentences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("He went. She came.", ["He went.", "She came."]),
        ("Mr. A. Roe met us. (He did!) So", ["Mr. A. Roe met us.", "(He did!)", "So"]),
        ('"Stop!" she said. "I am here." He stopped.', ['"Stop!" she said.', '"I am here."', "He stopped."]),
        ("The U.S. Army came in Jan. 1900 to St. Louis.", ["The U.S. Army came in Jan. 1900 to St. Louis."]),
        ("It was so did I. Then he left.", ["It was so did I.", "Then he left."]),
        ('"No. I love art. It is so."', ['"No.', "I love art.", 'It is so."']),
        ("It is No. 5 of them. Mr. Roe has it.", ["It is No. 5 of them.", "Mr. Roe has it."]),
        ("  ", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(paragraph, sentences):
    assert text.split_sentences(paragraph) == sentences


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        (LONG[0], ""),
        ("“Yes,” he said.", ""),
        ("Too short.", "length"),
        ("The ships sailed from the harbour", "no end"),
        ("The ships sailed from the harbour with Mr.", "no end"),
        ("and the ships sailed from the harbour.", "beginning"),
        ("The ships sailed to www.harbour.org in the morning.", "characters"),
        ("The ships sailed from the harbour {{in the morning.", "characters"),
        ("The bridge has a height of and was made of stone.", "hole"),
        ("The bridge , was made of stone.", "hole"),
        ("The road went through over of green fields.", "hole"),
        ("The ships 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 13.", "letters"),
        ("The ships (in the harbour sailed in the morning.", "brackets"),
        ("The Old Harbour Of New York City Was Opened.", "capitals"),
        ("Die Schiffe fuhren früh am morgen aus dem hafen.", "unknown words"),
    ],
)
def test_a_line_that_is_no_sentence_is_rejected_with_the_reason(sentence, reason):
    assert text.judge(sentence)[0] == reason


def test_paragraphs_are_nfc_with_single_plain_spaces():
    assert text.normalise("cafe\u0301\u00a0 au\u200b\n lait\u00ad ") == "café au lait"


def test_case_space_and_punctuation_do_not_tell_sentences_apart():
    assert text.letters_of("Don't   stop, HE said!") == text.letters_of("do n't stop , he said .")


# ---- readers ---------------------------------------------------------------------------------------------------------


def test_a_numbered_article_loses_its_head_its_box_and_its_note_marks():
    page = f"12,\nTown,\n{LONG[0]}[1][citation needed]\nShort line\nInformation box\n{{'a': 'b'}}\n"
    assert list(text.read_numbered_article("dump/Town.txt", page)) == [text.Work("Town", [[LONG[0]]])]
    assert not list(text.read_numbered_article("dump/Town(disambiguation).txt", page))


def test_articles_in_doc_elements_lose_the_repeated_title():
    page = f'<doc id="1" url="u" title="A &amp; B">\nA &amp; B\n\n{LONG[1]}\n</doc>\n'
    assert list(text.read_doc_articles("wiki_00", page)) == [text.Work("A & B", [[LONG[1]]])]


def test_json_articles_lose_their_headings():
    page = json.dumps({"title": "T", "text": f"{LONG[1]}\nHistory.\n{LONG[2]}"}) + "\n"
    assert list(text.read_json_articles("wiki_00", page)) == [text.Work("T", [[LONG[1], LONG[2]]])]


def test_a_sectioned_article_keeps_its_content_up_to_the_references():
    page = f"####### LINKS #######\n\n['x']\n\n####### CONTENT #######\n{LONG[0]}{LONG[1]}\n== See also ==\n{LONG[2]}\n"
    (work,) = text.read_sectioned_article("articles/T.txt", page)
    assert work.documents == [[f"{LONG[0]} {LONG[1]}"]]


def test_a_debate_is_unwrapped_and_its_paragraphs_lose_their_numbers():
    page = "1.\tWe sailed from the har-\nbour [A/12] and came\nhome.\n\n2. We told it in post-\nwar days.\n\n17\n"
    (work,) = text.read_debate("x.txt", page)
    assert [" ".join(paragraph.split()) for paragraph in work.documents[0]] == [
        "We sailed from the harbour and came home.",
        "We told it in post-war days.",
    ]


def test_a_press_release_without_punctuation_is_left_out():
    assert not list(text.read_press_release("x", "Today  the senator  said  that  he  will  vote  for  the bill"))
    (work,) = text.read_press_release("x", f"TITLE\nWASHINGTON, D.C. - {LONG[0]}\n")
    assert work.documents == [[LONG[0]]]


def test_a_tei_book_keeps_the_paragraphs_of_its_body():
    page = (
        "<TEI><teiHeader><title>T</title><author>A</author></teiHeader><text><front><p>Front.</p></front><body>"
        '<div type="chapter"><head>I</head><p>One<note n="1"><p>No.</p></note> day<pb n="2"/> it\n rained.</p>'
        '<lg><l>Verse</l></lg></div><div type="chapter"><p>Two &amp; three.</p></div></body></text></TEI>'
    )
    assert list(text.read_tei("x.xml", page)) == [text.Work("T", [["One day it rained."], ["Two & three."]], "A")]


def test_a_volume_of_documents_is_read_document_by_document():
    page = (
        '<div n="1" type="document"><head>H</head><p>We agree.<note>N</note></p></div>'
        '<div type="document"><p>1. They do [illegible].</p></div>'
    )
    works = list(text.read_diplomatic_tei("x.xml", page))
    assert [work.documents for work in works] == [[["We agree."]], [["They do \ufffd."]]]


def test_a_journal_article_loses_citations_and_bracketed_numbers():
    page = (
        "<article><front><abstract><p>Fish swim.</p></abstract></front><body><sec><title>T</title>"
        '<p>They sleep (<xref ref-type="bibr" rid="b1">Roe, 2001</xref>; <xref ref-type="bibr" rid="b2">2003</xref>) '
        'at night (p&lt;0.01, n = 3), as <xref ref-type="bibr" rid="b1">Roe, 2001</xref> saw.</p>'
        '<p>They wake (<xref ref-type="fig">Figure 1</xref>).</p>'
        "<p>So <inline-formula><x>y</x></inline-formula> is.</p>"
        "<table-wrap><p>1</p></table-wrap></sec></body><sub-article><p>No.</p></sub-article></article>"
    )
    (work,) = text.read_jats("x.xml", page)
    assert work.documents[0] == ["Fish swim."]
    assert work.documents[1][1:] == ["They wake.", "So \ufffd is."]
    assert work.documents[1][0].startswith("They sleep at night")
    assert "Roe" not in work.documents[1][0]


def test_a_gutenberg_book_loses_header_licence_verse_and_headings():
    page = (
        "Title: T\n[EBook #12]\n*** START OF THIS PROJECT GUTENBERG EBOOK T ***\n\n"
        "Produced by Somebody\n\nCHAPTER I\n\n"
        "The ships _sailed_ from\nthe harbour.[1]\n\n"
        "    A line of verse\n    Another line\n\nCHAPTER II\n\n"
        + "The rain came down\nagain that day.\n\n" * 9
        + "*** END OF THIS PROJECT GUTENBERG EBOOK T ***\nlicence\n"
    )
    (work,) = text.read_gutenberg("Roe, A./T.txt", page)
    assert (work.title, work.author) == ("T #12", "Roe, A.")
    assert [len(document) for document in work.documents] == [1, 9]
    assert work.documents[0] == ["The ships sailed from the harbour."]


def test_markdown_loses_code_tables_headings_and_link_targets():
    page = (
        "---\na: b\n---\n# Head\nSee the *old* [town](u) and `name`.\n\n```\ncode\n```\n| a | b |\n\n"
        "- An item here\n> [!NOTE]\n> A note.\n\nThe code `a = 1` and `name` here.\n"
    )
    assert text.markdown_paragraphs(page) == [
        "See the old town and name.",
        "An item here",
        "A note.",
        "The code \ufffd and name here.",
    ]


def test_a_podcast_loses_names_times_and_noises():
    (work,) = text.read_podcast(
        "x.md", "**Ann Roe:** \\[04:13\\] We came home. \\[laughter\\] So it was.\n\n**Bo:** Good day.\n"
    )
    assert [" ".join(paragraph.split()) for paragraph in work.documents[0]] == ["We came home. So it was.", "Good day."]


def test_a_pep_is_read_only_if_it_is_in_the_public_domain():
    page = "PEP: 1\nTitle: T\n\nHead\n====\n\nThis is the text of ``name`` and :pep:`8`.\n\n    code here\n\n"
    assert not list(text.read_restructured("x", page))
    (work,) = text.read_restructured("x", page + "This document is placed in the public domain.\n")
    assert work.documents[0][0] == "This is the text of name and PEP 8."


def test_dialogues_and_speeches_are_read_turn_by_turn():
    page = json.dumps([{"turns": [{"utterance": "Hello there."}, {"utterance": "Good day."}]}])
    assert [work.documents for work in text.read_dialogues("x", page)] == [[["Hello there.", "Good day."]]]
    (work,) = text.read_presidential("x", "President: A\n\nPRESIDENT ROE: My friends. [Applause]\n\nThank you.\n")
    assert work.documents == [["My friends.", "Thank you."]]


def test_only_the_newest_version_is_read():
    files = [("e-1-v1.xml", "a"), ("e-1-v10.xml", "b"), ("e-1-v9.xml", "c"), ("e-2-v1.xml", "d"), ("x", "e")]
    assert text.newest_versions(files, r"e-(\d+)-v(\d+)") == [("e-1-v10.xml", "b"), ("e-2-v1.xml", "d")]


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_a_sentence_of_more_than_eight_words_is_kept_once():
    corpus = text.Corpus(text.Blocked())
    assert admit(corpus, LONG[:3]) == [LONG[:3]]
    assert admit(corpus, [LONG[0].upper().capitalize(), "We came home again.", *LONG[3:]], overlap=0.9) == [
        ["We came home again.", LONG[3]]
    ]


def test_a_document_mostly_seen_before_is_dropped_whole():
    corpus = text.Corpus(text.Blocked())
    admit(corpus, LONG[:2])
    assert admit(corpus, LONG[:3]) == []
    assert admit(corpus, LONG[2:]) == [LONG[2:]]


def test_a_blocked_sentence_is_left_out_in_any_spelling_and_with_another_end():
    blocked = text.Blocked()
    blocked.add("Three old women sat by the stone bridge , and told stories to the young children there !", "task x")
    corpus = text.Corpus(blocked)
    other_end = "Three old women sat by the stone bridge and told stories to all the people of the town."
    counts: collections.Counter[str] = collections.Counter()
    kept = corpus.admit(text.Work("T", [[*LONG[:3], other_end]]), source(), counts)
    assert kept == [[LONG[0], LONG[2]]]
    assert counts["sentences, task x"] == 2


def test_three_words_are_never_blocked():
    blocked = text.Blocked()
    blocked.add("We went home.", "task x")
    assert admit(text.Corpus(blocked), ["We went home."]) == [["We went home."]]


def test_a_litbank_book_is_dropped_by_number_by_title_and_by_its_sentences(tmp_path):
    (tmp_path / "test.books").write_text("12_the_stone_bridge_brat\n")
    blocked = text.Blocked()
    text.block_litbank_titles(blocked, tmp_path)
    for sentence in LONG[:3]:
        blocked.add(sentence, "task coref/litbank")
    corpus, counts = text.Corpus(blocked), collections.Counter()
    fiction = source(kind="fiction")
    for title, document in [("Other #12", LONG[3:]), ("The Stone Bridge: A Tale", LONG[3:]), ("Other", LONG)]:
        assert corpus.admit(text.Work(title, [document]), fiction, counts) == []
    assert corpus.admit(text.Work("Other #13", [LONG[3:]]), fiction, counts) == [LONG[3:]]


def test_a_document_that_is_not_english_is_dropped():
    document = ["The fluxor went to the town.", "The grommit came from the garden.", "Some zorgs were in the garden."]
    assert admit(text.Corpus(text.Blocked()), document, unknown=0.1) == []
    assert admit(text.Corpus(text.Blocked()), document, unknown=0.5) == [document]


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        (
            "qa/d.json",
            json.dumps({"data": [{"paragraphs": [{"context": "C.", "qas": [{"question": "Q?"}]}]}]}),
            ["C.", "Q?"],
        ),
        ("nli/d.jsonl", json.dumps({"sentence1": "A.", "sentence2": "B.", "gold_label": "x"}), ["A.", "B."]),
        (
            "wsd/d.data.xml",
            '<sentence id="1">\n<wf lemma="a">A</wf>\n<instance id="2">b</instance>\n</sentence>',
            ["A b"],
        ),
        ("sentiment/sst5/d.txt", "(3 (2 A) (4 (2 b) (2 .)))", ["A b ."]),
        ("pos/d.conllu", "# text = A b.\n1\tA\ta\n2\tb.\tb\n", ["A b.", "A b."]),
        ("srl/d.gold_conll", "x\t0\t0\tA\tDT\nx\t0\t1\tb\tNN\n", ["A b"]),
        ("chunking/d.txt", "A DT O\nb NN O\n", ["A b"]),
        ("sick/d.txt", "1\tA man is here\tA dog is there\t3\n", ["A man is here", "A dog is there"]),
        ("wsd/d.gold.key.txt", "d000 a b c d e", []),
    ],
)
def test_the_texts_of_every_task_format_are_found(tmp_path, name, content, found):
    path = tmp_path / (name + ".gz")
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(content.encode()))
    assert [sentence for sentence in text.task_sentences(path) if sentence] == found


# ---- the whole way ---------------------------------------------------------------------------------------------------


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    clone = tmp_path / "clones" / "owner+name"
    clone.mkdir(parents=True)
    (clone / "a.txt").write_text("\n".join(LONG[:2]) + "\n")
    (clone / "b.txt").write_bytes(f"{LONG[2]}\n{LONG[3]}\nCaf\xe9.\n".encode("cp1252"))
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    with lzma.open(tmp_path / "train-0.txt.xz", "wt") as file:
        file.write(f"{LONG[0]}\n\n{LONG[3]}\n")
    (tmp_path / "heldout-wiki.txt").write_text(LONG[3] + "\n")
    (tmp_path / "vocabulary.txt").write_text("\n".join(WORDS.split()))
    gutenberg = source(name="gutenberg", repository="owner/missing")
    monkeypatch.setattr(text, "SOURCES", [source(overlap=0.9), gutenberg])
    options = {
        "clones": "clones",
        "base": "train-*.txt.xz",
        "heldout": "heldout-wiki.txt",
        "vocabulary": "vocabulary.txt",
    }
    return [part for name, value in {**options, "out": "out"}.items() for part in (f"--{name}", f"{tmp_path}/{value}")]


def test_sources_become_files_without_held_out_and_repeated_sentences(arguments, tmp_path):
    text.main(arguments)
    out = tmp_path / "out"
    base, new = (lzma.decompress((out / f"{name}.txt.xz").read_bytes()).decode() for name in ("base-0", "made-up"))
    assert base == f"{LONG[0]}\n\n"
    assert sorted(new.strip().split("\n\n")) == sorted([LONG[1], LONG[2]])
    assert json.loads((out / "made-up.json").read_text())["sentences, heldout-wiki"] == 1
    table = (out / "TABLE.md").read_text()
    assert "| made-up | owner/name | HEAD | `.` | CC0 | 2 | 2 |" in table
    assert "| heldout-wiki | 1 | 1 | 1 |" in table
    assert not (out / "gutenberg.json").exists()


def test_a_finished_source_is_kept_and_still_known(arguments, tmp_path):
    text.main(arguments)
    out = tmp_path / "out"
    before = (out / "base-0.txt.xz").stat().st_mtime_ns
    first = (out / "made-up.txt.xz").read_bytes()
    (out / "made-up.json").unlink()
    text.main(arguments)
    assert (out / "base-0.txt.xz").stat().st_mtime_ns == before
    assert (out / "made-up.txt.xz").read_bytes() == first
