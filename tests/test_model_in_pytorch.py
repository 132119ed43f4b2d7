"""ELMo inside PyTorch programs: freezing, DDP, autocast, inference mode, changed weights, export."""

import copy
import io
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary, batch_to_ids, kernels
from elmokit.network import OutputLayer, ScalarMix
from elmokit.text import Lexicon

SENTENCES = ["The bank lent money .", "Rain", "He sat by the river bank ."]
MORE = ["A boat on the river .", "Money"]
CHARACTERS = BiLMConfig(char_dim=4, filters=((1, 4), (2, 6)), num_highways=1, cell_dim=24, projection_dim=10)
WORDS = ("<S>", "</S>", "<UNK>", "The", "bank", "money")


def tiny(**settings):
    torch.manual_seed(0)
    return ELMo(BiLM(CHARACTERS), **settings).eval()


def word_level():
    torch.manual_seed(0)
    sizes = BiLMConfig(num_words=len(WORDS), cell_dim=24, projection_dim=10)
    return ELMo(BiLM(sizes), vocabulary=Vocabulary(WORDS)).eval()


def with_lexicon():
    torch.manual_seed(0)
    characters, words = list("abemnoy"), ["bank", "money"]
    sizes = BiLMConfig(
        num_lexicon_characters=len(characters), num_lexicon_words=len(words), word_dim=6, char_dim=4, filters=((1, 8),),
        num_highways=1, cell_dim=24, projection_dim=10,
    )  # fmt: skip
    return ELMo(BiLM(sizes), lexicon=Lexicon(characters, words)).eval()


def fresh_vectors(model, sentences=SENTENCES):
    """The vectors of a copy, which has no cache of its own yet."""
    return copy.deepcopy(model).embed(sentences, layers="all")


def assert_same(left, right, atol=1e-6):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, atol=atol, rtol=0)


# ---- inference mode


@pytest.mark.parametrize("state", ["stateless", "carry"])
def test_calls_inside_and_outside_of_inference_mode_may_alternate(state):
    model, expected = tiny(state=state), tiny(state=state)
    for inside, outside in ((SENTENCES, MORE), (["A new word"], ["And another one"]), (MORE, SENTENCES)):
        with torch.inference_mode():
            assert_same(model.embed(inside), expected.embed(inside))
        assert_same(model.embed(outside), expected.embed(outside))  # words that were cached inside, and new ones


