"""The tree of centres is that of Ward's criterion with weights."""

import numpy as np
import pytest
from scipy.cluster import hierarchy

from globular.algorithms import ward
from globular.algorithms.ward import ward_linkage


def by_brute_force(means: np.ndarray, weights: np.ndarray) -> list[float]:
    """Heights of the joins, the cheapest of all pairs each time."""
    means, weights, left, heights = means.copy(), weights.copy(), list(range(len(means))), []
    while len(left) > 1:
        pairs = [(a, b) for i, a in enumerate(left) for b in left[i + 1 :]]
        costs = [
            weights[a] * weights[b] / (weights[a] + weights[b]) * np.square(means[a] - means[b]).sum() for a, b in pairs
        ]
        a, b = pairs[int(np.argmin(costs))]
        heights.append(np.sqrt(2 * min(costs)))
        means[a] = (weights[a] * means[a] + weights[b] * means[b]) / (weights[a] + weights[b])
        weights[a] += weights[b]
        left.remove(b)
    return heights


@pytest.mark.parametrize("soon", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("at_once", [1, 1 << 18])
def test_heights_are_those_of_brute_force(soon: float, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ward, "SOON", soon)
    monkeypatch.setattr(ward, "DISTANCES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    means, weights = rng.normal(size=(40, 3)), rng.integers(1, 50, size=40).astype(float)
    np.testing.assert_allclose(ward_linkage(means, weights)[:, 2], by_brute_force(means, weights), rtol=1e-9)


@pytest.mark.parametrize("D", [1, 2, 30])
def test_equal_weights_are_scipys(D: int) -> None:
    means = np.random.default_rng(1).normal(size=(300, D)) + 100.0
    found, wanted = ward_linkage(means, np.ones(300)), hierarchy.linkage(means, "ward")
    np.testing.assert_allclose(found[:, 2], wanted[:, 2], rtol=1e-9)
    np.testing.assert_array_equal(found[:, [0, 1, 3]], wanted[:, [0, 1, 3]])


@pytest.mark.parametrize(
    "means", [np.zeros((50, 2)), np.repeat(np.arange(12.0), 4)[:, None], np.indices((6, 6)).reshape(2, -1).T * 1.0]
)
def test_duplicates_and_ties_give_a_tree(means: np.ndarray) -> None:
    found = ward_linkage(means, np.ones(len(means)))
    assert hierarchy.is_valid_linkage(found) and hierarchy.is_monotonic(found)
    assert (found[:, 2] == 0).sum() == len(means) - len(np.unique(means, axis=0))


def test_clusters_without_rows_join_first_and_one_is_a_tree() -> None:
    found = ward_linkage(np.array([[0.0], [1.0], [1.4]]), np.array([5.0, 0.0, 5.0]))
    assert found[0, :2].tolist() == [1, 2] and found[0, 2] < 1e-3
    assert ward_linkage(np.zeros((1, 2)), np.ones(1)).shape == (0, 4)


@pytest.mark.parametrize("far", [1e6, 1e9, 1e12])
def test_one_far_centre_changes_no_other_join(far: float) -> None:
    centers = np.random.default_rng(0).normal(size=(40, 6))
    centers[11] = far
    found, wanted = ward_linkage(centers, np.ones(40)), hierarchy.linkage(centers, "ward")
    np.testing.assert_array_equal(found[:, :2], wanted[:, :2])
    np.testing.assert_allclose(found[:, 2], wanted[:, 2], rtol=1e-9)
