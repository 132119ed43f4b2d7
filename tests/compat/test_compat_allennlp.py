"""AllenNLP's modules below `Elmo`: signatures, shapes, the reference's numbers, and weights that AllenNLP saved."""

import copy
import inspect
import json
import pickle

import h5py
import numpy as np
import pytest
import torch
from torch import nn

import reference
from elmokit.compat import Elmo, ElmoTokenEmbedder, ScalarMix, _ElmoBiLm, _ElmoCharacterEncoder, batch_to_ids
from elmokit.storage.names import OFFICIAL

SENTENCES = [["The", "bank", "lent", "money"], ["Hi"], ["naïve", "日本", "."]]
WIDTH = 10  # 2P


@pytest.fixture(scope="module")
def made(official_model):
    return official_model(6, highways=2)


@pytest.fixture(scope="module")
def paths(made):
    return made.options_path, made.weights_path


def close(found, expected, atol=1e-5):
    assert tuple(found.shape) == expected.shape
    np.testing.assert_allclose(found.detach(), expected, atol=atol)


def parameters_of(module):
    """(name, default) of each argument that AllenNLP has; those that only elmokit has come by name, after them."""
    return [
        (name, argument.default)
        for name, argument in inspect.signature(module).parameters.items()
        if argument.kind is not inspect.Parameter.KEYWORD_ONLY
    ]


def test_signatures_and_defaults_are_allennlp_s():
    none = inspect.Parameter.empty
    assert parameters_of(ElmoTokenEmbedder) == [
        ("options_file", OFFICIAL["original"].options), ("weight_file", OFFICIAL["original"].weights),
        ("do_layer_norm", False), ("dropout", 0.5), ("requires_grad", False), ("projection_dim", None),
        ("vocab_to_cache", None), ("scalar_mix_parameters", None),
    ]  # fmt: skip
    assert parameters_of(_ElmoBiLm) == [
        ("options_file", none), ("weight_file", none), ("requires_grad", False), ("vocab_to_cache", None),
    ]  # fmt: skip
    assert parameters_of(_ElmoCharacterEncoder) == [
        ("options_file", none), ("weight_file", none), ("requires_grad", False),
    ]  # fmt: skip
    assert parameters_of(ScalarMix) == [
        ("mixture_size", none), ("do_layer_norm", False), ("initial_scalar_parameters", None), ("trainable", True),
    ]  # fmt: skip
    forward = [list(inspect.signature(module.forward).parameters)[1:] for module in (ElmoTokenEmbedder, ScalarMix)]
    assert forward == [["elmo_tokens", "word_inputs"], ["tensors", "mask"]]


# ---- ScalarMix ------------------------------------------------------------------------------------------------------


def test_scalar_mix_is_the_weighted_sum_of_its_tensors():
    torch.manual_seed(0)
    tensors = [torch.randn(3, 4, 5) for _ in range(3)]
    mix = ScalarMix(3)
    close(mix(tensors), np.mean([tensor.numpy() for tensor in tensors], axis=0), 1e-6)
    mix = ScalarMix(3, initial_scalar_parameters=[1.0, 2.0, 3.0])
    with torch.no_grad():
        mix.gamma.fill_(0.5)
    e1, e2, e3 = np.exp([1.0, 2.0, 3.0])
    by_hand = sum(e * tensor.numpy() for e, tensor in zip((e1, e2, e3), tensors, strict=True)) / (e1 + e2 + e3)
    close(mix(tensors), 0.5 * by_hand, 1e-6)
    close(mix([tensor[0, 0:1] for tensor in tensors], torch.zeros(1)), 0.5 * by_hand[0, 0:1], 1e-6)  # any shape


def test_scalar_mix_normalizes_over_the_unmasked_elements_of_the_batch():
    torch.manual_seed(1)
    tensors = [3 + torch.randn(3, 4, 5) for _ in range(3)]
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]], dtype=torch.bool)
    weights = [0.3, -0.2, 1.0]
    found = ScalarMix(3, do_layer_norm=True, initial_scalar_parameters=weights)(tensors, mask)
    stacked = np.stack([tensor.numpy() for tensor in tensors])
    close(found, reference.scalar_mix(stacked, mask.numpy(), np.array(weights), 1.0, layer_norm=True), 1e-5)
    with pytest.raises(ValueError, match="needs a mask"):
        ScalarMix(3, do_layer_norm=True)(tensors)


