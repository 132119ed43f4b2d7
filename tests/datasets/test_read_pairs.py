"""Entailment pairs are read in each published form, and errors are named with their line."""

from collections import Counter

import pytest

from elmokit.datasets import SentencePair, read_entailment, read_sick, read_snli

SNLI = """{"gold_label": "neutral", "sentence1": "A b.", "sentence2": "C."}
{"gold_label": "-", "sentence1": "", "sentence2": ""}
"""
SNLI_TSV = "gold_label\tsentence1_parse\tsentence1\tsentence2\nneutral\t(x)\tA b.\tC.\n-\t\tD.\tE.\n"
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA b.\tC.\t4.5\tENTAILMENT\n"


@pytest.mark.parametrize(
    ("reader", "name", "content", "expected"),
    [
        (read_snli, "a.jsonl", SNLI, [SentencePair("A b.", "C.", "neutral")]),
        (read_snli, "a.txt", SNLI_TSV, [SentencePair("A b.", "C.", "neutral")]),
        (read_sick, "a.txt", SICK, [SentencePair("A b.", "C.", "entailment")]),
    ],
)
def test_a_file_is_read_alike_plain_and_gzipped_and_with_a_byte_order_mark(
    check_reads, reader, name, content, expected
):
    check_reads(reader, name, content, expected)


@pytest.mark.parametrize(
    ("reader", "content", "line", "message"),
    [
        (read_snli, SNLI_TSV.replace("neutral", "maybe"), 2, "the label 'maybe', expected one of entailment"),
        (read_sick, SICK.replace("ENTAIL", "ENT"), 2, "the label 'entment'"),
    ],
)
def test_an_error_in_a_file_is_named_with_its_line(check_fails, reader, content, line, message):
    check_fails(reader, content, line, message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"gold_label": "neutral",', "line 1: .*expected JSON"),
        ('\n{"gold_label": "neutral", "sentence1": 3}', "line 2: sentence1 is 3, expected one of type str"),
        ("[]", "line 1: gold_label is None"),
    ],
)
def test_a_bad_line_of_json_is_named(write, content, message):
    with pytest.raises(ValueError, match=f"a.jsonl, {message}"):
        read_snli(write("a.jsonl", content))


@pytest.mark.parametrize(
    ("reader", "name", "num_pairs", "counts"),
    [
        (read_snli, "snli/snli_1.0_train_subset.jsonl.gz", 21601, (7202, 7096, 7303)),
        (read_snli, "snli/snli_1.0_dev.jsonl.gz", 9842, (3329, 3235, 3278)),
        (read_snli, "snli/snli_1.0_test.jsonl.gz", 9824, (3368, 3219, 3237)),
        (read_snli, "snli/cad_revised_train.jsonl.gz", 6625, (2197, 2201, 2227)),
        (read_snli, "multinli/multinli_subset_train.jsonl.gz", 19971, None),
        (read_snli, "multinli/multinli_subset_dev.jsonl", 2499, None),
        (read_snli, "multinli/multinli_subset_test.jsonl", 2501, None),
        (read_snli, "multinli/multinli_1.0_dev_matched.jsonl.gz", 9815, None),
        (read_sick, "sick/SICK_train.txt", 4500, None),
        (read_sick, "sick/SICK_dev.txt", 500, None),
        (read_sick, "sick/SICK_test.txt", 4927, None),
    ],
)
def test_the_real_entailment_files_have_their_pairs(tasks, reader, name, num_pairs, counts):
    labels = Counter(pair.label for pair in reader(tasks / "entailment" / name))
    assert labels.total() == num_pairs
    assert counts is None or tuple(labels[label] for label in ("entailment", "neutral", "contradiction")) == counts


def test_entailment_is_read_by_its_first_line(write):
    assert read_entailment(write("sick.txt.gz", SICK)) == [SentencePair("A b.", "C.", "entailment")]
    for name, content in (("snli.jsonl", SNLI), ("snli.txt", SNLI_TSV)):
        assert read_entailment(write(name, content)) == [SentencePair("A b.", "C.", "neutral")]
