"""`KMeans`: the estimator to reach for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import StrOptions

from globular.algorithms.cells import draw_cells
from globular.algorithms.coreset import WORTH_IT, draw_part, swap_from_part
from globular.algorithms.lloyd import KMeansOptions, lloyd
from globular.algorithms.probing import ProbingOptions, label_recall, probing_kmeans
from globular.algorithms.seeding.common import TAKEN_NUMBERS
from globular.algorithms.steps import Step, after
from globular.algorithms.subspace import LARGEST_COPY, enter_subspace, kmeans_from_subspace
from globular.algorithms.swaps import swap_seeds
from globular.algorithms.yinyang import yinyang
from globular.estimators.centroids import CentroidEstimator
from globular.estimators.inputs import Input, mean_variance
from globular.estimators.parameters import Constraints
from globular.estimators.starts import starting_centers
from globular.model.statistics import F64

logger = logging.getLogger("globular")

EXACT: dict[str, Callable[..., Iterator[Step[F64]]]] = {"lloyd": lloyd, "yinyang": yinyang}
FIXED_BYTES = 64 * 2**20
"""Samples, cells and the blocks of a few threads."""
PROBING_FROM = 500
"""From so many clusters on, "auto" probes; below, exact iterations cost as little and give more."""


@dataclass(frozen=True, slots=True)
class Quality:
    """A point on the time–quality curve of probing k-means."""

    n_probes: int
    min_gain: float


QUALITIES = {
    "fast": Quality(n_probes=2, min_gain=1e-2),
    "balanced": Quality(n_probes=2, min_gain=5e-3),
    "best": Quality(n_probes=3, min_gain=1e-3),
}


class KMeans(CentroidEstimator):
    """K-means clustering for any number of clusters.

    A drop-in for :class:`sklearn.cluster.KMeans` with sample weights everywhere, the cosine metric, seedings that stay
    cheap for thousands of clusters, streamed input, a history, callbacks, and results that depend on the seed and not
    on the number of threads.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters. Clusters that run empty are moved to far rows, so there are `n_clusters` of them whenever
        there are that many distinct rows.
    algorithm : {"auto", "lloyd", "yinyang", "probing"}, default="auto"
        "lloyd" compares every row with every centre by matrix products; "yinyang" gives the same labels and skips what
        its bounds rule out, at the price of a few float32 per row. "probing" compares a row with the centres of a few
        cells, redrawn in every iteration, at a cost that grows with the square root of the clusters. "auto" takes
        "lloyd" below 500 clusters and "probing" from there on; see `algorithm_`. Unless you choose the start, "probing"
        begins in a subspace of the columns and with a part of the rows where that pays. Centres that you give are not
        swapped.
    quality : {"fast", "balanced", "best"}, default="balanced"
        For "probing": how widely to search and how long to go on.
    {init, n_init}
    max_iter : int, default=300
        Most iterations of one run.
    tol : float, default=1e-4
        For the exact algorithms: stop when the squared shifts of all centres add up to less than `tol` times the mean
        variance of the columns.
    {max_time, metric}
    exact_labels : bool, default=False
        End with an exact assignment of all rows (N·k distances) also after "probing".
    {warm_start, random_state, verbose, callbacks, n_threads}

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
    labels_ : int32 array of shape (n_samples,)
        Index of the closest centre of every row; after "probing", of the closest one that was looked at.
    inertia_ : float
        Sum of (weighted) squared distances of the rows to their centres.
    label_recall_ : float
        Share of rows (of a random sample of 1,000) whose label is the exactly closest centre; 1 for exact labels.
    n_iter_ : int
    history_ : :class:`globular.model.history.History`
        One record per iteration of the best run.
    n_distances_ : int
        Row-to-centre distances computed in the whole fit, seeding apart; the swaps count with the first iteration.
    subspace_dimension_ : int
        Number of directions in which "probing" began; `n_features` where it began in the whole space.
    algorithm_, init_ : str
        What "auto" came to.
    stopped_ : str
        Why the best run ended.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import KMeans
    >>> X = np.array([[1.0, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> model = KMeans(n_clusters=2, random_state=0).fit(X)
    >>> sorted(model.cluster_centers_.tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    >>> bool(model.predict([[0.0, 0], [12, 3]])[0] == model.labels_[0])
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **CentroidEstimator._parameter_constraints,
        "algorithm": [StrOptions({"auto", "probing", *EXACT})],
        "quality": [StrOptions(set(QUALITIES))],
        "exact_labels": ["boolean"],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        algorithm: str = "auto",
        quality: str = "balanced",
        init: Any = "auto",
        n_init: int | str = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        max_time: float | None = None,
        metric: str = "euclidean",
        exact_labels: bool = False,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        callbacks: Any = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.algorithm = algorithm
        self.quality = quality
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.max_time = max_time
        self.metric = metric
        self.exact_labels = exact_labels
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.n_threads = n_threads

    def _steps(self, data: Input, random_state: np.random.RandomState) -> Iterator[Step[F64]]:
        self.algorithm_ = self._choose_algorithm()
        variance = mean_variance(data)
        if self.algorithm_ not in EXACT:
            return self._probing_steps(data, random_state)
        start = starting_centers(self, data, random_state)
        self.init_, self.subspace_dimension_ = start.name, data.n_columns
        options = KMeansOptions(self.max_iter, self.tol * variance, unit_centers=self.metric == "cosine")
        return EXACT[self.algorithm_](data.shard, start.centers, options)

    def _probing_steps(self, data: Input, random_state: np.random.RandomState) -> Iterator[Step[F64]]:
        """From seeds or given centres to labelled rows, swaps, and the iterations."""
        unit = self.metric == "cosine"
        quality = QUALITIES[self.quality]
        options = ProbingOptions(quality.n_probes, self.max_iter, quality.min_gain, unit_centers=unit)
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        inside, part, seen, outside = None, None, data, 0.0
        if self._may_choose_start():
            inside = enter_subspace(data.shard, self.n_clusters, rng, unit_centers=unit)
            if inside is not None:
                seen, outside = replace(data, shard=inside.shard, n_columns=inside.shard.n_columns), inside.outside
            part = draw_part(seen.shard, self.n_clusters, rng)
        self.subspace_dimension_ = seen.n_columns
        begun = seen if part is None else replace(seen, shard=part, n_rows=part.n_rows, matrix=None)
        start = starting_centers(self, begun, random_state, rough=True)
        self.init_ = start.name
        centers, momentum, before, labelled, n_distances = start.centers, None, np.inf, start.labelled, 0
        if start.is_seeding:  # a start that the user has chosen stays as it is
            if part is not None:
                logger.info("begins with %d of %d rows", part.n_rows, data.n_rows)
                swapped = swap_from_part(seen.shard, part, centers, options, rng, outside=outside)
            else:
                swapped = swap_seeds(
                    seen.shard, centers, rng, min_gain=quality.min_gain, unit_centers=unit, outside=outside,
                    labelled=labelled,
                )  # fmt: skip
            centers, momentum, before, labelled = swapped.centers, swapped.momentum, swapped.objective, True
            n_distances = swapped.n_distances
        if inside is None:
            steps = probing_kmeans(
                data.shard, centers, options, rng, momentum=momentum, before=before, labelled=labelled
            )
        else:
            logger.info("begins in %d of %d dimensions", inside.subspace.dimension, data.n_columns)
            steps = kmeans_from_subspace(data.shard, inside, centers, options, rng, momentum=momentum, before=before)
        return after(steps, n_distances)

    def _may_choose_start(self) -> bool:
        """Whether neither a named seeding nor centres are asked for."""
        continues = self.warm_start and hasattr(self, "cluster_centers_")
        return isinstance(self.init, str) and self.init == "auto" and not continues

    def _most_bytes(self, data: Input) -> int:
        """What a fit takes beside X at most: centres, sums and copies, words a row, coordinates, and a part of them."""
        n_clusters, n_columns = self.n_clusters, data.n_columns
        coordinates = min(LARGEST_COPY, 8 * data.n_rows * n_columns)
        part = 16 * min(TAKEN_NUMBERS, data.n_rows // WORTH_IT * n_columns)
        return 8 * (12 * n_clusters * n_columns + 8 * data.n_rows) + coordinates + part + FIXED_BYTES

    def _choose_algorithm(self) -> str:
        if self.algorithm != "auto":
            return self.algorithm
        chosen = "lloyd" if self.n_clusters < PROBING_FROM else "probing"
        logger.info("algorithm='auto' chose %s for %d clusters", chosen, self.n_clusters)
        return chosen

    def _take_over(self, step: Step[F64], data: Input) -> None:
        self.cluster_centers_ = step.model.astype(data.dtype)

    def _finish(self, data: Input, reason: str) -> int:
        self.label_recall_ = 1.0
        exact = self.algorithm_ in EXACT or self.exact_labels
        if reason == "no label changed" and data.dtype == np.float64:
            self.labels_ = data.labels(self._centers(), exact=exact).copy()
            return 0
        # the last M-step moved the centres, or rounding to float32 did
        if exact:
            statistics = data.shard.hard_pass(self._centers(), accumulate=False)
        else:
            rng = np.random.default_rng(0)
            cells = draw_cells(data.shard, self._centers(), rng)
            n_probes = QUALITIES[self.quality].n_probes
            statistics = data.shard.probing_pass(self._centers(), cells, n_probes, accumulate=False)
            self.label_recall_ = label_recall(data.shard, self._centers(), rng)
        self.labels_ = data.labels(self._centers(), exact=exact).copy()
        self.inertia_ = statistics.objective * data.unit
        return statistics.n_distances
