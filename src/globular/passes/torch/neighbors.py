"""Truncated E-steps among neighbourhoods on the card: K(n), the best of the neighbourhoods of its own members.

What the CPU does row by row with tables is done here with all rows of a block at once: the search space of every row,
its costs in float64, and the pairs of Eq. 8, which are sorted and added up in order. Random candidates are the same
hashes of (seed, row) as on the CPU.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from globular.model.graph import Search
from globular.model.random import GOLDEN, MIX1, MIX2
from globular.model.statistics import NO_PAIRS, HardStatistics, PairStatistics, SoftStatistics
from globular.passes.limits import HORIZON
from globular.passes.torch import plain
from globular.passes.torch.assign import closest_neighbor, hard_statistics, label_sums
from globular.passes.torch.card import engine
from globular.passes.torch.plain import blocks
from globular.passes.torch.shard import TorchShard
from globular.passes.torch.truncated import Costs, members_of, statistics
from globular.seam.among import Neighbors
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign

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
    """A cluster drawn by hashing (seed, row, draw) for each of some rows: that of `engine.random`."""
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
