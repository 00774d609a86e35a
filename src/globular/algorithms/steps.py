"""What an algorithm yields after every iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Model = TypeVar("Model")


@dataclass(frozen=True, slots=True)
class Step(Generic[Model]):
    """One iteration: its figures, and the parameters it ended with."""

    iteration: int
    objective: float
    n_distances: int
    """Data-to-cluster distances of this iteration alone."""
    n_changed: int | None
    model: Model
    stopped: str = ""
    """On the last step, why the algorithm stopped; empty before."""
