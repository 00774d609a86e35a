"""What all mixture estimators share: the course of a fit, and everything that a fitted mixture answers."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from operator import index
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.em import CONVERGED as EM_CONVERGED
from globular.algorithms.em import ROUNDED
from globular.algorithms.steps import Step, in_units
from globular.algorithms.variational import CONVERGED as VARIATIONAL_CONVERGED
from globular.backends.cpu import CpuShard, soft
from globular.backends.cpu.memory import mixture_bytes
from globular.backends.mapped import on_arrays
from globular.estimators.distributed import lazily
from globular.estimators.fitted import check_common, check_covariances, check_weights_sum, checked_floats
from globular.estimators.inputs import Input, check_allocation, mean_variance, open_input
from globular.estimators.running import Fit, exhaust, warn_user
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.history import History, Record
from globular.model.statistics import F64, I64
from globular.threads import resolve_threads

Result = TypeVar("Result")
Model = TypeVar("Model")
Values = TypeVar("Values", bound=NDArray[Any])

_BEYOND = "X: a mean or a covariance overflows float64; scale the columns of X to similar sizes, about 1"
"""What a fit says that has ended in nothing."""


class MixtureEstimator(DensityMixin, BaseEstimator):
    """Base of the mixtures: subclasses say which steps to run (`_steps`) and take over a step (`_take_over`)."""

    _weights_are_counts = False
    """Whether a weight of two is two rows rather than twice as much as one."""
    n_components: int
    covariance_type: str
    weights: str
    reg_covar: float
    n_init: int
    max_iter: int
    max_time: float | None
    random_state: Any
    warm_start: bool
    n_threads: int | None
    means_: F64
    weights_: F64
    covariances_: F64

    @abstractmethod
    def _steps(
        self, data: Input, continued: GaussianParameters | None, random_state: np.random.RandomState
    ) -> Iterator[Step[Any]]:
        """Find a start (or take `continued`, the last fit), publish it, and run the algorithm once."""

    @abstractmethod
    def _take_over(self, step: Step[Any]) -> GaussianParameters:
        """The mixture of a step; may set attributes that are not part of it."""

    def _check_fit(self, data: Input) -> None:
        """Refuse parameters that do not go with the data or with each other."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the mixture.

        Parameters
        ----------
        X : array, data frame, :class:`~globular.data.sources.Source` or path of shape (n_samples, n_features)
            Dense rows of any real type. A path or source may be larger than memory.
        y : ignored
        sample_weight : array of shape (n_samples,), default=None
            Weight of every row; a row of weight 2 counts as two rows, one of weight 0 as none.

        Returns
        -------
        self
        """
        exhaust(self._begin(X, sample_weight, watched=False))
        return self

    def fit_iter(self, X: Any, y: Any = None, sample_weight: Any = None) -> Iterator[Record]:
        """Fit as a generator: one record per iteration, the fitted attributes current at every yield.

        Leave the loop whenever you like; the attributes stay as they are.

        Examples
        --------
        >>> import numpy as np
        >>> from globular import GaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(500, 2))
        >>> model = GaussianMixture(n_components=3, tol=0, random_state=0)
        >>> for record in model.fit_iter(X):
        ...     if record.iteration == 3:
        ...         break
        >>> model.n_iter_
        3
        """
        return self._begin(X, sample_weight, watched=True)

    def _begin(self, X: Any, sample_weight: Any, *, watched: bool) -> Iterator[Record]:
        """Check everything, and start; watched: somebody looks at the attributes after every iteration."""
        self._validate_params()
        started = time.perf_counter()
        data = self._open(X, sample_weight, reset=True)
        if data.n_rows < self.n_components:
            raise ValueError(
                f"n_samples={data.n_rows} should be >= n_components={self.n_components}; ask for fewer components"
            )
        mean_variance(data)  # for its check
        self._check_fit(data)
        continued = self._mixture() if self.warm_start and hasattr(self, "means_") else None
        if continued is not None and continued.means.shape != (self.n_components, data.n_columns):
            raise ValueError(
                f"warm_start: the last fit had means of shape {continued.means.shape}, this one needs "
                f"{(self.n_components, data.n_columns)}; set warm_start=False to begin anew"
            )
        say_most(self._most_bytes(data))
        return self._run(data, continued, started, watched)

    def _most_bytes(self, data: Input) -> int | None:
        """The most memory that a fit takes beside X; None where it is said later."""
        return mixture_bytes(
            data.n_rows, data.n_columns, self.n_components, self.covariance_type,
            n_threads=resolve_threads(self.n_threads),
        )  # fmt: skip

    def _run(
        self, data: Input, continued: GaussianParameters | None, started: float, watched: bool
    ) -> Iterator[Record]:
        """All runs of a fit, the best of which is kept."""
        random_state = check_random_state(self.random_state)
        fit = Fit(self, data.n_rows, max_iter=self.max_iter, max_time=self.max_time, started=started, watched=watched)

        def finish(reason: str) -> float:
            self.stopped_ = reason or "max_iter"
            self._check_finite()
            return self.lower_bound_

        try:
            yield from fit.best_of(
                1 if continued else self.n_init,
                lambda: in_units(self._steps(data, continued, random_state), data.unit),
                partial(self._publish, data),
                finish,
                lambda step: None,
            )
        except np.linalg.LinAlgError as error:
            raise ValueError(f"{_BEYOND} ({error})") from error
        if self.stopped_ == "max_iter" and self.max_iter > 0:
            warn_user(
                f"the best run did not converge in {self.max_iter} iterations; raise max_iter or tol",
                ConvergenceWarning,
            )

    def _check_finite(self) -> None:
        """Refuse to hand out what is not a mixture."""
        found = [self.weights_, self.means_, getattr(self, "covariances_", 0.0)]
        if not all(np.isfinite(values).all() for values in found) or np.isnan(self.lower_bound_):
            raise ValueError(_BEYOND)

    def _publish(self, data: Input, step: Step[Any], history: History) -> None:
        self._publish_mixture(self._take_over(step), data, history, step.stopped)

    def _publish_mixture(self, mixture: GaussianParameters, data: Input, history: History, stopped: str) -> None:
        self.weights_ = mixture.weights
        self.means_ = mixture.means
        self.covariances_ = mixture.covariances
        self.precisions_cholesky_ = mixture.factors
        self.precisions_ = mixture.precisions
        self.converged_ = stopped in (EM_CONVERGED, ROUNDED, VARIATIONAL_CONVERGED)
        self.n_iter_ = len(history)
        self.history_ = history
        self.lower_bounds_ = [record.objective / data.unit / data.shard.total_weight for record in history]
        self.lower_bound_ = self.lower_bounds_[-1] if history else -np.inf
        self.n_distances_ = sum(record.n_distances for record in history)

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> I64:
        """Fit, and return the most likely component of every row."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    @lazily
    def predict(self, X: Any) -> I64:
        """The most likely component of every row, (n_samples,)."""
        return self._per_row(X, soft.most_likely)

    @lazily
    def predict_proba(self, X: Any) -> F64:
        """The probability of every component given the row, (n_samples, n_components)."""
        check_is_fitted(self)
        return self._per_row(X, soft.responsibilities, n_results=len(self.means_))

    @lazily
    def score_samples(self, X: Any) -> F64:
        """The log-likelihood of every row, (n_samples,)."""
        return self._per_row(X, soft.score_rows)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The mean log-likelihood of a row, weighted if there are weights."""
        check_is_fitted(self)
        data = self._open(X, sample_weight, reset=False)
        return self._log_likelihood(data) / data.shard.total_weight

    def aic(self, X: Any) -> float:
        """Akaike's information criterion on X; the lower the better."""
        check_is_fitted(self)
        return 2 * self._n_parameters() - 2 * self._log_likelihood(self._open(X, None, reset=False))

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion on X; the lower the better."""
        check_is_fitted(self)
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
        n_rows = index(n_samples)
        if n_rows < 1:
            raise ValueError(f"n_samples={n_samples!r} must be at least 1")
        return self._mixture().sample(n_rows, check_random_state(self.random_state))

    def _open(self, X: Any, sample_weight: Any, *, reset: bool) -> Input:
        return open_input(
            self, X, sample_weight, reset=reset, accept_sparse=False, n_threads=self.n_threads,
            at_least=self._n_rows_wanted() if reset else 1, are_counts=self._weights_are_counts,
        )  # fmt: skip

    def _n_rows_wanted(self) -> int:
        """As many rows as there are components."""
        return self.n_components

    def _mixture(self) -> GaussianParameters:
        means = checked_floats(self.means_, "means_", (None, self.n_features_in_))
        return GaussianParameters(
            checked_floats(self.weights_, "weights_", means.shape[:1]),
            means,
            checked_floats(self.covariances_, "covariances_", FAMILIES[self.covariance_type].shape(*means.shape)),
            self.covariance_type,
        )

    def _check_state(self) -> None:
        """Refuse fitted attributes that do not go together; what has been read from a file may be anything."""
        check_common(self, "lower_bound_")
        mixture = self._mixture()
        if mixture.n_components != self.n_components:
            raise ValueError(
                f"means_ holds {mixture.n_components} components, n_components={self.n_components}; fit again"
            )
        check_weights_sum(mixture.weights)
        self._check_covariances(mixture)

    def _check_covariances(self, mixture: GaussianParameters) -> None:
        """Check covariances and what follows from them."""
        check_covariances(mixture)
        for name in ("precisions_", "precisions_cholesky_"):
            checked_floats(getattr(self, name), name, mixture.factors.shape)

    def _n_parameters(self) -> int:
        return self._mixture().n_parameters(learned_weights=self.weights == "learned")

    def _per_part(
        self, X: Any, function: Callable[[CpuShard, GaussianParameters], Result], n_results: int = 1
    ) -> list[Result]:
        """A function of rows with so many results for each, on whatever holds them, one part after the other."""
        check_is_fitted(self)
        mixture = self._mixture()
        data = self._open(X, None, reset=False)
        check_allocation(8 * data.n_rows * n_results, f"{n_results} numbers for every row", "pass X in parts")
        return on_arrays(data.shard, function, mixture)

    def _per_row(
        self, X: Any, function: Callable[[CpuShard, GaussianParameters], Values], n_results: int = 1
    ) -> Values:
        """The same as one array."""
        results = self._per_part(X, function, n_results)
        return results[0] if len(results) == 1 else cast(Values, np.concatenate(results))

    def _log_likelihood(self, data: Input) -> float:
        return sum(on_arrays(data.shard, weighted_sum, soft.score_rows, self._mixture()))


def say_most(n_bytes: int | None) -> None:
    """Say what a fit takes at most."""
    if n_bytes is not None:
        check_allocation(0, "the fit, beside X", "take fewer components", at_most=n_bytes)


def weighted_sum(part: CpuShard, score: Callable[[CpuShard, Model], F64], model: Model) -> float:
    """Σ w of what a model says of every row."""
    scores = score(part, model)
    return float(part.weights @ scores if len(part.weights) else scores.sum())
