"""Files with one tag per token are read as published, and errors are named with their line."""

import sys
from collections import Counter

import pytest

from elmokit.datasets import TaggedSentence, read_bio, read_conll2000, read_conll2003, read_conllu, read_entities

CONLLU = """# text = Can't go
1-2\tCan't\t_\t_\t_\t_\t_\t_\t_\t_
1\tCa\tcan\tAUX\tMD\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t1:dep\t_

1\tGone\tgo\tVERB\tVBN\tA=b\t0\troot\t_\t_
"""


@pytest.mark.parametrize(
    ("reader", "name", "content", "expected"),
    [
        (
            read_conllu,
            "a.conllu",
            CONLLU,
            [TaggedSentence(["Ca", "n't"], ["AUX", "PART"]), TaggedSentence(["Gone"], ["VERB"])],
        ),
        (
            read_bio,
            "a.bio",
            "-DOCSTART- (book)\tO\n\n\na\tB-X\nb c\tI-Y\n\n#d\tO\n",
            [TaggedSentence(["a", "b c"], ["B-X", "I-Y"]), TaggedSentence(["#d"], ["O"])],
        ),
        (read_bio, "a.txt", "a O\r\nb\u2028c   I-X \r\n", [TaggedSentence(["a", "b\u2028c"], ["O", "I-X"])]),
        (read_conll2003, "a.txt", "-DOCSTART- -X- -X- O\n\nEU NNP I-NP I-ORG\n", [TaggedSentence(["EU"], ["I-ORG"])]),
        (read_conll2000, "a.txt", "He PRP B-NP\nran VBD B-VP\n", [TaggedSentence(["He", "ran"], ["B-NP", "B-VP"])]),
    ],
)
def test_a_file_is_read_alike_plain_and_gzipped_and_with_a_byte_order_mark(
    check_reads, reader, name, content, expected
):
    check_reads(reader, name, content, expected)


@pytest.mark.parametrize(
    ("reader", "content", "line", "message"),
    [
        (read_conllu, CONLLU + "2\tno\n", 8, "2 columns, expected the 10"),
        (read_conllu, CONLLU.replace("1\tGone", "one\tGone"), 7, "'one' is not a valid ID"),
        (read_conllu, CONLLU.replace("VERB\tVBN", "_\tVBN"), 7, "'Gone' has no tag, expected one in column upos"),
        (read_bio, "a\tO\n\nb\tO\tO\n", 3, "3 columns in 'b.*, expected 2: token, entity"),
        (read_bio, "a\tO\n\tO\n", 2, "expected 2: token, entity"),
        (read_bio, "a\tO\nb\tPER\n", 2, "the tag 'PER', expected O, B-… or I-…"),
        (read_bio, b"a\tO\n\xff\tO\n", 2, "byte 1 of the line is 0xff, expected UTF-8"),
        (read_conll2003, "a b c\n", 1, "3 columns in 'a b c', expected 4"),
        (read_conll2000, "a b c d\n", 1, "4 columns .*, expected 3: token, pos, chunk"),
    ],
)
def test_an_error_in_a_file_is_named_with_its_line(check_fails, reader, content, line, message):
    check_fails(reader, content, line, message)


def test_another_column_of_tags_is_read_where_it_is_asked_for(write):
    assert [s.tags for s in read_conllu(write("a.conllu", CONLLU), column="xpos")] == [["MD", "RB"], ["VBN"]]
    four = write("a.txt", "EU NNP I-NP I-ORG\n")
    assert read_conll2003(four, column="pos")[0].tags == ["NNP"]
    assert read_conll2003(four, column="chunk")[0].tags == ["I-NP"]
    assert read_conll2000(write("b.txt", "He PRP B-NP\n"), column="pos")[0].tags == ["PRP"]


def test_conllu_is_imported_late_and_where_it_is_absent_the_error_names_the_extra(monkeypatch, write):
    monkeypatch.setitem(sys.modules, "conllu.parser", None)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[tasks\]"'):
        read_conllu(write("a.conllu", CONLLU))


@pytest.mark.parametrize(
    ("reader", "name", "num_sentences", "num_tokens", "num_spans"),
    [
        (read_bio, "ner/wnut17/train.conll", 3394, 62730, 1975),
        (read_bio, "ner/wnut17/dev.conll", 1009, 15733, 836),
        (read_bio, "ner/wnut17/test.conll", 1287, 23394, 1079),
        (read_bio, "ner/litbank/train.bio.gz", 6168, 149655, 8579),
        (read_bio, "ner/litbank/dev.bio", 728, 21055, 981),
        (read_bio, "ner/litbank/test.bio", 786, 19184, 1116),
        (read_conll2000, "chunking/train.txt.gz", 8936, 211727, 106978),
        (read_conll2000, "chunking/test.txt", 2012, 47377, 23852),
        (read_conllu, "pos/en_ewt-ud-train.conllu.gz", 12544, 204577, None),
        (read_conllu, "pos/en_ewt-ud-dev.conllu.gz", 2001, 25147, None),
        (read_conllu, "pos/en_ewt-ud-test.conllu.gz", 2077, 25094, None),
    ],
)
def test_the_real_tagged_files_have_their_sentences(tasks, reader, name, num_sentences, num_tokens, num_spans):
    sentences = reader(tasks / name)
    tags = Counter(tag[:2] if num_spans else tag for sentence in sentences for tag in sentence.tags)
    assert len(sentences) == num_sentences
    assert sum(len(sentence.tokens) for sentence in sentences) == tags.total() == num_tokens
    assert tags["B-"] == num_spans if num_spans else len(tags) == 17


def test_entities_are_read_by_the_number_of_columns(write):
    four = write("eng.train.gz", "-DOCSTART- -X- O O\n\nRome NNP I-NP I-LOC\n")
    assert read_entities(four) == read_conll2003(four) == [TaggedSentence(["Rome"], ["I-LOC"])]
    two = write("a.bio", "-DOCSTART- (a b)\tO\n\na b c\tB-X\n")  # a token with spaces is one column
    assert read_entities(two) == read_bio(two) == [TaggedSentence(["a b c"], ["B-X"])]
