"""A certificate of truncation: what looking at few clusters misses, told by a random sample of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.kmeans.probing import find_labels
from globular.algorithms.mixtures.probing import with_members
from globular.estimators.checks import whole_number
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64
from globular.seam.answers import Answer, Own
from globular.seam.passes import Assign
from globular.seam.shard import Shard, answer


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a search among few clusters misses, and the standard errors that a sample leaves."""

    n_samples: int
    """Rows that were looked at, under all clusters."""
    missed: float
    """Share of them whose best cluster the search does not come across."""
    missed_error: float
    loss: float
    """What that costs: for k-means the share by which the mean squared distance is larger than with the closest
    centres, for mixtures log-likelihood minus bound, in nats a row."""
    loss_error: float
    unit: str
    """What the loss is counted in."""

    def __str__(self) -> str:
        return (
            f"{self.missed:.2%} ± {self.missed_error:.2%} of {self.n_samples:,} sampled rows have their best cluster "
            f"outside the search; loss {self.loss:.3g} ± {self.loss_error:.1g} {self.unit}"
        )


def is_truncated(model: Any) -> bool:
    """Whether a fitted model has looked at few clusters a row, and can tell what that misses."""
    searches = hasattr(model, "neighbors_") or getattr(model, "algorithm_", None) == "probing"
    return searches and hasattr(model, "certificate")


def of_centers(shard: Shard, centers: F64, n_samples: int) -> Certificate:
    """Rows searched by way of cells of centres, against all centres."""
    sample = _sample(shard, n_samples)
    find_labels(sample, centers, np.random.default_rng(0))
    found = answer(sample, Own(centers), "squares")
    sample.run(Assign(centers, want="labels"))
    best = answer(sample, Own(centers), "squares")
    mean = float(best.mean())
    loss = float(found.mean()) / mean - 1.0 if mean > 0 else 0.0
    spread = (found - (1.0 + loss) * best) / mean if mean > 0 else np.zeros(1)
    return _certificate(found > best, loss, spread, "of the mean squared distance")


def of_mixture(shard: Shard, mixture: GaussianParameters, n_candidates: int, n_samples: int) -> Certificate:
    """The bound of Eq. 10 by K(n), found by way of cells of means, against the log-likelihood."""
    sample = _sample(shard, n_samples)
    best = np.asarray(answer(sample, mixture, "components"))
    exact = answer(sample, mixture, "log_densities")
    kept = sample.run(Answer(with_members(sample, mixture, n_candidates), "posterior"))
    members = np.concatenate([one.members for one in kept])
    gaps = exact - np.concatenate([one.log_densities for one in kept])
    return _certificate((members != best[:, None]).all(axis=1), float(gaps.mean()), gaps, "nats a row")


def _sample(shard: Shard, n_samples: Any) -> Shard:
    n = min(whole_number("n_samples", n_samples), shard.n_rows)
    return shard.subset(np.sort(np.random.default_rng(0).choice(shard.n_rows, n, replace=False)))


def _certificate(missed: NDArray[np.bool_], loss: float, values: F64, unit: str) -> Certificate:
    n, share = len(missed), float(np.mean(missed))
    error = float(np.std(values)) / np.sqrt(max(1, n - 1))
    return Certificate(n, share, float(np.sqrt(share * (1 - share) / n)), max(loss, 0.0), float(error), unit)
