"""The parts of the method that `ablation.py` switches off one at a time, and what stands for each when it is off.

A part is switched off by other values for constants of the library, or by another function in place of one; there is
no copy of any code. Compiled kernels have their constants built in, so only what decides between kernels can be
switched.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

NEVER = 1 << 40

KMEANS = ("KMeans",)
HARD = ("KMeans", "VariationalKMeans", "NestedMiniBatchKMeans")
GAUSSIAN = ("GaussianMixture",)
INFINITE = ("InfiniteGaussianMixture",)
TREES = ("ChunkyGaussianMixture", "InfiniteGaussianMixture")


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the method: what it is, whom it serves, and which names of the library stand for its absence.

    A value is the constant to take instead; a function marked by `instead` makes it from the present one.
    """

    name: str
    what: str
    estimators: tuple[str, ...]
    without: Mapping[str, Any]
    applies: Callable[[Any], bool] = lambda problem: True
    """Whether a problem can have it at all."""


def instead(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Mark a function that makes the replacement from what is replaced."""
    make.makes = True  # type: ignore[attr-defined]
    return make


@instead
def _no_trials(qualities: Any) -> Any:
    none = {"max_failures": 0, "more_failures": 0, "max_trials": 0}
    return {
        name: dataclasses.replace(quality, trials=dataclasses.replace(quality.trials, **none))
        for name, quality in qualities.items()
    }


@instead
def _forgets_bounds(aim_at: Any) -> Any:
    def aim(self: Any, centers: Any) -> None:
        aim_at(self, centers)
        self.room[:] = 0.0

    return aim


@instead
def _same_cells(draw: Any) -> Any:
    """Cells of the first centres of a fit, whose members follow no later move."""
    last: dict[str, Any] = {}

    def same(shard: Any, centers: Any, rng: Any) -> Any:
        if last.get("shape") != np.shape(centers):
            last.update(shape=np.shape(centers), cells=draw(shard, centers, rng))
        return last["cells"]

    return same


@instead
def _no_pairs(_: Any) -> Any:
    return lambda *arguments, **options: []


@instead
def _as_seeded(_: Any) -> Any:
    def start_without_swaps(shard: Any, start: Any, options: Any, rng: Any) -> Any:
        yield from ()
        return start

    return start_without_swaps


def is_probing(problem: Any) -> bool:
    """Whether KMeans probes for so many clusters."""
    return problem.k >= 500


def is_few(problem: Any) -> bool:
    """Whether KMeans looks at all centres."""
    return not is_probing(problem)


PARTS = (
    Part(
        "momentum", "centres go beyond their means", HARD[:1], {"algorithms.kmeans.momentum.REACH": 0.0},
    ),
    Part(
        "subspace", "rows are seen in leading directions first", KMEANS,
        {"algorithms.kmeans.pipeline.LARGEST_SHARE": {"exact": 0.0, "probing": 0.0}},
        lambda problem: problem.columns == 0 or problem.columns >= 16,
    ),
    Part(
        "part of the rows", "seeds, swaps and iterations on a part first", KMEANS,
        {
            "algorithms.kmeans.coreset.PART_ROWS_PER_CLUSTER": NEVER,
            "algorithms.kmeans.coreset.LEAST_PER_CLUSTER": NEVER,
        },
    ),
    Part("swaps of many", "many centres at once cross gaps", HARD, {"algorithms.kmeans.swaps.COST_SAFETY": 1e30}),
    Part(
        "Zador's law", "a split inside one group gains 2/d of its error", HARD,
        {"algorithms.kmeans.swaps.FIRST_TRUST": (0.0,) * 999},
    ),
    Part(
        "swaps tried out", "swaps of few clusters, kept if the error falls", KMEANS,
        {"algorithms.kmeans.pipeline.QUALITIES": _no_trials}, is_few,
    ),
    Part("several starts", "few clusters are seeded several times", KMEANS,
         {"algorithms.kmeans.pipeline.MOST_STARTS": 1}, is_few),
    Part("many swaps before trials", "hundreds of clusters swap many first", KMEANS,
         {"algorithms.kmeans.trials.SWAPPED_FROM": NEVER}, is_few),
    Part(
        "search of few rows", "one compiled k-means for some thousand rows", ("KMeans", "GaussianMixture"),
        {"algorithms.seeding.common.MOST_CLUSTERS": 0, "algorithms.seeding.common.SEED_DISTANCES": 0},
    ),
    Part("redrawn cells", "cells of centres are drawn anew for each iteration", KMEANS,
         {"algorithms.kmeans.probing.draw_cells": _same_cells},
         is_probing),
    Part("cells of bounded size", "cells with many centres are halved", KMEANS,
         {"algorithms.kmeans.cells.LARGEST_CELL": 1 << 20}, is_probing),
    Part("greedy seeds", "the best of several draws is the next seed", HARD,
         {"algorithms.seeding.named.GREEDY_UP_TO": 0, "algorithms.seeding.named.GREEDY_DISTANCES": 0}),
    Part("judges of seeds", "hierarchical seeds are shared out by errors", HARD,
         {"algorithms.seeding.hierarchical.JUDGES": 1}, is_probing),
    Part("hubs of seeds", "seeds are drawn in where few of them win most rows", HARD,
         {"algorithms.seeding.shares.HUBS": 1e9}, is_probing),
    Part("fading gain", "fits of 300 to 1,500 clusters end ever earlier", KMEANS,
         {"algorithms.kmeans.pipeline.FADING": (499, 500)}, lambda problem: 300 < problem.k < 1500),
    Part("bounds of exact passes", "rows whose label cannot have changed are skipped", KMEANS,
         {"passes.cpu.settled.Settled.aim_at": _forgets_bounds}, is_few),
    Part("bounds of batches", "rows keep lower bounds from batch to batch", ("NestedMiniBatchKMeans",),
         {"algorithms.kmeans.nested_choices.NestedSettings.choose_search": instead(
             lambda _: lambda self, budget: "cells" if self.n_clusters >= 1000 else "exact")}),
    Part("swaps of a batch's seeds", "seeds swap on the rows that they were drawn from", ("NestedMiniBatchKMeans",),
         {"algorithms.kmeans.nested_choices.swapped_start": _as_seeded}),
    Part("threads by their price", "small passes wake few threads", ("KMeans", "GaussianMixture", *TREES),
         {"threads.pool.WAKING": 1e-12, "threads.pool.WAITING": 1e-12}),
    Part("moves", "components of mixtures move, kept if likelier", GAUSSIAN,
         {"algorithms.mixtures.pipeline.STEPS_OF_MOVES": 0, "algorithms.mixtures.pipeline.STEPS_PER_COMPONENT": 0}),
    Part("mixtures from a part", "the search for a start sees a part of the rows", GAUSSIAN,
         {"algorithms.mixtures.pipeline.TAKEN_NUMBERS": 0}),
    Part("densities by pairs", "rows have few components that count", GAUSSIAN,
         {"passes.cpu.expect.blocks.PAIR_WORK": NEVER}),
    Part("truncated cells", "cells of a tree look at few components", TREES,
         {"estimators.chunky_mixture.TRUNCATED_FROM": NEVER}),
    Part("merges", "superfluous pairs are joined", INFINITE, {"algorithms.infinite.run.superfluous_pairs": _no_pairs}),
    Part("infinite from a part", "mixtures grow on a part of the rows", INFINITE,
         {"algorithms.infinite.infinite.PART_ROWS": NEVER}),
    Part("other start", "a stopped mixture is held against one from k-means", INFINITE,
         {"estimators.infinite_base.TIMES_SOWN": 0}),
    Part("search among predictive", "EM may know a better mixture of as many", INFINITE,
         {"algorithms.infinite.polishing._MOST_DENSITIES": 0}),
)  # fmt: skip


GONE = {
    "kernels of thin rows": "up to 8 columns: scores in registers, no BLAS",
    "redrawn seeds": "every second seed is drawn anew by distance",
    "small cells": "a first look goes down two levels of cells",
    "sums of moved rows": "sums change by what moved",
    "price of estimates": "no estimate where it costs more than a search",
    "chunks for many rows": "EM on cells of a tree before EM on rows",
}
"""Parts that were deleted: the panel gave them no worth, or the general kernels became as fast (thin rows). The CSV
still has what was measured."""


@contextmanager
def switched_off(part: Part | None) -> Iterator[None]:
    """The library without a part; each name is replaced wherever it was imported to."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for name, value in (part.without if part else {}).items():
            owner, attribute = _owner(name)
            before = getattr(owner, attribute)
            after = value(before) if getattr(value, "makes", False) else value
            places = [owner] if isinstance(owner, type) else _importers(attribute, before)
            for place in places:
                undo.append((place, attribute, before))
                setattr(place, attribute, after)
        yield
    finally:
        for place, attribute, before in reversed(undo):
            setattr(place, attribute, before)


def _owner(name: str) -> tuple[Any, str]:
    """The module or class that has a name such as "algorithms.seeding.common.MOST_ROWS"."""
    path, _, attribute = f"globular.{name}".rpartition(".")
    try:
        return import_module(path), attribute
    except ModuleNotFoundError:
        module, _, kind = path.rpartition(".")
        return getattr(import_module(module), kind), attribute


def _importers(attribute: str, value: Any) -> list[Any]:
    """The modules of the library in which a name stands for this very object; kernels have their constants built in."""
    modules = [module for name, module in list(sys.modules.items()) if module and name.startswith("globular.")]
    return [module for module in modules if module.__dict__.get(attribute, modules) is value]
