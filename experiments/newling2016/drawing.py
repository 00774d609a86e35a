"""Panels of time-energy curves, and the options of the commands that make them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.cells import add_options
from experiments.common import parser, save_figure
from experiments.newling2016.curves import Curve, Setup, best_energy, mean_curve
from experiments.newling2016.problems import PAPERS, PROBLEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {
    "lloyd": "tab:gray",
    "yinyang": "tab:green",
    "mbatch": "tab:orange",
    "mbatch.remove": "tab:purple",
    "nmbatch": "tab:blue",
    "nmbatch.deact": "tab:cyan",
    "nmbatch.mean": "tab:red",
}


def curve_parser(description: str, output: Path) -> argparse.ArgumentParser:
    """The options of experiments that draw curves."""
    made = parser(description, output)
    made.add_argument("--problems", nargs="+", choices=tuple(PROBLEMS), default=None, help="data sets; default: all")
    made.add_argument("--rows", type=int, default=None, metavar="N", help="training rows, instead of all")
    made.add_argument("--seconds", type=float, default=None, help="longest run of one algorithm")
    add_options(made)
    return made


def chosen_setup(chosen: argparse.Namespace, quick: Setup, full: Setup) -> Setup:
    """The setup that the options ask for."""
    base = quick if chosen.quick else full
    return Setup(base.k, base.b0, base.rho, chosen.seconds or base.seconds, base.threads)


def chosen_problems(chosen: argparse.Namespace) -> list[str]:
    """The data sets that the options ask for; the quick version needs none from outside."""
    if chosen.report_only:
        return []
    return chosen.problems or (["blobs"] if chosen.quick else list(PAPERS))


def draw_curves(panel: Axes, curves: Mapping[str, Sequence[Curve]]) -> None:
    """Mean energy above E* in percent with a band of one standard deviation, seconds on a logarithmic axis."""
    lowest = best_energy(curves)
    first = min(curve.seconds[1] for runs in curves.values() for curve in runs)
    last = max(curve.seconds[-1] for runs in curves.values() for curve in runs)
    times = np.geomspace(first, last, 120)
    for name, runs in curves.items():
        mean, deviation = mean_curve(runs, times)
        shown = times >= max(curve.seconds[1] for curve in runs)
        excess, spread = 100.0 * (mean / lowest - 1.0), 100.0 * deviation / lowest
        color = COLORS.get(name)
        line = panel.plot(times[shown], excess[shown], label=name, color=color)[0]
        low, high = np.maximum(excess - spread, 1e-3), excess + spread
        panel.fill_between(times[shown], low[shown], high[shown], color=line.get_color(), alpha=0.15, lw=0)
    panel.set(xscale="log", yscale="log", xlabel="seconds")
    panel.set_ylim(bottom=0.1, top=60.0)
    panel.grid(alpha=0.3)


def draw_panels(found: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path) -> None:
    """One panel per data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(found), 3.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(found)))
    for panel, (name, curves) in zip(panels, found.items(), strict=True):
        draw_curves(panel, curves)
        panel.set_title(PROBLEMS[name].title, fontsize="medium")
    panels[0].set_ylabel("validation energy above the lowest, %")
    panels[0].legend(fontsize="small")
    save_figure(figure, path)
