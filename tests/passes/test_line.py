"""One column: the optimum against a dynamic programme over all pairs."""

from typing import Any

import numpy as np
import pytest

import globular
from globular.algorithms.kmeans import line
from globular.data.sources import ArraySource
from globular.passes.cpu import CpuShard
from globular.passes.cpu import line as kernels
from globular.passes.many import StreamShard
from globular.seam.center_passes import SolveLine

random = np.random.default_rng(0)
VALUES: dict[str, Any] = {
    "normal": lambda n: random.normal(size=n),
    "ties": lambda n: random.integers(0, 12, n).astype(float),
    "even": lambda n: np.arange(n, dtype=float),
    "offset": lambda n: 1e8 + random.normal(size=n),
    "outlier": lambda n: np.append(random.normal(size=n - 1), 1e9),
    "tails": lambda n: random.standard_t(2, size=n),
    "float32": lambda n: random.normal(size=n).astype(np.float32),
}


def least_error(x: Any, weights: Any, k: int) -> float:
    """The error of the best k stretches of the sorted values. O(k N²)."""
    order = np.argsort(x)
    x, weights = x[order].astype(np.float64), weights[order]
    N = len(x)
    errors = np.zeros((N + 1, N + 1))
    for i in range(N):
        shifted, w = x[i:] - x[i], weights[i:]
        total = np.maximum(np.cumsum(w), 1e-300)
        errors[i, i + 1 :] = np.cumsum(w * shifted**2) - np.cumsum(w * shifted) ** 2 / total
    best = np.full(N + 1, np.inf)
    best[0] = 0.0
    for _ in range(k):
        best = np.minimum(best, np.min(best[:, None] + np.where(np.tri(N + 1, k=-1).T > 0, errors, np.inf), axis=0))
    return float(best[N])


def error_of(x: Any, weights: Any, centers: Any) -> float:
    return float(weights @ np.square(x[:, None].astype(np.float64) - np.ravel(centers)).min(axis=1))


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("name", VALUES)
def test_the_best_centers_are_found(name: str, weighted: bool) -> None:
    for n in (1, 2, 5, 17, 60):
        x = VALUES[name](n)
        weights = random.integers(1, 5, n).astype(float) if weighted else np.ones(n)
        for k in {1, 2, 3, min(7, n), max(1, n // 2)}:
            found = CpuShard(x[:, None], weights if weighted else None).run(SolveLine(k))
            error = error_of(x, weights, found.centers)
            scale = 1e-13 * float(weights @ np.square(x - np.median(x)))
            assert found.centers.shape == (k, 1) and (np.diff(found.centers[:, 0]) >= 0).all()
            assert error == pytest.approx(least_error(x, weights, k), rel=1e-9, abs=scale)
            assert found.objective == pytest.approx(error, rel=1e-6, abs=scale)


def test_every_number_of_clusters_of_a_lattice_is_the_best() -> None:
    """Of even values many partitions are equally good: exactly k clusters come from two with fewer and with more."""
    x = np.repeat(np.arange(30.0), 2)
    for k in range(1, 31):
        centers = CpuShard(x[:, None]).run(SolveLine(k)).centers
        assert error_of(x, np.ones(60), centers) == pytest.approx(least_error(x, np.ones(60), k), abs=1e-9)


def test_a_coarse_search_first_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.concatenate([random.normal(size=3000), random.uniform(5, 9, size=1000)])[:, None]
    for k in (2, 9, 100):
        whole = CpuShard(x).run(SolveLine(k))
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "FEW", 200)
            patch.setattr(kernels, "FEW_PER_CLUSTER", 4)
            found = CpuShard(x).run(SolveLine(k))
        np.testing.assert_allclose(found.centers, whole.centers, atol=1e-12)
        assert found.n_steps <= whole.n_steps


def test_values_of_too_many_scales_are_left_to_a_search() -> None:
    x = np.concatenate([1e-3 * random.normal(size=300), 1e9 + 1e-3 * random.normal(size=300)])[:, None]
    assert len(CpuShard(x).run(SolveLine(20)).centers) == 0
    assert globular.KMeans(20, random_state=0).fit(x).algorithm_ == "exact"


def test_kmeans_takes_the_optimum_where_nothing_speaks_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random.normal(size=(400, 1))
    model = globular.KMeans(7, random_state=0, n_init=3).fit(x)
    assert (model.algorithm_, model.init_, model.stopped_, model.n_iter_) == ("optimal", "none", "optimum found", 1)
    assert model.inertia_ == pytest.approx(least_error(x[:, 0], np.ones(400), 7)) and model.label_recall_ == 1.0
    np.testing.assert_array_equal(model.labels_, model.predict(x))
    assert len(model.history_) == 1
    others: list[dict[str, Any]] = [
        {"algorithm": "exact"}, {"init": x[:7]}, {"max_time": 60.0}, {"metric": "cosine", "n_clusters": 2},
    ]  # fmt: skip
    for options in others:
        assert globular.KMeans(**{"n_clusters": 7, "random_state": 0, **options}).fit(x).algorithm_ != "optimal"
    again = globular.KMeans(7, warm_start=True, random_state=0).fit(x).fit(x)
    assert again.algorithm_ != "optimal" and again.inertia_ <= model.inertia_ * (1 + 1e-9)
    monkeypatch.setattr(line, "MOST_ROWS", 399)
    assert globular.KMeans(7, random_state=0).fit(x).algorithm_ == "exact"
    monkeypatch.setattr(line, "MOST_ROWS", 400)
    assert globular.KMeans(7, random_state=0).fit(x).algorithm_ == "optimal"


def test_rows_read_anew_or_of_more_columns_are_searched() -> None:
    x = random.normal(size=(400, 2))
    assert line.optimum_on_line(CpuShard(x), 3) is None
    assert line.optimum_on_line(StreamShard(ArraySource(x[:, :1])), 3) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint8"])
def test_weights_are_repetitions_and_rows_of_weight_zero_are_none(dtype: str) -> None:
    x = random.integers(0, 200, size=(300, 1)).astype(dtype)
    weights = random.integers(0, 4, size=300)
    weighted = globular.KMeans(9, random_state=0).fit(x, sample_weight=weights)
    repeated = globular.KMeans(9, random_state=0).fit(np.repeat(x, weights, axis=0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-6)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-6)
    np.testing.assert_array_equal(weighted.labels_, weighted.predict(x))


@pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")
def test_more_clusters_than_distinct_values() -> None:
    model = globular.KMeans(5).fit([[3.0], [1.0], [3.0], [1.0], [2.0]])
    np.testing.assert_array_equal(model.cluster_centers_[:, 0], [1.0, 2.0, 3.0, 3.0, 3.0])
    assert model.inertia_ == 0.0 and model.labels_.tolist() == [2, 0, 2, 0, 1]
