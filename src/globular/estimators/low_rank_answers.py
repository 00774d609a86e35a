"""What a fitted `LowRankGaussianMixture` says of rows: components, densities, factors, and rows without their noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.mixtures.low_rank import find_low_rank_members
from globular.estimators.distributed import lazily
from globular.estimators.fitted import checked_floats
from globular.estimators.memory import check_allocation
from globular.estimators.mixture import GaussianMixture
from globular.estimators.mixtures import MixtureEstimator
from globular.estimators.weights import EXACT_BELOW
from globular.model.cholesky import with_factors
from globular.model.gaussian import GaussianParameters
from globular.model.low_rank import LowRankParameters
from globular.model.statistics import F64, I64
from globular.seam.answers import Blurred, LowRank
from globular.seam.passes import Labels
from globular.seam.shard import Shard, answer
from globular.threads import resolve_threads


class LowRankAnswers(ClassNamePrefixFeaturesOutMixin, TransformerMixin, MixtureEstimator):
    """Base of `LowRankGaussianMixture`, which says how it is fitted."""

    loadings_: F64
    noise_variances_: F64
    noise_regressions_: F64
    n_candidates: int
    _last_mixture: Any

    @property
    def _C_prime(self) -> int:
        return min(self.n_candidates, self.n_components)

    def _label(self, shard: Shard) -> Labels:
        mixture = self._mixture()
        asked = self._asked(shard, mixture, exact=mixture.n_components < EXACT_BELOW)
        return np.asarray(answer(shard, asked, "components"), dtype=np.int32)

    def _asked(self, shard: Shard, mixture: LowRankParameters, *, exact: bool) -> LowRank:
        """A mixture to be asked with all components, or with the K(n) that cells lead to."""
        if exact or self._C_prime >= mixture.n_components:
            return LowRank(mixture)
        find_low_rank_members(shard, mixture, self._C_prime, np.random.default_rng(0))
        return LowRank(mixture, self._C_prime)

    @lazily
    def predict(self, X: Any, exact: bool = True, *, min_log_density: float | None = None) -> I64:
        """The most likely component of every row, (n_samples,).

        Parameters
        ----------
        X : array, data frame, source or path
        exact : bool, default=True
            False looks only at the components of a few of about √C cells of means.
        min_log_density : float, optional
            Rows whose log-density (`score_samples`) is below are noise, and get −1.
        """
        return self._without_noise(X, self._say(X, "components", 1, exact=exact), min_log_density, exact=exact)

    @lazily
    def score_samples(self, X: Any, exact: bool = True) -> F64:
        """The log-likelihood of every row, (n_samples,).

        Parameters
        ----------
        X : array, data frame, source or path
        exact : bool, default=True
            False gives a lower bound from the `n_candidates` components that are found by way of cells.
        """
        return self._say(X, "log_densities", 1, exact=exact)

    @lazily
    def transform(self, X: Any, exact: bool = True) -> F64:
        """The factors of every row under its most likely component, (n_samples, n_factors).

        They are the expectation of the factors given the row. Those of different components have nothing to do with
        each other: `predict` says whose they are.

        Parameters
        ----------
        X : array, data frame, source or path
        exact : bool, default=True
            See `predict`.
        """
        check_is_fitted(self)
        return self._say(X, "factors", self.loadings_.shape[1], exact=exact)

    @lazily
    def reconstruct(self, X: Any, noise_std: Any = None, *, exact: bool = True) -> F64:
        """The expected rows without their noise, (n_samples, n_features).

        Parameters
        ----------
        X : array, data frame, source or path
        noise_std : float or array of shape (n_features,), optional
            Standard deviation of noise that has been added to rows like those of the fit, the same for all columns or
            of each; what is expected is the row before. By default the noise of the model itself is taken off: what
            factors say of the row remains.
        exact : bool, default=True
            False takes the mean over the `n_candidates` components that are found by way of cells.
        """
        check_is_fitted(self)
        mixture = self._mixture()
        D = self.n_features_in_
        if noise_std is None:
            return self._say(X, "reconstruction", D, exact=exact, noise=mixture.noise)
        std = np.atleast_1d(np.asarray(noise_std, dtype=np.float64))
        if std.shape not in ((1,), (D,)) or not (np.isfinite(std) & (std > 0)).all():
            raise ValueError(
                f"noise_std must be a positive number, or {D} of them, got {noise_std!r}; leave it out for the noise "
                "of the model"
            )
        noisier, added = mixture.noisier(std**2), np.broadcast_to(std**2, (D,))
        if mixture.coordinates is None:
            return self._say(X, "reconstruction", D, exact=exact, mixture=noisier, noise=added[None, :])
        return self._reconstruct_by_matrices(X, mixture, noisier, added, exact=exact)

    def _reconstruct_by_matrices(
        self, X: Any, mixture: LowRankParameters, noisier: LowRankParameters, added: F64, *, exact: bool
    ) -> F64:
        """Rows before noise was added: where that of the model is correlated, both together are D × D."""
        (C, D), data = mixture.means.shape, self._open(X, None, reset=False)
        check_allocation(
            8 * (4 * C * D * D + data.n_rows * D), f"{C} matrices of {D} columns, and the rows",
            "fit with correlated_noise=False, whose noise and what was added are sums of variances",
        )  # fmt: skip
        blurred = GaussianParameters(mixture.weights, mixture.in_columns().means, mixture.covariances(added), "full")
        asked = self._asked(data.shard, noisier, exact=exact)  # leaves the components to look at with the rows
        found = answer(data.shard, Blurred(blurred, added, asked.n_candidates), "reconstruction")
        return found.astype(data.dtype, copy=False)

    def to_full(self) -> GaussianMixture:
        """The same mixture with its covariance matrices written out: for marginals, conditions, plots and exports.

        Returns
        -------
        GaussianMixture
            Its covariances are n_components matrices of n_features² numbers.

        Examples
        --------
        >>> import numpy as np
        >>> from globular import LowRankGaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(200, 5))
        >>> LowRankGaussianMixture(2, 1, random_state=0).fit(X).to_full().marginal([3, 0]).means_.shape
        (2, 2)
        """
        check_is_fitted(self)
        mixture = self._mixture()
        C, D = mixture.means.shape
        check_allocation(4 * 8 * C * D * D, f"{C} matrices of {D} columns", "ask this mixture itself")
        covariances, _ = with_factors(mixture.covariances(), np.zeros(D))  # lifted where rounding leaves no factor
        made = GaussianMixture.from_parameters(mixture.weights, mixture.in_columns().means, covariances)
        made.set_params(random_state=self.random_state, n_threads=self.n_threads)
        if "feature_names_in_" in vars(self):
            made.feature_names_in_ = self.feature_names_in_
        return made

    def _say(
        self,
        X: Any,
        want: str,
        n_results: int,
        *,
        exact: bool,
        mixture: LowRankParameters | None = None,
        noise: F64 | None = None,
    ) -> Any:
        """What the mixture, or another, says of every row of X: `n_results` numbers for each."""
        check_is_fitted(self)
        data = self._open(X, None, reset=False)
        check_allocation(8 * data.n_rows * n_results, f"{n_results} numbers for every row", "pass X in parts")
        asked = self._asked(data.shard, self._mixture() if mixture is None else mixture, exact=exact)
        found = answer(data.shard, replace(asked, noise=noise), want)
        return found.astype(data.dtype, copy=False) if want in ("factors", "reconstruction") else found

    def _mixture(self) -> Any:
        """The fitted mixture; the last one as long as nobody has changed an attribute."""
        regressions: Any = self.__dict__.get("noise_regressions_")
        given = self.weights_, self.means_, self.loadings_, self.noise_variances_
        last = self.__dict__.get("_last_mixture")
        if last is None or not (last[0].holds(*given) and np.array_equal(last[1], regressions)):
            last = self._last_mixture = self._checked(regressions)
        return last[2]

    def _checked(self, regressions: Any) -> tuple[LowRankParameters, F64 | None, LowRankParameters]:
        """Copies of the attributes, and the mixture that they make."""
        means = checked_floats(self.means_, "means_", (None, self.n_features_in_))
        C, D = means.shape
        columns = LowRankParameters(
            checked_floats(self.weights_, "weights_", (C,)).copy(),
            means.copy(),
            checked_floats(self.loadings_, "loadings_", (C, None, D)).copy(),
            checked_floats(self.noise_variances_, "noise_variances_", (C, D), positive=True).copy(),
        )
        if regressions is None:
            return columns, None, columns
        T = checked_floats(regressions, "noise_regressions_", (D, D)).copy()
        if not (np.array_equal(T, np.tril(T)) and (np.diag(T) == 1).all()):
            raise ValueError("noise_regressions_ must be lower triangular with ones on its diagonal; fit again")
        return columns, T, columns.to_coordinates(T, resolve_threads(self.n_threads))
