"""Mixtures of directions (von Mises–Fisher), of counts (Poisson), and of zeros and ones (Bernoulli)."""

from __future__ import annotations

from typing import Any, ClassVar

from globular.estimators.families import FamilyMixture
from globular.estimators.fitted import checked_floats
from globular.model.exponential import Bernoulli, Directions, ExponentialMixture, Poisson
from globular.model.statistics import F64


class VonMisesFisherMixture(FamilyMixture):
    """Mixture of von Mises–Fisher distributions: clusters of directions, such as those of embeddings.

    The density for what k-means with the cosine does: a row counts by its direction alone, and every component has a
    mean direction and a concentration κ, which is large where its rows point the same way. Rows need not have unit
    length; rows of zeros have no direction and are refused.

    Parameters
    ----------
    n_components : int, default=1
    smoothing : float, default=1e-3
        Every component counts some rows at the mean of all rows beside its own, this share of the rows that a
        component has on average: the conjugate prior, which keeps components from shrinking to a point.
    weights : {"learned", "equal"}, default="learned"
        Whether components have mixing weights of their own.
    tol : float, default=1e-3
        Stop when the mean log-likelihood of a row changes by less.
    max_iter : int, default=100
        Most iterations of one run; 0 leaves the mixture where it starts.
    n_init : int, default=1
        Number of runs from different starts, of which the best is kept.
    init_params : {"kmeans", "k-means++", "random_from_data"}, default="kmeans"
        How to find a start, on a part of the rows where these are many: the best of a few runs of k-means with the
        cosine; seeds; or random rows.
    means_init : array of shape (n_components, n_features) or None, default=None
        Mean directions to start from.
    {max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
        Mean directions, of unit length.
    concentrations_ : array of shape (n_components,)
        κ; at most 1e8.
    labels_, converged_, n_iter_, history_, n_distances_, stopped_
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
    smoothing : float, default=1e-3
        As in :class:`VonMisesFisherMixture`; the conjugate prior is a Gamma prior, by which no rate is zero. Few counts
        in thousands of columns, such as texts have, want more: 0.1.
    weights, tol, max_iter, n_init
        As in :class:`VonMisesFisherMixture`.
    init_params : {"kmeans", "k-means++", "random_from_data"}, default="kmeans"
        As in :class:`VonMisesFisherMixture`, on the square roots of the counts, which vary alike in all columns.
    means_init : array of shape (n_components, n_features) or None, default=None
        Rates to start from.
    {max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
        Rates.
    labels_, converged_, n_iter_, lower_bound_, lower_bounds_, history_, n_distances_, stopped_
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags


class BernoulliMixture(FamilyMixture):
    """Mixture of Bernoulli distributions: clusters of rows of zeros and ones, also known as latent class analysis.

    Every component has a probability of a one for every column, and columns are independent in it. Rows may be sparse,
    and of any type, bool included; anything but zeros and ones is refused.

    Parameters
    ----------
    n_components : int, default=1
    smoothing : float, default=1e-3
        As in :class:`VonMisesFisherMixture`; the conjugate prior is a Beta prior, by which no probability is zero or
        one.
    weights, tol, max_iter, n_init, init_params
        As in :class:`VonMisesFisherMixture`; k-means is that of the rows as they are.
    means_init : array of shape (n_components, n_features) or None, default=None
        Probabilities to start from.
    {max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
        Probabilities of a one.
    labels_, converged_, n_iter_, lower_bound_, lower_bounds_, history_, n_distances_, stopped_
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
