"""Hostile files: sizes that no file can hold, and HDF5 files that name other files or inflate, are refused at once.

Each test may take one GiB of memory and twenty seconds.
"""

import json
import resource
import shutil
import signal
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import test_manylangs as manylangs
import test_tensorflow as tensorflow
import torch

from elmokit import BiLM, BiLMConfig, ELMo, Vocabulary
from elmokit.config import MAX_CHARACTERS
from elmokit.storage.bounds import check_content, num_weights
from elmokit.storage.hdf5 import open_hdf5

HUGE = [10**9, 2**31, 2**63, 10**30]


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """One GiB more of memory, and twenty seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError("twenty seconds are over")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), limits[1]))
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


# ---- sizes ----------------------------------------------------------------------------------------------------------


def set_size(folder: Path, name: str, value: int) -> None:
    """Change a size in the config of a saved model, and leave the checksums out."""
    values = json.loads((folder / "config.json").read_bytes())
    del values["checksums"]
    values["bilm"][name] = value
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")


INTEGERS = ["num_layers", "num_highways", "cell_dim", "projection_dim", "char_dim", "max_characters"]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", INTEGERS)
def test_a_huge_size_in_a_config_is_refused_at_once(official_model, tmp_path, name, value):
    made = official_model()
    ELMo.from_files(made.options_path, made.weights_path).save_pretrained(tmp_path)
    set_size(tmp_path, name, value)
    with pytest.raises(ValueError, match=rf"{tmp_path}.*{value * (4 if name == 'cell_dim' else 1)}|{name} is {value}"):
        ELMo.from_pretrained(tmp_path)


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", ["num_words", "num_lexicon_characters", "num_lexicon_words", "word_dim"])
def test_a_huge_vocabulary_in_a_config_is_refused_at_once(tmp_path, name, value):
    if name == "num_words":
        config = BiLMConfig(num_words=3, cell_dim=4, projection_dim=3)
        ELMo(BiLM(config), vocabulary=Vocabulary(["<S>", "</S>", "<UNK>"])).save_pretrained(tmp_path)
    else:
        folder = manylangs.write(manylangs.random_model(), tmp_path / "xx.model")
        ELMo.from_pretrained(folder).save_pretrained(tmp_path)
    set_size(tmp_path, name, value)
    with pytest.raises(ValueError, match=rf"{tmp_path}.*{str(value)[:3]}"):
        ELMo.from_pretrained(tmp_path)


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("filters", [lambda n: [[n, 2], [2, 3], [4, 3]], lambda n: [[1, n], [2, 3], [4, 3]]])
def test_huge_filters_are_refused_at_once(official_model, tmp_path, filters, value):
    made = official_model()
    options = json.loads(made.options_path.read_bytes())
    options["char_cnn"]["filters"] = filters(value)
    (tmp_path / "options.json").write_text(json.dumps(options), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{str(value)[:6]}"):  # or the sum of the channels
        ELMo.from_files(tmp_path / "options.json", made.weights_path)


SIZES = [
    ("lstm", "n_layers"),
    ("lstm", "dim"),
    ("lstm", "projection_dim"),
    ("char_cnn", "n_highway"),
    ("char_cnn", "max_characters_per_token"),
    ("char_cnn", "embedding"),
]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(("table", "key"), SIZES)
@pytest.mark.parametrize("kind", ["hdf5", "checkpoint"])
def test_a_huge_size_in_official_options_is_refused_at_once(official_model, tmp_path, kind, table, key, value):
    made = official_model()
    options = json.loads(made.options_path.read_bytes())
    options[table][key] = {"dim": value} if key == "embedding" else value
    (tmp_path / "options.json").write_text(json.dumps(options), encoding="utf-8")
    weights = made.weights_path
    if kind == "checkpoint":
        weights = tensorflow.write_checkpoint(
            tmp_path / "model.ckpt-7", tensorflow.variables(made.arrays, "1.2 and later")
        )
    with pytest.raises(ValueError, match=rf"{value * (4 if key == 'dim' else 1)}|{value}"):
        ELMo.from_files(tmp_path / "options.json", weights)


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("encoder", "n_layers"),
        ("encoder", "dim"),
        ("encoder", "projection_dim"),
        ("token_embedder", "n_highway"),
        ("token_embedder", "char_dim"),
        ("token_embedder", "word_dim"),
        ("token_embedder", "max_characters_per_token"),
    ],
)
def test_a_huge_size_of_manylangs_is_refused_at_once(tmp_path, table, key, value):
    model = manylangs.random_model()
    model.sizes[table][key] = value
    with pytest.raises(ValueError, match=rf"{str(value)[:6]}|{4 * value}"):
        ELMo.from_pretrained(manylangs.write(model, tmp_path / "xx.model"))


def test_max_characters_has_an_upper_bound():
    assert BiLMConfig(max_characters=MAX_CHARACTERS).max_characters == MAX_CHARACTERS
    with pytest.raises(ValueError, match="max_characters must be at most 10000, not 10001"):
        BiLMConfig(max_characters=MAX_CHARACTERS + 1)


@pytest.mark.parametrize(
    "config",
    [
        BiLMConfig(),
        BiLMConfig(num_words=12, cell_dim=7, projection_dim=5, num_layers=1),
        BiLMConfig(filters=((1, 3), (2, 2)), projection_dim=5, char_projection=False, num_highways=0),
        BiLMConfig(num_lexicon_characters=9, num_lexicon_words=4, word_dim=3, filters=((1, 3), (2, 2)), num_highways=1),
        BiLMConfig(num_lexicon_characters=0, num_lexicon_words=4, word_dim=3, filters=(), num_highways=0),
        BiLMConfig(num_lexicon_characters=9, filters=((2, 2),)),
    ],
)
def test_the_number_of_weights_is_that_of_the_network(config):
    with torch.device("meta"):
        assert num_weights(config) == sum(parameter.numel() for parameter in BiLM(config).parameters())


def test_the_published_model_has_the_published_number_of_weights():
    assert num_weights(BiLMConfig()) == 93_600_848


def test_a_compressed_archive_of_tensors_is_refused(tmp_path):
    folder = manylangs.write(manylangs.random_model(), tmp_path / "xx.model")
    path = folder / "encoder.pkl"
    with zipfile.ZipFile(path) as stored, zipfile.ZipFile(tmp_path / "deflated", "w", zipfile.ZIP_DEFLATED) as deflated:
        for entry in stored.infolist():
            deflated.writestr(entry.filename, stored.read(entry))
    shutil.copy(tmp_path / "deflated", path)
    with pytest.raises(ValueError, match=r"encoder\.pkl: not a file of tensors only.*it is compressed"):
        ELMo.from_pretrained(folder)


def test_a_tensor_that_repeats_one_number_is_refused(tmp_path):
    folder = manylangs.write(manylangs.random_model(), tmp_path / "xx.model")
    torch.save({"x": torch.zeros(1).expand(10**6, 10**6)}, folder / "encoder.pkl")
    with pytest.raises(ValueError, match=r"encoder\.pkl: \d+ bytes would become 1000000000000 weights"):
        ELMo.from_pretrained(folder)


# ---- HDF5 files that name other files -------------------------------------------------------------------------------

NAME = "CNN_proj/b_proj"


@pytest.fixture
def copied(official_model, tmp_path):
    """Options and weights in the folder of the test, and a second file with an array of the right shape."""
    made = official_model()
    shutil.copy(made.weights_path, tmp_path / "weights.hdf5")
    shutil.copy(made.options_path, tmp_path / "options.json")
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["secret"] = np.ones(5, np.float32)
    (tmp_path / "secret.txt").write_bytes(b"root:x:0:0:root:/root:/bin/bash\n")
    return tmp_path


def replace(file: h5py.File, folder: Path, kind: str) -> None:
    del file[NAME]
    if kind == "external link":
        file[NAME] = h5py.ExternalLink(str(folder / "other.hdf5"), "/secret")
    elif kind == "external link to a group":
        file["CNN_proj/W_other"] = file["CNN_proj/W_proj"]
        del file["CNN_proj"]
        with h5py.File(folder / "other.hdf5", "a") as other:
            other["group/b_proj"] = np.ones(5, np.float32)
            other["group/W_proj"] = np.ones((8, 5), np.float32)
        file["CNN_proj"] = h5py.ExternalLink(str(folder / "other.hdf5"), "/group")
    elif kind == "soft link":
        file["elsewhere"] = np.ones(5, np.float32)
        file[NAME] = h5py.SoftLink("/elsewhere")
    elif kind == "virtual dataset":
        layout = h5py.VirtualLayout((5,), np.float32)
        layout[:] = h5py.VirtualSource(folder / "other.hdf5", "secret", (5,))
        file.create_virtual_dataset(NAME, layout)
    elif kind == "external storage":
        file.create_dataset(NAME, (5,), np.float32, external=[(str(folder / "secret.txt"), 0, 20)])


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("external link", f"{NAME} is a link, which is not followed"),
        ("external link to a group", "CNN_proj is a link, which is not followed"),
        ("soft link", f"{NAME} is a link, which is not followed"),
        ("virtual dataset", f"{NAME} is a virtual dataset, whose values are in other files"),
        ("external storage", f"{NAME} has its values in another file, .*secret"),
    ],
)
def test_an_array_that_is_not_in_the_file_itself_is_refused(copied, kind, says):
    with h5py.File(copied / "weights.hdf5", "a") as file:
        replace(file, copied, kind)
    with pytest.raises(ValueError, match=rf"weights\.hdf5: {says}"):
        ELMo.from_files(copied / "options.json", copied / "weights.hdf5")
    with open_hdf5(copied / "weights.hdf5") as arrays, pytest.raises(ValueError, match=says):
        arrays.read(NAME)


# ---- HDF5 files that inflate ----------------------------------------------------------------------------------------


def rewrite(path: Path, **properties: object) -> None:
    """Store every array with these properties."""
    with h5py.File(path) as file:
        arrays: dict[str, np.ndarray] = {}
        file.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **properties)


@pytest.mark.parametrize(
    "properties",
    [
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": True},
        {"fletcher32": True},
    ],
)
def test_compressed_weights_are_the_same_weights(copied, official_model, properties):
    rewrite(copied / "weights.hdf5", **properties)
    made = official_model()
    expected = ELMo.from_files(made.options_path, made.weights_path).state_dict()
    for name, tensor in ELMo.from_files(copied / "options.json", copied / "weights.hdf5").state_dict().items():
        assert torch.equal(tensor, expected[name])


def test_another_compression_is_refused_with_the_way_out(copied):
    rewrite(copied / "weights.hdf5", compression="lzf")
    with pytest.raises(ValueError, match="HDF5 filter 32000, which is not supported: run `h5repack -f NONE"):
        ELMo.from_files(copied / "options.json", copied / "weights.hdf5")


def test_a_chunk_that_is_larger_than_its_array_is_refused(copied):
    with h5py.File(copied / "weights.hdf5", "a") as file:
        del file[NAME]
        data = file.create_dataset(NAME, (5,), np.float32, maxshape=(None,), chunks=(50_000_000,), compression="gzip")
        compressor = zlib.compressobj(9)
        zeros = bytes(1 << 20)
        content = b"".join(compressor.compress(zeros) for _ in range(200)) + compressor.flush()
        data.id.write_direct_chunk((0,), content)
    assert (copied / "weights.hdf5").stat().st_size < 500_000
    with pytest.raises(ValueError, match=rf"{NAME} has 20 bytes, but its chunks have 200000000 bytes each"):
        ELMo.from_files(copied / "options.json", copied / "weights.hdf5")


@pytest.mark.parametrize("size", [100, 40_000])
def test_a_chunk_that_inflates_to_more_than_its_size_is_refused(copied, size):
    with h5py.File(copied / "weights.hdf5", "a") as file:
        del file[NAME]
        data = file.create_dataset(NAME, (5,), np.float32, chunks=(5,), compression="gzip")
        data.id.write_direct_chunk((0,), zlib.compress(bytes(size * 1000), 9))
    with pytest.raises(ValueError, match=rf"{NAME} has a chunk .*: the file is damaged"):
        ELMo.from_files(copied / "options.json", copied / "weights.hdf5")


@pytest.mark.parametrize("compression", ["gzip", None])
@pytest.mark.parametrize("size", [1, 3])
def test_a_chunk_too_short_for_its_checksum_is_refused(copied, compression, size):
    with h5py.File(copied / "weights.hdf5", "a") as file:
        del file[NAME]
        data = file.create_dataset(NAME, (5,), np.float32, chunks=(5,), compression=compression, fletcher32=True)
        data.id.write_direct_chunk((0,), bytes(size))  # libhdf5 itself crashes, or says that it cannot read
    with pytest.raises(ValueError, match=f"{NAME} has a chunk without its checksum: the file is damaged"):
        ELMo.from_files(copied / "options.json", copied / "weights.hdf5")


@pytest.mark.parametrize("chunks", [None, (1000, 512)])
def test_an_array_that_was_never_written_is_refused(copied, chunks):
    """A few hundred bytes that say they are four terabytes."""
    with h5py.File(copied / "softmax.hdf5", "w") as file:
        file.create_dataset("softmax/W", (2 * 10**9, 512), np.float32, chunks=chunks)
        file.create_dataset("softmax/b", (2 * 10**9,), np.float32, chunks=chunks and chunks[:1])
    Vocabulary(["<S>", "</S>", "<UNK>"]).save(copied / "vocabulary.txt")
    with pytest.raises(ValueError, match=r"softmax\.hdf5: softmax/W has .*: the file is incomplete"):
        ELMo.from_pretrained(copied)


def test_zeros_that_were_compressed_to_nothing_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"1000 bytes would become 2000000 weights"):
        check_content(2_000_000, 1000, tmp_path / "weights.hdf5")
    check_content(2_000_000, 500_000, tmp_path / "weights.hdf5")
