"""Fig. 3: MNIST in 50 principal components, VIM and Fast-VIM, and the mean images of the clusters.

    python -m experiments.kurihara2006.figure3 [--quick] [--limit SECONDS] [-o DIR]

The full run takes the first 60,000 digits; --quick takes 2,000 of them and 10 components of the images. VIM may be cut
off after some time; the report says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.common import (
    Band,
    markdown_table,
    parser,
    provenance,
    quick_folder,
    read_results,
    real_rows,
    save_figure,
    update_report,
    write_results,
)
from experiments.kurihara2006 import HEADING, REPORT
from experiments.kurihara2006.fits import SETUP, TOL, algorithms, energy_ratio, fingerprint, priors, run, warm_up
from experiments.verdicts import Claim, claims_table, in_band, near, tally
from globular import InfiniteGaussianMixture

CLOSE = Band(high=1.06)
FASTER = Band(low=10.0)
SIDE = 28


@dataclass(frozen=True, slots=True)
class Config:
    """How much of the data."""

    n_rows: int = 60_000
    n_features: int = 50
    max_components: int = 200
    limit: float | None = None
    """Seconds after which VIM is cut off."""


FULL = Config()
QUICK = Config(2000, 10, 20)


@dataclass(frozen=True, slots=True)
class Projection:
    """Rows along their principal components, and the way back."""

    rows: NDArray[np.float64]
    mean: NDArray[np.float64]
    axes: NDArray[np.float64]

    @classmethod
    def of(cls, X: NDArray[Any], n_features: int) -> Projection:
        """The first principal components, from the covariance of the columns."""
        mean = X.mean(axis=0, dtype=np.float64)
        centred = X - mean.astype(np.float32)
        values, vectors = np.linalg.eigh((centred.T @ centred).astype(np.float64))
        axes = vectors[:, np.argsort(-values)[:n_features]]
        return cls((centred @ axes.astype(np.float32)).astype(np.float64), mean, axes)

    def back(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points as images."""
        return points @ self.axes.T + self.mean


def measure(config: Config) -> tuple[dict[str, Any], dict[str, InfiniteGaussianMixture], Projection]:
    """Both fits on the same rows and prior."""
    warm_up()
    data = Projection.of(real_rows("mnist/mnist.npz")[: config.n_rows], config.n_features)
    shared = priors(data.rows)
    found: dict[str, Any] = {}
    models: dict[str, InfiniteGaussianMixture] = {}
    both = algorithms(config.max_components, 1, accept="all")
    for name, limit in (("Fast-VIM", None), ("VIM", config.limit)):
        models[name], fit = run(data.rows, both[name] | shared | {"max_time": limit}, 0)
        found[name] = fit.as_dict() | {"cut_off": models[name].stopped_ == "max_time"}
    return found | {"when": provenance(), "fingerprint": fingerprint(), "pictures": sorted(models)}, models, data


def section(config: Config, found: dict[str, Any]) -> str:
    """The numbers beside those of the paper."""
    paper = {"VIM": ("88", "72,037 s", "1.684e7"), "Fast-VIM": ("96", "3,379 s", "1.759e7")}
    rows = [
        [
            name, f"{entry['n_components']}", f"{entry['seconds']:.1f} s" + (", cut off" if entry["cut_off"] else ""),
            f"{entry['free_energy']:.5g}", *paper[name],
        ]
        for name, entry in found.items()
        if name in paper
    ]  # fmt: skip
    head = ("", "clusters", "time", "F", "paper: clusters", "paper: time", "paper: F")
    fast, slow = found["Fast-VIM"], found["VIM"]
    speedup = slow["seconds"] / fast["seconds"]
    ratio = energy_ratio(fast["free_energy"], slow["free_energy"])
    remark = "VIM was cut off: at least this, and its F is of what it had by then" if slow["cut_off"] else ""
    scale = "a scale of its own: prior and pixels are not the paper's"
    asked = [
        in_band("Fast-VIM: faster than VIM", "21 ×", speedup, FASTER, "{:.1f} ×", remark),
        in_band("free-energy ratio", "1.044", ratio, CLOSE, "{:.4f}", "both end on rows: their local minima differ"),
        near(
            "clusters of Fast-VIM", 96, fast["n_components"], "{:.0f}", 10, "± 10; splits have to gain 0.02 nats a row"
        ),
        near("clusters of VIM", 88, slow["n_components"], "{:.0f}", 10, "± 10; splits have to gain 0.02 nats a row"),
        Claim("F of Fast-VIM", "1.759e7", f"{fast['free_energy']:.4g}", "", None, scale),
        Claim("F of VIM", "1.684e7", f"{slow['free_energy']:.4g}", "", None, scale),
    ]
    setup = replace(
        SETUP, command="kurihara2006.figure3",
        data=f"MNIST, {config.n_rows:,} digits, {config.n_features} principal components, full covariances",
        stopping=f"cycles end when F falls by less than {TOL:g} per row; at most {config.max_components} components",
        splits="all splits of a round that lower F by 0.02 nats per row of their component (the paper: the best one)",
        ending="; ".join(f"{name}: {entry.get('ending', 'rows')}" for name, entry in found.items() if name in paper),
        runs="one fit each, as in the paper. Seconds are processor time, or wall where the machine's entry says so",
    )  # fmt: skip
    return "\n\n".join(
        [
            "## Fig. 3: MNIST",
            "Free energies depend on the prior and on the scale of the pixels, so only their ratio compares with the "
            "paper's.",
            setup.text([found["when"]]),
            markdown_table(head, rows).rstrip(),
            "Mean images of the clusters of Fast-VIM, the largest first:",
            "![Fig. 3](figure3.png)",
            "Those of VIM:" if "pictures" in found else "Those of VIM, which the paper has: not run.",
            *(["![Fig. 3, VIM](figure3-vim.png)"] if "pictures" in found else []),
            claims_table(asked),
            tally(asked),
        ]
    )


def draw(model: InfiniteGaussianMixture, data: Projection, path: Path) -> None:
    """The mean image of every cluster, the largest first."""
    from matplotlib.figure import Figure

    images = data.back(model.means_).reshape(-1, SIDE, SIDE)
    across = min(12, len(images))
    down = -(-len(images) // across)
    sheet = np.zeros((down * SIDE, across * SIDE))
    for place, image in enumerate(images):
        row, column = divmod(place, across)
        sheet[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE] = image
    figure = Figure(figsize=(across * 0.7, down * 0.7), layout="constrained")
    axis = figure.subplots()
    axis.imshow(sheet, cmap="gray_r", vmin=0, vmax=255)
    axis.set_axis_off()
    save_figure(figure, path)


def report(config: Config, folder: Path, *, report_only: bool = False) -> dict[str, Any]:
    """Measure, and write the section."""
    if report_only:
        found = read_results(folder / "figure3.json")
    else:
        found, models, data = measure(config)
        write_results(folder / "figure3.json", found)
        draw(models["Fast-VIM"], data, folder / "figure3.png")
        draw(models["VIM"], data, folder / "figure3-vim.png")
    update_report(folder / "report.md", HEADING, "figure 3", section(config, found))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    made = parser("MNIST by VIM and Fast-VIM", REPORT)
    made.add_argument("--limit", type=float, default=None, help="seconds after which VIM is cut off")
    made.add_argument("--report-only", action="store_true", help="measure nothing: write the report of what is kept")
    chosen = made.parse_args(arguments)
    config = replace(QUICK if chosen.quick else FULL, limit=chosen.limit)
    report(config, quick_folder(chosen), report_only=chosen.report_only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
