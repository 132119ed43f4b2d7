"""Coreference and pronouns: the network against loops, training and use."""

import functools
import itertools
import json
import math
import random
from pathlib import Path

import pytest
import torch
from task_examples import learn_by_heart, small_config
from torch.nn.functional import logsigmoid

from elmokit.tasks import TASKS, TaskConfig, coreference, load_task, train
from elmokit.tasks.coreference import CoreferenceDocument
from elmokit.tasks.settings import load_recipe
from elmokit.tasks.span_pairs import MAX_WIDTH, embed_documents, marginal_loss
from elmokit.tasks.texts import read_sentences

RECIPES = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes" / "tasks"
COREFERENCE, PRONOUNS = TASKS["coreference"], TASKS["pronouns"]

# sentences, and the entities as mentions first-last in the tokens of the document
DOCUMENTS = [
    ("Ada met Max . | She greeted him .", ["0-0 4-4", "2-2 6-6"]),
    ("The old king slept . | The king dreamed of Rome .", ["0-2 5-6", "9-9"]),
    ("Nothing happened .", []),
    ("Max 's dog barked . | It saw Max . | He laughed .", ["0-2 5-5", "0-0 7-7 9-9"]),
]
PASSAGES = [
    # text, pronoun, A, A is it, B, B is it
    ("Ada met Eva before she left Rome.", "she", "Ada", True, "Eva", False),
    ("Max told Tom that his dog barked.", "his", "Max", False, "Tom", True),
    ("Mr. Tom Ray called Max Roe. He slept.", "He", "Tom Ray", False, "Max Roe", False),
    ("Because she slept, Ada missed Eva.", "she", "Ada", True, "Eva", False),
    ("Eva saw Ada. Her dog ran.", "Her", "Eva", False, "Ada", True),
    ("Tom and Max ran. It was him.", "him", "Tom", False, "Max", False),
]


def write_documents(path: Path) -> Path:
    lines = []
    for number, (text, clusters) in enumerate(DOCUMENTS):
        lines.append(f"#begin document (d{number}); part 000")
        marks: dict[int, list[str]] = {}
        for entity, mentions in enumerate(clusters):
            for mention in mentions.split():
                first, last = map(int, mention.split("-"))
                if first == last:
                    marks.setdefault(first, []).append(f"({entity})")
                else:
                    marks.setdefault(first, []).append(f"({entity}")
                    marks.setdefault(last, []).append(f"{entity})")
        place = 0
        for sentence in text.split(" | "):
            for at, word in enumerate(sentence.split()):
                cell = "|".join(marks.get(place, ["-"]))
                lines.append("\t".join([f"d{number}", "0", str(at), word, *["-"] * 6, "*", cell]))
                place += 1
            lines.append("")
        lines.append("#end document")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_passages(path: Path) -> Path:
    lines = ["ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"]
    for number, (text, pronoun, a, is_a, b, is_b) in enumerate(PASSAGES):
        at = text.index(f" {pronoun} ") + 1 if f" {pronoun} " in text else text.index(pronoun)
        row = [number, text, pronoun, at, a, text.index(a), is_a, b, text.index(b), is_b, "u"]
        lines.append("\t".join(str(cell).upper() if isinstance(cell, bool) else str(cell) for cell in row))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def configure(folder: Path, elmo: str, task: str, **changes: object) -> TaskConfig:
    """A small training on the examples above."""
    if task == "coreference":
        file = write_documents(folder / "train.gold_conll")
    else:
        file = write_passages(folder / "train.tsv")
    return small_config(task, file, folder, elmo, **{"batch_size": 3, **changes})


@pytest.fixture
def small(tmp_path, tiny_elmo):
    """small(task, **changes)."""
    return functools.partial(configure, tmp_path, tiny_elmo)


@pytest.fixture(scope="module")
def ranker_folder(tmp_path_factory, tiny_elmo):
    config = configure(tmp_path_factory.mktemp("ranker"), tiny_elmo, "coreference", elmo_at="none")
    return train(config).folder


