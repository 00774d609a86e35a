"""What all k-means estimators share: the course of a fit, and predict, transform and score once there are centres."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.kmeans.cells import draw_cells, label_by_cells
from globular.algorithms.kmeans.probing import LEAST_RECALL, WIDE_SEARCH, Labelling, find_labels, label_rows
from globular.algorithms.seeding.named import STARTS
from globular.algorithms.steps import Step, in_units
from globular.data.open import as_source
from globular.estimators.base import Estimator
from globular.estimators.certificates import Certificate, of_centers
from globular.estimators.checks import (
    check_allocation,
    check_common,
    check_indices,
    checked_limit,
    fit_bytes,
    sparse_bytes,
)  # fmt: skip
from globular.estimators.elsewhere import lazily, where_x_is
from globular.estimators.inputs import Input, open_input
from globular.estimators.kept_centers import KeptCenters
from globular.estimators.parameters import AUTO, FROM_ONE, Constraints, one_of
from globular.estimators.running import Clock, Fit, warn_user
from globular.estimators.starts import filled_up, of_unit_length, spare_centers
from globular.model.history import History, Record
from globular.model.sparse_centers import SparseCenters
from globular.model.statistics import F64, I64
from globular.seam.among import Probe
from globular.seam.answers import NEAREST, Centers, Nearest, Own
from globular.seam.passes import Assign, Labels
from globular.seam.shard import Shard, answer
from globular.threads import resolve_threads

TIMED_ROWS = (1024, 16384)
"""Rows, and more of them, whose labelling is timed where a fit has a time limit."""
BLOCK_BYTES = 1 << 27
"""About what a block of distances takes that are written somewhere else."""


class CentroidEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, KeptCenters, Estimator):
    """Base of the k-means family: subclasses say which steps to run (`_steps`) and take over a step (`_take_over`)."""

    _constraints: ClassVar[Constraints] = {
        "init": [one_of(*STARTS), "array-like", callable],
        "n_init": [AUTO, FROM_ONE],
    }
    n_clusters: int
    metric: str
    n_init: int | str
    init: Any
    labels_: Labels
    inertia_: float
    _kind = "clusters"
    _takes_sparse = True
    _least_label = 0
    _counts_starts = False
    """Whether `n_init` counts starts rather than whole runs, and `max_iter` epochs rather than steps."""
    _hurries = False
    """Whether rows get rough labels where time is up before the first iteration."""

    @property
    def _unit_rows(self) -> bool:
        return self.metric == "cosine"

    @abstractmethod
    def _steps(self, data: Input, random_state: np.random.RandomState) -> Iterator[Step[Any]]:
        """Seed and run the algorithm once; may set attributes that say what was chosen."""

    def _take_preparation(self, step: Step[Any], data: Input, spare: Callable[[], F64]) -> None:
        """Set the fitted attributes while iterations are prepared: the centres so far, filled up with spare ones."""
        if isinstance(step.model, SparseCenters):
            self._keep_centers(step.model.picked(np.arange(self.n_clusters) % step.model.shape[0]), data)
            return
        centers = filled_up(step.lifted(), self.n_clusters, spare)
        self._keep_centers(of_unit_length(centers) if self.metric == "cosine" else centers, data)

    @abstractmethod
    def _take_over(self, step: Step[Any], data: Input) -> None:
        """Set the fitted attributes that a step's model holds, `cluster_centers_` among them."""

    @abstractmethod
    def _finish(self, data: Input, seconds_left: float) -> int:
        """Set labels, inertia and recall for the centres as they are handed out; returns the distances it took."""

    def _label(
        self, data: Input, n_probes: int, seconds_left: float, *, labelled: bool = True, n_before: int = 0
    ) -> int:
        """Set labels, inertia and recall by a search of `n_probes` cells, 0 for all centres; returns the distances."""
        if n_probes == 0:
            exact = self._assign(data.shard)
            found = Labelling(exact.objective, exact.n_distances)
        else:
            found = label_rows(
                data.shard, self._centers(), n_probes, labelled=labelled, seconds_left=seconds_left, n_before=n_before
            )
        self.labels_ = data.labels(self._centers, exact=n_probes == 0).copy()
        self.inertia_, self.label_recall_ = found.objective * data.unit, found.recall
        return found.n_distances

    def _begin_with(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        self._check_rows(data)
        # centres, sums, their copies for the products; labels, orders and distances of the rows
        n_bytes = 8 * (self._center_copies(data) * self.n_clusters * data.n_columns + 4 * data.n_rows)
        check_allocation(
            n_bytes, "the fit, beside X", "take fewer clusters or fewer columns", at_most=self._most_bytes(data)
        )
        return self._run(data, clock, watched)

    def _center_copies(self, data: Input) -> int:
        """Arrays of the size of all centres in float64 that a fit is sure to need."""
        return 0 if self._inverts(data) else 6

    def _inverts(self, data: Input) -> bool:
        """Whether centres stay sparse, and rows find the closest by an inverted file."""
        return False

    def _most_bytes(self, data: Input) -> int:
        """The most memory that a fit takes beside X."""
        n_threads = resolve_threads(self.n_threads)
        if self._inverts(data):
            return sparse_bytes(data.n_rows, data.matrix.nnz, data.n_columns, self.n_clusters, n_threads)
        return fit_bytes(data.n_rows, data.n_columns, self.n_clusters * data.n_columns, 10, n_threads)

    @property
    def _n_init(self) -> int:
        """Starts that are tried: one, where `init` holds the centres."""
        has_centers = not isinstance(self.init, str) and not callable(self.init)
        return 1 if self.n_init == "auto" or has_centers else int(self.n_init)

    def _run(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        random_state = check_random_state(self.random_state)
        if self.n_init not in ("auto", self._n_init):
            warn_user(
                "Explicit initial center position passed: performing only one init instead of n_init="
                f"{self.n_init}; leave n_init out",
                RuntimeWarning,
            )
        fit = Fit(
            self, data.n_rows, max_iter=None if self._counts_starts else self.max_iter, max_time=self.max_time,
            clock=clock, watched=watched, foretell=partial(self._labelling_seconds, data),
            first_step=WIDE_SEARCH if self._hurries and self._last_probes(data) else 1.0,
        )  # fmt: skip

        def finish(reason: str) -> float:
            self.stopped_ = reason
            self.__dict__.pop("labels_", None)  # those that the last pass has left belong to other centres
            fit.n_distances += self._finish(data, fit.seconds_left)
            return -self.inertia_

        yield from fit.best_of(
            1 if self._counts_starts else self._n_init,
            lambda: in_units(self._steps(data, random_state), data.unit),
            partial(self._publish, data, cache(partial(spare_centers, data, self.n_clusters))),
            finish,
            lambda step: step.objective / data.unit / data.shard.total_weight,
        )
        if not hasattr(self, "labels_"):
            return
        n_found = self.n_clusters
        if self.history_[-1].labels_all_rows:  # else it has rows in the place of seeds
            n_found = int(np.count_nonzero(np.bincount(self.labels_, minlength=self.n_clusters)))
        if n_found < self.n_clusters:
            warn_user(
                f"Number of distinct clusters ({n_found}) found smaller than n_clusters ({self.n_clusters}). "
                "Possibly due to duplicate points in X.",
                ConvergenceWarning,
            )
        if (recall := getattr(self, "label_recall_", 1.0)) < LEAST_RECALL:
            warn_user(
                f"labels_ hold the closest centre of only {recall:.0%} of the rows, and inertia_ is that of labels_ "
                f"(stopped_={self.stopped_!r}); predict(X) finds the closest centres",
                ConvergenceWarning,
            )

    def _publish(self, data: Input, spare: Callable[[], F64], step: Step[Any], history: History) -> None:
        self.__dict__.pop("labels_", None)
        if history[-1].labels_all_rows:
            self._take_over(step, data)
            self.labels_ = data.labels(self._centers)
        else:
            self._take_preparation(step, data, spare)
        self.inertia_ = step.objective
        self.n_iter_ = step.iteration
        self.history_ = history
        self.n_distances_ = int(sum(record.n_distances for record in history))

    @abstractmethod
    def _last_probes(self, data: Input) -> int | None:
        """Cells that a row searches for its label after the last step, 0 for all centres; None without labels."""

    def _labelling_seconds(self, data: Input) -> float:
        """About how long it takes to label all rows, from some of them: what does not grow with the rows cancels."""
        n_probes = self._last_probes(data)
        if n_probes is None:
            return 0.0
        shard, started = data.shard, time.perf_counter()
        cells = draw_cells(shard, self._centers(), np.random.default_rng(0)) if n_probes else None
        fixed, seconds = 2 * (time.perf_counter() - started), []
        few, many = sizes = [max(1, min(data.n_rows // 16 * size // TIMED_ROWS[1], size)) for size in TIMED_ROWS]
        for size in (few, *sizes):  # the first time everything is slow
            sample = shard.subset(np.linspace(0, data.n_rows - 1, size).astype(np.intp))
            started = time.perf_counter()
            if cells is None:
                self._assign(sample)
            else:
                label_by_cells(sample, self._centers(), cells)
                if not self._hurries:
                    sample.run(Assign(self._centers(), Probe(cells, n_probes), "labels"))
            seconds.append(time.perf_counter() - started)
        per_row = max(0.0, seconds[2] - seconds[1]) / max(1, many - few)
        return fixed + min(per_row, seconds[2] / many) * data.n_rows  # the difference of few rows may be chance

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Labels:
        """Fit, and return the label of every row."""
        return where_x_is(X, self.fit(X, sample_weight=sample_weight).labels_)

    @lazily
    def predict(
        self, X: Any, exact: bool = True, *, return_distance: bool = False, max_distance: float | None = None
    ) -> Any:
        """Index of the closest centre for every row of X.

        Parameters
        ----------
        X : array, CSR matrix, data frame, source or path
        exact : bool, default=True
            False searches a few of about √k cells of centres instead of all k centres: far fewer distances when there
            are thousands of clusters, and now and then only the second-closest centre.
        return_distance : bool, default=False
            Also return the distance of every row to its centre, ``(labels, distances)``.
        max_distance : float, optional
            Rows that are farther from their centre are noise, and get the label −1.
        """
        shard = self._labelled(X, exact=exact)
        labels = np.asarray(shard.labels)
        if not return_distance and max_distance is None:
            return where_x_is(X, labels)
        distances = self._distance(answer(shard, Own(self._centers()), "squares"))
        if max_distance is not None:
            labels = np.where(distances > checked_limit("max_distance", max_distance), np.int32(-1), labels)
        return (where_x_is(X, labels), where_x_is(X, distances)) if return_distance else where_x_is(X, labels)

    def _labelled(self, X: Any, *, exact: bool) -> Shard:
        """The rows with their labels, by all centres or by those of a few cells."""
        check_is_fitted(self)
        shard = self._open(X, None, reset=False).shard
        if exact or self._stays_sparse(shard):
            self._assign(shard)
        else:
            find_labels(shard, self._centers(), np.random.default_rng(0))
        return shard

    def _distance(self, squares: F64) -> F64:
        """Distances by ‖x − μ‖², which is twice the cosine distance of rows of unit length."""
        return squares / 2.0 if self.metric == "cosine" else np.sqrt(squares)

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> NDArray[np.floating[Any]]:
        """Fit, and return the distances of every row to all centres."""
        return self.fit(X, sample_weight=sample_weight).transform(X)

    @lazily
    def transform(self, X: Any, *, out: Any = None) -> NDArray[np.floating[Any]]:
        """Distances of every row to all centres, an N × k array (cosine distances if the metric is the cosine).

        `out` is an array of that shape to write to block by block, such as a memory map that is larger than memory.
        """
        check_is_fitted(self)
        source, C = None if out is None else as_source(X), len(self._centers())
        if source is None:
            data = open_input(self, X, reset=False, n_threads=self.n_threads)
            check_allocation(8 * data.n_rows * C, "the distances of all rows to all centres", "transform X in parts")
            return where_x_is(X, answer(data.shard, Centers(self.cluster_centers_, self.metric), "distances"))
        shape = tuple(getattr(out, "shape", ()))
        if shape != (source.n_rows, C):
            raise ValueError(
                f"out must be an array of the shape {(source.n_rows, C)}, got {shape or type(out).__name__}"
            )
        for block in source.blocks(max(1, BLOCK_BYTES // (8 * C))):
            data = open_input(self, as_source(block.rows), reset=False, n_threads=self.n_threads)
            out[block.start : block.stop] = answer(data.shard, Centers(self.cluster_centers_, self.metric), "distances")
        return out

    def nearest_centers(self, X: Any, n_centers: int = 1) -> tuple[Labels, F64]:
        """The closest centres of every row, the closest first, and how far they are.

        All centres are looked at, and memory is needed for the answer alone.

        Parameters
        ----------
        X : array, CSR matrix, data frame, source or path
        n_centers : int, default=1
            How many for every row.

        Returns
        -------
        labels : int32 array of shape (n_samples, n_centers)
        distances : float64 array of shape (n_samples, n_centers)
            Cosine distances if the metric is the cosine.

        Examples
        --------
        >>> from globular import KMeans
        >>> model = KMeans(3, init=[[0.0], [4.0], [9.0]]).fit([[0.0], [4.0], [9.0]])
        >>> labels, distances = model.nearest_centers([[1.0], [8.0]], 2)
        >>> labels.tolist(), distances.tolist()
        ([[0, 1], [2, 1]], [[1.0, 3.0], [1.0, 4.0]])
        """
        check_is_fitted(self)
        if not 1 <= n_centers <= self._n_found:
            raise ValueError(f"n_centers must lie between 1 and {self._n_found}, got {n_centers}")
        data = self._open(X, None, reset=False)
        n_bytes = 2 * NEAREST.itemsize * data.n_rows * n_centers
        check_allocation(n_bytes, f"{n_centers} centres of every row", "pass X in parts")
        found = answer(data.shard, Nearest(self._centers(), n_centers), "nearest")
        return where_x_is(X, found["center"].copy()), where_x_is(X, self._distance(found["square"]))

    def medoids(self, X: Any) -> I64:
        """The number of the row of X that is closest to each centre, among the rows of that cluster.

        Returns
        -------
        int64 array of shape (n_clusters,)
            −1 for a cluster that has no row in X.

        Examples
        --------
        >>> from globular import KMeans
        >>> X = [[0.0], [1.1], [2.0], [9.0]]
        >>> model = KMeans(2, init=[[1.0], [9.0]]).fit(X)
        >>> model.medoids(X).tolist()
        [1, 3]
        """
        shard = self._labelled(X, exact=True)
        labels = np.asarray(shard.labels)
        order = np.lexsort((self._distance(answer(shard, Own(self._centers()), "squares")), labels))
        found, first = np.unique(labels[order], return_index=True)
        medoids = np.full(self._n_found, -1, dtype=np.int64)
        medoids[found] = order[first]
        return medoids

    def certificate(self, X: Any, n_samples: int = 1000) -> Certificate:
        """What a search among few centres misses of X, such as that of ``predict(X, exact=False)`` or of "probing".

        Parameters
        ----------
        X : array, CSR matrix, data frame, source or path
        n_samples : int, default=1000
            Rows drawn at random, each of which is held against all centres.

        Returns
        -------
        certificate : Certificate
            `missed`, the share of rows whose closest centre is not found; `loss`, the share by which the mean squared
            distance is larger for it; and their standard errors.
        """
        check_is_fitted(self)
        return of_centers(self._open(X, None, reset=False).shard, self._centers(), n_samples)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the sum of squared distances of the rows to their closest centres (larger is better)."""
        data = self._open(X, sample_weight, reset=False)
        return -self._assign(data.shard).objective * data.unit

    def _check_state(self) -> None:
        """Refuse fitted attributes that do not go together; what has been read from a file may be anything."""
        check_common(self, "inertia_")
        if self._sparse_centers() is None:
            self._centers()
        n_found = self._n_found
        if n_found != self.n_clusters:
            raise ValueError(f"cluster_centers_ holds {n_found} centres, n_clusters={self.n_clusters}; fit again")
        labels = getattr(self, "labels_", None)
        if isinstance(labels, np.ndarray):  # those on workers have not been anywhere else
            check_indices(labels, "labels_", (None,), n_found, least=self._least_label)

    @property
    def _n_features_out(self) -> int:
        return self._n_found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
