"""`LowRankGaussianMixture`: thousands of components with correlations, in hundreds of columns."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.mixtures.low_rank import LowRankEM, find_low_rank_members, start_low_rank
from globular.algorithms.mixtures.starts import settled
from globular.algorithms.seeding.named import STARTS
from globular.algorithms.steps import Finding, Run
from globular.estimators.checks import check_allocation, checked_floats, fit_bytes
from globular.estimators.elsewhere import lazily
from globular.estimators.inputs import EXACT_BELOW, Input
from globular.estimators.mixture import GaussianMixture
from globular.estimators.mixtures import N_CANDIDATES, MixtureEstimator
from globular.estimators.parameters import Constraints, one_of
from globular.estimators.starts import choose_centers
from globular.model.covariances.families import with_factors
from globular.model.gaussian import GaussianParameters
from globular.model.given import GivenStart
from globular.model.low_rank import LowRankParameters, isotropic_factors
from globular.model.statistics import F64, I64
from globular.passes.host import COSTS_AT_ONCE, NOMINEES
from globular.seam.answers import Blurred, LowRank
from globular.seam.passes import Labels
from globular.seam.shard import Shard, answer
from globular.threads import resolve_threads


@dataclass(eq=False, repr=False)
class LowRankGaussianMixture(ClassNamePrefixFeaturesOutMixin, TransformerMixin, MixtureEstimator):
    """Mixture of factor analysers: Gaussians with a few directions of their own beside the noise of the columns.

    The covariance of a component is ``loadings.T @ loadings`` and that of the noise, of `n_factors` times as many
    numbers as a mean, so that thousands of components with correlations fit into hundreds of columns. As in
    :class:`VariationalGaussianMixture` every row keeps `n_candidates` components, and finds better ones by way of
    cells; with as many as there are components this is exact EM. See Ghahramani & Hinton, *The EM algorithm for
    mixtures of factor analyzers*, 1996.

    Parameters
    ----------
    n_components : int, default=8
    n_factors : int, default=8
        Directions of each component; in fewer columns, as many as these.
    noise : {"diag", "spherical", "tied_diag", "tied_spherical"}, default="diag"
        Variances beside the factors: of every component and column; of every component ("spherical", a mixture of
        probabilistic PCA); of every column for all components ("tied_diag", the original); or one.
    correlated_noise : bool, default=True
        Whether the noise of a column goes with that of the columns before it, in one way for all components: its
        covariance is then ``inv(T) @ diag(noise) @ inv(T).T`` with one unit lower triangular T, taken from the rows
        within k-means cells, and from what factors leave of them where that is likelier; `noise`
        says what has a variance beside what the columns before say of it
        ("spherical": all columns in units of what they share). The fit keeps a copy of the rows.
    {n_candidates, tol_of_bound}
    reg_covar : float or "auto", default="auto"
        Added to the variances of the noise, those of a column given the ones before it if noise is correlated; see
        :class:`GaussianMixture`.
    max_iter : int, default=100
        Most iterations of one run; 0 leaves the mixture where it starts.
    init : {"auto", "k-means++", "plain k-means++", "afk-mc2", "k-means||", "hierarchical", "random"}, array or \
