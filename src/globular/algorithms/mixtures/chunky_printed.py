"""Chunky EM as Section 6 of Verbeek, Nunnink & Vlassis 2003 runs it.

    open the tree to a given depth
    repeat:  EM on these cells until F increases by less than `tol` of itself
             end if it hardly does from one partition to the next, either
             open the cell whose children raise F most

Nothing is opened before EM begins, no step is on rows, and what is lost against EM is not looked at. `chunky` deviates
in all of this; the paper has no number for `tol`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from globular.algorithms.mixtures.chunky import (
    ENOUGH_CELLS,
    HARDLY,
    LEAF_SIZE,
    STUCK,
    ChunkyModel,
    ChunkyOptions,
    begin_chunky,
)
from globular.algorithms.steps import Run, Step
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.given import GivenStart
from globular.seam.shard import Shard
from globular.seam.tree_passes import ExpectCells, Gains, OpenGaining, Plant


def begin_printed(
    shard: Shard, n_components: int, init: Any, given: GivenStart, options: ChunkyOptions,
    random_state: np.random.RandomState, depth: int, *, limits: CovarianceLimits,
) -> tuple[Run, int]:  # fmt: skip
    """Find a start as `begin_chunky` does, and begin from it on the cells at this depth; the run, and their number."""
    started, _ = begin_chunky(shard, n_components, init, given, options, random_state, limits=limits)
    assert started.start is not None
    n_cells = shard.run(Plant(FAMILIES[given.covariance_type].scatter, LEAF_SIZE, depth=depth))
    return Run(chunky_printed(shard, started.start, n_cells, options, limits), started.start), n_cells


def chunky_printed(
    shard: Shard, start: GaussianParameters, n_cells: int, options: ChunkyOptions, limits: CovarianceLimits
) -> Iterator[Step[ChunkyModel]]:
    """EM from these cells; of the options the limits and `tol` count, the latter as a share of F."""
    mixture, before, last = start, -np.inf, -np.inf
    for iteration in range(1, options.max_iter + 1):
        found = shard.run(ExpectCells(mixture))
        mixture = m_step(mixture, found, limits, learned_weights=options.learned_weights)
        model, n_distances, stopped = ChunkyModel(mixture, n_cells), found.n_distances, ""
        bound, least = found.log_likelihood, options.tol * abs(found.log_likelihood)
        settled = bound - before <= least
        if settled and bound - last <= least:
            stopped = HARDLY
        elif settled and n_cells >= options.max_cells:
            stopped = ENOUGH_CELLS
        elif settled:
            gains = shard.run(Gains(mixture, 1))
            n_distances += gains.n_distances
            n_opened = shard.run(OpenGaining(gains.smallest_within(1)))
            stopped = "" if n_opened > n_cells else STUCK
            n_cells, last, bound = n_opened, bound, -np.inf  # the first step on other cells is none to compare with
        before = bound
        stopped = stopped or ("max_iter" if iteration == options.max_iter else "")
        yield Step(iteration, found.log_likelihood, n_distances, None, model, stopped)
        if stopped:
            return
