"""Exact E-steps of Gaussian mixtures on the card, and what a mixture says of every row there, block by block.

The algebra is that of `ChunkBlocks`: log-densities are linear in the features (x, packed xxᵀ, 1) about the mean of the
mixture, one matrix product each way, and components for which the expanded square would cancel are evaluated by
differences. All of it in float64, which tensor cores of data-centre cards multiply as fast as float32: tf32 would spoil
the likelihood in its fourth digit. Blocks of rows follow each other in order, and nothing is added atomically.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics, WithinStatistics
from globular.passes.cpu.expect.blocks import ABSENT, ChunkBlocks, RawMoments
from globular.passes.torch.plain import Grouping, group, seen
from globular.passes.torch.shard import TorchShard
from globular.seam.among import All
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect, ExpectWithin, LabelByDensity

NUMBERS_AT_ONCE = 1 << 26
"""Numbers in the features, densities and differences of a block, in float64: half a gigabyte."""


PLACES = 128
"""Rows of a piece in the E-step inside of every component."""


@dataclass
class Block:
    """Some rows under all components."""

    rows: slice
    features: Any
    """(n, W)."""
    away: Any
    """(T, n, D): x − μ of the components that are evaluated by differences."""
    joint: Any
    """(n, C): log p(c, x)."""
    background: float
    """log p(noise, x), or −∞."""

    def shares(self) -> tuple[Any, Any]:
        """p(c | x), (n, C), in the place of the densities, and log p(x), (n,)."""
        largest = self.joint.amax(dim=1, keepdim=True).clamp_min_(self.background)
        shares = self.joint.sub_(largest).exp_()
        totals = shares.sum(dim=1, keepdim=True) + (self.background - largest).exp_()
        return shares.div_(totals), (largest + torch.log(totals))[:, 0]

    def components(self) -> Any:
        """The component of largest p(c | x), −1 for noise, (n,)."""
        best = self.joint.max(dim=1)
        return torch.where(best.values < self.background, -1, best.indices)


class Densities:
    """A mixture ready to be evaluated on the rows of a shard."""

    def __init__(self, shard: TorchShard, mixture: GaussianParameters, linear_about: F64 | None = None) -> None:
        """With products of the rows alone about an offset, if one is given: see `Expect`."""
        if shard.n_columns != mixture.n_features:
            raise ValueError(f"rows have {shard.n_columns} columns, the mixture {mixture.n_features}")
        mixture = mixture.as_numpy()
        offset = mixture.offset if linear_about is None else np.asarray(linear_about)
        self.shard, self.blocks = shard, ChunkBlocks(mixture, offset, linear=linear_about is not None)
        form, tensor = self.blocks.form, shard.tensor
        self._offset, self._coefficients = tensor(form.offset), tensor(form.coefficients).T
        self._tight, self._means = tensor(form.tight, torch.int64), tensor(form.means)[:, None]
        T, D = form.means.shape
        self._factors = tensor(form.factors).view(T, D, D) if form.factors.shape[1] else None
        self._precisions, self._constants = tensor(form.precisions)[:, None], tensor(form.constants)[:, None]
        self._shape = (T, form.precisions.shape[1]) if self._factors is None else (T, D, D)
        self._upper = torch.triu_indices(D, D, device=shard.device)

    @property
    def n_components(self) -> int:
        return int(self._coefficients.shape[1])

    def __iter__(self) -> Iterator[Block]:
        """All rows in order."""
        W, C = self._coefficients.shape
        T, _, D = self._means.shape
        step = max(1, NUMBERS_AT_ONCE // (3 * W + 3 * C + 3 * T * D))
        for begin in range(0, self.shard.n_rows, step):
            yield self._block(slice(begin, min(self.shard.n_rows, begin + step)))

    def _block(self, rows: slice) -> Block:
        x = seen(self.shard.x, self.shard.scales, torch.float64, rows) - self._offset
        features = self._features(x)
        joint = features @ self._coefficients
        away = x - self._means
        if len(away):
            joint[:, self._tight] = (self._constants - 0.5 * self._squares(away)).T
        return Block(rows, features, away, joint, self.blocks.form.background)

    def _features(self, x: Any) -> Any:
        """x, packed xxᵀ, 1 of some rows: as many second moments as the coefficients are for."""
        D = x.shape[1]
        S, one = len(self._coefficients) - D - 1, torch.ones_like(x[:, :1])
        if S == D:
            squares = x * x
        elif S == 1:
            squares = (x * x).sum(dim=1, keepdim=True)
        else:
            squares = x[:, self._upper[0]].mul_(x[:, self._upper[1]]) if S else x[:, :0]
        return torch.cat([x, squares, one], dim=1)

    def _squares(self, away: Any) -> Any:
        """Squared Mahalanobis distances, (T, n)."""
        if self._factors is None:
            return (away.square() * self._precisions).sum(dim=2)
        return torch.bmm(away, self._factors).square_().sum(dim=2)

    def moments(self) -> RawMoments:
        """The sums of an E-step over all rows, weighted by the responsibilities."""
        raw: Any = 0.0
        sums: Any = 0.0
        scatter: Any = 0.0
        bound: Any = 0.0
        for block in self:
            shares, densities = block.shares()
            if self.shard.w is not None:
                weights = self.shard.w[block.rows]
                shares, densities = shares.mul_(weights[:, None]), densities * weights
            raw = raw + shares.T @ block.features
            weighted = block.away * shares[:, self._tight].T[:, :, None]
            sums, scatter = sums + weighted.sum(dim=1), scatter + _scatter(block.away, weighted, self._shape)
            bound = bound + densities.sum()
        raw, sums, scatter = (each.cpu().numpy() for each in (raw, sums, scatter))
        return RawMoments(raw, sums, scatter, float(bound), self.shard.total_weight)


@TorchShard.implements(Expect, All)
def expect_all(shard: TorchShard, work: Expect) -> SoftStatistics:
    """Sums weighted by the responsibilities. N·C densities; memory: a block of rows."""
    densities = Densities(shard, work.mixture, work.offset)
    return densities.blocks.statistics(densities.moments(), shard.n_rows)


@TorchShard.implements(LabelByDensity)
def label_by_density(shard: TorchShard, work: LabelByDensity) -> None:
    for block in Densities(shard, work.mixture):
        shard.label_tensor[block.rows] = block.joint.argmax(dim=1).to(torch.int32)


@TorchShard.implements(Answer, GaussianParameters)
def answer(shard: TorchShard, work: Answer) -> list[Any]:
    """What a mixture says of every row; see `passes.cpu.expect.all.answer`."""
    densities = Densities(shard, work.model)
    n_shares = densities.n_components + (work.model.noise is not None)
    shape = (shard.n_rows, n_shares) if work.want == "probabilities" else (shard.n_rows,)
    is_whole = work.want == "components"
    found = torch.empty(shape, dtype=torch.int64 if is_whole else torch.float64, device=shard.device)
    for block in densities:
        if is_whole:
            found[block.rows] = block.components()
            continue
        shares, log_densities = block.shares()
        if work.want != "probabilities":
            found[block.rows] = log_densities
        else:
            found[block.rows, : densities.n_components] = shares
            if n_shares > densities.n_components:
                found[block.rows, -1] = (work.model.background - log_densities).exp_()
    if work.want == "total":
        return [float(shard.weighted(found).sum())]
    return [shard.give(found)]


@TorchShard.implements(ExpectWithin)
def expect_within(shard: TorchShard, work: ExpectWithin) -> WithinStatistics:
    """Rows come in pieces, all of one component each.

    A piece has a fixed number of places, the last of a component are left empty, so that all pieces go through the same
    batched products. Their sums are added up for every component by one more product, in a fixed order.
    """
    mixture, M = work.mixture.as_numpy(), work.n_parts
    (CM, D), tensor = mixture.means.shape, shard.tensor
    C, shape = CM // M, mixture.family.scatter.shape(CM, D)
    owners, places = _pieces(group(shard.label_tensor, C))
    means, constants = tensor(mixture.means).view(C, M, 1, D), tensor(mixture.log_constants).view(C, M, 1)
    factors = tensor(mixture.each(mixture.factors))
    factors = factors.view(C, M, -1, D) if factors.ndim == 3 else factors.view(C, M, 1, -1)
    sizes = [1, M, M * D, math.prod(shape) // C]
    totals = torch.zeros((C, sum(sizes)), dtype=torch.float64, device=shard.device)
    step = max(1, NUMBERS_AT_ONCE // (M * D * (4 * PLACES + D)))
    for begin in range(0, len(owners), step):
        own, rows = owners[begin : begin + step], places[begin : begin + step]
        weights = (rows >= 0).to(torch.float64)
        rows = rows.clamp_min(0)
        if shard.w is not None:
            weights = weights * shard.w[rows]
        away = seen(shard.x, shard.scales, torch.float64, rows.view(-1)).view(-1, 1, PLACES, D) - means[own]
        white = away @ factors[own] if len(shape) == 3 else away * factors[own]
        joint = constants[own].clamp_min(ABSENT) - 0.5 * white.square().sum(dim=3)
        density = torch.logsumexp(joint, dim=1)
        shares = torch.exp(joint - density[:, None]) * weights[:, None]
        weighted = away * shares[..., None]
        found = torch.cat(
            [
                (density * weights).sum(dim=1, keepdim=True), shares.sum(dim=2), weighted.sum(dim=2).flatten(1),
                _scatter(away, weighted, shape).flatten(1),
            ], dim=1,
        )  # fmt: skip
        first, last = int(own[0]), int(own[-1])
        is_own = own == torch.arange(first, last + 1, device=shard.device)[:, None]
        totals[first : last + 1] += is_own.to(torch.float64) @ found
    likelihoods, counts, sums, scatter = (each.cpu().numpy() for each in torch.split(totals, sizes, dim=1))
    parts = SoftStatistics(
        counts.reshape(CM), sums.reshape(CM, D), scatter.reshape(shape), float(likelihoods.sum()), shard.total_weight,
        shard.n_rows * M,
    )  # fmt: skip
    return WithinStatistics(parts, likelihoods[:, 0])


def _pieces(grouping: Grouping) -> tuple[Any, Any]:
    """The component of every piece, ascending, and its rows, (pieces, PLACES), −1 where a place is empty."""
    starts, device = grouping.starts, grouping.order.device
    n_pieces = -(starts.diff() // -PLACES)
    owners = torch.repeat_interleave(torch.arange(len(n_pieces), device=device), n_pieces)
    number = torch.arange(len(owners), device=device) - (torch.cumsum(n_pieces, dim=0) - n_pieces)[owners]
    at = (starts[owners] + PLACES * number)[:, None] + torch.arange(PLACES, device=device)
    is_row = at < starts[owners + 1][:, None]
    return owners, torch.where(is_row, grouping.order[at.clamp_max(len(grouping.order) - 1)], -1)


def _scatter(away: Any, weighted: Any, shape: tuple[int, ...]) -> Any:
    """Σ w q (x − μ)² over the last but one dimension, in the shape of statistics."""
    if len(shape) == 3:
        return weighted.transpose(-2, -1) @ away
    squares = (weighted * away).sum(dim=-2)
    return squares if shape[1] > 1 else squares.sum(dim=-1, keepdim=True)
