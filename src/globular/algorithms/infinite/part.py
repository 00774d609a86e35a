"""Infinite mixtures of many rows: a part of them says which components there are, all rows what these are like.

Growth takes many cycles and trials of splits, and what it finds hardly depends on how many rows it looks at, once they
are enough. So it is done on a random part. All rows go on from there: they have a part in every parameter, and in
splits that the part was too small for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from globular.algorithms.infinite.data import RowData
from globular.algorithms.infinite.infinite import InfiniteOptions, Mixture, infinite, one_component
from globular.algorithms.seeding.common import TAKEN_NUMBERS, evenly_spread_rows
from globular.algorithms.steps import Step
from globular.model.history import PART
from globular.model.observations import Moments, Prior
from globular.seam.shard import Shard

PART_ROWS = 30_000
"""Rows of the part."""
WORTHWHILE = 3
"""How many times as many rows there have to be, for a part to save time."""


def draw_part(shard: Shard, rng: np.random.Generator) -> Shard:
    """Rows with their weights, one anywhere in each of so many equal stretches; all of them if they are not many.

    They are copied, since hundreds of passes are made over them, unless they are too many numbers for that.
    """
    if shard.n_rows < WORTHWHILE * PART_ROWS:
        return shard
    chosen = evenly_spread_rows(shard.n_rows, PART_ROWS, rng)
    if len(chosen) * shard.n_columns > TAKEN_NUMBERS:
        return shard.subset(chosen)
    return shard.local(shard.take(chosen), shard.take(chosen, "weights"))


def infinite_from_part(
    part: RowData, data: RowData, prior: Prior, options: InfiniteOptions, rng: np.random.Generator
) -> Iterator[Step[Mixture]]:
    """Grow on the part, then run on all data from there. Objectives of the part are estimates of those of all."""
    whole = data.shard.total_weight / part.shard.total_weight
    for step in infinite(part, prior, one_component(part, prior), replace(options, n_polishing=0), rng):
        yield replace(
            step, iteration=0, objective=whole * step.objective, stopped="", stage=PART, next_rows=part.shard.n_rows
        )
    found, fitted = step.model, step.model.tail.prior
    mixture = found.posterior.expected_mixture(found.sticks.log_weights)
    start = Moments.from_pass(mixture, data.e_step(mixture))
    yield from infinite(data, fitted, start, replace(options, n_sown=0), rng)
