"""`GaussianMixture`: exact EM behind scikit-learn's names."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from numbers import Integral, Real
from operator import index
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.em import CONVERGED, EMOptions, em
from globular.algorithms.steps import Step
from globular.backends.cpu import CpuShard, soft
from globular.backends.stream import StreamShard
from globular.estimators.inputs import Input, open_input
from globular.estimators.mixture_starts import STARTS, GivenStart, starting_mixture
from globular.estimators.running import Fit, exhaust
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.history import History, Record
from globular.model.statistics import F64, I64

logger = logging.getLogger("globular")

ALGORITHMS: dict[str, Callable[..., Iterator[Step[GaussianParameters]]]] = {"em": em}
Values = TypeVar("Values", bound=NDArray[Any])


class GaussianMixture(DensityMixin, BaseEstimator):
    """Gaussian mixture model fitted by expectation maximisation.

    A drop-in for :class:`sklearn.mixture.GaussianMixture` that takes sample weights, never holds a table of rows by
    components, never fails on singular data, reads data larger than memory, and gives the same result for any number of
    threads. All arithmetic is in float64, whatever the type of the rows.

    Parameters
    ----------
    n_components : int, default=1
    covariance_type : {"full", "tied", "diag", "spherical", "tied_spherical"}, default="full"
        A covariance matrix per component, one for all, variances per component and column, a variance per component,
        or one variance for everything.
    algorithm : {"auto", "em"}, default="auto"
        "em" is exact; "auto" chooses and writes its choice to `algorithm_`.
    weights : {"learned", "equal"}, default="learned"
        Whether components have mixing weights of their own. "equal" with "tied_spherical" is the model behind k-means.
    tol : float, default=1e-3
        Stop when the mean log-likelihood of a row changes by less.
    reg_covar : float, default=1e-6
        Added to the variances. Also with 0 no covariance becomes singular: variances stay above 1e-12 of the variance
        of the data in the same column.
    max_iter : int, default=100
        Most iterations of one run; 0 leaves the mixture where it starts.
    max_time : float or None, default=None
        Seconds after which to stop at the end of the running iteration.
    n_init : int, default=1
        Number of runs from different starts, of which the best is kept.
    init_params : {"kmeans", "k-means++", "random", "random_from_data"}, default="kmeans"
        How to find the starting means: k-means centres, k-means++ seeds, near the mean of all rows, or random rows.
        Rows are then assigned to the closest of them for the starting weights and covariances.
    weights_init, means_init, precisions_init : array-like or None, default=None
        Starting parameters, in the shapes of `weights_`, `means_` and `precisions_`.
    random_state : int, RandomState or None, default=None
        Seed of the start and of `sample`.
    warm_start : bool, default=False
        Begin where the last fit ended; `n_init` is then ignored.
    verbose : int, default=0
        1 shows a progress bar with the log-likelihood and the time left.
    callbacks : callback, callable or list of them, default=None
        See :mod:`globular.callbacks`.
    n_threads : int or None, default=None
        Threads; None is GLOBULAR_NUM_THREADS or all cores. The result does not depend on it.

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
    covariances_, precisions_, precisions_cholesky_ : array
        (n_components, n_features, n_features) for "full", (n_features, n_features) for "tied", (n_components,
        n_features) for "diag", (n_components,) for "spherical" and () for "tied_spherical".
    converged_ : bool
        Whether the best run ended because of `tol`.
    n_iter_ : int
    lower_bound_ : float
        Mean log-likelihood of a row (weighted), at the parameters the last iteration began with.
    lower_bounds_ : list of float
        The same for every iteration of the best run.
    history_ : :class:`globular.model.history.History`
        One record per iteration of the best run; objectives are log-likelihoods of all rows.
    n_distances_ : int
        Densities of a row under a component that EM evaluated in the whole fit, the starting point apart.
    algorithm_ : str
    stopped_ : str
        Why the best run ended.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import GaussianMixture
    >>> X = np.array([[1.0, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> model = GaussianMixture(n_components=2, random_state=0).fit(X)
    >>> sorted(model.means_.round(3).tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    >>> bool(model.predict([[0.0, 0]])[0] == model.predict([[1.0, 1]])[0])
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any] | str]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "covariance_type": [StrOptions(set(FAMILIES))],
        "algorithm": [StrOptions({"auto", *ALGORITHMS})],
        "weights": [StrOptions({"learned", "equal"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "reg_covar": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "init_params": [StrOptions(set(STARTS))],
        "weights_init": ["array-like", None],
        "means_init": ["array-like", None],
        "precisions_init": ["array-like", Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "callbacks": "no_validation",
        "n_threads": [None, Integral],
    }

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: str = "full",
        algorithm: str = "auto",
        weights: str = "learned",
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 100,
        max_time: float | None = None,
        n_init: int = 1,
        init_params: str = "kmeans",
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        callbacks: Any = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.algorithm = algorithm
        self.weights = weights
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.max_time = max_time
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks
        self.n_threads = n_threads

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
        exhaust(self.fit_iter(X, y, sample_weight))
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
        self._validate_params()
        started = time.perf_counter()
        data = self._open(X, sample_weight, reset=True)
        if data.n_rows < self.n_components:
            raise ValueError(f"n_samples={data.n_rows} should be >= n_components={self.n_components}.")
        if self.weights == "equal" and self.weights_init is not None:
            raise ValueError("weights_init has no place with weights='equal'; leave one of them out")
        given = GivenStart.check(
            self.weights_init,
            self.means_init,
            self.precisions_init,
            self.n_components,
            data.n_columns,
            self.covariance_type,
        )
        continued = self._mixture() if self.warm_start and hasattr(self, "means_") else None
        if continued is not None and continued.means.shape != (self.n_components, data.n_columns):
            raise ValueError(
                f"warm_start: the last fit had means of shape {continued.means.shape}, this one needs "
                f"{(self.n_components, data.n_columns)}; set warm_start=False to begin anew"
            )
        return self._fit_iter(data, given, continued, started)

    def _fit_iter(
        self, data: Input, given: GivenStart, continued: GaussianParameters | None, started: float
    ) -> Iterator[Record]:
        random_state = check_random_state(self.random_state)
        self.algorithm_ = self._choose_algorithm()
        options = self._options(continued)
        fit = Fit(self, data.n_rows, max_iter=self.max_iter, max_time=self.max_time, started=started)
        best: dict[str, Any] | None = None
        reason = ""
        for _ in range(1 if continued else self.n_init):
            start = continued or starting_mixture(
                data.shard, self.n_components, self.covariance_type, self.init_params, given, options, random_state
            )
            self._publish_mixture(start, data, History(), "")
            steps = ALGORITHMS[self.algorithm_](data.shard, start, options)
            reason = yield from fit.follow(steps, partial(self._publish, data), lambda step: None)
            self.stopped_ = reason or "max_iter"
            if best is None or self.lower_bound_ > best["lower_bound_"]:
                best = {name: value for name, value in vars(self).items() if name.endswith("_")}
            if reason in ("interrupted", "max_time", "callback"):
                break
        for name, value in (best or {}).items():
            setattr(self, name, value)
        self.n_distances_ = fit.n_distances
        fit.end(reason or self.stopped_)
        if self.stopped_ == "max_iter" and self.max_iter > 0:
            warnings.warn(
                f"the best run did not converge in {self.max_iter} iterations; raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _choose_algorithm(self) -> str:
        if self.algorithm != "auto":
            return self.algorithm
        logger.info("algorithm='auto' chose em")
        return "em"

    def _options(self, continued: GaussianParameters | None) -> EMOptions:
        return EMOptions(
            self.max_iter,
            self.tol,
            self.reg_covar,
            learned_weights=self.weights == "learned",
            previous_bound=self.lower_bound_ if continued else -np.inf,
        )

    def _publish(self, data: Input, step: Step[GaussianParameters], history: History) -> None:
        self._publish_mixture(step.model, data, history, step.stopped)

    def _publish_mixture(self, mixture: GaussianParameters, data: Input, history: History, stopped: str) -> None:
        self.weights_ = mixture.weights
        self.means_ = mixture.means
        self.covariances_ = mixture.covariances
        self.precisions_cholesky_ = mixture.factors
        self.precisions_ = mixture.precisions
        self.converged_ = stopped == CONVERGED
        self.n_iter_ = len(history)
        self.history_ = history
        self.lower_bounds_ = [record.objective / data.shard.total_weight for record in history]
        self.lower_bound_ = self.lower_bounds_[-1] if history else -np.inf
        self.n_distances_ = sum(record.n_distances for record in history)

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> I64:
        """Fit, and return the most likely component of every row."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def predict(self, X: Any) -> I64:
        """The most likely component of every row, (n_samples,)."""
        return self._per_row(X, soft.most_likely)

    def predict_proba(self, X: Any) -> F64:
        """The probability of every component given the row, (n_samples, n_components)."""
        return self._per_row(X, soft.responsibilities)

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
        return open_input(self, X, sample_weight, reset=reset, accept_sparse=False, n_threads=self.n_threads)

    def _mixture(self) -> GaussianParameters:
        return GaussianParameters(
            np.asarray(self.weights_, dtype=np.float64),
            np.asarray(self.means_, dtype=np.float64),
            np.asarray(self.covariances_, dtype=np.float64),
            self.covariance_type,
        )

    def _n_parameters(self) -> int:
        return self._mixture().n_parameters(learned_weights=self.weights == "learned")

    def _per_row(self, X: Any, function: Callable[[CpuShard, GaussianParameters], Values]) -> Values:
        """A function of rows, on whatever holds them; its results one after the other."""
        check_is_fitted(self)
        mixture = self._mixture()
        results = [function(part, mixture) for part in _parts(self._open(X, None, reset=False))]
        return results[0] if len(results) == 1 else cast(Values, np.concatenate(results))

    def _log_likelihood(self, data: Input) -> float:
        mixture = self._mixture()
        total = 0.0
        for part in _parts(data):
            scores = soft.score_rows(part, mixture)
            total += float(part.weights @ scores if len(part.weights) else scores.sum())
        return total


def _parts(data: Input) -> Iterator[CpuShard]:
    """The rows in memory, or one part after the other."""
    shard = cast(CpuShard | StreamShard, data.shard)
    if isinstance(shard, StreamShard):
        yield from shard.parts()
    else:
        yield shard