def test_scalar_mix_has_allennlp_s_parameters():
    mix = ScalarMix(3, initial_scalar_parameters=[1, 2, 3])
    assert {name: tuple(tensor.shape) for name, tensor in mix.state_dict().items()} == {
        "gamma": (1,), "scalar_parameters.0": (1,), "scalar_parameters.1": (1,), "scalar_parameters.2": (1,),
    }  # fmt: skip
    assert [parameter.item() for parameter in mix.scalar_parameters] == [1, 2, 3]
    mix([torch.ones(1, 1), torch.zeros(1, 1), torch.zeros(1, 1)]).sum().backward()
    assert all(parameter.grad is not None for parameter in mix.parameters())
    assert not any(parameter.requires_grad for parameter in ScalarMix(2, trainable=False).parameters())


def test_scalar_mix_refuses_a_wrong_number_of_tensors_or_weights():
    with pytest.raises(ValueError, match="mixes 3 tensors, not 2"):
        ScalarMix(3)([torch.zeros(1, 1)] * 2)
    with pytest.raises(ValueError, match="initial_scalar_parameters has 2 weights, mixture_size is 3"):
        ScalarMix(3, initial_scalar_parameters=[0.0, 1.0])


# ---- _ElmoBiLm, _ElmoCharacterEncoder -------------------------------------------------------------------------------


def test_the_bilm_gives_every_layer_with_the_boundaries(made, paths):
    bilm = _ElmoBiLm(*paths)
    output = bilm(batch_to_ids(SENTENCES))
    assert (bilm.num_layers, bilm.get_output_dim()) == (3, WIDTH)
    assert output["mask"].tolist() == [[True] * 6, [True] * 3 + [False] * 3, [True] * 5 + [False]]
    assert len(output["activations"]) == 3
    for number, layer in enumerate(output["activations"]):
        assert layer.shape == (3, 6, WIDTH)
        for row, sentence in zip(layer, SENTENCES, strict=True):
            close(row[: len(sentence) + 2], made.expected(sentence).with_boundaries[number])
            assert not row[len(sentence) + 2 :].any()


def test_the_bilm_carries_state_when_asked_and_trains_when_asked(made, paths):
    bilm, ids = _ElmoBiLm(*paths, state="carry"), batch_to_ids(SENTENCES[:1])
    first, second = (bilm(ids)["activations"][-1][0] for _ in range(2))
    before = made.expected(SENTENCES[0])
    close(first, before.with_boundaries[-1])
    close(second, made.expected(SENTENCES[0], state=before.state).with_boundaries[-1])
    assert not any(parameter.requires_grad for parameter in bilm.parameters())
    bilm = _ElmoBiLm(*paths, requires_grad=True)
    bilm(ids)["activations"][-1].sum().backward()
    assert all(parameter.grad is not None for parameter in bilm.parameters())


def test_the_character_encoder_gives_each_token_and_at_padding_the_vector_of_zeros(made, paths):
    encoder = _ElmoCharacterEncoder(*paths)
    output = encoder(batch_to_ids(SENTENCES))
    assert output["token_embedding"].shape == (3, 6, encoder.get_output_dim())
    assert output["mask"].sum(dim=1).tolist() == [6, 3, 5]
    nothing = made.arrays | {"char_embed": np.zeros_like(made.arrays["char_embed"])}
    padding = reference.token_vector(made.options, nothing, "any word")
    for row, sentence in zip(output["token_embedding"], SENTENCES, strict=True):
        expected = [reference.token_vector(made.options, made.arrays, word) for word in ["<S>", *sentence, "</S>"]]
        close(row, np.stack(expected + [padding] * (6 - len(expected))))
    with pytest.raises(ValueError, match=r"\(2, 3, 49\), this model reads \(B, T, 50\)"):
        encoder(torch.zeros(2, 3, 49, dtype=torch.long))


def test_the_character_encoder_has_only_its_own_parameters_and_trains_when_asked(paths):
    frozen = _ElmoCharacterEncoder(*paths)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert not any("layers" in name for name, _ in frozen.named_parameters())
    encoder = _ElmoCharacterEncoder(*paths, requires_grad=True)
    encoder(batch_to_ids(SENTENCES))["token_embedding"].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


# ---- ElmoTokenEmbedder ----------------------------------------------------------------------------------------------


def test_the_token_embedder_gives_one_mix_of_the_layers(made, paths):
    embedder = ElmoTokenEmbedder(*paths, dropout=0.0)
    found = embedder(batch_to_ids(SENTENCES))
    assert embedder.get_output_dim() == WIDTH
    for row, sentence in zip(found, SENTENCES, strict=True):
        close(row[: len(sentence)], made.expected(sentence).layers.mean(axis=0))
        assert not row[len(sentence) :].any()
    ids = batch_to_ids(SENTENCES)
    assert embedder(ids.expand(2, *ids.shape), torch.zeros(2, 3, 4)).shape == (2, 3, 4, WIDTH)


