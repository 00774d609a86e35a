"""How a fit goes on, iteration by iteration: what Figs. 2 and C.1 draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.common import Rows, exact_error
from experiments.forster2018.fits import CHAIN_LENGTH, Variant, moments
from globular import seeding
from globular.backends.cpu import CpuShard
from globular.model.gaussian import isotropic_mixture
from globular.seam.passes import Expect
from globular.threads import resolve_threads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

Curve = NDArray[np.float64]
COLORS = ("#c9632b", "#c9a227", "#2563a8", "#4b9e73", "#222222")
"""From the smallest G to the exact algorithm."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One run. Entry t of a curve belongs to the parameters after t iterations; NaN where it was not measured."""

    errors: Curve
    """Exact mean squared distance to the closest centre."""
    free_energies: Curve
    """Per row: the truncated bound that the next E-step finds."""
    log_likelihoods: Curve
    """Per row and exact: what the free energy bounds from below."""


def trace(
    X: Rows, seeds: NDArray[Any], variant: Variant, seed: int, *, likelihood: bool = False, every: int = 1
) -> Trace:
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
        if likelihood and measured and np.isfinite(variance):
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


def traces(
    X: Rows, n_clusters: int, variants: Sequence[Variant], n_runs: int, *, likelihood: bool = False, every: int = 1
) -> dict[str, list[Trace]]:
    """All runs of all variants, each run number from the same AFK-MC² seeds; by `label`."""
    found: dict[str, list[Trace]] = {label(variant): [] for variant in variants}
    for number in range(n_runs):
        seeds = seeding.afk_mc2(X, n_clusters, chain_length=CHAIN_LENGTH, random_state=number)
        for variant in variants:
            found[label(variant)].append(trace(X, seeds, variant, number, likelihood=likelihood, every=every))
    return found


def label(variant: Variant) -> str:
    """The name of a curve."""
    return f"{variant.algorithm} G={variant.size}"


def final_errors(runs: Sequence[Trace]) -> Curve:
    """The last measured error of every run."""
    return np.array([run.errors[np.isfinite(run.errors)][-1] for run in runs])


def draw_errors(panel: Axes, variants: Sequence[Variant], found: Mapping[str, Sequence[Trace]]) -> None:
    """Mean error with its standard error, and the run that ends lowest dotted."""
    for color, variant in zip(_colors(len(variants)), variants, strict=True):
        runs = found[label(variant)]
        best = runs[int(np.argmin(final_errors(runs)))]
        _band(panel, [run.errors for run in runs], color, f"G = {variant.size}")
        t = np.flatnonzero(np.isfinite(best.errors))
        panel.plot(t, best.errors[t], ":", color=color, linewidth=1)
    panel.set_xlabel("iteration")
    panel.grid(alpha=0.25)


def draw_bounds(panel: Axes, variants: Sequence[Variant], found: Mapping[str, Sequence[Trace]]) -> None:
    """Mean log-likelihood solid, mean free energy dashed, both per row."""
    for color, variant in zip(_colors(len(variants)), variants, strict=True):
        runs = found[label(variant)]
        _band(panel, [run.log_likelihoods for run in runs], color, f"G = {variant.size}")
        _band(panel, [run.free_energies for run in runs], color, "", style="--")
    panel.set_xlabel("iteration")
    panel.grid(alpha=0.25)


def plain_ticks(axis: Axis) -> None:
    """Label a short logarithmic axis with a few plain numbers instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0), numticks=20))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def _band(panel: Axes, curves: Sequence[Curve], color: str, name: str, style: str = "-") -> None:
    stacked = np.stack(curves)
    t = np.flatnonzero(np.isfinite(stacked).all(axis=0))
    mean = stacked[:, t].mean(axis=0)
    spread = stacked[:, t].std(axis=0) / np.sqrt(max(1, len(curves) - 1))
    panel.plot(t, mean, style, color=color, linewidth=1.4, label=name or None)
    panel.fill_between(t, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)


def _colors(n: int) -> tuple[str, ...]:
    """The last colour is always that of the exact algorithm."""
    return COLORS[: n - 1] + COLORS[-1:]
