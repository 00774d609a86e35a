"""How many clusters? Scores for a range of numbers, from one run that goes from few clusters to many.

Each number of clusters starts from the centres of the one before and adds some where the error is
(:mod:`globular.algorithms.kmeans.path`); up to 64 clusters new seeds compete with them. The error falls along the range
by construction. Criteria are read off, each with its own idea of a good number:

- *elbow*: on logarithmic axes the error of data without clusters falls along a straight line, with slope −2 / D for D
  intrinsic dimensions. The elbow of a number is how much steeper the curve is before it than after it.
- *silhouette*: for rows of a sample, (b − a) / max(a, b) with a and b the distances to the closest and the second
  closest centre, averaged. (The original takes mean distances to all rows of a cluster, which costs N² and needs many
  rows per cluster; with centres it is the same question at N k.)
- *variance ratio*: the variance between clusters by that within them, each by its degrees of freedom [Caliński and
  Harabasz 1974].
- *bic* and *icl*: for Gaussian mixtures of one or several covariance types, of which the path shares what it can
  (:mod:`globular.algorithms.mixtures.path`). The mixture has to be right: with clusters that are not Gaussian BIC asks
  for more components than there are clusters, and ICL for fewer where they overlap.

No criterion knows what the clusters are for. An index or a codebook has no true number; take what speed allows.
`Selection.doubts` says when the answer is not to be trusted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from globular.algorithms.kmeans.lloyd import KMeansOptions
from globular.algorithms.kmeans.path import grow
from globular.algorithms.mixtures.path import Candidate, PathOptions, finest_first, fit_path
from globular.algorithms.mixtures.pipeline import draw_part
from globular.algorithms.seeding.common import evenly_spread_masses
from globular.estimators.checks import generator, whole_number
from globular.estimators.inputs import Input, mean_variance, open_input
from globular.estimators.kmeans import KMeans
from globular.estimators.mixture import GaussianMixture
from globular.model.cells import median_center
from globular.model.covariances import FAMILIES
from globular.model.selection import CRITERIA, LOWER_IS_BETTER, Score, Scores
from globular.model.statistics import F64
from globular.plotting import plot_selection
from globular.seam.shard import Shard

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Score", "Selection", "select"]

REFERENCE_ROWS, ROWS_PER_CLUSTER, REFERENCE_WORK = 1000, 20, 1 << 30
"""Rows without clusters that a silhouette is compared with, as many of them as a cluster needs, and the most
multiplications that they may take."""


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
    criterion: Literal["auto", "elbow", "silhouette", "variance_ratio", "bic", "icl"] = "auto",
    covariance_type: str | Iterable[str] = "full",
    metric: Literal["euclidean", "cosine"] = "euclidean",
    sample_weight: Any = None,
    max_iter: int = 30,
    sample_size: int = 2000,
    random_state: Any = None,
    n_threads: int | None = None,
) -> Selection:
    """Score a range of numbers of clusters in one run from few to many, and hand back the best model.

    Parameters
    ----------
    X : array, CSR matrix, data frame, source or path of shape (n_samples, n_features)
    n_clusters : iterable of int, default=range(1, 21)
        The numbers to try. For thousands take steps of a constant factor: ``np.geomspace(10, 10_000, 20).astype(int)``.
    model : {"kmeans", "gmm"}, default="kmeans"
        "gmm" fits Gaussian mixtures, for their BIC and ICL.
    criterion : {"auto", "elbow", "silhouette", "variance_ratio", "bic", "icl"}, default="auto"
        What `best` goes by; "auto" is "bic" for mixtures and "silhouette" otherwise. The others are there as well.
        ICL is BIC and twice the entropy of the responsibilities: it counts clusters where BIC counts Gaussians.
    covariance_type : str, "all" or iterable of str, default="full"
        For "gmm", one or several of those of :class:`globular.GaussianMixture`. A type whose score has been rising for
        five numbers is left, and one that would stay above the best of the others if its score fell on as in the last
        five; of larger numbers it has no scores.
    metric : {"euclidean", "cosine"}, default="euclidean"
        For "kmeans"; with the cosine, distances are those of rows scaled to unit length.
    sample_weight : array of shape (n_samples,), optional
        A row of weight 2 counts as two rows. So N of the criteria (BIC is p log N − 2 log L) is the sum of the weights:
        scale those that are no counts, such as inverse chances, to add up to the number of rows that were observed.
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
        With ``best``, ``best_covariance_type``, ``best_model_``, ``doubts``, ``scores``, ``centers_for(k)``,
        ``to_pandas()`` and ``plot()``. Mixtures that are far from the best are fitted to a part of the rows where these
        are many, and errors and silhouettes are those of that part then.

    Examples
    --------
    >>> import globular
    >>> from globular.datasets import separated_mixture
    >>> X = separated_mixture(1000, 7, 3, separation=5.0, eccentricity=1.0, random_state=0).X
    >>> selection = globular.select(X, range(2, 13), random_state=0)
    >>> selection.best, selection.best_by("elbow"), selection.doubts
    (7, 7, ())
    >>> selection.best_model_.predict(X).shape
    (1000,)
    >>> mixtures = globular.select(X, range(2, 13), model="gmm", covariance_type="all", random_state=0)
    >>> mixtures.best, mixtures.best_covariance_type
    (7, 'tied_spherical')
    """
    sizes, types = _check(n_clusters, model, criterion, metric, max_iter, sample_size), _types(covariance_type)
    names: Any = BaseEstimator()
    data = open_input(
        names, X, sample_weight, reset=True, unit_rows=metric == "cosine", accept_sparse=model == "kmeans",
        n_threads=n_threads, at_least=sizes[-1],
    )  # fmt: skip
    if sizes[-1] > data.n_rows:
        raise ValueError(f"n_clusters: {sizes[-1]} is more than the {data.n_rows} rows of X; leave it out")
    rng = generator(random_state)
    options = KMeansOptions(max_iter, 1e-4 * mean_variance(data), unit_centers=metric == "cosine")
    chosen: Any = ("bic" if model == "gmm" else "silhouette") if criterion == "auto" else criterion
    n_observed = data.unit * data.shard.total_weight
    if model == "gmm":
        part = draw_part(data.shard, sizes[-1], finest_first(types)[0], rng)
        path = _Path(part, n_observed, sizes, options, sample_size, rng)
        scores, centers, mixtures = _along_mixtures(path, data, types, chosen)
    else:
        path = _Path(data.shard, n_observed, sizes, options, sample_size, rng)
        for _ in path:
            pass
        scores, centers = tuple(path.scores()), tuple(each.astype(data.dtype) for each in path.centers)
    if len(path.errors) < len(sizes):
        warnings.warn(
            f"X has fewer distinct rows than {sizes[len(path.errors)]}: larger numbers of clusters are left out",
            UserWarning,
            stacklevel=2,
        )
    best = Selection(scores, chosen, centers).best_score(chosen)  # an error if the criterion has no value
    common: dict[str, Any] = {"random_state": random_state, "n_threads": n_threads}
    is_singular = False
    if model == "gmm":
        kind = best.covariance_type
        fitted: Any = GaussianMixture(best.n_clusters, **common).set_params(covariance_type=kind)
        winner = mixtures[best.n_clusters, kind]
        fitted._take_found(winner.mixture, winner.found.log_likelihood / data.shard.total_weight, data)
        is_singular = winner.is_singular(data.n_rows)
    else:
        fitted = KMeans(best.n_clusters, metric=metric, **common)
        fitted._take_found(centers[[score.n_clusters for score in scores].index(best.n_clusters)], data)
    if hasattr(names, "feature_names_in_"):
        fitted.feature_names_in_ = names.feature_names_in_
    reference = path.reference(best.n_clusters) if chosen == "silhouette" else np.nan
    return Selection(scores, chosen, centers, fitted, reference, is_singular)


@dataclass(eq=False)
class _Path:
    """K-means centres of ascending numbers, and what they score."""

    shard: Shard
    n_observed: float
    """Rows that all weights stand for."""
    sizes: list[int]
    options: KMeansOptions
    sample_size: int
    rng: np.random.Generator
    centers: list[F64] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    silhouettes: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        masses = evenly_spread_masses(self.shard.total_weight, self.sample_size, self.rng)
        drawn = np.unique(self.shard.locate(masses, "weights"))
        self.sample, self.weights = self.shard.take(drawn), self.shard.take(drawn, "weights")

    def __iter__(self) -> Iterator[F64]:
        for growth in grow(self.shard, self.sizes, self.options, self.rng):
            self.centers.append(growth.centers)
            self.errors.append(growth.error)
            self.silhouettes.append(silhouette(self.sample, self.weights, growth.centers))
            yield growth.centers

    def scores(self) -> list[Score]:
        """Scores of every number, without mixtures."""
        sizes, errors = np.array(self.sizes[: len(self.errors)]), np.array(self.errors)
        ratios = variance_ratio(sizes, errors, float(self.shard.column_moments()[1].sum()), self.n_observed)
        columns = zip(
            sizes.tolist(), self.errors, elbow(sizes, errors).tolist(), self.silhouettes, ratios.tolist(), strict=True
        )
        return [
            Score(size, error, kink, breadth, np.nan, variance_ratio=ratio)
            for size, error, kink, breadth, ratio in columns
        ]

    def reference(self, size: int) -> float:
        """The silhouette of `size` clusters in rows that have none, with the covariance of the sample.

        Random sums of the rows of a sample about its mean are draws from a Gaussian of that covariance. NaN where the
        rows are too few for these clusters, or too wide to be drawn in a moment.
        """
        n, D = self.sample.shape
        n_drawn = min(n, REFERENCE_ROWS)
        if n_drawn < ROWS_PER_CLUSTER * size or n_drawn * n * D > REFERENCE_WORK:
            return np.nan
        shares = self.weights / self.weights.sum()
        mean = shares @ self.sample
        draws = self.rng.standard_normal((n_drawn, n))
        rows: F64 = mean + (draws * np.sqrt(shares)) @ (self.sample - mean)
        if self.options.unit_centers:
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        found = list(grow(self.shard.local(rows), [size], self.options, self.rng))
        return silhouette(rows, np.ones(n_drawn), found[0].centers) if found else np.nan


def _along_mixtures(
    path: _Path, data: Input, types: tuple[str, ...], criterion: str
) -> tuple[tuple[Score, ...], tuple[NDArray[Any], ...], dict[tuple[int, str], Candidate]]:
    """Scores, k-means centres and mixtures, of every number and type."""
    part, unit = path.shard, data.unit
    shard = part if part.n_rows == data.n_rows else data.shard
    options = PathOptions(types, unit=unit, n_numbers=len(path.sizes))
    if criterion in LOWER_IS_BETTER:
        options = replace(options, criterion=criterion)
    else:
        options = replace(options, may_leave=False)
    found = {candidate.key: candidate for candidate in fit_path(shard, part, path, options, path.rng)}
    scores, centers, n_rows = list[Score](), list[NDArray[Any]](), path.n_observed
    for score, means in zip(path.scores(), path.centers, strict=True):
        for kind in types:
            candidate = found.get((score.n_clusters, kind))
            bic, icl = np.nan, np.nan
            if candidate is not None:
                bic, icl = candidate.bic(n_rows, unit), candidate.icl(n_rows, unit)
            scores.append(replace(score, covariance_type=kind, bic=bic, icl=icl))
            centers.append(means.astype(data.dtype))
    return tuple(scores), tuple(centers), found


def elbow(sizes: NDArray[Any], errors: F64) -> F64:
    """Slope before minus slope after each number, of log error over log k; NaN at both ends."""
    result = np.full(len(errors), np.nan)
    if len(errors) >= 3:
        # an error of zero is as good as rounding allows
        heights = np.log(np.maximum(errors, max(errors[0] * 1e-12, np.finfo(np.float64).tiny)))
        falls = -np.diff(heights) / np.diff(np.log(sizes))
        result[1:-1] = falls[:-1] - falls[1:]
    return result


def variance_ratio(sizes: NDArray[Any], errors: F64, spread: float, n_rows: float) -> F64:
    """(spread − error) / (k − 1) by error / (N − k), `spread` the error of one cluster; NaN for one."""
    within = np.maximum(errors, max(spread * 1e-12, np.finfo(np.float64).tiny))  # as good as rounding allows
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.maximum(spread - errors, 0.0) / (sizes - 1) * np.maximum(n_rows - sizes, 1) / within
    return np.where(sizes > 1, ratios, np.nan)


def silhouette(rows: F64, weights: F64, centers: F64) -> float:
    """Mean of (b − a) / max(a, b) with a and b the distances to the two closest centres; NaN for one centre."""
    if len(centers) < 2:
        return np.nan
    total = 0.0
    offset = median_center(centers)
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


def _check(
    n_clusters: Iterable[int], model: str, criterion: str, metric: str, max_iter: int, sample_size: int
) -> list[int]:
    """Refuse arguments that do not go together; the numbers to try, ascending."""
    for name, value, allowed in (
        ("model", model, ("kmeans", "gmm")),
        ("criterion", criterion, ("auto", *CRITERIA)),
        ("metric", metric, ("euclidean", "cosine")),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")
    if model == "gmm" and metric == "cosine":
        raise ValueError("metric='cosine' goes with model='kmeans'; a Gaussian mixture has its own distances")
    if criterion in LOWER_IS_BETTER and model != "gmm":
        raise ValueError(f"criterion={criterion!r} needs model='gmm'")
    for name, number in (("max_iter", max_iter), ("sample_size", sample_size)):
        whole_number(name, number)
    given: list[Any] = [n_clusters] if isinstance(n_clusters, Integral) else list(n_clusters)
    if not given or not all(not isinstance(k, bool) and isinstance(k, Integral) and int(k) >= 1 for k in given):
        raise ValueError("n_clusters must be whole numbers of at least 1, such as range(2, 21)")
    return sorted({int(k) for k in given})


def _types(covariance_type: str | Iterable[str]) -> tuple[str, ...]:
    """The covariance types to try."""
    named = {"all": tuple(FAMILIES)}
    given = named.get(covariance_type, (covariance_type,)) if isinstance(covariance_type, str) else covariance_type
    types = tuple(dict.fromkeys(given))
    unknown = [name for name in types if name not in FAMILIES]
    if unknown or not types:
        allowed = ", ".join(("all", *FAMILIES))
        raise ValueError(f"covariance_type must be one or several of {allowed}; got {covariance_type!r}")
    return types
