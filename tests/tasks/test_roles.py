"""Semantic roles: the network against its equations, decoding against enumeration, the score against its definition."""

import functools
import itertools
import json
from pathlib import Path

import pytest
import torch
from task_examples import learn_by_heart, small_config

from elmokit.tasks import TASKS, TaskConfig, load_task, train
from elmokit.tasks.roles import HighwayLSTM, RolePrediction, RoleSentence, collect_predicates
from elmokit.tasks.settings import load_recipe
from elmokit.tasks.tagging import spans_of, to_bio

RECIPE = Path(__file__).resolve().parents[2] / "src" / "elmokit" / "recipes" / "tasks" / "srl.toml"
ROLES = TASKS["roles"]

# sentence, and for each predicate its place and its arguments as role:first-last
EXAMPLES = [
    ("Ada wrote a letter", [(1, "ARG0:0-0 V:1-1 ARG1:2-3")]),
    ("Maria said Ada wrote it", [(1, "ARG0:0-0 V:1-1 ARG1:2-4"), (3, "ARG0:2-2 V:3-3 ARG1:4-4")]),
    ("nothing here", []),
    ("the letter , Ada said , was long", [(4, "ARG1:0-1 ARG0:3-3 V:4-4 C-ARG1:6-7"), (6, "ARG1:0-1 V:6-6 ARG2:7-7")]),
    ("wrote", [(0, "V:0-0")]),
    ("they gave Oslo the letter yesterday", [(1, "ARG0:0-0 V:1-1 ARG2:2-2 ARG1:3-4 ARGM-TMP:5-5")]),
    ("yesterday they wrote", [(2, "ARGM-TMP:0-0 ARG0:1-1 V:2-2")]),
    ("Ada who gave it smiled", [(2, "ARG0:0-0 R-ARG0:1-1 V:2-2 ARG1:3-3"), (4, "ARG0:0-3 V:4-4")]),
    ("did they say it ?", [(2, "ARG0:1-1 V:2-2 ARG1:3-3")]),
    ("Oslo", []),
]


def write_examples(path: Path) -> Path:
    """The examples as one document of CoNLL-2012."""
    lines = ["#begin document (d); part 000"]
    for text, propositions in EXAMPLES:
        words = text.split()
        columns = []
        for _, spans in propositions:
            column = ["*"] * len(words)
            for span in spans.split():
                role, places = span.split(":")
                first, last = map(int, places.split("-"))
                column[first] = f"({role}{column[first]}"
                column[last] += ")"
            columns.append(column)
        predicates = {place for place, _ in propositions}
        for number, word in enumerate(words):
            frame = [word, "01"] if number in predicates else ["-", "-"]
            row = ["d", "0", str(number), word, "X", "*", *frame, "-", "-", "*", *(c[number] for c in columns), "-"]
            lines.append("\t".join(row))
        lines.append("")
    path.write_text("\n".join([*lines, "#end document"]), encoding="utf-8")
    return path


def configure(folder: Path, elmo: str, **changes: object) -> TaskConfig:
    """A small training on the examples above."""
    file = write_examples(folder / "train.gold_conll")
    return small_config("roles", file, folder, elmo, **{"hidden_dim": 24, "num_layers": 3, **changes})


@pytest.fixture
def small(tmp_path, tiny_elmo):
    """small(**changes)."""
    return functools.partial(configure, tmp_path, tiny_elmo)


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory, tiny_elmo):
    return train(configure(tmp_path_factory.mktemp("roles"), tiny_elmo, elmo_at="none")).folder


@pytest.fixture
def trained(trained_folder):
    """Trained a little, and the test's own to change."""
    return load_task(trained_folder)


# ---- the network -----------------------------------------------------------------------------------------------------


