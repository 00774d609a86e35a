"""One case or more for every pass: a problem, what was done before, the pass, and its oracle."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from scipy.special import logsumexp

from globular.model.cells import CenterCells
from globular.model.chunks import Chunks
from globular.model.coordinates import Coordinates
from globular.model.covariances import COLUMNS
from globular.model.dirichlet import InfiniteMixture
from globular.model.exponential import Bernoulli, Directions, LinearMixture, Poisson, Surveyed
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Search, random_graph
from globular.model.low_rank import LowRankParameters
from globular.model.nested import Batch, Bounds, CenterGroups, NestedSearch
from globular.model.noise import Noise
from globular.model.observations import ObservedMoments as Observed
from globular.model.statistics import ColumnMoments, PairStatistics
from globular.model.subspace import Subspace
from globular.model.wishart import KINDS as WISHART
from globular.model.wishart import GaussianPrior
from globular.passes.cpu import CpuShard
from globular.passes.cpu.engine.group import group_by
from globular.passes.host import NOMINEES, HostShard
from globular.seam.among import Down, Neighbors, Probe, Remembered, Within
from globular.seam.answers import NEAREST, Answer, Blurred, Centers, Coding, LowRank, Nearest, Own, Truncated
from reference import assign as hard
from reference import chunks, draws, linear
from reference import expect as soft
from reference import low_rank as factors
from reference import neighbors as truncated
from reference import probe as probed
from reference import seeds as d2
from reference import transport as flows

from globular.seam.center_passes import (  # isort: skip
    AcceptSeeds, CellNeighbors, CellSeeds, EstimateNeighbors, Limits, RoughCells, RunChains, SearchFew, SeedFew,
    Transport,
)  # fmt: skip
from globular.seam.mixture_passes import (  # isort: skip
    Expect, ExpectLinear, ExpectLowRank, ExpectShares, ExpectWithin, LabelByDensity, RowsOf, ScatterWithin, Survey,
)  # fmt: skip
from globular.seam.passes import (  # isort: skip
    AddSeeds, AllLabels, AsScaled, Assign, AssignBatch, BlendErrors, Extremes, Farthest, Halve, LabelBySeeds, Locate,
    Moments, Pass, PowerStep, Project, Relabel, Roots, ScatterLabels, Spare, SumByLabel, Take, TakeLabels, Total,
    TrySeeds,
)  # fmt: skip
from globular.seam.tree_passes import (  # isort: skip
    BestCut, CellsOf, ExpectCells, ForgetMembers, Gains, Gap, OpenCut, OpenGaining, OpenHeld, OpenRows, Plant,
    PutFrontier, ReadFrontier, TakeCells,
)  # fmt: skip
from makers import blobs, in_form, weights_for

N, C = 180, 9
State = dict[str, Any]


class Problem:
    """Rows in one form, and models of them."""

    def __init__(self, form: str, weighted: bool) -> None:
        self.matrix = in_form(blobs(n=N, C=C, D=3), form)
        self.weights = weights_for(N) if weighted else None
        self.rows, self.w = hard.as_seen(self.matrix), np.ones(N) if self.weights is None else self.weights
        self.former, self.centers = self.rows[40 : 40 + C], self.rows[: 2 * C : 2] + 0.03
        self.graph = random_graph(C, 4, np.random.default_rng(1))
        self.groups = CenterGroups(np.argsort(np.arange(C) % 3, kind="stable"), np.arange(0, C + 1, 3))
        starts, order = group_by(hard.closest_centers(self.centers, self.centers[:3]).astype(np.int32), 3)
        self.cells = CenterCells(self.centers[:3], order.astype(np.intp), starts.astype(np.intp))
        self.tree = self.cells.tree(self.centers)
        self.shifts = np.linalg.norm(self.centers - self.former, axis=1) * 1.0000001
        self.everyone = np.arange(N)

    def mixture(self, kind: str = "diag") -> GaussianParameters:
        spread = np.linspace(1.0, 2.0, 3 * C).reshape(C, 3)
        shapes = {"diag": spread, "full": spread[:, :, None] * np.eye(3), "tied": np.eye(3) + 0.2}
        return GaussianParameters(np.arange(1.0, C + 1) / 45, self.centers, shapes[kind], kind)

    @property
    def linear(self) -> LinearMixture:
        return LinearMixture(0.3 * self.centers, np.linspace(-2.0, 1.0, C))

    @property
    def directions(self) -> Directions:
        return Directions.of_means(np.arange(1.0, C + 1) / 45, 0.05 * self.centers)

    def noisy(self, kind: str = "full") -> GaussianParameters:
        mixture = self.mixture(kind)
        noise = Noise(0.3, self.rows.min(axis=0) - 1.0, self.rows.max(axis=0) + 1.0)
        return replace(mixture, weights=0.7 * mixture.weights, noise=noise)

    @cached_property
    def low_rank(self) -> LowRankParameters:
        loadings = np.random.default_rng(2).normal(size=(C, 2, 3))
        return LowRankParameters(self.mixture().weights, self.centers, loadings, self.mixture().covariances)

    @cached_property
    def correlated(self) -> LowRankParameters:
        coordinates = Coordinates.of_covariance(self.rows.mean(axis=0), np.eye(3) + 0.5)
        return replace(self.low_rank, means=coordinates.to(self.centers), coordinates=coordinates)

    @cached_property
    def blurred(self) -> Blurred:
        mixture = self.mixture("full")
        added = np.array([0.5, 1.0, 2.0])
        return Blurred(replace(mixture, covariances=mixture.covariances + np.diag(added)), added)

    @cached_property
    def infinite(self) -> InfiniteMixture[Any]:
        prior = GaussianPrior(WISHART["full"], 0.01, self.rows.mean(axis=0), 5.0, np.eye(3))
        mixture = self.mixture("full")
        found = Observed.from_pass(mixture, soft.soft_pass(self.rows, self.w, mixture))
        return InfiniteMixture.update(prior, (1.0, 1.0), found)


def alike(found: Any, wanted: Any, rtol: float = 1e-9) -> None:
    """Whole numbers exactly, others to rounding; of dictionaries and records everything that is wanted."""
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            alike(getattr(found, name), value, rtol)
    elif isinstance(wanted, PairStatistics | truncated.Pairs | Chunks):
        alike(plain(found), plain(wanted), max(rtol, 1e-6))
    elif isinstance(wanted, ColumnMoments):
        alike(found, {"mean": wanted.mean, "variance": wanted.variance}, rtol)
    elif isinstance(wanted, CpuShard):
        alike(found.take(np.arange(wanted.n_rows)), wanted.take(np.arange(wanted.n_rows)), rtol)
    elif hasattr(wanted, "__dataclass_fields__"):
        alike(found, {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}, rtol)
    elif isinstance(wanted, list) and wanted and isinstance(wanted[0], np.ndarray):
        alike(np.concatenate(found), np.concatenate(wanted), rtol)
    elif isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            alike(one, other, rtol)
    elif wanted is not None:
        assert np.shape(found) == np.shape(wanted)
        if np.asarray(wanted).dtype.kind == "f":
            scale = np.abs(wanted, where=np.isfinite(wanted), out=np.zeros(np.shape(wanted))).max(initial=1.0)
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * scale)
        else:
            np.testing.assert_array_equal(found, wanted)


def plain(value: Any) -> Any:
    """Pairs as a table, cells in the order of their means."""
    if isinstance(value, PairStatistics):
        tables = np.zeros((2, C, C))
        for table, sums in zip(tables, value.sums, strict=True):
            np.add.at(table, tuple(value.pairs), sums)
        return tables
    if isinstance(value, truncated.Pairs):
        return np.stack([value.distances, value.weights])
    order = np.lexsort(np.round(value.means, 9).T)
    return [np.column_stack([value.weights, value.means, value.with_scatter().scatter])[order]]


@dataclass(frozen=True)
class Case:
    """A pass and what it is to do; `oracle(problem, shard, state before, state after, result)` asserts it."""

    name: str
    work: Callable[[Problem], Pass[Any]]
    oracle: Callable[[Problem, Any, State, State, Any], None]
    before: Callable[[Problem], list[Pass[Any]]] = lambda p: [Assign(p.former)]
    dense: bool = False
    """Whether the model that is asked is one of dense rows, which the pass does not know."""
    of_one_tree: bool = False
    """Whether it names the nodes of one tree over all rows."""
    cells_of_parts: bool = False
    """Whether its result depends on the parts that have a tree of their own."""

    @property
    def on_tree(self) -> bool:
        return type(self.work(Problem("float64", False))).__module__.endswith("tree_passes")


# --- oracles ---------------------------------------------------------------------------------------------------------
def votes(p: Problem, labels: Any, before: State) -> dict[str, Any]:
    """Sums of rows that have these labels, and those that changed."""
    counts, sums = np.zeros(C), np.zeros((C, 3))
    np.add.at(counts, labels, p.w)
    np.add.at(sums, labels, p.w[:, None] * p.rows)
    own = p.w @ ((p.rows - p.centers[labels]) ** 2).sum(axis=1)
    return {"sums": sums, "counts": counts, "objective": own, "n_changed": int((labels != before["labels"]).sum())}


def assigned(label: Callable[[Problem, State], Any]) -> Any:
    def check(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
        labels = label(p, before)
        np.testing.assert_array_equal(after["labels"], labels)
        alike(found, votes(p, labels, before))

    return check


def neighbors(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    wanted = truncated.neighborhood_pass(p.rows, p.w, p.centers, p.graph, Search(1, 1, 3, True), before["labels"])
    np.testing.assert_array_equal(after["labels"], wanted.labels)
    alike(found, votes(p, wanted.labels, before) | {"pairs": wanted.pairs})
    assert found.n_distances == wanted.statistics.n_distances


def candidates(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    members = truncated.starting_members(before["labels"], p.graph, 3)
    search = Search(3, 1, 3, True)
    wanted = truncated.candidates_pass(p.rows, p.w, p.centers, p.graph, search, before["labels"], members)
    np.testing.assert_array_equal(after["labels"], wanted.labels)
    alike(found, votes(p, wanted.labels, before) | {"pairs": wanted.pairs})
    assert found.n_distances == wanted.statistics.n_distances
    alike(after.get("members", wanted.members).reshape(N, 3), wanted.members)


def batch(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    chosen = Batch(5, 120, N).rows(N)
    labels, old = before["labels"].copy(), before["labels"]
    labels[chosen] = hard.closest_centers(p.rows[chosen], p.centers)
    np.testing.assert_array_equal(after["labels"], labels)
    sums, counts = np.zeros((C, 3)), np.zeros(C)
    for sign, who in ((1, labels), (-1, old)):
        voting = chosen[who[chosen] >= 0]
        np.add.at(counts, who[voting], sign * p.w[voting])
        np.add.at(sums, who[voting], sign * p.w[voting, None] * (p.rows[voting] - p.rows[0]))
    alike(found, {"sums": sums, "counts": counts, "n_rows": 120, "n_changed": int((labels != old).sum())})


def within(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    mixture = p.mixture("full" if found.parts.scatter.ndim == 3 else "diag")
    alike(found, soft.within_pass(p.rows, p.w, mixture, before["labels"], 3))


def shares(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    """The first two components on the rows from the 70th on, the others on those before."""
    mixture, late = p.mixture(), np.arange(N) >= 70
    ones = soft.soft_pass(p.rows[late], p.w[late], mixture.pick(slice(2)))
    others = soft.soft_pass(p.rows[~late], p.w[~late], mixture.pick(slice(2, C)))
    for name in ("counts", "sums", "scatter"):
        alike(getattr(found.parts, name), np.concatenate([getattr(ones, name), getattr(others, name)]), 1e-6)
    alike(found.log_likelihoods, np.array([ones.log_likelihood, others.log_likelihood]))


def spare(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    alike(found, hard.spare(p.rows, p.w, p.centers), 1e-4)
    np.testing.assert_array_equal(after["labels"], hard.closest_centers(p.rows, p.centers))
    alike(shard.take(p.everyone, "errors"), p.w * d2.seed_distances(p.rows, p.w, p.centers).d2, 1e-4)


def halves(p: Problem, shard: Any, before: State, after: State, found: Any, *, named: bool = False) -> None:
    labels = hard.closest_centers(p.rows, p.former)
    alike(found, hard.halve(p.rows, p.w, labels, p.former, p.centers))
    squared = hard.distances_in_halves(p.rows, labels, p.former, p.centers)
    alike(shard.take(p.everyone, "errors"), p.w * squared.min(axis=0))
    np.testing.assert_array_equal(after["labels"], labels + C * (named & (squared[1] < squared[0])))


def seeds(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    wanted = d2.seed_distances(p.rows, p.w, np.vstack([p.former, p.centers]))
    alike(shard.take(p.everyone, "errors"), p.w * wanted.d2)
    alike(found.potential, wanted.potential)
    alike(shard.run(Total("weights", "seeds", 2 * C)), np.bincount(wanted.seeds, p.w, minlength=2 * C))


def expected(p: Problem, members: Any, n_distances: int) -> Any:
    _, wanted = truncated.kept_statistics(p.rows, p.w, p.mixture(), members, n_distances)
    return some(wanted, "counts", "sums", "scatter", "log_likelihood", "n_distances")


def soft_neighbors(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    members = truncated.starting_members(before["labels"], p.graph, 3)
    wanted = truncated.soft_pass(p.rows, p.w, p.mixture(), p.graph, Search(3, 1, 3, True), members)
    np.testing.assert_array_equal(after["labels"], wanted.members[:, 0])
    alike(found, expected(p, wanted.members, wanted.statistics.n_distances))


def soft_probe(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    members = np.full((N, 3), -1, dtype=np.int32)
    members[:, 0] = before["labels"]
    kept, wanted, _ = probed.probing_soft_pass(p.rows, p.w, p.mixture(), p.cells, 2, members)
    np.testing.assert_array_equal(after["labels"], kept[:, 0])
    alike(found, expected(p, kept, wanted.n_distances))


def full_probe(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    members, mixture = np.full((N, 3), -1, dtype=np.int32), p.mixture("full")
    members[:, 0] = before["labels"]
    joint = soft.log_joint(p.rows, mixture)
    kept, n = probed.nominated_members(p.rows, joint, joint, p.cells, 2, NOMINEES, members)  # matrices are diagonal
    _, wanted = truncated.kept_statistics(p.rows, p.w, mixture, kept, n)
    np.testing.assert_array_equal(after["labels"], kept[:, 0])
    alike(found, some(wanted, "counts", "sums", "scatter", "log_likelihood", "n_distances"))


def low_rank_probe(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    members = np.full((N, 3), -1, dtype=np.int32)
    members[:, 0] = before["labels"]
    kept, wanted = factors.probing_pass(p.rows, p.w, p.low_rank, p.cells, 2, NOMINEES, members)
    np.testing.assert_array_equal(after["labels"], kept[:, 0])
    alike(found, some(wanted, "counts", "sums", "scatter", "cross", "log_likelihood", "n_distances"))


def reconstructed(p: Problem) -> list[Any]:
    q, _ = soft.posterior(p.rows, factors.as_full(p.low_rank))
    return [factors.reconstruction(p.rows, p.low_rank, p.low_rank.noise, q)]


def unblurred(p: Problem) -> list[Any]:
    q, _ = soft.posterior(p.rows, p.blurred.mixture)
    return [factors.unblurred(p.rows, p.blurred.mixture, p.blurred.noise, q)]


def low_rank_kept(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    members = np.full((N, 3), -1, dtype=np.int32)
    members[:, 0] = hard.closest_centers(p.rows, p.former)
    kept, _ = factors.probing_pass(p.rows, p.w, p.low_rank, p.cells, 2, NOMINEES, members)
    joint = soft.log_joint(p.rows, factors.as_full(p.low_rank))
    alike(found, [np.array([logsumexp(joint[i, c[c >= 0]]) for i, c in enumerate(kept)])])


def claims(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    q, _ = soft.posterior(p.rows, p.mixture())
    for component, claim in zip((4, 0), found, strict=True):
        chosen = (q[:, component] > 1e-4) & (p.w > 0)
        alike(claim, {"means": p.rows[chosen], "weights": (p.w * q[:, component])[chosen]})


def says(wanted: Callable[[Problem], Any], rtol: float = 1e-9) -> Any:
    return lambda p, shard, before, after, found: alike(found, wanted(p), rtol)


def surveyed(invalid: Callable[[Any], Any]) -> Any:
    return says(lambda p: Surveyed(int(invalid(p.rows).sum()), 0.0, int(invalid(p.rows).any(axis=1).argmax())))


def leaves(name: str, wanted: Callable[[Problem, State], Any]) -> Any:
    return lambda p, shard, before, after, found: np.testing.assert_array_equal(after[name], wanted(p, before))


def posterior(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    joint, members = soft.log_joint(p.rows, p.mixture()), after.get("members")
    if members is not None:
        members = members.reshape(N, 3)
        own = np.where(members >= 0, np.take_along_axis(joint, np.maximum(members, 0), axis=1), -np.inf)
        alike(np.concatenate(found), logsumexp(own, axis=1))


def some(statistics: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(statistics, name) for name in names}


def near(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    distances = hard.squared_distances(p.rows, p.rows)
    alike(np.take_along_axis(distances, found.astype(int), axis=1), np.sort(distances, axis=1)[:, :4])


TESTS = np.random.default_rng(4).random(N)
PAIRS = PairStatistics(
    np.array([[0, 0, 1, 1], [2, 5, 7, 3]], dtype=np.int32), np.array([[4, 1, 3, 9], [2, 1, 2, 2]], dtype=np.float32)
)


def estimated(p: Problem) -> Any:
    pairs = truncated.Pairs.none(C)
    for c, other, distance, weight in zip(*PAIRS.pairs.tolist(), *PAIRS.sums.tolist(), strict=True):
        pairs.add(c, other, distance / weight, weight)
    return truncated.estimated_graph(p.graph, pairs)


def cell_seeds(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    assert len(set(found.tolist())) == 5 and (p.w[found] > 0).all()
    assert (found[:2] < 70).all() and (found[2:] >= 70).all()


def seed_few(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    seeds: list[int] = []
    for draw in (0.3, 0.7, 0.5):
        d2_so_far = d2.seed_distances(p.rows, p.w, p.rows[seeds]).d2 if seeds else np.ones(N)
        seeds.extend(d2.locate(p.w * d2_so_far, np.array([draw * (p.w @ d2_so_far)])))
    np.testing.assert_array_equal(found.indices, seeds)
    alike(found.potential, d2.seed_distances(p.rows, p.w, p.rows[seeds]).potential)


def search_few(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    voted = votes(p, hard.closest_centers(p.rows, p.centers), before)
    means = voted["sums"] / voted["counts"][:, None]
    alike(found, {"centers": means, "objective": voted["objective"], "n_steps": 1})


def rough_cells(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    centers = p.centers
    for _ in range(2):
        labels = hard.closest_centers(p.rows, centers)
        voted = votes(p, labels, before)
        filled = voted["counts"] > 0
        centers = np.where(filled[:, None], voted["sums"] / np.where(filled, voted["counts"], 1.0)[:, None], centers)
    labels = hard.closest_centers(p.rows, centers)
    alike(np.asarray(found.middles), centers[np.unique(labels)])
    np.testing.assert_array_equal(np.asarray(found.order), np.argsort(labels, kind="stable"))
    np.testing.assert_array_equal(np.diff(found.starts), np.unique(labels, return_counts=True)[1])


def cells_of(p: Problem, shard: Any) -> list[chunks.Cell]:
    """The cells of all frontiers as sets of rows; those of opened leaves one by one."""
    numbers = []
    for part in getattr(shard, "shards", [shard]):
        held = [part.frontier.tree.rows_of(int(node)) - 0 for node in part.frontier.nodes]
        own = np.arange(part.first_row, part.first_row + part.n_rows)
        numbers += held + [np.array([row]) for row in np.setdiff1d(own, np.concatenate([[], *held]))]
    return [chunks.Cell(p.rows[n], p.w[n]) for n in numbers if p.w[n].sum() > 0]


def cell_step(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    wanted = chunks.cell_pass(cells_of(p, shard), p.mixture())
    alike(found, some(wanted, "counts", "sums", "scatter", "log_likelihood"), 1e-8)


def gap(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    bound = sum(chunks.bound(cell, p.mixture()) for cell in cells_of(p, shard))
    alike(found.total, soft.soft_pass(p.rows, p.w, p.mixture()).log_likelihood - bound, 1e-7)


def partition(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    """All rows are in one cell; numbers count the cells."""
    cells = shard.run(TakeCells()) if isinstance(found, int) else found
    alike(float(cells.weights.sum()), float(p.w.sum()))
    assert not isinstance(found, int) or found == len(cells)


def gains(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    bound = sum(chunks.bound(cell, p.mixture()) for cell in cells_of(p, shard))
    shard.run(OpenGaining(0.0))
    opened = sum(chunks.bound(cell, p.mixture()) for cell in cells_of(p, shard))
    alike(found.total, opened - bound, 1e-7)


def held(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    counts = chunks.cell_pass(cells_of(p, shard), p.mixture()).counts
    alike([claim.weights.sum() for claim in found], [counts[2], counts[5]], 1e-2)


def nothing(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    """The state says it all."""


def worth(nodes: Chunks) -> Any:
    """A module's function: it has to travel."""
    return -np.square(nodes.weights - 20.0)


