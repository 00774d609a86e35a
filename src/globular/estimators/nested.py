"""`NestedMiniBatchKMeans`: mini-batch k-means whose batches nest, and its relatives."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from globular.algorithms.cells import draw_cells, label_by_cells
from globular.algorithms.nested import BoundKind, NestedModel, NestedOptions, nested_kmeans, one_batch
from globular.algorithms.probing import find_labels, label_recall
from globular.algorithms.steps import Step
from globular.algorithms.swaps import swap_seeds
from globular.algorithms.yinyang import default_groups
from globular.backends.protocol import Labels
from globular.estimators.centroids import CentroidEstimator, _error_per_row
from globular.estimators.inputs import (
    MEMORY_SHARE,
    Input,
    check_allocation,
    mean_variance,
    open_input,
    physical_memory,
)
from globular.estimators.running import Fit
from globular.estimators.starts import STARTS, Start, starting_centers
from globular.model.history import History, Record
from globular.model.nested import Batch
from globular.model.votes import AnyVotes, Votes
from globular.threads import resolve_threads

logger = logging.getLogger("globular")

BATCH_ROWS, BATCH_ROWS_PER_CLUSTER = 5000, 10
"""batch_size="auto": the paper's 5,000, but so many rows per cluster at least."""
CELLS_FROM = 1000
"""From so many clusters on, "auto" searches cells of centres instead of all of them."""
N_PROBES = 2
PAPERS_GROWTH, CELLS_GROWTH = 100.0, 1.0
CELLS_GAIN = 1e-3
"""Cells are drawn anew for every batch and always improve a little: less than this is no improvement."""
RUN_BYTES, RUNS_PER_BATCH = 256 * 2**10, 64
"""Rows on disk stay together up to so many bytes, but a batch has so many runs at least."""


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
    batch_size : int or "auto", default="auto"
        Rows in a batch; for nested ones, in the first. "auto" is 5,000, and 10 rows per cluster at least.
    growth_threshold : float or "auto", default="auto"
        ρ: the batch doubles when no centre has moved further than its standard error divided by this. "auto" is the
        paper's 100, but 1 when cells are searched: without bounds it does not pay to settle a small batch.
    bounds : {"auto", "elkan", "yinyang"} or None, default="auto"
        "elkan" keeps a lower bound (4 bytes) per row and centre, "yinyang" one per row and group of about ten centres,
        None none. They change the time, never a label. "auto" chooses by the memory that they would take; see
        `bounds_` and the log.
    nested : bool, default=True
        Keep the rows of the batch and let it grow. False draws a new random batch each time.
    remove_old : bool, default=True
        Whether a row that comes again takes back its former vote. Nested batches need it.
    search : {"auto", "exact", "cells"}, default="auto"
        "exact" finds the closest of all centres. "cells" looks at the centres of a few of about √k cells, drawn anew
        for every batch: a cost that grows with the square root of the clusters, labels that are now and then only the
        second closest, and no bounds. "auto" takes cells from 1,000 clusters on, unless you choose bounds.
    init : {"auto", "k-means++", "greedy k-means++", "afk-mc2", "k-means||", "hierarchical", "random"}, array or \
