"""Which device, and what to say where there is none."""

from __future__ import annotations

import os
from typing import Any

from globular.errors import DeviceError, import_extra


def find_device(name: str) -> Any:
    """The torch device of this name: "cuda", "cuda:1", or "torch-cpu", which is for tests."""
    torch = import_extra("torch", "torch", "gpu", f"device={name!r}")
    if name == "torch-cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise DeviceError(f"device={name!r}: torch sees no CUDA card here; use device='cpu'")
    number = int(name[5:]) if ":" in name else torch.cuda.current_device()
    if number >= torch.cuda.device_count():
        raise DeviceError(f"device={name!r}: there are {torch.cuda.device_count()} cards, numbered from 0")
    return torch.device("cuda", number)


def has_kernels(device: Any) -> bool:
    """Whether triton's kernels run on this device; elsewhere plain torch does the same."""
    return bool(device.type == "cuda") or kernels_are_interpreted()


def kernels_are_interpreted() -> bool:
    """Whether triton runs kernels on the CPU, for tests (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"