@pytest.fixture
def ranker(ranker_folder):
    """Trained a little, and the test's own to change."""
    return load_task(ranker_folder)


# ---- the network -----------------------------------------------------------------------------------------------------


def test_the_vector_of_a_span_is_that_of_its_ends_its_words_and_its_width(ranker):
    """The grid of all spans against one span at a time, from the definition."""
    network = ranker.network.eval()
    documents = COREFERENCE.read(ranker.config.train)
    sentences = [document.sentences for document in documents]
    tokens = network.spans(embed_documents(network.inputs, sentences), sentences)
    encoder = network.spans
    for number, document in enumerate(documents):
        places = torch.arange(sum(map(len, document.sentences)))
        grid = encoder.spans_from(tokens, torch.full_like(places, number), places)
        begin = 0
        for sentence in document.sentences:
            alone = network.inputs([sentence])
            h, x = encoder.rnn(alone.x, alone.mask)[0], alone.x[0]
            for start in range(len(sentence)):
                for end in range(start + 1, min(len(sentence), start + MAX_WIDTH) + 1):
                    weights = encoder.attention(h[start:end]).softmax(dim=0)
                    words = (weights * x[start:end]).sum(dim=0)
                    total = encoder.start(h[start]) + encoder.end(h[end - 1]) + encoder.word(words)
                    expected = torch.relu(total + encoder.width.weight[end - start - 1])
                    found = grid[begin + start, end - start - 1]
                    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
                    assert begin + end <= tokens.sentence_end[number, begin + start]
            begin += len(sentence)


@pytest.mark.parametrize("singletons", [True, False])
def test_the_loss_is_the_marginal_log_likelihood_of_the_right_antecedents(ranker, singletons):
    """Each kept span by a loop over what precedes it, scored one pair at a time."""
    network = ranker.network.eval()
    network.singletons = singletons  # the mention score is then trained by itself, as the log-odds of a mention
    (document,) = COREFERENCE.read(ranker.config.train)[:1]
    ranking = network._rank([document])
    entity = {mention: number for number, cluster in enumerate(document.clusters) for mention in cluster}
    tokens = network.spans(embed_documents(network.inputs, [document.sentences]), [document.sentences])
    kept = [divmod(span, MAX_WIDTH) for span in ranking.kept[0].tolist()]
    assert len(kept) == math.ceil(coreference.SPANS_PER_TOKEN * 8)
    assert kept == sorted(kept)
    vectors, mentions = [], []
    for start, width in kept:
        grid = network.spans.spans_from(tokens, torch.tensor([0]), torch.tensor([start]))
        vectors.append(grid[0, width])
        mentions.append(network.mention(grid[0, width])[0])
    total = torch.zeros(())
    for i, (start, width) in enumerate(kept):
        scores, right = [torch.zeros(())], []
        own = entity.get((start, start + width + 1))
        for j, (other, other_width) in enumerate(kept[:i]):
            pair = network.pairs(vectors[i][None], vectors[j][None], torch.tensor([start - other]))[0]
            both = [logsigmoid(m) if singletons else m for m in (mentions[i], mentions[j])]
            scores.append(pair + sum(both))
            right.append(own is not None and entity.get((other, other + other_width + 1)) == own)
        probabilities = torch.stack(scores).softmax(dim=0)
        chosen = probabilities[1:][torch.tensor(right, dtype=torch.bool)].sum() if any(right) else probabilities[0]
        total = total - chosen.log()
    for start in range(8 if singletons else 0):
        for width in range((4 if start < 4 else 8) - start):
            score = ranking.mentions[0, start, width]
            is_mention = (start, start + width + 1) in entity
            total = total - torch.log(torch.sigmoid(score if is_mention else -score))
    torch.testing.assert_close(network.loss([document]), total / len(kept), atol=1e-4, rtol=1e-4)