callable, default="auto"
        Starting means: the name of a seeding, improved by swaps and k-means steps and, up to 100 components, by
        moves during EM; an array of shape (n_components, n_features), from which EM alone goes on; or a function
        ``(X, n_components, random_state) -> array``. Factors begin as the principal components of their cells.
    {n_runs, max_time, random_state, warm_start, verbose, callbacks, n_threads, device}

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
    loadings_ : array of shape (n_components, n_factors, n_features)
    noise_variances_ : array of shape (n_components, n_features)
        Whatever `noise` is; with `correlated_noise` the variances of every column given those before it.
    noise_regressions_ : array of shape (n_features, n_features)
        T, of the correlated noise; float64.
    labels_ : int32 array of shape (n_samples,)
        The most likely component of every row; from 500 components on, of those found by way of cells.
    lower_bound_ : float
        Mean free energy of a row, a lower bound of its log-likelihood, at the parameters the last iteration began with.
        With ``reg_covar=0`` it never falls, but for a little where components were moved in vain and rows have to find
        their candidates again.
    {lower_bounds_, history_}
    n_distances_ : int
        Densities (or distances) of a row and a component evaluated in the whole fit, its start apart.
    converged_, n_iter_, stopped_
        As in :class:`GaussianMixture`.
    init_ : str
        What "auto" came to.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import LowRankGaussianMixture
    >>> random = np.random.default_rng(0)
    >>> X = random.normal(size=(1000, 2)) @ random.normal(size=(2, 30)) + 0.1 * random.normal(size=(1000, 30))
    >>> model = LowRankGaussianMixture(n_components=3, n_factors=2, random_state=0).fit(X)
    >>> model.loadings_.shape, model.transform(X).shape
    ((3, 2, 30), (1000, 2))
    >>> noisy = X + 0.5 * random.normal(size=X.shape)
    >>> bool(np.square(model.reconstruct(noisy, noise_std=0.5) - X).mean() < 0.2 * np.square(noisy - X).mean())
    True
    """

    n_components: int = 8
    n_factors: int = 8
    _: KW_ONLY
    noise: Literal["diag", "spherical", "tied_diag", "tied_spherical"] = "diag"
    correlated_noise: bool = True
    n_candidates: int = N_CANDIDATES
    tol: float = 1e-3
    reg_covar: float | str = "auto"
    max_iter: int = 100
    max_time: float | None = None
    n_init: int = 1
    init: Any = "auto"
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None
    device: str | list[str] = "auto"

    _constraints: ClassVar[Constraints] = {"init": [one_of(*STARTS), "array-like", callable]}

    def _q(self, n_columns: int) -> int:
        """Factors of a component; as many as columns can make any covariance."""
        return min(self.n_factors, n_columns)

    def _centers_on_card(self, n: int) -> int:
        return n * (3 + self.n_factors) // 2  # with 5 factors 3.5 times what k-means takes

    def _given(self, data: Input) -> GivenStart:
        return GivenStart("diag")

    def _last_fit(self, data: Input) -> GivenStart:
        mixture, shape = self._mixture(), (self.n_components, self._q(data.n_columns), data.n_columns)
        if mixture.loadings.shape != shape:
            raise ValueError(
                f"warm_start: the last fit had loadings of shape {mixture.loadings.shape}, this one needs {shape}; set "
                "warm_start=False to begin anew"
            )
        return GivenStart("diag", continues=True)

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        options = VariationalOptions(C_prime=self._C_prime, max_iter=self.max_iter, tol=self.tol)
        shard, limits = data.shard, covariance_limits(data.shard, EMOptions(reg_covar=self.reg_covar))
        moves = False
        if given.continues:
            start: LowRankParameters = self._mixture()
            rng = np.random.default_rng(random_state.randint(2**31, size=4))
            find_low_rank_members(shard, start, self._C_prime, rng)
        else:
            chosen = yield from choose_centers(
                self.init, self.n_components, data, random_state, rough=True, size_name="n_components"
            )
            rng = np.random.default_rng(random_state.randint(2**31, size=4))
            if chosen.is_seeding:  # a start that the user has chosen stays as it is
                chosen = yield from settled(shard, chosen, rng)
            self.init_, moves = chosen.name, chosen.is_seeding
            start = start_low_rank(
                shard, chosen.centers, self._q(data.n_columns), self.noise, rng, limits=limits,
                labelled=chosen.labelled, correlated=self.correlated_noise,
            )  # fmt: skip
        em = LowRankEM(shard, self.noise, options, rng, limits)
        return Run(em.improved(start, moves=moves), start)

    def _isotropic(self, means: F64, variance: float) -> LowRankParameters:
        return isotropic_factors(means, variance, self._q(means.shape[1]))

    def _most_bytes(self, data: Input) -> int:
        (N, D), n_threads = (data.n_rows, data.n_columns), resolve_threads(self.n_threads)
        # candidates with densities and their order; a copy of the rows in the coordinates of the noise, and matrices
        n_words = 8 + 6 * (self._C_prime + NOMINEES) + D * self.correlated_noise
        n_numbers = self.n_components * D * (1 + self._q(D)) + 2 * D * D * self.correlated_noise
        return fit_bytes(N, D, n_numbers, n_words, n_threads) + 32 * COSTS_AT_ONCE * n_threads

    def _publish_mixture(self, mixture: Any, dtype: np.dtype[Any]) -> None:
        columns = mixture.as_numpy().in_columns()
        self.weights_, self.means_ = columns.weights.astype(dtype), columns.means.astype(dtype)
        self.loadings_, self.noise_variances_ = columns.loadings.astype(dtype), columns.noise.astype(dtype)
        if not (self.noise_variances_ > 0).all():  # too small for float32
            self.noise_variances_ = columns.noise
        for name in ("noise_regressions_", "_last_mixture"):  # that of the attributes, as after saving them
            self.__dict__.pop(name, None)
        if mixture.coordinates is not None:
            self.noise_regressions_ = mixture.coordinates.regressions

    def _check_mixture(self, mixture: Any) -> None:
        if mixture.n_factors != self._q(mixture.n_features):
            raise ValueError(f"loadings_ holds {mixture.n_factors} factors, n_factors={self.n_factors}; fit again")

    def _check_finite(self) -> None:
        super()._check_finite()
        if not (np.isfinite(self.loadings_).all() and np.isfinite(self.noise_variances_).all()):
            raise ValueError("X: loadings overflow float64; scale the columns of X to similar sizes, about 1")

    @property
    def _n_features_out(self) -> int:
        return int(self.loadings_.shape[1])

    def _n_parameters(self) -> int:
        return int(self._mixture().n_parameters(self.noise))

    @property
    def _C_prime(self) -> int:
        return min(self.n_candidates, self.n_components)

    def _label(self, shard: Shard) -> Labels:
        asked = self._asked(shard, exact=self.n_components < EXACT_BELOW)
        return np.asarray(answer(shard, asked, "components"), dtype=np.int32)

    def _asked(
        self, shard: Shard, mixture: LowRankParameters | None = None, noise: F64 | None = None, *, exact: bool
    ) -> LowRank:
        """A mixture, by default the fitted one, to be asked with all components or with the K(n) that cells lead to."""
        mixture = self._mixture() if mixture is None else mixture
        if exact or self._C_prime >= mixture.n_components:
            return LowRank(mixture, noise=noise)
        find_low_rank_members(shard, mixture, self._C_prime, np.random.default_rng(0))
        return LowRank(mixture, self._C_prime, noise)

    @lazily
    def predict(self, X: Any, exact: bool = True, *, min_log_density: float | None = None) -> I64:
        """The most likely component of every row, (n_samples,).

        Parameters
        ----------
        {X, exact, min_log_density}
        """
        found = self._answer(X, "components", partial(self._asked, exact=exact))
        return self._without_noise(X, found, min_log_density, exact=exact)

    @lazily
    def score_samples(self, X: Any, exact: bool = True) -> F64:
        """The log-likelihood of every row, (n_samples,).

        Parameters
        ----------
        {X, bounded}
        """
        return self._answer(X, "log_densities", partial(self._asked, exact=exact))

    @lazily
    def transform(self, X: Any, exact: bool = True) -> F64:
        """The factors of every row under its most likely component, (n_samples, n_factors).

        They are the expectation of the factors given the row. Those of different components have nothing to do with
        each other: `predict` says whose they are.

        Parameters
        ----------
        {X, exact}
        """
        check_is_fitted(self)
        return self._answer(X, "factors", partial(self._asked, exact=exact), self.loadings_.shape[1])

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
            ask = partial(self._asked, mixture=mixture, noise=mixture.noise, exact=exact)
            return self._answer(X, "reconstruction", ask, D)
        std = np.atleast_1d(np.asarray(noise_std, dtype=np.float64))
        if std.shape not in ((1,), (D,)) or not (np.isfinite(std) & (std > 0)).all():
            raise ValueError(
                f"noise_std must be a positive number, or {D} of them, got {noise_std!r}; leave it out for the noise "
                "of the model"
            )
        noisier, added = mixture.noisier(std**2), np.broadcast_to(std**2, (D,))
        if mixture.coordinates is None:
            ask = partial(self._asked, mixture=noisier, noise=added[None, :], exact=exact)
            return self._answer(X, "reconstruction", ask, D)
        # noise of the model that is correlated is D × D together with what was added
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
        return columns, T, columns.to_coordinates(T)
