"""A search by changes that are tried out: make a few, iterate a little, keep them if that was worth it, else undo them.

Iterations end in a local optimum, and no small step leads from there to a better one. A change in one place does, such
as one cluster in two and two others as one; whether it is worth it shows only after a few iterations. So

    repeat:  prospects    what changes would gain: from statistics, without trying them
             changes      the best of them that do not touch each other, many at once to begin with
             iterations   a few, as long as the goal is in reach
             better:      the new model stays, and its prospects are drawn
             else:        the old one comes back, and half as many changes are made the next time; a single change that
                          has failed is not tried again, and after a few of these the search ends

The best objective never falls. (Whoever minimises negates.) [Ueda, Nakano, Ghahramani and Hinton 2000]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeAlias

import numpy as np

from globular.algorithms.steps import Model, Step
from globular.model.statistics import F64, I64

Change: TypeAlias = tuple[int, int, int]
"""A cluster that becomes two, and two that become one."""

STEPS_PER_TRIAL, STEPS_PER_DRAW = 7, 4
"""Iterations of a trial, and iterations that take as long as to draw prospects."""
SHORTEST = STEPS_PER_DRAW + STEPS_PER_TRIAL
"""Iterations that the shortest search takes."""


class Prospects(ABC, Generic[Model]):
    """Changes of a model, and what to expect of them."""

    objective: float
    """The objective of the model as it is."""
    n_distances: int
    """Distances, or densities of a row under a component, that it took to find out."""
    gains: F64
    """What each cluster would gain as two, (C,)."""
    pairs: I64
    """Pairs a < b of clusters, (n, 2)."""
    losses: F64
    """What each pair would lose as one, (n,)."""

    @abstractmethod
    def after(self, changes: list[Change]) -> Model:
        """The model with these changes."""

    def is_sound(self, model: Model) -> bool:
        """Whether a model that changes have led to may be kept at all."""
        return True

    def best(self, at_most: int, in_vain: set[Change]) -> list[Change]:
        """The most promising changes that do not touch each other, without those known to be in vain."""
        changes: list[Change] = []
        settled = np.zeros(len(self.gains), dtype=bool)
        spares = [(*self.pairs[i].tolist(), self.losses[i]) for i in np.argsort(self.losses, kind="stable")]
        for split in np.argsort(-self.gains, kind="stable").tolist():
            for a, b, loss in [] if settled[split] or self.gains[split] <= 0 else spares:
                if self.gains[split] <= 0.2 * loss:  # iterations often make up for the rest
                    break
                if split in (a, b) or settled[[a, b]].any() or (split, a, b) in in_vain:
                    continue
                settled[[split, a, b]] = True
                changes.append((split, a, b))
                break
            if len(changes) == at_most:
                break
        return changes


def search(
    best: Step[Model],
    draw: Callable[[Model], Prospects[Model]],
    iterate: Callable[[Model, int], Iterator[Step[Model]]],
    max_steps: int,
    worth_keeping: float = 0.0,
) -> Iterator[Step[Model]]:
    """Trials from the model of `best`, of about `max_steps` iterations in all; every step holds the best model so far.

    `iterate` takes a number of iterations at most, and says on the last why it stopped; `worth_keeping` is what a trial
    has to gain.
    """
    in_vain, n_steps, at_once, max_failures, prospects = set[Change](), 0, 0, 1, None
    while n_steps + STEPS_PER_TRIAL <= max_steps and len(in_vain) < max_failures:
        n_distances = 0
        if prospects is None:
            n_steps += STEPS_PER_DRAW
            if n_steps + STEPS_PER_TRIAL > max_steps:
                return
            prospects = draw(best.model)
            best, n_distances = replace(best, objective=prospects.objective), prospects.n_distances
            C = len(prospects.gains)
            at_once, max_failures = at_once or max(1, C // 8), min(4, 1 + C // 5)
        changes = prospects.best(at_once, in_vain)
        if not changes:
            return
        goal, before = best.objective + worth_keeping, -np.inf
        for step in iterate(prospects.after(changes), STEPS_PER_TRIAL):
            # the others gain less than this one, so they would hardly reach the goal
            to_come = (STEPS_PER_TRIAL - step.iteration) * (step.objective - before)
            success = bool(step.stopped) and step.objective > goal and prospects.is_sound(step.model)
            best = replace(step if success else best, n_distances=n_distances + step.n_distances, stopped="")
            n_steps, n_distances, before = n_steps + 1, 0, step.objective
            yield best
            if step.objective + to_come < goal:
                break
        if success:
            prospects = None
            in_vain.clear()
        elif len(changes) > 1:
            at_once = len(changes) // 2
        else:
            in_vain.update(changes)
            if len(in_vain) % 2 == 0:  # other halves may do better
                prospects = None