def test_the_best_spans_of_a_document_are_kept(ranker):
    documents = COREFERENCE.read(ranker.config.train)
    ranking = ranker.network.eval()._rank(documents)
    for row, document in enumerate(documents):
        lengths = list(map(len, document.sentences))
        ends = [end for end, length in zip(itertools.accumulate(lengths), lengths, strict=True) for _ in range(length)]
        spans = {
            (start, width): float(ranking.mentions[row, start, width].detach())
            for start, end in enumerate(ends)
            for width in range(min(MAX_WIDTH, end - start))
        }
        best = sorted(spans, key=spans.__getitem__, reverse=True)[: math.ceil(0.3 * len(ends))]
        kept = ranking.kept[row][ranking.mask[row]].tolist()
        assert [divmod(span, MAX_WIDTH) for span in kept] == sorted(best)


def test_a_document_is_ranked_the_same_alone_and_in_a_batch(ranker):
    documents = [*COREFERENCE.read(ranker.config.train), CoreferenceDocument([], []), CoreferenceDocument([[]], [])]
    network = ranker.network.eval()
    together = network._rank(documents)
    for row, document in enumerate(documents):
        alone, live = network._rank([document]), together.mask[row]
        assert together.kept[row][live].tolist() == alone.kept[0][alone.mask[0]].tolist()
        a, b = (torch.where(r.scores > -1e3, r.scores, -1e3) for r in (alone, together))
        count = int(live.sum())
        a, b = a[0, :count].sort(descending=True).values, b[row, :count].sort(descending=True).values
        torch.testing.assert_close(a[:, :count], b[:, :count], atol=1e-4, rtol=1e-4)


def test_few_antecedents_are_scored_in_full_and_the_coarse_score_chooses_them(ranker, monkeypatch):
    monkeypatch.setattr(coreference, "MAX_ANTECEDENTS", 2)
    monkeypatch.setattr(coreference, "SPANS_PER_TOKEN", 0.9)
    documents = COREFERENCE.read(ranker.config.train)[3:]
    network = ranker.network.eval().requires_grad_(False)
    ranking = network._rank(documents)
    assert ranking.scores.shape[2] == 2
    sentences = [document.sentences for document in documents]
    tokens = network.spans(embed_documents(network.inputs, sentences), sentences)
    kept = [divmod(span, MAX_WIDTH) for span in ranking.kept[0].tolist()]
    places = torch.tensor([start for start, _ in kept])
    g = network.spans.spans_from(tokens, torch.zeros_like(places), places)[
        torch.arange(len(kept)), [width for _, width in kept]
    ]
    for i in range(2, len(kept)):
        coarse = [float(network.pairs.product(g[i]) @ g[j] + logsigmoid(network.mention(g[j]))) for j in range(i)]
        best = sorted(range(i), key=coarse.__getitem__, reverse=True)[:2]
        assert set(ranking.antecedents[0, i].tolist()) == set(best)


def test_marginal_loss_is_that_of_probabilities():
    scores = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, 2.0]])
    right = torch.tensor([[True, False, True], [False, False, False]])
    exps = scores.exp()
    first = (exps[0, 0] + exps[0, 2]) / (1 + exps[0].sum())
    second = 1 / (1 + exps[1].sum())
    torch.testing.assert_close(marginal_loss(scores, right), -torch.stack([first, second]).log())


def test_links_make_clusters_and_single_mentions_only_where_they_are_allowed():
    spans = [0 * MAX_WIDTH, 1 * MAX_WIDTH + 1, 3 * MAX_WIDTH, 4 * MAX_WIDTH, 5 * MAX_WIDTH]
    found = coreference._clusters(spans, [-1, -1, 0, 2, -1], [False, True, False, False, False])
    assert found == [[(0, 1), (3, 4), (4, 5)], [(1, 3)]]


