"""How fits go on, iteration by iteration: what Figs. 2 and C.1 draw, added up over runs and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.cells import Cell, measured
from experiments.common import Rows, exact_error, provenance, read_results, write_results
from experiments.forster2018.fits import CHAIN_LENGTH, Variant, moments
from globular import seeding
from globular.model.gaussian import isotropic_mixture
from globular.passes.cpu import CpuShard
from globular.seam.mixture_passes import Expect
from globular.threads import resolve_threads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Curve = NDArray[np.float64]
COLORS = ("#c9632b", "#c9a227", "#2563a8", "#4b9e73", "#222222")
"""From the smallest G to the exact algorithm."""
CURVES = ("errors", "free_energies", "log_likelihoods")


@dataclass(frozen=True, slots=True)
class Trace:
    """One run. Entry t of a curve belongs to the parameters after t iterations; NaN where it was not measured."""

    errors: Curve
    """Exact mean squared distance to the closest centre."""
    free_energies: Curve
    """Per row: the truncated bound that the next E-step finds."""
    log_likelihoods: Curve
    """Per row and exact: what the free energy bounds from below."""


def trace(X: Rows, seeds: NDArray[Any], variant: Variant, seed: int, *, every: int = 1) -> Trace:
    """Follow a run for `max_iter` iterations, measuring every so many; a run that stops sooner stays where it is."""
    n = variant.max_iter
    errors, energies, likelihoods = (np.full(n + 1, np.nan) for _ in range(3))
    shard = CpuShard(X, n_threads=resolve_threads(None))
    centers, variance = np.asarray(seeds, dtype=np.float64), np.nan
    errors[0] = exact_error(X, centers)
    t = 0
    for moment in moments(X, seeds, variant, seed):
        measured = t % every == 0
        if variant.kind == "k-means":
            # σ² that goes with the labels; F of hard assignments is then −log C − (D/2)(1 + log 2πσ²)
            variance = moment.objective / X.size
            energies[t] = -np.log(len(seeds)) - 0.5 * X.shape[1] * (1 + np.log(2 * np.pi * variance))
        else:
            energies[t] = moment.objective / len(X)
        if measured and np.isfinite(variance):
            mixture = isotropic_mixture(centers, variance, "tied_spherical")
            likelihoods[t] = shard.run(Expect(mixture)).log_likelihood / len(X)
        centers, variance = moment.centers, moment.variance
        t = moment.iteration
        if t % every == 0:
            errors[t] = exact_error(X, centers)
    if t < n:
        last = errors[t] if np.isfinite(errors[t]) else exact_error(X, centers)
        errors[t:] = last
        energies[t:], likelihoods[t:] = energies[t - 1], likelihoods[(t - 1) // every * every]
    return Trace(errors, energies, likelihoods)


class Runs:
    """Traces of one variant, added up: what is kept of them."""

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        self._kept: dict[str, Any] = dict(kept) if kept else {"finals": [], "gaps": [], "when": []}
        self._waiting: dict[str, Any] = self._kept.pop("waiting", {})

    def __len__(self) -> int:
        return len(self._kept["finals"])

    def has(self, number: int) -> bool:
        """Whether the run of this number is there, be it among those that wait."""
        return number < len(self) or str(number) in self._waiting

    def put(self, number: int, run: Trace, when: str) -> None:
        """A run that ended; it waits until those of lower numbers are there, so that sums have one order."""
        self._waiting[str(number)] = {name: _plain(getattr(run, name)) for name in CURVES} | {"when": when}
        while (following := self._waiting.pop(str(len(self)), None)) is not None:
            curves = {name: np.array(following[name], dtype=np.float64) for name in CURVES}
            self.add(Trace(**curves), following["when"])

    def add(self, run: Trace, when: str) -> None:
        """One run more."""
        for name in CURVES:
            curve = getattr(run, name)
            for key, value in ((name, curve), (f"{name}²", curve**2)):
                self._kept[key] = _plain(self._array(key, len(curve)) + value)
        final = float(run.errors[np.isfinite(run.errors)][-1])
        if not len(self) or final < min(self._kept["finals"]):
            self._kept["best"] = _plain(run.errors)
        known = np.flatnonzero(np.isfinite(run.log_likelihoods) & np.isfinite(run.free_energies))[-1]
        self._kept["finals"].append(final)
        self._kept["gaps"].append(float(run.log_likelihoods[known] - run.free_energies[known]))
        self._kept["when"] = sorted({*self._kept["when"], when})

    def _array(self, key: str, length: int) -> Curve:
        return np.array(self._kept.get(key, np.zeros(length)), dtype=np.float64)

    def mean(self, name: str) -> Curve:
        """The mean over the runs of one of `CURVES`; NaN where it was not measured."""
        return self._array(name, 0) / len(self)

    def error_of_mean(self, name: str) -> Curve:
        """The standard error of that mean."""
        variance = self._array(f"{name}²", 0) / len(self) - self.mean(name) ** 2
        return np.sqrt(np.maximum(variance, 0.0) / max(1, len(self) - 1))

    @property
    def finals(self) -> Curve:
        """The last error of every run."""
        return np.array(self._kept["finals"])

    @property
    def best(self) -> Curve:
        """Errors of the run that ends lowest."""
        return self._array("best", 0)

    @property
    def gap(self) -> float:
        """Mean of log-likelihood minus free energy at the end, per row."""
        return float(np.mean(self._kept["gaps"]))

    @property
    def when(self) -> list[str]:
        """The machines."""
        return list(self._kept["when"])

    def as_dict(self) -> dict[str, Any]:
        """To be kept as JSON; empty without a run."""
        waiting = {"waiting": self._waiting} if self._waiting else {}
        return self._kept | waiting if len(self) or self._waiting else {}

    def first_within(self, error: float) -> int | None:
        """Iterations until the mean error is at most this for good; None if it never is."""
        mean = self.mean("errors")
        t = np.flatnonzero(np.isfinite(mean))
        above = np.flatnonzero(mean[t] > error)
        last = int(above[-1]) + 1 if len(above) else 0
        return int(t[last]) if last < len(t) else None


def _plain(curve: Curve) -> list[float | None]:
    return [None if np.isnan(value) else float(f"{value:.13g}") for value in curve]


def add_runs(
    load: Callable[[], Rows],
    n_clusters: int,
    variants: Mapping[str, tuple[Variant, int]],
    path: Path,
    *,
    every: int,
    n_jobs: int = 1,
) -> dict[str, Runs]:
    """As many runs of every variant as are wanted, each run number from the same AFK-MC² seeds; what is kept stays."""
    kept = read_results(path)
    found = {name: Runs(kept.get(name)) for name in variants}
    cells = [
        Cell((name, str(number)), measure_run, (load, n_clusters, variant, number, every))
        for number in range(max(n for _, n in variants.values()))
        for name, (variant, n) in sorted(variants.items(), key=lambda one: -one[1][0].G)
        if number < n and not found[name].has(number)
    ]
    for cell, (run, when) in measured(cells, n_jobs, lambda line: print(line, flush=True)):
        name, number = cell.name
        found[name].put(int(number), run, when)
        write_results(path, {name: runs.as_dict() for name, runs in found.items() if runs.as_dict()})
    return found


def measure_run(
    load: Callable[[], Rows], n_clusters: int, variant: Variant, number: int, every: int
) -> tuple[Trace, str]:
    """One run, and where it was made."""
    X = load()
    seeds = seeding.afk_mc2(X, n_clusters, chain_length=CHAIN_LENGTH, random_state=number)
    return trace(X, seeds, variant, number, every=every), provenance()


def draw_errors(panel: Axes, found: Mapping[str, Runs]) -> None:
    """Mean error with its standard error, and the run that ends lowest dotted."""
    for color, (name, runs) in zip(_colors(len(found)), found.items(), strict=True):
        if not len(runs):
            continue
        _band(panel, runs, "errors", color, name)
        t = np.flatnonzero(np.isfinite(runs.best))
        panel.plot(t, runs.best[t], ":", color=color, linewidth=1)
    panel.set_xlabel("iteration")
    panel.grid(alpha=0.25)


def draw_bounds(panel: Axes, found: Mapping[str, Runs]) -> None:
    """Mean log-likelihood solid, mean free energy dashed, both per row."""
    for color, (name, runs) in zip(_colors(len(found)), found.items(), strict=True):
        if not len(runs):
            continue
        _band(panel, runs, "log_likelihoods", color, name)
        _band(panel, runs, "free_energies", color, "", style="--")
    panel.set_xlabel("iteration")
    panel.grid(alpha=0.25)


def plain_ticks(axis: Axis) -> None:
    """Label a short logarithmic axis with a few plain numbers instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    subs = (1.0, 1.5, 2.0, 3.0, 5.0) if high < 5 * low else (1.0, 2.0, 3.0, 5.0) if high < 20 * low else (1.0, 3.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _band(panel: Axes, runs: Runs, what: str, color: str, name: str, style: str = "-") -> None:
    mean, spread = runs.mean(what), runs.error_of_mean(what)
    t = np.flatnonzero(np.isfinite(mean))
    panel.plot(t, mean[t], style, color=color, linewidth=1.4, label=name or None)
    panel.fill_between(t, (mean - spread)[t], (mean + spread)[t], color=color, alpha=0.15, linewidth=0)


def _colors(n: int) -> tuple[str, ...]:
    """The last colour is always that of the exact algorithm."""
    return COLORS[: n - 1] + COLORS[-1:]
