"""Where Chunky EM starts: a tree over the rows, its first cells, and a mixture found on those cells alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globular.algorithms.mixtures.chunky import ChunkyOptions, bound_after, start_from_cells
from globular.algorithms.mixtures.em import EMOptions, start_at_random
from globular.algorithms.mixtures.greedy import grow_mixture
from globular.algorithms.steps import result_of
from globular.estimators.inputs import Input
from globular.estimators.memory import check_allocation, chunky_bytes
from globular.estimators.mixture_starts import MEANS_METHODS, STARTS, GivenStart
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64
from globular.seam.shard import Shard
from globular.seam.tree_passes import Plant, TakeCells

CHUNKY_STARTS = (*STARTS, "greedy")
LEAF_SIZE = 16
CELLS_PER_COMPONENT = 10
"""Cells that the tree is opened to at first, for every component."""
GROWTH_CELLS_PER_COMPONENT = 100
"""The same for a mixture that is grown on them: on coarse cells it would settle into them and be slow to leave."""
ROWS_PER_CELL = 10
"""Where `max_cells` is not given there is one cell for this many rows: with more of them cells save too little."""
MOST_CELLS_PER_COMPONENT = 40
"""Cells for every component, where that is more."""
FEWEST_CELLS = 1000
"""Cells where both are fewer."""
MOST_STARTS = 4
"""Starts that are tried on the first cells, the best of which is gone on with."""
TRIAL_STEPS = 10
"""EM steps on the first cells after which starts are compared."""
DENSITIES_PER_ROW = 4
"""Fewer starts are tried where they would take more densities than this for every row."""
TRUNCATED_FROM = 400
"""Number of components from which cells look at few of them."""
N_CANDIDATES = 5


def resolved_max_cells(max_cells: int | None, n_rows: int, n_components: int) -> int:
    """Most cells: as given, or by the rows and the components."""
    if max_cells is not None:
        return max_cells
    return max(n_rows // ROWS_PER_CELL, MOST_CELLS_PER_COMPONENT * n_components, FEWEST_CELLS)


def resolved_candidates(n_candidates: int | str | None, n_components: int) -> int | None:
    """Components per cell, None for all of them."""
    if n_candidates == "auto":
        return N_CANDIDATES if n_components >= TRUNCATED_FROM else None
    if n_candidates is None or isinstance(n_candidates, str) or n_candidates >= n_components:
        return None
    return int(n_candidates)


def plant(data: Input, n_components: int, covariance_type: str, init: Any, max_cells: int) -> int:
    """Lay the tree and open it to its first cells; the number of cells."""
    kind = FAMILIES[covariance_type].scatter
    check_allocation(
        chunky_bytes(data.n_rows, data.n_columns, LEAF_SIZE, kind),
        f"a tree with leaves of {LEAF_SIZE} rows, twice while it is built",
        "take covariance_type='diag' or pass X as a file",
    )
    grows = isinstance(init, str) and init == "greedy"
    n_cells = min((GROWTH_CELLS_PER_COMPONENT if grows else CELLS_PER_COMPONENT) * n_components, max_cells)
    return data.shard.run(Plant(kind, LEAF_SIZE, largest=data.shard.total_weight / n_cells))


def starting_chunky(
    shard: Shard,
    n_components: int,
    init: Any,
    given: GivenStart,
    options: ChunkyOptions,
    limits: CovarianceLimits,
    random_state: np.random.RandomState,
) -> GaussianParameters:
    """A start by `init` on the cells, except for what was given: no pass over all rows.

    Where there are fewer cells than components (few rows, many of them alike) means come from the rows.
    """
    complete = given.complete()
    if complete is not None:
        return complete
    rng = np.random.default_rng(random_state.randint(2**31, size=4))
    cells = shard.run(TakeCells())
    counted = cells.weights > 0
    few = np.count_nonzero(counted) < n_components
    local = shard if few else shard.local(cells.means[counted], cells.weights[counted])
    covariance_type, learned = given.covariance_type, options.learned_weights
    if given.means is not None:
        found = start_from_cells(shard, given.means, covariance_type, limits, learned_weights=learned)
    elif init == "greedy":
        found = grow_mixture(shard, n_components, covariance_type, rng, limits=limits, learned_weights=learned)
    elif init == "random":
        em_options = EMOptions(reg_covar=limits.reg_covar)
        found = start_at_random(local, n_components, covariance_type, em_options, random_state)
    else:

        def draw() -> F64:
            return result_of(MEANS_METHODS[init](local, n_components, rng))

        n_starts = DENSITIES_PER_ROW * shard.n_rows // (TRIAL_STEPS * local.n_rows * n_components)
        n_starts = max(1, min(MOST_STARTS, n_starts))
        found = _best_start(shard, draw, n_starts, covariance_type, limits, learned_weights=learned)
    return given.replace(found)


def _best_start(
    shard: Shard,
    draw: Callable[[], F64],
    n_starts: int,
    covariance_type: str,
    limits: CovarianceLimits,
    *,
    learned_weights: bool,
) -> GaussianParameters:
    """The best of several starts, each after some EM steps on the first cells, which cost next to nothing."""
    best, highest = None, -np.inf
    for _ in range(n_starts):
        means = draw()
        found = start_from_cells(shard, means, covariance_type, limits, learned_weights=learned_weights)
        if n_starts == 1:
            return found
        bound = bound_after(shard, found, limits, TRIAL_STEPS, learned_weights=learned_weights)
        if best is None or bound > highest:
            best, highest = found, bound
    assert best is not None
    return best
