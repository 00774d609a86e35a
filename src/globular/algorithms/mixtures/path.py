"""A path of mixtures: several numbers of components and covariance types, of which the best by a criterion is fitted.

On a part of the rows that is enough for the largest number,

    for k in sizes:  hard assignment to k-means centres: one E-step, whose moments are a start for every type
                     for every type:  another start is what the responsibilities of the finest type make of this one;
                                      for that type, and for the one whose score is lowest so far, the mixture of the
                                      number before with its best components in halves;
                                      a few EM steps each, and the best goes on until steps gain little
                     a type whose score has been above its lowest for long is left, and one whose score would not
                     come to be the lowest of all if it fell on as it did for long

and then, over all rows, a *race*: all that were found are scored, and EM goes on with those that may still come out
lowest, which are few. The lowest are searched for moves of components (`moves`), and for a pair that is better one.

So numbers share their mixtures and types their moments; a mixture that is far from the best costs one pass over all
rows, and its score is that of a mixture fitted to the part: at most too high, by what EM would still gain.

BIC is p log N − 2 log L with p free parameters. ICL is BIC + 2 H, H = −Σ w Σ_c q log q the entropy of the
responsibilities [Biernacki, Celeux and Govaert 2000]: the soft version, and it follows from the sums of the E-step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import log

import numpy as np

from globular.algorithms.mixtures.em import EMOptions, cold_mixture, covariance_limits, e_step, variance_within
from globular.algorithms.mixtures.moves import ROUGH_TOL, GaussianProspects, search_by_moves
from globular.algorithms.mixtures.pipeline import STEPS_OF_MOVES, STEPS_PER_COMPONENT
from globular.algorithms.search import SHORTEST
from globular.algorithms.steps import last_step
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.gaussian import GaussianParameters, entropy_of, m_step
from globular.model.statistics import F64, SoftStatistics
from globular.seam.mixture_passes import Expect
from globular.seam.shard import Shard

STEPS_AHEAD = 10
"""Steps, each of the gain of the last one, that may still make a mixture the lowest; larger = fewer are left early."""
PATIENCE = 5
"""Numbers in a row at which a type may score higher than at its best before it is left; and those whose falls tell what
is to come."""
N_SEARCHED = 3
"""Mixtures of lowest score that are searched in vain before the search ends."""


@dataclass(slots=True, eq=False)
class Candidate:
    """A mixture on its way, and its E-step."""

    mixture: GaussianParameters
    found: SoftStatistics
    rise: float = np.inf
    """By how much the log-likelihood has risen in the last step."""
    n_steps: int = 0

    @classmethod
    def of(cls, shard: Shard, mixture: GaussianParameters) -> Candidate:
        """A mixture where it starts."""
        return cls(mixture, e_step(shard, mixture))

    def step(self, shard: Shard, limits: CovarianceLimits) -> None:
        """One step of EM."""
        before = self.found.log_likelihood
        self.mixture = m_step(self.mixture, self.found, limits)
        self.found = e_step(shard, self.mixture)
        self.rise, self.n_steps = self.found.log_likelihood - before, self.n_steps + 1

    @property
    def key(self) -> tuple[int, str]:
        """The number of components and the covariance type."""
        return self.mixture.n_components, self.mixture.covariance_type

    @property
    def n_parameters(self) -> int:
        return self.mixture.n_parameters(learned_weights=True)

    def is_singular(self, n_rows: int) -> bool:
        """Whether a component with a covariance of its own holds no more rows than it takes for one."""
        family, D = self.mixture.family, self.mixture.n_features
        needed = 1 if family.scatter.separable else D
        return not family.tied and bool(self.mixture.weights.min() * n_rows <= needed)

    def bic(self, n_rows: float, unit: float = 1.0) -> float:
        """p log N − 2 log L, where a unit of weight counts for `unit` of N rows."""
        return self.n_parameters * log(n_rows) - 2.0 * unit * self.found.log_likelihood

    def icl(self, n_rows: float, unit: float = 1.0) -> float:
        """BIC + 2 H."""
        return self.bic(n_rows, unit) + 2.0 * unit * entropy_of(self.mixture, self.found)


@dataclass(frozen=True, slots=True)
class PathOptions:
    """Which mixtures, and how to score them."""

    covariance_types: tuple[str, ...]
    criterion: str = "bic"
    unit: float = 1.0
    """What a unit of the shard's weights counts for in N."""
    may_leave: bool = True
    """Whether types that will hardly come out lowest are left."""
    n_numbers: float = np.inf
    """How many numbers of components there are: a type that falls has these to catch up."""
    em: EMOptions = field(default_factory=EMOptions)

    def score(self, shard: Shard) -> Callable[[Candidate], float]:
        """The criterion over the rows of a shard; the lower the better."""
        n_rows = self.unit * shard.total_weight
        if self.criterion == "icl":
            return lambda candidate: candidate.icl(n_rows, self.unit)
        return lambda candidate: candidate.bic(n_rows, self.unit)


