"""How well numbers of clusters do by several criteria, as :func:`globular.select` has found, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64

if TYPE_CHECKING:
    import pandas as pd

Criterion = Literal["elbow", "silhouette", "variance_ratio", "bic", "icl"]
CRITERIA = ("elbow", "silhouette", "variance_ratio", "bic", "icl")
LOWER_IS_BETTER = ("bic", "icl")
_WHY_ABSENT = {
    "elbow": "it needs at least three numbers of clusters",
    "silhouette": "it needs at least two clusters",
    "variance_ratio": "it needs at least two clusters",
    "bic": "it needs model='gmm'",
    "icl": "it needs model='gmm'",
}
FAINT_SILHOUETTE = 0.1
"""A silhouette that is higher by less than that of rows without clusters says little."""
CLOSE_SILHOUETTES = 0.01
"""Silhouettes that differ by less are as good as each other."""
CLOSE_CRITERIA = 10.0
"""Values of BIC or ICL that differ by less leave both numbers open; more is very strong evidence [Kass and Raftery]."""
FACTOR_APART = 1.5
"""Numbers of components that BIC and ICL prefer, one of them more than this times the other, disagree. (Criteria of
k-means do so whenever they differ: each of them is wrong about as often as the others.)"""


@dataclass(frozen=True, slots=True)
class Score:
    """One number of clusters, and of mixtures one covariance type; NaN where a criterion does not apply."""

    n_clusters: int
    error: float
    """Mean squared distance of a row to its closest centre."""
    elbow: float
    """How much steeper the error falls before this number than after it, on logarithmic axes."""
    silhouette: float
    """Mean over a sample, between 0 and 1."""
    bic: float
    """Bayesian information criterion of the mixture; the lower the better."""
    icl: float = np.nan
    """BIC and twice the entropy of the responsibilities; the lower the better."""
    covariance_type: str = ""
    """The covariance type of the mixture; empty for k-means."""
    variance_ratio: float = np.nan
    """The variance between clusters by that within, each by its degrees of freedom [Caliński and Harabasz]."""


@dataclass(frozen=True, slots=True, repr=False)
class Scores:
    """The scores of a range of numbers of clusters, and the centres that go with them."""

    scores: tuple[Score, ...]
    criterion: Criterion
    """The criterion by which `best` is chosen."""
    centers: tuple[NDArray[np.floating[Any]], ...]
    """One array per score: a start for the fit with that number, ``init=selection.centers_for(k)``."""
    best_model_: Any = None
    """The model of the best number, fitted: a `KMeans`, or a `GaussianMixture` of the best covariance type."""
    reference: float = np.nan
    """The silhouette of `best` clusters in rows that have none, a Gaussian with the covariance of a sample; NaN where
    another criterion is gone by."""
    is_singular: bool = False
    """Whether a component of the best mixture holds no more rows than its covariance needs to be one."""

    @property
    def best(self) -> int:
        """The number of clusters that the criterion prefers."""
        return self.best_by(self.criterion)

    @property
    def best_covariance_type(self) -> str:
        """The covariance type that goes with `best`; empty for k-means."""
        return self.best_score(self.criterion).covariance_type

    def best_by(self, criterion: Criterion) -> int:
        """The number that another criterion prefers."""
        return self.best_score(criterion).n_clusters

    def best_score(self, criterion: Criterion) -> Score:
        """The score that a criterion prefers."""
        if criterion not in CRITERIA:
            raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}; got {criterion!r}")
        values = self.column(criterion)
        if np.isnan(values).all():
            raise ValueError(f"criterion {criterion!r} was not computed: {_WHY_ABSENT[criterion]}")
        best = np.nanmin(values) if criterion in LOWER_IS_BETTER else np.nanmax(values)
        # types of one number share what k-means says of it
        level = [score for score, value in zip(self.scores, values, strict=True) if value == best]
        return min(level, key=lambda score: (score.n_clusters, np.nan_to_num(score.bic, nan=np.inf)))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons not to trust `best`, in words; empty where there is none."""
        best, reasons = self.best_score(self.criterion), []
        sizes = sorted({score.n_clusters for score in self.scores})
        if len(sizes) > 1 and best.n_clusters == sizes[-1]:
            reasons.append(f"{best.n_clusters:,} is the largest number tried: try larger ones")
        elif len(sizes) > 1 and best.n_clusters == sizes[0] > 1:
            reasons.append(f"{best.n_clusters:,} is the smallest number tried: there may be fewer clusters, or none")
        if self.criterion == "silhouette" and best.silhouette - self.reference < FAINT_SILHOUETTE:
            reasons.append(
                f"the silhouette, {best.silhouette:.2f}, is hardly above the {self.reference:.2f} "
                "of rows without clusters"
            )
        if self.is_singular:
            reasons.append("a component has too few rows for its covariance, so likelihoods are as high as one likes")
        rivals = [f"{size:,}" for size in self._rivals(best)]
        if rivals:
            reasons.append(f"{', '.join(rivals[:3])} clusters score as well as {best.n_clusters:,}")
        of_mixtures = self.criterion in LOWER_IS_BETTER
        for other in CRITERIA:
            known = not np.isnan(self.column(other)).all() and (other in LOWER_IS_BETTER) == of_mixtures
            number = self.best_by(other) if known else best.n_clusters  # type: ignore[arg-type]
            apart = max(number, best.n_clusters) / min(number, best.n_clusters)
            if apart > (FACTOR_APART if of_mixtures else 1.0):
                reasons.append(f"by {other.replace('_', ' ')} it would be {number:,}")
        return tuple(reasons)

    def _rivals(self, best: Score) -> list[int]:
        """Other numbers, not next to the best one, that score nearly as well."""
        if self.criterion in ("elbow", "variance_ratio"):
            return []
        values, sizes = self.column(self.criterion), self.column("n_clusters").astype(int)
        close = CLOSE_CRITERIA if self.criterion in LOWER_IS_BETTER else CLOSE_SILHOUETTES
        near = np.abs(values - getattr(best, self.criterion)) < close
        tried = sorted(set(sizes.tolist()))
        place = tried.index(best.n_clusters)
        neighbors = tried[max(0, place - 1) : place + 2]
        return sorted({int(size) for size in sizes[near]} - set(neighbors))

    def centers_for(self, n_clusters: int) -> NDArray[np.floating[Any]]:
        """The centres of one number of clusters."""
        for score, centers in zip(self.scores, self.centers, strict=True):
            if score.n_clusters == n_clusters:
                return centers
        sizes = sorted({score.n_clusters for score in self.scores})
        raise ValueError(f"n_clusters={n_clusters} was not tried: {sizes}")

    def column(self, name: str) -> F64:
        """One field of all scores; words are left as they are."""
        values = [getattr(score, name) for score in self.scores]
        return np.array(values) if name == "covariance_type" else np.array(values, dtype=np.float64)

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with one row per score (needs pandas)."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas; install it with: pip install pandas") from error
        frame = pandas.DataFrame({field.name: self.column(field.name) for field in fields(Score)})
        return frame.astype({"n_clusters": int})

    def __repr__(self) -> str:
        kind = f", {self.best_covariance_type}" if self.best_covariance_type else ""
        lines = [f"{type(self).__name__}(best={self.best}{kind} by {self.criterion})"]
        heading = f"{'n_clusters':>10} {'error':>12} {'elbow':>9} {'silhouette':>10} {'bic':>14} {'icl':>14}"
        lines.append(heading + (" covariance_type" if kind else ""))
        for score in self.scores:
            numbers = (f"{score.elbow:>9.3f} {score.silhouette:>10.3f} {score.bic:>14.6g} {score.icl:>14.6g}").replace(
                "nan", "  –"
            )
            lines.append(f"{score.n_clusters:>10,} {score.error:>12.5g} {numbers} {score.covariance_type}".rstrip())
        lines += [f"Beware: {reason}." for reason in self.doubts]
        return "\n".join(lines)