def test_the_token_embedder_drops_in_training_only(paths):
    embedder, ids = ElmoTokenEmbedder(*paths), batch_to_ids(SENTENCES)
    assert (embedder(ids)[0] == 0).any()
    embedder.eval()
    assert torch.equal(embedder(ids), embedder(ids))


def test_the_token_embedder_projects_when_asked(made, paths):
    embedder = ElmoTokenEmbedder(*paths, dropout=0.0, projection_dim=4, scalar_mix_parameters=[0.5, -1.0, 2.0])
    weight, bias = (embedder.state_dict()[f"_projection.{part}"].numpy() for part in ("weight", "bias"))
    every = made.expected(SENTENCES[0]).layers
    mixed = reference.scalar_mix(every[:, None], np.ones((1, 4)), np.array([0.5, -1.0, 2.0]), 1.0)
    close(embedder(batch_to_ids(SENTENCES[:1])), mixed @ weight.T + bias)
    assert embedder.get_output_dim() == 4
    assert [name for name, value in embedder.named_parameters() if value.requires_grad] == [
        "_projection.weight", "_projection.bias",
    ]  # fmt: skip


# ---- what AllenNLP saved --------------------------------------------------------------------------------------------


def allennlp_state(options, arrays, mixes):
    """The `state_dict` that AllenNLP's Elmo has after it read the official arrays, by its own rules of loading."""
    cells, state = options["lstm"]["dim"], {}
    encoder = "_elmo_lstm._token_embedder."
    padding = np.zeros((1, arrays["char_embed"].shape[1]), dtype=np.float32)
    state[encoder + "_char_embedding_weights"] = np.concatenate([padding, arrays["char_embed"]])
    for i in range(len(options["char_cnn"]["filters"])):
        state[f"{encoder}char_conv_{i}.weight"] = arrays[f"CNN/W_cnn_{i}"][0].transpose(2, 1, 0)
        state[f"{encoder}char_conv_{i}.bias"] = arrays[f"CNN/b_cnn_{i}"]
    for k in range(options["char_cnn"]["n_highway"]):
        high = f"CNN_high_{k}/"
        weight = np.concatenate([arrays[high + "W_transform"].T, -arrays[high + "W_carry"].T])
        bias = np.concatenate([arrays[high + "b_transform"], -arrays[high + "b_carry"]])
        state |= {f"{encoder}_highways._layers.{k}.weight": weight, f"{encoder}_highways._layers.{k}.bias": bias}
    state[encoder + "_projection.weight"] = arrays["CNN_proj/W_proj"].T
    state[encoder + "_projection.bias"] = arrays["CNN_proj/b_proj"]
    order = np.concatenate([np.arange(cells) + cells * gate for gate in (0, 2, 1, 3)])  # i, j, f, o -> i, f, j, o
    for d, direction in enumerate(("forward", "backward")):
        for k in range(options["lstm"]["n_layers"]):
            theirs = f"_elmo_lstm._elmo_lstm.{direction}_layer_{k}."
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell/"
            joined, width = arrays[cell + "W_0"], len(arrays[cell + "W_0"]) // 2
            bias = arrays[cell + "B"].copy()
            bias[2 * cells : 3 * cells] += 1
            state[theirs + "input_linearity.weight"] = joined[:width].T[order]
            state[theirs + "state_linearity.weight"] = joined[width:].T[order]
            state[theirs + "state_linearity.bias"] = bias[order]
            state[theirs + "state_projection.weight"] = arrays[cell + "W_P_0"].T
    for k, (weights, gamma) in enumerate(mixes):
        state |= {f"scalar_mix_{k}.scalar_parameters.{j}": np.array([w]) for j, w in enumerate(weights)}
        state[f"scalar_mix_{k}.gamma"] = np.array([gamma])
    return {name: torch.from_numpy(np.array(values, dtype=np.float32)) for name, values in state.items()}


MIXES = [([0.5, -1.0, 2.0], 1.5), ([0.0, 0.1, 0.2], 0.7)]


@pytest.fixture(scope="module")
def other(official_model):
    """Another model of the same sizes, which the modules have before they load what was saved."""
    made = official_model(7, highways=2)
    return made.options_path, made.weights_path


def expected_mix(made, sentence, weights, gamma):
    return reference.scalar_mix(
        made.expected(sentence).layers[:, None], np.ones((1, len(sentence))), np.array(weights), gamma
    )[0]


def test_elmo_loads_the_weights_and_mixes_that_allennlp_saved(made, other):
    elmo = Elmo(*other, 2, dropout=0)
    elmo.load_state_dict(allennlp_state(made.options, made.arrays, MIXES))
    output = elmo(batch_to_ids(SENTENCES))
    for mixed, (weights, gamma) in zip(output["elmo_representations"], MIXES, strict=True):
        for row, sentence in zip(mixed, SENTENCES, strict=True):
            close(row[: len(sentence)], expected_mix(made, sentence, weights, gamma))