def test_training_reads_a_part_of_a_long_document_with_the_mentions_in_it(monkeypatch):
    monkeypatch.setattr(coreference, "SEGMENT_TOKENS", 10)
    chance = random.Random(0)
    words = iter(range(10_000))
    sentences = [[str(next(words)) for _ in range(chance.randrange(1, 6))] for _ in range(30)]
    sentences[7] = [str(next(words)) for _ in range(25)]  # longer than a part may be
    flat = list(itertools.chain(*sentences))
    ends = list(itertools.accumulate(map(len, sentences), initial=0))
    mentions = [(a, b) for a in range(len(flat)) for b in range(a + 1, a + 3) if not any(a < e < b for e in ends)]
    document = CoreferenceDocument(sentences, [mentions[:-2], mentions[-2:]])
    torch.manual_seed(0)
    seen = set()
    for _ in range(300):
        part = coreference._random_part(document)
        tokens = list(itertools.chain(*part.sentences))
        assert len(tokens) <= 10 or part.sentences == [sentences[7]]
        begin = flat.index(tokens[0])
        assert flat[begin : begin + len(tokens)] == tokens
        seen |= set(tokens)
        inside = [m for m in mentions if begin <= m[0] and m[1] <= begin + len(tokens)]
        assert sorted((a + begin, b + begin) for c in part.clusters for a, b in c) == inside
    assert seen >= set(itertools.chain(*sentences[:-3]))
    short = CoreferenceDocument([["a"]], [])
    assert coreference._random_part(short) is short


# ---- training and use ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("elmo_at", ["none", "both"])
@pytest.mark.parametrize("name", ["coreference", "pronouns"])
def test_a_few_examples_are_memorized_and_the_saved_task_answers_the_same(small, monkeypatch, name, elmo_at, device):
    monkeypatch.setattr(coreference, "SPANS_PER_TOKEN", 0.5)  # every third token of so short a text begins a mention
    config = small(name, elmo_at=elmo_at, device=device, epochs=80, patience=80, rate_decay=1.0)
    metric = TASKS[name].metric
    trained = learn_by_heart(config, metric)
    assert trained.evaluate(config.train)[metric] == pytest.approx(1.0)
    examples = trained.task.read(config.train)
    if name == "coreference":
        answers = trained.predict([{"sentences": example.sentences} for example in examples])
        for example, answer in zip(examples, answers, strict=True):
            found = [[(mention["start"], mention["end"]) for mention in cluster] for cluster in answer["clusters"]]
            assert sorted(map(sorted, found)) == sorted(map(sorted, example.clusters))
            for mention in itertools.chain(*answer["clusters"]):
                assert mention["text"] == " ".join(answer["tokens"][mention["start"] : mention["end"]])
    else:
        for text, pronoun, a, is_a, b, is_b in PASSAGES:
            at = text.index(f" {pronoun} ") + 1 if f" {pronoun} " in text else text.index(pronoun)
            given = {"text": text, "pronoun": pronoun, "pronoun_offset": at}
            (answer,) = trained.predict(
                [{**given, "a": a, "a_offset": text.index(a), "b": b, "b_offset": text.index(b)}]
            )
            (one,) = answer["pronouns"]
            right = a if is_a else b if is_b else None
            assert (one["refers_to"] and one["refers_to"]["text"]) == right
            assert one["text"] == pronoun


def test_documents_are_read_with_their_entities(tmp_path):
    documents = COREFERENCE.read(str(write_documents(tmp_path / "x_conll")))
    for document, (text, clusters) in zip(documents, DOCUMENTS, strict=True):
        assert document.sentences == [sentence.split() for sentence in text.split(" | ")]
        written = [" ".join(f"{a}-{b - 1}" for a, b in cluster) for cluster in document.clusters]
        assert sorted(written) == sorted(clusters)
    assert COREFERENCE.fit(documents) == {"singletons": True}
    assert COREFERENCE.fit(documents[:1]) == {"singletons": False}


def test_without_single_mentions_in_the_data_none_is_predicted(ranker):
    documents = COREFERENCE.read(ranker.config.train)
    network = ranker.network
    with torch.no_grad():
        network.mention[-1].bias.fill_(5.0)
        network.pairs.score[-1].bias.fill_(-1000.0)  # no span has an antecedent
    ones = ranker.answer(documents)
    assert all(len(cluster) == 1 for clusters in ones for cluster in clusters)
    assert any(ones)
    network.singletons = False
    assert not any(ranker.answer(documents))


