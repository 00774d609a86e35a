"""K-means from nothing to labelled rows, from top to bottom: what `KMeans` does.

An iteration over all rows and columns is dear and the seeds decide where it ends, so as much as possible is done on
less:

1. a subspace of the columns, in which the next four stages see the rows    `subspace`
2. a part of the rows, on which seeds, swaps and iterations come first        `coreset`
3. seeds                                                                      `seeding`
4. swaps of centres, which mend what iterations cannot                        `trials` (few clusters), `swaps` (many)
5. iterations                                                                 `probing`
6. iterations in the whole space                                              `subspace`
7. labels for the centres as they are handed out (`label_rows`)               `probing`

With few clusters ("exact") every row looks at all centres, and swaps are tried out on parts of growing size; with many
("probing") a row looks at a few cells of centres. "lloyd" has stages 3, 5 and 7 alone, as in textbooks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from globular.algorithms.kmeans.cells import CELLS_OF_CELLS_FROM
from globular.algorithms.kmeans.coreset import FAR_OFF, draw_part, draw_parts, swap_and_step_from_part
from globular.algorithms.kmeans.few_rows import search_few_rows
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.kmeans.probing import ProbingOptions, accelerated_kmeans, probing_kmeans
from globular.algorithms.kmeans.sparse import seed_sparsely, sparse_kmeans
from globular.algorithms.kmeans.subspace import enter_subspace, leave_subspace, may_enter_subspace
from globular.algorithms.kmeans.swaps import swap_and_step
from globular.algorithms.kmeans.trials import (
    ROUGH_GAIN,
    STEPS_PER_TRIAL,
    TrialOptions,
    search_by_trials,
    swap_and_search,
)
from globular.algorithms.seeding.common import are_few, one_center
from globular.algorithms.seeding.named import Starting
from globular.algorithms.steps import Step, numbered_from, result_of
from globular.model.history import PART
from globular.model.sparse_centers import SPARSE_FROM, SparseCenters
from globular.model.statistics import F64
from globular.seam.shard import Shard

logger = logging.getLogger("globular")

ALGORITHMS = ("lloyd", "exact", "probing")
PROBING_FROM = 500
"""Number of clusters from which "auto" probes; with fewer, looking at all centres costs as little and gives more."""
MOST_STARTS, CLUSTERS_STARTED, ROWS_PER_START = 8, 64, 32
"""Few clusters are seeded several times, 64 of them in all, or once for every 32 times that the rows of the part go
into all rows, but two or three of them less often; the best start goes on."""
ENDS_ALIKE, SAME_ERROR = 3, 1e-4
"""Searches that end so often at the best error, but for this share of it, have found what there is to find."""

Seeding = Callable[[Shard], Starting]
"""Finds starting centres for the rows that it is handed, and shows the first of them as it goes."""


@dataclass(frozen=True, slots=True)
class Quality:
    """A point on the time–quality curve."""

    n_probes: int
    """Cells that each row searches in an iteration of "probing"."""
    least_gains: tuple[float, float]
    """The share of the error that an iteration has to gain, of few clusters and of many; otherwise it is the last."""
    trials: TrialOptions

    def least_gain(self, n_clusters: int) -> float:
        """Between `FADING` numbers of clusters, ever more: a power of their number."""
        (least, most), (few, many) = FADING, self.least_gains
        share = np.clip(np.log(n_clusters / least) / np.log(most / least), 0.0, 1.0)
        return float(few * (many / few) ** share)


QUALITIES = {
    "fast": Quality(2, (3e-4, 1e-2), TrialOptions(2, 0, 20)),
    "balanced": Quality(2, (1e-5, 5e-3), TrialOptions(6, 128, 60)),
    "best": Quality(3, (1e-6, 1e-3), TrialOptions(12, 256, 200)),
}
FADING = (300, 1500)
"""Numbers of clusters between which a fit ends ever earlier: with few clusters the last percent costs little, with many
it would cost several times the fit."""
LARGEST_SHARE = {"exact": 0.25, "probing": 0.6}
"""Most directions that still pay, as a share of the columns; few clusters suffer more from a subspace."""
SPARSE_GAIN = 0.01
"""Share of the least gain of an iteration that is enough where an inverted file makes it cheap."""
LEFT_TO_NEXT = (1.0, 4.0)
"""How many times the rows of a part the next one has where all trials are left to that one, and where none are. The
next has at least twice the rows, where a third are made: so little changes where there is no next part any more."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How to cluster, and when to stop."""

    n_clusters: int
    algorithm: str = "auto"
    """"auto" or one of `ALGORITHMS`."""
    quality: str = "balanced"
    """One of `QUALITIES`; for "exact" and "probing"."""
    max_iter: int = 300
    tol: float = 0.0
    """For all but "probing": stop when the sum of the squared shifts of all centres falls to this."""
    unit_centers: bool = False
    may_narrow: bool = True
    """Whether "exact" and "probing" may begin in a subspace and with a part of the rows, from which the seeds come."""
    sparse: bool = False
    """Whether the rows have few entries, so that an inverted file finds the closest of many centres."""
    has_start: bool = False
    """Whether the user gives the centres to start from: Lloyd's algorithm then gives what everybody expects."""
    exact_labels: bool = False
    seeds_sparsely: bool = True
    """Whether `seed` leaves it to the pipeline how seeds are drawn, where it inverts."""

    @property
    def chosen(self) -> str:
        """The algorithm that "auto" comes to."""
        if self.algorithm != "auto":
            return self.algorithm
        if self.n_clusters >= PROBING_FROM:
            return "exact" if self.sparse else "probing"
        return "lloyd" if self.has_start else "exact"

    @property
    def inverts(self) -> bool:
        """Whether rows find their closest centre by an inverted file."""
        return self.sparse and self.n_clusters >= SPARSE_FROM and self.chosen != "probing"

    @property
    def stepping(self) -> ProbingOptions:
        """How rows look for centres, and when iterations end."""
        quality, probing = QUALITIES[self.quality], self.chosen == "probing"
        return ProbingOptions(
            quality.n_probes if probing else 0, self.max_iter,
            quality.least_gain(self.n_clusters) if probing or self.tol > 0 else 0.0,
            tol=0.0 if probing else self.tol, unit_centers=self.unit_centers,
        )  # fmt: skip

    def searches_few(self, shard: Shard) -> bool:
        """Whether the rows are searched beside the algorithm: see `few_rows`."""
        is_few = are_few(shard.n_rows, shard.n_columns, self.n_clusters)
        return is_few and self.may_narrow and self.chosen == "exact"

    @property
    def last_probes(self) -> int:
        """Cells that `label_rows` searches after the last step; 0 looks at all centres."""
        return 0 if self.exact_labels else self.stepping.n_probes


