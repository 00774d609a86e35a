"""Passes over the rows that weigh components of a mixture: E-steps, and what follows from responsibilities."""

from __future__ import annotations

from dataclasses import dataclass

from globular.model.chunks import Chunks, Claims
from globular.model.exponential import ExponentialMixture, LinearMixture, LinearStatistics, Surveyed
from globular.model.gaussian import GaussianParameters
from globular.model.low_rank import LowRankParameters, LowRankStatistics
from globular.model.statistics import F64, I64, SoftStatistics, WithinStatistics
from globular.seam.among import ALL, All, Need, Neighbors, Probe, Remembered, SoftAmong, Within
from globular.seam.passes import HERE, NO_EFFECT, Change, Effect, Index, Pass


@dataclass(frozen=True, eq=False)
class Expect(Pass[SoftStatistics]):
    """E-step of a Gaussian mixture: sums weighted by the responsibilities, and the log-likelihood.

    Among few components the log-likelihood is the free energy of Eq. 10. With an `offset` components that share a
    covariance Σ go, all of them, without what they share: see `model.gaussian.Spread`. Log-likelihoods then lack
    −½ yᵀΣ⁻¹y, y a row less the offset, of second moments there are none, (0, …), and it takes no quadratic form.
    """

    needs = Need.DENSE
    mixture: GaussianParameters
    among: SoftAmong = ALL
    offset: F64 | None = None

    @property
    def effect(self) -> Effect:
        match self.among:
            case Remembered(renew=True):
                return Effect({"pairs"}, afresh=True)
            case Neighbors() | Probe():
                return Effect({"labels", "members"})
        return NO_EFFECT


@dataclass(frozen=True, eq=False)
class ExpectSparse(Expect):
    """The same on sparse rows, for components that all have one variance, the same in every column."""

    needs = Need.SPARSE


@dataclass(frozen=True, eq=False)
class ExpectLinear(Pass[LinearStatistics]):
    """E-step of components whose log-densities are linear in the row, dense or sparse; N·C distances."""

    needs = Need.CPU
    mixture: LinearMixture


@dataclass(frozen=True)
class Survey(Pass[Surveyed]):
    """How many rows or entries a family does not take, and Σ w log h(x), which no parameter changes."""

    needs = Need.CPU
    family: type[ExponentialMixture]


@dataclass(frozen=True, eq=False)
class ExpectLowRank(Pass[LowRankStatistics]):
    """E-step of a mixture of factor analysers.

    Among `Probe` the columns without their correlations nominate components of the closest cells, and the densities of
    these and of K(n) decide; without cells K(n) stays, in the order of its densities. Among all, rows are labelled too.
    """

    needs = Need.DENSE
    mixture: LowRankParameters
    among: All | Probe | Within = ALL

    @property
    def effect(self) -> Effect:
        match self.among:
            case Probe():
                return Effect({"labels", "members"})
            case Within():
                return NO_EFFECT
        return Effect({"labels"}, afresh=True)


@dataclass(frozen=True, eq=False)
class ScatterWithin(Pass[F64]):
    """Σ w s_c (x − μ_c)(x − μ_c)ᵀ over all rows, c the label of each, (D, D). N·D²."""

    needs = Need.DENSE
    centers: F64
    scales: F64
    """s, (C,)."""


@dataclass(frozen=True, eq=False)
class LabelByDensity(Change):
    """Give every row the component of largest p(c, x) for a label (lowest index on ties)."""

    needs = Need.DENSE
    effect = Effect({"labels"}, afresh=True)
    mixture: GaussianParameters


@dataclass(frozen=True, eq=False)
class ExpectWithin(Pass[WithinStatistics]):
    """E-step inside of components: a row of label c looks at the components c·n_parts … (c + 1)·n_parts − 1 alone.

    The labels stay. `n_parts` densities a row.
    """

    needs = Need.DENSE
    mixture: GaussianParameters
    n_parts: int


@dataclass(frozen=True, eq=False)
class RowsOf(Pass[Claims]):
    """Copies of the rows that these components are responsible for, weighted by w·q; one distance a row and component.

    A component gives the share `rates` of its rows, drawn at random, and their weights divided by it. `remembered`
    looks only at the pairs that the last pass among `Remembered` has left.
    """

    needs = Need.DENSE
    mixture: GaussianParameters
    components: Index
    rates: F64
    seed: int
    remembered: bool = False

    def merge(self, one: Claims, other: Claims) -> Claims:
        return Claims.join([one, other])


@dataclass(frozen=True, eq=False)
class SparseRowsOf(RowsOf):
    """The same of sparse rows, for mixtures as `ExpectSparse` takes them."""

    needs = HERE | Need.SPARSE


@dataclass(frozen=True, eq=False)
class ExpectShares(Pass[WithinStatistics]):
    """E-steps of many small mixtures, each on some shares of these chunks; the rows of the shard have no part in it.

    A share is some chunks that lie together, and `parts` of the result are the components of all mixtures.
    """

    needs = HERE
    chunks: Chunks
    starts: I64
    """The chunks of the i-th share are starts[i] … starts[i + 1] − 1."""
    mixture: GaussianParameters
    """All components, one mixture behind the other; what their weights add up to does not matter."""
    bounds: I64
    """The components of the g-th mixture are bounds[g] … bounds[g + 1] − 1, (G + 1,)."""
    seen: I64
    """Shares that each mixture is evaluated on, (G, n)."""
