"""Devices: the device of a name, and copies of tensors to it and back.

Input: the name of a device; tensors.  Output: a `torch.device`; tensors on it, or on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elmokit.arguments import describe


def find_device(name: str | torch.device | None) -> torch.device:
    """The device with this name.

    Args:
        name: "cpu", "cuda", "cuda:1"; "auto" or None is a GPU if there is one, else the CPU.

    Raises:
        ValueError: If there is no such device on this machine.
    """
    if name is not None and not isinstance(name, str | torch.device):  # torch.device reads any sequence, unchecked
        raise ValueError(f'device must be "cpu", "cuda", "cuda:1" or "auto", not {describe(name)}')
    if name is None or name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type != "cuda":
            torch.empty(0, device=device)
        elif (device.index or 0) >= torch.cuda.device_count():  # asked without touching a GPU, which others may use
            raise RuntimeError(f"torch sees {torch.cuda.device_count()} GPUs")
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f'device {str(name)!r} cannot be used ({str(error).splitlines()[0]}): use "cpu", "cuda", "cuda:1" or "auto"'
        ) from None
    return device


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; from the host to a GPU through pinned memory, so that the host does not wait."""
    if device.type == "cuda" and not values.is_cuda:
        # a tensor with gaps would be copied once more, to memory that is not pinned
        return values.contiguous().pin_memory().to(device, non_blocking=True)
    return values.to(device)


def to_host(values: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the host, without waiting for it.

    Returns:
        A function that waits for the copy, but not for what the GPU computes after it, and returns the copy.
    """
    if not values.is_cuda:
        return lambda: values
    copy = values.to("cpu", non_blocking=True)  # in pinned memory
    done = torch.cuda.current_stream(values.device).record_event()

    def wait() -> Tensor:
        done.synchronize()
        return copy

    return wait
