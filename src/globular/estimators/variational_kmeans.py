"""`VariationalKMeans`: k-means whose iterations do not cost more with more clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np

from globular.algorithms.kmeans.probing import ProbingOptions, label_probes
from globular.algorithms.kmeans.swaps import swapped_start
from globular.algorithms.kmeans.variational import HardModel, VariationalOptions, start_rows, variational_kmeans
from globular.algorithms.steps import Step
from globular.estimators.centroids import CentroidEstimator
from globular.estimators.checks import check_indices, fit_bytes, neighbor_bytes
from globular.estimators.inputs import Input, mean_variance
from globular.estimators.parameters import FROM_ZERO, Constraints, Number
from globular.estimators.starts import starting_centers
from globular.model.graph import Graph
from globular.model.statistics import F64
from globular.threads import resolve_threads

SWAPS_GAIN = 2e-3
"""Share of the objective that a round of swaps must gain before the iterations begin."""


@dataclass(eq=False, repr=False)
class VariationalKMeans(CentroidEstimator):
    """K-means by truncated variational EM: each row looks at the neighbourhoods of its own clusters only.

    One iteration computes about ``n_candidates * n_neighbors + n_random`` distances per row, whatever the number of
    clusters. With ``n_candidates=1`` these are the paper's var-k-means-S (``neighborhoods="estimated"``) and
    var-k-means-X ("exhaustive"). Larger `n_candidates` search wider; only the closest cluster votes. The objective
    never rises. See Forster & Lücke, *Can clustering scale sublinearly with its clusters?*, AISTATS 2018.

    :class:`KMeans` ends lower and sooner. Prefer this one for the graph of clusters, where memory is short
    (``n_candidates=1`` keeps a label a row), or to repeat the paper: ``init="afk-mc2", start="printed"`` and some
    `n_warmup`. With "auto" seeds are swapped as in `KMeans` before the iterations begin, since those carry no centre
    across a gap.

    Parameters
    ----------
    n_clusters : int, default=8
    n_candidates : int, default=3
        C′, the clusters that each row keeps; 1 needs no memory per row but the label.
    n_neighbors : int, default=10
        G, the size of a cluster's neighbourhood, itself included.
    n_random : int, default=1
        Clusters drawn at random for each row in each iteration, beside the neighbourhoods.
    neighborhoods : {"estimated", "exhaustive"}, default="estimated"
        Where neighbourhoods come from: estimated from distances that rows had anyway (Eq. 8), or from all distances
        between centres, which costs O(C²D) per iteration.
    start : {"closest", "printed"}, default="closest"
        Where rows and neighbourhoods begin: at the closest seeds, as cells of seeds find them; or at random, as the
        paper's Alg. 1 and Alg. 2 are printed (and no seed is swapped, no empty cluster moved).
    n_warmup : int, default=0
        Passes over the rows before the first iteration in which centres stay and neighbourhoods form; the paper's
        experiments take 5.
    exact_labels : bool, default=False
        End with the exactly closest centre of every row as its label, as `predict` finds it, also above 5,000 clusters
        (N·k distances); otherwise labels are the closest centres that were looked at there, see `label_recall_`.
    {init, n_init, max_time, metric, warm_start, random_state, verbose, callbacks, n_threads, device}
    max_iter : int, default=200
    tol : float, default=1e-4
        Stop after three iterations running that improve the objective by less than this share of it.

    Attributes
    ----------
    cluster_centers_, labels_, inertia_, label_recall_, n_iter_, history_, n_distances_, init_, stopped_
        As in :class:`KMeans`.
    neighbors_ : int32 array of shape (n_clusters, n_neighbors)
        The cluster graph: every cluster itself, then its neighbours, closest first.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import VariationalKMeans
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> model = VariationalKMeans(n_clusters=200, random_state=0).fit(X)
    >>> model.neighbors_.shape
    (200, 10)
    >>> bool(model.n_distances_ / model.n_iter_ < 2000 * 200)
    True
    """

    n_clusters: int = 8
    _: KW_ONLY
    n_candidates: int = 3
    n_neighbors: int = 10
    n_random: int = 1
    neighborhoods: Literal["estimated", "exhaustive"] = "estimated"
    start: Literal["closest", "printed"] = "closest"
    n_warmup: int = 0
    init: Any = "auto"
    n_init: int | str = "auto"
    max_iter: int = 200
    tol: float = 1e-4
    max_time: float | None = None
    metric: Literal["euclidean", "cosine"] = "euclidean"
    exact_labels: bool = False
    warm_start: bool = False
    random_state: Any = None
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None
    device: str | list[str] = "auto"

    _constraints: ClassVar[Constraints] = {
        "n_random": [Number(Integral, 0, 15, closed="both")],
        "n_warmup": [FROM_ZERO],
    }

    def _steps(self, data: Input, random_state: np.random.RandomState) -> Iterator[Step[Any]]:
        mean_variance(data)  # for its check
        printed = self.start == "printed"
        swaps = isinstance(self.init, str) and self.init == "auto" and not printed
        chosen = yield from starting_centers(self, data, random_state, rough=swaps)
        self.init_ = chosen.name
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        if swaps and chosen.is_seeding:
            swapping = ProbingOptions(min_gain=SWAPS_GAIN, unit_centers=self.metric == "cosine")
            chosen = yield from swapped_start(data.shard, chosen, swapping, rng)
        options = VariationalOptions(
            C_prime=min(self.n_candidates, self.n_clusters), G=self.n_neighbors, n_random=self.n_random,
            neighborhoods="exhaustive" if self.neighborhoods == "exhaustive" else "estimated", n_warmup=self.n_warmup,
            max_iter=self.max_iter, tol=self.tol, unit_centers=self.metric == "cosine", relocate_empty=not printed,
            printed=printed,
        )  # fmt: skip
        graph = None
        if not printed:
            graph = start_rows(data.shard, chosen.centers, chosen.graph, self.n_neighbors, rng)
        yield from variational_kmeans(data.shard, chosen.centers, options, rng, graph)

    def _most_bytes(self, data: Input) -> int:
        N, C, D = data.n_rows, self.n_clusters, data.n_columns
        searching = neighbor_bytes(N, C, self.n_neighbors, min(self.n_candidates, C), self.n_random)
        return searching + fit_bytes(N, D, C * D, 0, resolve_threads(self.n_threads))

    def _take_preparation(self, step: Step[Any], data: Input, spare: Callable[[], F64]) -> None:
        super()._take_preparation(step, data, spare)
        self.__dict__.pop("neighbors_", None)

    def _take_over(self, step: Step[HardModel], data: Input) -> None:
        self.cluster_centers_ = np.asarray(step.model.centers.astype(data.dtype))
        self.neighbors_: Graph = np.asarray(step.model.graph)

    def _check_state(self) -> None:
        super()._check_state()
        if hasattr(self, "neighbors_"):  # a fit that was saved before its first iteration has none
            check_indices(self.neighbors_, "neighbors_", (self.n_clusters, None), self.n_clusters)

    def _last_probes(self, data: Input) -> int:
        return label_probes(self.n_clusters, exact=self.exact_labels)

    def _finish(self, data: Input, seconds_left: float) -> int:
        if not self.history_[-1].labels_all_rows:
            graph = start_rows(data.shard, self._centers(), None, self.n_neighbors, np.random.default_rng(0))
            assert graph is not None
            self.neighbors_ = np.asarray(graph)
        # a row that was labelled far from its cluster has no neighbourhood to find it by: cells are another way
        return self._label(data, self._last_probes(data), seconds_left)
