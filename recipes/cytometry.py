"""Cell populations without a number of clusters: an infinite mixture on flow cytometry, beside manual gates.

    python -m recipes.cytometry [--min-split-gain 0.1] [-o labels.npy] [--small]

Uses the fluorescence columns of the flowsom_ff set in the folder GLOBULAR_DATA where there is one, and generated cells
otherwise. Gates are drawn by hand on a few markers; a mixture sees all of them, and parts what a gate joins. So there
are two figures: agreement with the gates (adjusted Rand index), and purity, the share of gated cells whose component is
mostly of their gate. The fit does not see the gates.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from globular import InfiniteGaussianMixture
from globular.io import write_array

SCATTER = ("Time", "FSC", "SSC")
UNGATED = "Unlabeled"


@dataclass(frozen=True, slots=True)
class Cells:
    """Measured cells, and which gate each fell into."""

    X: NDArray[np.float32]
    gate: NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def gated(self) -> NDArray[np.bool_]:
        """Cells that somebody gave a name."""
        return np.array([name != UNGATED for name in self.names])[self.gate]


@dataclass(frozen=True, slots=True)
class Populations:
    """What the mixture found, and how it agrees with the gates."""

    labels: NDArray[np.int64]
    n_components: int
    agreement: float
    """Adjusted Rand index over the gated cells."""
    purity: float
    """Share of the gated cells in components that are mostly of their gate."""


def main(arguments: Sequence[str] | None = None) -> Populations:
    parser = argparse.ArgumentParser(description="cell populations by an infinite mixture")
    parser.add_argument("-o", "--output", help="write the population of every cell (.npy, .csv, .parquet)")
    parser.add_argument("--min-split-gain", type=float, default=0.02, help="larger means fewer, coarser populations")
    parser.add_argument("--small", action="store_true", help="few generated cells")
    options = parser.parse_args(arguments)
    cells = generated(4_000) if options.small else measured()
    model = InfiniteGaussianMixture(min_split_gain=options.min_split_gain, random_state=0).fit(cells.X)
    found = compare(cells, model.predict(cells.X))
    print(f"{len(cells.X):,} cells, {cells.X.shape[1]} markers: {found.n_components} populations")
    for size, gate, share in describe(cells, found.labels):
        print(f"  {size:6,d} cells, {share:4.0%} {gate}")
    print(f"adjusted Rand index with the gates {found.agreement:.3f}, purity {found.purity:.3f}")
    if options.output:
        write_array(options.output, found.labels)
    return found


def measured() -> Cells:
    """Real cells, if they are to be had; their columns of time and scattered light are left out."""
    path = Path(os.environ.get("GLOBULAR_DATA", "")) / "flowsom_ff" / "flowsom_ff.npz"
    if not path.is_file():
        print("no flowsom_ff in GLOBULAR_DATA: cells are generated")
        return generated(20_000)
    with np.load(path) as arrays:
        markers = [not str(name).startswith(SCATTER) for name in arrays["columns"]]
        X = np.ascontiguousarray(arrays["X"][:, markers])
        return Cells(X, arrays["y"].astype(np.int64), tuple(map(str, arrays["names"])))


def generated(n: int) -> Cells:
    """Six populations in eight markers, the rarest of one cell in fifty, and debris that nobody gates."""
    random = np.random.default_rng(0)
    names = ("B", "CD4 T", "CD8 T", "NK", "monocytes", "rare", UNGATED)
    gate = random.choice(7, size=n, p=[0.15, 0.35, 0.2, 0.1, 0.08, 0.02, 0.1])
    centers = np.vstack([random.choice([0.5, 3.0], size=(6, 8)), np.full(8, 1.7)])
    mixing = 0.25 * np.eye(8) + 0.04 * random.normal(size=(7, 8, 8))
    mixing[-1] = 1.2 * np.eye(8)
    X = centers[gate] + np.einsum("nij,nj->ni", mixing[gate], random.normal(size=(n, 8)))
    return Cells(X.astype(np.float32), gate, names)


def compare(cells: Cells, labels: NDArray[np.integer]) -> Populations:
    """Agreement over the gated cells."""
    gated = cells.gated
    counts = contingency(cells.gate[gated], labels[gated], len(cells.names))
    return Populations(
        labels=labels.astype(np.int64),
        n_components=len(np.unique(labels)),
        agreement=float(adjusted_rand_score(cells.gate[gated], labels[gated])),
        purity=float(counts.max(axis=1).sum() / counts.sum()),
    )


def contingency(gate: NDArray[np.int64], labels: NDArray[np.integer], n_gates: int) -> NDArray[np.int64]:
    """How many cells each component has of each gate."""
    counts = np.zeros((int(labels.max()) + 1, n_gates), dtype=np.int64)
    np.add.at(counts, (labels, gate), 1)
    return counts


def describe(cells: Cells, labels: NDArray[np.integer]) -> list[tuple[int, str, float]]:
    """For each component with cells: how many, the gate that most of them are in, and their share."""
    counts = contingency(cells.gate, labels, len(cells.names))
    counts = counts[counts.any(axis=1)]
    sizes, most = counts.sum(axis=1), counts.argmax(axis=1)
    shares = counts.max(axis=1) / sizes
    return [(int(n), cells.names[g], float(share)) for n, g, share in zip(sizes, most, shares, strict=True)]


if __name__ == "__main__":
    main()
