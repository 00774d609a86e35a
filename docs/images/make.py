"""Draw the picture at the head of the README: a generated galaxy in ten thousand clusters.

    python docs/images/make.py            # writes docs/images/galaxy.png, a few seconds

Left, every cluster as the polygon of points closest to its centre, coloured by how densely its rows lie. Right, a small
part of the same map with the rows themselves and the centres.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from scipy.spatial import Voronoi

import globular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Array = NDArray[Any]

N_ROWS = 400_000
N_CLUSTERS = 10_000
WINDOW = (0.28, 0.30, 0.165)
"""Lower left corner and side of the part that is shown enlarged."""
NIGHT = "#0b0d17"
PALE = "#c9cfdd"


def galaxy(n_rows: int, seed: int = 0) -> Array:
    """Stars in the plane: a dense core, a disc, two spiral arms and some globular clusters around them."""
    rng = np.random.default_rng(seed)
    n_core, n_disc, n_globular = n_rows // 6, n_rows // 5, n_rows // 14
    n_arms = n_rows - n_core - n_disc - n_globular
    core = rng.standard_normal((n_core, 2)) * 0.055 * rng.gamma(1.6, 0.7, size=(n_core, 1))
    disc = _polar(0.42 * np.sqrt(-np.log(1 - rng.random(n_disc)) / 1.4), rng.uniform(0, 2 * np.pi, n_disc))
    turn = rng.random(n_arms) ** 0.75
    arm = rng.integers(2, size=n_arms) * np.pi
    spread = rng.standard_normal((n_arms, 2)) * (0.016 + 0.034 * turn[:, None])
    arms = _polar(0.07 + 0.86 * turn, arm + 1.1 + 5.2 * turn**0.8) + spread
    places = _polar(rng.uniform(0.45, 1.05, 26), rng.uniform(0, 2 * np.pi, 26))
    sizes = rng.uniform(0.006, 0.016, 26)
    which = rng.integers(26, size=n_globular)
    globulars = places[which] + sizes[which, None] * rng.standard_normal((n_globular, 2))
    stars = np.concatenate([core, disc, arms, globulars])
    flat: Array = np.clip(stars, -1.1, 1.1) * [1.25, 0.9]
    return flat.astype(np.float32)


def _polar(radius: Array, angle: Array) -> Array:
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])


def cells(centers: Array, reach: Array) -> list[Array]:
    """The polygon of each centre, cut off at its reach; a ring of far centres closes the outermost ones."""
    ring = _polar(np.full(64, 40.0), np.linspace(0, 2 * np.pi, 64, endpoint=False))
    diagram = Voronoi(np.concatenate([centers, ring]))
    polygons = []
    for center, longest, region in zip(centers, reach, diagram.point_region[: len(centers)], strict=True):
        arms = diagram.vertices[diagram.regions[region]] - center
        lengths = np.maximum(np.linalg.norm(arms, axis=1), 1e-12)
        polygons.append(center + arms * np.minimum(1.0, longest / lengths)[:, None])
    return polygons


def reach(X: Array, labels: Array, centers: Array) -> Array:
    """How far the rows of each cluster lie from its centre, roughly."""
    squared = ((X - centers[labels]) ** 2).sum(axis=1)
    counts = np.maximum(np.bincount(labels, minlength=len(centers)), 1)
    return 0.012 + 3.0 * np.sqrt(np.bincount(labels, squared, len(centers)) / counts)


def draw(X: Array, model: Any) -> Figure:
    """The whole map and the enlarged part, side by side."""
    centers = model.cluster_centers_.astype(np.float64)
    frame = np.array([1.4, 1.02])
    polygons = cells(centers, reach(X, model.labels_, centers))
    sizes = np.bincount(model.labels_, minlength=len(centers))
    density = np.log(np.maximum(sizes, 1) / np.array([_area(polygon) for polygon in polygons]))
    low, high = np.quantile(density, [0.01, 0.995])
    colors = colormaps["magma"](0.04 + 0.94 * np.clip((density - low) / (high - low), 0, 1))

    figure = Figure(figsize=(15, 7.3), facecolor=NIGHT)
    whole = figure.add_axes((0.008, 0.02, 0.627, 0.905))
    part = figure.add_axes((0.645, 0.02, 0.347, 0.905))
    whole.add_collection(PolyCollection(polygons, facecolors=colors, edgecolors=NIGHT, linewidths=0.22))
    x, y, side = WINDOW
    height = side * (0.905 * 7.3) / (0.347 * 15)  # the shape of the right panel
    whole.add_patch(Rectangle((x, y), side, height, fill=False, edgecolor="white", linewidth=1.2))
    _limits(whole, -frame[0], frame[0], -frame[1], frame[1])

    inside = _within(X, x, y, side, height)
    part.add_collection(PolyCollection(polygons, facecolors="none", edgecolors="#454c66", linewidths=0.7))
    part.scatter(X[inside, 0], X[inside, 1], c=_hues(model)[model.labels_[inside]], s=3.2, linewidths=0)
    near = _within(centers, x, y, side, height)
    part.scatter(centers[near, 0], centers[near, 1], c="white", s=7, linewidths=0)
    _limits(part, x, x + side, y, y + height)
    words = f"{len(X):,} stars in {len(centers):,} clusters"
    figure.text(0.012, 0.955, words, color="white", fontsize=17, va="center")
    figure.text(0.645, 0.955, "the marked part: rows, centres, borders", color=PALE, fontsize=14, va="center")
    return figure


def _within(points: Array, x: float, y: float, width: float, height: float) -> Array:
    over, up = points[:, 0] - x, points[:, 1] - y
    return np.flatnonzero((over > 0) & (over < width) & (up > 0) & (up < height))


def _area(polygon: Array) -> float:
    x, y = polygon.T
    return max(0.5 * abs(float(x @ np.roll(y, 1) - y @ np.roll(x, 1))), 1e-12)


def _hues(model: Any) -> Array:
    """A colour per cluster; its neighbours in the cluster graph have others, as far as there are enough."""
    palette = colormaps["Set2"](np.arange(8))
    hue = np.full(model.n_clusters, -1)
    for cluster, neighbors in enumerate(model.neighbors_):
        free = np.setdiff1d(np.arange(8), hue[neighbors])
        hue[cluster] = free[cluster % len(free)] if len(free) else cluster % 8
    return palette[hue]


def _limits(axes: Axes, left: float, right: float, bottom: float, top: float) -> None:
    axes.set(xlim=(left, right), ylim=(bottom, top), facecolor="black")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#2a3047")


def main() -> None:
    """Generate, cluster, draw."""
    X = galaxy(N_ROWS)
    model = globular.VariationalKMeans(n_clusters=N_CLUSTERS, random_state=0).fit(X)
    target = Path(__file__).with_name("galaxy.png")
    drawn = BytesIO()
    draw(X, model).savefig(drawn, dpi=100, facecolor=NIGHT)
    with Image.open(drawn) as picture:  # 256 colours look the same and take a third of the space
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{len(X):,} rows, {N_CLUSTERS:,} clusters, {model.n_iter_} iterations: {target}")


if __name__ == "__main__":
    main()
