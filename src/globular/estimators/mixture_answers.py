"""What a fitted mixture says of rows: components, probabilities and densities; and what it is, by its attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular.estimators.arguments import checked_limit, rows_to_draw
from globular.estimators.base import Estimator
from globular.estimators.devices import where_x_is
from globular.estimators.distributed import lazily
from globular.estimators.fitted import check_common, check_components, check_indices, checked_floats
from globular.estimators.inputs import Input, open_input
from globular.estimators.memory import check_allocation
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.noise import Noise
from globular.model.statistics import F64, I64
from globular.seam.answers import Answer
from globular.seam.shard import answer


class MixtureAnswers(DensityMixin, Estimator):
    """Base of `MixtureEstimator`, which says how a fit goes."""

    _derived: ClassVar[Mapping[str, str]] = {}
    """Attributes that follow from another one, which answers are made from; setting them would change no answer."""
    _weights_are_counts = False
    """Whether a weight of two is two rows rather than twice as much as one."""
    n_components: int
    covariance_type: str
    reg_covar: float | str
    n_init: int
    max_iter: int
    max_time: float | None
    random_state: Any
    warm_start: bool
    n_threads: int | None
    means_: F64
    weights_: F64
    covariances_: F64

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._derived:
            raise AttributeError(f"{name} follows from {self._derived[name]}; set that, {self._instead_of_setting}")
        super().__setattr__(name, value)

    def _derive(self, **arrays: F64) -> None:
        """Publish attributes that follow from another one, as arrays that cannot be written to."""
        for name, array in arrays.items():
            self.__dict__[name] = array.view()
            self.__dict__[name].flags.writeable = False

    @property
    def _learns_weights(self) -> bool:
        """Whether components have mixing weights of their own."""
        return True

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> I64:
        """Fit, and return the most likely component of every row."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    @lazily
    def predict(self, X: Any, *, min_log_density: float | None = None) -> I64:
        """The most likely component of every row, (n_samples,).

        Rows whose log-density (`score_samples`) is below `min_log_density` are noise, and get −1.
        """
        return self._without_noise(X, self._answer(X, "components"), min_log_density)

    def _without_noise(self, X: Any, labels: I64, min_log_density: float | None, **how: bool) -> I64:
        """The labels, −1 for rows of less density; `how` to score them."""
        if min_log_density is None:
            return labels
        labels[self.score_samples(X, **how) < checked_limit("min_log_density", min_log_density)] = -1
        return labels

    @lazily
    def predict_proba(self, X: Any) -> F64:
        """The probability of every component given the row, (n_samples, n_components); float32 for such rows."""
        check_is_fitted(self)
        return self._answer(X, "probabilities", n_results=len(self.means_) + 1)

    @lazily
    def score_samples(self, X: Any) -> F64:
        """The log-likelihood of every row, (n_samples,)."""
        return self._answer(X, "log_densities")

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The mean log-likelihood of a row, weighted if there are weights."""
        data = self._open(X, sample_weight, reset=False)
        return self._log_likelihood(data) / data.shard.total_weight

    def aic(self, X: Any) -> float:
        """Akaike's information criterion on X; the lower the better."""
        data = self._open(X, None, reset=False)
        return 2 * self._n_parameters() - 2 * self._log_likelihood(data)

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion on X; the lower the better."""
        data = self._open(X, None, reset=False)
        return self._n_parameters() * math.log(data.n_rows) - 2 * self._log_likelihood(data)

    def sample(self, n_samples: int = 1) -> tuple[F64, I64]:
        """Draw rows from the mixture, grouped by component.

        Returns
        -------
        X : array of shape (n_samples, n_features)
        y : array of shape (n_samples,)
            The component of every row.
        """
        check_is_fitted(self)
        return self._mixture().sample(rows_to_draw(n_samples), check_random_state(self.random_state))

    def _open(self, X: Any, sample_weight: Any, *, reset: bool) -> Input:
        return open_input(
            self, X, sample_weight, reset=reset, accept_sparse=False, n_threads=self.n_threads,
            at_least=self._n_rows_wanted() if reset else 1, are_counts=self._weights_are_counts,
        )  # fmt: skip

    def _n_rows_wanted(self) -> int:
        """As many rows as there are components."""
        return self.n_components

    def _mixture(self) -> GaussianParameters:
        """The fitted mixture; the last one, with its factors, as long as nobody has changed an attribute."""
        given = self.weights_, self.means_, self.covariances_
        last: GaussianParameters | None = self.__dict__.get("_last_mixture")
        if last is None or last.family is not FAMILIES[self.covariance_type] or not last.holds(*given, self._noise):
            last = self._last_mixture = self._checked_mixture()
        return last

    def _seen(self) -> GaussianParameters:
        """The components, as the E-step has them."""
        return self._mixture()

    @property
    def _noise(self) -> Noise | None:
        """The component for rows that belong to no other, where the estimator has one."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_last_mixture"}

    def _checked_mixture(self) -> GaussianParameters:
        means = checked_floats(self.means_, "means_", (None, self.n_features_in_))
        return GaussianParameters(
            checked_floats(self.weights_, "weights_", means.shape[:1]),
            means,
            checked_floats(self.covariances_, "covariances_", FAMILIES[self.covariance_type].shape(*means.shape)),
            self.covariance_type,
            noise=self._noise,
        ).copy()

    def _check_state(self) -> None:
        """Refuse fitted attributes that do not go together; what has been read from a file may be anything."""
        check_common(self, "lower_bound_")
        mixture = self._mixture()
        noise = self._noise  # that of factor analysers has the name for variances
        check_components(self.n_components, mixture.weights, 0.0 if noise is None else noise.weight)
        self._check_covariances(mixture)
        if hasattr(self, "labels_"):
            least = 0 if noise is None else -1
            check_indices(self.labels_, "labels_", (None,), self.n_components, least=least)

    def _check_covariances(self, mixture: GaussianParameters) -> None:
        """Refuse covariances that are not positive (definite)."""
        with np.errstate(all="ignore"):
            positive = mixture.family.is_positive(mixture.covariances) and np.isfinite(mixture.factors).all()
        if not positive:
            raise ValueError(f"covariances_ must be {mixture.family.requirement}; fit again")

    def _n_parameters(self) -> int:
        return self._mixture().n_parameters(learned_weights=self._learns_weights)

    def _answer(self, X: Any, want: str, model: Any = None, n_results: int = 1) -> Any:
        """What a model, by default the mixture, says of every row of X: `n_results` numbers for each."""
        data = self._open(X, None, reset=False)
        check_allocation(8 * data.n_rows * n_results, f"{n_results} numbers for every row", "pass X in parts")
        found = answer(data.shard, self._mixture() if model is None else model, want)
        return where_x_is(X, found.astype(data.dtype, copy=False) if want == "probabilities" else found)

    def _log_likelihood(self, data: Input) -> float:
        totals = data.shard.run(Answer(self._mixture(), "total"))
        return float(sum(totals))
