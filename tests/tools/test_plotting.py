"""Pictures: what is drawn is what was given, or what a model holds."""

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.spatial import Delaunay

import globular
from globular.errors import MissingExtraError
from globular.model.history import History, Record
from tests.makers import blobs

from globular.plotting import (  # isort: skip
    plot_clusters, plot_curves, plot_graph, plot_history, plot_mixture, plot_sizes, plot_time_quality,
)  # fmt: skip

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.collections import EllipseCollection, LineCollection  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    pyplot.close("all")


HISTORY = History(Record(i, 0.5 * i, 100.0 / i, 10) for i in range(1, 6))


def drawn_rows(ax: Any) -> Any:
    return ax.collections[0].get_offsets()


def test_history_draws_objective_against_seconds() -> None:
    ax = Figure().subplots()
    assert plot_history(HISTORY, ax=ax) is ax
    x, y = ax.lines[0].get_data()
    np.testing.assert_array_equal(x, HISTORY.column("seconds"))
    np.testing.assert_array_equal(y, HISTORY.column("objective"))


def test_history_marks_its_stages() -> None:
    stages = ["seeds", "seeds", "part", "swaps", "iterations", "iterations"]
    history = History(Record(max(0, i - 2), float(i), 50.0 - i, 10, stage=stage) for i, stage in enumerate(stages))
    ax = plot_history(history, ax=Figure().subplots())
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1, 2, 3, 4, 5])  # the last of the seeds is enough
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["seeds", "part", "swaps", "iterations", "iteration 3: 45"]
    assert len(plot_history(history[:1], ax=Figure().subplots()).texts) == 1
    assert len(plot_history(HISTORY, ax=Figure().subplots()).texts) == 1  # one stage needs no name


def test_history_takes_a_model_and_makes_its_own_axes() -> None:
    ax = plot_history(SimpleNamespace(history_=HISTORY))
    assert len(ax.lines[0].get_xdata()) == 5


def test_history_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(TypeError, match="history must be a History"):
        plot_history([1, 2, 3])
    with pytest.raises(ValueError, match="empty"):
        plot_history(History())


@pytest.mark.parametrize(
    "sizes",
    [
        [3, 3, 3],
        [1],
        list(range(1, 80)),
        [1] * 50 + [1000],  # a long tail: logarithmic axis
    ],
)
def test_every_cluster_is_in_one_bar(sizes: list[int]) -> None:
    ax = plot_sizes(np.repeat(np.arange(len(sizes)), sizes))
    assert sum(bar.get_height() for bar in ax.patches) == len(sizes)
    assert ax.get_xscale() == ("log" if max(sizes) == 1000 else "linear")


def test_sizes_of_a_model_tell_of_empty_clusters() -> None:
    model = SimpleNamespace(labels_=np.array([0, 0, 2]), cluster_centers_=np.zeros((4, 1)))
    assert "4 clusters" in plot_sizes(model).get_title() and "2 empty" in plot_sizes(model).get_title()


@pytest.mark.parametrize("wrong", [[0.5, 1.0], [], [[0, 1]], [-1, 0], "labels"])
def test_sizes_refuse_what_are_no_labels(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="labels"):
        plot_sizes(wrong)


def test_clusters_draws_rows_and_centers() -> None:
    rng = np.random.default_rng(0)
    X, labels, centers = rng.normal(size=(50, 2)), rng.integers(0, 5, 50), rng.normal(size=(5, 2))
    ax = plot_clusters(X, labels, centers, ax=Figure().subplots())
    np.testing.assert_array_equal(drawn_rows(ax), X)
    np.testing.assert_array_equal(ax.collections[1].get_offsets(), centers)
    colors = ax.collections[0].get_facecolors()
    for cluster in range(5):  # one colour per cluster
        assert len(np.unique(colors[labels == cluster], axis=0)) == 1


def test_clusters_side_by_side_have_different_colors() -> None:
    centers = np.random.default_rng(1).uniform(size=(300, 2))
    ax = plot_clusters(centers, np.arange(300), centers)
    colors = ax.collections[0].get_facecolors()
    start, neighbors = Delaunay(centers).vertex_neighbor_vertices
    for i in range(300):
        for j in neighbors[start[i] : start[i + 1]]:
            assert (colors[i] != colors[j]).any()


def test_clusters_on_a_line_and_a_single_cluster_can_be_drawn() -> None:
    line = np.column_stack([np.arange(6.0), np.zeros(6)])
    assert len(drawn_rows(plot_clusters(line, np.arange(6), line))) == 6
    assert len(drawn_rows(plot_clusters(line, np.zeros(6, int), line[:1]))) == 6


def test_of_many_rows_a_part_is_drawn_and_the_title_says_so() -> None:
    X = np.random.default_rng(0).normal(size=(1000, 2))
    ax = plot_clusters(X, np.zeros(1000, int), [[0.0, 0.0]], max_points=100)
    assert len(drawn_rows(ax)) == 100
    assert "1,000 rows (100 drawn)" in ax.get_title()
    again = plot_clusters(X, np.zeros(1000, int), [[0.0, 0.0]], max_points=100)
    np.testing.assert_array_equal(drawn_rows(ax), drawn_rows(again))


def test_clusters_refuses_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="two columns"):
        plot_clusters(np.zeros((3, 3)), [0, 0, 0], np.zeros((1, 2)))
    with pytest.raises(ValueError, match="labels must have one entry per row"):
        plot_clusters(np.zeros((3, 2)), [0, 0], np.zeros((1, 2)))


def test_time_quality_has_a_bar_per_method_in_both_panels() -> None:
    left, right = plot_time_quality(["a", "b"], [1.0, 2.0], [0.5, 0.4], highlight=["b"])
    assert [bar.get_width() for bar in left.patches] == [1.0, 2.0]
    assert [bar.get_width() for bar in right.patches] == [0.5, 0.4]
    a, b = (bar.get_facecolor() for bar in left.patches)
    assert a != b
    with pytest.raises(ValueError, match="same length"):
        plot_time_quality(["a"], [1.0, 2.0], [0.5])


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtraError, match=r"globular\[plot\]"):
        plot_history(HISTORY)


def test_importing_the_module_does_not_load_matplotlib() -> None:
    code = "import sys, globular.plotting; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
