"""Expectation maximisation for mixtures of exponential families: directions, counts, zeros and ones.

    repeat:  E-step  q(c | x) ∝ π_c exp(θ_c · x − A_c)                         one linear pass, dense or sparse rows
             M-step  π_c and E[x | c] from Σ q and Σ q x, and pseudo-rows       `model.exponential`

The objective of a step is the log-likelihood of all rows and the log density of the prior, at the parameters its E-step
used; it never falls. A start comes from k-means on a part of the rows: by cosines for directions, of the square roots
of counts. EM on the part follows, with exchanges of components that EM cannot make, one as two and two others as one
(`search`), and EM on all rows goes on from there. What a component would gain as two: EM with one and with two on the
rows that are most likely of it. What two components are worth apart: from the sums of one E-step, the fall of the
expected log-likelihood if they were one, less what it gains that nobody has to tell their rows apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from globular.algorithms.kmeans.lloyd import TOLERANCE
from globular.algorithms.kmeans.pipeline import PipelineOptions, kmeans
from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.em import STEPS_ON_PART, iterate
from globular.algorithms.mixtures.pipeline import TIMES_MORE_ROWS
from globular.algorithms.mixtures.probing import NO_GRAPH, SearchByProbing, find_members
from globular.algorithms.mixtures.variational import em_among_some
from globular.algorithms.search import Change, Prospects, search
from globular.algorithms.seeding.common import evenly_spread_rows
from globular.algorithms.seeding.named import draw_seeds
from globular.algorithms.steps import Finding, Step, last_step, on_part, result_of
from globular.model.exponential import ExponentialMixture, PseudoRows
from globular.model.exponential.family import LinearStatistics
from globular.model.statistics import F64, I64
from globular.seam.mixture_passes import ExpectLinear
from globular.seam.passes import AsScaled, Assign, Roots, SumByLabel
from globular.seam.shard import Shard, answer
from globular.seam.sparse_passes import AssignSparse

FEWEST_SEARCHED, PART_ROWS_PER_COMPONENT = 4096, 256
"""Least rows of the part, in all and for every component; larger = a better start, from more work."""
KMEANS_ITERATIONS = 100
"""Most steps of k-means for a start."""
SWAPPED = (3, 64)
"""Numbers of components between which swaps are tried: fewer leave nothing to swap, and of many each start lacks as
many as swaps one by one would mend."""
SMOOTHINGS = 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0
"""Strengths of the prior that are tried, as shares of a component's rows on average."""
LEFT_OUT, MOST_LEFT_OUT, FEWEST_LEFT_OUT = 0.2, 4000, 100
"""Share of the rows that are left out to tell which is best, and how many at most, larger = a surer choice; and the
rows of a fit below which none are."""
SEEDING_NAMES = {"kmeans": "auto", "k-means++": "k-means++", "random_from_data": "random"}
"""Ways to start, and the seeding of each."""


@dataclass(frozen=True, slots=True)
class ExponentialOptions:
    """How to run EM, and on what."""

    prior: PseudoRows
    max_iter: int = 100
    tol: float = 1e-3
    """Stop when the mean objective of a row changes by less."""
    learned_weights: bool = True
    """Whether mixing weights are learned; otherwise they are equal."""
    log_base: float = 0.0
    """Σ w log h(x) of all rows."""
    previous_bound: float = -np.inf
    """Mean objective of a row at the end of the fit that this one continues."""
    n_candidates: int | None = None
    """Components that a row keeps, if it looks at few of them."""


def em_exponential(
    shard: Shard, start: ExponentialMixture, options: ExponentialOptions
) -> Iterator[Step[ExponentialMixture]]:
    """Run EM from `start`; one step per iteration."""
    prior = options.prior

    def exact(mixture: ExponentialMixture) -> LinearStatistics:
        return shard.run(ExpectLinear(mixture.linear))

    def expect(mixture: ExponentialMixture, e_step: Callable[..., LinearStatistics] = exact, **how: bool) -> Any:
        found = e_step(mixture, **how)
        return replace(found, log_likelihood=found.log_likelihood + options.log_base + prior.log_density(mixture))

    def update(mixture: ExponentialMixture, found: LinearStatistics) -> ExponentialMixture:
        return prior.m_step(type(mixture), found.counts, found.sums, learned_weights=options.learned_weights)

    if options.n_candidates is None:
        return iterate(expect, update, start, options.max_iter, options.tol, options.previous_bound)
    among = VariationalOptions(options.n_candidates, max_iter=options.max_iter, tol=options.tol)
    return em_among_some(shard, start, partial(expect, e_step=e_step_by_probing(shard, start, among)), update, among)


def e_step_by_probing(
    shard: Shard, start: ExponentialMixture, options: VariationalOptions
) -> Callable[..., LinearStatistics]:
    """E-steps among few components of every row, by way of Gaussians that stand for them."""
    shard = shard.run(AsScaled())
    rng, (mean, variance) = np.random.default_rng(0), shard.column_moments()
    find_members(shard, start.as_gaussians().mixture, options.C_prime, rng)
    search = SearchByProbing(shard, NO_GRAPH, options, rng)

    def e_step(mixture: ExponentialMixture, *, idle: bool) -> LinearStatistics:
        standing = mixture.as_gaussians()
        found = search.e_step(standing.mixture, idle=idle)
        sums = found.counts[:, None] * (standing.mixture.means + found.shifts)
        log_likelihood = found.log_likelihood + standing.shared(found.total_weight, mean, variance)
        return LinearStatistics(found.counts, sums, log_likelihood, found.total_weight, found.n_distances)

    return e_step


