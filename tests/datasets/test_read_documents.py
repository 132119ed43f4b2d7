"""Roles, coreference and pronouns are read as published, and errors are named with their line."""

import pytest

from elmokit.datasets import (
    AnnotatedSentence,
    Candidate,
    Document,
    PronounExample,
    Proposition,
    Span,
    read_conll2012,
    read_gap,
)

CONLL2012 = """#begin document (a/b); part 001
a/b 1 0 He PRP (TOP* - - - - * (ARG0*) * (3)
a/b 1 1 gave VBD * give 01 - - * (V* * -
a/b 1 2 up RP * - - - - * *) * -
a/b 1 3 his PRP$ * - - - - * (ARG1* * (7|(3)
a/b 1 4 winning NN * win 02 - - * * (V*) -
a/b 1 5 hand NN *) - - - - * *) (ARG1*) 7)

a/b 1 0 He PRP * - - - - * (3)
#end document
#begin document (a/b); part 002
a/b 2 0 Hm UH * - - - - * -

#end document
"""
GAP = (
    "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
    "d-1\tAnn saw Bea; she ran.\tshe\t13\tAnn\t0\tFALSE\tBea\t8\tTRUE\thttp://x\n"
)
ROW = "d 0 0 w - - - - - - *"
VERB = "d 0 0 w - - go 01 - - *"


def conll2012(*rows, end="\n#end document\n"):
    return "#begin document (d); part 000\n" + "\n".join(rows) + "\n" + end


