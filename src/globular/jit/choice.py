"""Which compiler a process uses, as GLOBULAR_JIT says, and the one log line that says so."""

from __future__ import annotations

import functools
import logging
import os
from types import ModuleType

VARIABLE = "GLOBULAR_JIT"
CHOICES = ("auto", "fast", "stock")

logger = logging.getLogger("globular")


def asked_for() -> str:
    """The value of GLOBULAR_JIT; an error if it is none of `CHOICES`."""
    asked = os.environ.get(VARIABLE) or "auto"
    if asked not in CHOICES:
        raise ValueError(f"{VARIABLE}={asked!r} must be one of {', '.join(CHOICES)}")
    return asked


@functools.cache
def compiler() -> ModuleType:
    """The module `linked` or `stock`."""
    from globular.jit import stock

    if asked_for() == "stock":
        return _chosen(stock, f"{VARIABLE}=stock")
    try:
        from globular.jit import linked
    except ImportError as error:
        return _chosen(stock, f"this numba has other insides than those that were tried: {error}")
    if asked_for() == "auto" and not linked.IS_TRIED:
        return _chosen(stock, f"numba {linked.VERSION} was not tried with it, only {linked.TRIED}")
    return _chosen(linked, "numba was tried with it")


def _chosen(module: ModuleType, why: str) -> ModuleType:
    name = module.__name__.rpartition(".")[2]
    logger.info("kernels that the library lacks are compiled by globular.jit.%s: %s", name, why)
    return module
