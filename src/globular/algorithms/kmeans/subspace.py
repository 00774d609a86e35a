"""K-means in a subspace first: most of a fit in the few directions that C clusters can make use of.

Rows with hundreds of columns mostly vary along a few dozen directions, and centres of clusters along fewer still (see
`model.subspace` for how many). So the fit is begun on the rows' coordinates in that subspace, where an iteration costs
d / D of a whole one and reads d / D of the memory, and ended in the whole space. Of sparse rows the coordinates are
dense, and still fewer numbers than the centres of a dozen clusters.

This is not an approximation that has to be paid for later. For a centre in the subspace

    ‖x − m‖² = ‖z − m_z‖² + ‖x − x̂‖²,    z the coordinates of x, x̂ its projection,

and the last term does not depend on the centre. So the steps in the subspace are exact k-means steps with centres held
to it: the objective of the lifted centres is known exactly (`unexplained` is the sum of the last terms) and never
rises; neither does it at the change to the whole space, where every centre leaves the subspace for the mean of its
rows. With unit centres (cosine) the same holds for a subspace through zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from globular.algorithms.kmeans.centers import update_centers
from globular.algorithms.kmeans.probing import ProbingOptions, probing_kmeans
from globular.algorithms.steps import Step, numbered_from
from globular.model.history import SEEDS
from globular.model.statistics import F64, HardStatistics
from globular.model.subspace import LEADING, Subspace, informative_subspace, orthonormal
from globular.seam.among import Need
from globular.seam.passes import PowerStep, Project, SumByLabel
from globular.seam.shard import Shard

FROM_COLUMNS = 16
"""With fewer columns there is too little to gain."""
SAMPLED_ROWS = 4096
"""Rows of a sample that stands for all where variances are estimated; larger = a closer estimate."""
SAMPLED_NUMBERS = 1 << 23
SOME_DIRECTIONS = 128
"""Most directions of sparse rows, unless clusters are more: text varies along thousands of directions, and its clusters
along the first of them."""
POWER_STEPS = 2
"""Steps by which random directions are turned towards the leading ones; larger = closer, for a pass each."""
ROWS_PER_DIRECTION = 16
"""Rows that there have to be for each direction; larger = subspaces for more rows only."""
LARGEST_COPY = 1 << 30
"""Bytes of coordinates that may be held beside the rows."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The rows of a shard as seen inside a subspace."""

    subspace: Subspace
    shard: Shard
    """Their coordinates; labels are shared with the whole shard."""
    total: float
    """Σ w ‖x − origin‖²."""
    unexplained: float
    """Σ w ‖x − x̂‖²: what no centre in the subspace can explain."""


def may_enter_subspace(shard: Shard) -> bool:
    """Whether it is worth a look at some rows."""
    return not shard.why_not(Project) and shard.n_columns >= FROM_COLUMNS


def enter_subspace(
    shard: Shard, n_clusters: int, rng: np.random.Generator, largest_share: float, *, unit_centers: bool
) -> Inside | None:
    """The subspace that these clusters need; None where it has more than `largest_share` of all directions, or the
    coordinates would be too many."""
    D = shard.n_columns
    if not may_enter_subspace(shard):
        return None
    mean, variance = shard.column_moments()
    origin = np.zeros(D) if unit_centers else mean
    if not shard.why_not(PowerStep):
        subspace = _subspace_of_sparse_rows(shard, origin, n_clusters, rng)
    elif Need.DENSE in shard.lacks:  # sparse rows that are read anew
        return None
    else:
        n = min(SAMPLED_ROWS, shard.n_rows, max(1, SAMPLED_NUMBERS // D))
        subspace = informative_subspace(_some_rows(shard, n, rng), origin, n_clusters, rng)
    d = 0 if subspace is None else subspace.dimension
    if subspace is None or not 0 < d <= largest_share * D or shard.n_rows * d * 8 > LARGEST_COPY:
        return None
    inside = shard.run(Project(subspace))
    total = shard.total_weight * float((variance + (mean - origin) ** 2).sum())
    inner_mean, inner_variance = inside.column_moments()
    explained = shard.total_weight * float((inner_variance + inner_mean**2).sum())
    return Inside(subspace, inside, total, max(0.0, total - explained))


def _subspace_of_sparse_rows(shard: Shard, origin: F64, n_clusters: int, rng: np.random.Generator) -> Subspace | None:
    """Leading directions by subspace iteration from some of the rows; None where they are too many numbers, or none.

    A sample that says as much about thousands of columns could not be held.
    """
    d = min(4 + 6 * n_clusters, max(SOME_DIRECTIONS, n_clusters), LEADING)
    if d * ROWS_PER_DIRECTION > shard.n_rows or 8 * d * max(shard.n_columns, shard.n_rows) > LARGEST_COPY:
        return None
    basis = (_some_rows(shard, d, rng) - origin).T
    for _ in range(POWER_STEPS):
        basis = orthonormal(shard.run(PowerStep(Subspace(origin, basis))))
        if not basis.shape[1]:  # all rows are alike
            return None
    return Subspace(origin, basis)


def _some_rows(shard: Shard, n: int, rng: np.random.Generator) -> F64:
    return shard.take(shard.locate(np.sort(rng.random(n)) * shard.total_weight, "weights"))


def leave_subspace(
    shard: Shard, inside: Inside, steps: Iterator[Step[F64]], options: ProbingOptions, rng: np.random.Generator
) -> Iterator[Step[F64]]:
    """Steps of k-means inside the subspace, their centres lifted; then more in the whole space."""
    for step in steps:
        is_last = step.stopped != "" and (step.iteration >= options.max_iter or step.objective == 0.0)
        unknown = inside.unexplained if step.stage == SEEDS else 0.0  # seedings see the coordinates alone
        stopped = step.stopped if is_last else ""
        yield replace(step, objective=step.objective + unknown, stopped=stopped, lift=inside.subspace.lift)
        if is_last:
            return
    lifted = inside.subspace.lift(step.model)
    statistics = shard.run(SumByLabel(len(lifted)))
    means = update_centers(shard, statistics, lifted, unit=options.unit_centers, relocate=False).centers
    before = _objective_at(means, statistics, inside)
    remaining = replace(options, max_iter=options.max_iter - step.iteration)
    yield from numbered_from(probing_kmeans(shard, means, remaining, rng, before=before), step.iteration)


def _objective_at(centers: F64, statistics: HardStatistics, inside: Inside) -> float:
    """Σ w ‖x − m_label‖² of any centres, from the sums of their rows; about the origin, so that little cancels."""
    shifted = centers - inside.subspace.origin
    sums = statistics.sums - statistics.counts[:, None] * inside.subspace.origin
    squares = np.einsum("ij,ij->i", shifted, shifted)
    return inside.total - 2.0 * float(np.vdot(shifted, sums)) + float(statistics.counts @ squares)
