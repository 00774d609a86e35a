"""One run of a variant of the paper: from given seeds, random first sets, optional E-steps before the first M-step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from experiments.common import Centers, Rows
from experiments.verdicts import Setup
from globular.algorithms.kmeans.variational import VariationalOptions, variational_kmeans
from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.mixtures.variational import (
    CandidateSearch,
    SearchByNeighborhoods,
    SoftStart,
    truncated_em,
    warm_up_mixture,
    with_variance,
)
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.graph import Graph
from globular.model.statistics import SoftStatistics
from globular.passes.cpu import CpuShard
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign
from globular.threads import resolve_threads

Kind = Literal["k-means", "GMM"]
SETUP = Setup(
    command="",
    data="",
    stopping="",
    runs="",
    start="means by AFK-MC² (chains of 200, which the paper leaves open), the same for all algorithms of a run number; "
    "as printed, K(n) of Alg. 1 (X) and G(n) of Alg. 2 (S) drawn at random for every row, |G(n)| = C′G, and the random "
    "candidates; σ² of mixtures that of the closest clusters in the first E-step, which the paper leaves open; weights "
    "1/C and one σ², as the paper's",
    deviations="places of G_c that Eq. 8 knows nothing of keep their former clusters (open in the paper); with C′ = 1 "
    "and a random candidate, Eq. 8 hears of it only within 1.5 times the farthest neighbour, and where it wins, of the "
    "former closest cluster only. A plain NumPy transcription of Algs. 1 and 2, `tests/reference/variational.py`, "
    "gives the same runs otherwise, step by step, which a test holds",
)
"""What all tables and figures have in common."""
CHAIN_LENGTH = 200
"""Of the AFK-MC² chains that draw the seeds."""


def birch_warmup(G: int, C: int) -> int:
    """E-steps before the first M-step, on BIRCH grids.

    The paper tunes them on the training error and does not say what came out. Lengths that came out well for
    var-k-means-S: 16 for G = 5 + 1 and 60 for 2 + 1 at C = 4096, a third of that at C = 576. A longer warm-up finds
    the closest clusters of the seeds, and then little sets var-k-means-S apart from k-means.
    """
    return max(1, round((16 if G >= 5 else 60) * math.pow(C / 4096, 0.6)))


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the paper's algorithms: var-k-means has C′ = 1, var-GMM has C′ = G."""

    kind: Kind
    G: int
    n_random: int = 0
    n_warmup: int = 0
    neighborhoods: Literal["S", "X"] = "S"
    max_iter: int = 200
    tol: float = 0.0
    """Stop after three iterations that gain less than this: a share for k-means, per row for mixtures."""

    @property
    def algorithm(self) -> str:
        """The paper's name."""
        return f"var-{self.kind}-{self.neighborhoods}"

    @property
    def size(self) -> str:
        """G as the paper writes it, with the random candidates."""
        return f"{self.G} + {self.n_random}" if self.n_random else str(self.G)

    def least_savings(self, C: int) -> float:
        """C over the most distances that a row can need in an iteration."""
        C_prime = 1 if self.kind == "k-means" else self.G
        return C / min(C, C_prime * self.G + self.n_random)


@dataclass(frozen=True, slots=True)
class Moment:
    """An iteration as it ends."""

    iteration: int
    objective: float
    """Of the parameters before this iteration's M-step: Σ d² for k-means, the free energy of Eq. 10 for mixtures."""
    n_distances: int
    centers: Centers
    """After the M-step."""
    variance: float
    """σ² after the M-step; NaN for k-means, which has none."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a fit came to."""

    centers: Centers
    n_iter: int
    distances_per_iteration: float
    """Mean over the iterations after the first, which contains the warm-up."""
    seconds: float

    def savings(self, n_rows: int) -> float:
        """N·C over the distances of an iteration: the speed-up of Table 2."""
        return n_rows * len(self.centers) / self.distances_per_iteration


def run(X: Rows, seeds: NDArray[Any], variant: Variant, seed: int) -> Run:
    """Fit to the end."""
    began = time.perf_counter()
    counts, last = [], None
    for last in moments(X, seeds, variant, seed):
        counts.append(last.n_distances)
    assert last is not None  # max_iter is at least 1
    return Run(last.centers, last.iteration, float(np.mean(counts[1:] or counts)), time.perf_counter() - began)


def moments(X: Rows, seeds: NDArray[Any], variant: Variant, seed: int) -> Iterator[Moment]:
    """The iterations of a fit, one after the other."""
    return _of_kmeans(X, seeds, variant, seed) if variant.kind == "k-means" else _of_mixture(X, seeds, variant, seed)


def _options(variant: Variant, n_seeds: int) -> VariationalOptions:
    """Empty clusters keep their centre, as in the paper."""
    return VariationalOptions(
        C_prime=1 if variant.kind == "k-means" else min(variant.G, n_seeds),
        G=variant.G,
        n_random=variant.n_random,
        neighborhoods="estimated" if variant.neighborhoods == "S" else "exhaustive",
        n_warmup=variant.n_warmup,
        max_iter=variant.max_iter,
        tol=variant.tol,
        printed=True,
    )


def _of_kmeans(X: Rows, seeds: NDArray[Any], variant: Variant, seed: int) -> Iterator[Moment]:
    shard, rng = CpuShard(X, n_threads=resolve_threads(None)), np.random.default_rng(seed)
    centers = np.ascontiguousarray(seeds, dtype=np.float64)
    for step in variational_kmeans(shard, centers, _options(variant, len(seeds)), rng):
        yield Moment(step.iteration, step.objective, step.n_distances, step.model.centers, np.nan)


def _of_mixture(X: Rows, seeds: NDArray[Any], variant: Variant, seed: int) -> Iterator[Moment]:
    """As `VariationalGaussianMixture` runs it; here for its σ² at every step. With G = C it is EM itself."""
    shard, rng = CpuShard(X, n_threads=resolve_threads(None)), np.random.default_rng(seed)
    options = _options(variant, len(seeds))
    means = np.ascontiguousarray(seeds, dtype=np.float64)
    mixture = isotropic_mixture(means, 1.0, "tied_spherical")  # the first E-step sets σ²
    limits = covariance_limits(shard, EMOptions(reg_covar=0.0))
    search: CandidateSearch
    if len(seeds) <= variant.G:
        closest = shard.run(Assign(means))
        start = SoftStart(with_variance(mixture, closest.objective / shard.total_weight, limits), NO_GRAPH)
        search = Everywhere(shard)
    else:
        start = warm_up_mixture(shard, mixture, options, rng, limits=limits)
        search = SearchByNeighborhoods(shard, start.graph, options, rng)
    for step in truncated_em(shard, start, search, options, limits=limits):
        found = step.model.mixture
        yield Moment(step.iteration, step.objective, step.n_distances, found.means, float(found.covariances))


NO_GRAPH: Graph = np.empty((0, 0), dtype=np.int32)


class Everywhere:
    """Exact E-steps: what Algs. 1 and 2 come to with G = C, without looking for neighbourhoods that are everything."""

    def __init__(self, shard: CpuShard) -> None:
        self._shard, self.find_graph = shard, lambda: NO_GRAPH

    def e_step(self, mixture: GaussianParameters, *, idle: bool) -> SoftStatistics:
        """All components for every row."""
        return self._shard.run(Expect(mixture))