def kmeans(
    shard: Shard, seed: Seeding, options: PipelineOptions, random_state: np.random.RandomState
) -> Iterator[Step[F64]]:
    """Cluster the rows of a shard. Every step has all of its centres; those in the whole space are `lifted`."""
    if options.inverts:
        yield from _sparse_stages(shard, seed, options, random_state)
        return
    if options.chosen == "lloyd":
        start = yield from seed(shard)
        yield from lloyd(shard, start.centers, KMeansOptions(options.max_iter, options.tol, options.unit_centers))
        return
    rng = np.random.default_rng(random_state.randint(2**31, size=4).astype(np.uint32))
    inside = None
    if options.may_narrow and not options.searches_few(shard):
        if options.chosen == "exact" or may_enter_subspace(shard):
            # directions and parts are drawn before seeds, in about a pass of one centre
            first = one_center(shard, unit=options.unit_centers)
            yield replace(first, next_rows=max(1, shard.n_rows // options.n_clusters))
        largest_share = LARGEST_SHARE[options.chosen]
        inside = enter_subspace(shard, options.n_clusters, rng, largest_share, unit_centers=options.unit_centers)
    stepping = options.stepping
    if options.chosen == "probing" and options.n_clusters < CELLS_OF_CELLS_FROM and shard.passes_are_cheap:
        stepping = replace(_for_cheap_passes(stepping), settles=options.quality != "best")
    if options.chosen == "exact":
        stepping = replace(stepping, total=shard.total_weight * float(shard.column_moments()[1].sum()))
    stages = _search_and_step if options.chosen == "exact" else _seed_and_step
    if inside is None:
        yield from stages(shard, seed, options, stepping, rng)
        return
    logger.info("begins in %d of %d dimensions", inside.subspace.dimension, shard.n_columns)
    steps = stages(inside.shard, seed, options, replace(stepping, unexplained=inside.unexplained), rng)
    yield from leave_subspace(shard, inside, steps, stepping, rng)


def _sparse_stages(
    shard: Shard, seed: Seeding, options: PipelineOptions, random_state: np.random.RandomState
) -> Iterator[Step[Any]]:
    """Stages 3, 5 and 7 for sparse rows and many clusters; seeds that nobody has chosen are greedy ones."""
    rng = np.random.default_rng(random_state.randint(2**31, size=4).astype(np.uint32))
    if options.seeds_sparsely:
        centers = yield from seed_sparsely(shard, options.n_clusters, rng)
    else:
        start = yield from seed(shard)
        centers = SparseCenters.of(start.centers)
    least = 0.0 if options.chosen == "lloyd" else SPARSE_GAIN * options.stepping.min_gain
    yield from sparse_kmeans(shard, centers, replace(options.stepping, min_gain=least))


def _for_cheap_passes(options: ProbingOptions) -> ProbingOptions:
    """Twice the cells and a fifth of the gain: products cost next to nothing beside what is done once a pass.

    Swaps cost three times what an iteration does then, so but for the best quality the first iterations come before.
    """
    n_probes, least = 2 * options.n_probes, 0.2 * options.min_gain
    return replace(options, n_probes=n_probes, swap_probes=n_probes, min_gain=least, swap_gain=options.min_gain)


def _seed_and_step(
    shard: Shard, seed: Seeding, options: PipelineOptions, stepping: ProbingOptions, rng: np.random.Generator
) -> Iterator[Step[F64]]:
    """Stages 2 to 5 for many clusters: swaps and steps on a part, then on all rows."""
    part = draw_part(shard, options.n_clusters, rng) if options.may_narrow else None
    start = yield from seed(shard if part is None else part)
    if not start.is_seeding:  # a start that the user has chosen stays as it is
        yield from probing_kmeans(shard, start.centers, stepping, rng, labelled=start.labelled)
    elif part is None:
        yield from swap_and_step(shard, start.centers, stepping, rng, labelled=start.labelled)
    else:
        logger.info("begins with %d of %d rows", part.n_rows, shard.n_rows)
        steps = swap_and_step_from_part(shard, part, start.centers, stepping, rng, labelled=start.labelled)
        del part  # the steps give it up when they are done with it
        yield from steps


def _search_and_step(
    shard: Shard, seed: Seeding, options: PipelineOptions, stepping: ProbingOptions, rng: np.random.Generator
) -> Iterator[Step[F64]]:
    """Stages 2 to 5 for few clusters: a search on parts of growing size, then steps over all rows."""
    if options.searches_few(shard) and stepping.unexplained == 0:  # in a subspace there are several starts
        start = yield from seed(shard)
        best = yield from search_few_rows(shard, start.centers, stepping, QUALITIES[options.quality].trials, rng)
        yield from accelerated_kmeans(shard, best.model, stepping, before=best.objective)
        return
    parts = draw_parts(shard, options.n_clusters, rng) if options.may_narrow else []
    trials = QUALITIES[options.quality].trials
    on_part = replace(stepping, min_gain=max(1e-4, stepping.min_gain), max_iter=300, tol=0.0)  # trials included
    first, few = parts[0] if parts else shard, CLUSTERS_STARTED // options.n_clusters
    most = min(MOST_STARTS, 2 * options.n_clusters)
    n_starts = max(1, min(most, max(few, shard.n_rows // (ROWS_PER_START * first.n_rows))))
    if not parts:
        all_rows = replace(trials, max_share=1.0)  # as many iterations as came before them
        if stepping.unexplained > 0 and n_starts > 1:  # in a subspace starts are cheap
            best = yield from _best_start(shard, seed, n_starts, on_part, rng)
            yield from search_by_trials(shard, best.model, stepping, all_rows, rng)
            return
        start = yield from seed(shard)
        if start.is_seeding:
            yield from swap_and_search(shard, start.centers, stepping, all_rows, rng)
        else:  # a start that the user has chosen stays as it is
            yield from accelerated_kmeans(shard, start.centers, stepping)
        return
    searched = are_few(first.n_rows, first.n_columns, options.n_clusters)
    best = yield from _best_start(first, seed, n_starts, on_part, rng, trials if searched else None)
    if searched:
        parts, trials = parts[1:], trials.on_larger_part
    del first  # its memory, and that of the other parts, is free while the steps over all rows are taken
    best = yield from _search_parts(parts, best, on_part, trials, rng)
    steps = accelerated_kmeans(shard, best.model, stepping)
    step = next(steps)
    yield step
    if step.stopped or step.objective <= FAR_OFF * best.objective:
        yield from steps
        return
    logger.info("the part was misleading: an error of %g, and %g of all rows", best.objective, step.objective)
    left = replace(stepping, max_iter=options.max_iter - 1)
    yield from numbered_from(search_by_trials(shard, step.model, left, trials, rng), 1)


def _search_parts(
    parts: list[Shard], best: Step[F64], options: ProbingOptions, trials: TrialOptions, rng: np.random.Generator
) -> Generator[Step[F64], None, Step[F64]]:
    """Trials on every part, from the smallest on, each of which is given up after that; returns the end."""
    while parts:
        part = parts.pop(0)
        logger.info("searches on %d rows", part.n_rows)
        here = 1.0 if not parts else float(np.interp(parts[0].n_rows / part.n_rows, LEFT_TO_NEXT, (0.0, 1.0)))
        some = replace(trials, max_trials=round(here * trials.max_trials))
        for step in search_by_trials(part, best.model, options, some, rng):
            is_last = step.stopped != "" and not parts
            best = replace(
                step, iteration=0, stopped="", stage=PART, next_rows=None if is_last else STEPS_PER_TRIAL * part.n_rows
            )
            yield best
        trials = trials.on_larger_part
    return best


def _best_start(
    part: Shard,
    seed: Seeding,
    n_starts: int,
    options: ProbingOptions,
    rng: np.random.Generator,
    trials: TrialOptions | None = None,
) -> Generator[Step[F64], None, Step[F64]]:
    """Seeds and rough iterations from them, or with `trials` whole searches, several times; returns the best end."""
    best: Step[F64] | None = None
    rough = replace(options, min_gain=ROUGH_GAIN, max_iter=8)
    if trials is not None:  # failures are shared among the starts
        trials = replace(trials, more_failures=trials.more_failures // n_starts)
    ends = list[float]()
    for _ in range(n_starts):
        start = (yield from seed(part)) if best is None else result_of(seed(part))
        steps: Iterator[Step[F64]] = accelerated_kmeans(part, start.centers, rough)
        if trials is not None:
            steps = search_few_rows(part, start.centers, options, trials, rng)
        for step in steps:
            better = step if best is None or step.objective < best.objective else best
            shown = replace(better, iteration=0, stopped="", stage=PART)
            yield replace(shown, n_distances=step.n_distances, next_rows=part.n_rows)
        best = better
        ends.append(step.objective)
        if trials is not None and sum(end <= (1.0 + SAME_ERROR) * best.objective for end in ends) == ENDS_ALIKE:
            break
    assert best is not None
    return best