def fit_path(
    shard: Shard, part: Shard, centers: Iterable[F64], options: PathOptions, rng: np.random.Generator
) -> list[Candidate]:
    """The mixtures of all numbers and types that were not left, the one of lowest score fitted to the end.

    `centers` are k-means centres of ascending numbers; `part` is the shard itself, or some of its rows.
    """
    options = replace(options, em=replace(options.em, limits=covariance_limits(shard, options.em)))
    candidates = {candidate.key: candidate for candidate in _walk(shard, part, centers, options, rng)}
    if part is not shard:
        for candidate in candidates.values():
            candidate.found, candidate.n_steps = e_step(shard, candidate.mixture), 0
            # what the parameters owe to the part they lose at first, and gain again
            candidate.rise += shard.total_weight / part.n_rows * candidate.n_parameters / STEPS_AHEAD
    race(shard, list(candidates.values()), options)
    _search(shard, part, candidates, options, rng)
    return list(candidates.values())


def race(shard: Shard, candidates: Sequence[Candidate], options: PathOptions) -> None:
    """EM steps of the lowest of those that may still come out lowest, until there are none."""
    limits, score = covariance_limits(shard, options.em), options.score(shard)
    enough, scores = options.em.tol * shard.total_weight, [score(candidate) for candidate in candidates]
    while True:
        lowest = min(scores)
        going = [
            i
            for i, candidate in enumerate(candidates)
            if candidate.rise > enough
            and candidate.n_steps < options.em.max_iter
            and scores[i] - 2.0 * options.unit * STEPS_AHEAD * candidate.rise <= lowest
        ]
        if not going:
            return
        first = min(going, key=lambda i: scores[i])
        candidates[first].step(shard, limits)
        scores[first] = score(candidates[first])


def _walk(
    shard: Shard, part: Shard, centers: Iterable[F64], options: PathOptions, rng: np.random.Generator
) -> Iterator[Candidate]:
    """The mixtures of every number on the part, type by type, as far as types are not left."""
    limits = covariance_limits(shard, options.em)
    optimism = shard.n_rows / part.n_rows - 1.0  # a parameter that was fitted to the part promises that much too much
    score, walks = options.score(part), [_Walk(name, options) for name in finest_first(options.covariance_types)]
    for means in centers:
        lowest = min(walk.lowest for walk in walks)
        going = [walk for walk in walks if not walk.leaves(lowest)]
        ahead = min(walk.last_score for walk in walks)
        hard = _hard_start(part, means, going[0].covariance_type, limits) if going else None
        finest: Candidate | None = None
        for walk in going:
            assert hard is not None
            starts = [recast(hard, walk.covariance_type, limits)]
            if walk.last_score == ahead or finest is None:
                starts += walk.grown(part, len(means), rng)
            if finest is not None:
                starts.append(recast(finest, walk.covariance_type, limits))
            candidate = _best_of(part, starts, limits)
            walk.take(candidate, score(candidate) + optimism * candidate.n_parameters)
            if finest is None and not candidate.mixture.family.tied:
                finest = candidate
            yield candidate


