"""Trees and tables of labelled texts are read as published, and errors are named with their line."""

import pytest

from elmokit.datasets import LabelledText, read_labelled_tsv, read_sst_trees


@pytest.mark.parametrize(
    ("reader", "name", "content", "expected"),
    [
        (
            read_sst_trees,
            "a.txt",
            "(3 (2 -LRB-) (4 (2 2\xa01\\/2) (1 \\*)))\n(0 No)\n",
            [
                LabelledText(
                    ["(", "2\xa01/2", "*"],
                    "3",
                    [
                        LabelledText(["("], "2"),
                        LabelledText(["2\xa01/2", "*"], "4"),
                        LabelledText(["2\xa01/2"], "2"),
                        LabelledText(["*"], "1"),
                    ],
                ),
                LabelledText(["No"], "0"),
            ],
        ),
        (read_labelled_tsv, "a.tsv", "label\ttext\n1\tA  film .\n", [LabelledText(["A", "film", "."], "1")]),
    ],
)
def test_a_file_is_read_alike_plain_and_gzipped_and_with_a_byte_order_mark(
    check_reads, reader, name, content, expected
):
    check_reads(reader, name, content, expected)


@pytest.mark.parametrize(
    ("reader", "content", "line", "message"),
    [
        (read_sst_trees, "(1 a)\n(5 a)\n", 2, "the label '5', expected one of 0, 1, 2, 3, 4"),
        (read_sst_trees, "(1 (2 a)\n", 1, "1 brackets are not closed"),
        (read_sst_trees, "(1 a))\n", 1, r"'\)' comes after the tree"),
        (read_sst_trees, "(1 )\n", 1, "a phrase without words"),
        (read_labelled_tsv, "label\ttext\n1\ta\tb\n", 2, "3 columns, expected the 2 of the first line"),
        (read_labelled_tsv, "label\ttext\n1\t \n", 2, "an empty column, expected a label and a text"),
    ],
)
def test_an_error_in_a_file_is_named_with_its_line(check_fails, reader, content, line, message):
    check_fails(reader, content, line, message)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("train.txt.gz", [1092, 2218, 1624, 2322, 1288]),
        ("dev.txt", [139, 289, 229, 279, 165]),
        ("test.txt", [279, 633, 389, 510, 399]),
    ],
)
def test_the_real_trees_give_the_same_sentences_as_the_table_made_of_them(tasks, name, counts):
    trees = read_sst_trees(tasks / "sentiment" / "sst5" / name)
    assert [sum(tree.label == label for tree in trees) for label in "01234"] == counts
    table = read_labelled_tsv(tasks / "sentiment" / "sst2" / f"{name.split('.')[0]}.tsv")
    polar = [tree for tree in trees if tree.label != "2"]
    assert [" ".join(row.tokens) for row in table] == [" ".join(tree.tokens).replace("\xa0", " ") for tree in polar]
    assert [row.label == "1" for row in table] == [tree.label > "2" for tree in polar]
