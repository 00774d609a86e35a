"""Seconds that this process has spent on compiling our kernels."""

from __future__ import annotations

_spent: list[float] = []


def compile_seconds() -> float:
    """Seconds so far, in whichever thread."""
    return sum(_spent)


def add(seconds: float) -> None:
    """Count another compilation."""
    _spent.append(seconds)