class _Walk:
    """One covariance type along the numbers of components."""

    def __init__(self, covariance_type: str, options: PathOptions) -> None:
        self.covariance_type, self._options = covariance_type, options
        self._last: Candidate | None = None
        self._scores: list[float] = []

    @property
    def last_score(self) -> float:
        """That of the number before."""
        return self._scores[-1] if self._scores else np.inf

    @property
    def lowest(self) -> float:
        """The lowest score so far."""
        return min(self._scores, default=np.inf)

    def leaves(self, lowest: float) -> bool:
        """Whether scores have been above their lowest for long, or will hardly come down to the lowest of all types."""
        n = len(self._scores)
        if not self._options.may_leave or n <= PATIENCE:
            return False
        fall = (self._scores[-1 - PATIENCE] - self._scores[-1]) / PATIENCE
        in_the_end = self._scores[-1] - fall * (self._options.n_numbers - n)
        rises = n - 1 - int(np.argmin(self._scores)) >= PATIENCE
        return rises or self.lowest > lowest < in_the_end

    def take(self, candidate: Candidate, score: float) -> None:
        """The mixture of the next number."""
        self._last = candidate
        self._scores.append(score)

    def grown(self, part: Shard, size: int, rng: np.random.Generator) -> list[GaussianParameters]:
        """The mixture of the number before with some components in halves, if that makes `size`."""
        if self._last is None or size > 2 * self._last.mixture.n_components:
            return []
        mixture = self._last.mixture
        grown = GaussianProspects(part, mixture, self._options.em, rng, self._last.found).grown(
            size - mixture.n_components
        )
        return [] if grown is None else [grown]


def finest_first(covariance_types: Iterable[str]) -> list[str]:
    """Types with the finest second moments first, and with a covariance for each component before one for all."""
    return sorted(
        covariance_types, key=lambda name: (-FAMILIES[name].scatter.width(3), FAMILIES[name].tied)
    )  # in any number of columns but one it is the same order


def _hard_start(part: Shard, means: F64, covariance_type: str, limits: CovarianceLimits) -> Candidate:
    """Every row at its closest mean, with second moments of the kind that a type needs."""
    cold = cold_mixture(means, variance_within(part, means), covariance_type, limits)
    return Candidate(cold, part.run(Expect(cold)))


def recast(candidate: Candidate, covariance_type: str, limits: CovarianceLimits) -> GaussianParameters:
    """What the same responsibilities make of another type, whose second moments are as fine or coarser."""
    mixture, family = candidate.mixture, FAMILIES[covariance_type]
    scatter = mixture.family.scatter.seen_as(family.scatter, candidate.found.scatter)
    anything = family.isotropic(1.0, *mixture.means.shape)
    other = GaussianParameters(mixture.weights, mixture.means, anything, covariance_type)
    return m_step(other, replace(candidate.found, scatter=scatter), limits)


def _best_of(part: Shard, starts: Sequence[GaussianParameters], limits: CovarianceLimits) -> Candidate:
    """The start of largest likelihood after a step, once its steps gain little."""
    found = [Candidate.of(part, start) for start in starts]
    if len(found) > 1:
        for candidate in found:
            candidate.step(part, limits)
    best = max(found, key=lambda candidate: candidate.found.log_likelihood)
    while best.rise > ROUGH_TOL * part.total_weight and best.n_steps < 100:
        best.step(part, limits)
    return best


def _search(
    shard: Shard,
    part: Shard,
    candidates: dict[tuple[int, str], Candidate],
    options: PathOptions,
    rng: np.random.Generator,
) -> None:
    """Moves of components in the mixtures of lowest score, and two of theirs as one; what is better takes their place.

    A mixture of fewer components may then be the lowest, and is searched as well.
    """
    score, done, in_vain = options.score(shard), set[tuple[int, str]](), 0
    while in_vain < N_SEARCHED:
        best = min(candidates.values(), key=score)
        waiting = [candidate for candidate in candidates.values() if candidate.key not in done]
        if not waiting:
            return
        chosen, before = min(waiting, key=score), score(best)
        done.add(chosen.key)
        for mixture in _variants(part, chosen.mixture, options.em, rng):
            other = Candidate.of(shard, mixture)
            if other.key in candidates:
                race(shard, [other, best], options)
                candidates[other.key] = min(other, candidates[other.key], key=score)
        in_vain = 0 if min(map(score, candidates.values())) < before else in_vain + 1


def _variants(
    part: Shard, mixture: GaussianParameters, options: EMOptions, rng: np.random.Generator
) -> Iterator[GaussianParameters]:
    """Mixtures that no step of EM leads to, after EM on the part of the rows."""
    max_steps = STEPS_OF_MOVES + STEPS_PER_COMPONENT * mixture.n_components
    if mixture.n_components > 2 and max_steps >= SHORTEST:
        mixture = last_step(search_by_moves(part, mixture, options, max_steps, rng)).model
        yield mixture
    reduced = GaussianProspects(part, mixture, options, rng).reduced()
    if reduced is not None:
        yield _best_of(part, [reduced], covariance_limits(part, options)).mixture
