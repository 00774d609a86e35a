"""`InfiniteGaussianMixture`: a Dirichlet process mixture that finds the number of its components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.infinite.clusters import clusters_of
from globular.algorithms.infinite.infinite import Mixture
from globular.estimators.checks import checked_floats
from globular.estimators.conditional import ConditionalMixture
from globular.estimators.infinite_base import InfiniteEstimator, gaussian_prior
from globular.estimators.inputs import Input
from globular.estimators.parameters import Constraints, one_of
from globular.model.conditional import marginal_of_infinite
from globular.model.covariances import FAMILIES
from globular.model.dirichlet import InfiniteMixture
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64
from globular.model.wishart import KINDS, GaussianPosterior, GaussianPrior
from globular.passes.registry import shard_over
from globular.seam.shard import answer
from globular.threads import resolve_threads


class _Parts(NamedTuple):
    """Parameters of a posterior or a prior, by the letters of the paper."""

    beta: F64
    m: F64
    nu: F64
    S: F64


@dataclass(eq=False, repr=False, kw_only=True)
class InfiniteGaussianMixture(ConditionalMixture, InfiniteEstimator):
    """Gaussian mixture with a Dirichlet process prior: as many components as the data speak for.

    A variational posterior over an infinite number of components, of which the first T have parameters of their own and
    the others keep their prior (VIM). T begins at one and grows by splits that lower the free energy. On the cells of a
    partition tree instead of on rows (``accelerate=True``, Fast-VIM) a fit costs little more than building the tree.
    ``truncation="fixed"`` is the older truncated family (BJ), to which scikit-learn's ``BayesianGaussianMixture``
    belongs. A nested fit ends with some steps of EM by predictive densities, which make the better density. See
    Kurihara, Welling & Vlassis, *Accelerated variational Dirichlet process mixtures*, NIPS 2006.

    Scaling or shifting columns of X does not change the partition, as long as priors are left to their defaults.

    Parameters
    ----------
    accelerate : bool, default=True
        Work on cells of rows, opened where it lowers the free energy; where cells do not help (few rows, many columns)
        the rows take over. False works on rows throughout.
    truncation : {"nested", "fixed"}, default="nested"
        Grow T, with the prior beyond it; or keep T = `max_components`, with nothing beyond it.
    max_components : int or None, default=None
        Largest T; None is 1000 for "nested" and 20 for "fixed".
    covariance_type : {"full", "diag"}, default="full"
        Gaussian–inverse-Wishart posteriors, or a normal–gamma posterior per column.
    n_candidates : int or None, default=None
        With ``accelerate=True``, components that each cell looks at, found by neighbourhoods; a cycle then costs the
        same for thousands of components as for ten. None looks at all.
    accept_splits : {"all", "best"}, default="all"
        Whether a round keeps every split that lowers the free energy, or only the best one, as in the paper.
    min_split_gain : float, default=0.02
        What a split has to lower the free energy by, per row of the component: what keeps clusters whole that are not
        quite Gaussian.
    min_component_weight : float, default=10
        Rows (or their weight) that a component must hold to be split off, and a cluster to be one: what keeps outliers
        in their cluster.
    concentration : float, pair of float, "gamma" or dict, default=1.0
        Prior Beta(1, concentration) of the stick lengths, or Beta of the two numbers; larger means more components.
        "gamma" gives it a Gamma prior of shape and rate 1, ``{"shape": 2.0, "rate": 0.5}`` one of your own: the
        concentration then follows from the data.
    discount : float, default=0.0
        Of a Pitman–Yor process, less than 1: sizes of components fall off like the power −1 / discount of their rank,
        so that there are more small ones. 0 is the Dirichlet process, whose sizes fall off exponentially.
    prior : dict or None, default=None
        What is known of a component beforehand, any of: "mean", its expected mean (else the mean of X);
        "mean_precision", how many rows the knowledge of that mean is worth (else 0.01); "degrees_of_freedom", how many
        rows the knowledge of the covariance is worth (else n_features + 2 for "full" and 3 for "diag"); "covariance",
        the scale S₀ of the inverse-Wishart prior, (n_features, n_features) or (n_features,). Without "covariance" the
        scale is fitted with the components so that the free energy is smallest, beginning with the variance of the
        columns times the degrees of freedom, and so is "mean_precision" unless it is given.
    tol : float, default=1e-3
        Stop when a cycle lowers the free energy per row by less.
    max_iter : int, default=1000
        Most cycles over the data in one run.
    n_init : int, default=1
        Number of runs with other random choices, of which the best is kept.
    init_params : {"kmeans", "k-means++", "random_from_data"} or array, default="kmeans"
        Starting means of "fixed", or how to find them; every row begins with the closest.
    {max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    n_components_ : int
        T; with a fixed truncation, the components that hold a row's weight at least.
    n_clusters_ : int
        Number of clusters: components that are parts of one cluster of another shape count once.
    clusters_ : array of shape (T,)
        The cluster of every component.
    labels_ : array of shape (n_samples,)
        The cluster of every training row, what `predict` says of it.
    component_labels_ : array of shape (n_samples,)
        The most likely component of every training row, what `predict_components` says of it.
    weights_ : array of shape (T,)
        Expected weights, the largest first ("nested").
    remaining_weight_ : float
        Expected weight of all components not seen yet; with `weights_` it sums to one.
    means_ : array of shape (T, n_features)
    covariances_, precisions_, precisions_cholesky_ : array
        Inverse of the expected precision, (T, n_features, n_features) for "full", (T, n_features) for "diag".
    posterior_ : dict of array
        Its parameters: "sticks" (T, 2), "mean_precision" (T,), "means", "degrees_of_freedom" (T,) and "scale";
        "concentration", shape and rate of its Gamma posterior, where it has a Gamma prior.
    prior_ : dict
        Parameters of the prior, by the same names, as the fit ended with.
    free_energy_ : float
        Free energy F at the parameters that the last cycle, before any polish, began with: −F is a lower bound of the
        log-evidence.
    lower_bound_ : float
        −F per row.
    n_iter_, converged_, stopped_, history_, lower_bounds_, n_distances_
        As in :class:`GaussianMixture`; objectives are −F.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import InfiniteGaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(5 * i, 1, size=(200, 2)) for i in range(3)])
    >>> model = InfiniteGaussianMixture(random_state=0).fit(X)
    >>> model.n_components_
    3
    >>> bool(abs(model.weights_.sum() + model.remaining_weight_ - 1) < 1e-12)
    True
    >>> square = rng.uniform(size=(2000, 2))  # takes several Gaussians, and is one cluster
    >>> model = InfiniteGaussianMixture(random_state=0).fit(square)
    >>> model.n_components_ > 1, model.n_clusters_
    (True, 1)
    """

    accelerate: bool = True
    truncation: Literal["nested", "fixed"] = "nested"
    max_components: int | None = None
    covariance_type: str = "full"
    n_candidates: int | None = None
    accept_splits: Literal["all", "best"] = "all"
    min_split_gain: float = 0.02
    min_component_weight: float = 10.0
    concentration: Any = 1.0
    discount: float = 0.0
    prior: dict[str, Any] | None = None
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

    _constraints: ClassVar[Constraints] = {"covariance_type": [one_of(*KINDS)], "prior": [None, dict]}
    _derived, _by_hand = InfiniteEstimator._derived, ()
    _instead_of_setting = "call fit or GaussianMixture.from_parameters(...)"
    _polishes = True

    def _prior(self, data: Input) -> GaussianPrior:
        return gaussian_prior(data.shard, self.covariance_type, self.prior or {})

    def _clusters(self, data: Input, seen: GaussianParameters) -> I64:
        if self.truncation == "fixed":  # of as many components as asked for, some may be empty
            return super()._clusters(data, seen)
        return clusters_of(data.shard, seen, self.min_component_weight)

    def _publish_posterior(self, mixture: Mixture) -> None:
        posterior = mixture.posterior
        assert isinstance(posterior, GaussianPosterior)
        self._derive(means_=posterior.m, covariances_=posterior.covariances)
        self.posterior_ = _named(posterior)
        self.prior_ = _named(posterior.prior)

    def _predictive(self) -> Mixture:
        sticks, D = self._sticks(), self.n_features_in_
        kind = KINDS[self.covariance_type]
        p = self._parts("prior_", (), D)
        q = self._parts("posterior_", sticks.first.shape, D)
        least = kind.least_degrees(D)
        if min(p.nu.min(), q.nu.min()) <= least:
            raise ValueError(
                f"degrees_of_freedom of posterior_ and prior_ must be greater than n_features - 1 = {least}; fit again"
            )
        prior = GaussianPrior(kind, float(p.beta), p.m, float(p.nu), p.S)
        return InfiniteMixture(sticks, kind(q.beta, q.m, q.nu, q.S, prior), prior.itself())

    def _parts(self, attribute: str, components: tuple[int, ...], D: int) -> _Parts:
        """What `posterior_` or `prior_` holds, in the shapes of `components`."""

        def part(name: str, shape: tuple[int, ...], positive: bool = True) -> F64:
            values = getattr(self, attribute)[name]
            return checked_floats(values, f"{attribute}[{name!r}]", components + shape, positive=positive)

        scatter = FAMILIES[self.covariance_type].scatter
        return _Parts(
            beta=part("mean_precision", ()),
            m=part("means", (D,), positive=False),
            nu=part("degrees_of_freedom", ()),
            S=part("scale", scatter.entry(D), positive=scatter.separable),
        )

    def _check_state(self) -> None:
        super()._check_state()
        shape = FAMILIES[self.covariance_type].shape(*self.means_.shape)
        covariances = checked_floats(self.covariances_, "covariances_", shape)
        self._check_mixture(GaussianParameters(self.weights_, self.means_, covariances, self.covariance_type))

    def sample(self, n_samples: int = 1) -> tuple[F64, I64]:
        """Draw rows from the predictive density, grouped by component.

        Returns
        -------
        X : array of shape (n_samples, n_features)
        y : array of shape (n_samples,)
            The component of every row; T stands for one that was not seen yet.
        """
        check_is_fitted(self)
        mixture = self._predictive()
        everything = mixture.posterior.join(mixture.tail)
        assert isinstance(everything, GaussianPosterior)
        return self._drawn(n_samples, everything.draw)

    def _judged(self, X: Any, want: str) -> Any:
        whole, T = self._predictive(), len(self.weights_)
        rows, n_threads = self._incomplete(X), resolve_threads(self.n_threads)
        densities, probabilities = np.zeros(len(rows.rows)), np.tile(self.weights_, (len(rows.rows), 1))
        for numbers, columns, values in rows.by_kind():
            if len(columns):  # of nothing the density is one
                part, shard = marginal_of_infinite(whole, columns), shard_over(values, n_threads=n_threads)
                if want == "log_densities":
                    densities[numbers] = answer(shard, part, want)
                else:
                    probabilities[numbers] = answer(shard, part.local, "probabilities")[:, :T]
        if want == "log_densities":
            return densities
        return probabilities if want == "probabilities" else self._clusters_known()[probabilities.argmax(axis=1)]

    def _density(self) -> GaussianParameters:
        # of the components that were seen, whose weights lack that of the others
        weights = self.weights_ / self.weights_.sum()
        return GaussianParameters(weights, self.means_, self.covariances_, self.covariance_type)

    def _n_parameters(self) -> int:
        return self._density().n_parameters(learned_weights=True)


def _named(parts: GaussianPosterior | GaussianPrior) -> dict[str, Any]:
    """Parameters of a posterior or a prior by the names that users know them by."""
    return {"mean_precision": parts.beta, "means": parts.m, "degrees_of_freedom": parts.nu, "scale": parts.S}