def test_after_inference_mode_a_model_can_be_trained():
    model = tiny(freeze=False, state="carry")
    with torch.inference_mode():
        model.embed(SENTENCES)
        model(model.to_ids(SENTENCES))
    model(model.to_ids(SENTENCES)).mixes[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_model_that_is_loaded_inside_inference_mode_works_outside_of_it(tmp_path, quantize):
    tiny(output_layer=OutputLayer(len(WORDS), 10), vocabulary=Vocabulary(WORDS)).save_pretrained(tmp_path)
    expected = ELMo.from_pretrained(tmp_path, quantize=quantize)
    with torch.inference_mode():
        model = ELMo.from_pretrained(tmp_path, quantize=quantize)
        assert_same(model.embed(SENTENCES), expected.embed(SENTENCES))
    assert_same(model.embed(MORE), expected.embed(MORE))
    assert model.perplexity(MORE) == expected.perplexity(MORE)
    assert not any(parameter.is_inference() for parameter in model.parameters())
    model(model.to_ids(SENTENCES)).mixes[0].sum().backward()
    assert model.mixes[0].gamma.grad is not None


def test_official_files_that_are_loaded_inside_inference_mode_can_be_trained_outside_of_it(official_model):
    files = official_model()
    with torch.inference_mode():
        model = ELMo.from_files(files.options_path, files.weights_path, freeze=False)
    model(model.to_ids(SENTENCES)).mixes[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_network_that_is_built_inside_inference_mode_gives_its_vectors():
    with torch.inference_mode():
        model = tiny()
        inside = model.embed(SENTENCES)
    assert_same(inside, tiny().embed(SENTENCES))
    assert_same(model.embed(MORE), tiny().embed(MORE))


# ---- autocast


def needs_bfloat16():
    if not kernels.bfloat16_works():
        pytest.skip("bfloat16 products crash on this CPU")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [tiny, word_level, with_lexicon])
@pytest.mark.parametrize("freeze", [True, False])
def test_forward_and_backward_run_under_autocast_close_to_float32(make, freeze, dtype):
    needs_bfloat16()
    model = make()
    model.freeze = freeze
    ids = model.to_ids(SENTENCES)
    exact = model(ids)
    with torch.autocast("cpu", dtype):
        output = model(ids)
        assert output.mixes[0].dtype == dtype
        loss = output.mixes[0].float().square().sum()
    torch.testing.assert_close(output.mixes[0].float(), exact.mixes[0], atol=0.03, rtol=0)
    loss.backward()
    grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.zero_grad()
    exact.mixes[0].square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.cosine_similarity(grads[name].flatten(), parameter.grad.flatten(), dim=0) > 0.98, name


@pytest.mark.parametrize("make", [tiny, word_level, with_lexicon])
def test_vectors_under_autocast_leave_nothing_behind_for_calls_without_it(make):
    needs_bfloat16()
    model = make()
    expected = fresh_vectors(model)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model.embed(SENTENCES, layers="all")
    assert_same(rounded, expected, atol=0.03)
    assert np.abs(rounded[0] - expected[0]).max() > 1e-5
    assert_same(model.embed(SENTENCES, layers="all"), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(model.embed(SENTENCES, layers="all"), rounded)


def test_embedding_inside_an_autocast_block_takes_no_gradient_from_the_training_step_after_it():
    needs_bfloat16()
    model = tiny(freeze=False)
    with torch.autocast("cpu", torch.bfloat16):
        model.embed(SENTENCES)
        model.embed_words(["bank"])
        loss = model(model.to_ids(SENTENCES)).mixes[0].float().sum()
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_int8_model_computes_under_autocast_as_without_it(tmp_path, dtype):
    tiny().save_pretrained(tmp_path)
    model = ELMo.from_pretrained(tmp_path, quantize="int8")
    expected = fresh_vectors(model)
    ids = model.to_ids(SENTENCES)
    layers = model(ids).layers
    if dtype == torch.bfloat16:
        needs_bfloat16()
    with torch.autocast("cpu", dtype):
        assert_same(model.embed(SENTENCES, layers="all"), expected)
        assert torch.equal(model(ids).layers, layers)


def test_autocast_to_bfloat16_is_refused_where_it_would_kill_the_process(monkeypatch):
    model = tiny(output_layer=OutputLayer(len(WORDS), 10), vocabulary=Vocabulary(WORDS))
    ids, layers = model.to_ids(SENTENCES), torch.ones(3, 1, 2, 20)
    state = model.bilm.initial_state(2)
    monkeypatch.setattr(kernels, "bfloat16_works", lambda: False)
    for products in (
        lambda: model(ids),
        lambda: model.embed(SENTENCES),
        lambda: model.embed_words(["bank"]),
        lambda: model.perplexity(SENTENCES),
        lambda: model.mix(layers, torch.ones(1, 2, dtype=torch.bool)),
        lambda: ScalarMix(3)(layers, torch.ones(1, 2, dtype=torch.bool)),
        lambda: model.output_layer.logits(torch.ones(2, 10)),
        lambda: model.bilm.contextualize(torch.ones(3, 2, 10), torch.tensor([3, 2])),
        lambda: model.bilm.run_layers(torch.ones(2, 3, 2, 10), torch.tensor([3, 2]), state),
        lambda: model.bilm.embed_groups([torch.ones(2, 50, dtype=torch.long)]),
    ):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="bfloat16 products crash"):
            products()
        with torch.autocast("cpu", torch.float16):
            products()


# ---- freezing


def trained(model):
    """Names of the parameters that a step changes."""
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model(model.to_ids(SENTENCES)).mixes[0].square().sum().backward()
    optimizer.step()
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def names(model, *parts):
    return {name for name, _ in model.named_parameters() if name.startswith(("mixes.", *parts))}


def call_unfreeze(model):
    model.unfreeze()


def set_the_flag(model):
    model.freeze = False


def set_each_parameter(model):
    for parameter in model.bilm.parameters():
        parameter.requires_grad = True


@pytest.mark.parametrize("unfreeze", [call_unfreeze, set_the_flag, set_each_parameter])
def test_a_frozen_model_that_is_unfrozen_later_trains_every_weight(unfreeze):
    model = tiny()
    assert model.freeze
    model.embed(SENTENCES)
    assert trained(model) == names(model)
    unfreeze(model)
    assert not model.freeze
    assert trained(model) == names(model, "bilm.")
    assert_same(model.embed(SENTENCES, layers="all"), fresh_vectors(model))
    model.zero_grad()
    model.freeze = True
    assert model.freeze
    assert trained(model) == names(model)


@pytest.mark.parametrize("number", [int, np.int64])
def test_a_model_is_unfrozen_from_a_layer_up(number):
    model = tiny()
    for from_layer, parts in {
        2: ("bilm.layers.1",),
        1: ("bilm.layers.",),
        0: ("bilm.",),
        -1: ("bilm.layers.1",),  # layers below are frozen again
        -2: ("bilm.layers.",),
        -3: ("bilm.",),
    }.items():
        model.zero_grad()
        assert model.unfreeze(number(from_layer)) is model
        assert trained(model) == names(model, *parts)
        assert_same(model.embed(SENTENCES, layers="all"), fresh_vectors(model))


def test_a_single_parameter_that_requires_a_gradient_gets_one():
    model = tiny()
    model.bilm.layers[0].bias.requires_grad_(True)
    assert trained(model) == names(model, "bilm.layers.0.bias")


@pytest.mark.parametrize("from_layer", [3, -4, 1.0, "top", None, True])
def test_a_layer_to_unfreeze_from_that_does_not_exist_is_named(from_layer):
    model = tiny()
    with pytest.raises(ValueError, match=r"from_layer must be a number from 0 to 2.*not "):
        model.unfreeze(from_layer)
    assert model.freeze


def test_an_int8_model_cannot_be_unfrozen(tmp_path):
    tiny().save_pretrained(tmp_path)
    model = ELMo.from_pretrained(tmp_path, quantize="int8")
    for unfreeze in (call_unfreeze, set_the_flag):
        with pytest.raises(ValueError, match="load it without quantize to train it"):
            unfreeze(model)
    assert model.freeze


@pytest.mark.parametrize("from_layer", [0, 1, 2])
def test_gradients_are_the_finite_differences_of_the_reference(official_model, from_layer):
    """Central differences of the float64 reference, at a few elements of each weight."""
    files = official_model(cell_clip=3.0, proj_clip=3.0)
    model = ELMo.from_files(files.options_path, files.weights_path, num_mixes=0, dtype=torch.float64)
    model.unfreeze(from_layer)
    sentence = ["The", "bank", "lent", "money"]
    rng = np.random.default_rng(0)
    factors = rng.standard_normal(files.expected(sentence).layers.shape)  # (L+1, T, 2P)
    layers = model(batch_to_ids([sentence])).layers[:, 0]
    (layers * torch.from_numpy(factors)).sum().backward()
    lstm_name = "RNN_{}/RNN/MultiRNNCell/Cell{}/LSTMCell/{}"
    width = model.config.projection_dim
    compared = 0
    grads = {}
    for number, layer in enumerate(model.bilm.layers):
        for d in (0, 1) if number >= from_layer - 1 else ():
            joined = torch.cat([layer.input_weight.grad[d], layer.recurrent_weight.grad[d]])
            assert joined.shape[0] == 2 * width
            grads[lstm_name.format(d, number, "W_0")] = joined
            grads[lstm_name.format(d, number, "B")] = layer.bias.grad[d]
            grads[lstm_name.format(d, number, "W_P_0")] = layer.projection.grad[d]
    encoder = model.bilm.char_encoder
    if from_layer == 0:
        grads["char_embed"] = encoder.char_embedding.grad
        grads["CNN_proj/W_proj"] = encoder.projection.weight.grad.t()
        grads["CNN_proj/b_proj"] = encoder.projection.bias.grad
        grads["CNN_high_0/W_carry"] = encoder.highways[0].carry.weight.grad.t()
    frozen = [*encoder.parameters()] if from_layer else []
    frozen += [p for layer in model.bilm.layers[: max(0, from_layer - 1)] for p in layer.parameters()]
    assert all(parameter.grad is None for parameter in frozen)
    for name, grad in grads.items():
        largest = grad.abs().flatten().topk(min(2, grad.numel())).indices.tolist()
        for element in {*largest, int(rng.integers(grad.numel()))}:
            place = np.unravel_index(element, tuple(grad.shape))
            losses = []
            for sign in (1, -1):
                arrays = {key: values.astype(np.float64) for key, values in files.arrays.items()}
                arrays[name][place] += sign * 1e-6
                losses.append(float((files._replace(arrays=arrays).expected(sentence).layers * factors).sum()))
            slope = (losses[0] - losses[1]) / 2e-6
            assert abs(slope - grad[place].item()) < 1e-5 * max(1.0, abs(slope)), name
            compared += 1
    assert compared >= 2 * len(grads)


# ---- several processes

# DistributedDataParallel imports torch.distributed.nn, and default arguments there keep the group of that moment until
# the interpreter ends, with threads that run: it is imported above, when there is no group.


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.elmo = tiny(
            freeze=False, dropout=0.0, output_layer=OutputLayer(len(WORDS), 10), vocabulary=Vocabulary(WORDS)
        )
        self.tags = nn.Linear(self.elmo.dim, 3)

    def forward(self, ids):
        return self.tags(self.elmo(ids).mixes[0])


def loss_of(network, sentence):
    return network(batch_to_ids([sentence.split()])).square().mean()


def train_in_process(rank, world_size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    network = DistributedDataParallel(Tagger())
    warnings.simplefilter("error")
    for _ in range(2):  # a parameter without a gradient is an error in the second step
        network.zero_grad()
        loss_of(network, SENTENCES[rank]).backward()
    torch.save({name: p.grad for name, p in network.module.named_parameters()}, f"{folder}/grads-{rank}")
    group = weakref.ref(dist.group.WORLD)
    del network  # it holds the group too
    dist.destroy_process_group()
    assert group() is None, "its threads would still run when the interpreter ends, which can abort the process"


def test_an_open_model_trains_in_two_processes(tmp_path):
    torch.multiprocessing.spawn(train_in_process, (2, tmp_path), nprocs=2)
    network = Tagger()
    (sum(loss_of(network, sentence) for sentence in SENTENCES[:2]) / 2).backward()
    for rank in (0, 1):
        grads = torch.load(tmp_path / f"grads-{rank}")
        for name, parameter in network.named_parameters():
            if parameter.grad is None:
                assert name.startswith("elmo.output_layer."), name
                assert grads[name] is None
            else:
                torch.testing.assert_close(grads[name], parameter.grad, atol=1e-6, rtol=1e-4)


# ---- weights that change behind the cache


def multiply(model, weight):
    weight.data.mul_(1.5)


def negate(model, weight):
    weight.data.neg_()


def replace_data(model, weight):
    weight.data = weight.data * 1.5


def change_one_row(model, weight):
    weight.data.view(len(weight), -1)[len(weight) // 2].add_(3.0)


def change_one_column(model, weight):
    weight.data.view(len(weight), -1)[:, -1].add_(3.0)


def change_under_no_grad(model, weight):
    with torch.no_grad():
        weight.mul_(1.5)


def change_in_inference_mode(model, weight):
    with torch.inference_mode():
        weight.mul_(1.5)


def change_through_numpy(model, weight):
    weight.detach().numpy()[...] *= 1.5


def load_a_state(model, weight):
    state = copy.deepcopy(model.state_dict())
    (name,) = [name for name, parameter in model.named_parameters() if parameter is weight]
    state[name] = state[name] * 1.5
    model.load_state_dict(state)


def step_of_an_optimizer(model, weight):
    weight.grad = torch.randn_like(weight)
    torch.optim.AdamW([weight], lr=0.1).step()
    weight.grad = None


CHANGES = [
    multiply, negate, replace_data, change_one_row, change_one_column, change_under_no_grad, change_in_inference_mode,
    change_through_numpy, load_a_state, step_of_an_optimizer,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [tiny, word_level, with_lexicon])
def test_vectors_are_those_of_the_weights_of_now(make, change):
    model = make()
    for weight in model.bilm.word_parameters():
        if weight.ndim < 2:
            continue
        before = model.embed(SENTENCES, layers="all")
        change(model, weight)
        after = model.embed(SENTENCES, layers="all")
        assert_same(after, fresh_vectors(model))
        if change is not change_one_row:  # the row of a character that is not in the sentences
            assert max(np.abs(a - b).max() for a, b in zip(before, after, strict=True)) > 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16])
def test_other_dtypes_are_watched_too(dtype):
    if dtype == torch.bfloat16:
        needs_bfloat16()
    model = tiny().to(dtype)
    before = model.embed(SENTENCES)[0]
    model.bilm.char_encoder.projection.weight.data.mul_(1.5)
    assert np.abs(model.embed(SENTENCES)[0] - before).max() > 1e-3
    assert_same(model.embed(SENTENCES, layers="all"), fresh_vectors(model))


# ---- tensors of their own


@pytest.mark.parametrize("layers", ["average", "top", 0, "all"])
def test_a_tensor_of_embed_has_a_storage_of_its_own_size(layers):
    model = tiny()
    tensors = model.embed([*SENTENCES, *MORE, ""] * 20, layers=layers, convert_to_tensor=True)
    for tensor in tensors:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert_same([tensor.numpy() for tensor in tensors[:3]], model.embed(SENTENCES, layers=layers))
    file = io.BytesIO()
    torch.save(tensors[1], file)
    assert len(file.getvalue()) < tensors[1].numel() * 4 + 2000


# ---- int8, export, jit


@pytest.mark.parametrize(
    ("move", "where"),
    [
        (lambda model: model.half(), "torch.float16 on cpu"),
        (lambda model: model.double(), "torch.float64 on cpu"),
        (lambda model: model.to(torch.bfloat16), "torch.bfloat16 on cpu"),
        (lambda model: nn.ModuleList([model]).to("meta"), "torch.float32 on meta"),
    ],
)
def test_an_int8_model_stays_float32_on_a_cpu(tmp_path, move, where):
    tiny().save_pretrained(tmp_path)
    model = ELMo.from_pretrained(tmp_path, quantize="int8")
    expected = fresh_vectors(model)
    with pytest.raises(ValueError, match=rf"cannot become {where}: load it without quantize"):
        move(model)
    assert_same(model.embed(SENTENCES, layers="all"), expected)
    assert_same(model.float().to("cpu").share_memory().embed(SENTENCES, layers="all"), expected)


class OneTensor(nn.Module):
    def __init__(self, elmo):
        super().__init__()
        self.elmo = elmo

    def forward(self, ids):
        return self.elmo(ids).mixes[0]


@pytest.mark.parametrize(
    "record",
    [
        lambda network, ids: torch.export.export(network, (ids,)),
        lambda network, ids: torch.jit.trace(network, (ids,)),
        lambda network, ids: torch.jit.script(network),
    ],
    ids=["export", "trace", "script"],
)
@pytest.mark.parametrize("part", ["model", "bilm", "network"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_export_and_jit_are_refused_in_one_line_that_names_the_way_out(record, part):
    model = tiny()
    network = {"model": model, "bilm": model.bilm, "network": OneTensor(model)}[part]
    with pytest.raises(RuntimeError, match=r"^torch.export and torch.jit cannot record a biLM.*export_onnx.*$"):
        record(network, model.to_ids(SENTENCES))
    model(model.to_ids(SENTENCES))
