"""The E-step of a mixture inside of every component, on the card: rows in pieces, all of one component each.

A piece has a fixed number of places, the last of a component are left empty, so that all pieces go through the same
batched products. Their sums are added up for every component by one more product, in a fixed order.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from globular.backends.cpu.expect.blocks import ABSENT
from globular.backends.torch.densities import NUMBERS_AT_ONCE
from globular.backends.torch.grouping import Grouping, group
from globular.backends.torch.plain import seen
from globular.backends.torch.shard import TorchShard
from globular.model.statistics import SoftStatistics, WithinStatistics
from globular.seam.mixture_passes import ExpectWithin

PLACES = 128
"""Rows of a piece."""


@TorchShard.implements(ExpectWithin)
def expect_within(shard: TorchShard, work: ExpectWithin) -> WithinStatistics:
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
    """Second moments of every piece and part, in the shape of statistics."""
    if len(shape) == 3:
        return weighted.transpose(2, 3) @ away
    squares = (weighted * away).sum(dim=2)
    return squares if shape[1] > 1 else squares.sum(dim=2)
