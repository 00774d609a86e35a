"""What all mixture estimators share: the course of a fit, and what a fitted one says of rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Self, cast

import numpy as np
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.infinite import infinite
from globular.algorithms.kmeans import variational
from globular.algorithms.mixtures import chunky, em, nested
from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.steps import Finding, Run, Step, in_units, mapped, result_of
from globular.estimators.base import Estimator
from globular.estimators.checks import (
    check_allocation,
    check_common,
    check_components,
    check_indices,
    checked_floats,
    checked_limit,
    mixture_bytes,
    rows_to_draw,
)
from globular.estimators.elsewhere import lazily, where_x_is
from globular.estimators.inputs import Input, mean_variance
from globular.estimators.parameters import AUTO, FROM_ZERO, NOT_NEGATIVE, Constraints
from globular.estimators.running import Clock, Fit, warn_of_thin, warn_user
from globular.estimators.starts import continues, filled_up, spare_centers
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.exponential import ExponentialMixture
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.given import GivenStart
from globular.model.history import KMEANS, SEEDS, History, Record
from globular.model.noise import Noise
from globular.model.statistics import F64, I64
from globular.seam.answers import Answer
from globular.seam.passes import Labels
from globular.seam.shard import Shard, answer
from globular.threads import resolve_threads

CONVERGED_REASONS = frozenset(
    {em.CONVERGED, em.ROUNDED, variational.CONVERGED, *chunky.ENDINGS, infinite.GROWN, infinite.CONVERGED}
) | {nested.ENOUGH}
"""Reasons to stop that make `converged_` true."""
N_CANDIDATES = 5
"""C′ where it is not given."""
_BEYOND = "X: a mean or a covariance overflows float64; scale the columns of X to similar sizes, about 1"
"""What a fit says that has ended in nothing."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Means while a start is found, fewer than there shall be or all of them, with one variance for all."""

    means: F64
    variance: float


