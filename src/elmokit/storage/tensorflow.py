"""TensorFlow checkpoints (V2, "tensor bundles") of bilm-tf's training, read without TensorFlow.

Input: the `.index` file, which is a LevelDB table of (name, position of its bytes), and the `.data` files beside it.
Output: arrays under the official names (see `official.Arrays`), without those of the optimizer. The checksum of every
block of the table and of every array is verified, so that a damaged file is never read as a model.
"""

from __future__ import annotations

import contextlib
import functools
import glob
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
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "bfloat16", 19: "<f2"}  # by TensorFlow's number of the type

# names of bilm-tf's variables, which depend on the version of TensorFlow -> names in its own HDF5 files
RENAMED = [
    (r"^lm/", ""),
    (r"/rnn/", "/RNN/"),
    (r"/multi_rnn_cell/cell_(\d+)/", r"/MultiRNNCell/Cell\1/"),
    (r"/RNN/(lstm_cell|LSTMCell)/", r"/RNN/MultiRNNCell/Cell0/\1/"),  # a single layer is not in a stack
    (r"/lstm_cell/", "/LSTMCell/"),
    (r"/LSTMCell/projection/(kernel|weights)$", "/LSTMCell/W_P_0"),
    (r"/LSTMCell/(kernel|weights)$", "/LSTMCell/W_0"),
    (r"/LSTMCell/(bias|biases)$", "/LSTMCell/B"),
]
COUNTERS = {"global_step", "train_perplexity"}


@contextlib.contextmanager
def open_checkpoint(path: str | os.PathLike[str]) -> Iterator[Checkpoint]:
    """Open a checkpoint for reading.

    Args:
        path: Its .index file.

    Raises:
        ValueError: If there is no such file, or it is not the index of a checkpoint. The message names it.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: {'this is a folder' if path.is_dir() else 'no such file'}")
    yield Checkpoint(path)


@dataclass(frozen=True)
class Entry:
    """Position, shape and type of an array."""

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
            raise ValueError(f"{path}: not the index of a checkpoint, or that of a big-endian machine")
        variables = {name.decode("utf-8", "replace"): value for name, value in table.items()}
        self._entries: dict[str, Entry] = {}
        for name, value in variables.items():
            # the optimizer's values of a variable are named after it: lm/CNN/W_cnn_0/Adagrad
            if name in COUNTERS or name.rpartition("/")[0] in variables:
                continue
            for pattern, replacement in RENAMED:
                name = re.sub(pattern, replacement, name)
            self._entries[name] = _entry(value, path)

    @property
    def names(self) -> list[str]:
        """Names of all variables except those of the optimizer."""
        return list(self._entries)

    def about(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array `name`."""
        entry = self._find(name)
        dtype = DTYPES.get(entry.dtype)
        if dtype is None or entry.is_sliced:
            what = "is split into slices" if entry.is_sliced else f"has TensorFlow's type {entry.dtype}"
            raise ValueError(f"{self.path}: {name} {what}, which is not supported")
        data = self._data_file(entry)
        if not data.is_file():
            raise ValueError(f"{data}: this file, which holds {name}, is missing beside {self.path.name}")
        if entry.size != math.prod(entry.shape) * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize):
            raise ValueError(f"{self.path}: {name} is {entry.shape} and {entry.size} bytes: the file is damaged")
        if entry.offset + entry.size > data.stat().st_size:
            raise ValueError(f"{data}: {name} is incomplete: the file is truncated")
        return entry.shape, np.dtype("<f4" if dtype == "bfloat16" else dtype)

    def read(self, name: str) -> npt.NDArray[Any]:
        """The array `name`, after its checksum is verified."""
        shape, dtype = self.about(name)
        entry = self._find(name)
        data = self._data_file(entry)
        is_half = DTYPES[entry.dtype] == "bfloat16"
        values = np.fromfile(data, np.uint8, entry.size, offset=entry.offset)
        if mask(crc32c(values)) != entry.checksum:
            raise ValueError(f"{data}: the checksum of {name} is wrong: the file is damaged")
        if is_half:
            return (values.view("<u2").astype("<u4") << 16).view("<f4").reshape(shape)
        return values.view(dtype).reshape(shape)

    @property
    def num_bytes(self) -> int:
        """Size of the .data files."""
        return sum(path.stat().st_size for path in self.path.parent.glob(f"{glob.escape(self.path.stem)}.data-*-of-*"))

    def _data_file(self, entry: Entry) -> Path:
        return self.path.with_suffix(f".data-{entry.shard:05d}-of-{self._num_shards:05d}")

    def _find(self, name: str) -> Entry:
        if name not in self._entries:
            present = ", ".join(self.names[:40]) or "nothing"
            raise ValueError(f"{self.path}: {name} is missing; the checkpoint holds {present}")
        return self._entries[name]


# ---- the table -------------------------------------------------------------------------------------------------------


