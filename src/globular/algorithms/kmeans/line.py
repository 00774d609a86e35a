"""Rows of one column: the best centres there are, in one step."""

from __future__ import annotations

from globular.algorithms.steps import Step
from globular.model.statistics import F64
from globular.seam.center_passes import SolveLine
from globular.seam.shard import Shard

OPTIMUM = "optimum found"
"""Why the run ended."""
MOST_ROWS = 1 << 25
"""Rows up to which the optimum is looked for: about 90 bytes and 0.3 µs a row."""


def optimum_on_line(shard: Shard, n_clusters: int) -> Step[F64] | None:
    """The best centres; None where rows have more columns, are too many or elsewhere, or have too many scales."""
    if shard.n_columns > 1 or shard.n_rows > MOST_ROWS or shard.why_not(SolveLine):
        return None
    found = shard.run(SolveLine(n_clusters))
    if not len(found.centers):
        return None
    return Step(1, found.objective, 0, shard.n_rows, found.centers, OPTIMUM)
