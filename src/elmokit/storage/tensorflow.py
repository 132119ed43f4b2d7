"""TensorFlow checkpoints (V2, "tensor bundles") of bilm-tf's training, read without TensorFlow.

Enters: the `.index` file, which is a LevelDB table of (name, where its bytes are), and the `.data` files beside it.
Leaves: arrays under the official names (see `official.Arrays`); what the optimizer kept is left out.  Every block of
the table and every array is held against its checksum, so that a damaged file is never read as a model.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAGIC = 0xDB4775248B80FB57
FOOTER_SIZE, TRAILER_SIZE = 48, 5
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "bfloat16", 19: "<f2"}  # TensorFlow's numbers of types

# bilm-tf's variables, by the version of TensorFlow that trained them -> the names of its own HDF5 files
RENAMED = [
    (r"^lm/", ""),
    (r"/rnn/", "/RNN/"),
    (r"/multi_rnn_cell/cell_(\d+)/", r"/MultiRNNCell/Cell\1/"),
    (r"/RNN/(lstm_cell|LSTMCell)/", r"/RNN/MultiRNNCell/Cell0/\1/"),  # one layer has no stack around it
    (r"/lstm_cell/", "/LSTMCell/"),
    (r"/LSTMCell/projection/(kernel|weights)$", "/LSTMCell/W_P_0"),
    (r"/LSTMCell/(kernel|weights)$", "/LSTMCell/W_0"),
    (r"/LSTMCell/(bias|biases)$", "/LSTMCell/B"),
]
COUNTERS = {"global_step", "train_perplexity"}


def newest_checkpoint(folder: Path) -> Path | None:
    """The .index file that the folder's `checkpoint` names, or else its only one; None where there is none."""
    found = sorted(folder.glob("*.index"))
    note = folder / "checkpoint"
    if note.is_file():
        named = re.search(r'^model_checkpoint_path: "(.*)"', note.read_text(encoding="utf-8", errors="replace"), re.M)
        if named is not None:  # a path of the machine that trained it: here, the name counts
            path = folder / (re.split(r"[/\\]", named[1])[-1] + ".index")
            if not path.is_file():
                held = ", ".join(other.name for other in found) or "none"
                raise ValueError(f"{note} names {named[1]!r}, and there is no {path.name}: the folder holds {held}")
            return path
    if len(found) > 1:
        raise ValueError(
            f"{folder}: which of {', '.join(path.name for path in found)} is meant? There is no file `checkpoint` that "
            "says it: use ELMo.from_files(options, weights) with one of them"
        )
    return found[0] if found else None


@contextlib.contextmanager
def open_checkpoint(path: str | os.PathLike[str]) -> Iterator[Checkpoint]:
    """The checkpoint whose .index file this is; what is none is a ValueError that names it."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: {'this is a folder' if path.is_dir() else 'no such file'}")
    yield Checkpoint(path)


@dataclass(frozen=True)
class Entry:
    """Where an array is and what it is."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_sliced: bool