callable, default="auto"
        As in :class:`KMeans`, but drawn from `init_size` random rows.
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
    max_time, metric, warm_start, random_state, verbose, callbacks, n_threads
        As in :class:`KMeans`.

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

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "growth_threshold": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "bounds": [StrOptions({"auto", "elkan", "yinyang"}), None],
        "nested": ["boolean"],
        "remove_old": ["boolean"],
        "search": [StrOptions({"auto", "exact", "cells"})],
        "init": [StrOptions(set(STARTS)), "array-like", callable],
        "init_size": [None, Interval(Integral, 1, None, closed="left")],
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "max_no_improvement": [None, Interval(Integral, 1, None, closed="left")],
        "reassignment_ratio": [Interval(Real, 0, 1, closed="both")],
        "compute_labels": ["boolean"],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "metric": [StrOptions({"euclidean", "cosine"})],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "callbacks": "no_validation",
        "n_threads": [None, Integral],
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
            self, X, sample_weight, reset=first, unit_rows=self.metric == "cosine", n_threads=self.n_threads
        )
        self._choose(data.n_rows, data.n_columns)
        random_state = check_random_state(self.random_state)
        if first:
            if data.n_rows < self.n_clusters:
                raise ValueError(f"n_samples={data.n_rows} should be >= n_clusters={self.n_clusters}.")
            votes = Votes.none(self._start(data, data.n_rows, random_state).centers)
            self.n_steps_ = 0
        else:
            votes = Votes.resumed(self._centers(), self.sums_, self.counts_)
        options = replace(self._options(data, 0.0), b0=data.n_rows, nested=False, remove_old=False)
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        update = one_batch(data.shard, votes, options, rng)
        self._take_votes(votes, data)
        self.n_steps_ += 1
        self.batch_size_ = data.n_rows
        self.inertia_ = update.energy * data.shard.total_weight
        if self.compute_labels:
            self._finish(data, "")
        return self

    # ------------------------------------------------------------------------------------------ choices

    def _choose(self, n_rows: int, n_columns: int) -> None:
        """Settle what "auto" means and refuse what does not go together; says beforehand what bounds will take."""
        if self.nested and not self.remove_old:
            raise ValueError(
                "remove_old=False needs nested=False: nested batches visit a row in every iteration, and it would vote "
                "as often"
            )
        if isinstance(self.bounds, str) and self.bounds != "auto" and not self.nested:
            raise ValueError(
                f"bounds={self.bounds!r} needs nested=True: rows of random batches have none; leave it out"
            )
        if self.search == "cells" and self.bounds in ("elkan", "yinyang"):
            raise ValueError(f"bounds={self.bounds!r} needs search='exact': cells are searched without; leave one out")
        by_cells = self.n_clusters >= CELLS_FROM and self.bounds == "auto"
        self.search_ = ("cells" if by_cells else "exact") if self.search == "auto" else self.search
        self.bounds_ = self._choose_bounds(n_rows, n_columns)

    def _choose_bounds(self, n_rows: int, n_columns: int) -> BoundKind | None:
        sizes = {
            "elkan": 4 * n_rows * (self.n_clusters + 1),
            "yinyang": 4 * n_rows * (default_groups(self.n_clusters, n_columns) + 1),
        }
        if self.bounds is None or not self.nested or self.search_ == "cells":
            return None
        chosen = self.bounds
        if chosen == "auto":
            budget = MEMORY_SHARE * physical_memory()
            # beyond a few bounds per column, reading them costs more than the distances that they save
            wanted = ["elkan", "yinyang"] if self.n_clusters <= 4 * n_columns else ["yinyang"]
            chosen = next((kind for kind in wanted if sizes[kind] <= budget), "none")
        size = sizes.get(chosen, 0)
        check_allocation(size, f"bounds={chosen!r} of all rows", "take bounds='yinyang' or bounds=None")
        return {"elkan": "elkan", "yinyang": "yinyang"}.get(chosen)  # type: ignore[return-value]

    def _batch_size(self, n_rows: int) -> int:
        if isinstance(self.batch_size, str):
            return min(n_rows, max(BATCH_ROWS, BATCH_ROWS_PER_CLUSTER * self.n_clusters))
        return min(n_rows, int(self.batch_size))

    def _growth_threshold(self) -> float:
        if isinstance(self.growth_threshold, str):
            return CELLS_GROWTH if self.search_ == "cells" else PAPERS_GROWTH
        return float(self.growth_threshold)

    def _run_length(self, data: Input) -> int:
        """How many neighbouring rows stay together: one in memory, more where every place costs a read."""
        if data.matrix is not None:
            return 1
        in_bytes = RUN_BYTES // (data.n_columns * data.dtype.itemsize)
        return max(1, min(in_bytes, self._batch_size(data.n_rows) // RUNS_PER_BATCH))

    def _options(self, data: Input, variance: float) -> NestedOptions:
        return NestedOptions(
            b0=self._batch_size(data.n_rows),
            rho=self._growth_threshold(),
            nested=self.nested,
            remove_old=self.remove_old,
            bounds=self.bounds_,
            n_probes=N_PROBES if self.search_ == "cells" else 0,
            run=self._run_length(data),
            max_epochs=self.max_iter,
            tol=self.tol * variance,
            max_no_improvement=self.max_no_improvement,
            min_gain=CELLS_GAIN if self.search_ == "cells" else 0.0,
            reassignment_ratio=self.reassignment_ratio,
            unit_centers=self.metric == "cosine",
            n_threads=resolve_threads(self.n_threads),
        )

    # -------------------------------------------------------------------------------------------- a run

    def _start(self, data: Input, n_rows: int, random_state: np.random.RandomState) -> Start:
        """The best of `n_init` starts, drawn from and compared on some random rows."""
        sample = self._sample(data, n_rows, random_state)
        mean_variance(sample)  # for its check
        given = not isinstance(self.init, str) and not callable(self.init)
        n_starts = 1 if self.n_init == "auto" or given or self.warm_start else int(self.n_init)
        starts = [self._one_start(sample, random_state) for _ in range(n_starts)]
        if n_starts == 1:
            return starts[0]
        errors = [sample.shard.hard_pass(start.centers, accumulate=False).objective for start in starts]
        return starts[int(np.argmin(errors))]

    def _one_start(self, sample: Input, random_state: np.random.RandomState) -> Start:
        start = starting_centers(self, sample, random_state)
        if not (start.is_seeding and self.search_ == "cells"):
            return start
        # as in `KMeans`: what so many seeds get wrong, batches cannot repair
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        if start.graph is None:
            find_labels(sample.shard, start.centers, rng, n_rounds=1)
        swapped = swap_seeds(sample.shard, start.centers, rng, unit_centers=self.metric == "cosine")
        return replace(start, centers=swapped.centers)

    def _sample(self, data: Input, n_rows: int, random_state: np.random.RandomState) -> Input:
        if n_rows >= data.n_rows:
            return data
        seed = int(random_state.randint(2**31))
        rows = Batch(seed, n_rows, data.n_rows, self._run_length(data)).rows(data.n_rows)
        shard = data.shard.pick(rows)
        if len(rows) < self.n_clusters or shard.total_weight == 0:
            return data
        return Input(shard, data.dtype, len(rows), data.n_columns, None if data.matrix is None else data.matrix[rows])

    def _init_rows(self, data: Input) -> int:
        if self.init_size is not None and self.init_size < self.n_clusters:
            raise ValueError(f"init_size={self.init_size} should be >= n_clusters={self.n_clusters}.")
        return self.init_size or max(3 * self._batch_size(data.n_rows), 3 * self.n_clusters)

    def _steps(self, data: Input, random_state: np.random.RandomState) -> Iterator[Step[NestedModel]]:
        self._choose(data.n_rows, data.n_columns)
        n_rows = self._init_rows(data)
        start = self._start(data, n_rows, random_state)
        self.init_ = start.name
        variance = mean_variance(self._sample(data, n_rows, random_state)) if self.tol > 0 else 0.0
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        return nested_kmeans(data.shard, start.centers, self._options(data, variance), rng)

    def _run(self, data: Input, started: float, watched: bool) -> Iterator[Record]:
        """One run: `n_init` counts starts here, not runs."""
        random_state = check_random_state(self.random_state)
        n_steps = None if self.nested else -(-self.max_iter * data.n_rows // self._batch_size(data.n_rows))
        fit = Fit(self, data.n_rows, max_iter=n_steps, max_time=self.max_time, started=started, watched=watched)

        def finish(reason: str) -> float:
            self.stopped_ = reason
            fit.n_distances += self._finish(data, reason)
            return -self.inertia_

        yield from fit.best_of(
            1,
            lambda: self._steps(data, random_state),
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
        self.cluster_centers_ = votes.dense_centers().astype(data.dtype)
        self.counts_ = votes.counts
        self.sums_ = votes.whole_sums()

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
            n_distances = label_by_cells(data.shard, centers, draw_cells(data.shard, centers, rng))
            cells = draw_cells(data.shard, centers, rng)
            statistics = data.shard.probing_pass(centers, cells, N_PROBES, accumulate=False)
            n_distances += statistics.n_distances
            self.label_recall_ = label_recall(data.shard, centers, rng)
        self.labels_ = data.shard.labels.copy()
        self.inertia_ = statistics.objective
        return n_distances
