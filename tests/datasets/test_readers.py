"""Each format is read as its publisher wrote it, and what is wrong in a file is named with its line."""

import gzip
import json
import sys
from collections import Counter

import pytest

from elmokit.datasets import readers
from elmokit.datasets.readers import (
    AnnotatedSentence,
    Answer,
    Candidate,
    Document,
    LabelledText,
    PronounExample,
    Proposition,
    Question,
    SenseInstance,
    SenseSentence,
    SentencePair,
    Span,
    TaggedSentence,
    WordInContext,
    WordPair,
    read_bio,
    read_conll2000,
    read_conll2003,
    read_conll2012,
    read_conllu,
    read_gap,
    read_labelled_tsv,
    read_scws,
    read_sense_index,
    read_sick,
    read_snli,
    read_squad,
    read_sst_trees,
    read_wic,
    read_wsd,
)

CONLLU = """# text = Can't go
1-2\tCan't\t_\t_\t_\t_\t_\t_\t_\t_
1\tCa\tcan\tAUX\tMD\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t1:dep\t_

1\tGone\tgo\tVERB\tVBN\tA=b\t0\troot\t_\t_
"""
XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="x">

<text id="d0"><sentence id="d0.s0">
<wf lemma="the" pos="DET">The</wf>
<instance id="d0.s0.t0" lemma="primary_election" pos="NOUN">primary election</instance>
<wf lemma="&amp;" pos=".">&amp;</wf>
</sentence></text>
</corpus>
"""
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
SNLI = """{"gold_label": "neutral", "sentence1": "A b.", "sentence2": "C."}
{"gold_label": "-", "sentence1": "", "sentence2": ""}
"""
SNLI_TSV = "gold_label\tsentence1_parse\tsentence1\tsentence2\nneutral\t(x)\tA b.\tC.\n-\t\tD.\tE.\n"
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA b.\tC.\t4.5\tENTAILMENT\n"
SCWS = "\t".join(["1", "bank", "n", "shore", "n", "the <b> banks </b> of", "a <b> shore </b>", "7.5", *"0123456789"])
QA = {"id": "q1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}, {"text": "é", "answer_start": 5}]}
SQUAD = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "Ann, é.", "qas": [QA]}]}]}
WIC = "board\tN\t2-1\tRoom and board .\tHe boards\n"


@pytest.fixture
def write(tmp_path):
    """write(name, content) -> the path of a new file; gzipped where its name says so."""

    def make(name, content):
        raw = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") and isinstance(content, str) else raw)
        return path

    return make


def squad_with(**changes):
    return json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "Ann, é.", "qas": [QA | changes]}]}]})


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
        (read_snli, "a.jsonl", SNLI, [SentencePair("A b.", "C.", "neutral")]),
        (read_snli, "a.txt", SNLI_TSV, [SentencePair("A b.", "C.", "neutral")]),
        (read_sick, "a.txt", SICK, [SentencePair("A b.", "C.", "entailment")]),
        (
            read_squad,
            "a.json",
            json.dumps(SQUAD),
            [Question("q1", "T", "Ann, é.", "Who?", [Answer("Ann", 0), Answer("é", 5)])],
        ),
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
def test_a_format_is_read_alike_plain_and_gzipped_and_with_a_byte_order_mark(write, reader, name, content, expected):
    assert reader(write(name, content)) == expected
    assert reader(write(name + ".gz", content)) == expected
    assert reader(write("b" + name, b"\xef\xbb\xbf" + content.encode())) == expected


def test_another_column_of_tags_is_read_where_it_is_asked_for(write):
    assert [s.tags for s in read_conllu(write("a.conllu", CONLLU), column="xpos")] == [["MD", "RB"], ["VBN"]]
    four = write("a.txt", "EU NNP I-NP I-ORG\n")
    assert read_conll2003(four, column="pos")[0].tags == ["NNP"]
    assert read_conll2003(four, column="chunk")[0].tags == ["I-NP"]
    assert read_conll2000(write("b.txt", "He PRP B-NP\n"), column="pos")[0].tags == ["PRP"]


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


def test_the_sense_index_lists_the_first_sense_first(write):
    lines = "fit%3:00:00:: 1 2 0\nfit%2:30:00:: 9 1 4\nfit%5:00:01:ready:00 7 1 12\nfit%3:00:02:: 8 10 0\n"
    assert read_sense_index(write("index.sense", lines)) == {
        ("fit", "ADJ"): ["fit%5:00:01:ready:00", "fit%3:00:00::", "fit%3:00:02::"],
        ("fit", "VERB"): ["fit%2:30:00::"],
    }


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


def test_words_in_context_take_their_labels_from_the_file_beside(write):
    path = write("dev.data.txt", WIC)
    write("dev.gold.txt", "T\n")
    first = WordInContext("board", "N", ["Room", "and", "board", "."], 2)
    assert read_wic(path) == [WordPair(first, WordInContext("board", "N", ["He", "boards"], 1), 1.0)]
    assert read_wic(path, write("other", "F\n"))[0].score == 0.0


def conll2012(*rows, end="\n#end document\n"):
    return "#begin document (d); part 000\n" + "\n".join(rows) + "\n" + end


ROW = "d 0 0 w - - - - - - *"
VERB = "d 0 0 w - - go 01 - - *"
INSTANCE = '<instance id="i" lemma="a" pos="NOUN">a</instance>'


@pytest.mark.parametrize(
    ("reader", "content", "line", "message"),
    [
        (read_conllu, CONLLU + "2\tno\n", 8, "2 columns, expected the 10"),
        (read_conllu, CONLLU.replace("1\tGone", "one\tGone"), 7, "'one' is not a valid ID"),
        (read_conllu, CONLLU.replace("VERB\tVBN", "_\tVBN"), 7, "'Gone' has no tag, expected one in column upos"),
        (read_bio, "a\tO\n\nb\tO\tO\n", 3, "3 columns in 'b.*, expected 2: token, entity"),
        (read_bio, "a\tO\n\tO\n", 2, "expected 2: token, entity"),
        (read_bio, "a\tO\nb\tPER\n", 2, "the tag 'PER', expected O, B-… or I-…"),
        (read_bio, b"a\tO\n\xff\tO\n", 2, "byte 1 of it is 0xff, expected UTF-8"),
        (read_conll2003, "a b c\n", 1, "3 columns in 'a b c', expected 4"),
        (read_conll2000, "a b c d\n", 1, "4 columns .*, expected 3: token, pos, chunk"),
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
        (read_gap, GAP.replace("\t13\t", "\t12\t"), 2, "'she' is not at its offset 12, where ' sh' stands"),
        (read_gap, GAP.replace("\t13\t", "\t-8\t"), 2, "'she' is not at its offset -8"),
        (read_gap, GAP.replace("\t13\t", "\tx\t"), 2, "'x', expected a number"),
        (read_gap, GAP.replace("TRUE", "yes"), 2, "the label 'YES', expected one of TRUE, FALSE"),
        (read_gap, GAP.replace("A-coref", "A_coref"), 1, "no column A-coref in this first line"),
        (read_sst_trees, "(1 a)\n(5 a)\n", 2, "the label '5', expected one of 0, 1, 2, 3, 4"),
        (read_sst_trees, "(1 (2 a)\n", 1, "1 brackets are not closed"),
        (read_sst_trees, "(1 a))\n", 1, r"'\)' stands behind the tree"),
        (read_sst_trees, "(1 )\n", 1, "a phrase without words"),
        (read_labelled_tsv, "label\ttext\n1\ta\tb\n", 2, "3 columns, expected the 2 of the first line"),
        (read_labelled_tsv, "label\ttext\n1\t \n", 2, "an empty column, expected a label and a text"),
        (read_snli, SNLI_TSV.replace("neutral", "maybe"), 2, "the label 'maybe', expected one of entailment"),
        (read_sick, SICK.replace("ENTAIL", "ENT"), 2, "the label 'entment'"),
        (read_scws, SCWS.replace("7.5", "high"), 1, "'high', expected a number"),
        (read_scws, "a\tb\n", 1, "2 columns, expected 18"),
        (read_scws, SCWS.replace("<b> shore </b>", "shore"), 1, "the word 'shore' is not marked once"),
        (read_squad, '{"data":\n\n [}', 3, "Expecting value at character 3, expected JSON"),
        (read_squad, "[" * 1_000_000, 1, "expected JSON"),
        (read_sense_index, "a%1:00:00:: 1 1 0\na 1 1\n", 2, "expected a sense key"),
        (read_wsd, XML.replace("</wf>", "", 1), 8, "mismatched tag, expected well-formed XML"),
        (read_wsd, XML.replace('lemma="the" ', ""), 5, "<wf> has no attribute lemma"),
        (read_wsd, XML.replace(">The<", "> <"), 5, "<wf> holds no word"),
        (read_wsd, f"<corpus>\n{INSTANCE}</corpus>", 2, "<instance> outside of any <sentence>"),
        (read_wsd, '<!DOCTYPE x [\n<!ENTITY a "aa">]>\n<x/>', 2, "declares the entity 'a'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(write, reader, content, line, message):
    path = write("some.file", content)
    with pytest.raises(ValueError, match=f"some.file, line {line}: .*{message}"):
        reader(path)


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
    ("content", "message"),
    [
        (
            squad_with(answers=[{"text": "Ann", "answer_start": 1}]),
            "question q1: 'Ann' is not at its offset 1, where 'nn,'",
        ),
        (squad_with(answers=[]), "question q1: no answer, expected one"),
        (squad_with(question=None), "question q1: question is None, expected one of type str"),
        ('{"data": [3]}', "article '': paragraphs is None, expected one of type list"),
        ("[]", "the file: data is None"),
    ],
)
def test_a_bad_question_is_named_by_its_id(write, content, message):
    with pytest.raises(ValueError, match=f"a.json, {message}"):
        read_squad(write("a.json", content))


@pytest.mark.parametrize(
    ("data", "gold", "message"),
    [
        (WIC, "T\nF\n", "dev.gold.txt: 2 labels, expected one for each of the 1 pairs"),
        (WIC, "\nX\n", "dev.gold.txt, line 2: the label 'X', expected one of T, F"),
        (WIC.replace("2-1", "2-2"), "T", "dev.data.txt, line 1: the word at place 2 is behind the 2 tokens"),
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


READERS = [getattr(readers, name) for name in sorted(dir(readers)) if name.startswith("read_")]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_a_file_that_is_missing_empty_or_broken_is_named(write, tmp_path, reader):
    with pytest.raises(ValueError, match=r"none\.(data|gold)\.xml: there is no such file"):
        reader(tmp_path / "none.data.xml")
    write("a.gold.txt", "")
    with pytest.raises(ValueError, match=r"a\.data\.txt: holds no example"):
        reader(write("a.data.txt", " \n\n"))
    with pytest.raises(ValueError, match="cannot be read"):
        reader(write("b.gz", gzip.compress(b"x" * 9999)[:-12]))
    with pytest.raises(ValueError, match="cannot be read"):
        reader(tmp_path)


def test_conllu_is_imported_late_and_where_it_is_absent_the_error_names_the_extra(monkeypatch, write):
    monkeypatch.setitem(sys.modules, "conllu.parser", None)
    with pytest.raises(ImportError, match=r'pip install "elmokit\[tasks\]"'):
        read_conllu(write("a.conllu", CONLLU))


# The rest reads the real files and compares with the counts that their publishers and README files give.


@pytest.fixture(scope="session")
def tasks(data):
    if not (data / "tasks").is_dir():
        pytest.skip(f"no folder {data / 'tasks'}: set ELMOKIT_DATA")
    return data / "tasks"


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


def test_the_real_pronouns_sentiments_and_word_pairs_are_all_read(tasks):
    gap = ("gap-development.tsv.gz", "gap-validation.tsv", "gap-test.tsv.gz")
    assert [len(read_gap(tasks / "coref" / "gap" / name)) for name in gap] == [2000, 454, 2000]
    wic = [read_wic(tasks / "similarity" / "wic" / part / f"{part}.data.txt") for part in ("train", "dev")]
    assert [Counter(pair.score for pair in pairs) for pairs in wic] == [{0.0: 2714, 1.0: 2714}, {0.0: 319, 1.0: 319}]
    scws = read_scws(tasks / "similarity" / "scws" / "ratings.txt.gz")
    assert len(scws) == 2003
    for word in (word for pair in scws for word in (pair.first, pair.second)):
        assert word.tokens[word.index].lower() == word.word.lower()


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


@pytest.mark.parametrize(
    ("name", "num_questions", "num_answers"),
    [
        ("squad/train-v1.1-subset.json.gz", 14348, 14348),
        ("squad/train-v1.1-extra.json.gz", 6118, 6118),
        ("squad/dev-v1.1-half.json.gz", 4961, 17778),
        ("squad/test-v1.1-half.json.gz", 5609, 16948),
        ("xquad/xquad.en.json", 1190, 1190),
        ("qamr/train.json.gz", 18863, None),
        ("qamr/dev.json.gz", 9265, None),
        ("qamr/test.json.gz", 9455, None),
        ("subjqa/train.json.gz", 1909, None),
        ("subjqa/dev.json", 500, None),
        ("subjqa/test.json.gz", 1333, None),
    ],
)
def test_the_real_questions_are_all_read(tasks, name, num_questions, num_answers):
    questions = read_squad(tasks / "qa" / name)
    assert len(questions) == num_questions
    assert num_answers in (None, sum(len(question.answers) for question in questions))


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
def test_the_real_semcor_is_read_whole(tasks):
    sentences = read_wsd(tasks / "wsd" / "semcor" / "semcor.data.xml.gz")
    instances = [instance for sentence in sentences for instance in sentence.instances]
    assert (len(sentences), sum(len(sentence.tokens) for sentence in sentences)) == (37176, 778587)
    assert Counter(word.pos for word in instances) == {"NOUN": 87002, "VERB": 88334, "ADJ": 31753, "ADV": 18947}
    assert sum(len(word.senses) > 1 for word in instances) == 656
    assert sum(" " in sentence.tokens[word.index] for sentence in sentences for word in sentence.instances) == 15294
