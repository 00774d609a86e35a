"""`ResidualKMeans`: rows as short codes, by k-means of what earlier k-means have left of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.kmeans.residual import CodeKeys
from globular.data.blocks import Source
from globular.data.residuals import Codes
from globular.data.sources import choose_rows
from globular.estimators.base import Estimator
from globular.estimators.checks import check_common, check_indices, checked_array, checked_floats, whole_number
from globular.estimators.codes import Coder, Rows
from globular.estimators.elsewhere import lazily, on_host, where_x_is
from globular.estimators.inputs import Input, Weights, readable
from globular.estimators.kmeans import KMeans
from globular.estimators.parameters import AUTO, FROM_ONE, FROM_ZERO, Constraints
from globular.estimators.running import INTERRUPTED, Clock
from globular.estimators.validation import check_weights
from globular.model.history import History, Record
from globular.model.statistics import F64, I64
from globular.passes.registry import shard_over
from globular.seam.shard import Shard
from globular.threads import resolve_threads

LEVELS = 3
"""Levels where n_clusters is one number: 24 bits a row with 256 clusters each."""


@dataclass(eq=False, repr=False)
class ResidualKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Residual quantisation: every row as a few small numbers, one for each level of k-means.

    The first level clusters the rows, each further one what the levels before it leave of them. A row is described by
    the numbers of its clusters, its *code*, and rebuilt as the sum of their centres: 3 levels of 256 clusters tell 16.8
    million codes apart. Residuals are made block by block while rows are read.

    Parameters
    ----------
    n_clusters : int or list of int, default=256
        Clusters of every level.
    n_levels : int, optional
        Levels; 3 by default. A list of `n_clusters` has one number for each.
    beam : int, default=1
        Partial codes of a row that the search for its code keeps at every level: 1 takes the closest centre level by
        level, 5 to 16 lower the error at as many times the work.
    unique : bool, default=False
        Whether no two rows of X may have the same code: later rows then get the closest code that is free.
    n_refinements : int, default=1
        Rounds in which all codebooks are fitted anew, given the codes, and from the second round on the codes first.
        One lowers the error by 1 to 2 %, four with a beam of 5 by 3 to 5 %.
    max_size : int or list of int, optional
        Most rows that use a word, of every level or of each. It holds for codes found level by level, so it needs
        ``beam=1`` and at most one refinement; rows that `unique` moves may exceed it in the last levels.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" scales rows to unit length; the first level then clusters directions (spherical k-means).
    quality : {"fast", "balanced", "best"}, default="balanced"
        How widely k-means searches in each level, and how long it goes on; see :class:`KMeans`.
    {n_init}
    max_iter : int, default=300
        Most iterations over all rows, in each level.
    tol : float, default=1e-4
        When to stop a level of fewer than 500 clusters; see :class:`KMeans`.
    {max_time, random_state, verbose}
    callbacks : callback, callable or list of them, default=None
        See :mod:`globular.callbacks`; they are shown the :class:`KMeans` of each level in turn.
    {n_threads, device}

    Attributes
    ----------
    codebooks_ : list of arrays of shape (n_clusters of the level, n_features)
        The centres of every level.
    codes_ : unsigned array of shape (n_samples, n_levels)
        The code of every row, in the smallest type that holds it.
    inertia_ : float
        Sum of (weighted) squared distances of the rows to what their codes stand for.
    inertia_per_level_ : array of shape (n_levels,)
        The same after each level.
    n_collisions_, n_reassigned_ : int
        Rows that have the code of an earlier row, 0 with `unique`; and rows that had it, and got another code.
    n_iter_, n_distances_ : int
        Iterations over all rows, and row-to-centre distances, of k-means in all levels together.
    history_ : :class:`globular.model.history.History`
        The records of all levels, one after the other.
    stopped_ : str
        Why the last level ended. After Ctrl-C there are the levels that were begun, and no others.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import ResidualKMeans
    >>> X = np.random.default_rng(0).normal(size=(1000, 4)).astype("float32")
    >>> model = ResidualKMeans(16, n_levels=3, random_state=0).fit(X)
    >>> model.codes_.shape, model.codes_.dtype
    ((1000, 3), dtype('uint8'))
    >>> float(np.square(X - model.decode(model.codes_)).sum() / np.square(X).sum()) < 0.05
    True
    """

    n_clusters: Any = 256
    _: KW_ONLY
    n_levels: int | None = None
    beam: int = 1
    unique: bool = False
    n_refinements: int = 1
    max_size: Any = None
    metric: Literal["euclidean", "cosine"] = "euclidean"
    quality: Literal["fast", "balanced", "best"] = "balanced"
    n_init: int | str = "auto"
    max_iter: int = 300
    tol: float = 1e-4
    max_time: float | None = None
    random_state: Any = None
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None
    device: str | list[str] = "auto"

    _kind = "clusters"
    _keeps_zeros = True
    _constraints: ClassVar[Constraints] = {
        "n_clusters": [FROM_ONE, "array-like"],
        "n_init": [AUTO, FROM_ONE],
        "n_levels": [None, FROM_ONE],
        "n_refinements": [FROM_ZERO],
        "max_size": [None, FROM_ONE, "array-like"],
    }

    @property
    def _sizes(self) -> list[int]:
        """The number of clusters of every level."""
        if isinstance(self.n_clusters, Integral):
            return [int(self.n_clusters)] * (self.n_levels or LEVELS)
        sizes = [whole_number(f"n_clusters[{level}]", size) for level, size in enumerate(self.n_clusters)]
        if not sizes or self.n_levels not in (None, len(sizes)):
            raise ValueError(
                f"n_clusters has {len(sizes)} numbers, n_levels={self.n_levels}; give one for each level, "
                "and leave out n_levels"
            )
        return sizes

    @property
    def _limits(self) -> list[int | None]:
        """The most rows of a word of every level."""
        if self.max_size is None:
            return [None] * len(self._sizes)
        if isinstance(self.max_size, Integral):
            return [int(self.max_size)] * len(self._sizes)
        return [whole_number(f"max_size[{level}]", limit) for level, limit in enumerate(self.max_size)]

    @property
    def _unit_rows(self) -> bool:
        return self.metric == "cosine"

    def __sklearn_is_fitted__(self) -> bool:
        return "codebooks_" in vars(self)

    def _coder(self) -> Coder:
        check_is_fitted(self)
        return Coder(self.codebooks_, self._unit_rows, resolve_threads(self.n_threads))

    @property
    def _card_bytes_per_row(self) -> int:
        n_columns = getattr(self, "n_features_in_", 0)
        return super()._card_bytes_per_row + 8 * n_columns  # rows less their code words

    def _n_rows_wanted(self) -> int:
        return max(self._sizes)

    def _begin(self, X: Any, sample_weight: Any, *, watched: bool) -> Iterator[Record]:
        self._validate_params()
        clock, sizes = Clock(), self._sizes
        data = self._open(X, sample_weight, reset=True)
        self._check_rows(data)
        self._check_limits(data.n_rows)
        if self.unique:
            CodeKeys(sizes).check(data.n_rows)
        return self._run(data, clock, watched, sample_weight)

    def _check_limits(self, n_rows: int) -> None:
        if self.max_size is None:
            return
        if self.beam > 1 or self.n_refinements > 1:
            raise ValueError("max_size holds for codes found level by level; set beam=1 and n_refinements=0 or 1")
        if len(self._limits) != len(self._sizes):
            raise ValueError(f"max_size has {len(self._limits)} numbers for {len(self._sizes)} levels; give one each")
        for size, limit in zip(self._sizes, self._limits, strict=True):
            if limit is not None and size * limit < n_rows:
                raise ValueError(
                    f"max_size={limit}: {size} words of that size do not hold {n_rows} rows; take at least "
                    f"{-(-n_rows // size)}"
                )

    def _run(self, data: Input, clock: Clock, watched: bool, sample_weight: Any = None) -> Iterator[Record]:
        """K-means level by level, then all codebooks and codes together."""
        rows, random_state, sizes = readable(data), check_random_state(self.random_state), self._sizes
        weights, given, counted = Weights(None, data.unit), None, rows
        if isinstance(rows, Source):  # rows that lie elsewhere have theirs
            given = check_weights(sample_weight, data.n_rows)
            weights = Weights.of(given, max(sizes))
            counted = choose_rows(rows, weights.rows)
        coder = Coder([], self._unit_rows, resolve_threads(self.n_threads))
        codes: Codes = np.zeros((counted.n_rows, len(sizes)), dtype=np.min_scalar_type(max(sizes) - 1))
        models = list[KMeans]()
        for level, size in enumerate(sizes):
            model = self._level(level, size, random_state)
            model.n_features_in_ = data.n_columns
            shard = coder.left(counted, codes, weights.values) if level else self._first(data, counted, weights)
            part = Input(shard, data.dtype, shard.n_rows, data.n_columns, unit=weights.unit, is_streamed=level > 0)
            yield from model._begin_with(part, clock, watched)
            models.append(model)
            codes[:, level] = model.labels_
            coder.codebooks.append(model.cluster_centers_)
            if model.stopped_ == INTERRUPTED:
                break
        self.history_ = History(record for each in models for record in each.history_)
        self.n_iter_ = sum(each.n_iter_ for each in models)
        self.n_distances_ = sum(each.n_distances_ for each in models)
        self.stopped_ = model.stopped_
        self._finish(coder, rows, codes[:, : len(coder.codebooks)], weights, given)

    def _first(self, data: Input, rows: Rows, weights: Weights) -> Shard:
        """The rows themselves, which k-means sees in the first level."""
        if not isinstance(rows, Source):
            return data.shard
        given: Any = rows if data.matrix is None else rows.whole()
        return shard_over(given, weights.values, unit_rows=self._unit_rows, n_threads=resolve_threads(self.n_threads))

    def _finish(self, coder: Coder, rows: Rows, codes: Codes, weights: Weights, given: F64 | None) -> None:
        """Refine what the levels have found, and set the codes and errors of all rows."""
        if isinstance(rows, Source) and weights.rows is not None and weights.zeros is not None:
            some, codes = codes, np.zeros((rows.n_rows, codes.shape[1]), codes.dtype)
            codes[weights.rows] = some
            codes[weights.zeros] = coder.encode(choose_rows(rows, weights.zeros), self.beam)
        scaled, self.n_reassigned_ = None if given is None else given / weights.unit, 0
        for n_before in range(max(1, self.n_refinements)):
            if self.beam > 1 or n_before:
                codes = coder.encode(rows, self.beam, codes)
            if self.unique:
                self.n_reassigned_ = coder.make_unique(rows, codes, self.beam)
            if self.n_refinements:
                coder.refine(rows, codes, scaled)
        self.n_collisions_ = 0 if self.unique else len(CodeKeys(coder.sizes).repeated(codes))
        self.codebooks_, self.codes_ = coder.codebooks, codes
        self.inertia_per_level_ = coder.errors(rows, codes, given) * (weights.unit if given is None else 1.0)
        self.inertia_ = float(self.inertia_per_level_[-1])

    def _level(self, level: int, size: int, random_state: np.random.RandomState) -> KMeans:
        """The k-means of one level; each may take an equal share of the time."""
        share = (level + 1) / len(self._sizes)
        return KMeans(
            size, quality=self.quality, n_init=self.n_init, max_iter=self.max_iter, tol=self.tol,
            max_time=None if self.max_time is None else share * self.max_time,
            metric=self.metric if level == 0 else "euclidean", random_state=random_state, verbose=self.verbose,
            callbacks=self.callbacks, n_threads=self.n_threads, max_cluster_size=self._limits[level],
        )  # fmt: skip

    def _opened(self, X: Any) -> Rows:
        return readable(self._open(X, None, reset=False))

    def encode(self, X: Any, *, beam: int | None = None, unique: bool = False) -> Any:
        """The code of every row of X.

        Parameters
        ----------
        X : array, data frame, source or path
        beam : int, optional
            Partial codes that are kept for each row, by default as in the fit.
        unique : bool, default=False
            Whether no two rows of X may have the same code.

        Examples
        --------
        >>> import numpy as np
        >>> from globular import ResidualKMeans
        >>> X = [[0.0], [0.1], [0.2], [9.0], [9.1], [9.1]]
        >>> model = ResidualKMeans([2, 3], random_state=0).fit(X)
        >>> len(np.unique(model.encode(X), axis=0)), len(np.unique(model.encode(X, unique=True), axis=0))
        (5, 6)
        """
        if not unique:
            return self.predict(X, beam)
        rows, coder, beam = self._opened(X), self._coder(), self._checked_beam(beam)
        codes = coder.encode(rows, beam)
        coder.make_unique(rows, codes, beam)
        return where_x_is(X, codes)

    @lazily
    def predict(self, X: Any, beam: int | None = None) -> Any:
        """The code of every row of X: `encode` by its names in scikit-learn."""
        return where_x_is(X, self._coder().encode(self._opened(X), self._checked_beam(beam)))

    def _checked_beam(self, beam: int | None) -> int:
        return self.beam if beam is None else whole_number("beam", beam)

    transform = predict

    def decode(self, codes: Any) -> Any:
        """What codes (n, n_levels) stand for, (n, n_features); codes of the first levels alone give coarser rows."""
        return where_x_is(codes, self._coder().decode(on_host(codes)))

    inverse_transform = decode

    def fit_iter(self, X: Any, y: Any = None, sample_weight: Any = None) -> Iterator[Record]:
        """Fit as a generator: a record for each iteration of each level. The attributes are set at its end."""
        return super().fit_iter(X, y, sample_weight)

    def first_level(self) -> KMeans:
        """The first level as a model of its own, such as the coarse clusters of an index."""
        check_is_fitted(self)
        model = KMeans(len(self.codebooks_[0]), metric=self.metric, n_threads=self.n_threads)
        for name in {"n_features_in_", "feature_names_in_", "n_iter_", "stopped_"} & vars(self).keys():
            setattr(model, name, getattr(self, name))
        model.cluster_centers_, model.inertia_ = self.codebooks_[0], float(self.inertia_per_level_[0])
        if hasattr(self, "codes_"):
            model.labels_ = self.codes_[:, 0].astype(np.int32)
        return model

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the sum of squared distances of the rows to what their codes stand for (larger is better)."""
        data, coder = self._open(X, sample_weight, reset=False), self._coder()
        rows = readable(data)
        weights = check_weights(sample_weight, rows.n_rows) if isinstance(rows, Source) else None
        error = coder.errors(rows, coder.encode(rows, self.beam), weights)[-1]
        return -float(error) * (1.0 if isinstance(rows, Source) else data.unit)

    @property
    def cluster_sizes_(self) -> list[I64]:
        """The number of rows that use each word, by `codes_`: an array for every level."""
        sizes = self._coder().sizes
        return [np.bincount(self.codes_[:, level], minlength=size) for level, size in enumerate(sizes)]

    def _check_state(self) -> None:
        """Refuse fitted attributes that do not go together; what has been read from a file may be anything."""
        D, books = check_common(self, "inertia_"), self.codebooks_
        if not isinstance(books, list) or not 1 <= len(books) <= len(self._sizes):
            raise ValueError(f"codebooks_ must be a list of at most {len(self._sizes)} arrays; fit again")
        none = np.zeros((1, len(books)), dtype=np.int64)
        codes = checked_array(getattr(self, "codes_", none), "codes_", (None, len(books)), "iu")
        for level, (book, size) in enumerate(zip(books, self._sizes, strict=False)):
            checked_floats(book, f"codebooks_[{level}]", (size, D))
            check_indices(codes[:, level], f"codes_[:, {level}]", (None,), size)

    @property
    def _n_features_out(self) -> int:
        return len(self.codebooks_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags
