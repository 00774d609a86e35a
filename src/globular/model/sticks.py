"""Stick-breaking weights of an infinite mixture: π_i = v_i Π_{j<i} (1 − v_j), v_i ~ Beta(α₁, α₂) (Kurihara 2006).

The first T sticks have Beta posteriors of their own. What is beyond T keeps the prior ("nested": the families contain
each other as T grows, and the sum over the infinite tail is a geometric series, Eq. 9), or is cut off by q(v_T = 1) = 1
("closed": Blei and Jordan's truncation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, digamma

from globular.kernels.wishart import stick_terms
from globular.model.statistics import F64
from globular.threads import cached_property


@dataclass(frozen=True, eq=False)
class Sticks:
    """Posterior of the first T stick lengths."""

    alpha: tuple[float, float]
    """α₁ and α₂ of the prior."""
    first: F64
    """φ^v_{i,1}, (T,)."""
    second: F64
    """φ^v_{i,2}, (T,)."""
    closed: bool = False
    """Whether the T-th stick takes all that is left."""

    @classmethod
    def from_counts(cls, alpha: tuple[float, float], counts: F64, tail: float = 0.0, *, closed: bool = False) -> Sticks:
        """Eqs. 17 and 20: counts are Σ_n q(z_n = i), and `tail` is Σ_n q(z_n > T)."""
        beyond = tail + np.append(np.cumsum(counts[:0:-1])[::-1], 0.0)
        return cls(alpha, alpha[0] + counts, alpha[1] + beyond, closed)

    @cached_property
    def _terms(self) -> F64:
        """E[log v_i], Eq. 14, E[log(1 − v_i)], Eq. 15, and KL(q_{v_i} ‖ p_v), (3, T)."""
        terms = np.empty((3, len(self.first)))
        stick_terms(self.first, self.second, *self.alpha, terms)
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
        first, second = self.alpha
        whole = digamma(first + second)
        log_ratio = digamma(second) - whole  # E_p[log(1 − v)]: each further stick is so much shorter
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
        found = betaln(self.first, self.second) - betaln(*self.alpha)
        return float(found[:-1].sum() if self.closed else found.sum())

    def divergences(self) -> F64:
        """KL(q_{v_i} ‖ p_v), (T,); a closed stick has none."""
        return self._terms[2]