@pytest.mark.parametrize(
    ("reader", "name", "content", "expected"),
    [
        (
            read_gap,
            "a.tsv",
            GAP,
            [
                PronounExample(
                    "d-1",
                    "Ann saw Bea; she ran.",
                    "she",
                    13,
                    Candidate("Ann", 0, False),
                    Candidate("Bea", 8, True),
                    "http://x",
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
        (read_conll2012, ROW + " -\n", 1, "expected '#begin document .* before it"),
        (read_conll2012, "#begin document d\n", 1, "expected '#begin document"),
        (read_conll2012, conll2012(ROW + " -", end="") * 2, 3, "expected the end of the document of line 1"),
        (read_conll2012, conll2012(ROW + " -", end=""), 2, "the file ends, expected '#end document' .* of line 1"),
        (read_conll2012, conll2012(ROW + " -", ROW), 3, "11 columns, expected 12"),
        (read_conll2012, conll2012(VERB + " -"), 2, "12 columns, expected 13: 12 and one for each of the 1 predicates"),
        (read_conll2012, conll2012(VERB + " (V* -", ROW + " * -"), 2, r"the bracket \(V is not closed"),
        (read_conll2012, conll2012(VERB + " (V*) -", ROW + " *) -"), 3, "closes a bracket that the sentence did not"),
        (read_conll2012, conll2012(VERB + " V* -"), 2, "'V\\*' in a column of brackets, expected"),
        (read_conll2012, conll2012(ROW + " (1", ROW + " 2)"), 3, "'2\\)' closes a bracket"),
        (read_conll2012, conll2012(ROW + " (1"), 2, r"the bracket \(1 is not closed"),
        (read_conll2012, conll2012(ROW + " 12"), 2, "'12' in a column of brackets"),
        (read_gap, GAP.replace("\t13\t", "\t12\t"), 2, "'she' is not at its offset 12; the text there is ' sh'"),
        (read_gap, GAP.replace("\t13\t", "\t-8\t"), 2, "'she' is not at its offset -8"),
        (read_gap, GAP.replace("\t13\t", "\tx\t"), 2, "'x', expected a number"),
        (read_gap, GAP.replace("TRUE", "yes"), 2, "the label 'YES', expected one of TRUE, FALSE"),
        (read_gap, GAP.replace("A-coref", "A_coref"), 1, "no column A-coref in this first line"),
    ],
)
def test_an_error_in_a_file_is_named_with_its_line(check_fails, reader, content, line, message):
    check_fails(reader, content, line, message)


@pytest.mark.parametrize("name", ["a.gold_conll", "a.gold_conll.gz"])
def test_conll_2012_documents_hold_propositions_and_clusters(write, name):
    give = Proposition(1, "give.01", [Span(0, 1, "ARG0"), Span(1, 3, "V"), Span(3, 6, "ARG1")])
    win = Proposition(4, "win.02", [Span(4, 5, "V"), Span(5, 6, "ARG1")])
    first = AnnotatedSentence(
        ["He", "gave", "up", "his", "winning", "hand"], ["PRP", "VBD", "RP", "PRP$", "NN", "NN"], [give, win]
    )
    clusters = [[(0, 1), (3, 4), (6, 7)], [(3, 6)]]
    expected = [
        Document("a/b", 1, [first, AnnotatedSentence(["He"], ["PRP"], [])], clusters),
        Document("a/b", 2, [AnnotatedSentence(["Hm"], ["UH"], [])], []),
    ]
    assert read_conll2012(write(name, CONLL2012)) == expected
    lines = CONLL2012.splitlines(keepends=True)
    with_tabs = "".join(line if line.startswith("#") else line.replace(" ", "\t") for line in lines)
    assert read_conll2012(write("tabs", with_tabs)) == expected
    assert give.tags(6) == ["B-ARG0", "B-V", "I-V", "B-ARG1", "I-ARG1", "I-ARG1"]
    assert win.tags(6) == ["O", "O", "O", "O", "B-V", "B-ARG1"]


def test_mentions_and_arguments_may_lie_in_one_another(write):
    cells = ["(1|(1|(2", "-", "1)|(3)", "2)|1)"]
    rows = "".join(f"d 0 {i} w{i} - - - - - - * {cell}\n" for i, cell in enumerate(cells))
    (document,) = read_conll2012(write("a", f"#begin document (d); part 000\n{rows}\n#end document\n"))
    assert sorted(sorted(cluster) for cluster in document.clusters) == [[(0, 3), (0, 4)], [(0, 4)], [(2, 3)]]
    nested = Proposition(0, "x.01", [Span(0, 3, "A"), Span(1, 2, "B")])
    assert nested.tags(4) == ["B-A", "I-A", "I-A", "O"]


@pytest.mark.parametrize(
    ("part", "counts"),
    [
        ("train", (540, 12504, 204126, 40418, 59)),
        ("dev", (297, 1963, 24878, 4960, 45)),
        ("test", (308, 2054, 24934, 4795, 44)),
    ],
)
def test_the_real_semantic_roles_have_their_propositions(tasks, part, counts):
    documents = read_conll2012(tasks / "srl" / f"ewt_srl_{part}.gold_conll.gz")
    sentences = [sentence for document in documents for sentence in document.sentences]
    propositions = [proposition for sentence in sentences for proposition in sentence.propositions]
    roles = {span.label for proposition in propositions for span in proposition.arguments}
    num_tokens = sum(len(sentence.tokens) for sentence in sentences)
    assert (len(documents), len(sentences), num_tokens, len(propositions), len(roles)) == counts
    for proposition in propositions:  # the predicate is the word that its own column marks
        assert any(s.label in ("V", "C-V") and s.start <= proposition.predicate < s.end for s in proposition.arguments)


@pytest.mark.parametrize(
    ("part", "counts"),
    [
        ("train", (80, 169456, 23218, 6344, 4635)),
        ("dev", (10, 20438, 3053, 776, 563)),
        ("test", (10, 20638, 2832, 807, 565)),
    ],
)
def test_the_real_coreference_has_its_chains(tasks, part, counts):
    documents = read_conll2012(tasks / "coref" / "litbank" / f"{part}.gold_conll.gz")
    sizes = [len(cluster) for document in documents for cluster in document.clusters]
    num_tokens = sum(len(sentence.tokens) for document in documents for sentence in document.sentences)
    assert (len(documents), num_tokens, sum(sizes), len(sizes), sizes.count(1)) == counts
    books = (tasks / "coref" / "litbank" / f"{part}.books").read_text().split()
    assert [document.name for document in documents] == books


def test_the_real_pronouns_are_all_read(tasks):
    names = ("gap-development.tsv.gz", "gap-validation.tsv", "gap-test.tsv.gz")
    assert [len(read_gap(tasks / "coref" / "gap" / name)) for name in names] == [2000, 454, 2000]
