"""Arguments of the names of other packages: what is wrong is a ValueError that names the argument and its value."""

import re

import numpy as np
import pytest
import torch

import reference
from elmokit import ELMo, Vocabulary
from elmokit.compat import (
    Elmo,
    ElmoEmbedder,
    ElmoModel,
    ElmoTokenEmbedder,
    Embedder,
    ScalarMix,
    TFHubELMo,
    _ElmoBiLm,
    _ElmoCharacterEncoder,
    batch_to_ids,
    read_fasta,
)
from elmokit.network import OutputLayer

NAN, INF = float("nan"), float("inf")


class Table:
    """A table of pandas: it compares element by element, and has no truth value."""

    shape = (2, 1)

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise ValueError("the truth value is ambiguous")

    __hash__ = None


WRONG = {
    "integer": [1.5, 1.0, True, "x", None, NAN, [1], {}, np.ones(2), Table()],
    "integer or None": [1.5, 1.0, True, "x", NAN, [1], {}, np.ones(2), Table()],
    "flag": ["no", 2, None, [True], np.ones(2), Table()],
    "choice": [None, "other", 3, ["all"], Table()],
    "path": [None, 3, "", "a\0b", b"bytes", ["a"]],
    "weights": ["abc", 3, {"a": 1}, {1.0}, np.ones((3, 1)), torch.tensor(1.0), torch.ones(3).to_sparse(),
                [0, "x", 0], [0, NAN, 0], [0, INF, 0], [-INF, -INF, -INF]],
    "sentences": [3, None, "one string", b"bytes", {"a": 1}, {"a"}],
    "lines": [3, None, "in.txt", b"bytes", [b"bytes"], [None], np.array(False), {"a": 1}],
}  # fmt: skip


@pytest.fixture(scope="module")
def paths(official_model):
    made = official_model(5)
    return made.options_path, made.weights_path


@pytest.fixture(scope="module")
def folder(paths, tmp_path_factory):
    """A language model, as a folder."""
    model = ELMo.from_files(*paths)
    model.output_layer, model.vocabulary = OutputLayer(12, 5), Vocabulary(reference.random_vocabulary(12))
    folder = tmp_path_factory.mktemp("arguments") / "model"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def calls(paths, folder):
    """Functions of one argument that is wrong."""
    embedder, langs, simple, hub = ElmoEmbedder(*paths), Embedder(folder), ElmoModel(), TFHubELMo(folder)
    simple.load(folder)
    files = {"options_file": paths[0], "weight_file": paths[1]}
    return {
        "Elmo": lambda **wrong: Elmo(**{**files, "num_output_representations": 1, **wrong}),
        "ElmoTokenEmbedder": lambda **wrong: ElmoTokenEmbedder(**{**files, **wrong}),
        "ElmoEmbedder": lambda **wrong: ElmoEmbedder(**{**files, **wrong}),
        "_ElmoBiLm": lambda **wrong: _ElmoBiLm(**{**files, **wrong}),
        "_ElmoCharacterEncoder": lambda **wrong: _ElmoCharacterEncoder(**{**files, **wrong}),
        "ScalarMix": lambda **wrong: ScalarMix(**{"mixture_size": 3, **wrong}),
        "embed_batch": embedder.embed_batch,
        "batch_to_embeddings": embedder.batch_to_embeddings,
        "embed_sentences": lambda **wrong: embedder.embed_sentences(**{"sentences": [["a"]], **wrong}),
        "embed_file": lambda **wrong: embedder.embed_file(
            **{"input_file": ["a"], "output_file_path": folder.parent / "out", **wrong}
        ),
        "Embedder": lambda **wrong: Embedder(**{"model_dir": folder, **wrong}),
        "sents2elmo": lambda **wrong: langs.sents2elmo([["a"]], **wrong),
        "ElmoModel.load": lambda **wrong: ElmoModel().load(**{"directory": folder, **wrong}),
        "get_elmo_substitutes": lambda **wrong: simple.get_elmo_substitutes(**{"data": [], **wrong}),
        "TFHubELMo": lambda **wrong: TFHubELMo(folder, **wrong),
        "TFHubELMo.forward": lambda **wrong: hub(["a"], **wrong),
        "read_fasta": read_fasta,
    }


