"""How many clusters? Scores for a range of numbers, from one run that goes from few clusters to many.

Each number of clusters starts from the centres of the one before and adds some where the error is
(:mod:`globular.algorithms.kmeans.path`); up to 64 clusters new seeds compete with them. The error falls along the range
by construction. Three criteria are read off, each with its own idea of a good number:

- *elbow*: on logarithmic axes the error of data without clusters falls along a straight line, with slope −2 / D for D
  intrinsic dimensions. The elbow of a number is how much steeper the curve is before it than after it.
- *silhouette*: for rows of a sample, (b − a) / max(a, b) with a and b the distances to the closest and the second
  closest centre, averaged. (The original takes mean distances to all rows of a cluster, which costs N² and needs many
  rows per cluster; with centres it is the same question at N k.)
- *bic*: for a Gaussian mixture fitted from those centres, p log N − 2 log L with p free parameters. The mixture has to
  be right: with clusters that are not Gaussian it asks for more components than there are clusters.

No criterion knows what the clusters are for. An index or a codebook has no true number; take what speed allows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from math import log
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from globular.algorithms.kmeans.path import GrowingOptions, grow
from globular.algorithms.mixtures.em import EMOptions, em, start_from_means
from globular.algorithms.seeding.common import evenly_spread_masses
from globular.estimators.inputs import mean_variance, open_input
from globular.model.covariances import FAMILIES
from globular.model.selection import CRITERIA, Score, Scores
from globular.model.statistics import F64
from globular.plotting import plot_selection
from globular.seam.mixture_passes import Expect
from globular.seam.shard import Shard

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Score", "Selection", "select"]


class Selection(Scores):
    """The scores of a range of numbers of clusters, which of them is best, and the centres that go with each."""

    __slots__ = ()

    def plot(self, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
        """Draw the error and the criterion over the number of clusters (needs matplotlib); returns the two Axes."""
        return plot_selection(self, axes)


def select(
    X: Any,
    n_clusters: Iterable[int] = range(1, 21),
    *,
    model: Literal["kmeans", "gmm"] = "kmeans",
    criterion: Literal["auto", "elbow", "silhouette", "bic"] = "auto",
    covariance_type: str = "full",
    metric: Literal["euclidean", "cosine"] = "euclidean",
    sample_weight: Any = None,
    max_iter: int = 30,
    sample_size: int = 2000,
    random_state: Any = None,
    n_threads: int | None = None,
) -> Selection:
    """Score a range of numbers of clusters in one run from few to many.

    Parameters
    ----------
    X : array, CSR matrix, data frame, source or path of shape (n_samples, n_features)
    n_clusters : iterable of int, default=range(1, 21)
        The numbers to try. For thousands take steps of a constant factor: ``np.geomspace(10, 10_000, 20).astype(int)``.
    model : {"kmeans", "gmm"}, default="kmeans"
        "gmm" also fits a Gaussian mixture at each number, by exact EM, for its BIC.
    criterion : {"auto", "elbow", "silhouette", "bic"}, default="auto"
        What `best` goes by; "auto" is "bic" for mixtures and "silhouette" otherwise. The others are there as well.
    covariance_type : str, default="full"
        For "gmm", as in :class:`globular.GaussianMixture`.
    metric : {"euclidean", "cosine"}, default="euclidean"
        For "kmeans"; with the cosine, distances are those of rows scaled to unit length.
    sample_weight : array of shape (n_samples,), optional
    max_iter : int, default=30
        Most k-means iterations at each number.
    sample_size : int, default=2000
        Rows for the silhouette, drawn by weight.
    random_state : int, RandomState or None, default=None
    n_threads : int, optional
        All cores by default. The result does not depend on it.

    Returns
    -------
    Selection
        With ``best``, ``scores``, ``centers_for(k)``, ``to_pandas()`` and ``plot()``.

    Examples
    --------
    >>> import globular
    >>> from globular.datasets import separated_mixture
    >>> X = separated_mixture(1000, 7, 3, separation=5.0, eccentricity=1.0, random_state=0).X
    >>> selection = globular.select(X, range(2, 13), random_state=0)
    >>> selection.best, selection.best_by("elbow")
    (7, 7)
    >>> model = globular.KMeans(selection.best, init=selection.centers_for(selection.best)).fit(X)
    """
    sizes = _check(n_clusters, model, criterion, covariance_type, metric, max_iter, sample_size)
    data = open_input(
        BaseEstimator(), X, sample_weight, reset=True, unit_rows=metric == "cosine", accept_sparse=model == "kmeans",
        n_threads=n_threads, at_least=sizes[-1],
    )  # fmt: skip
    if sizes[-1] > data.n_rows:
        raise ValueError(f"n_clusters: {sizes[-1]} is more than the {data.n_rows} rows of X; leave it out")
    random = check_random_state(random_state)
    rng = np.random.default_rng(random.randint(2**31, size=4))
    shard = data.shard
    options = GrowingOptions(max_iter, 1e-4 * mean_variance(data), unit_centers=metric == "cosine")
    masses = evenly_spread_masses(shard.total_weight, sample_size, rng)
    drawn = np.unique(shard.locate(masses, "weights"))
    sample, weights = shard.take(drawn), shard.take(drawn, "weights")
    centers: list[NDArray[np.floating[Any]]] = []
    errors, silhouettes, bics = list[float](), list[float](), list[float]()
    for growth in grow(shard, sizes, options, rng):
        centers.append(growth.centers.astype(data.dtype))
        errors.append(growth.error)
        silhouettes.append(silhouette(sample, weights, growth.centers))
        if model == "gmm":
            bics.append(mixture_bic(shard, growth.centers, covariance_type, data.unit))
        else:
            bics.append(np.nan)
    if len(errors) < len(sizes):
        warnings.warn(
            f"X has fewer distinct rows than {sizes[len(errors)]}: larger numbers of clusters are left out",
            UserWarning,
            stacklevel=2,
        )
    elbows = elbow(np.array(sizes[: len(errors)]), np.array(errors))
    scores = zip(sizes[: len(errors)], errors, elbows.tolist(), silhouettes, bics, strict=True)
    chosen: Any = ("bic" if model == "gmm" else "silhouette") if criterion == "auto" else criterion
    selection = Selection(tuple(Score(*numbers) for numbers in scores), chosen, tuple(centers))
    selection.best_by(chosen)  # so that a criterion without a value is an error here and not later
    return selection


def elbow(sizes: NDArray[Any], errors: F64) -> F64:
    """Slope before minus slope after each number, of log error over log k; NaN at both ends."""
    result = np.full(len(errors), np.nan)
    if len(errors) >= 3:
        # an error of zero is as good as rounding allows
        heights = np.log(np.maximum(errors, max(errors[0] * 1e-12, np.finfo(np.float64).tiny)))
        falls = -np.diff(heights) / np.diff(np.log(sizes))
        result[1:-1] = falls[:-1] - falls[1:]
    return result


def silhouette(rows: F64, weights: F64, centers: F64) -> float:
    """Mean of (b − a) / max(a, b) with a and b the distances to the two closest centres; NaN for one centre."""
    if len(centers) < 2:
        return np.nan
    total = 0.0
    offset = centers.mean(axis=0)
    shifted = centers - offset
    norms = np.square(shifted).sum(axis=1)
    step = max(1, (1 << 22) // len(centers))
    for start in range(0, len(rows), step):
        part = rows[start : start + step] - offset
        squared = np.square(part).sum(axis=1)[:, None] - 2.0 * part @ shifted.T + norms
        closest = np.sqrt(np.maximum(np.partition(squared, 1, axis=1)[:, :2], 0.0))
        a, b = closest[:, 0], closest[:, 1]
        total += float(weights[start : start + step] @ np.divide(b - a, b, out=np.zeros_like(b), where=b > 0))
    return total / float(weights.sum())


def mixture_bic(shard: Shard, centers: F64, covariance_type: str, unit: float = 1.0) -> float:
    """BIC of the mixture that EM reaches from `centers`, with the total weight as the number of rows.

    `unit` is what a unit of the shard's weights counts for.
    """
    options = EMOptions()
    mixture = start_from_means(shard, centers, covariance_type, options)
    for step in em(shard, mixture, options):
        mixture = step.model
    likelihood = unit * shard.run(Expect(mixture)).log_likelihood
    return mixture.n_parameters(learned_weights=True) * log(unit * shard.total_weight) - 2.0 * likelihood


def _check(
    n_clusters: Iterable[int],
    model: str,
    criterion: str,
    covariance_type: str,
    metric: str,
    max_iter: int,
    sample_size: int,
) -> list[int]:
    """Refuse arguments that do not go together; the numbers to try, ascending."""
    for name, value, allowed in (
        ("model", model, ("kmeans", "gmm")),
        ("criterion", criterion, ("auto", *CRITERIA)),
        ("covariance_type", covariance_type, tuple(FAMILIES)),
        ("metric", metric, ("euclidean", "cosine")),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
    if model == "gmm" and metric == "cosine":
        raise ValueError("metric='cosine' goes with model='kmeans'; a Gaussian mixture has its own distances")
    if criterion == "bic" and model != "gmm":
        raise ValueError("criterion='bic' needs model='gmm'")
    for name, number in (("max_iter", max_iter), ("sample_size", sample_size)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    given: list[Any] = [n_clusters] if isinstance(n_clusters, Integral) else list(n_clusters)
    if not given or not all(isinstance(k, Integral) and int(k) >= 1 for k in given):
        raise ValueError("n_clusters must be whole numbers of at least 1, such as range(2, 21)")
    return sorted({int(k) for k in given})
