"""Draw the picture of docs/trees.md: a random and a balanced part of crowded rows, and the tree that balances it.

python docs/images/trees.py           # writes docs/images/trees.png, some seconds
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from globular import HierarchicalKMeans
from globular.plotting import plot_icicle
from globular.plotting.history import GREY, HUES

N_KEPT = 800


def crowded(n: int) -> np.ndarray:
    """Four fifths of the rows in two crowds; the others spread over forty small groups."""
    rng = np.random.default_rng(3)
    crowds = np.array([[-3.0, 1.0], [2.5, -2.0]])[rng.integers(2, size=4 * n // 5)] + 0.6 * rng.normal(
        size=(4 * n // 5, 2)
    )
    groups = rng.uniform(-9.0, 9.0, size=(40, 2))
    others = groups[rng.integers(40, size=n - len(crowds))] + 0.35 * rng.normal(size=(n - len(crowds), 2))
    return np.concatenate([crowds, others])


def main() -> None:
    X = crowded(40_000)
    model = HierarchicalKMeans((400, 60, 8), resample=5, random_state=0).fit(X)
    figure = Figure(figsize=(13, 4.4), layout="constrained", dpi=110)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
    colors = np.array(HUES)[model.level_labels_[:, -1] % len(HUES)]
    drawn = np.random.default_rng(0).choice(len(X), N_KEPT, replace=False)
    for ax, rows, title in ((left, drawn, "at random"), (middle, model.sample(N_KEPT, random_state=0), "balanced")):
        ax.scatter(*X[::10].T, s=2, color=GREY, alpha=0.25, linewidths=0)
        ax.scatter(*X[rows].T, s=9, c=colors[rows], linewidths=0)
        ax.set(title=f"{N_KEPT} of {len(X):,} rows, {title}", xticks=[], yticks=[])
        ax.set_aspect("equal")
        ax.spines[:].set_visible(False)
    plot_icicle(model, right)
    figure.savefig(Path(__file__).with_name("trees.png"))


if __name__ == "__main__":
    main()
