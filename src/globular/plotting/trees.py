"""Picture of a fitted tree of clusters: the width of a node is its share of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from globular.plotting.history import HUES, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_icicle(model: Any, ax: Axes | None = None) -> Axes:
    """Draw a :class:`globular.HierarchicalKMeans`: a line of boxes for each level, each below the one it belongs to.

    The width of a box is the share of rows in the cluster; its colour is the one of its cluster at the top.

    Examples
    --------
    >>> import numpy as np
    >>> import globular
    >>> from globular.plotting import plot_icicle
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> plot_icicle(globular.HierarchicalKMeans((20, 4), random_state=0).fit(X)).get_title()
    '4 > 20 clusters'
    """
    nodes = getattr(model, "tree_", None)
    if nodes is None:
        raise TypeError(f"model must have tree_, such as HierarchicalKMeans; {type(model).__name__} has none")
    axes = new_axes(ax)
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    top, left, colors = int(nodes["level"].max()), np.zeros(len(nodes)), np.zeros((len(nodes), 3))
    for level in range(top, -1, -1):
        here = np.flatnonzero(nodes["level"] == level)
        if level < top:
            here = here[np.argsort(left[nodes["parent"][here]], kind="stable")]
            colors[here] = colors[nodes["parent"][here]]
        else:
            colors[here] = [to_rgb(HUES[number % len(HUES)]) for number in range(len(here))]
        ends = np.cumsum(nodes["size"][here]) / nodes["size"][here].sum()
        left[here] = np.concatenate([[0.0], ends[:-1]])
        x = np.stack([left[here], left[here], ends, ends], axis=1)
        y = np.broadcast_to(level + np.array([0.0, 0.96, 0.96, 0.0]), x.shape)
        shades = 1.0 - (1.0 - colors[here]) * np.where(np.arange(len(here)) % 2, 1.0, 0.72)[:, None]
        width = min(0.8, 20 / len(here))  # wider lines around thin boxes would hide them
        boxes = list(np.stack([x, y], axis=2))
        axes.add_collection(PolyCollection(boxes, facecolors=shades, edgecolors="white", linewidths=width))
    counts = np.bincount(nodes["level"])
    axes.set(xlim=(0, 1), ylim=(0, top + 1), xlabel="share of the rows", yticks=np.arange(top + 1) + 0.48)
    axes.set_yticklabels([f"{count:,}" for count in counts])
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_title(" > ".join(f"{count:,}" for count in counts[::-1]) + " clusters")
    return axes