def _read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """All keys and values of a LevelDB table, in order."""
    content = path.read_bytes()
    if len(content) < FOOTER_SIZE or struct.unpack("<Q", content[-8:])[0] != MAGIC:
        raise ValueError(f"{path}: not the .index of a TensorFlow checkpoint (V2), or incomplete")
    try:
        footer = content[-FOOTER_SIZE:]
        _, place = _varints(footer, 0, 2)  # the filter block, which is not needed
        (offset, size), _ = _varints(footer, place, 2)
        for _, handle in _block(content, offset, size, path):
            (offset, size), _ = _varints(handle, 0, 2)
            yield from _block(content, offset, size, path)
    except (IndexError, struct.error, OverflowError):
        raise ValueError(f"{path}: its table cannot be read: the file is damaged") from None


def _block(content: bytes, offset: int, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Entries of one block. A key is stored as the length of the prefix shared with the key before it, and the rest."""
    if offset + size + TRAILER_SIZE > len(content):
        raise IndexError
    block = content[offset : offset + size]
    kind, checksum = struct.unpack("<BI", content[offset + size : offset + size + TRAILER_SIZE])
    if mask(crc32c(np.frombuffer(content, np.uint8, size + 1, offset))) != checksum:
        raise ValueError(f"{path}: the checksum of its table is wrong: the file is damaged")
    if kind != 0:
        raise ValueError(f"{path}: its table is compressed (kind {kind}), which TensorFlow never does: not supported")
    (num_restarts,) = struct.unpack("<I", block[-4:])
    place, end, key = 0, len(block) - 4 - 4 * num_restarts, b""
    while place < end:
        (shared, rest, length), place = _varints(block, place, 3)
        key = key[:shared] + block[place : place + rest]
        place += rest
        yield key, block[place : place + length]
        place += length


def _entry(message: bytes, path: Path) -> Entry:
    """The entry of an array, from its protocol buffer."""
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
    """A field that is a number; 0 if it is absent."""
    value = fields.get(key, [0])[0]
    if not isinstance(value, int):
        raise ValueError(f"{path}: an entry of its table cannot be read: the file is damaged")
    return value


def _varints(data: bytes, place: int, count: int) -> tuple[tuple[int, ...], int]:
    """`count` numbers, seven bits per byte, starting at `place`; and the place after them."""
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
    """A CRC as files store it: masked, since the CRC of data that contains CRCs is weak."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: npt.NDArray[np.uint8]) -> int:
    """CRC-32C (Castagnoli), computed in many lanes at once and then joined, since Python is slow byte by byte.

    The CRC is linear: that of a message is that of its first part, advanced by the length of the rest, xor that of the
    rest.

    Args:
        data: The bytes (N,).
    """
    checksum = 0xFFFFFFFF
    tables = _byte_tables()
    end_of_lanes = len(data) // LANE * LANE
    for begin in range(0, end_of_lanes, LANE * LANES):
        lanes = data[begin : min(begin + LANE * LANES, end_of_lanes)].reshape(-1, LANE)
        steps = np.ascontiguousarray(lanes.view("<u4").T)  # (LANE / 4, lanes)
        crcs = np.zeros(len(lanes), np.uint32)
        for step in steps:
            crcs = _look_up(tables, crcs ^ step)
        length = LANE
        while len(crcs) > 1:
            if len(crcs) % 2:  # an empty message in front changes nothing
                crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
            crcs = _look_up(_zeros(length), crcs[::2]) ^ crcs[1::2]
            length *= 2
        checksum = _advance(checksum, lanes.size) ^ int(crcs[0])
    slow = tables[3]
    for byte in data[end_of_lanes:].tolist():
        checksum = int(slow[(checksum ^ byte) & 255]) ^ (checksum >> 8)
    return checksum ^ 0xFFFFFFFF


def _look_up(tables: npt.NDArray[np.uint32], values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A linear function of 32 bits, as four tables of one byte each, lowest byte first."""
    result: npt.NDArray[np.uint32] = tables[0][values & 255]
    for number in (1, 2, 3):
        result ^= tables[number][values >> np.uint32(8 * number) & 255]
    return result


@functools.cache
def _byte_tables() -> npt.NDArray[np.uint32]:
    """The function that advances a CRC by four zero bytes; its table 3 is the textbook's table, for one byte."""
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, one >> 1 ^ np.uint32(POLYNOMIAL), one >> 1)
    tables = [one]
    for _ in range(3):
        tables.insert(0, one[tables[0] & 255] ^ (tables[0] >> 8))
    return np.stack(tables)


@functools.cache
def _zeros(length: int) -> npt.NDArray[np.uint32]:
    """The function that advances a CRC by `length` zero bytes; `length` is 4 times a power of two."""
    if length == 4:
        return _byte_tables()
    half = _zeros(length // 2)
    return np.stack([_look_up(half, table) for table in half])


def _advance(checksum: int, length: int) -> int:
    """A CRC advanced by `length` zero bytes; `length` is a multiple of 4."""
    value, power = np.array([checksum], np.uint32), 4
    while power <= length:
        if length & power:
            value = _look_up(_zeros(power), value)
        power *= 2
    return int(value[0])