def search_start(
    shard: Shard,
    family: type[ExponentialMixture],
    n_components: int,
    method: str,
    options: ExponentialOptions,
    rng: np.random.Generator,
) -> Finding[ExponentialMixture]:
    """A mixture to begin EM over all rows with; steps show the best one so far."""
    part = _draw_part(shard, n_components, rng)
    prior = replace(options.prior, weight=options.prior.weight * part.total_weight / shard.total_weight)
    options = replace(options, prior=prior, previous_bound=-np.inf, log_base=0.0)
    start = start_from_seeds(part, family, n_components, method, options, rng)
    swaps = method == "kmeans" and SWAPPED[0] <= n_components <= SWAPPED[1] and options.max_iter > 0
    if options.max_iter == 0 or (part is shard and not swaps):
        return start
    if not swaps:
        steps = em_exponential(part, start, replace(options, max_iter=STEPS_ON_PART))
        return (yield from on_part(steps, part.n_rows)).model

    def em(rows: Shard, begin: ExponentialMixture | int, max_iter: int) -> Iterator[Step[ExponentialMixture]]:
        if isinstance(begin, int):
            begin = start_from_seeds(rows, family, begin, "k-means++", options, rng)
        return em_exponential(rows, begin, replace(options, max_iter=max_iter))

    return (yield from on_part(search_by_swaps(part, start, options.prior, em), part.n_rows)).model


def start_from_seeds(
    part: Shard,
    family: type[ExponentialMixture],
    n_components: int,
    method: str,
    options: ExponentialOptions,
    rng: np.random.Generator,
) -> ExponentialMixture:
    """Every row to its closest seed, or to its cluster of k-means, then an M-step."""
    seen: Shard = part.run(Roots()) if family.by_roots and not part.why_not(Roots) else part
    seed = partial(
        draw_seeds, name=SEEDING_NAMES[method], n_clusters=n_components, rng=rng, unit_centers=family.unit_rows
    )
    if method == "kmeans":
        tol = TOLERANCE * float(seen.column_moments()[1].mean())
        how = PipelineOptions(
            n_components, max_iter=KMEANS_ITERATIONS, tol=tol, unit_centers=family.unit_rows,
            sparse=not seen.why_not(AssignSparse),
        )  # fmt: skip
        centers = last_step(kmeans(seen, seed, how, np.random.RandomState(int(rng.integers(2**31))))).lifted()
    else:
        centers = result_of(seed(seen)).centers
    seen.run(Assign(centers, want="labels"))
    found = part.run(SumByLabel(n_components))
    return options.prior.m_step(family, found.counts, found.sums, learned_weights=options.learned_weights)


def start_from_means(
    shard: Shard, family: type[ExponentialMixture], means: F64, options: ExponentialOptions
) -> ExponentialMixture:
    """Components at given means, of equal weight; directions have the spread of the rows that are closest to them.

    Rates of zero, and probabilities of zero and one, give way to the prior.
    """
    weights = np.full(len(means), 1 / len(means))
    given = family.of_means(weights, means)
    if not family.unit_rows:
        counts = shard.total_weight * weights
        start = options.prior.m_step(family, counts, counts[:, None] * means, learned_weights=options.learned_weights)
        return family.of_means(start.weights, np.where(given.means == means, means, start.means))
    shard.run(Assign(given.means, want="labels"))
    found = shard.run(SumByLabel(len(means)))
    start = options.prior.m_step(family, found.counts, found.sums, learned_weights=options.learned_weights)
    return replace(start, means=given.means)


def pseudo_rows(shard: Shard, family: type[ExponentialMixture], smoothing: float, n_components: int) -> PseudoRows:
    """The prior of every component: at about the mean of all rows, the share `smoothing` of a component's rows."""
    return PseudoRows(smoothing * shard.total_weight / n_components, family.prior_mean(shard.column_moments()[0]))


def best_smoothing(shard: Shard, mixture: ExponentialMixture, prior: PseudoRows) -> float:
    """The strength under which rows are likeliest that had no part in the parameters, after an E-step by `mixture`.

    `prior` has some strength. What rows left out add is taken away from the sums, so each strength costs them alone.
    """
    n, unit = min(math.ceil(LEFT_OUT * shard.n_rows), MOST_LEFT_OUT), shard.total_weight / mixture.n_components
    left_out = shard.subset(evenly_spread_rows(shard.n_rows, n, np.random.default_rng(0)))
    whole, part = (each.run(ExpectLinear(mixture.linear)) for each in (shard, left_out))
    counts, sums = np.maximum(whole.counts - part.counts, 0.0), whole.sums - part.sums

    def log_likelihood(smoothing: float) -> float:
        other = replace(prior, weight=smoothing * unit).m_step(type(mixture), counts, sums, learned_weights=True)
        return float(left_out.run(ExpectLinear(other.linear)).log_likelihood)

    return max(SMOOTHINGS, key=log_likelihood)


def _draw_part(shard: Shard, n_components: int, rng: np.random.Generator) -> Any:
    """Rows enough for the components, in memory; all rows where that would be most of them."""
    n = max(FEWEST_SEARCHED, PART_ROWS_PER_COMPONENT * n_components)
    if shard.n_rows < TIMES_MORE_ROWS * n and not shard.why_not(Roots):
        return shard
    n = min(n, shard.n_rows)
    return shard.subset(np.sort(rng.choice(shard.n_rows, n, replace=False)))


EM = Callable[[Shard, ExponentialMixture | int, int], Iterator[Step[ExponentialMixture]]]
"""EM on some rows, from a mixture or from a number of seeds, for a number of steps."""
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