MODULE = {"options_file": "path", "weight_file": "path", "requires_grad": "flag"}
ARGUMENTS = {
    "Elmo": {**MODULE, "num_output_representations": "integer", "do_layer_norm": "flag",
             "keep_sentence_boundaries": "flag", "scalar_mix_parameters": "weights"},
    "ElmoTokenEmbedder": {**MODULE, "do_layer_norm": "flag", "projection_dim": "integer or None",
                          "scalar_mix_parameters": "weights"},
    "ElmoEmbedder": {"options_file": "path", "weight_file": "path", "cuda_device": "integer"},
    "_ElmoBiLm": MODULE,
    "_ElmoCharacterEncoder": MODULE,
    "ScalarMix": {"mixture_size": "integer", "do_layer_norm": "flag", "initial_scalar_parameters": "weights",
                  "trainable": "flag"},
    "embed_batch": {"batch": "sentences"},
    "batch_to_embeddings": {"batch": "sentences"},
    "embed_sentences": {"sentences": "sentences", "batch_size": "integer"},
    "embed_file": {"input_file": "lines", "output_file_path": "path", "output_format": "choice",
                   "batch_size": "integer", "forget_sentences": "flag", "use_sentence_keys": "flag"},
    "Embedder": {"model_dir": "path", "batch_size": "integer or None"},
    "sents2elmo": {"output_layer": "integer"},
    "ElmoModel.load": {"directory": "path", "max_batch_size": "integer or None"},
    "get_elmo_substitutes": {"data": "sentences", "topn": "integer", "nodelimiters": "flag"},
    "TFHubELMo": {"trainable": "flag"},
    "TFHubELMo.forward": {"signature": "choice", "as_dict": "flag"},
    "read_fasta": {"path": "path"},
}  # fmt: skip
SWEEP = [(name, argument, kind) for name, kinds in ARGUMENTS.items() for argument, kind in kinds.items()]


@pytest.mark.parametrize(("name", "argument", "kind"), SWEEP)
def test_a_wrong_argument_is_named_with_its_value_before_any_work_is_done(calls, folder, name, argument, kind):
    for value in WRONG[kind]:
        with pytest.raises(ValueError, match=rf"\b{argument}\b") as caught:
            calls[name](**{argument: value})
        assert len(str(caught.value).splitlines()) == 1, value
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize(
    ("name", "argument", "value", "says"),
    [
        ("ElmoEmbedder", "cuda_device", -0.5, "cuda_device must be an integer, not -0.5 (float)"),
        ("ElmoEmbedder", "cuda_device", -2, "cuda_device must be at least -1, not -2"),
        ("ScalarMix", "mixture_size", 0, "mixture_size must be at least 1, not 0"),
        ("sents2elmo", "output_layer", 3, "output_layer must be from -2 to 2, not 3"),
        ("get_elmo_substitutes", "topn", 1.0, "topn must be an integer, not 1.0 (float)"),
        ("get_elmo_substitutes", "topn", 13, "topn must be 1 to 12, the words of the vocabulary, not 13"),
        ("TFHubELMo.forward", "signature", Table(),
         'signature must be "default" or "tokens", not an object of type Table and shape (2, 1)'),
        ("Elmo", "scalar_mix_parameters", [0, "x"], "scalar_mix_parameters[1] must be a number, not 'x'"),
        ("Elmo", "scalar_mix_parameters", [-INF] * 3,
         "scalar_mix_parameters is [-inf, -inf, -inf] (list): at least one weight must be finite"),
    ],
)  # fmt: skip
def test_the_message_says_what_to_pass(calls, name, argument, value, says):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        calls[name](**{argument: value})


@pytest.mark.parametrize("weights", [np.array([0.0, 1.0, -INF]), torch.tensor([0.0, 1.0, -INF]), (0, 1, -INF)])
def test_weights_may_be_arrays_and_minus_infinity_leaves_a_tensor_out(weights):
    mix = ScalarMix(3, initial_scalar_parameters=weights)
    mixed = mix([torch.tensor([float(number)]) for number in (3, 5, 100)])
    assert mixed.item() == pytest.approx((3 + 5 * np.e) / (1 + np.e))


