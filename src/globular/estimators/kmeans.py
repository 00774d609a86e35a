"""`KMeans`: the estimator to reach for."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from globular.algorithms.kmeans.limits import bytes_of_choices, keep_limits
from globular.algorithms.kmeans.line import OPTIMUM, optimum_on_line
from globular.algorithms.kmeans.pipeline import ALGORITHMS, PipelineOptions, kmeans
from globular.algorithms.seeding.named import Start
from globular.algorithms.steps import Step, mapped
from globular.estimators.centroids import CentroidEstimator
from globular.estimators.inputs import Input, mean_variance
from globular.estimators.parameters import Constraints, one_of
from globular.estimators.running import INTERRUPTED, warn_user
from globular.estimators.starts import continues, starting_centers
from globular.model.history import ITERATIONS, History
from globular.model.sparse_centers import SparseCenters
from globular.model.statistics import F64
from globular.seam.shard import Shard
from globular.seam.sparse_passes import AssignSparse

logger = logging.getLogger("globular")

NAMES_ELSEWHERE = ("yinyang", "elkan", "full")
"""Exact algorithms as others call them."""
CARD_BYTES_PER_PROBE = 96
"""For orders and nominees of the cells that a row searches on a card, two for each that it searches elsewhere."""


@dataclass(eq=False, repr=False)
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
    algorithm : {"auto", "exact", "probing", "lloyd", "yinyang", "elkan", "full"}, default="auto"
        "auto" takes "exact" below 500 clusters ("lloyd" if you give the centres to start from) and "probing" from there
        on; see `algorithm_`. Both begin in a subspace of the columns and with parts of the rows where that pays, swap
        centres that are hardly missed to where they gain most, and end with accelerated iterations over all rows. With
        "exact" every row compares itself with every centre; with "probing" only with those of a few cells, redrawn in
        every iteration, at a cost that grows with the square root of the clusters. Sparse rows with entries in at most
        one of 256 columns are different: "auto" is "exact" for any number of clusters, and from 400 on seeds and
        iterations go by an inverted file, without subspace, parts and swaps. Centres that you give are not swapped, and
        all rows begin with them. Dense rows of one column, up to 33 million of them in memory, are different, too:
        "auto" finds the optimum by dynamic programming, unless you give centres or `max_time`. "lloyd" is the
        textbook's: iterations from one start, nothing else; bounds skip distances that change no label.
        "yinyang", and scikit-learn's old "full", mean "lloyd"; its "elkan" means "exact", or "lloyd" if you give the
        centres.
    quality : {"fast", "balanced", "best"}, default="balanced"
        For "exact" and "probing": how widely to search and how long to go on.
    {init, n_init}
    max_iter : int, default=300
        Most iterations over all rows of one run, swaps included; where there is a part of the rows, or they are few
        and searched in one go, as many at most on that before.
    tol : float, default=1e-4
        For all but "probing": stop when the squared shifts of all centres add up to less than `tol` times the mean
        variance of the columns. "exact" stops earlier, when iterations gain little (see `quality`), unless `tol` is 0.
    {max_time, metric, exact_labels, warm_start, random_state, verbose, callbacks, n_threads, device}
    max_cluster_size, min_cluster_size : int or None, default=None
        The most and the fewest rows of a cluster, which `labels_` keep exactly. After the fit rows go where they cost
        least within the limits, and centres to the means of their rows, in turn. Limits count rows, whatever these
        weigh; rows of weight 0 are none. `predict` knows no limits: it gives the closest centre.
    copy_x : bool, default=True
        Known from scikit-learn, and without effect: X is neither changed nor copied whole.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
    sparse_centers_ : scipy.sparse.csr_array of shape (n_clusters, n_features)
        The same after a fit that keeps centres sparse, and only then; `cluster_centers_` is made of it for the first
        who asks.
    labels_ : int32 array of shape (n_samples,)
        Index of the closest centre of every row; after "probing", of the closest one that was looked at. With a limit
        on sizes, of the cluster that the row was put into.
    inertia_ : float
        Sum of (weighted) squared distances of the rows to their centres.
    label_recall_ : float
        Share of rows (of a random sample of 1,000) whose label is the exactly closest centre; 1 for exact labels.
        With a limit on sizes, before rows were moved for it.
    n_iter_ : int
        Iterations over all rows, swaps included; 0 where the fit was ended before the first. Few rows are searched
        before that, so there is mostly one.
    history_ : :class:`globular.model.history.History`
        Records of the best run from its first centres on, each with the stage it belongs to.
    n_distances_ : int
        Row-to-centre distances computed in the whole fit, seeding apart.
    subspace_dimension_ : int
        Number of directions in which "probing" began; `n_features` where it began in the whole space.
    algorithm_, init_ : str
        What "auto" came to; "optimal" and "none" where no centres for rows of one column are better.
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

    n_clusters: int = 8
    _: KW_ONLY
    algorithm: str = "auto"
    quality: Literal["fast", "balanced", "best"] = "balanced"
    init: Any = "auto"
    n_init: int | str = "auto"
    max_iter: int = 300
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
    max_cluster_size: int | None = None
    min_cluster_size: int | None = None
    copy_x: bool = True

    _hurries = True
    _constraints: ClassVar[Constraints] = {"algorithm": [one_of("auto", *ALGORITHMS, *NAMES_ELSEWHERE)]}

    def _options(self, tol: float = 0.0, data: Input | None = None) -> PipelineOptions:
        """The parameters as the pipeline takes them for these data."""
        named, anew = isinstance(self.init, str), not continues(self, "cluster_centers_")
        elsewhere = {"yinyang": "lloyd", "elkan": "exact" if named else "lloyd", "full": "lloyd"}
        algorithm = elsewhere.get(self.algorithm, self.algorithm)
        return PipelineOptions(
            self.n_clusters, algorithm, self.quality, self.max_iter, tol,
            unit_centers=self.metric == "cosine", may_narrow=named and anew, has_start=not named and anew,
            exact_labels=self.exact_labels, sparse=data is not None and not data.shard.why_not(AssignSparse),
            seeds_sparsely=named and anew and self.init in ("auto", "k-means++"),
        )  # fmt: skip

    def _check_rows(self, data: Input) -> None:
        super()._check_rows(data)
        least, most, k, n = self.min_cluster_size, self.max_cluster_size, self.n_clusters, data.n_rows
        if least is not None and most is not None and least > most:
            raise ValueError(f"min_cluster_size={least} is more than max_cluster_size={most}; swap them")
        if most is not None and most * k < n:
            raise ValueError(
                f"max_cluster_size={most}: {k} clusters of that size do not hold {n} rows; take at least {-(-n // k)}"
            )
        if least is not None and least * k > n:
            raise ValueError(f"min_cluster_size={least}: {k} clusters need more than {n} rows; take at most {n // k}")

    def _steps(self, data: Input, random_state: np.random.RandomState) -> Iterator[Step[F64]]:
        options = self._options(self.tol * mean_variance(data), data)
        may_solve = options.may_narrow and not options.unit_centers and self.max_time is None
        best = optimum_on_line(data.shard, self.n_clusters) if self.algorithm == "auto" and may_solve else None
        if best is not None:
            self.algorithm_, self.init_, self.subspace_dimension_ = "optimal", "none", 1
            return iter([best])
        self.algorithm_ = options.chosen
        if options.inverts and options.seeds_sparsely:
            self.init_, self.subspace_dimension_ = "k-means++", data.n_columns
        if self.algorithm == "elkan" and self.n_clusters == 1:
            warn_user("algorithm='elkan' doesn't make sense for a single cluster; leave it out", RuntimeWarning)
        if self.algorithm == "auto":
            logger.info("algorithm='auto' chose %s for %d clusters", self.algorithm_, self.n_clusters)

        def seed(shard: Shard) -> Generator[Step[F64], None, Start]:
            rough = self.algorithm_ == "probing"
            steps = starting_centers(self, replace(data, shard=shard), random_state, rough=rough)
            start = yield from mapped(steps, lambda step: replace(step, next_rows=shard.n_rows))
            self.init_, self.subspace_dimension_ = start.name, shard.n_columns
            return start

        return kmeans(data.shard, seed, options, random_state)

    def _inverts(self, data: Input) -> bool:
        return self._options(data=data).inverts

    def _most_bytes(self, data: Input) -> int:
        limited = bytes_of_choices(data.n_rows, self.n_clusters) if self._is_limited else 0
        return limited + super()._most_bytes(data)

    @property
    def _card_bytes_per_row(self) -> int:
        return super()._card_bytes_per_row + CARD_BYTES_PER_PROBE * self._options().stepping.n_probes

    def _take_over(self, step: Step[F64], data: Input) -> None:
        self._keep_centers(step.model if isinstance(step.model, SparseCenters) else step.lifted(), data)

    def _last_probes(self, data: Input) -> int:
        return self._options(data=data).last_probes

    def _finish(self, data: Input, seconds_left: float) -> int:
        n_probes = 0 if self.stopped_ == OPTIMUM else self._last_probes(data)
        last = self.history_[-1]
        if self.stopped_ == "no label changed" and data.dtype == np.float64:  # centres neither moved nor rounded
            n_distances, self.label_recall_ = 0, 1.0
            self.labels_ = data.labels(self._centers, exact=n_probes == 0).copy()
        else:
            # swaps that Ctrl-C has ended leave labels of no centre
            labelled = last.stage == ITERATIONS or (last.labels_all_rows and self.stopped_ != INTERRUPTED)
            n_before = self.n_distances_
            n_distances = self._label(data, n_probes, seconds_left, labelled=labelled, n_before=n_before)
        if self._is_limited:
            n_distances += self._keep_limits(data, seconds_left)
        return n_distances

    def _keep_limits(self, data: Input, seconds_left: float) -> int:
        """Put rows into clusters within the limits of size, and centres at their means; returns the distances."""
        filled = int(data.shard.n_rows >= self.n_clusters)  # no cluster runs empty
        least, most = max(self.min_cluster_size or 0, filled), self.max_cluster_size or data.n_rows
        found = keep_limits(
            data.shard, self._centers(), least, most, unit=self.metric == "cosine", seconds_left=seconds_left
        )
        self._keep_centers(found.centers, data)
        self.labels_, self.inertia_ = data.labels(self._centers).copy(), found.error * data.unit
        return found.n_distances

    @property
    def _is_limited(self) -> bool:
        return self.max_cluster_size is not None or self.min_cluster_size is not None

    def _take_found(self, centers: F64, data: Input) -> None:
        """Take over centres that were found elsewhere, and label all rows."""
        self.n_features_in_ = data.n_columns
        self._keep_centers(centers, data)
        found = self._assign(data.shard)
        self.labels_ = data.labels(self._centers, exact=True).copy()
        self.inertia_, self.n_distances_ = found.objective * data.unit, found.n_distances
        self.history_, self.n_iter_, self.label_recall_ = History(), 0, 1.0
        self.algorithm_, self.init_, self.subspace_dimension_ = self._options().chosen, "array", data.n_columns
        self.stopped_ = "no fit: made from given centres"


def k_means(
    X: Any,
    n_clusters: int,
    *,
    sample_weight: Any = None,
    init: Any = "auto",
    n_init: int | str = "auto",
    max_iter: int = 300,
    verbose: int = 0,
    tol: float = 1e-4,
    random_state: Any = None,
    copy_x: bool = True,
    algorithm: str = "auto",
    return_n_iter: bool = False,
) -> tuple[Any, ...]:
    """Cluster, and return the centres, labels and inertia: :class:`KMeans` as a function, as in scikit-learn.

    Parameters are those of :class:`KMeans`. `return_n_iter` adds the number of iterations to what is returned.

    Examples
    --------
    >>> from globular import k_means
    >>> centers, labels, inertia = k_means([[0.0], [1.0], [9.0]], 2, random_state=0)
    >>> sorted(centers.ravel().tolist()), inertia
    ([0.5, 9.0], 0.5)
    """
    model = KMeans(
        n_clusters, algorithm=algorithm, init=init, n_init=n_init, max_iter=max_iter, tol=tol,
        random_state=random_state, verbose=verbose, copy_x=copy_x,
    ).fit(X, sample_weight=sample_weight)  # fmt: skip
    found = (model.cluster_centers_, model.labels_, model.inertia_)
    return (*found, model.n_iter_) if return_n_iter else found
