"""Dirichlet process mixtures: sticks and component posteriors together, and what follows from both (Kurihara 2006).

Weights are broken from a stick: π_i = v_i Π_{j<i} (1 − v_j), v_i ~ Beta(α₁, α₂). The first T sticks have Beta
posteriors of their own. What is beyond T keeps the prior ("nested": the families contain each other as T grows, and the
sum over the infinite tail is a geometric series, Eq. 9), or is cut off by q(v_T = 1) = 1 ("closed": Blei and Jordan's
truncation).

Two more priors of the sticks: with a discount d the i-th is Beta(α₁ − d, α₂ + i d), the Pitman–Yor process, whose
weights fall off like a power (Ishwaran and James 2001); and α₂ may have a Gamma prior, and a Gamma posterior with it
(Blei and Jordan 2006).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from scipy.special import betaln, digamma, gammaln

from globular.lazy import cached_property
from globular.model.observations import ExpectedMixture, ObservedMoments, Posterior, Prior, Students, log_total
from globular.model.statistics import F64, I64

P = TypeVar("P", bound=Posterior)
_TAIL_TERMS = 4096
"""Sticks of a Pitman–Yor process beyond T that are added up one by one; the others follow a power law."""
_GAMMA_TURNS, _GAMMA_TOLERANCE = 200, 1e-14
"""Turns of fitting the concentration to the sticks and the sticks to it, and the change that ends them."""


class StickPrior(NamedTuple):
    """v_i ~ Beta(first − discount, second + i · discount), i = 1, 2, …"""

    first: float = 1.0
    second: float = 1.0
    discount: float = 0.0
    gamma: tuple[float, float] | None = None
    """Shape and rate of a Gamma prior of `second`, which then is its posterior mean."""
    n_before: int = 0
    """Sticks before these."""

    def behind(self, n: int) -> StickPrior:
        """The prior of the sticks behind the first n, the concentration as it is."""
        return self._replace(gamma=None, n_before=self.n_before + n if self.discount else 0)

    def parameters(self, T: int) -> tuple[float, float] | tuple[F64, F64]:
        """Parameters of the Beta priors of T sticks: two numbers for all of them, or (T,) each."""
        if self.discount == 0.0:
            return float(self.first), float(self.second)
        number = np.arange(self.n_before + 1.0, self.n_before + T + 1.0)
        return np.full(T, self.first - self.discount), self.second + self.discount * number


ONE_EACH = StickPrior()
"""Beta(1, 1)."""


@dataclass(frozen=True, eq=False)
class Sticks:
    """Posterior of the first T stick lengths."""

    alpha: StickPrior
    """The prior; of one with a Gamma prior α₂ is the posterior mean."""
    first: F64
    """φ^v_{i,1}, (T,)."""
    second: F64
    """φ^v_{i,2}, (T,)."""
    closed: bool = False
    """Whether the T-th stick takes all that is left."""
    concentration: tuple[float, float] | None = None
    """Shape and rate of the posterior of α₂, where that has a Gamma prior."""

    @classmethod
    def from_counts(
        cls, alpha: StickPrior | tuple[float, float], counts: F64, tail: float = 0.0, *, closed: bool = False
    ) -> Sticks:
        """Eqs. 17 and 20: counts are Σ_n q(z_n = i), and `tail` is Σ_n q(z_n > T)."""
        prior = StickPrior(*alpha)
        beyond = tail + np.append(np.cumsum(counts[:0:-1])[::-1], 0.0)
        concentration = None
        if prior.gamma is not None:
            concentration = _gamma_posterior(prior.gamma, counts, beyond, closed=closed)
            prior = prior._replace(second=concentration[0] / concentration[1])
        first, second = prior.parameters(len(counts))
        return cls(prior, first + counts, second + beyond, closed, concentration)

    @cached_property
    def _terms(self) -> F64:
        """E[log v_i], Eq. 14, E[log(1 − v_i)], Eq. 15, and KL(q_{v_i} ‖ p_v), (3, T)."""
        terms = _terms(self.first, self.second, *StickPrior(*self.alpha).parameters(len(self.first)))
        if self.closed:
            terms[0, -1] = terms[2, -1] = 0.0
        return terms

    @property
    def log_rests(self) -> F64:
        """E[log(1 − v_i)], Eq. 15, (T,). Of the T-th stick it has no meaning if the sticks are closed."""
        return self._terms[1]

    @cached_property
    def log_weights(self) -> F64:
        """E[log π_i] for i ≤ T, (T,)."""
        return self._terms[0] + np.append(0.0, np.cumsum(self.log_rests[:-1]))

    @cached_property
    def log_tail(self) -> float:
        """log Σ_{i>T} exp E[log π_i], by Eq. 9; −∞ if the sticks are closed."""
        if self.closed:
            return -np.inf
        prior = StickPrior(*self.alpha)
        if prior.discount:
            n_before = prior.n_before + len(self.first)
            return float(self.log_rests.sum() + _log_tail(prior._replace(gamma=None, n_before=n_before)))
        first, second = prior.first, prior.second
        whole = digamma(first + second)
        log_ratio = digamma(second) - whole  # E_p[log(1 − v)]: each further stick is shorter by this
        return float(self.log_rests.sum() + digamma(first) - whole - np.log(-np.expm1(log_ratio)))

    @cached_property
    def weights(self) -> F64:
        """E[π_i] for i ≤ T, (T,)."""
        lengths = self.first / (self.first + self.second)
        if self.closed:
            lengths[-1] = 1.0
        return lengths * np.append(1.0, np.cumprod(1.0 - lengths[:-1]))

    @cached_property
    def remainder(self) -> float:
        """E[Σ_{i>T} π_i], what the weights lack to one."""
        return 0.0 if self.closed else float(np.prod(self.second / (self.first + self.second)))

    def log_evidence(self) -> float:
        """log of the probability of the counts that the sticks were made from, the sticks integrated out."""
        found = betaln(self.first, self.second) - betaln(*StickPrior(*self.alpha).parameters(len(self.first)))
        return float(found[:-1].sum() if self.closed else found.sum())

    def divergences(self) -> F64:
        """KL(q_{v_i} ‖ p_v), (T,); a closed stick has none."""
        return self._terms[2]

    @property
    def held(self) -> F64:
        """Σ_n q(z_n = i), (T,)."""
        return self.first - StickPrior(*self.alpha).parameters(len(self.first))[0]

    @cached_property
    def shared_divergence(self) -> float:
        """What a posterior of α₂ adds to the divergences: KL(q_α ‖ p_α), and Σ_i log E[α] − E[log α]; else 0."""
        prior = StickPrior(*self.alpha)
        if self.concentration is None or prior.gamma is None:
            return 0.0
        (shape, rate), (s, r) = self.concentration, prior.gamma
        n = len(self.first) - self.closed
        log_mean = digamma(shape) - np.log(rate)
        divergence = (shape - s) * digamma(shape) - gammaln(shape) + gammaln(s)
        divergence += s * (np.log(rate) - np.log(r)) + shape * (r - rate) / rate
        return float(divergence + n * (np.log(shape / rate) - log_mean))


class GroupSticks(NamedTuple):
    """Sticks of several groups of components, each group with sticks of its own."""

    log_weights: F64
    """E[log π_i], (T,)."""
    divergences: F64
    """Σ KL(q_{v_i} ‖ p_v) of every group, less what its sticks leave to those behind, (G,)."""


def sticks_of_groups(alpha: StickPrior, counts: F64, bounds: I64, before: I64, behind: F64) -> GroupSticks:
    """`Sticks.from_counts` for all groups at once: that of g has the components bounds[g] … bounds[g + 1] − 1.

    `before` are the sticks before each group, and `behind` is what the components behind it hold, (G,) each.
    """
    firsts, group = bounds[:-1], np.repeat(np.arange(len(before)), np.diff(bounds))
    number = np.arange(1.0, len(counts) + 1.0) - firsts[group] + alpha.n_before + before[group]  # of each stick
    so_far = np.cumsum(counts)
    beyond = np.maximum(so_far[bounds[1:] - 1][group] - so_far + behind[group], 0.0)  # rounding may go below
    a, b = alpha.first - alpha.discount, alpha.second + alpha.discount * number
    lengths, rests, divergences = _terms(a + counts, b + beyond, a, b)
    before_each = np.cumsum(rests) - rests
    left = np.add.reduceat(rests, firsts)
    return GroupSticks(
        lengths + before_each - before_each[firsts][group], np.add.reduceat(divergences, firsts) - behind * left
    )


def _terms(first: F64, second: F64, a: F64 | float, b: F64 | float) -> F64:
    """E[log v_i], Eq. 14, E[log(1 − v_i)], Eq. 15, and KL(q_{v_i} ‖ p_v) for v_i ~ Beta(a, b), (3, T)."""
    terms = np.empty((3, len(first)))
    whole = digamma(first + second)
    terms[0], terms[1] = digamma(first) - whole, digamma(second) - whole
    terms[2] = betaln(a, b) - betaln(first, second)
    terms[2] += (first - a) * terms[0] + (second - b) * terms[1]
    return terms


def _gamma_posterior(prior: tuple[float, float], counts: F64, beyond: F64, *, closed: bool) -> tuple[float, float]:
    """q(α) = Gamma(s + T, r − Σ_i E[log(1 − v_i)]), with the q(v_i) = Beta(1 + n_i, E[α] + n_{>i}) that belong to it.

    Deviation: beyond T sticks keep Beta(1, E[α]), and what their distance from Beta(1, α) costs is not counted.
    """
    s, r = prior
    n = len(counts) - closed
    shape, mean = s + n, s / r
    for _ in range(_GAMMA_TURNS):
        second = mean + beyond[:n]
        rate = r - float((digamma(second) - digamma(1.0 + counts[:n] + second)).sum())
        before, mean = mean, shape / rate
        if abs(mean - before) <= _GAMMA_TOLERANCE * mean:
            break
    return shape, rate


@lru_cache(maxsize=4096)
def _log_tail(prior: StickPrior) -> float:
    """log Σ_i exp E[log π_i] over all sticks of a Pitman–Yor process behind `n_before` of them.

    The terms fall like the power −1/d of the number of the stick, so what is left out is an integral.
    """
    a, b = map(np.atleast_1d, prior.parameters(_TAIL_TERMS))
    whole = digamma(a + b)
    rests = digamma(b) - whole
    terms = np.exp(digamma(a) - whole + np.append(0.0, np.cumsum(rests[:-1])))
    left_out = terms[-1] * (b[-1] / prior.discount / (1.0 / prior.discount - 1.0) - 0.5)
    return float(np.log(terms.sum() + left_out))


@dataclass(frozen=True, eq=False)
class InfiniteMixture(Generic[P]):
    """q(W) of Eq. 4 without the labels: T components of their own, and the prior beyond them."""

    sticks: Sticks
    posterior: P
    tail: P
    """The prior as a posterior: what every component beyond T has."""

    @classmethod
    def update(
        cls,
        prior: Prior,
        alpha: StickPrior | tuple[float, float],
        moments: ObservedMoments,
        tail_count: float = 0.0,
        *,
        closed: bool = False,
    ) -> InfiniteMixture[Posterior]:
        """The parameters of smallest free energy given responsibilities (Eqs. 17 and 18, 20 and 21)."""
        sticks = Sticks.from_counts(alpha, moments.counts, tail_count, closed=closed)
        return InfiniteMixture(sticks, prior.update(moments), prior.itself())

    @property
    def T(self) -> int:
        return len(self.posterior)

    @cached_property
    def local(self) -> ExpectedMixture:
        """exp S_{n,i} of Eq. 7 for i ≤ T, and for the tail (Eq. 9) as one more component unless it is cut off."""
        if self.sticks.closed:
            return self.posterior.expected_mixture(self.sticks.log_weights)
        log_weights = np.append(self.sticks.log_weights, self.sticks.log_tail)
        return self.posterior.join(self.tail).expected_mixture(log_weights)

    @cached_property
    def divergence(self) -> float:
        """The first two terms of Eq. 8: how far the parameters have moved from their priors."""
        own = float(self.sticks.divergences().sum() + self.posterior.divergences().sum())
        return own + self.sticks.shared_divergence

    def free_energy(self, log_normalisers: float) -> float:
        """Eqs. 8 and 22, given Σ_n log Σ_i exp S_{n,i}."""
        return self.divergence - log_normalisers

    def students(self) -> Students | None:
        """p(x | X) as a mixture of Student-t densities, where it is one."""
        everyone, weights = self.posterior, self.sticks.weights
        if not self.sticks.closed:
            everyone, weights = everyone.join(self.tail), np.append(weights, self.sticks.remainder)
        found = everyone.students()
        with np.errstate(divide="ignore"):
            return found and found._replace(constants=found.constants + np.log(weights))

    def log_predictive(self, rows: F64) -> F64:
        """log p(x | X), Eq. 10, (N,); the bracket taken under q so that the weights sum to one."""
        with np.errstate(divide="ignore"):
            joint = self.posterior.log_predictive(rows).T + np.log(self.sticks.weights)[:, None]
            if not self.sticks.closed:
                joint = np.vstack([joint, self.tail.log_predictive(rows).T + np.log(self.sticks.remainder)])
        return log_total(joint.T)