def test_a_task_model_that_allennlp_saved_loads_where_its_embedder_is(made, other):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.text_field_embedder = nn.ModuleDict(
                {"token_embedder_elmo": ElmoTokenEmbedder(*other, projection_dim=3)}
            )
            self.tag = nn.Linear(3, 2)

    tagger, place = Tagger(), "text_field_embedder.token_embedder_elmo."
    saved = {f"{place}_elmo.{name}": t for name, t in allennlp_state(made.options, made.arrays, MIXES[:1]).items()}
    saved |= {f"{place}_projection.weight": torch.randn(3, WIDTH), f"{place}_projection.bias": torch.randn(3)}
    saved |= {"tag.weight": torch.randn(2, 3), "tag.bias": torch.randn(2)}
    names = set(saved)
    tagger.load_state_dict(saved)
    assert set(saved) == names  # the caller's mapping stays as it is
    found = tagger.eval().text_field_embedder["token_embedder_elmo"](batch_to_ids(SENTENCES[:1]))
    projected = expected_mix(made, SENTENCES[0], *MIXES[0]) @ saved[f"{place}_projection.weight"].numpy().T
    close(found[0], projected + saved[f"{place}_projection.bias"].numpy())


def test_the_parts_load_what_allennlp_saved_of_them(made, other):
    state = allennlp_state(made.options, made.arrays, [])
    state = {name.removeprefix("_elmo_lstm."): tensor for name, tensor in state.items()}
    bilm = _ElmoBiLm(*other)
    bilm.load_state_dict(state | {"_word_embedding.weight": torch.zeros(3, 5)})  # of vocab_to_cache
    close(bilm(batch_to_ids(SENTENCES[:1]))["activations"][-1][0], made.expected(SENTENCES[0]).with_boundaries[-1])
    encoder = _ElmoCharacterEncoder(*other)
    start = "_token_embedder."
    encoder.load_state_dict({n.removeprefix(start): t for n, t in state.items() if n.startswith(start)})
    found = encoder(batch_to_ids([["bank"]]))["token_embedding"][0, 1]
    close(found, reference.token_vector(made.options, made.arrays, "bank"))


def test_what_is_missing_or_of_another_size_is_an_error(made, other, official_model):
    elmo = Elmo(*other, 1)
    state = allennlp_state(made.options, made.arrays, MIXES[:1])
    del state["_elmo_lstm._elmo_lstm.backward_layer_1.state_linearity.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*layers\.1\.bias"):
        elmo.load_state_dict(state)
    wider = official_model(8, highways=2, cell_dim=9)
    with pytest.raises(RuntimeError, match="size mismatch"):
        elmo.load_state_dict(allennlp_state(wider.options, wider.arrays, MIXES[:1]))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*mixes\.1"):
        elmo.load_state_dict(allennlp_state(made.options, made.arrays, MIXES))


def test_elmokit_s_own_names_load_as_before_and_modules_can_be_copied(made, other, paths):
    for make in (lambda p: Elmo(*p, 1, dropout=0), lambda p: ElmoTokenEmbedder(*p, dropout=0)):
        saved = make(paths)
        for copied in (copy.deepcopy(saved), pickle.loads(pickle.dumps(saved)), make(other)):
            copied.load_state_dict(saved.state_dict())
            for name, tensor in saved.state_dict().items():
                assert torch.equal(copied.state_dict()[name], tensor), name


def test_the_published_activations_come_out_of_the_parts(golden):
    files = golden / "options.json", golden / "lm_weights.hdf5"
    first = json.loads((golden / "sentences.json").read_text(encoding="utf-8"))
    batch = [sentences[0].split() for sentences in first]
    bilm = _ElmoBiLm(*files, state="carry")
    output = bilm(batch_to_ids(batch))
    for i, sentence in enumerate(batch):
        with h5py.File(golden / f"lm_embeddings_{i}.hdf5") as file:
            published = np.concatenate(list(file["0"][()]), axis=-1)
        found = output["activations"][-1][i, 1 : len(sentence) + 1].numpy()
        assert np.allclose(found, published, atol=1e-6, rtol=1e-5)
    vocabulary = (golden / "vocab_test.txt").read_text(encoding="utf-8").split()
    with h5py.File(golden / "elmo_token_embeddings.hdf5") as file:
        table = file["embedding"][()]
    words = vocabulary[3:]  # after <S>, </S>, <UNK>
    found = _ElmoCharacterEncoder(*files)(batch_to_ids([words]))["token_embedding"][0, 1:-1].numpy()
    assert np.allclose(found, table[3:], atol=1e-6, rtol=1e-5)
