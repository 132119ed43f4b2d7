"""bilm-tf's TensorFlow checkpoints: written here by the format's own rules, read by the package without TensorFlow."""

import json
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import reference
from elmokit import ELMo
from elmokit.cli import main
from elmokit.storage import tensorflow
from elmokit.storage.hdf5 import open_hdf5

SENTENCES = [["The", "word1", "word7", "."], ["nonsense"], ["word2", "naïve", "日本", "word3"]]
VOCABULARY = reference.random_vocabulary(14)
STYLES = {  # names of an LSTM's variables, by the version of TensorFlow
    "1.2 and later": ("rnn/multi_rnn_cell/cell_{}/lstm_cell/", "kernel", "bias", "projection/kernel"),
    "1.0": ("rnn/multi_rnn_cell/cell_{}/lstm_cell/", "weights", "biases", "projection/weights"),
    "before 1.0": ("RNN/MultiRNNCell/Cell{}/LSTMCell/", "W_0", "B", "W_P_0"),
}


# ---- an independent writer -------------------------------------------------------------------------------------------


def crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc_table()


def crc(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state = TABLE[(state ^ byte) & 255] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    value = crc(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def entry(dtype: int, shape: tuple[int, ...], shard: int, offset: int, data: bytes, more: bytes = b"") -> bytes:
    dims = b"".join(field(2, field(1, size)) for size in shape)
    numbers = b"".join(field(key, value) for key, value in ((3, shard), (4, offset), (5, len(data))) if value)
    return field(1, dtype) + field(2, dims) + numbers + varint(6 << 3 | 5) + struct.pack("<I", masked(data)) + more


def block(items: list[tuple[bytes, bytes]], restart_every: int) -> bytes:
    out, restarts, last = b"", [], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        if number % restart_every == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return out + b"".join(struct.pack("<I", place) for place in [*restarts, len(restarts)])


def table(items: list[tuple[bytes, bytes]], *, per_block: int = 7, compression: int = 0) -> bytes:
    out, handles = b"", []

    def add(content: bytes) -> bytes:
        nonlocal out
        handle = varint(len(out)) + varint(len(content))
        trailer = bytes([compression])
        out += content + trailer + struct.pack("<I", masked(content + trailer))
        return handle

    for begin in range(0, len(items), per_block):
        part = items[begin : begin + per_block]
        handles.append((part[-1][0], add(block(part, 3))))
    meta, index = add(block([], 1)), add(block(handles, 1))
    return out + (meta + index).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write_checkpoint(
    prefix: Path, arrays: dict[str, np.ndarray], *, num_shards: int = 1, header: bytes = b"", **layout: int
) -> Path:
    """Variables, as TensorFlow's Saver writes them; arrays of other types than float32 by their kind."""
    types = {"<f4": 1, "<f8": 2, "<i4": 3, "<i8": 9, "<f2": 19}
    shards = [b""] * num_shards
    items = [(b"", field(1, num_shards) + (header or field(3, field(1, 1))))]
    for number, (name, values) in enumerate(sorted(arrays.items())):
        shard, data = number % num_shards, values.tobytes()
        items.append((name.encode(), entry(types[values.dtype.str], values.shape, shard, len(shards[shard]), data)))
        shards[shard] += data
    for number, data in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{num_shards:05d}").write_bytes(data)
    path = prefix.with_name(prefix.name + ".index")
    path.write_bytes(table(items, **layout))
    return path


def variables(arrays: dict[str, np.ndarray], style: str, *, num_layers: int = 2) -> dict[str, np.ndarray]:
    """Arrays under their HDF5 names -> the variables of bilm-tf's training graph, the optimizer's among them."""
    scope, *parts = STYLES[style]
    if num_layers == 1:
        scope = re.sub("multi_rnn_cell/cell_{}/|MultiRNNCell/Cell{}/", "", scope)
    found = {}
    for name, values in arrays.items():
        cell = re.fullmatch(r"(RNN_\d)/RNN/MultiRNNCell/Cell(\d)/LSTMCell/(.*)", name)
        if cell is not None:
            name = f"{cell[1]}/{scope.format(cell[2])}{parts[('W_0', 'B', 'W_P_0').index(cell[3])]}"
        found[f"lm/{name}"] = values
        found[f"lm/{name}/Adagrad"] = np.ones_like(values)
    return found | {"global_step": np.array(7.0, np.float32), "train_perplexity": np.array(9.0, np.float32)}


@pytest.fixture
def folder(official_model, tmp_path):
    """folder(style=, with_softmax=, **variant): a training folder of bilm-tf, and the model that is in it."""

    def make(style="1.2 and later", *, with_softmax=True, change=None, layout=None, **variant):
        model = official_model(3, **variant)
        arrays = dict(model.arrays)
        softmax = random_softmax(model.options["lstm"]["projection_dim"], len(model.vocabulary or VOCABULARY))
        if with_softmax:
            arrays |= {"softmax/W": softmax[0], "softmax/b": softmax[1]}
        kept = variables(arrays, style, num_layers=variant.get("layers", 2))
        if change is not None:
            change(kept)
        training = {"bidirectional": True, "n_tokens_vocab": 14, "unroll_steps": 20, "dropout": 0.1, "batch_size": 128}
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "options.json").write_text(json.dumps(model.options | training))
        write_checkpoint(tmp_path / "run" / "model.ckpt-7", kept, **(layout or {}))
        (tmp_path / "run" / "checkpoint").write_text(
            'model_checkpoint_path: "/their/disk/model.ckpt-7"\nall_model_checkpoint_paths: "model.ckpt-5"\n'
        )
        return tmp_path / "run", model, softmax

    return make


def random_softmax(width: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    return rng.standard_normal((rows, width)).astype(np.float32), rng.standard_normal(rows).astype(np.float32)


def write_vocabulary(path: Path, words: list[str] = VOCABULARY) -> Path:
    path.write_text("\n".join(words) + "\n", encoding="utf-8")
    return path


# ---- complete checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("variant", [{}, {"layers": 1}, {"highways": 0, "char_projection": False}, {"skip": False}])
def test_a_training_folder_gives_the_reference_s_vectors(folder, style, variant):
    path, model, _ = folder(style, **variant)
    found = ELMo.from_pretrained(path).embed(SENTENCES, layers="all")
    for vectors, sentence in zip(found, SENTENCES, strict=True):
        np.testing.assert_allclose(vectors, model.expected(sentence).layers, atol=1e-5)


def test_every_bit_of_the_weights_arrives(folder, tmp_path):
    path, model, _ = folder(layout={"num_shards": 3, "per_block": 2})
    ELMo.from_pretrained(path).export_hdf5(tmp_path / "theirs")
    with open_hdf5(tmp_path / "theirs" / "weights.hdf5") as file:
        assert sorted(file.names) == sorted(model.arrays)
        for name, values in model.arrays.items():
            np.testing.assert_array_equal(file.read(name), values)


@pytest.mark.parametrize("name", ["vocabulary.txt", "vocab-2016-09-10.txt"])
def test_a_vocabulary_beside_it_makes_a_language_model(folder, name):
    path, model, softmax = folder()
    write_vocabulary(path / name)
    elmo = ELMo.from_pretrained(path)
    expected = reference.log_probs(model.options, model.arrays, SENTENCES, *softmax, VOCABULARY)
    for found, wanted in zip(elmo.log_probs(SENTENCES), expected, strict=True):
        np.testing.assert_allclose(found.forward, wanted.forward[:-1], atol=1e-4)
        np.testing.assert_allclose(found.backward, wanted.backward[1:], atol=1e-4)
    assert elmo.perplexity(SENTENCES).both == pytest.approx(reference.perplexity(expected), rel=1e-4)


def test_without_a_vocabulary_the_softmax_is_ignored_and_logged(folder, caplog):
    path, *_ = folder()
    assert ELMo.from_pretrained(path).output_layer is None
    assert "its softmax is ignored, since no vocabulary names its rows" in caplog.text
    assert caplog.text.count("\n") == 1


def test_the_index_file_may_be_named_itself(folder, tmp_path):
    path, model, _ = folder()
    write_checkpoint(path / "model.ckpt-5", {"other": np.zeros(3, np.float32)})
    vocabulary = write_vocabulary(tmp_path / "words.txt")
    elmo = ELMo.from_files(path / "options.json", path / "model.ckpt-7.index", vocabulary=vocabulary)
    assert elmo.output_layer is not None
    np.testing.assert_allclose(elmo.embed(SENTENCES[:1])[0], model.expected(SENTENCES[0]).layers.mean(0), atol=1e-5)
    (path / "checkpoint").unlink()
    with pytest.raises(ValueError, match=r"which of model\.ckpt-5\.index, model\.ckpt-7\.index is meant\?"):
        ELMo.from_pretrained(path)


def test_a_word_level_checkpoint_shares_its_table_with_the_softmax(folder):
    def share(kept):
        for name in ("lm/softmax/W", "lm/softmax/W/Adagrad"):
            del kept[name]

    path, model, softmax = folder(word_level=True, change=share)
    write_vocabulary(path / "vocab.txt", model.vocabulary)
    elmo = ELMo.from_pretrained(path)
    table_and_bias = (model.arrays["embedding"], softmax[1])
    expected = reference.log_probs(model.options, model.arrays, SENTENCES, *table_and_bias, model.vocabulary)
    for found, wanted in zip(elmo.log_probs(SENTENCES), expected, strict=True):
        np.testing.assert_allclose(found.forward, wanted.forward[:-1], atol=1e-4)


def test_the_command_line_converts_it(folder, tmp_path):
    path, model, _ = folder()
    write_vocabulary(path / "vocabulary.txt")
    done = CliRunner().invoke(main, ["convert", str(path), str(tmp_path / "ours"), "--to", "elmokit"])
    assert done.exit_code == 0, done.output
    elmo = ELMo.from_pretrained(tmp_path / "ours")
    assert elmo.output_layer is not None
    np.testing.assert_allclose(elmo.embed(SENTENCES[:1])[0], model.expected(SENTENCES[0]).layers.mean(0), atol=1e-5)


@pytest.mark.parametrize("dtype", ["<f2", "<f8"])
def test_other_floating_point_types_are_read_as_float32(folder, dtype):
    def cast(kept):
        kept.update({name: values.astype(dtype) for name, values in kept.items()})

    path, model, _ = folder(change=cast)
    found = ELMo.from_pretrained(path).embed(SENTENCES[:1], layers=0)[0]
    np.testing.assert_allclose(found, model.expected(SENTENCES[0]).layers[0], atol=1e-2 if dtype == "<f2" else 1e-5)


def test_bfloat16_is_read(tmp_path):
    numbers = np.array([1.0, -2.5, 3.140625], "<f4")
    data = (numbers.view("<u4") >> 16).astype("<u2").tobytes()
    (tmp_path / "m.data-00000-of-00001").write_bytes(data)
    items = [(b"", field(1, 1)), (b"x", entry(14, (3,), 0, 0, data))]
    (tmp_path / "m.index").write_bytes(table(items))
    with tensorflow.open_checkpoint(tmp_path / "m.index") as checkpoint:
        np.testing.assert_array_equal(checkpoint.read("x"), numbers)


# ---- checksums -------------------------------------------------------------------------------------------------------


def test_the_checksum_is_the_published_one():
    assert tensorflow.crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
    assert tensorflow.crc32c(np.zeros(32, np.uint8)) == 0x8A9136AA  # RFC 3720, B.4


@given(size=st.integers(0, 6000), seed=st.integers(0, 9))
def test_the_checksum_of_any_length_is_that_of_one_byte_after_the_other(size, seed):
    data = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    assert tensorflow.crc32c(data) == crc(data.tobytes())


def test_a_long_checksum_goes_block_by_block(monkeypatch):
    monkeypatch.setattr(tensorflow, "LANES", 5)
    data = np.random.default_rng(0).integers(0, 256, 512 * 37 + 3, dtype=np.uint8)
    assert tensorflow.crc32c(data) == crc(data.tobytes())


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_changed_byte_of_an_array_is_seen(folder):
    path, *_ = folder()
    data = path / "model.ckpt-7.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[10] ^= 1
    data.write_bytes(content)
    with pytest.raises(ValueError, match=r"data-00000-of-00001: the checksum of CNN/W_cnn_0 is wrong"):
        ELMo.from_pretrained(path)
    data.write_bytes(content[:-60000])
    with pytest.raises(ValueError, match=r"data-00000-of-00001: .* is incomplete: the file is truncated"):
        ELMo.from_pretrained(path)
    data.unlink()
    with pytest.raises(ValueError, match=r"this file, which holds .*, is missing beside model\.ckpt-7\.index"):
        ELMo.from_pretrained(path)


def test_a_damaged_index_is_always_named(folder, tmp_path):
    path, *_ = folder()
    index = path / "model.ckpt-7.index"
    whole, rng = index.read_bytes(), np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(whole)
        place = int(rng.integers(0, len(whole) - 48))
        damaged[place] ^= int(rng.integers(1, 256))
        index.write_bytes(damaged)
        try:
            tensorflow.Checkpoint(index)
        except ValueError as error:
            assert str(index) in str(error)  # noqa: PT017 (the table's empty list of filters is not read)
        else:
            assert place > len(whole) - 1000
    for size in (0, 20, 47, len(whole) // 2):
        index.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"not the \.index of a TensorFlow checkpoint"):
            ELMo.from_pretrained(path)


def test_handles_that_lead_nowhere_are_named(tmp_path):
    magic = struct.pack("<Q", 0xDB4775248B80FB57)
    for footer in (varint(0) * 2 + varint(10**6) + varint(9), b"\xff" * 40):
        (tmp_path / "m.index").write_bytes(footer.ljust(40, b"\0") + magic)
        with pytest.raises(ValueError, match=r"m\.index: .*damaged"):
            tensorflow.Checkpoint(tmp_path / "m.index")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda: table([(b"", field(1, 1))], compression=1), "its table is compressed"),
        (lambda: table([(b"", field(1, 1) + field(2, 1))]), "big-endian"),
        (lambda: table([(b"x", b"")]), "not the index of a checkpoint"),
        (lambda: table([(b"", b"\x0b")]), "an entry of its table cannot be read"),
        (lambda: table([(b"", field(1, 1)), (b"x", b"\x32\x01")]), "an entry of its table cannot be read"),
    ],
)
def test_an_index_of_another_kind_is_named(tmp_path, content, says):
    (tmp_path / "m.index").write_bytes(content())
    with pytest.raises(ValueError, match=rf"m\.index: .*{says}"):
        tensorflow.Checkpoint(tmp_path / "m.index")


