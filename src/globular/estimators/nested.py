"""`NestedMiniBatchKMeans`: mini-batch k-means whose batches nest, and its relatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from globular.algorithms.cells import draw_cells, label_by_cells
from globular.algorithms.nested import NestedModel, nested_kmeans, one_batch
from globular.algorithms.probing import label_recall
from globular.algorithms.steps import Step, in_units
from globular.backends.protocol import Labels
from globular.estimators import nested_choices as choices
from globular.estimators.centroids import CentroidEstimator, _error_per_row
from globular.estimators.fitted import check_common, checked_floats
from globular.estimators.inputs import Input, mean_variance, open_input
from globular.estimators.parameters import AUTO, FROM_ONE, NOT_NEGATIVE, Constraints
from globular.estimators.running import Fit
from globular.model.history import History, Record
from globular.model.statistics import F64
from globular.model.votes import AnyVotes, Votes


class NestedMiniBatchKMeans(CentroidEstimator):
    """Mini-batch k-means with nested batches (Newling & Fleuret 2016), and the algorithms around it.

    The batch is the first part of one random order of the rows. It is used again in every iteration, so that bounds
    from the triangle inequality settle most of its rows without computing a distance, and it doubles once the centres
    move much less than their standard error. Every row votes once. So the first good centres are there after a small
    part of the data, and the last ones are those of Lloyd's algorithm on all of it.

    All keywords of :class:`sklearn.cluster.MiniBatchKMeans` are taken, with their meaning. The paper's algorithms:

    ================  ======  ==========  ==========  ========================
    algorithm         nested  remove_old  batch_size  bounds
    ================  ======  ==========  ==========  ========================
    lloyd             True    True        n_samples   None
    yinyang           True    True        n_samples   "yinyang"
    mbatch            False   False       b           None
    mbatch.remove     False   True        b           None
    nmbatch           True    True        b           "elkan" (or "yinyang")
    nmbatch.deact     True    True        b           None
    ================  ======  ==========  ==========  ========================

    Parameters
    ----------
    n_clusters : int, default=8
        Clusters without rows are moved to far rows once all rows are in the batch.
    batch_size : int or "auto", default="auto"
        Rows in a batch; for nested ones, in the first. "auto" is 5,000, and 10 rows per cluster at least.
    growth_threshold : float or "auto", default="auto"
        A number is the paper's ρ (it takes 100): the batch doubles when no centre has moved further than its standard
        error divided by this. "auto" asks all centres together: the batch doubles when the squared shifts of the
        centres, weighted by their rows, add up to less than a twenty-fifth of their squared standard errors. It does
        not wait for the last row of a small batch to settle, and is there earlier on all data that we have measured.
    bounds : {"auto", "elkan", "yinyang"} or None, default="auto"
        "elkan" keeps a lower bound (4 bytes) per row and centre, "yinyang" one per row and group of about ten centres,
        None none. They change the time, never a label. "auto" is "elkan" where that fits into a quarter of the memory
        (of rows that are streamed: into 512 MiB), "yinyang" where that fits and saves time, else None; see `bounds_`
        and the log.
    nested : bool, default=True
        Keep the rows of the batch and let it grow. False draws a new random batch each time.
    remove_old : bool, default=True
        Whether a row that comes again takes back its former vote. Nested batches need it.
    search : {"auto", "exact", "cells"}, default="auto"
        "exact" finds the closest of all centres. "cells" looks at the centres of a few of about √k cells, drawn anew
        for every batch: a cost that grows with the square root of the clusters, labels that are now and then only the
        second closest, and no bounds. "auto" takes cells from 1,000 clusters on, unless you choose bounds.
    {init}
    init_size : int or None, default=None
        Rows to draw the starting centres from; None is three batches, and three rows per cluster at least.
    n_init : int or "auto", default="auto"
        Starts that are drawn, of which the one with the lowest inertia on the `init_size` rows is used; "auto" is 1.
    max_iter : int, default=100
        Most epochs: stop when as many rows have been visited as this many times the data have.
    tol : float, default=0.0
        Stop when the squared shifts of all centres add up to less than `tol` times the mean variance of the columns
        (nested batches: once all rows are in).
    max_no_improvement : int or None, default=10
        Stop after so many batches running that did not lower the (smoothed) inertia per row; a nested batch that does
        not hold all rows yet grows instead.
    reassignment_ratio : float, default=0.0
        Centres with fewer rows than this share of the largest cluster's move to random rows: when a nested batch
        grows, or else each time ten rows per cluster have gone by. Unlike scikit-learn's, the default moves none.
    compute_labels : bool, default=True
        End with the labels and the inertia of all rows. Otherwise there is no `labels_`, and `inertia_` is the last
        batch's estimate.
    {max_time, metric, warm_start, random_state, verbose, callbacks, n_threads}

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
    labels_ : int32 array of shape (n_samples,)
        While the fit runs (`fit_iter`): −1 for rows that no batch has had yet.
    inertia_ : float
    counts_ : float64 array of shape (n_clusters,)
        Sum of the weights of the rows that voted for each centre.
    sums_ : float64 array of shape (n_clusters, n_features)
        Sum of those rows; what `partial_fit` goes on from.
    batch_size_ : int
        Rows in the last batch.
    n_steps_ : int
        Batches used.
    n_iter_ : int
        Epochs, rounded up: rows visited over rows there are.
    label_recall_ : float
        Share of rows (of a random sample of 1,000) whose label is the exactly closest centre; 1 for exact labels.
    bounds_, search_, init_ : str or None
        What "auto" came to.
    history_, n_distances_, stopped_
        As in :class:`KMeans`; the objectives are what each batch says about the inertia of all rows.

    Examples
    --------
    >>> from globular import NestedMiniBatchKMeans
    >>> from globular.datasets import many_blobs
    >>> X = many_blobs(20_000, 20, 8, random_state=0).X
    >>> model = NestedMiniBatchKMeans(n_clusters=20, batch_size=1000, random_state=0).fit(X)
    >>> model.batch_size_, model.stopped_
    (20000, 'no label changed')
    >>> bool(model.n_distances_ < 0.1 * model.n_steps_ * 20_000 * 20)
    True
    """

    _least_label = -1  # of a row that was in no batch yet
    _parameter_constraints: ClassVar[Constraints] = {
        **CentroidEstimator._parameter_constraints,
        "batch_size": [AUTO, FROM_ONE],
        "growth_threshold": [AUTO, NOT_NEGATIVE],
        "bounds": [StrOptions({"auto", "elkan", "yinyang"}), None],
        "nested": ["boolean"],
        "remove_old": ["boolean"],
        "search": [StrOptions({"auto", "exact", "cells"})],
        "init_size": [None, FROM_ONE],
        "max_no_improvement": [None, FROM_ONE],
        "reassignment_ratio": [Interval(Real, 0, 1, closed="both")],
        "compute_labels": ["boolean"],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        batch_size: int | str = "auto",
        growth_threshold: float | str = "auto",
        bounds: str | None = "auto",
        nested: bool = True,
        remove_old: bool = True,
        search: str = "auto",
        init: Any = "auto",
        init_size: int | None = None,
        n_init: int | str = "auto",
        max_iter: int = 100,
        tol: float = 0.0,
        max_no_improvement: int | None = 10,
        reassignment_ratio: float = 0.0,
        compute_labels: bool = True,
        max_time: float | None = None,
        metric: str = "euclidean",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        callbacks: Any = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.batch_size = batch_size
        self.growth_threshold = growth_threshold
        self.bounds = bounds
        self.nested = nested
        self.remove_old = remove_old
        self.search = search
        self.init = init
        self.init_size = init_size
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.max_no_improvement = max_no_improvement
        self.reassignment_ratio = reassignment_ratio
        self.compute_labels = compute_labels
        self.max_time = max_time
        self.metric = metric
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks
        self.n_threads = n_threads

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Labels:
        """Fit, and return the label of every row."""
        if not self.compute_labels:
            raise ValueError("fit_predict needs compute_labels=True; or call fit, then predict")
        return super().fit_predict(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """One batch: the rows given are assigned, and join the votes for their centres.

        The rows are not kept, so every row votes once if it is given once; what was seen before stays as it is. The
        first call draws the starting centres from its rows. After `fit` it goes on from there.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`; at least `n_clusters` rows in the first call.
        """
        self._validate_params()
        first = not hasattr(self, "cluster_centers_")
        data = open_input(
            self, X, sample_weight, reset=first, unit_rows=self.metric == "cosine", n_threads=self.n_threads,
            at_least=self.n_clusters if first else 1,
        )  # fmt: skip
        self._choose(data)
        random_state = check_random_state(self.random_state)
        if first:
            if data.n_rows < self.n_clusters:
                raise ValueError(
                    f"n_samples={data.n_rows} should be >= n_clusters={self.n_clusters}; ask for fewer clusters"
                )
            votes = Votes.none(choices.best_start(self, data, data.n_rows, random_state).centers)
            self.n_steps_ = 0
        else:
            centers, sums, counts = self._checked_votes()
            votes = Votes.resumed(centers, sums / data.unit, counts / data.unit)
        options = replace(choices.nested_options(self, data, 0.0), b0=data.n_rows, nested=False, remove_old=False)
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        update = one_batch(data.shard, votes, options, rng)
        self._take_votes(votes, data)
        self.n_steps_ += 1
        self.batch_size_ = data.n_rows
        self.inertia_ = update.energy * data.shard.total_weight * data.unit
        self.__dict__.pop("labels_", None)
        if self.compute_labels:
            self._finish(data, "")
        return self

    def _checked_votes(self) -> tuple[F64, F64, F64]:
        """Centres, sums and counts, as `partial_fit` goes on from them."""
        centers = self._centers()
        sums = checked_floats(self.sums_, "sums_", centers.shape)
        counts = checked_floats(self.counts_, "counts_", centers.shape[:1])
        if counts.min() < 0:
            raise ValueError("counts_ must be at least 0; fit again")
        return centers, sums, counts

    def _check_state(self) -> None:
        super()._check_state()
        self._checked_votes()
        check_common(self, "n_steps_")

    def _choose(self, data: Input) -> None:
        """Settle what "auto" means; says beforehand what bounds will take."""
        choices.refuse_what_does_not_go_together(self)
        self.search_ = choices.choose_search(self)
        self.bounds_ = choices.choose_bounds(self, data)

    def _steps(self, data: Input, random_state: np.random.RandomState) -> Iterator[Step[NestedModel]]:
        self._choose(data)
        n_rows = choices.init_rows(self, data.n_rows)
        start = choices.best_start(self, data, n_rows, random_state)
        self.init_ = start.name
        variance = 0.0
        if self.tol > 0:
            variance = mean_variance(choices.random_sample(self, data, n_rows, random_state))
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        return nested_kmeans(data.shard, start.centers, choices.nested_options(self, data, variance), rng)

    def _most_bytes(self, data: Input) -> int:
        return choices.most_bytes(self, data)

    def _run(self, data: Input, started: float, watched: bool) -> Iterator[Record]:
        """One run: `n_init` counts starts here, not runs."""
        random_state = check_random_state(self.random_state)
        n_steps = None if self.nested else -(-self.max_iter * data.n_rows // choices.batch_rows(self, data.n_rows))
        fit = Fit(self, data.n_rows, max_iter=n_steps, max_time=self.max_time, started=started, watched=watched)

        def finish(reason: str) -> float:
            self.stopped_ = reason
            self.__dict__.pop("labels_", None)  # those that the last pass has left belong to other centres
            fit.n_distances += self._finish(data, reason)
            return -self.inertia_

        yield from fit.best_of(
            1,
            lambda: in_units(self._steps(data, random_state), data.unit),
            partial(self._publish, data),
            finish,
            partial(_error_per_row, data),
        )
        if self.compute_labels:
            self._warn_if_fewer()

    def _publish(self, data: Input, step: Step[NestedModel], history: History) -> None:
        super()._publish(data, step, history)
        self.n_steps_ = step.iteration
        self.n_iter_ = -(-step.model.n_visits // data.n_rows)
        self.batch_size_ = step.model.batch_size
        if not self.compute_labels:
            del self.labels_

    def _take_over(self, step: Step[NestedModel], data: Input) -> None:
        self._take_votes(step.model.votes, data)

    def _take_votes(self, votes: AnyVotes, data: Input) -> None:
        taken = votes.centers_as(data.dtype), votes.counts * data.unit, votes.whole_sums() * data.unit
        self.cluster_centers_, self.counts_, self.sums_ = taken  # all three or, after Ctrl-C, none

    def _finish(self, data: Input, reason: str) -> int:
        if not self.compute_labels:
            return 0
        self.label_recall_ = 1.0
        centers = self._centers()
        if self.search_ == "exact":
            statistics = data.shard.hard_pass(centers, accumulate=False)
            n_distances = statistics.n_distances
        else:
            rng = np.random.default_rng(0)
            n_distances = 0
            if self.batch_size_ < data.n_rows:  # some rows have no label yet; the others keep theirs if none is closer
                n_distances = label_by_cells(data.shard, centers, draw_cells(data.shard, centers, rng))
            cells = draw_cells(data.shard, centers, rng)
            statistics = data.shard.probing_pass(centers, cells, choices.N_PROBES, accumulate=False)
            n_distances += statistics.n_distances
            self.label_recall_ = label_recall(data.shard, centers, rng)
        self.labels_ = data.labels(centers, exact=self.search_ == "exact").copy()
        self.inertia_ = statistics.objective * data.unit
        return n_distances
