"""What an algorithm yields after every iteration, in whatever stage (see `model.history`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

from globular.model.history import ITERATIONS, PART

Model = TypeVar("Model")
Other = TypeVar("Other")
Result = TypeVar("Result")

CAUTION = 2.0
"""Times by which what a geometric series leaves to come is taken for larger; larger = longer runs before EM ends."""


@dataclass(frozen=True, slots=True)
class Step(Generic[Model]):
    """One iteration: its figures, and the parameters it ended with."""

    iteration: int
    """1 for the first over all rows; 0 in the stages before."""
    objective: float
    n_distances: int
    """Data-to-cluster distances of this iteration alone."""
    n_changed: int | None
    model: Model
    stopped: str = ""
    """On the last step, why the algorithm stopped; empty before."""
    stage: str = ITERATIONS
    next_rows: int | None = None
    """Rows that the next step looks at, where those are not all: it takes the less time."""
    lift: Callable[[Model], Any] | None = None
    """What makes the model of `model`, where that takes its time and is rarely asked for."""

    def lifted(self) -> Any:
        """The model in the whole space."""
        return self.model if self.lift is None else self.lift(self.model)

    def holding(self, model: Other) -> Step[Other]:
        """The same step with another form of its model."""
        figures = self.iteration, self.objective, self.n_distances, self.n_changed
        return Step(*figures, model, self.stopped, self.stage, self.next_rows)


Finding: TypeAlias = Generator[Step[Any], None, Result]
"""What finds something by iterations: it yields their steps, and returns what it has found."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an algorithm."""

    steps: Iterator[Step[Any]]
    start: Any = None
    """The model that it starts with, for a fit that may end before the first step."""


def after(steps: Iterator[Step[Model]], n_distances: int) -> Iterator[Step[Model]]:
    """The steps, the first of which also counts the distances that came before it."""
    for step in steps:
        yield replace(step, n_distances=step.n_distances + n_distances)
        n_distances = 0


def numbered_from(steps: Iterator[Step[Model]], n_before: int) -> Iterator[Step[Model]]:
    """The steps of an algorithm that goes on after others."""
    return (replace(step, iteration=n_before + step.iteration) for step in steps)


def last_step(steps: Iterator[Step[Model]]) -> Step[Model]:
    """Run an algorithm to its end: its last step, with the distances of all of them."""
    n_distances = 0
    for step in steps:
        n_distances += step.n_distances
    return replace(step, n_distances=n_distances)


def result_of(steps: Generator[Step[Any], None, Result]) -> Result:
    """Run an algorithm to its end without a look at its steps: what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def to_the_last(steps: Iterator[Step[Model]]) -> Generator[Step[Model], None, Step[Model]]:
    """The steps; returns the last of them."""
    for step in steps:
        yield step
    return step


def on_part(steps: Iterator[Step[Model]], n_rows: int) -> Generator[Step[Model], None, Step[Model]]:
    """The steps as those of a search on a part of `n_rows` rows; returns the last of them as it is."""
    for step in steps:
        yield replace(step, iteration=0, stopped="", stage=PART, next_rows=n_rows)
    return step


def to_come(steeper: float, rise: float, n_left: float = math.inf) -> float:
    """About the most that is to come in the steps that are left, if rises go on to shrink as two did, twice over."""
    ratio = rise / steeper
    return rise * min(n_left, CAUTION * ratio / (1.0 - ratio))


def mapped(
    steps: Generator[Step[Model], None, Result], change: Callable[[Step[Model]], Step[Other]]
) -> Generator[Step[Other], None, Result]:
    """The steps, each of them changed; returns what they return."""
    while True:
        try:
            step = next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        yield change(step)


def in_units(steps: Iterator[Step[Model]], unit: float) -> Iterator[Step[Model]]:
    """The steps, their objectives in units in which a weight of one is `unit`."""
    return steps if unit == 1.0 else (replace(step, objective=step.objective * unit) for step in steps)
