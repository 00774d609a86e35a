"""Truncated E-steps on the card: K(n) among the components of a few cells, or among neighbourhoods.

With cells, components of a cell are compared by products, which nominate as many as K(n) has places; costs in float64
decide whether a nominee takes the place of the worst in K(n), so the free energy never falls. Sums are taken in the
order of components, large ones in blocks that are added in order.

With neighbourhoods, what the CPU does row by row with tables is done here with all rows of a block at once: the search
space of every row, its costs in float64, and the pairs of Eq. 8, which are sorted and added up in order. Random
candidates are the same hashes of (seed, row) as on the CPU.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from globular.errors import UnsupportedPassError
from globular.model.cells import CenterCells
from globular.model.covariances import SEPARABLE
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Search
from globular.model.random import GOLDEN, MIX1, MIX2
from globular.model.statistics import NO_PAIRS, HardStatistics, PairStatistics, SoftStatistics, TruncatedPosterior
from globular.passes.host import HORIZON
from globular.passes.torch import plain
from globular.passes.torch.assign import closest_neighbor, closest_small_cells, hard_statistics, label_sums
from globular.passes.torch.plain import blocks, group
from globular.passes.torch.products import Aim
from globular.passes.torch.shard import NOT_WRITTEN, TorchShard, engine
from globular.seam.among import Neighbors, Probe
from globular.seam.answers import Answer, Truncated
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign


def members_of(shard: TorchShard, n_candidates: int) -> Any:
    """Per-row state: K(n), (N, C′) int32, the best first; −1 where there is none."""
    return shard.state.get("members", torch.int32, -1, width=n_candidates)


class Costs:
    """−2 log p(c, x) = Σ_j precision_cj (x_j − μ_cj)² + bias_c for the families with diagonal covariances."""

    def __init__(self, shard: TorchShard, mixture: GaussianParameters) -> None:
        if mixture.covariance_type not in SEPARABLE:
            raise UnsupportedPassError(
                f"components with covariance_type={mixture.covariance_type!r} are not searched here: {NOT_WRITTEN}"
            )
        self.shard, self.D = shard, mixture.means.shape[1]
        self.means = shard.tensor(mixture.means).contiguous()
        log_weights, variances = torch.log(shard.tensor(mixture.weights)), shard.tensor(mixture.variances())
        self.precisions = (1.0 / variances).contiguous()
        log_determinants = torch.log(variances).sum(dim=1) * (self.D if variances.shape[1] == 1 else 1)
        self.biases = log_determinants + self.D * math.log(2 * math.pi) - 2.0 * log_weights
        self.engine = engine(shard.device)
        self.parameters = self.means, self.precisions, self.biases
        """As kernels take them."""

    def nominate(self, cells: CenterCells, visits: Any, kept: int) -> tuple[Any, Any]:
        """The best components of the cells that every row visits: numbers and costs, (N, visits · kept)."""
        shard = self.shard
        members, starts = shard.tensor(cells.order, torch.int64), shard.tensor(cells.starts, torch.int64)
        grouping = group(visits.reshape(-1), len(starts) - 1, starts=False)
        given = shard.tensor(cells.middles).contiguous(), kept, grouping, starts, members, visits.shape[1]
        scores, found = self.engine.nominate_components(shard.x, *self.parameters, *given)
        return found.view(shard.n_rows, -1), scores.view(shard.n_rows, -1)

    def weigh(self, labels: Any, members: Any, candidates: Any = None, scores: Any = None) -> tuple[Any, Any, Any]:
        """K(n) becomes the best of itself and the candidates: shares, bounds, and bounds before, of every row."""
        found = self.engine.weigh(self.shard.x, *self.parameters, labels, members, candidates, scores)
        return tuple(found)


def statistics(
    shard: TorchShard, mixture: GaussianParameters, costs: Costs, members: Any, shares: Any
) -> tuple[Any, Any, Any]:
    """Counts, sums and scatter of the truncated M-step."""
    if shard.w is not None:
        shares = shares * shard.w[:, None]
    raw = costs.engine.sum_entries(shard.x, shares, costs.means, members)
    counts, sums, squares = torch.split(raw, [1, costs.D, costs.D], dim=1)
    if mixture.family.scatter.width(costs.D) < costs.D:
        squares = squares.sum(dim=1, keepdim=True)
    return shard.give(counts[:, 0].contiguous()), shard.give(sums.contiguous()), shard.give(squares.contiguous())


@TorchShard.implements(Expect, Probe)
def expect_probe(shard: TorchShard, work: Expect) -> SoftStatistics:
    """Truncated E-step among K(n) and the components of the closest cells."""
    assert isinstance(work.among, Probe)
    cells, kept = work.among.cells, work.among.n_candidates
    members, labels, costs = members_of(shard, kept), shard.label_tensor, Costs(shard, work.mixture)
    # where K(n) is to start from the label it has one component
    looks = torch.where(members[:, 0] == labels, (members >= 0).sum(dim=1), 1).sum()
    n_distances, found = 0, (None, None)
    if cells is not None:
        visits, n_distances, routing = visited(shard, cells, work.among.n_probes)
        found = costs.nominate(cells, visits, kept)
        looks = looks + routing + shard.tensor(cells.starts, torch.int64).diff()[visits.long()].sum()
    shares, bounds, before = costs.weigh(labels, members, *found)
    sums = statistics(shard, work.mixture, costs, members, shares)
    totals = torch.stack([shard.weighted(bounds).sum(), shard.weighted(before).sum(), looks.to(torch.float64)])
    bound, former, n_looks = totals.tolist()
    gain = 0.0 if cells is None else bound - former
    return SoftStatistics(*sums, bound, shard.total_weight, n_distances + int(n_looks), gain=gain)


def visited(shard: TorchShard, cells: CenterCells, n_probes: int) -> tuple[Any, int, Any]:
    """The cells that every row visits, (N, p), the number of distances to find them, and more of these to be added."""
    n_visits = cells.n_visits(n_probes)
    if cells.above is None:
        return Aim(shard, cells.middles).nominate(n_visits)[1], shard.n_rows * len(cells.middles), 0
    visits, looks = closest_small_cells(shard, cells, n_visits)
    return visits, shard.n_rows * len(cells.above.middles), looks.sum()


@TorchShard.implements(Answer, Truncated)
def truncated_posterior(shard: TorchShard, work: Answer) -> list[Any]:
    """The "posterior" of the K(n) that the last pass has left, or its "log_densities" alone."""
    members = members_of(shard, work.model.n_candidates).clone()
    probabilities, bounds, _ = Costs(shard, work.model.mixture).weigh(members[:, 0].contiguous(), members)
    if work.want == "log_densities":
        return [shard.give(bounds)]
    return [TruncatedPosterior(*(each.cpu().numpy() for each in (members, probabilities, bounds)))]


Parameters: TypeAlias = tuple[Any, Any, Any]
"""Means, precisions and biases; see `truncated.Costs`."""
ATTEMPTS = 4
"""Draws for one random candidate before it is given up, because all of them were in the search space already."""


def _signed(number: int) -> int:
    """An unsigned number of 64 bits as torch has it, whose products keep the lowest 64 bits all the same."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(z: Any, bits: int) -> Any:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def random_clusters(seed: int, rows: Any, draw: int, n_clusters: int) -> Any:
    """A cluster drawn by hashing (seed, row, draw) for each of some rows: that of `model.random`."""
    block, place = divmod(draw, 64)
    z = _signed(seed + block * int(MIX1)) + (rows * 64 + place + 1) * _signed(int(GOLDEN))
    z = (z ^ _shifted(z, 30)) * _signed(int(MIX1))
    z = (z ^ _shifted(z, 27)) * _signed(int(MIX2))
    z = z ^ _shifted(z, 31)
    return ((_shifted(z, 32) * n_clusters) >> 32).to(torch.int32)