def put(p: Problem) -> Pass[Any]:
    shard = CpuShard(p.rows, p.weights)
    shard.run(PLANT)
    (state,) = shard.run(ReadFrontier(1 << 30))
    assert state is not None
    return PutFrontier(state, None)


def scattered(p: Problem, before: State) -> Any:
    return [truncated.random_cluster(3, row, 63, 7) for row in range(N)]


def transported(p: Problem, shard: Any, before: State, after: State, found: Any) -> None:
    costs, sizes = hard.squared_distances(p.rows, p.centers), np.bincount(found.labels, minlength=C)
    assert sizes.min() >= 12 and sizes.max() <= 22 and (found.prices[(sizes > 12) & (sizes < 22)] == 0).all()
    alike(costs[p.everyone, found.labels].sum(), flows.least_cost(costs, 12, 22)[0])


def planted(p: Problem) -> list[Pass[Any]]:
    return [PLANT]


PLANT = Plant(COLUMNS, 4, largest=12.0)
LEAVES = Plant(COLUMNS, 4, largest=0.0)
LABELS = (np.arange(N, dtype=np.int32) * 7) % C
EVERYONE = np.stack([np.roll(np.arange(C, dtype=np.int32), -c) for c in range(C)])
AMONG_CELLS, BY_ALL = Search(3, 0, 0, estimate=False), Search(C, 0, 0, estimate=False)

