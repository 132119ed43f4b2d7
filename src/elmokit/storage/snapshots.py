"""Checkpoints of a run: everything that training needs to go on as if it had never stopped.

Enters: tensors and plain values.  Leaves: a folder for each checkpoint, `step-00001000/` with tensors.safetensors and
snapshot.json, which holds the values and the checksum of both.  A checkpoint is written under another name, reaches the
disk, and then takes its name in one step; one whose checksum differs is never loaded.  Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.files import sync_folder

logger = logging.getLogger(__name__)

FORMAT = "elmokit training checkpoint 1"
TENSORS_FILE = "tensors.safetensors"
VALUES_FILE = "snapshot.json"
KEPT = 2


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A run after `step` updates."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


class Snapshots:
    """The checkpoints of one run; the last two are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint; where that fails the older ones are as they were."""
        final = self._path(snapshot.step)
        temporary = final.with_name(f".{final.name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed while it wrote
            temporary.mkdir(parents=True)
            save_file(
                {name: tensor.contiguous() for name, tensor in snapshot.tensors.items()}, temporary / TENSORS_FILE
            )
            values = {
                "format": FORMAT,
                "step": snapshot.step,
                "values": snapshot.values,
                "tensors_sha256": _sha256(temporary / TENSORS_FILE),
            }
            text = json.dumps({**values, "sha256": _sha256_of_json(values)}, indent=1)
            (temporary / VALUES_FILE).write_text(text, encoding="utf-8")
            for name in (TENSORS_FILE, VALUES_FILE):
                with open(temporary / name, "rb+") as file:
                    os.fsync(file.fileno())
            if final.exists():  # a torn one, else training would have gone on from it
                shutil.rmtree(final)
            os.replace(temporary, final)
            sync_folder(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            older = [step for step in self.steps() if step < snapshot.step]
            way_out = f"that of step {older[-1]} is whole" if older else "there is no older one"
            raise OSError(
                f"{final}: the checkpoint could not be written ({error}); {way_out}: make room and start again"
            ) from error
        for step in self.steps()[:-KEPT]:
            shutil.rmtree(self._path(step))

    def steps(self) -> list[int]:
        """The steps of all checkpoints, whole or not, ascending."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*"))

    def newest(self) -> int | None:
        """The step of the newest checkpoint that is whole; torn ones behind it are passed over."""
        for step in reversed(self.steps()):
            try:
                self._values(step)
                return step
            except ValueError as error:
                logger.warning("%s; the one before it is used", error)
        return None

    def load(self, step: int) -> Snapshot:
        """A checkpoint, its checksums compared."""
        values = self._values(step)
        return Snapshot(step, load_file(self._path(step) / TENSORS_FILE), values)

    def _values(self, step: int) -> dict[str, Any]:
        folder = self._path(step)
        try:
            about = json.loads((folder / VALUES_FILE).read_bytes())
            known = about.pop("sha256") == _sha256_of_json(about) and about["format"] == FORMAT
            if known and about["tensors_sha256"] == _sha256(folder / TENSORS_FILE):
                values: dict[str, Any] = about["values"]
                return values
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            pass
        raise ValueError(f"{folder}: the checkpoint is torn or damaged: its checksum differs")

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_json(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
