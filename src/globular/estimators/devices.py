"""Where a fit runs: on the CPU, or on the card that the user names or that X lies on.

Nothing imports torch unless a card is asked for or X lies on one.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from globular.errors import DeviceError
from globular.estimators.parameters import DEVICE
from globular.passes.registry import beside

logger = logging.getLogger("globular")

_CUDA = 2
"""DLPack's number of devices of that kind."""


def lies_on_card(X: Any) -> bool:
    """Whether X is a tensor on a CUDA card, of torch, CuPy or whoever speaks DLPack."""
    if isinstance(X, np.ndarray) or not hasattr(X, "__dlpack_device__"):
        return False
    return int(X.__dlpack_device__()[0]) == _CUDA


def device_for(estimator: Any, X: Any) -> str:
    """ "cpu", or the name of the card that a fit or a prediction runs on."""
    wanted = getattr(estimator, "device", "auto")
    on_card = lies_on_card(X)
    if not hasattr(estimator, "device"):
        if on_card:
            raise DeviceError(
                f"{type(estimator).__name__} does not run on GPUs: pass X as an array of NumPy, or take "
                f"{estimator._on_cards}"
            )
        return "cpu"
    if not DEVICE.is_satisfied_by(wanted):  # one that was set after the fit
        raise ValueError(f"device must be {DEVICE}, got {wanted!r}")
    if wanted == "cpu":
        if on_card:
            raise DeviceError("X lies on a GPU and device='cpu'; pass X as an array of NumPy, or leave device='auto'")
        return "cpu"
    if wanted != "auto":
        return str(wanted)
    if not on_card:
        return "cpu"
    name = f"cuda:{X.__dlpack_device__()[1]}"
    logger.info("device='auto' chose %s, where X lies", name)
    return name


def where_x_is(X: Any, values: Any) -> Any:
    """Values for every row: as an array, or as a tensor on the card of X."""
    return beside(X, values) if lies_on_card(X) else np.asarray(values)
