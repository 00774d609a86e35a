"""Passes of mixtures of factor analysers on the card: pairs (row, component) sorted by component, in tiles.

A tile is up to `TILE` pairs of one component, which share its parameters; a batched product of many tiles takes their
differences from the means to the directions and back to statistics. All of it in float64. Sums of a component are
those of its tiles one after the other: the same bits again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from globular.model.coordinates import Coordinates
from globular.model.low_rank import LowRankParameters, LowRankStatistics
from globular.model.statistics import F64, TruncatedPosterior
from globular.passes.cpu.expect.low_rank import CANCELLED_QUADRATIC
from globular.passes.host import NOMINEES
from globular.passes.torch.plain import FAR, blocks, group, keep_lowest, known_members, seen
from globular.passes.torch.shard import CardShard, TorchShard
from globular.passes.torch.truncated import Costs, members_of, visited
from globular.seam.among import All, Probe, Within
from globular.seam.answers import Answer, LowRank
from globular.seam.mixture_passes import ExpectLowRank, ScatterWithin
from globular.seam.passes import Project

TILE = 64
"""Pairs of a tile; larger = fewer copies of parameters, and more room lost in components of few pairs."""
NUMBERS_AT_ONCE = 1 << 26
"""Numbers of the rows of tiles at once, in float64: half a gigabyte, of which a few copies are made."""
LEFT_ON_CARD = 1 << 22
"""Numbers of statistics from which M-steps are made on the card; larger = more of them on the host."""
NOTICEABLE = 1e-30
"""Responsibility below which a pair adds nothing."""


class OnCard:
    """The parameters of a mixture as tensors beside the rows."""

    def __init__(self, shard: CardShard, mixture: LowRankParameters) -> None:
        here = mixture
        if isinstance(mixture.loadings, np.ndarray):
            given = mixture.weights, mixture.means, mixture.loadings, mixture.noise
            weights, means, loadings, noise = (shard.give(shard.tensor(values)) for values in given)
            here = LowRankParameters(weights, means, loadings, noise, mixture.coordinates)
        of = here.means, here.precisions, here.directions, here.biases, here.loadings, here.triangles
        tensors = [shard.tensor(values).contiguous() for values in of]
        self.means, self.precisions, self.directions, self.biases, self.loadings, self.triangles = tensors
        self.columns = here.columns

    @property
    def n_components(self) -> int:
        return len(self.means)


@dataclass
class Tiles:
    """Some tiles; `pairs` are numbers n · width + a, the a-th component that row n looks at."""

    components: Any
    """(t,), ascending."""
    pairs: Any
    """(t, TILE)."""
    is_pair: Any
    """(t, TILE) whether there is one."""
    away: Any
    """(t, TILE, D) x − μ; of some other row where there is none."""
    inner: Any
    """(t, TILE, q) u = V (x − μ)."""


class Pairs:
    """Rows with the components that they look at, sorted by these."""

    def __init__(self, rows: Any, scales: Any, parameters: OnCard, members: Any) -> None:
        """`members` (N, W): components of every row; −1 where there is none."""
        self._rows, self._scales, self._of, self._shape = rows, scales, parameters, members.shape
        C, flat = parameters.n_components, members.reshape(-1).long()
        grouping = group(torch.where(flat < 0, C, flat), C + 1)
        self._order, starts = grouping.order, grouping.starts.long()
        self._stops = starts[1 : C + 1]
        n_tiles = (starts[: C + 1].diff() + TILE - 1) // TILE
        self._components = torch.repeat_interleave(torch.arange(C, device=rows.device), n_tiles)
        before = torch.cumsum(n_tiles, 0) - n_tiles
        place = torch.arange(len(self._components), device=rows.device) - before[self._components]
        self._begins = starts[self._components] + TILE * place

    def __iter__(self) -> Iterator[Tiles]:
        D = self._rows.shape[1]
        inside = torch.arange(TILE, device=self._rows.device)
        for some in blocks(len(self._components), -(-TILE * D * (1 << 24) // NUMBERS_AT_ONCE)):
            components, at = self._components[some], self._begins[some, None] + inside
            is_pair = at < self._stops[components, None]
            pairs = self._order[at.clamp_max(len(self._order) - 1)]
            away = seen(self._rows, self._scales, torch.float64, (pairs // self._shape[1]).reshape(-1))
            away = away.view(*pairs.shape, D).sub_(self._of.means[components, None])
            yield Tiles(components, pairs, is_pair, away, away @ self._of.directions[components].mT)

    def costs(self, inner: Any = None) -> Any:
        """−2 log p(c, x) of all pairs, (N, W), infinity where there is none; `inner` (N · W, q) becomes their u."""
        of, found = self._of, torch.full(self._shape, FAR, dtype=torch.float64, device=self._rows.device)
        for tiles in self:
            precisions = of.precisions[tiles.components, :, None]
            squares = (tiles.away.square() @ precisions)[..., 0]
            lengths = squares - tiles.inner.square().sum(2)
            cancelled = torch.nonzero(tiles.is_pair & (lengths < CANCELLED_QUADRATIC * squares), as_tuple=True)
            if len(cancelled[0]):
                lengths[cancelled] = self._by_differences(tiles, cancelled)
            costs = of.biases[tiles.components, None] + lengths
            found.view(-1)[tiles.pairs[tiles.is_pair]] = costs[tiles.is_pair]
            if inner is not None:
                inner[tiles.pairs[tiles.is_pair]] = tiles.inner[tiles.is_pair]
        return found

    def _by_differences(self, tiles: Tiles, at: Any) -> Any:
        """‖z‖² + r · (r / ψ) with the factors z = L⁻ᵀ u and what they leave, r = y − Λᵀ z."""
        of, c = self._of, tiles.components[at[0]]
        z = torch.linalg.solve_triangular(of.triangles[c].mT, tiles.inner[at][..., None], upper=True)[..., 0]
        left = tiles.away[at] - (z[:, None] @ of.loadings[c])[:, 0]
        return z.square().sum(1) + (left.square() * of.precisions[c]).sum(1)

    def add(self, shares: Any, total: list[Any]) -> None:
        """Add counts, sums, squares and Σ w q u (x − μ)ᵀ of all pairs, weighted by their shares, (N, W)."""
        for tiles in self:
            share = torch.where(tiles.is_pair, shares.reshape(-1)[tiles.pairs], 0.0)[:, None]
            found = (
                share.sum(2)[:, 0], (share @ tiles.away)[:, 0], (share @ tiles.away.square())[:, 0],
                (tiles.inner.mT * share) @ tiles.away,
            )  # fmt: skip
            components, sizes = torch.unique_consecutive(tiles.components, return_counts=True)
            for sums, more in zip(total, found, strict=True):
                sums[components] += torch.segment_reduce(more, "sum", lengths=sizes, axis=0, unsafe=True)

    def add_reconstructions(self, shares: Any, noise: Any, out: Any) -> None:
        """Add q(c) (x − noise Σ⁻¹ (x − μ)) to the rows; each of them has one pair."""
        for tiles in self:
            c = tiles.components
            pulled = tiles.away * self._of.precisions[c, None] - tiles.inner @ self._of.directions[c]
            rows = tiles.away + self._of.means[c, None] - noise[c, None] * pulled
            pairs = tiles.pairs[tiles.is_pair]
            out[pairs] += shares.reshape(-1)[pairs, None] * rows[tiles.is_pair]


def in_coordinates(shard: TorchShard, coordinates: Coordinates | None) -> TorchShard:
    """The rows as the mixture sees them; a copy, kept for the passes to come, where it has coordinates of its own."""
    if coordinates is None:
        return shard
    kept = shard.__dict__.get("_in_coordinates")
    if kept is None or not kept[0].is_same(coordinates):
        shard.__dict__.pop("_in_coordinates", None)
        kept = shard.__dict__["_in_coordinates"] = coordinates, shard.run(Project(coordinates.subspace))
    found: TorchShard = kept[1]
    return found


def _all_components(n_rows: int, of: OnCard) -> Any:
    return torch.arange(of.n_components, device=of.means.device).expand(n_rows, -1)


def _statistics(shard: TorchShard, of: OnCard, pairs: Pairs, shares: Any) -> list[Any]:
    """Sums of pairs, as tensors."""
    C, q, D = of.loadings.shape
    zeros = [torch.zeros(size, dtype=torch.float64, device=shard.device) for size in ((C,), (C, D), (C, D), (C, q, D))]
    pairs.add(shares, zeros)
    return zeros


def _given(shard: TorchShard, sums: list[Any], bound: float, n_distances: int, gain: float = 0.0) -> LowRankStatistics:
    """What algorithms see of an E-step."""
    give = shard.give if sums[3].numel() >= LEFT_ON_CARD else lambda tensor: tensor.cpu().numpy()
    counts, firsts, squares, cross = map(give, sums)
    return LowRankStatistics(counts, firsts, squares, bound, shard.total_weight, n_distances, gain=gain, cross=cross)


def _shares(shard: TorchShard, costs: Any, rows: Any = slice(None)) -> tuple[Any, Any]:
    """Responsibilities times weights, and log p(x)."""
    bounds = torch.logsumexp(-0.5 * costs, dim=1)
    shares = torch.exp(-0.5 * costs - bounds[:, None])
    return shares if shard.w is None else shares * shard.w[rows, None], bounds


def _noticeable(members: Any, shares: Any) -> Any:
    return torch.where(shares > NOTICEABLE, members, -1)


@TorchShard.implements(ExpectLowRank, Probe)
def expect_probe(shard: TorchShard, work: ExpectLowRank) -> LowRankStatistics:
    """Truncated E-step: K(n) becomes the best of K(n) and of what the closest cells nominate."""
    assert isinstance(work.among, Probe)
    mixture, rows = work.mixture, in_coordinates(shard, work.mixture.coordinates)
    of, kept = OnCard(shard, mixture), min(work.among.n_candidates, mixture.n_components)
    members, labels = members_of(shard, kept), shard.label_tensor
    candidates, n_distances = known_members(labels, members), 0
    if work.among.cells is not None:
        nominees, n_distances = _nominees(rows, of, work.among)
        nominees = torch.where((nominees[:, :, None] == candidates[:, None]).any(2), -1, nominees)
        candidates = torch.cat([candidates, nominees], dim=1)
    costs = Pairs(rows.x, rows.scales, of, candidates).costs()
    before = torch.logsumexp(-0.5 * costs[:, :kept], dim=1)
    shares, bounds = _shares(shard, keep_lowest(labels, members, candidates, costs))
    sums = _statistics(shard, of, Pairs(rows.x, rows.scales, of, _noticeable(members, shares)), shares)
    bound, former = (float(shard.weighted(each).sum()) for each in (bounds, before))
    gain = 0.0 if work.among.cells is None else bound - former
    return _given(shard, sums, bound, n_distances + int((candidates >= 0).sum()), gain)


def _nominees(rows: TorchShard, of: OnCard, among: Probe) -> tuple[Any, int]:
    """The components of the closest cells that are best without their correlations, (N, G), each once."""
    assert among.cells is not None
    visits, n_distances, routing = visited(rows, among.cells, among.n_probes)
    most = min(NOMINEES, of.n_components)
    found, scores = Costs(rows, of.columns).nominate(among.cells, visits, most)
    best = torch.sort(scores, dim=1, stable=True).indices[:, :most]
    looks = routing + rows.tensor(among.cells.starts, torch.int64).diff()[visits.long()].sum()
    return torch.gather(found, 1, best), n_distances + int(looks)


@TorchShard.implements(ExpectLowRank, All)
def expect_all(shard: TorchShard, work: ExpectLowRank) -> LowRankStatistics:
    """Exact E-step; memory: the densities of a block of rows."""
    rows, of = in_coordinates(shard, work.mixture.coordinates), OnCard(shard, work.mixture)
    total, bound = list[Any](), 0.0
    for block in blocks(shard.n_rows, of.n_components * 16):
        scales = None if rows.scales is None else rows.scales[block]
        everyone = _all_components(block.stop - block.start, of)
        costs = Pairs(rows.x[block], scales, of, everyone).costs()
        shard.label_tensor[block] = costs.argmin(dim=1).to(torch.int32)
        shares, bounds = _shares(shard, costs, block)
        bound += float((bounds if shard.w is None else bounds * shard.w[block]).sum())
        sums = _statistics(shard, of, Pairs(rows.x[block], scales, of, _noticeable(everyone, shares)), shares)
        total = [one + more for one, more in zip(total, sums, strict=True)] if total else sums
    return _given(shard, total, bound, shard.n_rows * of.n_components)


@TorchShard.implements(ExpectLowRank, Within)
def expect_within(shard: TorchShard, work: ExpectLowRank) -> LowRankStatistics:
    """E-step of every row among the parts of its label."""
    assert isinstance(work.among, Within)
    rows, of, n = in_coordinates(shard, work.mixture.coordinates), OnCard(shard, work.mixture), work.among.n_parts
    members = shard.label_tensor[:, None].long() * n + torch.arange(n, device=shard.device)
    pairs = Pairs(rows.x, rows.scales, of, members)
    shares, bounds = _shares(shard, pairs.costs())
    return _given(shard, _statistics(shard, of, pairs, shares), float(shard.weighted(bounds).sum()), members.numel())


@TorchShard.implements(ScatterWithin)
def scatter_within(shard: TorchShard, work: ScatterWithin) -> F64:
    """Σ w s_c (x − μ_c)(x − μ_c)ᵀ, block by block."""
    centers, roots = shard.tensor(work.centers), shard.tensor(work.scales).sqrt()
    total = torch.zeros((shard.n_columns, shard.n_columns), dtype=torch.float64, device=shard.device)
    for block in blocks(shard.n_rows, shard.n_columns):
        labels = shard.label_tensor[block].long()
        away = (seen(shard.x, shard.scales, torch.float64, block) - centers[labels]) * roots[labels, None]
        total += away.T @ (away if shard.w is None else away * shard.w[block, None])
    found: F64 = total.cpu().numpy()
    return found


@TorchShard.implements(Answer, LowRankParameters)
@TorchShard.implements(Answer, LowRank)
def answer(shard: TorchShard, work: Answer) -> list[Any]:
    """What factor analysers say of every row; see `passes.cpu.expect.low_rank.answer`."""
    asked: LowRank = work.model if isinstance(work.model, LowRank) else LowRank(work.model)
    mixture, want = asked.mixture, work.want
    rows, of = in_coordinates(shard, mixture.coordinates), OnCard(shard, mixture)
    members = None if asked.n_candidates is None else members_of(shard, asked.n_candidates)
    found, densities = [], []
    for block in blocks(shard.n_rows, 16 * (asked.n_candidates or of.n_components) + shard.n_columns):
        known = _all_components(block.stop - block.start, of) if members is None else members[block]
        some = rows.x[block], None if rows.scales is None else rows.scales[block], of
        inner: Any = None
        if want == "factors":
            inner = torch.empty((known.numel(), of.loadings.shape[1]), dtype=torch.float64, device=shard.device)
        costs = Pairs(*some, known).costs(inner)
        bounds = torch.logsumexp(-0.5 * costs, dim=1)
        densities.append(bounds)
        best = costs.argmin(dim=1, keepdim=True)
        components = torch.gather(known, 1, best)[:, 0].long()
        if want == "components":
            found.append(components)
        elif want == "factors":
            own = inner.view(*known.shape, -1)[torch.arange(len(known), device=shard.device), best[:, 0]]
            turned = of.triangles[components].mT
            found.append(torch.linalg.solve_triangular(turned, own[..., None], upper=True)[..., 0])
        elif want in ("probabilities", "posterior", "reconstruction"):
            shares = torch.exp(-0.5 * costs - bounds[:, None])
            found.append(shares if want != "reconstruction" else _reconstructed(some, known, shares, asked))
    if want == "total":
        return [float(shard.weighted(torch.cat(densities)).sum())]
    if want == "posterior" and members is not None:
        return [TruncatedPosterior(*(each.cpu().numpy() for each in (members, torch.cat(found), torch.cat(densities))))]
    return [shard.give(torch.cat(densities if want == "log_densities" else found))]


def _reconstructed(some: tuple[Any, Any, OnCard], known: Any, shares: Any, asked: LowRank) -> Any:
    """Expected rows without noise: one pair of every row after the other, the likeliest first."""
    of, coordinates = some[2], asked.mixture.coordinates
    noise = torch.as_tensor(np.asarray(asked.noise), device=shares.device).expand_as(of.means)
    out = torch.zeros(some[0].shape, dtype=torch.float64, device=shares.device)
    ordered = torch.sort(shares, dim=1, descending=True, stable=True)
    members = _noticeable(torch.gather(known, 1, ordered.indices), ordered.values)
    for a in range(members.shape[1]):
        if not bool((members[:, a] >= 0).any()):
            break
        Pairs(*some, members[:, a : a + 1]).add_reconstructions(ordered.values[:, a], noise, out)
    if coordinates is not None:
        out = out @ torch.as_tensor(coordinates.backward, device=out.device)
        out += torch.as_tensor(coordinates.origin, device=out.device)
    return out