class Checkpoint:
    """The variables of a checkpoint under their official names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        table = dict(_read_table(path))
        header = _fields(table.pop(b"", b""), path)
        self._num_shards = _number(header, 1, path)
        if self._num_shards < 1 or _number(header, 2, path) != 0:
            raise ValueError(f"{path}: not the index of a checkpoint, or one of a big-endian machine")
        variables = {name.decode("utf-8", "replace"): value for name, value in table.items()}
        self._entries: dict[str, Entry] = {}
        for name, value in variables.items():
            # what an optimizer keeps of a variable stands under the variable's name: lm/CNN/W_cnn_0/Adagrad
            if name in COUNTERS or name.rpartition("/")[0] in variables:
                continue
            for pattern, replacement in RENAMED:
                name = re.sub(pattern, replacement, name)
            self._entries[name] = _entry(value, path)

    @property
    def names(self) -> list[str]:
        """Of all variables but those of the optimizer."""
        return list(self._entries)

    def about(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type."""
        entry = self._find(name)
        dtype = DTYPES.get(entry.dtype)
        if dtype is None or entry.is_sliced:
            what = "is cut into slices" if entry.is_sliced else f"is of TensorFlow's type {entry.dtype}"
            raise ValueError(f"{self.path}: {name} {what}, which is not read here")
        return entry.shape, np.dtype("<f4" if dtype == "bfloat16" else dtype)

    def read(self, name: str) -> npt.NDArray[Any]:
        """The whole array, its checksum proved."""
        shape, dtype = self.about(name)
        entry = self._find(name)
        data = self.path.with_suffix(f".data-{entry.shard:05d}-of-{self._num_shards:05d}")
        if not data.is_file():
            raise ValueError(f"{data}: {name} should be in this file, which is missing beside {self.path.name}")
        is_half = DTYPES[entry.dtype] == "bfloat16"
        if entry.size != math.prod(shape) * (2 if is_half else dtype.itemsize):
            raise ValueError(f"{self.path}: {name} is {shape} and {entry.size} bytes: the file is damaged")
        if entry.offset + entry.size > data.stat().st_size:
            raise ValueError(f"{data}: {name} is not in it whole: the file is truncated")
        values = np.fromfile(data, np.uint8, entry.size, offset=entry.offset)
        if mask(crc32c(values)) != entry.checksum:
            raise ValueError(f"{data}: the checksum of {name} is wrong: the file is damaged")
        if is_half:
            return (values.view("<u2").astype("<u4") << 16).view("<f4").reshape(shape)
        return values.view(dtype).reshape(shape)

    def _find(self, name: str) -> Entry:
        if name not in self._entries:
            held = ", ".join(self.names[:40]) or "nothing"
            raise ValueError(f"{self.path}: {name} is missing; the checkpoint holds {held}")
        return self._entries[name]


# ---- the table -------------------------------------------------------------------------------------------------------


def _read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a LevelDB table, in order."""
    content = path.read_bytes()
    if len(content) < FOOTER_SIZE or struct.unpack("<Q", content[-8:])[0] != MAGIC:
        raise ValueError(f"{path}: not the .index of a TensorFlow checkpoint (V2), or not a whole one")
    try:
        footer = content[-FOOTER_SIZE:]
        _, place = _varints(footer, 0, 2)  # the block of filters, which is not needed
        (offset, size), _ = _varints(footer, place, 2)
        for _, handle in _block(content, offset, size, path):
            (offset, size), _ = _varints(handle, 0, 2)
            yield from _block(content, offset, size, path)
    except (IndexError, struct.error):
        raise ValueError(f"{path}: its table cannot be read: the file is damaged") from None


def _block(content: bytes, offset: int, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Entries of one block: each key says how much it shares with the one before it."""
    block = content[offset : offset + size]
    kind, checksum = struct.unpack("<BI", content[offset + size : offset + size + TRAILER_SIZE])
    if mask(crc32c(np.frombuffer(content, np.uint8, size + 1, offset))) != checksum:
        raise ValueError(f"{path}: the checksum of its table is wrong: the file is damaged")
    if kind != 0:
        raise ValueError(f"{path}: its table is compressed (kind {kind}), which TensorFlow does not do and is not read")
    (num_restarts,) = struct.unpack("<I", block[-4:])
    place, end, key = 0, len(block) - 4 - 4 * num_restarts, b""
    while place < end:
        (shared, rest, length), place = _varints(block, place, 3)
        key = key[:shared] + block[place : place + rest]
        place += rest
        yield key, block[place : place + length]
        place += length


def _entry(message: bytes, path: Path) -> Entry:
    fields = _fields(message, path)
    dims = _fields(fields.get(2, [b""])[0], path).get(2, [])
    dtype, shard, offset, size, checksum = (_number(fields, key, path) for key in (1, 3, 4, 5, 6))
    shape = tuple(_number(_fields(dim, path), 1, path) for dim in dims)
    return Entry(dtype, shape, shard, offset, size, checksum, is_sliced=7 in fields)


