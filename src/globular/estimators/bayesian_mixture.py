"""`BayesianGaussianMixture`: scikit-learn's class, on the passes of this library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.mixtures.bayesian import bayesian_em
from globular.algorithms.mixtures.em import EMOptions, covariance_limits, one_gaussian
from globular.algorithms.mixtures.starts import MIXTURE_STARTS, StartOptions, starting_mixture
from globular.algorithms.steps import Finding, Run, result_of
from globular.estimators.checks import checked_floats, rows_to_draw
from globular.estimators.conditional import ConditionalMixture
from globular.estimators.inputs import Input
from globular.estimators.parameters import FROM_ONE, POSITIVE, Constraints, one_of
from globular.estimators.starts import checked_shape
from globular.model.bayesian import BayesianPosterior, BayesianPrior
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.given import GivenStart
from globular.model.history import History
from globular.model.observations import ObservedMoments
from globular.model.statistics import F64, I64
from globular.seam.mixture_passes import Expect


@dataclass(eq=False, repr=False, kw_only=True)
class BayesianGaussianMixture(ConditionalMixture):
    """Variational Gaussian mixture, a drop-in for :class:`sklearn.mixture.BayesianGaussianMixture`.

    The same model and the same steps: from the same responsibilities come the same numbers. `n_components` is the most
    there may be; those that the data do not speak for keep a weight near zero. :class:`InfiniteGaussianMixture` finds
    their number sooner and better, and its priors follow from the data.

    Parameters
    ----------
    n_components, max_iter, n_init, init_params
        As in :class:`GaussianMixture`.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
    tol : float, default=1e-3
        Stop when the lower bound of all rows together changes by less.
    reg_covar : float or "auto", default=1e-6
        Added to the variances; "auto" as in :class:`GaussianMixture`.
    weight_concentration_prior_type : {"dirichlet_process", "dirichlet_distribution"}, default="dirichlet_process"
    weight_concentration_prior, mean_precision_prior, degrees_of_freedom_prior : float or None, default=None
        γ, larger = more components; rows that the knowledge of `mean_prior` is worth; more than n_features - 1. None is
        1 / n_components, 1 and n_features.
    mean_prior, covariance_prior : array or None, default=None
        (n_features,), and one covariance of this type; None are those of X.
    {random_state, warm_start, verbose}
    verbose_interval : int, default=10
        Not used: the progress bar knows when to be drawn.
    {max_time, callbacks, n_threads}

    Attributes
    ----------
    weights_, means_, covariances_, precisions_, precisions_cholesky_, labels_, converged_, n_iter_, stopped_, \
