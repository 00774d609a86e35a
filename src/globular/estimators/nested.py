"""`NestedMiniBatchKMeans`: mini-batch k-means whose batches nest, and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils import check_random_state

from globular.algorithms.kmeans.nested import (
    RHO_TOGETHER,
    NestedModel,
    NestedOptions,
    first_votes,
    nested_kmeans,
    one_batch,
)
from globular.algorithms.kmeans.nested_choices import ALGORITHMS, BOUNDS, CELLS_GAIN, NestedSettings, best_start
from globular.algorithms.kmeans.pipeline import QUALITIES, SPARSE_GAIN
from globular.algorithms.kmeans.probing import N_PROBES, label_probes
from globular.algorithms.kmeans.sparse import best_sparse_seeds, nested_sparse_kmeans
from globular.algorithms.kmeans.votes import AnyVotes, Votes
from globular.algorithms.seeding.named import Starting
from globular.algorithms.steps import Step, mapped, result_of
from globular.estimators.centroids import CentroidEstimator
from globular.estimators.checks import check_allocation, check_common, checked_floats
from globular.estimators.inputs import MEMORY_SHARE, Input, mean_variance
from globular.estimators.parameters import AUTO, FROM_ONE, Constraints, Number
from globular.estimators.running import warn_user
from globular.estimators.starts import continues, starting_centers
from globular.machine import physical_memory
from globular.model.history import PART, SEEDS, History
from globular.model.nested import Batch
from globular.model.sparse_centers import SPARSE_FROM, SparseCenters, SparseMeans
from globular.model.statistics import F64
from globular.seam.passes import Labels
from globular.seam.sparse_passes import AssignSparse


@dataclass(eq=False, repr=False)
class NestedMiniBatchKMeans(CentroidEstimator):
    """Mini-batch k-means with nested batches (Newling & Fleuret 2016), and the algorithms around it.

    The batch is the first part of one random order of the rows. It is used again in every iteration, so that bounds
    from the triangle inequality settle most of its rows without computing a distance, and it doubles once the centres
    move much less than their standard error. Every row votes once. So the first good centres are there after a small
    part of the data, and the last ones are those of Lloyd's algorithm on all of it.

    All keywords of :class:`sklearn.cluster.MiniBatchKMeans` are taken, with their meaning. `algorithm` and
    `growth_threshold` give the paper's other algorithms; see docs/nested.md.

    Parameters
    ----------
    n_clusters : int, default=8
        Clusters without rows are moved to far rows once all rows are in the batch.
    batch_size : int or "auto", default="auto"
        Rows in the first batch. "auto" is 5,000, and 10 rows per cluster at least.
    search : {"auto", "exact", "elkan", "yinyang", "cells"}, default="auto"
        How a row finds its closest centre. "exact" looks at all of them. "elkan" and "yinyang" find the same ones and
        skip what bounds rule out: "elkan" keeps a lower bound (4 bytes) per row and centre, "yinyang" one per row and
        group of about ten centres. "cells" looks at the centres of a few of about √k cells, drawn anew for every batch:
        a cost that grows with the square root of the clusters, and now and then only the second closest. "auto" takes
        "cells" from 1,000 clusters on; below, "elkan" where its bounds fit into a quarter of the memory (512 MiB for
        rows that are not in memory), "yinyang" where they fit and save time, else "exact"; see `search_` and the log.
        Sparse rows with entries in at most one of 256 columns, from 400 clusters on: "auto" is "exact", by an inverted
        file, if `algorithm`, `growth_threshold` and `reassignment_ratio` have their defaults.
    algorithm : {"nmbatch", "nmbatch.deact", "mbatch", "mbatch.remove"}, default="nmbatch"
        By the paper's names: nested batches; the same without bounds; batches drawn anew from all rows, whose rows vote
        each time they are drawn (Sculley 2010); the same, with earlier votes of a row taken back. The last three
        compute all distances (``search="exact"``) or look into cells.
    growth_threshold : float or "auto", default="auto"
        When the batch doubles. A number is ρ of the paper's rule: when the standard error of every centre is more than
        ρ times what it has moved; infinity waits until no centre moves (the paper's figures take 100). "auto" asks all
        centres together, with ρ = 5. A batch that nothing improves any more grows in any case.
    {init}
    init_size : int or None, default=None
        Rows to draw the starting centres from; None is three batches, and three rows per cluster at least.
    n_init : int or "auto", default="auto"
        Starts that are drawn, of which the one with the lowest inertia on the `init_size` rows is used; "auto" is 1.
    max_iter : int, default=100
        Most epochs: stop when as many rows have been visited as this many times the data have.
    tol : float, default=0.0
        Stop when all rows are in the batch and the squared shifts of all centres add up to less than `tol` times the
        mean variance of the columns.
    max_no_improvement : int or None, default=10
        Stop after this number of batches running that did not lower the inertia per row; a batch that does not hold all
        rows yet grows instead.
    reassignment_ratio : float, default=0.0
        Centres with fewer rows than this share of the largest cluster's move to random rows when the batch grows; in
        `partial_fit` to rows of the batch, each time ten rows per cluster have come. Unlike scikit-learn's, the default
        moves none.
    compute_labels : bool, default=True
        End with the labels and the inertia of all rows. Otherwise there is no `labels_`, and `inertia_` is the last
        batch's estimate. Labels are the closest centres, as `predict` finds them; above 5,000 clusters with "cells",
        where that would take as long as the fit, the closest of those looked at (see `label_recall_`).
    {decay, max_time, metric, warm_start, random_state, verbose, callbacks, n_threads}

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
    sparse_centers_, sparse_sums_ : scipy.sparse.csr_array of shape (n_clusters, n_features)
        After a fit that keeps centres sparse; `cluster_centers_` and `sums_` are then made for the first who asks.
    labels_ : int32 array of shape (n_samples,)
        While the fit runs (`fit_iter`): −1 for rows that no batch has had yet.
    inertia_ : float
    counts_ : float64 array of shape (n_clusters,)
        Sum of the weights of the rows that voted for each centre.
    sums_ : float64 array of shape (n_clusters, n_features)
        Sum of those rows; what `partial_fit` goes on from.
    half_counts_, half_sums_ : float64 arrays
        The same for one half of each cluster, by which `partial_fit` swaps centres; `fit` leaves none.
    batch_size_ : int
        Rows in the last batch.
    n_steps_ : int
        Batches used.
    n_iter_ : int
        Epochs, rounded up: rows visited over rows there are.
    label_recall_ : float
        Share of rows (of a random sample of 1,000) whose label is the exactly closest centre; 1 for exact labels.
    search_, init_ : str
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
    >>> bool(model.n_distances_ < 0.5 * model.n_steps_ * 20_000 * 20)  # less than half of all rows with all centres
    True
    """

    n_clusters: int = 8
    _: KW_ONLY
    batch_size: int | str = "auto"
    search: Literal["auto", "exact", "elkan", "yinyang", "cells"] = "auto"
    algorithm: Literal["nmbatch", "nmbatch.deact", "mbatch", "mbatch.remove"] = "nmbatch"
    growth_threshold: float | str = "auto"
    init: Any = "auto"
    init_size: int | None = None
    n_init: int | str = "auto"
    max_iter: int = 100
    tol: float = 0.0
    max_no_improvement: int | None = 10
    reassignment_ratio: float = 0.0
    compute_labels: bool = True
    decay: float = 0.0
    max_time: float | None = None
    metric: Literal["euclidean", "cosine"] = "euclidean"
    warm_start: bool = False
    random_state: Any = None
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None

    _least_label = -1  # of a row that was in no batch yet
    _counts_starts = True
    _constraints: ClassVar[Constraints] = {
        "batch_size": [AUTO, FROM_ONE],
        "growth_threshold": [AUTO, Number(Real, 0, None, closed="both")],
        "reassignment_ratio": [Number(Real, 0, 1, closed="both")],
    }

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Labels:
        """Fit, and return the label of every row."""
        if not self.compute_labels:
            raise ValueError("fit_predict needs compute_labels=True; or call fit, then predict")
        return super().fit_predict(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """One batch: the rows given are assigned, and join the votes for their centres.

        The rows are not kept, so every row votes once if it is given once. The first call draws the starting centres
        from its rows. Each time ten rows per cluster have come, centres that share a group of rows are swapped to where
        one centre serves several (docs/streams.md), unless `init` gives the centres. After `fit` it goes on from there.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`; at least `n_clusters` rows in the first call.
        """
        self._validate_params()
        first = not hasattr(self, "cluster_centers_")
        data = self._open(X, sample_weight, reset=first)
        settings = self._choose(data)
        random_state = check_random_state(self.random_state)
        # numbers of its own for every batch: the same cells would miss the same neighbours again
        step = 0 if first else self.n_steps_
        rng = np.random.default_rng([*random_state.randint(2**31, size=4), step])
        options = replace(self._options(settings), b0=data.n_rows, nested=False, remove_old=False)
        swaps = isinstance(self.init, str)  # centres that were given stay with their rows
        if first:
            self._check_rows(data)
            # swaps on few rows per cluster suit those more than the rows to come
            start = result_of(self._start(data, random_state, swapped=data.n_rows >= settings.init_rows))
            votes = first_votes(data.shard, start.centers, options, rng) if swaps else Votes.none(start.centers)
            halves = Votes.none(votes.centers)
        else:
            votes, halves = self._checked_votes(data.unit / (1.0 - self.decay))
        counted = halves if swaps else None
        update = one_batch(data.shard, votes, counted, options, step, rng)
        self._take_votes(votes, data, counted)
        self.n_steps_: int = step + 1
        self.batch_size_ = data.n_rows
        self.inertia_ = update.energy * data.shard.total_weight * data.unit
        self.__dict__.pop("labels_", None)
        if self.compute_labels:
            self._finish(data)
        return self

    def _checked_votes(self, unit: float = 1.0) -> tuple[Votes, Votes]:
        """Votes for the centres and for a half of each cluster, as `partial_fit` goes on from them."""
        centers = self._centers()
        halves = Votes.none(centers) if not hasattr(self, "half_sums_") else self._votes_of("half_", centers, unit)
        return self._votes_of("", centers, unit), halves

    def _votes_of(self, prefix: str, centers: F64, unit: float) -> Votes:
        sums = checked_floats(getattr(self, f"{prefix}sums_"), f"{prefix}sums_", centers.shape)
        counts = checked_floats(getattr(self, f"{prefix}counts_"), f"{prefix}counts_", centers.shape[:1])
        if counts.min() < 0:
            raise ValueError(f"{prefix}counts_ must be at least 0; fit again")
        return Votes.resumed(centers, sums / unit, counts / unit)

    def _check_state(self) -> None:
        super()._check_state()
        if self._sparse_centers() is None:
            self._checked_votes()
        check_common(self, "n_steps_")

    def _settings(self, data: Input) -> NestedSettings:
        init_size = self.init_size
        if init_size is not None and init_size < self.n_clusters:
            init_size = min(3 * self.n_clusters, data.n_rows)
        return NestedSettings(
            self.n_clusters, data.n_rows, data.n_columns, data.dtype.itemsize, data.matrix is not None,
            data.is_streamed, self.batch_size, init_size,
        )  # fmt: skip

    def _choose(self, data: Input) -> NestedSettings:
        """Settle what "auto" means; says beforehand what bounds will take."""
        settings = self._settings(data)
        budget = MEMORY_SHARE * physical_memory()
        found = "exact" if self._inverts(data) else settings.choose_search(budget)
        self.search_ = found if self.search == "auto" else self.search
        if self.search_ in BOUNDS and self.algorithm != "nmbatch":
            if self.search != "auto":
                raise ValueError(
                    f"search={self.search!r} keeps bounds, for rows that come again in the next batch; "
                    f"algorithm={self.algorithm!r} takes search='exact' or 'cells'"
                )
            self.search_ = "exact"
        if self.search_ in BOUNDS:
            n_bytes = settings.bound_bytes(self.search_)
            check_allocation(n_bytes, f"bounds of search={self.search_!r}", "take search='yinyang' or search='exact'")
        return settings

    def _options(self, settings: NestedSettings, variance: float = 0.0) -> NestedOptions:
        """The parameters as the algorithm takes them."""
        by_cells = self.search_ == "cells"
        return NestedOptions(
            b0=settings.batch_rows, together=isinstance(self.growth_threshold, str), **ALGORITHMS[self.algorithm],
            rho=RHO_TOGETHER if isinstance(self.growth_threshold, str) else self.growth_threshold,
            bounds=BOUNDS.get(self.search_), n_probes=N_PROBES if by_cells else 0, run=settings.run,
            max_epochs=self.max_iter, tol=self.tol * variance, max_no_improvement=self.max_no_improvement,
            min_gain=CELLS_GAIN if by_cells else 0.0, reassignment_ratio=self.reassignment_ratio,
            unit_centers=self.metric == "cosine",
        )  # fmt: skip

    def _inverts(self, data: Input) -> bool:
        is_plain = self.algorithm == "nmbatch" and self.growth_threshold == "auto" and self.reassignment_ratio == 0
        exact = is_plain and self.search in ("auto", "exact")
        return exact and self.n_clusters >= SPARSE_FROM and not data.shard.why_not(AssignSparse)

    def _start(self, sample: Input, random_state: np.random.RandomState, *, swapped: bool = True) -> Starting:
        """The best of `n_init` starts, drawn from and compared on a sample of the rows."""
        mean_variance(sample)  # for its check
        begin, n_init = partial(starting_centers, self, sample, random_state), 1 if self.warm_start else self._n_init
        unit = self.metric == "cosine"
        return best_start(sample.shard, begin, n_init, random_state, swapped=swapped, unit_centers=unit)

    def _sample(self, data: Input, settings: NestedSettings, random_state: np.random.RandomState) -> Input:
        """Random rows to start from; all rows where those have too little weight."""
        if settings.init_rows >= data.n_rows:
            return data
        seed = int(random_state.randint(2**31))
        rows = Batch(seed, settings.init_rows, data.n_rows, settings.run).rows(data.n_rows)
        shard = data.shard.subset(rows)
        if len(rows) < self.n_clusters or shard.total_weight == 0:
            return data
        return Input(shard, data.dtype, len(rows), data.n_columns, None if data.matrix is None else data.matrix[rows])

    def _steps(self, data: Input, random_state: np.random.RandomState) -> Iterator[Step[Any]]:
        if self.init_size is not None and self.init_size < self.n_clusters:
            warn_user(
                f"init_size={self.init_size} should be larger than n_clusters={self.n_clusters}: 3 * n_clusters rows "
                "are taken instead",
                RuntimeWarning,
            )
        settings = self._choose(data)
        sample = self._sample(data, settings, random_state)
        unit = data.shard.total_weight / sample.shard.total_weight

        def of_the_sample(step: Step[F64]) -> Step[F64]:
            stage = SEEDS if step.stage == SEEDS else PART
            return replace(step, iteration=0, objective=step.objective * unit, stopped="", stage=stage)

        if self._inverts(data):
            yield from self._sparse_steps(data, sample, random_state, of_the_sample)
            return
        start = yield from mapped(self._start(sample, random_state), of_the_sample)
        self.init_ = start.name
        variance = mean_variance(sample) if self.tol > 0 else 0.0
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        yield from nested_kmeans(data.shard, start.centers, self._options(settings, variance), rng)

    def _sparse_steps(
        self, data: Input, sample: Input, random_state: np.random.RandomState, shown: Callable[[Step[Any]], Step[Any]]
    ) -> Iterator[Step[Any]]:
        """The steps with sparse centres."""
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        named = isinstance(self.init, str) and self.init in ("auto", "k-means++")
        if named and not continues(self, "cluster_centers_"):
            self.init_ = "k-means++"
            centers = yield from mapped(best_sparse_seeds(sample.shard, self.n_clusters, self._n_init, rng), shown)
        else:
            start = yield from mapped(self._start(sample, random_state, swapped=False), shown)
            self.init_, centers = start.name, SparseCenters.of(start.centers)
        options = self._options(self._settings(data), mean_variance(sample) if self.tol > 0 else 0.0)
        if self.max_no_improvement is not None:
            options = replace(options, min_gain=SPARSE_GAIN * QUALITIES["balanced"].least_gain(self.n_clusters))
        yield from nested_sparse_kmeans(data.shard, centers, options, rng)

    def _most_bytes(self, data: Input) -> int:
        sampled = 0 if self._inverts(data) else min(self._settings(data).init_rows, data.n_rows)  # as they are, twice
        return super()._most_bytes(data) + 2 * data.dtype.itemsize * sampled * data.n_columns

    def _publish(self, data: Input, spare: Callable[[], F64], step: Step[Any], history: History) -> None:
        super()._publish(data, spare, step, history)
        self.n_steps_ = step.iteration
        begun = isinstance(step.model, NestedModel)
        self.n_iter_ = -(-step.model.n_visits // data.n_rows) if begun else 0
        self.batch_size_ = step.model.batch_size if begun else 0
        if not self.compute_labels:
            self.__dict__.pop("labels_", None)

    def _take_preparation(self, step: Step[Any], data: Input, spare: Callable[[], F64]) -> None:
        super()._take_preparation(step, data, spare)
        found, none = self._sparse_centers(), np.zeros(self.n_clusters)
        self._take_votes(Votes.none(self._centers()) if found is None else SparseMeans(found.matrix, none, none), data)

    def _take_over(self, step: Step[NestedModel], data: Input) -> None:
        self._take_votes(step.model.votes, data)

    def _take_votes(self, votes: AnyVotes | SparseMeans, data: Input, halves: Votes | None = None) -> None:
        taken: dict[str, Any] = {"counts_": votes.counts * data.unit}
        if isinstance(votes, SparseMeans):
            centers = votes.with_data(votes.matrix.data.astype(data.dtype))
            taken |= {"sparse_sums_": votes.sums() * data.unit, "sparse_centers_": centers}
        else:
            taken |= {"sums_": votes.whole_sums() * data.unit, "cluster_centers_": votes.centers_as(data.dtype)}
        if halves is not None:
            taken |= {"half_counts_": halves.counts * data.unit, "half_sums_": halves.whole_sums() * data.unit}
        self.__dict__.update(taken)  # all or, after Ctrl-C, none
        kept = {"cluster_centers_", "sums_", "sparse_centers_", "sparse_sums_", "half_counts_", "half_sums_"}
        for name in kept - taken.keys():
            self.__dict__.pop(name, None)

    @cached_property
    def sums_(self) -> F64:
        """Sums of the rows of each cluster, made of `sparse_sums_` for the first who asks; else what a fit has set."""
        if "sparse_sums_" not in vars(self):
            raise AttributeError("there are no votes yet; fit first")
        return np.asarray(vars(self)["sparse_sums_"].toarray())

    def _last_probes(self, data: Input) -> int | None:
        return label_probes(self.n_clusters, exact=self.search_ != "cells") if self.compute_labels else None

    def _finish(self, data: Input, seconds_left: float = np.inf) -> int:
        n_probes = self._last_probes(data)
        if n_probes is None:
            return 0
        return self._label(data, n_probes, seconds_left, labelled=self.batch_size_ == data.n_rows)
