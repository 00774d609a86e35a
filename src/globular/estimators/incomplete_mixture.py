"""What a mixture that may be fitted to rows with missing values adds: rows with NaN, and where EM on them starts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from globular.algorithms.mixtures.em import EMOptions, em_by
from globular.algorithms.mixtures.missing import TOL_SHARE, IncompleteRows, search_start
from globular.algorithms.steps import Step
from globular.data.some_rows import choose_rows
from globular.estimators.conditional import ConditionalMixture
from globular.estimators.inputs import Input, open_incomplete
from globular.estimators.mixture_starts import GivenStart, starting_mixture
from globular.estimators.mixtures import Run, Starting
from globular.estimators.running import exhaust
from globular.estimators.validation import check_weights
from globular.estimators.weights import Weights
from globular.model.clock import Clock
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import I64
from globular.seam.shard import Shard
from globular.threads import resolve_threads


class IncompleteMixture(ConditionalMixture):
    """Base of the mixtures that are fitted to rows of which some entries are not known."""

    init_params: str

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, missing: bool = False) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array, data frame, source (see :mod:`globular.io`) or path, of shape (n_samples, n_features)
            Rows of any real type. A path or source may be larger than memory.
        y : ignored
        sample_weight : array of shape (n_samples,), default=None
            Weight of every row; a row of weight 2 counts as two rows, one of weight 0 as none.
        missing : bool, default=False
            Whether NaN is a value that is not known. Rows, which lie in memory then, count with the columns that are
            known of them, by exact EM to a tenth of `tol`. Otherwise NaN is an error.

        Returns
        -------
        self
        """
        rows = open_incomplete(self, X, reset=True) if missing else None
        if rows is None or not np.isnan(rows).any():
            return super().fit(X, y, sample_weight)
        self._validate_params()
        exhaust(self._begin_with(self._open_incomplete(rows, sample_weight), Clock(), False))
        self.labels_ = self.predict(X, missing=True).astype(np.int32)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None, *, missing: bool = False) -> I64:
        """Fit, and return the most likely component of every row; `missing` as in `fit`."""
        return self.fit(X, sample_weight=sample_weight, missing=missing).predict(X, missing=missing)

    def _open_incomplete(self, rows: NDArray[Any], sample_weight: Any) -> Input:
        """Rows that count with what is known of them, and filled ones, drawn from one Gaussian, to find a start on."""
        names = vars(self).get("feature_names_in_")
        weights = Weights.of(check_weights(sample_weight, len(rows)), self.n_components)
        counted = choose_rows(rows, weights.rows)
        unknown = np.isnan(counted).all(axis=0)
        if unknown.any():
            those = "" if weights.rows is None else " in the rows of positive weight"
            column = unknown.argmax() if names is None else repr(names[unknown.argmax()])
            raise ValueError(f"X: of column {column} no value is known{those}; leave the column out")
        incomplete = IncompleteRows.of(counted, weights.values, resolve_threads(self.n_threads))
        one = incomplete.one_gaussian()
        drawn = IncompleteRows.of(rows).drawn(one, check_random_state(self.random_state)).astype(rows.dtype, copy=False)
        data = self._open(drawn, sample_weight, reset=True)
        if names is not None:
            self.feature_names_in_ = names
        return replace(data, incomplete=incomplete)

    def _start_incomplete(
        self, data: Input, rows: IncompleteRows, given: GivenStart, options: EMOptions, random: np.random.RandomState
    ) -> Starting:
        limits = rows.limits(self.reg_covar)
        within = replace(options, limits=limits)

        def begin(shard: Shard) -> Generator[Step[Any], None, GaussianParameters]:
            return starting_mixture(shard, self.n_components, self.init_params, given, within, random)

        if self.init_params == "kmeans" and given.is_empty and self.n_components > 1 and self.max_iter > 0:
            start = yield from search_start(rows, data.shard, self.n_components, begin, options, limits, random)
        else:
            start = yield from begin(data.shard)
        return Run(em_by(rows.expect, start, replace(options, tol=TOL_SHARE * options.tol), limits), start)
