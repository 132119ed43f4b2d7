"""Senses and word pairs are read as published, and errors are named with their line."""

from collections import Counter

import pytest

from elmokit.datasets import (
    SenseInstance,
    SenseSentence,
    WordInContext,
    WordPair,
    read_scws,
    read_sense_index,
    read_wic,
    read_wsd,
    word_of_sense,
)

XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="x">

<text id="d0"><sentence id="d0.s0">
<wf lemma="the" pos="DET">The</wf>
<instance id="d0.s0.t0" lemma="primary_election" pos="NOUN">primary election</instance>
<wf lemma="&amp;" pos=".">&amp;</wf>
</sentence></text>
</corpus>
"""
INSTANCE = '<instance id="i" lemma="a" pos="NOUN">a</instance>'
SCWS = "\t".join(["1", "bank", "n", "shore", "n", "the <b> banks </b> of", "a <b> shore </b>", "7.5", *"0123456789"])
WIC = "board\tN\t2-1\tRoom and board .\tHe boards\n"


@pytest.mark.parametrize(
    ("reader", "name", "content", "expected"),
    [
        (
            read_scws,
            "a.txt",
            SCWS,
            [
                WordPair(
                    WordInContext("bank", "n", ["the", "banks", "of"], 1),
                    WordInContext("shore", "n", ["a", "shore"], 1),
                    7.5,
                )
            ],
        ),
    ],
)
def test_a_file_is_read_alike_plain_and_gzipped_and_with_a_byte_order_mark(
    check_reads, reader, name, content, expected
):
    check_reads(reader, name, content, expected)


@pytest.mark.parametrize(
    ("reader", "content", "line", "message"),
    [
        (read_scws, SCWS.replace("7.5", "high"), 1, "'high', expected a number"),
        (read_scws, "a\tb\n", 1, "2 columns, expected 18"),
        (read_scws, SCWS.replace("<b> shore </b>", "shore"), 1, "the word 'shore' is not marked once"),
        (read_sense_index, "a%1:00:00:: 1 1 0\na 1 1\n", 2, "expected a sense key"),
        (read_wsd, XML.replace("</wf>", "", 1), 8, "mismatched tag, expected well-formed XML"),
        (read_wsd, XML.replace('lemma="the" ', ""), 5, "<wf> has no attribute lemma"),
        (read_wsd, XML.replace(">The<", "> <"), 5, "<wf> contains no word"),
        (read_wsd, f"<corpus>\n{INSTANCE}</corpus>", 2, "<instance> outside of any <sentence>"),
        (read_wsd, '<!DOCTYPE x [\n<!ENTITY a "aa">]>\n<x/>', 2, "declares the entity 'a'"),
    ],
)
def test_an_error_in_a_file_is_named_with_its_line(check_fails, reader, content, line, message):
    check_fails(reader, content, line, message)


def test_wsd_sentences_hold_the_words_in_question_with_their_keys(write):
    path = write("x.data.xml", XML)
    (without,) = read_wsd(path)
    assert without.instances == [SenseInstance("d0.s0.t0", 1, "primary_election", "NOUN", ())]
    keys = write("x.gold.key.txt", "d0.s0.t0 primary_election%1:04:00:: e%1:04:01::\n")
    instance = SenseInstance("d0.s0.t0", 1, "primary_election", "NOUN", ("primary_election%1:04:00::", "e%1:04:01::"))
    expected = SenseSentence(
        "d0.s0", ["The", "primary election", "&"], ["the", "primary_election", "&"], ["DET", "NOUN", "."], [instance]
    )
    assert read_wsd(path) == read_wsd(write("y.data.xml.gz", XML), keys) == [expected]


def test_a_model_reads_the_words_of_phrases_and_plain_quotation_marks():
    instance = SenseInstance("i", 1, "Primary_Election", "NOUN", ())
    sentence = SenseSentence("s", ["``", "primary election", "''"], [], [], [instance])
    words, offsets = sentence.as_words()
    assert words == ['"', "primary", "election", '"']
    assert words[offsets[instance.index] : offsets[instance.index + 1]] == ["primary", "election"]
    assert offsets == [0, 1, 3, 4]
    assert instance.word == ("primary_election", "NOUN")
    assert SenseSentence("s", [], [], [], []).as_words() == ([], [0])


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("bank%1:17:01::", ("bank", "NOUN")),
        ("fit%5:00:01:ready:00", ("fit", "ADJ")),
        ("take_place%2:30:00::", ("take_place", "VERB")),
        ("well%4:02:00::", ("well", "ADV")),
    ],
)
def test_a_sense_key_names_its_word(key, word):
    assert word_of_sense(key) == word


def test_the_sense_index_lists_the_first_sense_first(write):
    lines = "fit%3:00:00:: 1 2 0\nfit%2:30:00:: 9 1 4\nfit%5:00:01:ready:00 7 1 12\nfit%3:00:02:: 8 10 0\n"
    assert read_sense_index(write("index.sense", lines)) == {
        ("fit", "ADJ"): ["fit%5:00:01:ready:00", "fit%3:00:00::", "fit%3:00:02::"],
        ("fit", "VERB"): ["fit%2:30:00::"],
    }


def test_words_in_context_take_their_labels_from_the_file_beside(write):
    path = write("dev.data.txt", WIC)
    write("dev.gold.txt", "T\n")
    first = WordInContext("board", "N", ["Room", "and", "board", "."], 2)
    assert read_wic(path) == [WordPair(first, WordInContext("board", "N", ["He", "boards"], 1), 1.0)]
    assert read_wic(path, write("other", "F\n"))[0].score == 0.0


@pytest.mark.parametrize(
    ("data", "gold", "message"),
    [
        (WIC, "T\nF\n", "dev.gold.txt: 2 labels, expected one for each of the 1 pairs"),
        (WIC, "\nX\n", "dev.gold.txt, line 2: the label 'X', expected one of T, F"),
        (WIC.replace("2-1", "2-2"), "T", "dev.data.txt, line 1: the index 2 is too large for the 2 tokens"),
        (WIC.replace("2-1", "2"), "T", "dev.data.txt, line 1: .* expected word"),
    ],
)
def test_words_in_context_must_fit_their_labels_and_places(write, data, gold, message):
    write("dev.gold.txt", gold)
    with pytest.raises(ValueError, match=message):
        read_wic(write("dev.data.txt", data))


def test_sense_keys_must_be_there_for_every_instance(write):
    path = write("x.data.xml", XML)
    with pytest.raises(ValueError, match=r"x\.data\.xml, line 6: the instance d0\.s0\.t0 has no sense key in .*other"):
        read_wsd(path, write("other", "d9 a%1:04:00::\n"))
    with pytest.raises(ValueError, match=r"bad, line 1: 'd0\.s0\.t0', expected an instance id and its"):
        read_wsd(path, write("bad", "d0.s0.t0\n"))


def test_the_real_sense_files_give_the_published_first_sense_baseline(tasks):
    index = read_sense_index(tasks / "wsd" / "wordnet" / "index.sense.gz")
    assert sum(map(len, index.values())) == 206941
    published = {  # sentences, tokens, instances, and F1 of the first sense in Raganato et al. (2017), table 2
        "senseval2": (242, 5766, 2282, 66.8),
        "senseval3": (352, 5541, 1850, 66.2),
        "semeval2007": (135, 3201, 455, 55.2),
        "semeval2013": (306, 8391, 1644, 63.0),
    }
    for name, counts in published.items():
        sentences = read_wsd(tasks / "wsd" / name / f"{name}.data.xml")
        instances = [instance for sentence in sentences for instance in sentence.instances]
        right = sum(index[word.lemma.lower(), word.pos][0] in word.senses for word in instances)
        num_tokens = sum(len(sentence.tokens) for sentence in sentences)
        assert (len(sentences), num_tokens, len(instances), round(100 * right / len(instances), 1)) == counts


@pytest.mark.slow
def test_the_real_semcor_is_read_completely(tasks):
    sentences = read_wsd(tasks / "wsd" / "semcor" / "semcor.data.xml.gz")
    instances = [instance for sentence in sentences for instance in sentence.instances]
    assert (len(sentences), sum(len(sentence.tokens) for sentence in sentences)) == (37176, 778587)
    assert Counter(word.pos for word in instances) == {"NOUN": 87002, "VERB": 88334, "ADJ": 31753, "ADV": 18947}
    assert sum(len(word.senses) > 1 for word in instances) == 656
    assert sum(" " in sentence.tokens[word.index] for sentence in sentences for word in sentence.instances) == 15294


def test_the_real_word_pairs_are_all_read(tasks):
    wic = [read_wic(tasks / "similarity" / "wic" / part / f"{part}.data.txt") for part in ("train", "dev")]
    assert [Counter(pair.score for pair in pairs) for pairs in wic] == [{0.0: 2714, 1.0: 2714}, {0.0: 319, 1.0: 319}]
    scws = read_scws(tasks / "similarity" / "scws" / "ratings.txt.gz")
    assert len(scws) == 2003
    for word in (word for pair in scws for word in (pair.first, pair.second)):
        assert word.tokens[word.index].lower() == word.word.lower()
