"""Exchanges of components of an exponential family that EM cannot make: one becomes two and two others one (`search`).

What a second component would gain in each: EM with one and with two on the rows that are most likely of it. What two
components are worth apart: from the sums of one E-step, the fall of the expected log-likelihood if they were one, less
what it gains that nobody has to tell their rows apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from globular.algorithms.mixtures.em import STEPS_ON_PART
from globular.algorithms.search import Change, Prospects, search
from globular.algorithms.steps import Step, last_step
from globular.model.exponential import ExponentialMixture, PseudoRows
from globular.model.statistics import F64, I64
from globular.seam.mixture_passes import ExpectLinear
from globular.seam.shard import Shard, answer

EM = Callable[[Shard, ExponentialMixture | int, int], Iterator[Step[ExponentialMixture]]]
"""EM on some rows, from a mixture or from so many seeds, for so many steps."""
Halves = tuple[float, ExponentialMixture | None]
"""What a component gains as two, and the two."""


def search_by_swaps(
    part: Shard, start: ExponentialMixture, prior: PseudoRows, em: EM
) -> Iterator[Step[ExponentialMixture]]:
    """EM, and exchanges as long as they raise the objective; every step holds the best mixture so far."""
    for best in em(part, start, STEPS_ON_PART):
        yield best
    known: dict[bytes, Halves] = {}
    draw = partial(_Prospects, part, prior=prior, em=em, known=known)
    yield from search(best, draw, partial(em, part), max_steps=200)


class _Prospects(Prospects[ExponentialMixture]):
    """What each component would gain as two, and what pairs would lose as one."""

    def __init__(
        self, part: Shard, mixture: ExponentialMixture, prior: PseudoRows, em: EM, known: dict[bytes, Halves]
    ) -> None:
        """`known` are halves by the rows of their component, which stay what they are while it keeps them."""
        found = part.run(ExpectLinear(mixture.linear))
        self._mixture, self._prior = mixture, prior
        self._counts, self._sums = found.counts, found.sums
        self.objective = found.log_likelihood + prior.log_density(mixture)
        self.n_distances = found.n_distances
        self._halves = []
        labels = np.asarray(answer(part, mixture, "components"))
        for c in range(mixture.n_components):
            own = np.flatnonzero(labels == c)
            if (key := own.tobytes()) not in known:
                known[key] = _halves(part, own, em)
            self._halves.append(known[key])
        self.gains = np.array([gain for gain, _ in self._halves])
        a, b = np.triu_indices(mixture.n_components, 1)
        self.pairs = np.stack([a, b], axis=1)
        self.losses = np.concatenate([self._losses(c) for c in range(mixture.n_components - 1)])

    def _losses(self, a: int) -> F64:
        """What is lost if component a and one behind it become one, (C − 1 − a,)."""
        (n, *others), total = self._counts[a:], self._counts[a] + self._counts[a + 1 :]
        labels = sum(m * np.log(np.maximum(total, 1e-300) / np.maximum(m, 1e-300)) for m in (n, np.array(others)))
        alone = self._worth(self._counts[a:], self._sums[a:])
        return alone[0] + alone[1:] - self._worth(total, self._sums[a] + self._sums[a + 1 :]) - labels

    def _worth(self, counts: F64, sums: F64) -> F64:
        """θ · Σ q x − A Σ q of components with these sums, (C,)."""
        mixture = self._prior.m_step(type(self._mixture), counts, sums, learned_weights=True)
        return np.asarray((mixture.slopes * sums).sum(axis=1) - mixture.log_normalisers * counts)

    def after(self, changes: list[Change]) -> ExponentialMixture:
        """Halves in the place of a component and of the second of two that become one in the place of the first."""
        arrays = {name: values.copy() for name, values in self._mixture.arrays.items()}
        for split, a, b in changes:
            counts, sums = (of[[a, b]].sum(axis=0, keepdims=True) for of in (self._counts, self._sums))
            one = self._prior.m_step(type(self._mixture), counts, sums, learned_weights=True)
            halves = self._halves[split][1]
            assert halves is not None  # as it gains
            weight, both = arrays["weights"][split], arrays["weights"][[a, b]].sum()
            for name, values in arrays.items():
                values[a], values[[split, b]] = one.arrays[name][0], halves.arrays[name]
            arrays["weights"][a] = both
            arrays["weights"][[split, b]] *= weight
        arrays["weights"] /= arrays["weights"].sum()
        return type(self._mixture)(**arrays)


def _halves(part: Shard, own: I64, em: EM) -> Halves:
    """The rows of a component as two."""
    if len(own) < 8:  # too few to be two
        return 0.0, None
    rows = part.subset(own)
    one, two = (last_step(em(rows, n, 10)) for n in (1, 2))
    return two.objective - one.objective, two.model