ONE_STEP = Limits(1, 0.0, np.inf, 0.0, False, 1e-3, 0.9, 0.95, 5.0)


def known(p: Problem) -> list[Pass[Any]]:
    return [PLANT, ExpectCells(p.mixture(), Neighbors(p.graph, AMONG_CELLS))]


CASES = [
    Case("assign", lambda p: Assign(p.centers), assigned(lambda p, b: hard.closest_centers(p.rows, p.centers))),
    Case("assign, labels alone", lambda p: Assign(p.centers, want="labels"),
         leaves("labels", lambda p, b: hard.closest_centers(p.rows, p.centers))),
    Case("assign neighbors", lambda p: Assign(p.centers, Neighbors(p.graph, Search(1, 1, 3, True))), neighbors),
    Case("assign candidates", lambda p: Assign(p.centers, Neighbors(p.graph, Search(3, 1, 3, True))), candidates),
    Case("assign probe", lambda p: Assign(p.centers, Probe(p.cells, 2)),
         assigned(lambda p, b: probed.probing_pass(p.rows, p.centers, p.cells, 2, b["labels"])[0])),
    Case("assign down", lambda p: Assign(p.tree.centers, Down(p.tree)),
         says(lambda p: some(d2.routed(p.rows, p.w, p.tree)[1], "sums", "counts", "errors", "n_distances"))),
    Case("assign down, in the same cells", lambda p: Assign(p.tree.centers, Down(p.tree, "stay")),
         says(lambda p: some(d2.routed(p.rows, p.w, p.tree)[1], "sums", "counts", "errors")),
         lambda p: [Assign(p.tree.centers, Down(p.tree))]),
    Case("assign batch", lambda p: AssignBatch(p.centers, p.rows[0], Batch(5, 120, N), NestedSearch()), batch,
         lambda p: [AssignBatch(p.former, p.rows[0], Batch(5, 60, N), NestedSearch(restart=True))]),
    Case("assign batch by bounds", lambda p: AssignBatch(
            p.centers, p.rows[0], Batch(5, 120, N),
            NestedSearch(Bounds.start(p.groups).after(p.shifts))), batch,
         lambda p: [AssignBatch(
            p.former, p.rows[0], Batch(5, 60, N), NestedSearch(Bounds.start(p.groups), restart=True))]),
    Case("sum by label", lambda p: SumByLabel(C), lambda p, s, b, a, found: alike(
        found, votes(p, b["labels"], b) | {"objective": 0.0, "n_changed": 0})),
    Case("farthest", lambda p: Farthest(p.centers, 7), lambda p, s, b, a, found: alike(
        found, hard.farthest(p.rows, p.w, p.centers, b["labels"], 7))),
    Case("spare", lambda p: Spare(p.centers), spare),
    Case("halve", lambda p: Halve(p.former, p.centers), halves),
    Case("halve by name", lambda p: Halve(p.former, p.centers, np.arange(C, 2 * C, dtype=np.int32)),
         partial(halves, named=True)),
    Case("add seeds", lambda p: AddSeeds(p.centers, C), seeds, lambda p: [AddSeeds(p.former)]),
    Case("try seeds", lambda p: TrySeeds(p.centers[:4]), says(lambda p: d2.trial_potentials(
        p.rows, p.w, d2.seed_distances(p.rows, p.w, p.former).d2, p.centers[:4])), lambda p: [AddSeeds(p.former)]),
    *(Case(f"expect {kind}", lambda p, k=kind: Expect(p.mixture(k)),
           says(lambda p, k=kind: soft.soft_pass(p.rows, p.w, p.mixture(k)))) for kind in ("diag", "full")),
    Case("expect with noise", lambda p: Expect(p.noisy()), says(lambda p: soft.soft_pass(p.rows, p.w, p.noisy()))),
    Case("expect tied", lambda p: Expect(p.mixture("tied"), offset=p.centers[0]),
         says(lambda p: soft.tied_pass(p.rows, p.w, p.mixture("tied"), p.centers[0]))),
    Case("expect linear", lambda p: ExpectLinear(p.linear), says(lambda p: linear.linear_pass(p.rows, p.w, p.linear))),
    Case("survey counts", lambda p: Survey(Poisson), surveyed(lambda rows: rows < 0)),
    Case("survey zeros and ones", lambda p: Survey(Bernoulli), surveyed(lambda rows: (rows != 0) & (rows != 1))),
    Case("answer directions", lambda p: Answer(p.directions, "log_densities"),
         says(lambda p: [linear.posterior(p.rows, p.directions.linear)[1]])),
    Case("answer probabilities of directions", lambda p: Answer(p.directions, "probabilities"),
         says(lambda p: [linear.posterior(p.rows, p.directions.linear)[0]])),
    Case("answer components of directions", lambda p: Answer(p.directions, "components"),
         says(lambda p: [linear.posterior(p.rows, p.directions.linear)[0].argmax(axis=1)])),
    Case("expect low rank", lambda p: ExpectLowRank(p.low_rank),
         says(lambda p: factors.exact_pass(p.rows, p.w, p.low_rank))),
    # coordinates of rows in float32 are in float32
    Case("expect correlated low rank", lambda p: ExpectLowRank(p.correlated),
         says(lambda p: factors.exact_pass(p.rows, p.w, p.correlated), 1e-5)),
    Case("scatter within", lambda p: ScatterWithin(p.centers, np.linspace(0.0, 2.0, C)),
         lambda p, s, b, a, found: alike(
            found, factors.scatter_within(p.rows, p.w, b["labels"], p.centers, np.linspace(0.0, 2.0, C)))),
    Case("answer blurred", lambda p: Answer(p.blurred, "reconstruction"), says(unblurred), dense=True),
    *(Case(f"answer correlated low rank, {want}", lambda p, x=want: Answer(p.correlated, x), says(lambda p, x=want: [
        soft.posterior(p.rows, factors.in_columns(p.correlated))[0 if x == "probabilities" else 1]], 1e-5), dense=True)
      for want in ("log_densities", "probabilities")),
    Case("expect low rank, within", lambda p: ExpectLowRank(p.low_rank, Within()), lambda p, s, b, a, found: alike(
        found, factors.statistics(p.rows, p.w, p.low_rank, np.eye(C)[b["labels"]], N))),
    Case("expect low rank, probe", lambda p: ExpectLowRank(p.low_rank, Probe(p.cells, 2, 3)), low_rank_probe),
    *(Case(f"answer low rank, {want}", lambda p, x=want: Answer(p.low_rank, x), says(lambda p, x=want: [
        soft.posterior(p.rows, factors.as_full(p.low_rank))[0 if x == "probabilities" else 1]]), dense=True)
      for want in ("log_densities", "probabilities")),
    Case("answer low rank, reconstruction",
         lambda p: Answer(LowRank(p.low_rank, None, p.low_rank.noise), "reconstruction"), says(reconstructed),
         dense=True),
    Case("answer low rank, kept", lambda p: Answer(LowRank(p.low_rank, 3), "log_densities"), low_rank_kept,
         lambda p: [Assign(p.former), ExpectLowRank(p.low_rank, Probe(p.cells, 2, 3))], dense=True),
    Case("expect neighbors", lambda p: Expect(p.mixture(), Neighbors(p.graph, Search(3, 1, 3, True))), soft_neighbors),
    Case("expect probe", lambda p: Expect(p.mixture(), Probe(p.cells, 2, 3)), soft_probe),
    Case("expect probe, full", lambda p: Expect(p.mixture("full"), Probe(p.cells, 2, 3)), full_probe),
    *(Case(f"expect remembered, renew={renew}", lambda p, r=renew: Expect(p.mixture("full"), Remembered(r)),
           says(lambda p: some(soft.soft_pass(p.rows, p.w, p.mixture("full")), "counts", "sums", "scatter"), 1e-3),
           lambda p: [Expect(p.mixture("full"), Remembered(True))]) for renew in (True, False)),
    Case("label by density", lambda p: LabelByDensity(p.mixture()),
         leaves("labels", lambda p, b: soft.log_joint(p.rows, p.mixture()).argmax(axis=1))),
    *(Case(f"expect within, {kind}", lambda p, k=kind: ExpectWithin(p.mixture(k), 3), within,
           lambda p: [Assign(p.former[:3])]) for kind in ("diag", "full")),
    Case("rows of", lambda p: RowsOf(p.mixture(), np.array([4, 0]), np.ones(2), 0), claims),
    Case("rows of, remembered", lambda p: RowsOf(p.mixture(), np.array([4]), np.full(1, 0.5), 0, remembered=True),
         nothing, lambda p: [Expect(p.mixture(), Remembered(True))]),
    Case("answer densities", lambda p: Answer(p.mixture(), "log_densities"),
         says(lambda p: [soft.posterior(p.rows, p.mixture())[1]]), dense=True),
    Case("answer probabilities", lambda p: Answer(p.mixture(), "probabilities"),
         says(lambda p: [soft.posterior(p.rows, p.mixture())[0]]), dense=True),
    Case("answer components", lambda p: Answer(p.mixture(), "components"),
         says(lambda p: [soft.posterior(p.rows, p.mixture())[0].argmax(axis=1)]), dense=True),
    *(Case(f"answer {want} with noise", lambda p, w=want: Answer(p.noisy(), w),
           says(lambda p, w=want: [soft.answers(p.rows, p.noisy())[w]]), dense=True)
      for want in ("log_densities", "probabilities", "components")),
    Case("answer truncated", lambda p: Answer(Truncated(p.mixture(), 3), "log_densities"), posterior,
         lambda p: [Assign(p.former), Expect(p.mixture(), Neighbors(p.graph, Search(3, 1, 3, True)))], dense=True),
    Case("answer distances", lambda p: Answer(Centers(p.centers), "distances"), says(
        lambda p: [np.sqrt(hard.squared_distances(p.rows, p.centers)).astype(np.float32).astype(np.float64)], 1e-6)),
    Case("answer nearest", lambda p: Answer(Nearest(p.centers, 3), "nearest"), lambda p, s, b, a, found: [
        alike(np.concatenate(found)[name], hard.nearest(hard.squared_distances(p.rows, p.centers), 3)[name])
        for name in NEAREST.names]),
    Case("answer nearest in a graph", lambda p: Answer(Nearest(p.centers, 3, EVERYONE), "nearest"),
         lambda p, s, b, a, found: [
             alike(np.concatenate(found)[name], hard.nearest(hard.squared_distances(p.rows, p.centers), 3)[name])
             for name in NEAREST.names]),
    Case("answer own squares", lambda p: Answer(Own(p.centers), "squares"), lambda p, s, b, a, found: alike(
        np.concatenate(found), hard.squared_distances(p.rows, p.centers)[p.everyone, b["labels"]]),
        lambda p: [Assign(p.former)]),
    Case("answer codes", lambda p: Answer(Coding([p.centers], 1), "codes"), lambda p, s, b, a, found: alike(
        np.concatenate(found)[:, 0, 0], hard.squared_distances(p.rows, p.centers).argmin(axis=1)), dense=True),
    Case("answer infinite", lambda p: Answer(p.infinite, "log_densities"),
         says(lambda p: [p.infinite.log_predictive(p.rows)]), dense=True),
    Case("moments", lambda p: Moments(), lambda p, s, b, a, found: alike(
        [found.mean, found.variance], list(hard.column_moments(p.rows, p.w)))),
    Case("extremes", lambda p: Extremes(), says(lambda p: np.stack([p.rows.min(axis=0), p.rows.max(axis=0)]))),
    Case("project", lambda p: Project(Subspace(p.rows[0], np.eye(3)[:, :2])), lambda p, s, b, a, found: alike(
        found.take(p.everyone), (p.rows - p.rows[0])[:, :2], 1e-6)),
    Case("roots", lambda p: Roots(), lambda p, s, b, a, found: alike(
        found.take(p.everyone), np.sign(p.rows) * np.sqrt(np.abs(p.rows)), 1e-6)),
    Case("as scaled", lambda p: AsScaled(), lambda p, s, b, a, found: alike(
        found.take(p.everyone), p.rows, 1e-6), dense=True),
    Case("power step", lambda p: PowerStep(Subspace(p.rows[0], np.eye(3)[:, :2])), says(lambda p: (
        (p.w[:, None] * (p.rows - p.rows[0])).T @ (p.rows - p.rows[0])[:, :2]), 1e-5)),
    *(Case(f"take {what}", lambda p, x=what: Take(np.array([170, 3, 60, 3]), x), says(
        lambda p, x=what: {"rows": p.rows, "weights": p.w, "errors": p.w * d2.seed_distances(p.rows, p.w, p.former).d2,
                           "labels": np.full(N, -1)}[x][[170, 3, 60, 3]]), lambda p: [AddSeeds(p.former)])
      for what in ("rows", "weights", "errors", "labels")),
    *(Case(f"locate by {by}", lambda p, x=by: Locate(np.linspace(0, 40.0, 9), x), says(lambda p, x=by: d2.locate(
        p.w if x == "weights" else p.w * d2.seed_distances(p.rows, p.w, p.former).d2, np.linspace(0, 40.0, 9))),
        lambda p: [AddSeeds(p.former)]) for by in ("weights", "errors")),
    Case("total", lambda p: Total("weights"), says(lambda p: p.w.sum(keepdims=True))),
    Case("total by label", lambda p: Total("errors", "labels", C), says(lambda p: np.bincount(
        hard.closest_centers(p.rows, p.former), p.w * d2.seed_distances(p.rows, p.w, p.centers).d2, minlength=C)),
        lambda p: [Assign(p.former), AddSeeds(p.centers)]),
    Case("all labels", lambda p: AllLabels(), lambda p, s, b, a, found: alike(found, [b["labels"]])),
    Case("scatter labels", lambda p: ScatterLabels(7, 3), leaves("labels", scattered)),
    Case("label by seeds", lambda p: LabelBySeeds(),
         leaves("labels", lambda p, b: hard.closest_centers(p.rows, p.centers)),
         lambda p: [Assign(p.former), AddSeeds(p.centers)]),
    Case("take labels", lambda p: TakeLabels(LABELS), leaves("labels", lambda p, b: LABELS)),
    Case("blend errors", lambda p: BlendErrors(np.arange(1.0, C + 1), 0.25), lambda p, s, b, a, found: alike(
        s.take(p.everyone, "errors"), p.w * d2.blended(p.rows, p.w, p.former, np.arange(1.0, C + 1), 0.25)),
        lambda p: [AddSeeds(p.former)]),
    Case("relabel", lambda p: Relabel(np.arange(C, dtype=np.int32)[::-1].copy()),
         leaves("labels", lambda p, b: C - 1 - b["labels"])),
    Case("cell seeds", lambda p: CellSeeds(np.array([0, 70, N]), np.array([2, 3]), np.full(5, 0.6)), cell_seeds),
    Case("cell neighbors", lambda p: CellNeighbors(np.array([0, N]), np.zeros((1, 1), dtype=np.intp), 4), near),
    Case("estimate neighbors", lambda p: EstimateNeighbors(p.graph, PAIRS), says(estimated)),
    Case("accept seeds", lambda p: AcceptSeeds(np.full(N, 9.0), TESTS), says(lambda p: np.array(
        draws.accepted_proposals(p.rows, np.full(N, 9.0), TESTS)))),
    Case("run chains", lambda p: RunChains(1.0 + TESTS, TESTS.reshape(6, -1)), says(lambda p: np.array(
        draws.ends_of_chains(p.rows, 1.0 + TESTS, TESTS.reshape(6, -1),
                             p.w * d2.seed_distances(p.rows, p.w, p.former).d2))), lambda p: [AddSeeds(p.former)]),
    Case("transport", lambda p: Transport(
        np.tile(np.arange(C, dtype=np.int32), (N, 1)), hard.squared_distances(p.rows, p.centers), np.zeros(C), 12, 22),
        transported),
    Case("rough cells", lambda p: RoughCells(p.centers, 2), rough_cells),
    Case("seed few", lambda p: SeedFew(np.array([[0.3], [0.7], [0.5]])), seed_few),
    Case("search few", lambda p: SearchFew(p.centers, ONE_STEP, np.empty((0, 1))), search_few),
    Case("expect shares", lambda p: ExpectShares(
        Chunks(p.w, p.rows, np.empty((N, 0)), COLUMNS), np.array([0, 70, N]), p.mixture(), np.array([0, 2, C]),
        np.array([[1], [0]])), shares),
    Case("plant", lambda p: PLANT, partition),
    Case("expect cells", lambda p: ExpectCells(p.mixture()), cell_step, planted),
    Case("expect cells of all neighbors", lambda p: ExpectCells(p.mixture(), Neighbors(EVERYONE, BY_ALL)),
         cell_step, planted),
    Case("gains", lambda p: Gains(p.mixture(), 5), gains, planted),
    Case("gains, truncated", lambda p: Gains(p.mixture(), 5, truncated=True), nothing, known),
    Case("gap", lambda p: Gap(p.mixture()), gap, lambda p: [LEAVES]),
    Case("gap, truncated", lambda p: Gap(p.mixture(), truncated=True), nothing, known),
    Case("open gaining", lambda p: OpenGaining(0.0), partition, lambda p: [PLANT, Gains(p.mixture(), 5)]),
    Case("open rows", lambda p: OpenRows(), says(lambda p: N), planted),
    Case("open held", lambda p: OpenHeld(p.mixture(), np.array([2]), 30), partition, planted, cells_of_parts=True),
    Case("best cut", lambda p: BestCut(worth, 0.0), partition, planted, cells_of_parts=True),
    Case("open cut", lambda p: OpenCut(), partition, lambda p: [PLANT, BestCut(worth, 0.0)], cells_of_parts=True),
    Case("cells of", lambda p: CellsOf(p.mixture(), np.array([2, 5])), held, planted),
    Case("forget members", lambda p: ForgetMembers(), nothing, known),
    Case("take cells", lambda p: TakeCells(), partition, planted),
    Case("read frontier", lambda p: ReadFrontier(0), lambda p, s, b, a, found: alike(set(found) == {None}, True),
         planted, cells_of_parts=True),
    Case("put frontier", put, nothing, lambda p: [LEAVES], of_one_tree=True),
]  # fmt: skip


def hosts(shard: Any) -> list[HostShard]:
    """The parts of a layout that are in this process."""
    return [shard] if isinstance(shard, HostShard) else getattr(shard, "shards", [])