def _random_outside(search: Search, rows: Any, draw: int, known: Any, n_clusters: int) -> Any:
    """One random candidate a row that is not known; −1 if a few draws find none."""
    found = torch.full_like(known[:, 0], -1)
    for attempt in range(ATTEMPTS):
        other = random_clusters(search.seed, rows, ATTEMPTS * draw + attempt, n_clusters)
        is_known = (known == other[:, None]).any(dim=1)
        found = torch.where((found < 0) & ~is_known, other, found)
    return found


def _costs(shard: TorchShard, parameters: Parameters, candidates: Any, block: slice) -> Any:
    """What candidates cost the rows of a block."""
    scales = None if shard.scales is None else shard.scales[block]
    return engine(shard.device).cost_candidates(shard.x[block], *parameters, candidates, scales)


def _weights(shard: TorchShard, block: slice) -> Any:
    return None if shard.w is None else shard.w[block, None]


def _search_space(members: Any, graph: Any, search: Search, rows: Any) -> Any:
    """G(n) = ∪ G_c, c ∈ K(n), and a few others at random, each once; −1 where there is nothing."""
    space = torch.where(members[:, :, None] >= 0, graph[members.clamp_min(0).long()], -1).flatten(1)
    ordered, order = torch.sort(space, dim=1, stable=True)
    again = torch.zeros_like(space, dtype=torch.bool)
    again.scatter_(1, order[:, 1:], ordered[:, 1:] == ordered[:, :-1])
    space = torch.where(again, -1, space)
    for draw in range(search.n_random):
        other = _random_outside(search, rows, draw, space, len(graph))
        space = torch.cat([space, other[:, None]], dim=1)
    return space


