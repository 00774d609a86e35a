"""Trials of splits (Kurihara 2006, section 7, step 2): which components would lower the free energy as two?

A trial works on the share of one component, its parent, and changes nothing else: the children share all the mass of
the parent. With everything else fixed the change of F has four parts: the divergences of the posteriors against that
of the parent, those of the sticks, what the shorter sticks cost the components behind, and the log-normalisers of the
share under the children against the parent.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from globular.algorithms.infinite.data import Shares
from globular.algorithms.infinite.energies import Energies, Groups
from globular.algorithms.mixtures.em import COLD
from globular.algorithms.steps import to_come
from globular.model.cells import starts_of
from globular.model.covariances import FAMILIES
from globular.model.dirichlet import StickPrior
from globular.model.gaussian import GaussianParameters
from globular.model.observations import ObservedMoments, Prior
from globular.model.statistics import F64, I64, joined

_STEADY = 1e-3
"""Children have converged when F changes by less than this per unit of weight."""

Question = Literal["free energy", "halves"]
Asked = tuple[Question, ObservedMoments]


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A split that was tried."""

    component: int
    gain: float
    """By how much F falls; not positive where it rises."""
    children: ObservedMoments
    """The children that it leaves."""
    n_distances: int
    n_seen: int
    """Cells or rows that the component was seen in."""


@dataclass(frozen=True, slots=True)
class SplitRules:
    """When a split is worth it, and how hard to look."""

    alpha: StickPrior
    """The prior of the sticks."""
    epsilon: float
    """F has to fall by more than this."""
    gain: float
    """F has to fall by more than this per row of the parent, too."""
    smallest: float
    """Every child has to hold this much weight."""
    n_updates: int = 6
    """Most updates of the children."""
    n_halvings: int = 3
    """How often halves are halved again before a split is given up."""


def try_splits(
    shares: Shares, components: I64, moments: ObservedMoments, behind: list[float], prior: Prior, rules: SplitRules
) -> list[Trial]:
    """A trial for each of the components, all of them side by side: what they ask for next is one pass.

    `shares` are those of the components, and `behind` are Σ_n q(z_n = j) of all components j behind each of them, the
    tail included.
    """
    energies, masses = Energies(shares, prior, rules.alpha), np.array(behind)
    trials: dict[int, Trial] = {}
    runs = [
        _try_split(c, moments.take(slice(c, c + 1)), n_seen, rules)
        for c, n_seen in zip(components.tolist(), shares.sizes.tolist(), strict=True)
    ]
    answers: list[tuple[int, Any]] = [(number, None) for number in range(len(runs))]
    while answers:
        asked: dict[Question, list[tuple[int, ObservedMoments]]] = {"free energy": [], "halves": []}
        for number, answer in answers:
            try:
                question, parts = runs[number].send(answer)
                asked[question].append((number, parts))
            except StopIteration as end:
                trials[number] = end.value
        answers = []
        for question, those in asked.items():
            if those:
                which = np.array([number for number, _ in those])
                together, bounds = joined([m for _, m in those]), starts_of([len(m) for _, m in those])
                groups = Groups(together, bounds, which[:, None], components[which], masses[which])
                found = energies.measure(groups).each(groups) if question == "free energy" else energies.bisect(groups)
                answers += zip(which.tolist(), found, strict=True)
    return [trials[number] for number in range(len(runs))]


def _try_split(component: int, parent: ObservedMoments, n_seen: int, rules: SplitRules) -> Generator[Asked, Any, Trial]:
    """Steps 2b and 2c: halves at the bisector, then updates of the children alone; asks for what it takes passes.

    Deviation: where two halves do not pay, the halves are halved again. A ring of clusters is worth its parts, but not
    two half rings.
    """
    weight = float(parent.counts[0])
    needed = max(rules.epsilon, rules.gain * weight)
    n_evaluated = 1
    before, children = yield "free energy", parent
    for _ in range(rules.n_halvings):
        n_evaluated += 2 * len(children)
        halves = yield "halves", children
        if halves is None or halves.counts.min() < rules.smallest:
            break
        F, fall = np.inf, 0.0
        for n_left in reversed(range(rules.n_updates)):
            n_evaluated += len(halves)
            earlier = F
            F, halves = yield "free energy", halves
            steeper, fall = fall, earlier - F
            hopeless = fall < steeper < np.inf and before - F + to_come(steeper, fall, n_left) < needed
            if fall < _STEADY * weight or hopeless:
                break
        held = halves.counts >= rules.smallest
        if held.sum() < 2:
            break
        if not held.all():  # too many parts for what is there: those left share all of it
            n_evaluated += int(held.sum())
            F, halves = yield "free energy", halves.take(held)
        gain = before - F
        if gain > needed:
            return Trial(component, gain, halves, n_evaluated * n_seen, n_seen)
        children = halves
    return Trial(component, 0.0, parent, n_evaluated * n_seen, n_seen)


def cold_mixture(means: F64, covariance: F64, covariance_type: str) -> GaussianParameters:
    """Equal components, colder than `covariance` until every row goes to the closest mean in its units."""
    own = FAMILIES[covariance_type]
    # equal covariances need one factor: of each scatter one family at most is tied
    family = next((each for each in FAMILIES.values() if each.tied and each.scatter is own.scatter), own)
    covariances = np.broadcast_to(COLD * covariance, family.shape(*means.shape))
    return GaussianParameters(np.full(len(means), 1.0 / len(means)), means, covariances, family.name)
