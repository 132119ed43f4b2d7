"""The tokenizer "han": Chinese text, and text that is not what it seems."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text import Tokenizer

HAN = Tokenizer("han")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("我去银行取钱。", [*"我去银行取钱。"]),
        ("我去銀行取錢。", [*"我去銀行取錢。"]),  # traditional characters stay
        ("苹果 iPhone6s 卖5,999.50元", ["苹", "果", "iPhone6s", "卖", "5,999.50", "元"]),
        ("don't用H1N1", ["don't", "用", "H1N1"]),
        ("COVID-19的v1.0", ["COVID", "-", "19", "的", "v1.0"]),
        ("ＡＢＣ１２３，真的！", ["ＡＢＣ１２３", "，", "真", "的", "！"]),  # full-width forms stay
        ("好,坏.50%", ["好", ",", "坏", ".", "50", "%"]),
        ("我……走了——", ["我", "…", "…", "走", "了", "—", "—"]),
        ("第一行\n第\u3000二\r\n行", [*"第一行第二行"]),
        ("𠮷野家的𪚥", ["𠮷", "野", "家", "的", "𪚥"]),  # beyond the first plane
        ("カナとかな한글ㄅㄆ", [*"カナとかな한글ㄅㄆ"]),
        ("Москва是हिन्दी", ["Москва", "是", "हिन्दी"]),
        ("〇一二㈱", [*"〇一二㈱"]),
        ("我❤️你👨‍👩‍👧呀", ["我", "❤️", "你", "👨‍👩‍👧", "呀"]),
        ("开👍🏽心🇨🇳a😀b", ["开", "👍🏽", "心", "🇨🇳", "a", "😀", "b"]),
        ("葛\U000e0100城", ["葛\U000e0100", "城"]),  # a variant of a character is one token
        ("cafe\u0301好", ["cafe\u0301", "好"]),
        (" \n\t", []),
    ],
)
def test_han_characters_are_tokens_and_other_words_are_runs(text, tokens):
    assert HAN(text) == tokens


@given(st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=20))
def test_a_text_of_han_characters_has_one_token_per_character(text):
    assert HAN(text) == list(text)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_token_of_several_letters_holds_a_han_character(text):
    for token in HAN(text):
        letters = [letter for letter in token if unicodedata.category(letter)[0] == "L"]
        if any(unicodedata.name(letter, "").startswith("CJK UNIFIED") for letter in letters):
            assert len(letters) == 1


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("你好。我走了！真的？", ["你好。", "我走了！", "真的？"]),
        ("“你好！”他说。", ["“你好！”", "他说。"]),
        ("「好。」『是？』走", ["「好。」", "『是？』", "走"]),
        ("我……我不知道。他走了……\n后来", ["我……我不知道。", "他走了……", "后来"]),
        ("他看了《你好！李焕英》（很好！）。完", ["他看了《你好！李焕英》（很好！）。", "完"]),
        ("真的?!不信.好", ["真的?!", "不信.", "好"]),
        ("标题\n正文没有句号\n\n第二段", ["标题", "正文没有句号", "第二段"]),
        ("价格3.5元，1. 好，见example.com吧", ["价格3.5元，1. 好，见example.com吧"]),
        ("He left. 我走了", ["He left.", "我走了"]),
        ("（没有关上。走", ["（没有关上。", "走"]),
    ],
)
def test_sentences_end_at_chinese_marks(text, sentences):
    assert [text[own[0].start : own[-1].end] for own in HAN.sentences(text)] == sentences


def test_a_word_of_a_token_list_is_read_as_its_characters():
    assert HAN.units("银行") == ["银", "行"]
    assert HAN.units("T恤衫") == ["T", "恤", "衫"]
    assert HAN.units("iPhone") == ["iPhone"]
    assert HAN.units("") == [""]
    assert HAN.units(" ") == [" "]
    assert Tokenizer("treebank").units("银行") == ["银行"]
    assert Tokenizer("characters").units("银行") == ["银行"]


@pytest.mark.parametrize(
    "piece", ["…", "（", "《（", "。”", "ab.）", "👨\u200d", "1.", "'", "（《〈(", "\u0301", "…”", "\n", "a'"]
)
def test_the_time_of_long_hostile_text_grows_with_its_length(piece):
    text = piece * 20_000
    began = time.perf_counter()
    tokens = [token for sentence in HAN.sentences(text) for token in sentence]
    assert time.perf_counter() - began < 10  # a fraction of a second; quadratic time would be minutes
    assert "".join(token.text for token in tokens) == "".join(text.split())