def highway_by_steps(network: HighwayLSTM, tokens: list[torch.Tensor]) -> list[torch.Tensor]:
    """The equations of the class, one token after the other."""
    for layer, (lstm, gate, carry) in enumerate(zip(network.lstms, network.gates, network.carries, strict=True)):
        tokens = tokens[::-1] if layer % 2 else tokens
        h, c, outputs = torch.zeros(network.output_dim).double(), torch.zeros(network.output_dim).double(), []
        for x in tokens:
            blocks = lstm.weight_ih_l0 @ x + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ h + lstm.bias_hh_l0
            i, f, g, o = blocks.chunk(4)
            r = torch.sigmoid(gate.weight @ torch.cat([x, h]) + gate.bias)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outputs.append(r * h + (1 - r) * (carry.weight @ x))
        tokens = outputs[::-1] if layer % 2 else outputs
    return tokens


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_the_highway_lstm_is_its_equations_step_by_step_whatever_follows_a_sentence(num_layers):
    torch.manual_seed(num_layers)
    network = HighwayLSTM(5, 4, num_layers=num_layers, dropout=0.5).double().eval()
    lengths = [6, 1, 0, 4]
    x, mask = torch.randn(4, 6, 5).double(), torch.arange(6) < torch.tensor(lengths).unsqueeze(1)
    out = network(x, mask)
    assert not out[~mask].any()
    for row, length in enumerate(lengths):
        if length:
            torch.testing.assert_close(out[row, :length], torch.stack(highway_by_steps(network, [*x[row, :length]])))


@pytest.mark.parametrize("seed", range(5))
def test_decoding_gives_the_best_valid_sequence_and_never_another(trained, seed):
    torch.manual_seed(seed)
    network = trained.network
    tags = network.tags
    some = [tags.index(tag) for tag in ("O", "B-ARG0", "I-ARG0", "B-ARG1", "I-ARG1")]
    lengths = [4, 0, 2, 3]
    mask = torch.arange(4) < torch.tensor(lengths).unsqueeze(1)
    emissions = torch.full((4, 4, len(tags)), -50.0)
    emissions[:, :, some] = torch.randn(4, 4, len(some)) * 3
    for row, decoded in enumerate(network.decoder.decode(emissions, mask)):
        names = [tags[number] for number in decoded]
        assert len(names) == lengths[row]
        assert to_bio(names) == names
        paths = itertools.product(some, repeat=lengths[row])
        valid = [path for path in paths if to_bio([tags[n] for n in path]) == [tags[n] for n in path]]
        best = max(valid, key=lambda path: sum(float(emissions[row, t, n]) for t, n in enumerate(path)))
        assert tuple(decoded) == best


def test_the_decoder_knows_the_rules_and_learns_nothing(trained):
    assert all(not parameter.any() for parameter in trained.network.decoder.parameters())


def test_the_predicates_tagger_leaves_the_vectors_of_words_to_the_roles(trained):
    network = trained.network.train()
    network.zero_grad()
    network.loss([RoleSentence(["nothing", "here"], [], [])]).backward()  # no predicate, so no role to learn from
    assert network.is_predicate.weight.grad.any()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in network.inputs.parameters())


# ---- training and use ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("elmo_at", ["none", "both"])
def test_ten_examples_are_memorized_and_the_saved_task_answers_the_same(small, elmo_at, device):
    config = small(elmo_at=elmo_at, device=device, epochs=80, patience=80, rate_decay=1.0, learning_rate=0.02)
    trained = learn_by_heart(config, "f1", "predicate_f1")
    assert trained.evaluate(config.train)["f1"] == 1.0
    examples = ROLES.read(config.train)
    given = [{"tokens": example.tokens, "predicate": p} for example in examples for p in example.predicates]
    tags = [answer["propositions"][0]["tags"] for answer in trained.predict(given)]
    assert tags == [row for example in examples for row in example.tags]


def test_a_file_is_read_with_the_tags_of_each_predicate(tmp_path):
    examples = ROLES.read(str(write_examples(tmp_path / "x_conll")))
    assert [example.tokens for example in examples] == [text.split() for text, _ in EXAMPLES]
    assert [example.predicates for example in examples] == [[place for place, _ in rows] for _, rows in EXAMPLES]
    for example, (_, rows) in zip(examples, EXAMPLES, strict=True):
        for tags, (_, spans) in zip(example.tags, rows, strict=True):
            written = [f"{role}:{start}-{end - 1}" for role, start, end in spans_of(tags)]
            assert written == spans.split()


