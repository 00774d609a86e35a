"""What a fitted Gaussian mixture says of some of its columns: their mixture, and the other columns given them."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted

from globular.algorithms.mixtures.missing import NUMBERS_PER_BLOCK, IncompleteRows
from globular.estimators.checks import check_allocation
from globular.estimators.elsewhere import lazily
from globular.estimators.inputs import open_incomplete
from globular.estimators.mixtures import MixtureEstimator
from globular.estimators.starts import checked_shape, checked_shares
from globular.estimators.validation import check_weights, naming
from globular.model.conditional import Conditional, marginal
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters, entropy_of
from globular.model.given import GivenStart
from globular.model.statistics import F64, I64
from globular.passes.registry import shard_over
from globular.seam.mixture_passes import Expect
from globular.seam.shard import answer
from globular.threads import resolve_threads

N_TYPICAL = 2000
"""Draws that say how dense rows of a mixture are; larger = scores closer to their limit, about 2 % of them at 2,000."""


class ConditionalMixture(MixtureEstimator):
    """Base of the mixtures of Gaussians, which are closed under taking columns and under knowing some of them."""

    _by_hand: ClassVar[tuple[str, ...]] = ("weights_", "means_", "covariances_")
    _instead_of_setting = "set weights_, means_ and covariances_, or call fit or GaussianMixture.from_parameters(...)"

    @property
    def precisions_(self) -> F64:
        """Inverses of the covariances, in their shape; setting them sets `covariances_`."""
        return self._follows(self._seen().precisions)

    @precisions_.setter
    def precisions_(self, values: Any) -> None:
        precisions = np.asarray(values, dtype=np.float64)
        family = FAMILIES[self.covariance_type]
        if not family.is_positive(precisions):
            raise ValueError(f"precisions must be {family.requirement} for covariance_type={self.covariance_type!r}")
        self.covariances_ = family.inverse(precisions)

    @property
    def precisions_cholesky_(self) -> F64:
        """Factors U of the precisions, U Uᵀ, upper triangular where they are matrices; setting them sets
        `covariances_`."""
        return self._follows(self._seen().factors)

    @precisions_cholesky_.setter
    def precisions_cholesky_(self, values: Any) -> None:
        self.precisions_ = FAMILIES[self.covariance_type].precisions(np.asarray(values, dtype=np.float64))

    def _follows(self, values: F64) -> F64:
        """Numbers that follow from `covariances_`, in their type and not to be written to."""
        found = values.astype(self.covariances_.dtype)
        found.flags.writeable = False
        return found

    @lazily
    def predict(self, X: Any, *, min_log_density: float | None = None, missing: bool = False) -> I64:
        """The most likely component of every row, (n_samples,).

        Parameters
        ----------
        {X, min_log_density, missing}
        """
        if not self._has_holes(X, missing):
            return super().predict(X, min_log_density=min_log_density)
        return self._without_noise(X, self._judged(X, "components"), min_log_density, missing=True)

    @lazily
    def predict_proba(self, X: Any, *, missing: bool = False) -> F64:
        """The probability of every component given the row, (n_samples, n_components); float32 for such rows.

        Parameters
        ----------
        {X, missing}
        """
        return self._judged(X, "probabilities") if self._has_holes(X, missing) else super().predict_proba(X)

    @lazily
    def score_samples(self, X: Any, *, missing: bool = False) -> F64:
        """The log-likelihood of every row, (n_samples,).

        Parameters
        ----------
        {X, missing}
        """
        return self._judged(X, "log_densities") if self._has_holes(X, missing) else super().score_samples(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, missing: bool = False) -> float:
        """The mean log-likelihood of a row, weighted if there are weights.

        Parameters
        ----------
        {X, y, sample_weight, missing}
        """
        if not self._has_holes(X, missing):
            return super().score(X, y, sample_weight)
        densities = self.score_samples(X, missing=True)
        return float(np.average(densities, weights=check_weights(sample_weight, len(densities))))

    def aic(self, X: Any, *, missing: bool = False) -> float:
        """Akaike's information criterion on X, where NaN may be `missing` (see `score`); the lower the better."""
        log_likelihood, _ = self._total(X, missing)
        return 2 * self._n_parameters() - 2 * log_likelihood

    def bic(self, X: Any, *, missing: bool = False) -> float:
        """The Bayesian information criterion on X, where NaN may be `missing` (see `score`); the lower the better."""
        log_likelihood, n_rows = self._total(X, missing)
        return self._n_parameters() * math.log(n_rows) - 2 * log_likelihood

    def icl(self, X: Any, *, missing: bool = False) -> float:
        """The integrated completed likelihood on X; the lower the better.

        It is BIC + 2 Σ_n H_n, H the entropy −Σ_c q log q of a row's responsibilities: components that share their rows
        are dear, so that it counts clusters where BIC counts Gaussians.

        Parameters
        ----------
        {X, missing}

        Examples
        --------
        >>> from globular import GaussianMixture
        >>> model = GaussianMixture.from_parameters([0.5, 0.5], [[0.0], [9.0]], [1.0, 1.0], "spherical")
        >>> X = [[-1.0], [1.0], [8.0], [9.0]]
        >>> bool(model.icl(X) - model.bic(X) < 1e-3)
        True
        """
        if missing := self._has_holes(X, missing):
            q = self._judged(X, "probabilities")
            entropy = -float(np.sum(q * np.log(np.maximum(q, np.finfo(np.float64).tiny))))
        else:
            mixture = self._density() if self._noise is None else self._mixture()
            entropy = entropy_of(mixture, self._open(X, None, reset=False).shard.run(Expect(mixture)))
        return self.bic(X, missing=missing) + 2 * entropy

    def _total(self, X: Any, missing: bool = False) -> tuple[float, int]:
        if not self._has_holes(X, missing):
            return super()._total(X)
        densities = self.score_samples(X, missing=True)
        return float(densities.sum()), len(densities)

    def impute(self, X: Any) -> F64:
        """The rows with their expected values in place of NaN, (n_samples, n_features), in their type.

        The expectation is that of the conditional density given the columns that are known of the row, as of one that
        is no noise.

        Examples
        --------
        >>> from globular import GaussianMixture
        >>> model = GaussianMixture.from_parameters([1.0], [[0.0, 0.0]], [[[1.0, 0.5], [0.5, 1.0]]])
        >>> model.impute([[2.0, float("nan")], [1.0, 5.0]]).tolist()
        [[2.0, 1.0], [1.0, 5.0]]
        """
        rows = self._incomplete(X)
        return rows.filled(self._density()).astype(rows.dtype, copy=False)

    def anomaly_scores(self, X: Any) -> F64:
        """How many standard deviations the log-density of a row is below that of rows of this mixture, (n_samples,).

        The higher, the more of an outlier. NaN is a value that is not known: a row is compared with rows of which the
        same columns are known, so that rows with different holes can be ranked together, which their densities
        (`score_samples`) cannot. Mean and standard deviation are those of 2,000 draws, which each set of known columns
        costs; noise does not count.

        Examples
        --------
        >>> from globular import GaussianMixture
        >>> model = GaussianMixture.from_parameters([1.0], [[0.0, 0.0]], [[[1.0, 0.0], [0.0, 1.0]]])
        >>> usual, half_known, known = model.anomaly_scores([[0.0, 0.0], [5.0, float("nan")], [5.0, 0.0]])
        >>> bool(usual < 0 and 10 < known < half_known)
        True
        """
        rows, mixture = self._incomplete(X), self._density()
        draws, _ = mixture.sample(N_TYPICAL, np.random.RandomState(0))
        found = np.zeros(len(rows.rows))
        for numbers, columns, values in rows.by_kind():
            if len(columns):  # of nothing all densities are one
                part = marginal(mixture, columns)
                own, typical = (self._log_densities(part, each) for each in (values, draws[:, columns]))
                found[numbers] = (typical.mean() - own) / typical.std()
        return found

    def _log_densities(self, mixture: GaussianParameters, rows: F64) -> F64:
        shard = shard_over(np.ascontiguousarray(rows), n_threads=resolve_threads(self.n_threads))
        return np.asarray(answer(shard, mixture, "log_densities"))

    def _judged(self, X: Any, want: str) -> Any:
        """What the columns that are known of every row say: "components", "probabilities" or "log_densities"."""
        rows, mixture = self._incomplete(X), self._mixture()
        if want == "log_densities":
            return np.logaddexp.reduce(rows.log_joint(mixture), axis=1)
        probabilities = rows.probabilities(mixture).astype(rows.dtype, copy=False)
        if want == "probabilities":
            return probabilities
        found = probabilities.argmax(axis=1)
        return np.where(found < len(self.means_), found, -1)  # noise comes last

    def _has_holes(self, X: Any, missing: bool) -> bool:
        """Whether rows are judged by what is known of them: where they ask for it, or have to be and may."""
        check_is_fitted(self)
        allowed = getattr(self, "missing", "error") == "allow"
        return missing or (allowed and bool(np.isnan(open_incomplete(self, X, reset=False)).any()))

    def _incomplete(self, X: Any) -> IncompleteRows:
        """Rows in which NaN stands for a value that is not known."""
        check_is_fitted(self)
        rows = open_incomplete(self, X, reset=False)
        n_numbers = len(self.means_) + 3 * rows.shape[1]
        check_allocation(8 * len(rows) * n_numbers, f"{n_numbers} numbers for every row", "pass X in parts")
        return IncompleteRows.of(rows, n_threads=resolve_threads(self.n_threads))

    def marginal(self, columns: Any) -> Any:
        """The mixture of some of the columns.

        Parameters
        ----------
        columns : int, str or sequence of them
            Numbers of columns, or their names where the fit has seen names. The marginal has them in this order.

        Returns
        -------
        GaussianMixture
            Made from `weights_`, `means_` and `covariances_`; all that follows a fit works.

        Examples
        --------
        >>> from globular import GaussianMixture
        >>> model = GaussianMixture.from_parameters([0.5, 0.5], [[0.0, 1, 2], [3, 4, 5]], [1.0, 2.0], "spherical")
        >>> model.marginal([2, 0]).means_.tolist()
        [[2.0, 0.0], [5.0, 3.0]]
        """
        check_is_fitted(self)
        numbers = self._numbers(columns)
        return self._made(marginal(self._density(), numbers), numbers)

    def condition(self, columns: Any, values: Any, return_std: bool = False) -> Any:
        """The other columns, given the values of some.

        Parameters
        ----------
        columns : int, str or sequence of them
            The columns that are known, by number or by name.
        values : array of shape (n_columns,) or (n_rows, n_columns)
            What is known of them, in the order of `columns`: one row, or many.
        return_std : bool, default=False
            Of many rows, whether to return the standard deviations as well.

        Returns
        -------
        GaussianMixture
            Given one row: the mixture of the other columns, in their order.
        mean : array of shape (n_rows, n_others)
            Given many rows: the expected values of the other columns, which is regression.
        std : array of shape (n_rows, n_others)
            Standard deviations about them, if `return_std`.

        Examples
        --------
        >>> from globular import GaussianMixture
        >>> model = GaussianMixture.from_parameters([1.0], [[0.0, 0.0]], [[[1.0, 0.5], [0.5, 1.0]]])
        >>> given = model.condition([0], [2.0])
        >>> given.means_.tolist(), given.covariances_.tolist()
        ([[1.0]], [[[0.75]]])
        >>> model.condition([0], [[2.0], [4.0]]).tolist()
        [[1.0], [2.0]]
        """
        check_is_fitted(self)
        numbers = self._numbers(columns)
        if len(numbers) == self.n_features_in_:
            raise ValueError("columns names all columns; leave at least one to be told of")
        with naming("values"):
            rows = check_array(np.atleast_1d(values), dtype=np.float64, order="C", ensure_2d=False, input_name="values")
        if rows.ndim > 2 or rows.shape[-1] != len(numbers):
            expected = f"({len(numbers)},) for one row or (n_rows, {len(numbers)})"
            raise ValueError(f"values has shape {rows.shape}, expected {expected}: a value for each of columns")
        given = Conditional.of(self._density(), numbers)
        if rows.ndim == 2:
            means, std = self._moments(given, rows, return_std=return_std)
            return (means, std) if return_std else means
        if return_std:
            raise ValueError("return_std=True needs many rows of values: the answer to one row is a mixture")
        others = np.setdiff1d(np.arange(self.n_features_in_), numbers)
        return self._made(given.mixture(rows, self._responsibilities(given.known, rows[None])[0]), others)

    def _moments(self, given: Conditional, rows: F64, *, return_std: bool) -> tuple[F64, F64]:
        """Means and standard deviations of the other columns, block by block."""
        n_rows, n_others = len(rows), given.others.n_features
        check_allocation(16 * n_rows * n_others, f"{2 * n_others} numbers for every row", "pass values in parts")
        means, std = np.empty((n_rows, n_others)), np.empty((n_rows if return_std else 0, n_others))
        step = max(1, NUMBERS_PER_BLOCK // max(given.known.n_components, self.n_features_in_))
        for begin in range(0, n_rows, step):
            span = slice(begin, begin + step)
            shares = self._responsibilities(given.known, rows[span])
            means[span] = given.expected(rows[span], shares)
            if return_std:
                std[span] = np.sqrt(given.variances(rows[span], shares, means[span]))
        return means, std

    def _responsibilities(self, mixture: GaussianParameters, rows: F64) -> F64:
        shard = shard_over(rows, n_threads=resolve_threads(self.n_threads))
        return np.asarray(answer(shard, mixture, "probabilities"), dtype=np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = getattr(self, "missing", "error") == "allow"
        return tags

    def _density(self) -> GaussianParameters:
        """The mixture that `weights_`, `means_` and `covariances_` are, without noise."""
        return self._mixture().without_noise()

    def _numbers(self, columns: Any) -> I64:
        """The numbers of columns given by number or by name, each of which may occur once."""
        names, D = list(getattr(self, "feature_names_in_", ())), self.n_features_in_
        given = np.atleast_1d(np.asarray(columns)).ravel()
        if given.dtype.kind in "UO":
            unknown = [name for name in given.tolist() if name not in names]
            if unknown:
                known = f"the fit has seen {', '.join(map(str, names))}" if names else "the fit has seen no names"
                raise ValueError(f"columns: there is no column {unknown[0]!r}; {known}")
            given = np.array([names.index(name) for name in given], dtype=np.int64)
        if given.dtype.kind not in "iu" or not len(given):
            raise ValueError(f"columns must be one or more numbers or names of columns, got {columns!r}")
        if given.min() < -D or given.max() >= D:
            raise ValueError(f"columns must be numbers from 0 to {D - 1}, got {columns!r}")
        numbers = np.where(given < 0, given + D, given).astype(np.int64)
        if len(np.unique(numbers)) < len(numbers):
            raise ValueError(f"columns must differ from each other, got {columns!r}")
        return numbers

    def _made(self, mixture: GaussianParameters, columns: I64) -> Any:
        """A mixture of some columns, with their names, as an estimator that answers as this one is set to."""
        kind = import_module("globular").GaussianMixture  # which stands on this module
        made = kind(
            n_components=mixture.n_components, covariance_type=mixture.covariance_type,
            random_state=self.random_state, n_threads=self.n_threads,
        )._set(mixture)  # fmt: skip
        if "feature_names_in_" in vars(self):
            made.feature_names_in_ = self.feature_names_in_[columns]
        return made


def checked_parameters(weights: Any, means: Any, covariances: Any, covariance_type: str) -> GaussianParameters:
    """Parameters that a user gave as a mixture; an error names the one that is wrong."""
    if covariance_type not in FAMILIES:
        raise ValueError(f"covariance_type must be one of {', '.join(FAMILIES)}, got {covariance_type!r}")
    family, shape = FAMILIES[covariance_type], np.shape(means)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"means has shape {shape}, expected (n_components, n_features)")
    means = checked_shape(means, shape, "means")
    weights = checked_shares(weights, shape[0], "weights")
    covariances = checked_shape(covariances, family.shape(*shape), "covariances", f"{covariance_type} covariance")
    if not family.is_positive(covariances):
        raise ValueError(f"covariances must be {family.requirement} for covariance_type={covariance_type!r}")
    return GaussianParameters(weights, means, covariances, covariance_type)


def given_start(weights: Any, means: Any, precisions: Any, C: int, D: int, covariance_type: str) -> GivenStart:
    """From `weights_init`, `means_init` and `precisions_init`; an error names the one that is wrong."""
    family = FAMILIES[covariance_type]
    covariances = None
    if precisions is not None:
        given = checked_shape(precisions, family.shape(C, D), "precisions_init", f"{covariance_type} precision")
        if not family.is_positive(given):
            raise ValueError(f"precisions_init: '{covariance_type} precision' should be {family.requirement}")
        covariances = np.asarray(family.inverse(given))
    if weights is not None:
        weights = checked_shares(weights, C, "weights_init", "weights")
    if means is not None:
        means = checked_shape(means, (C, D), "means_init", "means")
    return GivenStart(covariance_type, weights, means, covariances)
