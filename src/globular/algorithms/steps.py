"""What an algorithm yields after every iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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


def after(steps: Iterator[Step[Model]], n_distances: int) -> Iterator[Step[Model]]:
    """The steps, the first of which also counts the distances that came before it."""
    for step in steps:
        yield replace(step, n_distances=step.n_distances + n_distances)
        n_distances = 0


def last_step(steps: Iterator[Step[Model]]) -> Step[Model]:
    """Run an algorithm to its end: its last step, with the distances of all of them."""
    n_distances = 0
    for step in steps:
        n_distances += step.n_distances
    return replace(step, n_distances=n_distances)


def in_units(steps: Iterator[Step[Model]], unit: float) -> Iterator[Step[Model]]:
    """The steps, their objectives in units in which a weight of one is `unit`."""
    return (replace(step, objective=step.objective * unit) for step in steps)
