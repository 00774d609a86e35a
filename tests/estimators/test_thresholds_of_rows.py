"""A row more must not cost likelihood: N over every number of rows at which a mixture begins in another way."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from globular import GaussianMixture
from globular.algorithms.mixtures.pipeline import SHORT_ROWS, SHORT_SHARE, TIMES_MORE_ROWS, rows_of_part

HELD_OUT, COLUMNS = 4000, 4


def rows(n: int, seed: int) -> np.ndarray:
    """Correlated groups of uneven size, some of them close, in random order."""
    random = np.random.default_rng(seed)
    means, shapes = 1.5 * random.normal(size=(60, COLUMNS)), random.normal(size=(60, COLUMNS, COLUMNS)) / 2
    which = random.choice(60, size=n, p=random.dirichlet(np.full(60, 2.0)))
    return means[which] + np.einsum("nij,nj->ni", shapes[which], random.normal(size=(n, COLUMNS)))


def thresholds(k: int, covariance_type: str) -> dict[str, int]:
    """Numbers of rows from which something else is done."""
    part: Any = SimpleNamespace(n_columns=COLUMNS)
    n = rows_of_part(part, k, covariance_type)
    return {"part": TIMES_MORE_ROWS * n, "short runs": SHORT_SHARE * SHORT_ROWS, "sixteen parts": 16 * n}


def check(k: int, n: int, algorithm: str, covariance_type: str, seed: int, n_fits: int = 3) -> None:
    X = rows(n + 1 + HELD_OUT, seed)
    held_out, X = X[:HELD_OUT], X[HELD_OUT:]
    before, after = (
        np.array([
            GaussianMixture(k, algorithm=algorithm, covariance_type=covariance_type, random_state=seed)
            .fit(X[:size]).score(held_out)
            for seed in range(n_fits)
        ])
        for size in (n - 1, n + 1)
    )  # fmt: skip
    spread = max(np.ptp(before), np.ptp(after), 0.01)
    assert after.mean() > before.mean() - spread, (before, after)


@pytest.mark.parametrize("algorithm", ["auto", "chunky"])
@pytest.mark.parametrize("name", ["part", "short runs"])
def test_likelihood_does_not_fall_at_a_threshold(algorithm: str, name: str) -> None:
    check(20, thresholds(20, "diag")[name], algorithm, "diag", 0)


@pytest.mark.slow
@pytest.mark.parametrize("k", [20, 50, 100])
@pytest.mark.parametrize("algorithm", ["auto", "chunky"])
@pytest.mark.parametrize("name", ["part", "sixteen parts", "hundred thousand"])
def test_likelihood_does_not_fall_at_any_threshold(k: int, algorithm: str, name: str) -> None:
    check(k, {**thresholds(k, "full"), "hundred thousand": 100_000}[name], algorithm, "full", 1, n_fits=8)


def test_chunky_em_begins_where_em_does() -> None:
    X = rows(3000, 0)
    stages = {record.stage for record in GaussianMixture(20, algorithm="chunky", random_state=0).fit(X).history_}
    assert "part" in stages
