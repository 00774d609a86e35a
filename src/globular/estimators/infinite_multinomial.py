"""`InfiniteMultinomialMixture`: a Dirichlet process mixture of multinomials, for rows of counts."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.infinite.infinite import Mixture
from globular.estimators.checks import checked_floats, whole_number
from globular.estimators.infinite_base import InfiniteEstimator
from globular.estimators.inputs import Input
from globular.estimators.parameters import POSITIVE, Constraints
from globular.estimators.starts import checked_shape
from globular.model.counts import CountsPosterior, CountsPrior
from globular.model.dirichlet import InfiniteMixture
from globular.model.statistics import F64, I64
from globular.seam.among import Need
from globular.seam.passes import Extremes


def _least(data: Input) -> float:
    """The smallest entry."""
    if Need.DENSE not in data.shard.lacks:
        return float(data.shard.run(Extremes())[0].min())
    if data.matrix is None:
        raise ValueError("sparse rows have to be in memory; pass a CSR matrix")
    return float(data.matrix.data.min(initial=0.0))


@dataclass(eq=False, repr=False, kw_only=True)
class InfiniteMultinomialMixture(InfiniteEstimator):
    """Mixture of multinomials with a Dirichlet process prior: clusters of documents, baskets, histograms.

    The same algorithms as :class:`InfiniteGaussianMixture`, on rows of counts: how often each of the columns (words,
    products, topics) occurs. Components are shares of the columns; how long a row is plays no part in them, but the
    longer it is, the surer is its component.

    Counts need not be whole numbers: weights such as tf-idf are taken as parts of an occurrence. Their scale matters
    as that of counts does: rows that add up to one weigh as much as a single word each, too little to tell components
    apart.

    Parameters
    ----------
    smoothing : float or array of shape (n_features,), default=1.0
        Dirichlet prior of the shares: counts that every component begins with.
    accelerate, truncation, max_components, n_candidates, accept_splits, min_split_gain, min_component_weight, \
concentration, discount, tol, max_iter, n_init, init_params
        As in :class:`InfiniteGaussianMixture`.
    {max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    means_ : array of shape (T, n_features)
        Expected share of every column in every component.
    posterior_ : dict of array
        "sticks" (T, 2) and "counts" (T, n_features).
    prior_ : dict
        The prior, by the same names, and "variance", which only rounding depends on.
    free_energy_ : float
        Free energy without the multinomial coefficients of the rows, which no parameter changes.
    n_clusters_, clusters_, labels_, component_labels_
        As in :class:`InfiniteGaussianMixture`; every component is a cluster of its own.
    n_components_, weights_, remaining_weight_, lower_bound_, lower_bounds_, n_iter_, converged_, stopped_, history_, \
n_distances_
        As in :class:`InfiniteGaussianMixture`.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import InfiniteMultinomialMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.multinomial(50, p, size=100) for p in ([0.8, 0.1, 0.1], [0.1, 0.1, 0.8])])
    >>> InfiniteMultinomialMixture(random_state=0).fit(X).n_components_
    2
    """

    smoothing: Any = 1.0
    accelerate: bool = True
    truncation: Literal["nested", "fixed"] = "nested"
    max_components: int | None = None
    n_candidates: int | None = None
    accept_splits: Literal["all", "best"] = "all"
    min_split_gain: float = 0.02
    min_component_weight: float = 10.0
    concentration: Any = 1.0
    discount: float = 0.0
    tol: float = 1e-3
    max_iter: int = 1000
    max_time: float | None = None
    n_init: int = 1
    init_params: Any = "kmeans"
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None

    _constraints: ClassVar[Constraints] = {"smoothing": [POSITIVE, "array-like"]}
    covariance_type = "tied_spherical"
    _takes_negative = False
    _takes_sparse = True

    def _open(self, X: Any, sample_weight: Any, *, reset: bool) -> Input:
        data = super()._open(X, sample_weight, reset=reset)
        in_memory = data.matrix is not None  # a file is read for this once, before the fit
        if (reset or in_memory) and _least(data) < 0:
            raise ValueError(
                f"Negative values in data passed to {type(self).__name__}: X holds counts, which are at least 0"
            )
        return data

    def _prior(self, data: Input) -> CountsPrior:
        (mean, variance), a = data.shard.column_moments(), self.smoothing
        a = np.full(len(mean), float(a)) if isinstance(a, Real) else checked_shape(a, mean.shape, "smoothing")
        if not (a > 0).all():
            raise ValueError("smoothing must be positive in every column")
        return CountsPrior.for_data(a, mean, variance)

    def _publish_posterior(self, mixture: Mixture) -> None:
        posterior = mixture.posterior
        assert isinstance(posterior, CountsPosterior)
        self._derive(means_=posterior.means)
        self.posterior_ = {"counts": posterior.a}
        self.prior_ = {"counts": posterior.prior.a, "variance": posterior.prior.variance}

    def _predictive(self) -> Mixture:
        sticks, D = self._sticks(), self.n_features_in_
        smoothing = checked_floats(self.prior_["counts"], "prior_['counts']", (D,), positive=True)
        variance = checked_floats(self.prior_["variance"], "prior_['variance']", (), positive=True)
        counts = checked_floats(
            self.posterior_["counts"], "posterior_['counts']", (len(sticks.first), D), positive=True
        )
        prior = CountsPrior(smoothing, float(variance))
        return InfiniteMixture(sticks, CountsPosterior(counts, prior), prior.itself())

    def sample(self, n_samples: int = 1, n_counts: int = 100) -> tuple[F64, I64]:
        """Draw rows of `n_counts` counts each from the predictive distribution, grouped by component.

        Returns
        -------
        X : array of shape (n_samples, n_features)
        y : array of shape (n_samples,)
            The component of every row; T stands for one that was not seen yet.
        """
        check_is_fitted(self)
        length = whole_number("n_counts", n_counts)
        a = np.vstack([self.posterior_["counts"], self.prior_["counts"]])

        def draw(c: int, n: int, random: np.random.RandomState) -> F64:
            return np.array([random.multinomial(length, random.dirichlet(a[c])) for _ in range(n)], dtype=np.float64)

        return self._drawn(n_samples, draw)

    def _n_parameters(self) -> int:
        T, D = self.means_.shape
        return T * (D - 1) + T - 1