@pytest.mark.parametrize("name", ["coreference", "pronouns"])
def test_any_text_has_a_prediction_alone_as_in_a_batch(small, name):
    config = small(name)
    train(config)
    trained = load_task(config.out)
    odd = [
        "", "   ", [], ["", "\x00"], "a" * 300, "Zürich 東京 he", {"text": "Ada left. She ran."}, {"tokens": ["He"]},
        {"sentences": [["Ada"], [], ["she"]]}, [["Ada", "left"], ["she"]], "he " * 30 + "Ada Bo",
    ]  # fmt: skip
    answers = trained.predict(odd)
    assert [len(answer["tokens"]) for answer in answers] == [0, 0, 0, 2, 1, 3, 6, 1, 2, 3, 32]
    json.dumps(answers)
    alone = [trained.predict([text])[0] for text in odd]
    if name == "coreference":
        assert alone == answers
    else:
        for one, other in zip(alone, answers, strict=True):
            assert len(one["pronouns"]) == len(other["pronouns"])
            for pronoun, same in zip(one["pronouns"], other["pronouns"], strict=True):
                assert pronoun["refers_to"] == same["refers_to"]
                odds = [[c["probability"] for c in p["candidates"]] for p in (pronoun, same)]
                assert odds[0] == pytest.approx(odds[1], abs=1e-5)


GAP = {
    "text": "Ada saw Eva",
    "pronoun": "saw",
    "pronoun_offset": 4,
    "a": "Ada",
    "a_offset": 0,
    "b": "Eva",
    "b_offset": 8,
}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**GAP, "a_offset": 1}, "'Ada' is not at 1"),
        ({**GAP, "b_offset": -3}, "'Eva' is not at -3"),
        ({**GAP, "pronoun": ""}, "'' is not at"),
        ({**GAP, "a": 3}, "a is 3, expected one of type str"),
        ({key: value for key, value in GAP.items() if key != "b_offset"}, "b_offset is None"),
        ({"txt": "a"}, "expected a document"),
        ({"text": "a", "tokens": ["a"]}, "expected a document"),
        (3, "sentences"),
        ([["a"], 3], "sentences"),
        (["a", ["b"]], "token"),
    ],
)
def test_a_value_that_is_not_a_document_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        PRONOUNS.from_text(given)
    if "pronoun" not in str(given):
        with pytest.raises(ValueError, match=message):
            COREFERENCE.from_text(given)


def test_a_text_is_read_as_the_tokens_of_its_sentences():
    assert read_sentences("") == []
    assert read_sentences("Mr. Roe ran. So did I.") == [["Mr.", "Roe", "ran", "."], ["So", "did", "I", "."]]


@pytest.mark.parametrize(("recipe", "task"), [("litbank-coref", "coreference"), ("gap", "pronouns")])
def test_the_recipes_train(small, recipe, task):
    like = small(task)
    files = {"train": like.train, "dev": None, "test": like.train, "out": like.out}
    changes = {"elmo": like.elmo, "cache": like.cache, "epochs": 1, "device": "cpu"}
    config = load_recipe(str(RECIPES / f"{recipe}.toml"), {task: TASKS[task].defaults}, {**files, **changes})
    assert 0 <= train(config).score <= 1


def test_litbank_and_gap_are_read(data):
    folder = data / "tasks" / "coref"
    if not (folder / "litbank").is_dir():
        pytest.skip(f"no folder {folder}")
    documents = COREFERENCE.read(str(folder / "litbank" / "dev.gold_conll.gz"))
    assert (len(documents), sum(len(document.clusters) for document in documents)) == (10, 776)
    assert COREFERENCE.score(documents, [document.clusters for document in documents])["conll_f1"] == pytest.approx(1)
    assert len(PRONOUNS.read(str(folder / "gap" / "gap-validation.tsv"))) == 454
