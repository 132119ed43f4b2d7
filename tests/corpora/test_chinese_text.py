"""Contracts of chinese_text.py, on made-up text."""

from __future__ import annotations

import collections
import gzip
import subprocess

import chinese_text as text
import pytest

LONG = [
    "这座古老的石桥横跨在清澈的小河上面。",
    "村里的孩子们每天放学以后都到桥边玩耍。",
    "老人坐在树下给他们讲从前的故事和传说。",
]


def admit(corpus, *paragraphs, fewest=1):
    return corpus.admit(paragraphs, fewest, collections.Counter())


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("“数学”（）一词", "“数学”一词"),
        ("张三（，1990年－）是歌手", "张三（1990年－）是歌手"),
        ("李四（英语：；）来了", "李四（英语）来了"),
        ("中 文\u3000之间 ，没有 空格", "中文之间，没有空格"),
        ("在 Linux 上", "在 Linux 上"),
        ("看\u200b不见", "看不见"),
    ],
)
def test_what_removed_markup_leaves_behind_is_repaired(paragraph, expected):
    assert text.normalise(paragraph) == expected


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        (LONG[0], ""),
        ("短。", "length"),
        ("这是一个没有句号的标题", "no end"),
        ("他说：，然后就走了出去。", "hole"),
        ("这里有一个公式 x = 5 的值。", "characters"),
        ("See the documentation of this function 好的好的。", "script"),
        ("这里有一个没有关上的（括号在这里。", "brackets"),
    ],
)
def test_a_sentence_is_kept_or_has_a_reason_against_it(sentence, reason):
    assert text.judge(sentence)[0] == reason


def test_long_sentences_are_kept_once_and_short_documents_are_left_out():
    corpus = text.Corpus(text.Blocked({}))
    assert admit(corpus, "".join(LONG)) == LONG
    assert admit(corpus, "".join(LONG)) == []
    assert admit(corpus, "另外一个完全不同的句子放在这里试一试。", fewest=2) == []


def test_sentences_of_a_set_are_left_out_in_either_script_and_with_other_punctuation():
    forms = text.simplified_forms([("這座橋樑很長，橋下有水。", "这座桥梁很长，桥下有水。")] * 2)
    assert [forms[ord(letter)] for letter in "這橋樑長"] == [*"这桥梁长"]
    blocked = text.Blocked(forms)
    blocked.add("这座桥梁很长,桥下有水.", "tags")
    blocked.add("在一个很远很远的地方有一座山，山上有座庙，庙里有个老和尚。", "senses")
    corpus = text.Corpus(blocked)
    assert admit(corpus, "這座橋樑很長，橋下有水。") == []
    assert admit(corpus, "传说在一个很远很远的地方有一座山，山上有座庙，香火很旺。") == []  # a long run of it
    assert admit(corpus, "在很远的地方有一座山，但是没有人去过那里。") != []


def test_only_single_characters_that_differ_make_a_table():
    assert text.simplified_forms([("完全不同的一句话", "毫無關係的另一件")] * 3) == {}
    assert text.simplified_forms([("體", "体"), ("後來他走了", "后来他走了")]) == {}  # seen once


def test_all_sets_are_read(tmp_path):
    for name, file, content in [
        ("tags", "a.conll", "1\t然而\t_\tADV\n2\t处理了问题\t_\tVERB\n"),
        ("entities", "b.conll", "一0\tO\n节1\tO\n课2\tO\n的0\tO\n时0\tO\n间1\tO\n"),
        ("sentiment", "c.tsv", "label\ttext_a\n1\t这个宾馆比较陈旧\n"),
        ("senses", "d.csv", "这篇杂文,是他的～笔。,手_1,手,副,亲自。\n"),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content, encoding="utf-8")
    blocked = text.Blocked({})
    text.block_sets(blocked, tmp_path)
    assert {"然而处理了问题", "一节课的时间", "这个宾馆比较陈旧", "这篇杂文是他的手笔"} <= set(blocked.whole)


def test_half_width_punctuation():
    assert text.half_width("好，（是）吗？") == "好,(是)吗?"


def test_a_repository_becomes_shuffled_parts_and_held_out_text(tmp_path, monkeypatch):
    clone = tmp_path / "clones" / "owner+name"
    clone.mkdir(parents=True)
    # sentences with no run of characters in common
    letters = [chr(0x4E00 + 20 * n + k) for n in range(300) for k in range(20)]
    for n in range(100):
        lines = ["".join(letters[(3 * n + m) * 20 : (3 * n + m + 1) * 20]) + "。" for m in range(3)]
        (clone / f"{n}.txt").write_text("\n".join(lines), encoding="utf-8")
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *command], check=True)
    source = text.Source("made-up", "owner/name", "HEAD", (".",), r"\.txt$", "prose", "CC0", text.read_lines, 10)
    monkeypatch.setattr(text, "SOURCES", [source])
    monkeypatch.setattr(text, "aligned_paragraphs", lambda clones, most: iter(()))
    out = tmp_path / "out"
    text.main(["--clones", str(tmp_path / "clones"), "--out", str(out), "--parts", "2"])
    parts = [gzip.decompress(path.read_bytes()).decode().split("\n\n")[:-1] for path in sorted(out.glob("*.gz"))]
    heldout = (out / "heldout-prose.txt").read_text(encoding="utf-8").strip().split("\n\n")
    assert len(parts) == 2
    assert sum(map(len, parts)) + len(heldout) == 100
    assert 0 < len(heldout) < 30
    every = [line for document in (*parts[0], *parts[1], *heldout) for line in document.split("\n")]
    assert len(set(every)) == 300
    assert any(line.endswith(".") for line in every)
    assert "| made-up | prose |" in (out / "TABLE.md").read_text(encoding="utf-8")