class MixtureEstimator(DensityMixin, Estimator):
    """Base of the mixtures: subclasses say how a run begins (`_start`), and may take more than the mixture from it."""

    _constraints: ClassVar[Constraints] = {"reg_covar": [NOT_NEGATIVE, AUTO], "max_iter": [FROM_ZERO]}
    _on_cards = "GaussianMixture"
    _derived: ClassVar[Mapping[str, str]] = {}
    """Attributes that follow from another one, which answers are made from; setting them would change no answer."""
    _by_hand: ClassVar[tuple[str, ...]] = ()
    """Attributes that are a mixture when a user sets all of them on a model without a fit."""
    n_components: int
    covariance_type: str
    reg_covar: float | str
    n_init: int
    warm_start: bool
    means_: F64
    weights_: F64
    covariances_: F64
    _last_mixture: Any

    def __sklearn_is_fitted__(self) -> bool:
        if self._by_hand and not hasattr(self, "n_features_in_") and vars(self).keys() >= set(self._by_hand):
            made = copy(self)
            made.n_features_in_ = np.atleast_1d(self.means_).shape[-1]
            check_components(self.n_components, (mixture := made._mixture()).weights)
            self._check_mixture(mixture)
            self._set(mixture)
        return super().__sklearn_is_fitted__()

    def _set(self, mixture: Any) -> Self:
        """Take parameters over as if a fit had found them, without an iteration."""
        self.n_features_in_ = mixture.n_features
        self._publish_mixture(mixture, np.dtype(np.float64))
        self.lower_bounds_: list[float] = []
        self.history_, self.lower_bound_, self.converged_ = History(), -np.inf, False
        self.n_iter_ = self.n_distances_ = 0
        self.stopped_ = "no fit: made from given parameters"
        return self

    @property
    def _card_bytes_per_row(self) -> int:
        # K(n), its shares and their order, and nominees from a few cells
        n_candidates = getattr(self, "n_candidates", N_CANDIDATES)
        return super()._card_bytes_per_row + 64 * (n_candidates if isinstance(n_candidates, int) else N_CANDIDATES)

    @abstractmethod
    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        """Find a start, as far as it is not given, and begin one run of the algorithm."""

    def _take_over(self, model: Any) -> GaussianParameters:
        """The mixture of a step's model; may set attributes that are not part of it."""
        return cast(GaussianParameters, getattr(model, "mixture", model))

    def _isotropic(self, means: F64, variance: float) -> Any:
        """The mixture that a start stands for while it is found: equal weights and one variance."""
        return isotropic_mixture(means, variance, self.covariance_type)

    def _check_fit(self, data: Input) -> None:
        """Refuse parameters that do not go with the data or with each other."""

    def _given(self, data: Input) -> GivenStart:
        """The parts of a start that the parameters hold."""
        return GivenStart(self.covariance_type)

    def _last_fit(self, data: Input) -> GivenStart:
        """Where the last fit ended."""
        mixture = self._mixture()
        if mixture.means.shape != (self.n_components, data.n_columns):
            raise ValueError(
                f"warm_start: the last fit had means of shape {mixture.means.shape}, this one needs "
                f"{(self.n_components, data.n_columns)}; set warm_start=False to begin anew"
            )
        covariances = getattr(mixture, "covariances", None)  # families have none
        parts = mixture.weights, mixture.means, covariances
        return GivenStart(self.covariance_type, *parts, continues=True, bound=getattr(self, "lower_bound_", -np.inf))

    def _most_bytes(self, data: Input) -> int | None:
        """The most memory that a fit takes beside X; None where it is said later."""
        return mixture_bytes(
            data.n_rows, data.n_columns, self.n_components, self.covariance_type,
            n_threads=resolve_threads(self.n_threads),
        )  # fmt: skip

    def _run(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        random_state = check_random_state(self.random_state)
        limits = cache(lambda: covariance_limits(data.shard, EMOptions(reg_covar=self.reg_covar)))
        fit = Fit(self, data.n_rows, max_iter=self.max_iter, max_time=self.max_time, clock=clock, watched=watched)

        def begin(given: GivenStart) -> Iterator[Step[Any]]:
            self.__dict__.pop("labels_", None)  # those of the last fit
            starting = self._start(data, given, random_state)
            if self.max_iter == 0:
                run = result_of(starting)
            else:
                run = yield from mapped(starting, partial(self._preparing, data, limits))
            if run.start is not None:
                self._publish_mixture(run.start, data.dtype)
                self._publish_course(data, History(), "")
            yield from run.steps

        def finish(reason: str) -> float:
            self.stopped_ = reason or "max_iter"
            self._check_finite()
            self._finish(data)
            return self.lower_bound_

        try:
            mean_variance(data)  # for its check
            self._check_fit(data)
            given = self._given(data)
            given = self._last_fit(data) if continues(self, "means_") else given
            n_bytes = self._most_bytes(data)
            if n_bytes is not None:
                check_allocation(0, "the fit, beside X", "take fewer components", at_most=n_bytes)
            yield from fit.best_of(
                1 if given.continues else self.n_init,
                lambda: in_units(begin(given), data.unit),
                partial(self._publish, data, cache(lambda: spare_centers(data, self.n_components))),
                finish,
                lambda step: None,
            )
        except np.linalg.LinAlgError as error:
            raise ValueError(f"{_BEYOND} ({error})") from error
        if self.stopped_ == "max_iter" and self.max_iter > 0:
            warn_user(
                "Best performing initialization did not converge. Try different init parameters, or increase max_iter, "
                f"tol, or check for degenerate data. It took max_iter={self.max_iter} iterations.",
                ConvergenceWarning,
            )
        mixture = self.__dict__.get("_last_mixture")
        if isinstance(mixture, GaussianParameters) and vars(self).get("prior_") is None:
            warn_of_thin(mixture, data.n_rows)

    def _finish(self, data: Input) -> None:
        """Set what a run ends with."""
        self.labels_ = data.answers(self._label)

    def _label(self, shard: Shard) -> Labels:
        """The most likely component of every row."""
        return np.asarray(answer(shard, self._seen(), "components"), dtype=np.int32)

    def _check_finite(self) -> None:
        """Refuse to hand out what is not a mixture."""
        found = [self.weights_, self.means_, getattr(self, "covariances_", 0.0)]
        if not all(np.isfinite(values).all() for values in found) or np.isnan(self.lower_bound_):
            raise ValueError(_BEYOND)

    def _preparing(self, data: Input, limits: Callable[[], CovarianceLimits], step: Step[Any]) -> Step[Any]:
        """A step of the k-means that finds a start, as one of the mixture; steps of a mixture stay as they are.

        Its objective is a lower bound of the log-likelihood of equal weights and one variance σ² = E / (W D), E the sum
        of squared distances: of each row's density the part of its own component,
        −W (log C + D/2 log 2πσ²) − E / 2σ².
        """
        if isinstance(step.model, GaussianParameters | ExponentialMixture):
            return step
        W, C, D, E = data.shard.total_weight, self.n_components, data.n_columns, step.objective
        variance = max(E / (W * D), float(np.mean(limits().reg_covar)), float(limits().smallest.mean()))
        bound = -W * (math.log(C) + 0.5 * D * math.log(2 * math.pi * variance)) - 0.5 * E / variance
        stage = SEEDS if step.stage == SEEDS else KMEANS
        return Step(0, bound, step.n_distances, None, Preparation(step.model, variance), stage=stage)

    def _publish(self, data: Input, spare: Callable[[], F64], step: Step[Any], history: History) -> None:
        if isinstance(step.model, Preparation):
            means = filled_up(step.model.means, self.n_components, spare)
            mixture: Any = self._isotropic(means, step.model.variance)
        else:
            mixture = self._take_over(step.model)
        self._publish_mixture(mixture, data.dtype)
        self._publish_course(data, history, step.stopped)

    def _publish_mixture(self, mixture: GaussianParameters, dtype: np.dtype[Any]) -> None:
        """The parameters in the type of the rows; covariances too close to singular for float32 stay in float64."""
        mixture = mixture.as_numpy()
        self.weights_ = mixture.weights.astype(dtype)
        self.means_ = mixture.means.astype(dtype)
        if dtype == np.float32 and not mixture.family.survives(mixture.covariances, dtype):
            dtype = np.dtype(np.float64)
        self.covariances_ = mixture.covariances.astype(dtype)
        self._last_mixture = mixture

    def _publish_course(self, data: Input, history: History, stopped: str) -> None:
        self.converged_ = stopped in CONVERGED_REASONS
        self.n_iter_ = history[-1].iteration if history else 0
        self.history_ = history
        bounds = [record.objective / data.unit / data.shard.total_weight for record in history]
        self.lower_bounds_ = [bound for bound, record in zip(bounds, history, strict=True) if record.iteration]
        self.lower_bound_ = bounds[-1] if history else -np.inf
        self.n_distances_ = sum(record.n_distances for record in history)

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
        return getattr(self, "weights", "learned") == "learned"

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
        return self._answer(X, "log_densities", lambda _: self._predictive())

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The mean log-likelihood of a row, weighted if there are weights."""
        data = self._open(X, sample_weight, reset=False)
        return self._log_likelihood(data) / data.shard.total_weight

    def aic(self, X: Any) -> float:
        """Akaike's information criterion on X; the lower the better."""
        return -2 * self._total(X)[0] + 2 * self._n_parameters()  # the first refuses a model without a fit

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion on X; the lower the better."""
        log_likelihood, n_rows = self._total(X)
        return self._n_parameters() * math.log(n_rows) - 2 * log_likelihood

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

    def _mixture(self) -> GaussianParameters:
        """The fitted mixture; the last one, with its factors, as long as nobody has changed an attribute."""
        given = self.weights_, self.means_, self.covariances_
        last: GaussianParameters | None = self.__dict__.get("_last_mixture")
        if last is None or last.family is not FAMILIES[self.covariance_type] or not last.holds(*given, self._noise):
            means = checked_floats(self.means_, "means_", (None, self.n_features_in_))
            weights = checked_floats(self.weights_, "weights_", means.shape[:1])
            covariances = checked_floats(
                self.covariances_, "covariances_", FAMILIES[self.covariance_type].shape(*means.shape)
            )
            last = GaussianParameters(weights, means, covariances, self.covariance_type, noise=self._noise).copy()
            self._last_mixture = last
        return last

    def _seen(self) -> GaussianParameters:
        """The components, as the E-step has them."""
        return self._mixture()

    def _predictive(self) -> Any:
        """The density of rows; that of an infinite mixture has components that were not seen."""
        return self._mixture()

    @property
    def _noise(self) -> Noise | None:
        """The component for rows that belong to no other, where the estimator has one."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_last_mixture"}

    def _check_state(self) -> None:
        """Refuse fitted attributes that do not go together; what has been read from a file may be anything."""
        check_common(self, "lower_bound_")
        mixture = self._mixture()
        noise = self._noise  # that of factor analysers has the name for variances
        check_components(self.n_components, mixture.weights, 0.0 if noise is None else noise.weight)
        self._check_mixture(mixture)
        if hasattr(self, "labels_"):
            check_indices(self.labels_, "labels_", (None,), self.n_components, least=0 if noise is None else -1)

    def _check_mixture(self, mixture: GaussianParameters) -> None:
        """Refuse covariances that are not positive (definite)."""
        with np.errstate(all="ignore"):
            positive = mixture.family.is_positive(mixture.covariances) and np.isfinite(mixture.factors).all()
        if not positive:
            raise ValueError(f"covariances_ must be {mixture.family.requirement}; fit again")

    def _n_parameters(self) -> int:
        return self._mixture().n_parameters(learned_weights=self._learns_weights)

    def _answer(self, X: Any, want: str, ask: Callable[[Shard], Any] | None = None, n_results: int = 1) -> Any:
        """What the mixture, or the model that `ask` has for a shard, says of every row: `n_results` numbers for each.

        Densities are float64, what else is no whole number has the type of the rows.
        """
        data = self._open(X, None, reset=False)
        check_allocation(8 * data.n_rows * n_results, f"{n_results} numbers for every row", "pass X in parts")
        found = answer(data.shard, self._mixture() if ask is None else ask(data.shard), want)
        keeps_type = want in ("components", "log_densities")
        return where_x_is(X, found if keeps_type else found.astype(data.dtype, copy=False))

    def _total(self, X: Any) -> tuple[float, int]:
        """The log-likelihood of all rows, and their number."""
        data = self._open(X, None, reset=False)
        return self._log_likelihood(data), data.n_rows

    def _log_likelihood(self, data: Input) -> float:
        totals: list[float] = data.shard.run(Answer(self._predictive(), "total"))
        return float(sum(totals))