history_, n_distances_
        As in :class:`GaussianMixture`.
    lower_bound_, lower_bounds_ : float, list of float
        Lower bound of the log-evidence of all rows, up to constants: of the best run, of each of its iterations.
    weight_concentration_ : tuple of two arrays, or array
        Parameters of the sticks' Beta, or of the Dirichlet, distributions.
    mean_precision_, degrees_of_freedom_ : array of shape (n_components,)
        (One number of degrees of freedom for "tied".)
    weight_concentration_prior_, mean_precision_prior_, mean_prior_, degrees_of_freedom_prior_, covariance_prior_
        The prior that was used.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import BayesianGaussianMixture
    >>> X = np.array([[1.0, 2], [1, 4], [1, 0], [4, 2], [12, 4], [10, 7]])
    >>> BayesianGaussianMixture(n_components=2, random_state=42).fit(X).predict([[0.0, 0], [9, 3]]).tolist()
    [0, 1]
    """

    n_components: int = 1
    covariance_type: Literal["full", "tied", "diag", "spherical"] = "full"
    tol: float = 1e-3
    reg_covar: float | str = 1e-6
    max_iter: int = 100
    n_init: int = 1
    init_params: str = "kmeans"
    weight_concentration_prior_type: str = "dirichlet_process"
    weight_concentration_prior: float | None = None
    mean_precision_prior: float | None = None
    mean_prior: Any = None
    degrees_of_freedom_prior: float | None = None
    covariance_prior: Any = None
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    verbose_interval: int = 10
    max_time: float | None = None
    callbacks: Any = None
    n_threads: int | None = None

    _constraints: ClassVar[Constraints] = {
        "max_iter": [FROM_ONE],
        "init_params": [one_of(*MIXTURE_STARTS)],
        "weight_concentration_prior_type": [one_of("dirichlet_process", "dirichlet_distribution")],
        **{
            f"{name}_prior": [None, POSITIVE]
            for name in ("weight_concentration", "mean_precision", "degrees_of_freedom")
        },
        "mean_prior": [None, "array-like"],
        "covariance_prior": [None, POSITIVE, "array-like"],
    }
    _weights_are_counts = True

    def _prior(self, data: Input) -> BayesianPrior:
        """The prior that the parameters ask for, which is published."""
        shard, D, W = data.shard, data.n_columns, data.shard.total_weight
        family, limits = FAMILIES[self.covariance_type], covariance_limits(shard, EMOptions(reg_covar=self.reg_covar))
        nu, kind = self.degrees_of_freedom_prior or D, family.scatter
        if nu <= D - 1:
            raise ValueError(
                f"The parameter 'degrees_of_freedom_prior' should be greater than {D - 1}, but got {nu:.3f}."
            )
        one = one_gaussian(shard, self.covariance_type)
        if self.covariance_prior is None:
            scatter = ObservedMoments.from_pass(one, shard.run(Expect(one))).scatter.reshape(kind.entry(D))
            S = scatter / ((W - 1 if W > 1 else W) * (1 if kind.entry(D) else D)) + kind.diagonal(limits.smallest)
        else:
            S = checked_shape(self.covariance_prior, kind.entry(D), "covariance_prior", "covariance_prior")
            if not family.is_positive(S):
                raise ValueError(f"covariance_prior must be {family.requirement}")
        m = one.means[0] if self.mean_prior is None else checked_shape(self.mean_prior, (D,), "mean_prior", "means")
        gamma, beta = self.weight_concentration_prior or 1.0 / self.n_components, self.mean_precision_prior or 1.0
        self.weight_concentration_prior_, self.mean_precision_prior_, self.mean_prior_ = gamma, beta, m
        self.degrees_of_freedom_prior_, self.covariance_prior_ = nu, S
        added = kind.diagonal(np.broadcast_to(limits.reg_covar, D))
        process = self.weight_concentration_prior_type == "dirichlet_process"
        return BayesianPrior(process, gamma, beta, m, nu, S, added, self.covariance_type)

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        yield from ()  # means alone are not a posterior
        shard, C, prior = data.shard, self.n_components, self._prior(data)
        if given.continues:
            start = self._posterior()
        else:
            how, options = StartOptions(C, self.init_params, given, random_state), EMOptions(reg_covar=self.reg_covar)
            mixture = result_of(starting_mixture(shard, options, how))
            start = prior.update(ObservedMoments.from_pass(mixture, shard.run(Expect(mixture))))
        return Run(bayesian_em(shard, start, prior, self.max_iter, self.tol, given.bound), start)

    def _take_over(self, model: Any) -> Any:
        return model

    def _publish_mixture(self, mixture: Any, dtype: np.dtype[Any]) -> None:
        a = mixture.concentration
        self.weight_concentration_ = a if a.ndim == 1 else tuple(a)
        self.weights_, self.means_, self.covariances_ = mixture.weights, mixture.m, mixture.covariances
        self.mean_precision_, self.degrees_of_freedom_ = mixture.beta, mixture.nu

    def _publish_course(self, data: Input, history: History, stopped: str) -> None:
        super()._publish_course(data, history, stopped)
        self.lower_bounds_ = [record.objective / data.unit for record in history if record.iteration]
        self.lower_bound_ = self.lower_bounds_[-1] if self.lower_bounds_ else -np.inf

    def _posterior(self) -> BayesianPosterior:
        """The posterior that the attributes hold."""
        m = checked_floats(self.means_, "means_", (None, self.n_features_in_))
        (C, D), family, a = m.shape, FAMILIES[self.covariance_type], np.asarray(self.weight_concentration_)
        return BayesianPosterior(
            checked_floats(a, "weight_concentration_", (*a.shape[:-1][:1], C), positive=True),
            checked_floats(self.mean_precision_, "mean_precision_", (C,), positive=True), m,
            checked_floats(self.degrees_of_freedom_, "degrees_of_freedom_", () if family.tied else (C,), positive=True),
            checked_floats(self.covariances_, "covariances_", family.shape(C, D)), self.covariance_type,
        )  # fmt: skip

    def _mixture(self) -> GaussianParameters:
        return self._posterior().mixture

    def _density(self) -> GaussianParameters:
        return GaussianParameters(self.weights_, self.means_, self.covariances_, self.covariance_type)

    def sample(self, n_samples: int = 1) -> tuple[F64, I64]:
        """Draw rows from the mixture at its expected parameters, grouped by component, and their components."""
        check_is_fitted(self)
        return self._density().sample(rows_to_draw(n_samples), check_random_state(self.random_state))