def _renewed(shard: TorchShard, graph: Any, n_candidates: int) -> Any:
    """K(n); where it is new or does not fit the labels, the front of the label's neighbourhood."""
    members, labels = members_of(shard, n_candidates), shard.label_tensor
    front = graph[labels.long(), :n_candidates]
    front = torch.nn.functional.pad(front, (0, n_candidates - front.shape[1]), value=-1)
    members.copy_(torch.where(members[:, :1] == labels[:, None], members, front))
    return members


class _Pairs:
    """Sums of Eq. 8 over rows closest to c that looked at c̃: of blocks, each pair once, then of all."""

    def __init__(self, n_clusters: int, wanted: bool) -> None:
        self._C, self._wanted, self._pieces = n_clusters, wanted, list[tuple[Any, Any]]()

    def add(self, closest: Any, others: Any, distances: Any, weights: Any, counts: Any) -> None:
        """Pairs of closest, (n, 1), and other clusters, (n, m), where they count; weights (n, 1)."""
        if not self._wanted:
            return
        counts = counts & (others != closest)
        if weights is not None:
            counts = counts & (weights > 0).expand_as(counts)
        chosen = torch.nonzero(counts.reshape(-1))[:, 0]
        keys = (closest.to(torch.int64) * self._C + others).expand_as(counts).reshape(-1)[chosen]
        values = distances.reshape(-1)[chosen]
        share = torch.ones_like(values) if weights is None else weights.expand_as(distances).reshape(-1)[chosen]
        self._pieces.append(_added(keys, torch.stack([share * values, share])))

    def found(self) -> PairStatistics:
        """The pairs, which go to the host."""
        if not self._pieces:
            return NO_PAIRS
        keys, sums = _added(*(torch.cat(each, dim=-1) for each in zip(*self._pieces, strict=True)))
        pairs = torch.stack([keys // self._C, keys % self._C]).to(torch.int32)
        return PairStatistics(pairs.cpu().numpy(), sums.to(torch.float32).cpu().numpy())


def _added(keys: Any, values: Any) -> tuple[Any, Any]:
    """Every key once, ascending, (n,), and the sums of its values, (m, n), taken in order."""
    keys, order = torch.sort(keys, stable=True)
    found, sizes = torch.unique_consecutive(keys, return_counts=True)
    sums = [torch.segment_reduce(each[order], "sum", lengths=sizes, initial=0.0, unsafe=True) for each in values]
    return found, torch.stack(sums)


def _blocks(shard: TorchShard, width: int) -> list[tuple[slice, Any]]:
    """Ranges of rows, and their numbers in the whole data."""
    found = blocks(shard.n_rows, 8 * width)
    numbers = torch.arange(shard.first_row, shard.first_row + shard.n_rows, device=shard.device)
    return [(block, numbers[block]) for block in found]


def _search(
    shard: TorchShard, parameters: Parameters, graph: Any, search: Search, members: Any, pairs: _Pairs, values: Any
) -> tuple[Any, Any]:
    """C′ > 1, or soft: K(n) of lowest cost in the search space, first come first kept on ties; costs, and distances."""
    kept, n_distances = torch.empty(members.shape, dtype=torch.float64, device=shard.device), 0
    for block, rows in _blocks(shard, members.shape[1] * graph.shape[1] + search.n_random):
        space = _search_space(members[block], graph, search, rows)
        costs = _costs(shard, parameters, space, block)
        lowest = torch.sort(costs, dim=1, stable=True)
        best = torch.gather(space, 1, lowest.indices[:, : members.shape[1]])
        kept[block] = lowest.values[:, : members.shape[1]]
        members[block] = torch.where(kept[block] < plain.FAR, best, -1)
        n_distances = n_distances + (space >= 0).sum()
        pairs.add(best[:, :1], space, values(costs), _weights(shard, block), space >= 0)
    return kept, n_distances


@TorchShard.implements(Expect, Neighbors)
def expect_neighbors(shard: TorchShard, work: Expect) -> SoftStatistics:
    """Truncated E-step of a mixture with diagonal covariances among the neighbourhoods of K(n)."""
    assert isinstance(work.among, Neighbors)
    graph, search = shard.tensor(work.among.graph, torch.int32), work.among.search
    members, costs = _renewed(shard, graph, search.n_candidates), Costs(shard, work.mixture)
    pairs = _Pairs(len(graph), search.estimate)
    euclidean, base = work.mixture.family.euclidean, costs.biases.min()

    def values(found: Any) -> Any:
        return torch.sqrt((found - base).clamp_min(0.0) / costs.precisions[0, 0]) if euclidean else found

    kept, n_distances = _search(shard, costs.parameters, graph, search, members, pairs, values)
    shard.label_tensor.copy_(members[:, 0])
    bounds = torch.logsumexp(-0.5 * kept, dim=1)
    sums = statistics(shard, work.mixture, costs, members, torch.exp(-0.5 * kept - bounds[:, None]))
    bound = float(shard.weighted(bounds).sum())
    return SoftStatistics(*sums, bound, shard.total_weight, int(n_distances), pairs.found())


@TorchShard.implements(Assign, Neighbors)
def assign_neighbors(shard: TorchShard, work: Assign) -> HardStatistics:
    """Every row against the neighbourhoods of its K(n); only the closest cluster votes."""
    assert isinstance(work.among, Neighbors)
    search = work.among.search
    if search.n_candidates == 1 and not search.n_random and not search.estimate:
        return closest_neighbor(shard, work)
    graph = shard.tensor(work.among.graph, torch.int32)
    former, centers = shard.label_tensor.clone(), shard.tensor(work.centers).contiguous()
    ones = torch.ones((len(centers), 1), dtype=torch.float64, device=shard.device)
    parameters, pairs = (centers, ones, torch.zeros_like(ones[:, 0])), _Pairs(len(graph), search.estimate)
    if search.n_candidates == 1:
        squared, n_distances = _search_neighborhoods(shard, parameters, graph, search, pairs)
    else:
        members = _renewed(shard, graph, search.n_candidates)
        kept, n_distances = _search(shard, parameters, graph, search, members, pairs, torch.sqrt)
        squared = kept[:, 0]
        # the former one stays if it is as close
        is_former = (members == former[:, None]) & (kept == squared[:, None])
        place = torch.where(is_former.any(dim=1), is_former.to(torch.int8).argmax(dim=1), 0)[:, None]
        firsts = members[:, :1].clone()
        members[:, :1] = torch.gather(members, 1, place)
        members.scatter_(1, place, torch.where(place > 0, firsts, members[:, :1]))
        shard.label_tensor.copy_(members[:, 0])
    n_changed = (shard.label_tensor != former).sum()
    tally = torch.stack([shard.weighted(squared).sum(), n_changed.to(torch.float64)])
    sums = label_sums(shard, work.want, len(centers))
    found = hard_statistics(shard, int(n_distances), tally.tolist(), sums)
    found.pairs = pairs.found()
    return found


def _search_neighborhoods(
    shard: TorchShard, parameters: Parameters, graph: Any, search: Search, pairs: _Pairs
) -> tuple[Any, Any]:
    """C′ = 1: the closest of the label's neighbourhood and of random candidates, one after the other, to the labels."""
    squared, n_distances = torch.empty(shard.n_rows, dtype=torch.float64, device=shard.device), 0
    for block, rows in _blocks(shard, graph.shape[1]):
        near, weights = graph[shard.label_tensor[block].long()], _weights(shard, block)
        costs = _costs(shard, parameters, near, block)
        d2, at = costs.min(dim=1)
        best = closest = torch.gather(near, 1, at[:, None])[:, 0]
        n_distances = n_distances + near.numel()
        for draw in range(search.n_random):
            drawn = _random_outside(search, rows, draw, near, len(graph))
            other = _costs(shard, parameters, drawn[:, None], block)[:, 0]
            is_closer = other < d2
            winner, loser = torch.where(is_closer, drawn, best), torch.where(is_closer, best, drawn)
            far = torch.where(is_closer, d2, other)
            is_near = (drawn >= 0) & (other < HORIZON * costs.amax(dim=1))
            pairs.add(winner[:, None], loser[:, None], torch.sqrt(far)[:, None], weights, is_near[:, None])
            best, d2 = winner, torch.minimum(d2, other)
            n_distances = n_distances + (drawn >= 0).sum()
        stays = (best == closest)[:, None].expand_as(near)
        pairs.add(closest[:, None], near, torch.sqrt(costs), weights, stays)
        shard.label_tensor[block], squared[block] = best, d2
    return squared, n_distances
