"""All curves of a data set, one starting sample after the other or several at once.

The algorithms of one start run in turns in one process, so that what else the machine does concerns them alike. Other
processes read the rows from a file that is written once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy import sparse

from experiments.cells import Cell, measured
from experiments.newling2016.curves import Curve, Setup, trace, warm_up
from experiments.newling2016.problems import PROBLEMS, Split

Setting = tuple[str, str, float | None]
"""The name of a curve, its algorithm, and ρ (None: the algorithm's own)."""


def measure_curves(
    name: str, setup: Setup, settings: Sequence[Setting], n_runs: int, n_rows: int | None, n_jobs: int
) -> dict[str, list[Curve]]:
    """All runs of all settings on one data set."""
    with tempfile.TemporaryDirectory() as folder:
        _write(PROBLEMS[name].load(n_rows), Path(folder))
        cells = [
            Cell((name, str(seed)), measure_start, (folder, setup, tuple(settings), seed)) for seed in range(n_runs)
        ]
        found = {int(cell.name[1]): curves for cell, curves in measured(cells, n_jobs, print)}
    return {label: [found[seed][label] for seed in range(n_runs)] for label, _, _ in settings}


def measure_start(folder: str, setup: Setup, settings: tuple[Setting, ...], seed: int) -> dict[str, Curve]:
    """Every setting from one start, in turns."""
    split = _read_warmed(folder, setup, tuple(dict.fromkeys(algorithm for _, algorithm, _ in settings)))
    return {label: trace(split, setup, algorithm, seed, rho) for label, algorithm, rho in settings}


@lru_cache(maxsize=1)
def _read_warmed(folder: str, setup: Setup, algorithms: tuple[str, ...]) -> Split:
    """The rows that `_write` wrote, with all that will be timed compiled; once a process."""
    parts = []
    for part in ("train", "valid"):
        path = Path(folder) / f"{part}.npy"
        parts.append(np.load(path) if path.is_file() else sparse.load_npz(path.with_suffix(".npz")))
    split = Split(*parts)
    warm_up(split, setup, algorithms)
    return split


def _write(split: Split, folder: Path) -> None:
    for part, rows in (("train", split.train), ("valid", split.valid)):
        if sparse.issparse(rows):
            sparse.save_npz(folder / f"{part}.npz", rows, compressed=False)
        else:
            np.save(folder / f"{part}.npy", rows)