def test_an_array_of_another_kind_is_named(tmp_path):
    data = b"abcd"
    items = [(b"", field(1, 1))]
    items.append((b"sliced", entry(1, (1,), 0, 0, data, field(7, b"x"))))
    items.append((b"text", entry(7, (1,), 0, 0, data)))
    items.append((b"wrong", entry(1, (2,), 0, 0, data)))
    (tmp_path / "m.index").write_bytes(table(items))
    (tmp_path / "m.data-00000-of-00001").write_bytes(data)
    checkpoint = tensorflow.Checkpoint(tmp_path / "m.index")
    for name, says in {
        "sliced": "is split into slices",
        "text": "has TensorFlow's type 7",
        "wrong": r"is \(2,\) and 4 bytes",
        "none": "none is missing; the checkpoint holds sliced, text, wrong",
    }.items():
        with pytest.raises(ValueError, match=says):
            checkpoint.read(name)


def test_a_folder_that_contradicts_itself_is_named(folder):
    path, *_ = folder()
    write_vocabulary(path / "vocabulary.txt", VOCABULARY[:-1])
    with pytest.raises(ValueError, match=r"model\.ckpt-7\.index has 14 rows, .*vocabulary\.txt has 13 words"):
        ELMo.from_pretrained(path)
    (path / "model.ckpt-7.index").unlink()
    with pytest.raises(ValueError, match=r"names '/their/disk/model\.ckpt-7', but model\.ckpt-7\.index"):
        ELMo.from_pretrained(path)
    (path / "checkpoint").write_text("nothing")
    with pytest.raises(ValueError, match="this folder holds no model"):
        ELMo.from_pretrained(path)


def test_a_missing_index_and_a_folder_are_named(tmp_path):
    for name, says in (("none.index", "no such file"), ("folder.index", "this is a folder")):
        if "folder" in name:
            (tmp_path / name).mkdir()
        with pytest.raises(ValueError, match=says), tensorflow.open_checkpoint(tmp_path / name):
            pass


def test_hdf5_weights_come_before_a_checkpoint(folder, official_model):
    path, *_ = folder()
    other = official_model(5)
    shutil.copy(other.options_path, path / "options.json")
    shutil.copy(other.weights_path, path / "weights.hdf5")
    found = ELMo.from_pretrained(path).embed(SENTENCES[:1])[0]
    np.testing.assert_allclose(found, other.expected(SENTENCES[0]).layers.mean(0), atol=1e-5)
