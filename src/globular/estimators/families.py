"""Mixtures of directions (von Mises–Fisher), of counts (Poisson), and of zeros and ones (Bernoulli)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from globular.algorithms.mixtures.exponential import (
    FEWEST_LEFT_OUT,
    SMOOTHINGS,
    ExponentialOptions,
    best_smoothing,
    em_exponential,
    pseudo_rows,
    search_start,
    start_from_means,
)
from globular.algorithms.mixtures.stepwise import Learned, StepwiseResult, one_linear_batch
from globular.algorithms.steps import Finding, Run
from globular.estimators.checks import checked_floats, mixture_bytes
from globular.estimators.inputs import Input
from globular.estimators.mixtures import N_CANDIDATES
from globular.estimators.parameters import AUTO, POSITIVE, Constraints
from globular.estimators.starts import checked_shape
from globular.estimators.stepwise_mixture import StepwiseMixture
from globular.model.exponential import Bernoulli, Directions, ExponentialMixture, Poisson
from globular.model.given import GivenStart
from globular.model.statistics import F64
from globular.seam.mixture_passes import Expect, Survey
from globular.seam.passes import AsScaled
from globular.threads import resolve_threads

PROBING_FROM = 1000
"""Components from which "auto" looks at few of them for each row; larger = exact EM up to more. 2,000 components of
directions of words take a tenth of the time and end likelier. With 1,000 of counts and of zeros and ones it is 0.2 to
1.1 times the time, for 0.005 to 0.1 nats less; with 500 up to 1.5 times."""


@dataclass(eq=False, repr=False)
class FamilyMixture(StepwiseMixture):
    """Base of mixtures with one linear E-step: a subclass names its family, and what users shall know of it."""

    n_components: int = 1
    _: KW_ONLY
    algorithm: Literal["auto", "em", "variational"] = "auto"
    smoothing: float | str = 1e-3
    weights: str = "learned"
    tol: float = 1e-3
    max_iter: int = 100
    max_time: float | None = None
    n_init: int = 1
    init_params: Literal["kmeans", "k-means++", "random_from_data"] = "kmeans"
    means_init: Any = None
    decay: float = 0.0
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None

    _constraints: ClassVar[Constraints] = {"smoothing": [POSITIVE, AUTO], "means_init": ["array-like", None]}
    _family: ClassVar[type[ExponentialMixture]]
    _takes_sparse = True
    _by_hand: ClassVar[tuple[str, ...]] = ("weights_", "means_")
    _instead_of_setting = "set weights_ and means_, or call fit"
    covariance_type = "tied_spherical"
    """The Gaussians that take as much memory: they have no second moments either."""

    @property
    def _unit_rows(self) -> bool:
        return self._family.unit_rows

    def _open(self, X: Any, sample_weight: Any, *, reset: bool) -> Input:
        data = super()._open(X, sample_weight, reset=reset)
        if not reset and data.matrix is not None:
            self._check_values(data)
        return data

    def _check_values(self, data: Input) -> float:
        """Refuse rows that the family does not take; returns Σ w log h(x)."""
        found = data.shard.run(Survey(self._family))
        if found.n_invalid:
            first = found.first if data.left_out is None else data.left_out.counted[found.first]
            place = f", first in row {first} (the first row is 0)"
            raise ValueError(self._family.invalid.format(n=found.n_invalid, name=type(self).__name__, place=place))
        return found.log_base

    def _check_fit(self, data: Input) -> None:
        super()._check_fit(data)
        self._log_base = self._check_values(data)
        lacks = data.shard.why_not(Expect) or (data.shard.why_not(AsScaled) if self._unit_rows else "")
        self.algorithm_ = self._choose_algorithm(lacks)

    def _choose_algorithm(self, lacks: str) -> str:
        """Exact EM, or EM among few components of every row, unless the rows lack what that takes."""
        if self.algorithm == "variational" and lacks:
            raise TypeError(f"algorithm='variational' cannot take these rows: {lacks}; set algorithm='em'")
        if self.algorithm != "auto":
            return self.algorithm
        return "em" if lacks or self.n_components < PROBING_FROM else "variational"

    @property
    def _n_candidates(self) -> int | None:
        return min(N_CANDIDATES, self.n_components) if self.algorithm_ == "variational" else None

    def _most_bytes(self, data: Input) -> int | None:
        if self._n_candidates is None:
            return super()._most_bytes(data)
        copy = data.n_rows * data.n_columns * data.dtype.itemsize if self._unit_rows else 0
        size = data.n_rows, data.n_columns, self.n_components, self.covariance_type
        return copy + mixture_bytes(*size, C_prime=self._n_candidates, n_threads=resolve_threads(self.n_threads))

    def _learn(self, data: Input, before: Learned) -> StepwiseResult:
        base = self._check_values(data) / data.shard.total_weight
        smoothing = vars(self).get("smoothing_", SMOOTHINGS[0]) if isinstance(self.smoothing, str) else self.smoothing
        found = one_linear_batch(data.shard, before, smoothing, learned_weights=self._learns_weights)
        return replace(found, log_likelihood=found.log_likelihood + base)

    def _given(self, data: Input) -> GivenStart:
        if self.means_init is None:
            return super()._given(data)
        shape = self.n_components, data.n_columns
        return GivenStart(self.covariance_type, means=checked_shape(self.means_init, shape, "means_init", "means"))

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        shard, family = data.shard, self._family
        self.smoothing_ = smoothing = SMOOTHINGS[0] if isinstance(self.smoothing, str) else self.smoothing
        options = ExponentialOptions(
            pseudo_rows(shard, family, smoothing, self.n_components), self.max_iter, self.tol,
            self._learns_weights, self._log_base, given.bound,
            self._n_candidates,
        )  # fmt: skip
        if given.continues:
            start = self._mixture()
        elif given.means is not None:
            start = start_from_means(shard, family, given.means, options)
        else:
            rng = np.random.default_rng(random_state.randint(2**31, size=4))
            start = yield from search_start(shard, family, self.n_components, self.init_params, options, rng)
        if isinstance(self.smoothing, str) and shard.n_rows >= FEWEST_LEFT_OUT:
            smoothing = best_smoothing(shard, start, options.prior)
            options = replace(options, prior=pseudo_rows(shard, family, smoothing, self.n_components))
        self.smoothing_ = smoothing
        return Run(em_exponential(shard, start, options), start)

    def _publish_mixture(self, mixture: Any, dtype: np.dtype[Any]) -> None:
        """The parameters in the type of the rows, or in float64 where that would make them what they may not be."""
        for name, values in mixture.arrays.items():
            found = values.astype(dtype)
            changed = any(((found == edge) != (values == edge)).any() for edge in (0.0, 1.0))
            setattr(self, f"{name}_", values if changed else found)

    def _check_finite(self) -> None:
        """Refuse to hand out what is not a mixture."""
        mixture = self._mixture()
        if not np.isfinite(mixture.linear.slopes).all() or np.isnan(self.lower_bound_):
            raise ValueError("X: a mean overflows float64; scale the columns of X to similar sizes")

    def _mixture(self) -> Any:
        """The fitted mixture."""
        means = checked_floats(self.means_, "means_", (None, self.n_features_in_))
        return self._family(**self._checked(means))

    def _checked(self, means: F64) -> dict[str, F64]:
        """The arrays of the family, checked."""
        return {"weights": checked_floats(self.weights_, "weights_", means.shape[:1]), "means": means}

    def _check_mixture(self, mixture: Any) -> None:
        with np.errstate(all="ignore"):
            linear = mixture.linear
        if not (np.isfinite(linear.slopes).all() and np.isfinite(mixture.log_normalisers).all()):
            raise ValueError(f"means_ are not those of a {type(self).__name__}; fit again")


class VonMisesFisherMixture(FamilyMixture):
    """Mixture of von Mises–Fisher distributions: clusters of directions, such as those of embeddings.

    The density for what k-means with the cosine does: a row counts by its direction alone, and every component has a
    mean direction and a concentration κ, which is large where its rows point the same way. Rows need not have unit
    length; rows of zeros have no direction and are refused.

    Parameters
    ----------
    n_components : int, default=1
    algorithm : {"auto", "em", "variational"}, default="auto"
        "em" is exact. "variational" looks at few components of each row, which cells of components nominate, at a cost
        of √C instead of C an iteration; it takes dense rows. "auto" chooses it from 1,000 components on.
    smoothing : float or "auto", default=1e-3
        Every component counts some rows at the mean of all rows beside its own, this share of the rows that a
        component has on average: the conjugate prior, which keeps components from shrinking to a point. "auto"
        chooses among 0.001 … 3 by the likelihood of rows left out, at the start of a run (of 100 rows or more).
    {weights}
    tol : float, default=1e-3
        Stop when the mean log-likelihood of a row changes by less.
    max_iter : int, default=100
        Most iterations of one run; 0 leaves the mixture where it starts.
    {n_runs}
    init_params : {"kmeans", "k-means++", "random_from_data"}, default="kmeans"
        How to find a start, on a part of the rows where these are many: the best of a few runs of k-means with the
        cosine; seeds; or random rows.
    means_init : array of shape (n_components, n_features) or None, default=None
        Mean directions to start from.
    {decay, max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
        Mean directions, of unit length.
    concentrations_ : array of shape (n_components,)
        κ; at most 1e8.
    smoothing_ : float
        The strength of the prior.
    algorithm_ : str
        What "auto" has chosen.
    labels_, converged_, n_iter_, counts_, history_, n_distances_, stopped_
        As in :class:`GaussianMixture`.
    lower_bound_, lower_bounds_
        As in :class:`GaussianMixture`, with the log density of the prior: what no iteration lowers.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import VonMisesFisherMixture
    >>> angles = np.random.default_rng(0).normal([0.0, 2.0], 0.1, size=(100, 2)).T.ravel()
    >>> X = np.column_stack([np.cos(angles), np.sin(angles)])
    >>> model = VonMisesFisherMixture(2, random_state=0).fit(X)
    >>> sorted(np.degrees(np.arctan2(model.means_[:, 1], model.means_[:, 0])).round().astype(int).tolist())
    [0, 115]
    """

    _family: ClassVar[type[ExponentialMixture]] = Directions
    _by_hand = ("weights_", "means_", "concentrations_")
    _instead_of_setting = "set weights_, means_ and concentrations_, or call fit"
    concentrations_: F64

    def _checked(self, means: F64) -> dict[str, F64]:
        kappa = checked_floats(self.concentrations_, "concentrations_", means.shape[:1])
        if kappa.min() < 0:
            raise ValueError("concentrations_ must not be negative; fit again")
        return {**super()._checked(means), "concentrations": kappa}


class PoissonMixture(FamilyMixture):
    """Mixture of Poisson distributions: clusters of rows of counts, such as words, events, reads or clicks.

    Every component has a rate for every column, and columns are independent in it. Unlike in
    :class:`InfiniteMultinomialMixture`, how much a row counts in all is part of the model. Rows may be sparse; counts
    need not be whole numbers, but not negative.

    Parameters
    ----------
    n_components : int, default=1
    smoothing : float or "auto", default=1e-3
        As in :class:`VonMisesFisherMixture`; the conjugate prior is a Gamma prior, by which no rate is zero. Few counts
        in thousands of columns, such as texts have, want more: "auto", or 0.1.
    algorithm, weights, tol, max_iter, n_init
        As in :class:`VonMisesFisherMixture`.
    init_params : {"kmeans", "k-means++", "random_from_data"}, default="kmeans"
        As in :class:`VonMisesFisherMixture`, on the square roots of the counts, which vary alike in all columns.
    means_init : array of shape (n_components, n_features) or None, default=None
        Rates to start from.
    {decay, max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
        Rates.
    smoothing_, algorithm_, labels_, converged_, n_iter_, counts_, lower_bound_, lower_bounds_, history_, n_distances_,
    stopped_
        As in :class:`VonMisesFisherMixture`.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import PoissonMixture
    >>> X = np.random.default_rng(0).poisson([[[9, 1]], [[1, 9]]], size=(2, 200, 2)).reshape(-1, 2)
    >>> sorted(PoissonMixture(2, random_state=0).fit(X).means_.round().tolist())
    [[1.0, 9.0], [9.0, 1.0]]
    """

    _family: ClassVar[type[ExponentialMixture]] = Poisson
    _takes_negative = False


class BernoulliMixture(FamilyMixture):
    """Mixture of Bernoulli distributions: clusters of rows of zeros and ones, also known as latent class analysis.

    Every component has a probability of a one for every column, and columns are independent in it. Rows may be sparse,
    and of any type, bool included; anything but zeros and ones is refused.

    Parameters
    ----------
    n_components : int, default=1
    smoothing : float or "auto", default=1e-3
        As in :class:`VonMisesFisherMixture`; the conjugate prior is a Beta prior, by which no probability is zero or
        one.
    algorithm, weights, tol, max_iter, n_init, init_params
        As in :class:`VonMisesFisherMixture`; k-means is that of the rows as they are.
    means_init : array of shape (n_components, n_features) or None, default=None
        Probabilities to start from.
    {decay, max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
        Probabilities of a one.
    smoothing_, algorithm_, labels_, converged_, n_iter_, counts_, lower_bound_, lower_bounds_, history_, n_distances_,
    stopped_
        As in :class:`VonMisesFisherMixture`.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import BernoulliMixture
    >>> X = np.random.default_rng(0).random((2, 3000, 4)) < [[[0.9, 0.9, 0.1, 0.1]], [[0.1, 0.1, 0.9, 0.9]]]
    >>> model = BernoulliMixture(2, random_state=0).fit(X.reshape(-1, 4))
    >>> sorted((10 * model.means_).round().astype(int).tolist())
    [[1, 1, 9, 9], [9, 9, 1, 1]]
    """

    _family: ClassVar[type[ExponentialMixture]] = Bernoulli
