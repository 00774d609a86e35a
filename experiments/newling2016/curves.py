"""Validation energy against seconds, for the six algorithms and a rule of our own.

Every algorithm of a run starts from the same k random rows. Seconds are processor time on one thread, as the paper's
experiments are, and the clock runs only while the algorithm does: computing the validation energy does not count. All
are settings of one code, so they share its products.

`nmbatch` doubles its batch by the paper's rule, `nmbatch.mean` by ours, which asks all centres together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments import verdicts
from experiments.newling2016.problems import Split
from globular.algorithms.kmeans.nested import RHO_TOGETHER, NestedOptions, nested_kmeans
from globular.passes.cpu import CpuShard
from globular.seam.passes import Assign

SETUP = verdicts.Setup(
    command="",
    data="",
    runs="",
    start="the same k random rows for every algorithm of a run; no vote for the starting rows (the paper: one each)",
    stopping="no tolerance: until no row changes its cluster with all rows in the batch, or the seconds are over",
    ending="rows",
    deviations="the upper bound of a row is kept as well as lower ones; a batch is drawn without repetition; seconds "
    "are processor time (entries made on two threads say so, theirs are wall seconds), and what runs that the clock "
    "ends come to, distances, iterations and energies, is of the machine as well; several starts were measured at "
    "once, each in a process of one thread",
)
"""What all figures have in common."""

Floats = NDArray[np.float64]
SPACING = 1.12
"""Each measurement is taken when this much more time has gone by."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all curves of an experiment have in common."""

    k: int = 50
    b0: int = 5_000
    rho: float = 100.0
    seconds: float = 30.0
    """Each run ends by then, or when it has converged."""
    threads: int = 1

    def options(self, algorithm: str, n_rows: int, rho: float | None = None) -> NestedOptions:
        """An algorithm as a setting; ρ is the paper's, or ours for our rule, unless given."""
        common: dict[str, Any] = {
            "b0": self.b0, "rho": self.rho if rho is None else rho, "max_epochs": np.inf,
        }  # fmt: skip
        settings: dict[str, dict[str, Any]] = {
            "lloyd": {"b0": n_rows, "bounds": None},
            "yinyang": {"b0": n_rows, "bounds": "yinyang"},
            "mbatch": {"nested": False, "remove_old": False, "bounds": None},
            "mbatch.remove": {"nested": False, "bounds": None},
            "nmbatch": {"bounds": "elkan"},
            "nmbatch.deact": {"bounds": None},
            "nmbatch.mean": {"together": True, "rho": RHO_TOGETHER if rho is None else rho},
        }
        return NestedOptions(**{**common, **settings[algorithm]})


@dataclass(frozen=True, slots=True)
class Curve:
    """One run: energies per validation row after so many seconds."""

    seconds: list[float]
    energies: list[float]
    n_distances: int
    n_steps: int
    batch_size: int
    stopped: str

    def at(self, times: Floats) -> Floats:
        """The energy that one would have at these times; NaN before the first measurement."""
        index = np.searchsorted(self.seconds, times, side="right") - 1
        return np.where(index >= 0, np.asarray(self.energies)[np.maximum(index, 0)], np.nan)


def trace(split: Split, setup: Setup, algorithm: str, seed: int, rho: float | None = None) -> Curve:
    """One run of one algorithm; the seed decides the shuffle and the starting rows."""
    rng = np.random.default_rng(seed)
    train = CpuShard(split.train, n_threads=setup.threads)
    valid = CpuShard(split.valid, n_threads=setup.threads)
    start = train.take(np.sort(rng.choice(train.n_rows, setup.k, replace=False)))
    options = setup.options(algorithm, train.n_rows, rho)
    steps = nested_kmeans(train, start, options, rng)
    seconds, energies = [0.0], [_energy(valid, start)]
    clock, due, n_distances = 0.0, 0.0, 0
    while True:
        begun = time.process_time()
        step = next(steps)
        clock += time.process_time() - begun
        n_distances += step.n_distances
        over = bool(step.stopped) or clock >= setup.seconds
        if clock >= due or over:
            seconds.append(clock)
            energies.append(_energy(valid, step.model.centers))
            due = SPACING * clock
        if over:
            return Curve(seconds, energies, n_distances, step.iteration, step.model.batch_size, step.stopped)


def _energy(valid: CpuShard, centers: Floats) -> float:
    return valid.run(Assign(centers, want="labels")).objective / valid.n_rows


def warm_up(split: Split, setup: Setup, algorithms: Sequence[str]) -> None:
    """Compile what will be timed."""
    small = Split(split.train[: 4 * setup.k], split.valid[:10])
    for algorithm in algorithms:
        trace(small, Setup(setup.k, 2 * setup.k, setup.rho, 0.2, setup.threads), algorithm, 0)


# ------------------------------------------------------------------------------------------- keeping


def to_json(curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """Curves by name as plain data."""
    fields = ("seconds", "energies", "n_distances", "n_steps", "batch_size", "stopped")
    return {name: [{key: getattr(curve, key) for key in fields} for curve in runs] for name, runs in curves.items()}


def from_json(found: Mapping[str, Any]) -> dict[str, list[Curve]]:
    """The same back."""
    return {name: [Curve(**curve) for curve in runs] for name, runs in found.items()}


def mean_curve(curves: Sequence[Curve], times: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation over runs at these times."""
    values = np.array([curve.at(times) for curve in curves])
    return values.mean(axis=0), values.std(axis=0)


def _for_good(times: Floats, values: Floats, energy: float) -> float:
    above = np.flatnonzero(values > energy)
    last = int(above[-1]) + 1 if len(above) else 0
    return float(times[last]) if last < len(times) else float("inf")


def mean_first_within(curves: Sequence[Curve], energy: float) -> float:
    """Seconds until the mean over runs falls to this energy for good; infinity if it does not."""
    times = np.unique(np.concatenate([curve.seconds for curve in curves]))
    return _for_good(times, mean_curve(curves, times)[0], energy)


def first_within(curves: Sequence[Curve], energies: Floats) -> Floats:
    """The same for each run and an energy of its own."""
    return np.array(
        [
            _for_good(np.asarray(curve.seconds), np.asarray(curve.energies), float(energy))
            for curve, energy in zip(curves, energies, strict=True)
        ]
    )


def best_energy(curves: Mapping[str, Sequence[Curve]]) -> float:
    """E*: the lowest validation energy of any run."""
    return min(min(curve.energies) for runs in curves.values() for curve in runs)


def best_by_start(curves: Mapping[str, Sequence[Curve]]) -> Floats:
    """The lowest energy that any algorithm has reached from each start."""
    return np.min([[min(curve.energies) for curve in runs] for runs in curves.values()], axis=0)