def _fields(message: bytes, path: Path) -> dict[int, list[Any]]:
    """A protocol buffer's fields by number: numbers as int, strings and messages as bytes."""
    fields: dict[int, list[Any]] = {}
    place = 0
    try:
        while place < len(message):
            (tag,), place = _varints(message, place, 1)
            value: int | bytes
            if tag & 7 == 0:
                (value,), place = _varints(message, place, 1)
            elif tag & 7 == 2:
                (length,), place = _varints(message, place, 1)
                value, place = message[place : place + length], place + length
            elif tag & 7 == 5:
                (value,), place = struct.unpack("<I", message[place : place + 4]), place + 4
            else:
                raise IndexError
            fields.setdefault(tag >> 3, []).append(value)
    except (IndexError, struct.error, TypeError):
        raise ValueError(f"{path}: an entry of its table cannot be read: the file is damaged") from None
    return fields


def _number(fields: dict[int, list[Any]], key: int, path: Path) -> int:
    """A field that is a number; 0 where it is not written."""
    value = fields.get(key, [0])[0]
    if not isinstance(value, int):
        raise ValueError(f"{path}: an entry of its table cannot be read: the file is damaged")
    return value


def _varints(data: bytes, place: int, count: int) -> tuple[tuple[int, ...], int]:
    """`count` numbers of seven bits a byte, from `place` on; and the place after them."""
    numbers = []
    for _ in range(count):
        number = shift = 0
        while True:
            byte = data[place]
            place += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        numbers.append(number)
    return tuple(numbers), place


# ---- the checksum ----------------------------------------------------------------------------------------------------


POLYNOMIAL = 0x82F63B78
LANE = 512  # bytes whose checksum is one lane of the computation
LANES = 1 << 15


def mask(checksum: int) -> int:
    """A CRC as files store it, so that the CRC of data which holds CRCs is still a good one."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: npt.NDArray[np.uint8]) -> int:
    """CRC-32C (Castagnoli): many lanes of bytes side by side, then joined, since Python is slow byte by byte.

    The CRC is linear: that of a text is that of its first part, moved on by the length of the rest, xor the rest's.
    """
    checksum = 0xFFFFFFFF
    tables = _byte_tables()
    whole = len(data) // LANE * LANE
    for begin in range(0, whole, LANE * LANES):
        lanes = data[begin : min(begin + LANE * LANES, whole)].reshape(-1, LANE)
        steps = np.ascontiguousarray(lanes.view("<u4").T)  # (LANE / 4, lanes)
        crcs = np.zeros(len(lanes), np.uint32)
        for step in steps:
            crcs = _look_up(tables, crcs ^ step)
        length = LANE
        while len(crcs) > 1:
            if len(crcs) % 2:  # nothing in front of a text changes nothing
                crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
            crcs = _look_up(_zeros(length), crcs[::2]) ^ crcs[1::2]
            length *= 2
        checksum = _move_on(checksum, lanes.size) ^ int(crcs[0])
    slow = tables[3]
    for byte in data[whole:].tolist():
        checksum = int(slow[(checksum ^ byte) & 255]) ^ (checksum >> 8)
    return checksum ^ 0xFFFFFFFF


def _look_up(tables: npt.NDArray[np.uint32], values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A linear function of 32 bits, as four tables of a byte each, the lowest byte first."""
    result: npt.NDArray[np.uint32] = tables[0][values & 255]
    for number in (1, 2, 3):
        result ^= tables[number][values >> np.uint32(8 * number) & 255]
    return result


@functools.cache
def _byte_tables() -> npt.NDArray[np.uint32]:
    """The function that moves a CRC on by four bytes of zeros; its table 3 is that of the textbook, for one byte."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, one >> 1 ^ np.uint32(POLYNOMIAL), one >> 1)
    tables = [one]
    for _ in range(3):
        tables.insert(0, one[tables[0] & 255] ^ (tables[0] >> 8))
    return np.stack(tables)


@functools.cache
def _zeros(length: int) -> npt.NDArray[np.uint32]:
    """The function that moves a CRC on by `length` bytes of zeros, 4 times a power of two."""
    if length == 4:
        return _byte_tables()
    half = _zeros(length // 2)
    return np.stack([_look_up(half, table) for table in half])


def _move_on(checksum: int, length: int) -> int:
    """A CRC moved on by `length` bytes of zeros, a multiple of 4."""
    value, power = np.array([checksum], np.uint32), 4
    while power <= length:
        if length & power:
            value = _look_up(_zeros(power), value)
        power *= 2
    return int(value[0])