@pytest.mark.parametrize("module", [Elmo, ElmoTokenEmbedder, _ElmoBiLm, _ElmoCharacterEncoder])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids: ids.tolist(), r"(inputs|elmo_tokens) must be a tensor.* not \[\[\[259.* \(list\)"),
        (lambda ids: ids.numpy(), r"(inputs|elmo_tokens) must be a tensor.* not an object of type ndarray and shape"),
        (lambda ids: ids.float(), r"(inputs|ids) are torch\.float32, not torch\.int64"),
        (lambda ids: ids[:, :, :49], r"(inputs|ids) are \(1, 2, 49\), this model reads \(B, T, 50\)"),
        (lambda ids: ids + 5, r"(inputs|ids) run from \d+ to 266, this model reads 0 to 261"),
        (lambda ids: ids - 300, r"(inputs|ids) run from -\d+ to -39, this model reads 0 to 261"),
        (lambda ids: torch.cat([ids[:, :1] * 0, ids], dim=1), "(inputs|ids) have padding before a token"),
    ],
)
def test_ids_that_a_module_does_not_read_are_named(paths, module, change, says):
    part = module(*paths, *([1] if module is Elmo else []))
    with pytest.raises(ValueError, match=f"^{says}"):
        part(change(batch_to_ids([["the", "bank"]])))


def test_the_character_encoder_reads_int32_ids_as_int64_ids(paths):
    encoder, ids = _ElmoCharacterEncoder(*paths), batch_to_ids([["the", "bank"], ["a"]])
    assert torch.equal(encoder(ids.int())["token_embedding"], encoder(ids)["token_embedding"])


def test_a_batch_of_any_size_is_read(paths):
    (vectors,) = ElmoEmbedder(*paths).embed_sentences([["a"]], batch_size=2**63)
    assert vectors.shape == (3, 1, 10)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"tokens": [3], "sequence_len": [1]}, r"tokens\[0\] is 3 \(int\)"),
        ({"tokens": [{"a"}], "sequence_len": [1]}, r"tokens\[0\] is \{'a'\} \(set\)"),
        ({"tokens": 3, "sequence_len": [1]}, r"tokens is 3 \(int\)"),
        ({"tokens": [["a"], ["b"]], "sequence_len": [[1], [1, 2]]}, r"sequence_len is \[\[1\], \[1, 2\]\], not 2"),
    ],
)
def test_padded_tokens_of_tf_hub_are_checked_row_by_row(folder, inputs, says):
    with pytest.raises(ValueError, match=says):
        TFHubELMo(folder)(inputs, signature="tokens")


def test_a_fasta_file_that_is_not_utf_8_is_named_with_the_line(tmp_path):
    path = tmp_path / "proteins.fasta"
    path.write_bytes(">P1 käse\nMKT\n>P2 ".encode() + b"k\xe4se\nMKT\n")
    with pytest.raises(ValueError, match=r"^" + re.escape(f"{path}: line 3 is not UTF-8: b'>P2 k\\xe4se'") + "$"):
        read_fasta(path)
    path.write_bytes(">P1 käse\nMKT\r\nM\n".encode())
    assert read_fasta(path) == {"P1": "MKTM"}


def test_sparse_tensors_are_refused_by_name(paths):
    ids = batch_to_ids([["a", "b"]])
    elmo = Elmo(*paths, num_output_representations=1)
    for sparse in (ids.to_sparse(), ids.unsqueeze(0).to_sparse()):
        with pytest.raises(ValueError, match=r"(inputs|ids) are torch\.sparse_coo"):
            elmo(sparse)


def test_a_line_with_a_lone_surrogate_cannot_be_a_key(paths, tmp_path):
    embedder = ElmoEmbedder(*paths)
    with pytest.raises(ValueError, match=r"line 1 .* lone surrogate"):
        embedder.embed_file(["a b", "c \udcff"], tmp_path / "out.hdf5", use_sentence_keys=True)
    assert not (tmp_path / "out.hdf5").exists()
