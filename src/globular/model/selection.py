"""How well numbers of clusters do by several criteria, as :func:`globular.select` has found."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64

if TYPE_CHECKING:
    import pandas as pd

Criterion = Literal["elbow", "silhouette", "bic"]
CRITERIA = ("elbow", "silhouette", "bic")
_WHY_ABSENT = {
    "elbow": "it needs at least three numbers of clusters",
    "silhouette": "it needs at least two clusters",
    "bic": "it needs model='gmm'",
}


@dataclass(frozen=True, slots=True)
class Score:
    """One number of clusters; NaN where a criterion does not apply."""

    n_clusters: int
    error: float
    """Mean squared distance of a row to its closest centre."""
    elbow: float
    """How much steeper the error falls before this number than after it, on logarithmic axes."""
    silhouette: float
    """Mean over a sample, between 0 and 1."""
    bic: float
    """Bayesian information criterion of the mixture; the lower the better."""


@dataclass(frozen=True, slots=True, repr=False)
class Scores:
    """The scores of a range of numbers of clusters, and the centres that go with them."""

    scores: tuple[Score, ...]
    criterion: Criterion
    """The criterion by which `best` is chosen."""
    centers: tuple[NDArray[np.floating[Any]], ...]
    """One array per score: a start for the fit with that number, ``init=selection.centers_for(k)``."""

    @property
    def best(self) -> int:
        """The number of clusters that the criterion prefers."""
        return self.best_by(self.criterion)

    def best_by(self, criterion: Criterion) -> int:
        """The number that another criterion prefers."""
        if criterion not in CRITERIA:
            raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}; got {criterion!r}")
        values = self.column(criterion)
        if np.isnan(values).all():
            raise ValueError(f"criterion {criterion!r} was not computed: {_WHY_ABSENT[criterion]}")
        chosen = np.nanargmin(values) if criterion == "bic" else np.nanargmax(values)
        return self.scores[int(chosen)].n_clusters

    def centers_for(self, n_clusters: int) -> NDArray[np.floating[Any]]:
        """The centres of one number of clusters."""
        for score, centers in zip(self.scores, self.centers, strict=True):
            if score.n_clusters == n_clusters:
                return centers
        raise ValueError(f"n_clusters={n_clusters} was not tried: {[score.n_clusters for score in self.scores]}")

    def column(self, name: str) -> F64:
        """One field of all scores."""
        return np.array([getattr(score, name) for score in self.scores], dtype=np.float64)

    def to_pandas(self) -> pd.DataFrame:
        """A DataFrame with one row per number of clusters (needs pandas)."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas; install it with: pip install pandas") from error
        frame = pandas.DataFrame({field.name: self.column(field.name) for field in fields(Score)})
        return frame.astype({"n_clusters": int})

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}(best={self.best} by {self.criterion})"]
        lines.append(f"{'n_clusters':>10} {'error':>12} {'elbow':>9} {'silhouette':>10} {'bic':>14}")
        for score in self.scores:
            numbers = f"{score.elbow:>9.3f} {score.silhouette:>10.3f} {score.bic:>14.6g}".replace("nan", "  –")
            lines.append(f"{score.n_clusters:>10,} {score.error:>12.5g} {numbers}")
        return "\n".join(lines)
