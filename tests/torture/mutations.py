"""Damage to model files: each mutation changes one file of a copied model folder.

Input: a folder and a random generator. Output: a `Mutation` that says what was done, and whether the result may be
another model that is legal. Formats without checksums (official HDF5, JSON that a person may edit) have such models: a
flipped bit of a float is then another weight, and nothing can tell.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

NUMBERS = (10**9, 10**18, 10**30, 2**31, 2**63, -1, 0, 1, 2, 1.5, 1e308, float("nan"), float("inf"), -0.0)
VALUES = (*NUMBERS, "x", "", "9" * 5000, "\ud800", None, True, False, [], {}, [[]], [None], {"a": 1}, [1] * 3000)
DEEP = "[" * 100_000
JSON_SUFFIXES, DATA_SUFFIXES = (".json",), (".safetensors", ".hdf5")
LEGAL = "legal: "
BOMB = 2 << 30  # bytes behind a dataset of the right shape


@dataclass(frozen=True)
class Mutation:
    """What was done to a folder."""

    name: str
    detail: str
    may_be_legal: bool = False
    """A changed model may load: the format has no checksum that could tell, or a person may have edited the file."""


def mutate(folder: Path, rng: random.Random) -> Mutation:
    """Change one file of the folder."""
    official = (folder / "options.json").exists()
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "README.md")
    # damage that nobody intended is half of the cases, crafted content the other half
    kinds: list[Callable[[Path, random.Random], str]] = [_flip_bits, _truncate, _extend, _overwrite, _drop]
    kinds += [_flip_bits, _swap, _no_file, _edit_json, _edit_json, _duplicate_key, _odd_json]
    kinds += [HDF5_KINDS[rng.randrange(len(HDF5_KINDS))] if official else _edit_safetensors] * 4
    while True:
        kind = rng.choice(kinds)
        suffixes = JSON_SUFFIXES if "json" in kind.__name__ or kind is _duplicate_key else None
        suffixes = (".hdf5",) if kind in HDF5_KINDS else suffixes
        suffixes = (".safetensors",) if kind is _edit_safetensors else suffixes
        candidates = [path for path in files if suffixes is None or path.suffix in suffixes]
        if not candidates:
            continue
        path = rng.choice(candidates)
        try:
            detail = kind(path, rng)
        except _NotApplicableError:
            continue
        if official:
            legal = kind not in CRAFTED or detail.startswith(LEGAL)
        else:  # config.json has the checksums of the other files; whoever edits it by hand makes another model
            legal = path.name == "config.json" and kind in (_edit_json, _duplicate_key)
        return Mutation(kind.__name__.strip("_"), f"{path.name}: {detail}", legal)


class _NotApplicableError(Exception):
    """This file has nothing to mutate in this way."""


# ---- any file --------------------------------------------------------------------------------------------------------


def _flip_bits(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    places = [rng.randrange(len(content) * 8) for _ in range(rng.choice((1, 1, 1, 2, 8)))] if content else []
    for place in places:
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    return f"bits {places} flipped"


def _truncate(path: Path, rng: random.Random) -> str:
    size = rng.randrange(max(1, path.stat().st_size))
    os.truncate(path, size)
    return f"truncated to {size} bytes"


def _extend(path: Path, rng: random.Random) -> str:
    extra = rng.randbytes(rng.choice((1, 8, 4096)))
    with open(path, "ab") as file:
        file.write(extra)
    return f"{len(extra)} bytes appended"


def _overwrite(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    begin = rng.randrange(len(content))
    length = min(len(content) - begin, rng.choice((4, 512, 4096)))
    content[begin : begin + length] = bytes(length) if rng.random() < 0.5 else rng.randbytes(length)
    path.write_bytes(content)
    return f"{length} bytes at {begin} overwritten"


def _drop(path: Path, rng: random.Random) -> str:
    content = path.read_bytes()
    begin = rng.randrange(len(content))
    length = rng.choice((1, 4, 8, 4096))
    path.write_bytes(content[:begin] + content[begin + length :])
    return f"{length} bytes at {begin} removed"


def _swap(path: Path, rng: random.Random) -> str:
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    other = rng.choice(others)
    if rng.random() < 0.5:
        shutil.copy(other, path)
        return f"replaced by a copy of {other.name}"
    content = path.read_bytes()
    shutil.copy(other, path)
    other.write_bytes(content)
    return f"exchanged with {other.name}"


def _no_file(path: Path, rng: random.Random) -> str:
    path.unlink()
    kind = rng.choice(("missing", "empty", "folder", "link to itself", "link to a device", "no permission"))
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "no permission":
        path.touch(mode=0)
    return kind


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(inner for key, item in items for inner in _places(item, (*place, key)))]


def _edit_json(path: Path, rng: random.Random) -> str:
    values = json.loads(path.read_text(encoding="utf-8"))
    *above, last = rng.choice(_places(values)[1:])
    holder = values
    for key in above:
        holder = holder[key]
    action = rng.choice(("set", "set", "set", "set", "remove", "rename"))
    new = rng.choice(VALUES)
    if action == "set":
        holder[last] = new
    else:
        old = holder.pop(last)
        if action == "rename" and isinstance(holder, dict):
            holder[f"{last}_"] = old
    path.write_text(json.dumps(values), encoding="utf-8")
    return f"{action} {'.'.join(map(str, (*above, last)))} {new!r:.60}"


def _duplicate_key(path: Path, rng: random.Random) -> str:
    key = rng.choice(sorted(json.loads(path.read_text(encoding="utf-8"))))
    new = json.dumps(rng.choice(VALUES))
    text = path.read_text(encoding="utf-8").rstrip().removesuffix("}").rstrip()
    path.write_text(f'{text}, "{key}": {new}}}', encoding="utf-8")
    return f"{key} twice, the second {new:.60}"


def _odd_json(path: Path, rng: random.Random) -> str:
    text = path.read_text(encoding="utf-8")
    odd = {
        "deep": DEEP.encode(),
        "deep object": b'{"a":' * 100_000,
        "long number": b'{"format": ' + b"9" * 100_000 + b"}",
        "utf-16": text.encode("utf-16"),
        "byte-order mark": b"\xef\xbb\xbf" + text.encode(),
        "not utf-8": text.encode().replace(b'"', b"\xff", 1),
        "list": b"[]",
        "null": b"null",
        "nul byte": text.encode() + b"\0",
        "two documents": text.encode() * 2,
        "no end": text.encode().rstrip()[:-1],
    }
    name = rng.choice(sorted(odd))
    path.write_bytes(odd[name])
    return name


# ---- safetensors -----------------------------------------------------------------------------------------------------


def _edit_safetensors(path: Path, rng: random.Random) -> str:
    """Change the header, whose length, names, dtypes, shapes and offsets a hostile file chooses; or the values."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    name = rng.choice(sorted(set(header) - {"__metadata__"}))
    tensor = header[name]
    action = rng.choice(("length", "dtype", "shape", "offsets", "rename", "remove", "add", "nan", "metadata"))
    if action == "length":
        length = rng.choice((0, 1, 2**40, 2**63, 2**64 - 1, length + 1))
        path.write_bytes(struct.pack("<Q", length) + content[8:])
        return f"header of {length} bytes"
    if action == "dtype":
        tensor["dtype"] = rng.choice(("F64", "F16", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "X", 7))
    elif action == "shape":
        tensor["shape"] = rng.choice(
            (tensor["shape"][::-1], [*tensor["shape"], 1], [2**62, 4], [0], [-1], [10**30], [], ["a"])
        )
    elif action == "offsets":
        begin, end = tensor["data_offsets"]
        tensor["data_offsets"] = rng.choice(([begin + 1, end], [begin, end - 4], [end, begin], [0, 2**63], [-4, end]))
    elif action == "rename":
        header[name + "x"] = header.pop(name)
    elif action == "remove":
        del header[name]
    elif action == "add":
        header["extra"] = {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}
    elif action == "metadata":
        header["__metadata__"] = rng.choice(({"a": "b"}, {"a": 1}, [], {"k" * 5000: "v" * 5000}))
    else:
        begin, end = tensor["data_offsets"]
        width = {"F32": 4, "F16": 2, "BF16": 2}.get(tensor["dtype"])
        if width is None or end - begin < width:
            raise _NotApplicableError
        number = np.array(rng.choice((np.nan, np.inf, -np.inf)), np.float32)
        bits = number.tobytes() if width == 4 else number.astype(np.float16).tobytes()
        if tensor["dtype"] == "BF16":
            bits = number.tobytes()[2:]
        place = begin + width * rng.randrange((end - begin) // width)
        data[place : place + width] = bits
        name += f" {number}"
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return f"{action} of {name}"


# ---- HDF5 ------------------------------------------------------------------------------------------------------------


def _dataset(file: h5py.File, rng: random.Random) -> tuple[str, np.ndarray]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    if not names:
        raise _NotApplicableError
    name = rng.choice(names)
    return name, file[name][()]


def _link(path: Path, rng: random.Random) -> str:
    """A dataset that is somewhere else: what it holds is not what was downloaded."""
    outside = path.parent.parent / "outside.hdf5"
    kind = rng.choice(("external link", "soft link", "loop", "virtual dataset", "external storage", "system file"))
    with h5py.File(path, "r+") as file:
        name, values = _dataset(file, rng)
        del file[name]
        with h5py.File(outside, "w") as other:
            other["x"] = values + 1
        if kind == "external link":
            file[name] = h5py.ExternalLink(str(outside), "x")
        elif kind == "soft link":
            file["elsewhere"] = values + 1
            file[name] = h5py.SoftLink("/elsewhere")
        elif kind == "loop":
            file[name] = h5py.SoftLink(f"/{name}")
        elif kind == "virtual dataset":
            layout = h5py.VirtualLayout(values.shape, values.dtype)
            layout[...] = h5py.VirtualSource(str(outside), "x", shape=values.shape)
            file.create_virtual_dataset(name, layout)
        else:
            source = Path(os.path.realpath("/etc/passwd")) if kind == "system file" else path.parent.parent / "raw"
            if kind == "external storage":
                source.write_bytes((values + 1).tobytes())
            file.create_dataset(name, values.shape, values.dtype, external=[(str(source), 0, h5py.h5f.UNLIMITED)])
    return f"{LEGAL if kind == 'soft link' else ''}{kind} {name}"


def _wrong_dtype(path: Path, rng: random.Random) -> str:
    kind = rng.choice(
        ("int32", "uint8", "complex64", "float16", "float64", "string", "bytes", "compound", "vlen", "enum")
    )
    with h5py.File(path, "r+") as file:
        name, values = _dataset(file, rng)
        del file[name]
        if kind == "string":
            file.create_dataset(name, data=np.full(values.shape, "x", object), dtype=h5py.string_dtype())
        elif kind == "bytes":
            file[name] = np.full(values.shape, b"1.0", "S3")
        elif kind == "compound":
            file[name] = np.zeros(values.shape, [("a", "f4"), ("b", "i4")])
        elif kind == "vlen":
            file.create_dataset(name, values.shape, h5py.vlen_dtype(np.float32))
        elif kind == "enum":
            file.create_dataset(name, values.shape, h5py.enum_dtype({"A": 0, "B": 1}))
        else:
            file[name] = values.astype(kind)
    return f"{LEGAL if kind in ('float16', 'float64') else ''}{name} is {kind}"


def _wrong_shape(path: Path, rng: random.Random) -> str:
    with h5py.File(path, "r+") as file:
        name, values = _dataset(file, rng)
        kind = rng.choice(("transposed", "flat", "more", "scalar", "empty", "null", "huge", "huge and sparse"))
        del file[name]
        if kind == "null":
            file[name] = h5py.Empty("f4")
        elif kind in ("huge", "huge and sparse"):
            shape = (2**40, 2**10) if kind == "huge" else (10**9, *values.shape[1:])
            file.create_dataset(name, shape, "f4", chunks=(1024,) + (1,) * (len(shape) - 1), fillvalue=1.0)
        else:
            shapes = {"transposed": values.T, "flat": values.ravel(), "more": values[None], "scalar": values.sum()}
            file[name] = shapes.get(kind, values[:0])
            if kind in ("transposed", "flat", "more") and shapes[kind].shape == values.shape:
                return f"{LEGAL}{name} {kind}, which has the same shape"
    return f"{name} {kind}"


def _bomb(path: Path, rng: random.Random) -> str:
    """Two gigabytes in a few kilobytes: one chunk, far larger than the dataset, behind a right shape."""
    with h5py.File(path, "r+") as file:
        name, values = _dataset(file, rng)
        del file[name]
        elements = (BOMB >> rng.randrange(4)) // 4
        if not values.ndim:
            raise _NotApplicableError
        chunk = (*values.shape[:-1], max(values.shape[-1], elements // max(1, int(np.prod(values.shape[:-1])))))
        dataset = file.create_dataset(
            name, values.shape, "f4", maxshape=(None,) * values.ndim, chunks=chunk, compression="gzip"
        )
        dataset.id.write_direct_chunk((0,) * values.ndim, _deflated_zeros(int(np.prod(chunk)) * 4))
    return f"{name} is a chunk of {np.prod(chunk) * 4 >> 20} MiB"


_zeros: dict[int, bytes] = {}


def _deflated_zeros(size: int) -> bytes:
    import zlib

    if size not in _zeros:
        packer, block = zlib.compressobj(9), bytes(1 << 20)
        parts = [packer.compress(block[: min(1 << 20, size - begin)]) for begin in range(0, size, 1 << 20)]
        _zeros[size] = b"".join([*parts, packer.flush()])
    return _zeros[size]


def _odd_filter(path: Path, rng: random.Random) -> str:
    """A chunked dataset whose chunk is not what its filters say."""
    with h5py.File(path, "r+") as file:
        name, values = _dataset(file, rng)
        if not values.ndim:
            raise _NotApplicableError
        del file[name]
        compression = rng.choice(("gzip", "lzf", None))
        dataset = file.create_dataset(name, data=values, chunks=values.shape, compression=compression, fletcher32=True)
        dataset.id.write_direct_chunk((0,) * values.ndim, rng.randbytes(rng.choice((1, 64, 4096))))
    return f"{name} in a broken chunk, {compression}"


def _odd_values(path: Path, rng: random.Random) -> str:
    with h5py.File(path, "r+") as file:
        name, values = _dataset(file, rng)
        if not values.size:
            raise _NotApplicableError
        number = rng.choice((np.nan, np.inf, -np.inf, 1e38))
        values = values.copy()
        values.flat[rng.randrange(values.size)] = number
        file[name][...] = values
    return f"{name} has {number}"


def _odd_tree(path: Path, rng: random.Random) -> str:
    kind = rng.choice(("missing", "group", "renamed", "named type", "many", "surplus", "deep"))
    with h5py.File(path, "r+") as file:
        name, values = _dataset(file, rng)
        if kind in ("missing", "group", "named type", "renamed"):
            del file[name]
        if kind == "group":
            file.create_group(name)
        elif kind == "named type":
            file[name] = np.dtype("f4")
        elif kind == "renamed":
            file[name + "x"] = values
        elif kind == "many":
            for number in range(2000):
                file[f"surplus/{number}"] = number
        elif kind == "surplus":
            file["surplus"] = values
        elif kind == "deep":
            file["/".join("d" * 500)] = values
    return f"{name} {kind}"


CRAFTED = [_link, _wrong_dtype, _wrong_shape, _bomb, _odd_filter]
"""Content that is not a legal model, whatever the format."""
HDF5_KINDS = [_link, _link, _wrong_dtype, _wrong_shape, _bomb, _odd_filter, _odd_values, _odd_tree]
