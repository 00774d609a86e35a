"""`ProductKMeans`: rows as short codes, by k-means in each of several groups of columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.kmeans.rotation import learn_rotation
from globular.algorithms.seeding.common import evenly_spread_rows
from globular.data.blocks import Source, working_dtype
from globular.estimators.base import Estimator
from globular.estimators.checks import check_common, check_indices, checked_floats
from globular.estimators.elsewhere import lazily
from globular.estimators.inputs import Input, readable
from globular.estimators.kmeans import KMeans
from globular.estimators.parameters import Constraints, one_of
from globular.estimators.running import Clock
from globular.model.history import History, Record
from globular.model.statistics import F64, Floats
from globular.passes.host import HostShard
from globular.passes.registry import shard_over
from globular.seam.passes import Assign
from globular.threads import resolve_threads

ROWS_PER_BLOCK = 1 << 14
"""Rows that are rotated or coded at once."""
ROTATION_ROWS = 1 << 16
"""Rows from which a rotation is learnt; more change the error by far less than a percent."""


@dataclass(eq=False, repr=False)
class ProductKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Product quantisation: every row as a few small numbers, one for each group of columns.

    The columns are cut into groups of equal width, and k-means finds a codebook of centres for each. A row is described
    by the numbers of its centres, its *code*, and rebuilt from them: 16 groups of 256 centres keep a row in 16 bytes.

    Parameters
    ----------
    n_subspaces : int, default=8
        Groups of columns, of which the number of columns is a multiple.
    n_clusters : int, default=256
        Centres of every group; codes of up to 256 take one byte.
    rotation : {"opq"} or None, default=None
        "opq" rotates the rows first so that groups share the variance and depend little on each other. The rotation is
        learnt from up to 65,536 rows drawn evenly, the codebooks from all.
    quality : {"fast", "balanced", "best"}, default="fast"
        How widely k-means searches in each group, and how long it goes on; see :class:`KMeans`. "balanced" takes
        several times as long for less than a percent of the error.
    max_iter : int, default=300
        Most iterations over all rows, in each group.
    {random_state, verbose, callbacks, n_threads}

    Attributes
    ----------
    codebooks_ : array of shape (n_subspaces, n_clusters, n_features // n_subspaces)
    rotation_ : array of shape (n_features, n_features) or None
        Rows are multiplied by it from the right before their columns are grouped.
    inertia_ : float
        Sum of (weighted) squared distances of the rows to what their codes stand for.
    inertia_per_subspace_ : array of shape (n_subspaces,)
    n_iter_, n_distances_ : int
        Iterations over all rows, and row-to-centre distances, of k-means in all groups together.
    history_ : :class:`globular.model.history.History`
        The records of all groups, one after the other.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import ProductKMeans
    >>> X = np.random.default_rng(0).normal(size=(1000, 8)).astype("float32")
    >>> model = ProductKMeans(4, 16, random_state=0).fit(X)
    >>> codes = model.encode(X)  # (1000, 4), of uint8
    >>> float(np.square(X - model.decode(codes)).sum() / np.square(X).sum()) < 0.2
    True
    """

    n_subspaces: int = 8
    n_clusters: int = 256
    _: KW_ONLY
    rotation: str | None = None
    quality: Literal["fast", "balanced", "best"] = "fast"
    max_iter: int = 300
    random_state: Any = None
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None

    _kind = "clusters"
    _constraints: ClassVar[Constraints] = {"rotation": [one_of("opq"), None]}

    def __sklearn_is_fitted__(self) -> bool:
        return "codebooks_" in vars(self)

    def _check_rows(self, data: Input) -> None:
        super()._check_rows(data)
        if data.n_columns % self.n_subspaces:
            raise ValueError(
                f"n_subspaces={self.n_subspaces} does not divide the {data.n_columns} columns of X; "
                "take a divisor, or add columns of zeros"
            )

    def _run(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        """K-means in one group of columns after the other; the model changes when all are done."""
        random_state, n_threads = check_random_state(self.random_state), resolve_threads(self.n_threads)
        source, rotation, shard = _source(data), None, cast(HostShard, data.shard)
        if self.rotation == "opq":
            rng = np.random.default_rng(random_state.randint(2**31, size=4).astype(np.uint32))
            sample = shard.subset(evenly_spread_rows(shard.n_rows, ROTATION_ROWS, rng))
            rotation = learn_rotation(sample, self.n_subspaces, self.n_clusters, rng)
        models, records = list[KMeans](), list[Record]()
        for group in np.split(np.arange(data.n_columns), self.n_subspaces):
            rows = np.empty((source.n_rows, len(group)), dtype=data.dtype)
            for block in source.blocks(ROWS_PER_BLOCK):
                rows[block.start : block.stop] = _rotated(block.rows, rotation, group)
            model = KMeans(
                self.n_clusters, quality=self.quality, max_iter=self.max_iter, random_state=random_state,
                verbose=self.verbose, callbacks=self.callbacks, n_threads=self.n_threads,
            )  # fmt: skip
            model.n_features_in_ = len(group)
            columns = shard_over(rows, shard.weights if len(shard.weights) else None, n_threads=n_threads)
            part = replace(data, shard=columns, n_columns=len(group), left_out=None)
            for record in model._begin_with(part, clock, watched):
                records.append(record)
                yield record
            models.append(model)
        self.codebooks_ = np.stack([model.cluster_centers_ for model in models])
        self.rotation_, self.history_ = rotation, History(records)
        self.n_iter_ = sum(model.n_iter_ for model in models)
        self.n_distances_ = sum(model.n_distances_ for model in models)
        self.inertia_per_subspace_ = np.array([model.inertia_ for model in models])
        self.inertia_ = float(self.inertia_per_subspace_.sum())

    @lazily
    def predict(self, X: Any) -> NDArray[Any]:
        """The code of every row, (n_samples, n_subspaces), in the smallest unsigned type.

        Parameters
        ----------
        X : array, data frame, source or path
        """
        check_is_fitted(self)
        source, threads = _source(self._open(X, None, reset=False)), resolve_threads(self.n_threads)
        codes = np.empty((source.n_rows, self.n_subspaces), dtype=np.min_scalar_type(self.n_clusters - 1))
        for block in source.blocks(ROWS_PER_BLOCK):
            for m, group in enumerate(np.split(np.arange(self.n_features_in_), self.n_subspaces)):
                shard = shard_over(_rotated(block.rows, self.rotation_, group), n_threads=threads)
                shard.run(Assign(self.codebooks_[m].astype(np.float64), want="labels"))
                codes[block.start : block.stop, m] = shard.labels
        return codes

    encode = transform = predict

    def decode(self, codes: Any) -> Floats:
        """The rows that codes stand for, (n_samples, n_features): the means of the rows that have them."""
        check_is_fitted(self)
        codes = np.asarray(codes)
        check_indices(codes, "codes", (None, self.n_subspaces), self.n_clusters)
        rows = np.hstack([book[codes[:, m]] for m, book in enumerate(self.codebooks_)])
        return rows if self.rotation_ is None else rows @ self.rotation_.T.astype(rows.dtype)

    inverse_transform = decode

    def _check_state(self) -> None:
        D = check_common(self, "inertia_")
        checked_floats(self.codebooks_, "codebooks_", (self.n_subspaces, self.n_clusters, D // self.n_subspaces))
        if self.rotation_ is not None:
            checked_floats(self.rotation_, "rotation_", (D, D))

    @property
    def _n_features_out(self) -> int:
        return self.n_subspaces

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags


def _source(data: Input) -> Source:
    rows = readable(data)
    if not isinstance(rows, Source):
        raise TypeError("X: ProductKMeans reads its rows in this process; on Dask pass X.compute() or a file")
    return rows


def _rotated(rows: Any, rotation: F64 | None, group: NDArray[np.intp]) -> Any:
    """Some columns of the rows after the rotation, contiguous."""
    if rotation is None:
        return np.ascontiguousarray(rows[:, group[0] : group[-1] + 1])
    dtype = working_dtype(rows.dtype)
    return np.asarray(rows, dtype=dtype) @ rotation[:, group].astype(dtype)
