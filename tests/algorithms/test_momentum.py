"""Momentum: the freedom of the ball around the mean, and what it may not do."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from globular.algorithms.kmeans.centers import CenterUpdate
from globular.algorithms.kmeans.momentum import LEAD, REACH, Momentum


def lengths(vectors: Any) -> Any:
    return np.linalg.norm(vectors, axis=1)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5))
def test_centers_stay_in_the_ball_that_cannot_raise_the_objective(seed: int, n_clusters: int, n_columns: int) -> None:
    random = np.random.default_rng(seed)
    momentum = Momentum()
    centers, last = random.normal(size=(n_clusters, n_columns)), None
    for _ in range(4):
        means = centers + random.normal(size=centers.shape) * random.integers(0, 2, size=(n_clusters, 1))
        beyond = momentum.beyond(centers, CenterUpdate(means))
        radius = lengths(means - centers)
        if last is not None:
            radius = np.minimum(radius, LEAD * lengths(means - last))
        np.testing.assert_allclose(lengths(beyond - means), REACH * radius, rtol=1e-9, atol=1e-12)
        centers, last = beyond, means


@given(st.integers(0, 10_000), st.integers(2, 5))
def test_unit_centers_stay_on_the_cap_of_the_old_ones(seed: int, n_columns: int) -> None:
    random = np.random.default_rng(seed)

    def directions() -> Any:
        drawn = random.normal(size=(8, n_columns))
        return drawn / lengths(drawn)[:, None]

    momentum, centers = Momentum(unit_centers=True), directions()
    for _ in range(3):
        means = directions()
        beyond = momentum.beyond(centers, CenterUpdate(means))
        np.testing.assert_allclose(lengths(beyond), 1.0, rtol=1e-12)
        assert ((beyond * means).sum(axis=1) >= (centers * means).sum(axis=1) - 1e-12).all()
        centers = beyond


def test_a_steady_drift_is_followed_and_a_fixed_point_stays() -> None:
    momentum = Momentum()
    old = np.zeros((2, 2))
    means = np.array([[1.0, 0.0], [0.0, 0.0]])
    beyond = momentum.beyond(old, CenterUpdate(means))
    np.testing.assert_allclose(beyond, [[1.0 + REACH, 0.0], [0.0, 0.0]])
    # rows that have settled leave the mean where it was: the centre comes home at once
    np.testing.assert_array_equal(momentum.beyond(beyond, CenterUpdate(means)), means)


def test_a_relocated_cluster_starts_anew_from_its_place() -> None:
    momentum = Momentum()
    momentum.beyond(np.zeros((2, 1)), CenterUpdate(np.ones((2, 1))))
    beyond = momentum.beyond(np.ones((2, 1)), CenterUpdate(np.array([[9.0], [2.0]]), relocated=((0, 1),)))
    assert beyond[0, 0] == 9.0
    assert beyond[1, 0] == pytest.approx(2.0 + REACH)


def test_a_cluster_without_a_direction_stays_where_it_is() -> None:
    old = np.array([[0.0, 0.0], [1.0, 0.0]])
    centers = Momentum(unit_centers=True).beyond(old, CenterUpdate(np.array([[0.0, 0.0], [0.6, 0.8]])))
    np.testing.assert_array_equal(centers[0], 0.0)
    assert np.isfinite(centers).all()
