"""`GaussianMixture`: exact EM behind scikit-learn's names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from globular.algorithms.chunky import SETTLED, ChunkyModel, ChunkyOptions, chunky
from globular.algorithms.em import EMOptions, covariance_limits, em
from globular.algorithms.probing_mixture import probing_mixture
from globular.algorithms.steps import Step
from globular.algorithms.variational import SoftModel, VariationalOptions, variational_mixture
from globular.backends.cpu.memory import mixture_bytes
from globular.estimators.chunky_starts import plant, resolved_candidates, resolved_max_cells, starting_chunky
from globular.estimators.inputs import Input
from globular.estimators.mixture_starts import (
    STARTS,
    GivenStart,
    automatic_search,
    starting_mixture,
    starting_variational,
)
from globular.estimators.mixtures import MixtureEstimator
from globular.model.covariances import FAMILIES, SEPARABLE
from globular.model.gaussian import GaussianParameters
from globular.model.history import History
from globular.threads import resolve_threads

logger = logging.getLogger("globular")

ALGORITHMS = ("em", "variational", "chunky")
"""Covariance types that the variational algorithm knows."""
VARIATIONAL_FROM = 500
"""Number of components from which "auto" takes the variational algorithm, where it knows the covariance type."""
CHUNKY_FROM_ROWS, CHUNKY_FROM_COMPONENTS, CHUNKY_UP_TO_COLUMNS = 100_000, 5, 10
"""From so many rows and components, and up to so many columns, "auto" takes Chunky EM instead of exact EM."""
N_CANDIDATES, N_NEIGHBORS = 5, 5
"""C′ and G of the variational algorithm; `VariationalGaussianMixture` has them as parameters."""


class GaussianMixture(MixtureEstimator):
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
    algorithm : {"auto", "em", "variational", "chunky"}, default="auto"
        "em" is exact; "variational" looks at few components per row, found by probing or (up to 25 components) by
        neighbourhoods, see :class:`VariationalGaussianMixture`, and knows "diag", "spherical" and "tied_spherical";
        "chunky" works on cells of rows, at a cost that hardly grows with their number, and on the rows themselves only
        at the end, to finish where EM would (see :class:`ChunkyGaussianMixture` and its `polish`). "auto" takes
        "variational" from 500 components on where it knows the covariance type, else "chunky" for 100,000 rows or more
        in up to 10 columns with 5 components or more, else "em", and writes its choice to `algorithm_`.
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
        Rows are then assigned to the closest of them for the starting weights and covariances. (The variational
        algorithm starts from probing k-means, equal weights and one variance; the chunky one does all this on
        cells.)
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
        Mean log-likelihood of a row (weighted), or its lower bound with the other algorithms, at the parameters the
        last iteration began with.
    lower_bounds_ : list of float
        The same for every iteration of the best run.
    history_ : :class:`globular.model.history.History`
        One record per iteration of the best run; objectives are log-likelihoods (or bounds) of all rows.
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

    def _check_fit(self, data: Input) -> None:
        if self.weights == "equal" and self.weights_init is not None:
            raise ValueError("weights_init has no place with weights='equal'; leave one of them out")
        if self.algorithm == "variational" and self.covariance_type not in SEPARABLE:
            raise ValueError(
                f"algorithm='variational' needs covariances without correlations, one of {', '.join(SEPARABLE)}; "
                f"covariance_type={self.covariance_type!r} takes algorithm='em'"
            )
        self._given_start(data)
        self.algorithm_ = self._choose_algorithm(data)

    def _most_bytes(self, data: Input) -> int | None:
        if self.algorithm_ == "chunky":
            return None  # the tree says it
        return mixture_bytes(
            data.n_rows, data.n_columns, self.n_components, self.covariance_type,
            C_prime=N_CANDIDATES if self.algorithm_ == "variational" else 0, n_threads=resolve_threads(self.n_threads),
        )  # fmt: skip

    def _given_start(self, data: Input) -> GivenStart:
        return GivenStart.check(
            self.weights_init,
            self.means_init,
            self.precisions_init,
            self.n_components,
            data.n_columns,
            self.covariance_type,
        )

    def _steps(
        self, data: Input, continued: GaussianParameters | None, random_state: np.random.RandomState
    ) -> Iterator[Step[Any]]:
        options = EMOptions(
            self.max_iter,
            self.tol,
            self.reg_covar,
            learned_weights=self.weights == "learned",
            previous_bound=self.lower_bound_ if continued else -np.inf,
        )
        given = self._given_start(data)
        if self.algorithm_ == "variational":
            return self._variational_steps(data, continued, given, options, random_state)
        if self.algorithm_ == "chunky":
            return self._chunky_steps(data, continued, given, options, random_state)
        start = continued or starting_mixture(
            data.shard, self.n_components, self.covariance_type, self.init_params, given, options, random_state
        )
        self._publish_mixture(start, data, History(), "")
        return em(data.shard, start, options)

    def _variational_steps(
        self,
        data: Input,
        continued: GaussianParameters | None,
        given: GivenStart,
        options: EMOptions,
        random_state: np.random.RandomState,
    ) -> Iterator[Step[SoftModel]]:
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        limits = covariance_limits(data.shard, options)
        search = VariationalOptions(
            C_prime=min(N_CANDIDATES, self.n_components),
            G=N_NEIGHBORS,
            max_iter=self.max_iter,
            tol=self.tol,
            n_threads=resolve_threads(self.n_threads),
        )
        start = starting_variational(
            data.shard, self.n_components, self.covariance_type, self.init_params, given, continued, search, limits, rng
        )
        self._publish_mixture(start.mixture, data, History(), "")
        learned = self.weights == "learned"
        iterations = probing_mixture if automatic_search(self.n_components) == "probing" else variational_mixture
        return iterations(data.shard, start, search, rng, limits=limits, learned_weights=learned)

    def _chunky_steps(
        self,
        data: Input,
        continued: GaussianParameters | None,
        given: GivenStart,
        options: EMOptions,
        random_state: np.random.RandomState,
    ) -> Iterator[Step[ChunkyModel]]:
        limits = covariance_limits(data.shard, options)
        C_prime = resolved_candidates("auto", self.n_components)
        cells = ChunkyOptions(
            max_iter=self.max_iter,
            tol=self.tol,
            max_cells=resolved_max_cells(None, data.n_rows, self.n_components),
            # ends where EM would; only rows with few components each need memory that streamed rows have not
            polish="always" if C_prime is None or data.matrix is not None else "never",
            C_prime=C_prime,
            learned_weights=options.learned_weights,
            previous_bound=options.previous_bound,
            n_threads=resolve_threads(self.n_threads),
        )
        plant(data, self.n_components, self.covariance_type, self.init_params, cells.max_cells)
        start = continued or starting_chunky(
            data.shard, self.n_components, self.covariance_type, self.init_params, given, cells, limits, random_state
        )
        self._publish_mixture(start, data, History(), "")
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        return chunky(data.shard, start, cells, rng, limits=limits)

    def _choose_algorithm(self, data: Input) -> str:
        if self.algorithm != "auto":
            return self.algorithm
        chosen = "em"
        if self.n_components >= VARIATIONAL_FROM and self.covariance_type in SEPARABLE:
            chosen = "variational"
        elif (
            data.n_rows >= CHUNKY_FROM_ROWS
            and data.n_columns <= CHUNKY_UP_TO_COLUMNS
            and self.n_components >= CHUNKY_FROM_COMPONENTS
        ):
            chosen = "chunky"
        logger.info("algorithm='auto' chose %s", chosen)
        return chosen

    def _take_over(self, step: Step[Any]) -> GaussianParameters:
        model: SoftModel | ChunkyModel | GaussianParameters = step.model
        return model if isinstance(model, GaussianParameters) else model.mixture

    def _publish_mixture(self, mixture: GaussianParameters, data: Input, history: History, stopped: str) -> None:
        super()._publish_mixture(mixture, data, history, stopped)
        self.converged_ = self.converged_ or stopped in SETTLED
