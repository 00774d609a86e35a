"""Pictures of models: what is drawn is what the model holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import globular
from globular.model.history import History, Record
from globular.plotting import plot_curves, plot_graph, plot_mixture
from tests.makers import blobs

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.collections import EllipseCollection, LineCollection  # noqa: E402


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def the(kind: type, ax: Any) -> Any:
    """The only collection of that kind in a picture."""
    (found,) = [collection for collection in ax.collections if isinstance(collection, kind)]
    return found


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical", "tied_spherical"])
def test_ellipses_are_those_of_the_covariances(covariance_type: str) -> None:
    X = blobs(400, 4, 2) * [1.0, 3.0]
    model = globular.GaussianMixture(4, covariance_type=covariance_type, random_state=0).fit(X)
    ax = plot_mixture(model, X, n_std=1.5)
    ellipses = the(EllipseCollection, ax)
    order = np.argsort(-model.weights_, kind="stable")
    np.testing.assert_allclose(ellipses.get_offsets(), model.means_[order])
    drawn = ellipses.get_widths() * ellipses.get_heights() * np.pi / 4
    for position, c in enumerate(order):
        matrix = {
            "full": lambda c=c: model.covariances_[c],
            "tied": lambda: model.covariances_,
            "diag": lambda c=c: np.diag(model.covariances_[c]),
            "spherical": lambda c=c: model.covariances_[c] * np.eye(2),
            "tied_spherical": lambda: model.covariances_ * np.eye(2),
        }[covariance_type]()
        assert drawn[position] == pytest.approx(np.pi * 1.5**2 * np.sqrt(np.linalg.det(matrix)))
    ax.figure.canvas.draw()


def test_an_ellipse_points_where_the_component_does() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(2000, 2)) * [5.0, 0.5] @ np.array([[0.6, 0.8], [-0.8, 0.6]])  # along (0.6, 0.8)
    ellipses = the(EllipseCollection, plot_mixture(globular.GaussianMixture(1).fit(X)))
    assert ellipses.get_angles()[0] % 180 == pytest.approx(np.degrees(np.arctan2(0.8, 0.6)), abs=3)
    assert ellipses.get_widths()[0] > 5 * ellipses.get_heights()[0]


def test_only_mixtures_in_the_plane_can_be_drawn() -> None:
    with pytest.raises(ValueError, match="two columns"):
        plot_mixture(globular.GaussianMixture(2).fit(blobs(50, 2, 3)))
    with pytest.raises(ValueError, match="fitted"):
        plot_mixture(globular.GaussianMixture(2))
    with pytest.raises(ValueError, match="X must have two columns"):
        plot_mixture(globular.GaussianMixture(1).fit(blobs(50, 2, 2)), blobs(50, 2, 3))


def test_the_graph_has_a_line_for_every_pair_of_neighbours() -> None:
    X = blobs(600, 10, 2)
    model = globular.VariationalKMeans(40, n_neighbors=4, random_state=0).fit(X)
    ax = plot_graph(model)
    pairs = {tuple(sorted((c, int(other)))) for c in range(40) for other in model.neighbors_[c, 1:]}
    segments = the(LineCollection, ax).get_segments()
    assert len(segments) == len(pairs)
    centers = model.cluster_centers_.astype(float)
    drawn = {tuple(sorted(int(np.square(centers - end).sum(axis=1).argmin()) for end in line)) for line in segments}
    assert drawn == pairs
    few = plot_graph(model, max_clusters=10)
    assert "10 largest" in few.get_title() and len(the(LineCollection, few).get_segments()) < len(pairs)


def test_a_model_without_a_graph_is_refused() -> None:
    with pytest.raises(TypeError, match="no cluster graph"):
        plot_graph(globular.KMeans(3).fit(blobs(50)))


def test_curves_take_models_histories_and_pairs() -> None:
    X = blobs(300)
    model = globular.KMeans(5, random_state=0).fit(X)
    history = History(Record(i, 0.1 * i, 50.0 / i, 10) for i in range(1, 4))
    ax = plot_curves({"model": model, "history": history, "pair": ([1.0, 2.0], [9.0, 8.0])}, highlight=["model"])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), model.history_.iterations.column("quantization_error"))
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), history.column("objective"))
    np.testing.assert_array_equal(ax.lines[2].get_data(), [[1.0, 2.0], [9.0, 8.0]])
    assert ax.lines[0].get_color() != ax.lines[1].get_color() == ax.lines[2].get_color()
    with pytest.raises(ValueError, match="empty"):
        plot_curves({})
    with pytest.raises(ValueError, match="'odd'"):
        plot_curves({"odd": ([1.0], [1.0, 2.0])})
