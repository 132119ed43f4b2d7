"""Checkpoints of a training run: everything that it needs to resume as if it had never stopped.

Input: tensors and JSON values. Output: one folder per checkpoint, `step-00001000/` with tensors.safetensors and
snapshot.json, which holds the values and the checksums of both. A checkpoint is written under a temporary name and
renamed once it is on disk. One whose checksum differs is not loaded. Nothing is unpickled.
"""

from __future__ import annotations

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

from elmokit.files import sha256_of, sha256_of_json, sync_folder, write_json

logger = logging.getLogger(__name__)

FORMAT = "elmokit training checkpoint 1"
TENSORS_FILE = "tensors.safetensors"
VALUES_FILE = "snapshot.json"
KEPT = 2  # checkpoints


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a run after `step` updates."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


class Snapshots:
    """The checkpoints of one run; the last two are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, and remove all but the last two.

        Raises:
            OSError: If the checkpoint cannot be written. The older ones are unchanged.
        """
        final = self._path(snapshot.step)
        temporary = final.with_name(f".{final.name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed while writing
            temporary.mkdir(parents=True)
            tensors = {name: tensor.contiguous() for name, tensor in snapshot.tensors.items()}
            save_file(tensors, temporary / TENSORS_FILE)
            with open(temporary / TENSORS_FILE, "rb+") as file:
                os.fsync(file.fileno())
            values = {
                "format": FORMAT,
                "step": snapshot.step,
                "values": snapshot.values,
                "tensors_sha256": sha256_of(temporary / TENSORS_FILE),
            }
            write_json(temporary / VALUES_FILE, {**values, "sha256": sha256_of_json(values)})
            if final.exists():  # a damaged one, otherwise training would have resumed from it
                shutil.rmtree(final)
            os.replace(temporary, final)
            sync_folder(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            older = [step for step in self.steps() if step < snapshot.step]
            rest = f"that of step {older[-1]} is complete" if older else "there is no older one"
            raise OSError(
                f"{final}: the checkpoint could not be written ({error}); {rest}: free disk space and start again"
            ) from error
        for step in self.steps()[:-KEPT]:
            shutil.rmtree(self._path(step))

    def steps(self) -> list[int]:
        """The steps of all checkpoints, damaged ones too, in ascending order."""
        numbers = (path.name.removeprefix("step-") for path in self.folder.glob("step-*"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def newest(self) -> int | None:
        """The step of the newest checkpoint that is not damaged; None if there is no checkpoint.

        Raises:
            ValueError: If there are checkpoints, and all are damaged.
        """
        damaged: list[str] = []
        for step in reversed(self.steps()):
            try:
                self._values(step)
            except ValueError as error:
                damaged.append(str(error))
                continue
            for problem in damaged:
                logger.warning("%s; the checkpoint of step %d is used", problem, step)
            return step
        if damaged:
            raise ValueError(
                f"{damaged[0]}; there is no other good checkpoint in {self.folder}. Restore the folder from a copy; or "
                "remove it, and the same call starts the training again from its first step"
            )
        return None

    def load(self, step: int) -> Snapshot:
        """Read a checkpoint.

        Raises:
            ValueError: If it is incomplete or damaged.
        """
        values = self._values(step)
        return Snapshot(step, load_file(self._path(step) / TENSORS_FILE), values)

    def _values(self, step: int) -> dict[str, Any]:
        """The values of a checkpoint, once its checksums are compared."""
        folder = self._path(step)
        try:
            about = json.loads((folder / VALUES_FILE).read_bytes())
            is_intact = about.pop("sha256") == sha256_of_json(about) and about["format"] == FORMAT
            if is_intact and about["tensors_sha256"] == sha256_of(folder / TENSORS_FILE):
                values: dict[str, Any] = about["values"]
                return values
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            pass
        raise ValueError(f"{folder}: the checkpoint is incomplete or damaged: its checksum differs")

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"