def test_any_text_has_a_prediction_alone_as_in_a_batch(trained):
    odd = ["", "   ", [], ["", "\x00"], "a" * 300, "Zürich 東京 wrote", {"text": "Ada wrote ."}, {"tokens": ["Ada"]}]
    with torch.no_grad():
        trained.network.is_predicate.bias.fill_(10.0)  # so that every word is taken for a predicate
    answers = trained.predict(odd)
    assert [len(answer["tokens"]) for answer in answers] == [0, 0, 0, 2, 1, 3, 3, 1]
    assert [len(answer["propositions"]) for answer in answers] == [0, 0, 0, 2, 1, 3, 3, 1]
    json.dumps(answers)
    assert [trained.predict([text])[0] for text in odd] == answers
    for answer in answers:
        for proposition in answer["propositions"]:
            assert proposition["word"] == answer["tokens"][proposition["predicate"]]
            assert to_bio(proposition["tags"]) == proposition["tags"]
            for argument in proposition["arguments"]:
                assert argument["text"] == " ".join(answer["tokens"][argument["start"] : argument["end"]])


def test_scores_of_a_sentence_are_the_same_alone_and_in_a_batch(trained):
    examples = ROLES.read(trained.config.train)
    network = trained.network.eval()

    def emissions(batch):
        embedded = network.inputs([example.tokens for example in batch])
        scores, mask = network._emissions(embedded, collect_predicates([example.predicates for example in batch]))
        return [row[live] for row, live in zip(scores, mask, strict=True)]

    together = emissions(examples)
    apart = [row for example in examples for row in emissions([example])]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": "Ada wrote", "predicate": 2}, "predicate is 2, expected the index of a token, 0 to 1"),
        ({"text": "Ada wrote", "predicate": -1}, "predicate is -1"),
        ({"text": "Ada wrote", "predicate": "wrote"}, "predicate is 'wrote'"),
        ({"text": "Ada wrote", "predicate": True}, "predicate is True"),
        ({"predicate": 0}, "expected a sentence"),
        ({"txt": "a"}, "expected a sentence"),
        (3, "sentences"),
    ],
)
def test_a_value_that_is_not_a_sentence_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ROLES.from_text(given)


def test_a_predicate_that_is_named_is_the_one_that_is_asked_for(trained):
    (answer,) = trained.predict([{"text": "Ada wrote it", "predicate": 2}])
    assert [proposition["predicate"] for proposition in answer["propositions"]] == [2]


def test_the_recipe_trains(small):
    like = small()
    files = {"train": like.train, "dev": None, "test": like.train, "out": like.out}
    changes = {"elmo": like.elmo, "cache": like.cache, "epochs": 1, "device": "cpu"}
    config = load_recipe(str(RECIPE), {"roles": ROLES.defaults}, {**files, **changes})
    assert 0 <= train(config).score <= 1


def test_predicates_are_scored_by_those_found_and_not_by_those_of_the_example():
    example = RoleSentence(["a", "b", "c"], [0, 2], [["B-V", "O", "O"], ["O", "O", "B-V"]])
    scores = ROLES.score([example], [RolePrediction([0, 2], example.tags, [1, 2])])
    assert scores["predicate_f1"] == 0.5


def test_the_roles_of_propbank_over_ewt_are_read(data):
    file = data / "tasks" / "srl" / "ewt_srl_dev.gold_conll.gz"
    if not file.is_file():
        pytest.skip(f"no file {file}")
    examples = ROLES.read(str(file))
    assert len(examples) == 1963
    assert sum(len(example.tags) for example in examples) == 4960
    predictions = [RolePrediction(example.predicates, example.tags, example.predicates) for example in examples]
    assert ROLES.score(examples, predictions) == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "predicate_f1": 1.0}
