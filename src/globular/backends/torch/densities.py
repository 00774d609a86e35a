"""Log-densities of rows under all components of a mixture on the card, and the sums of an E-step, block by block.

The algebra is that of `ChunkBlocks`: log-densities are linear in the features (x, packed xxᵀ, 1) about the mean of the
mixture, one matrix product each way, and components for which the expanded square would cancel are evaluated by
differences. All of it in float64, which tensor cores of data-centre cards multiply as fast as float32: tf32 would spoil
the likelihood in its fourth digit. Blocks of rows follow each other in order, and nothing is added atomically.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from globular.backends.cpu.expect.blocks import ChunkBlocks, Moments
from globular.backends.torch.plain import seen
from globular.backends.torch.shard import TorchShard
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64

NUMBERS_AT_ONCE = 1 << 26
"""Numbers in the features, densities and differences of a block, in float64: half a gigabyte."""


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
        """With products of the rows alone about an offset, if one is given: see `ExpectTied`."""
        if shard.n_columns != mixture.n_features:
            raise ValueError(f"rows have {shard.n_columns} columns, the mixture {mixture.n_features}")
        mixture = mixture.as_numpy()
        is_linear = linear_about is not None
        offset = mixture.offset if linear_about is None else linear_about
        self.shard, self.blocks = shard, ChunkBlocks(mixture, offset, linear=is_linear)
        form, tensor = self.blocks.form, shard.tensor
        self._offset, self._coefficients = tensor(form.offset), tensor(form.coefficients).T
        self._tight, self._means = tensor(form.tight, torch.int64), tensor(form.means)[:, None]
        T, D = form.means.shape
        self._factors = tensor(form.factors).view(T, D, D) if form.factors.shape[1] else None
        self._precisions, self._constants = tensor(form.precisions)[:, None], tensor(form.constants)[:, None]
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

    def _scatter(self, away: Any, weighted: Any) -> Any:
        """Σ w q (x − μ)² in the shape of statistics."""
        if self._factors is not None:
            return torch.bmm(weighted.transpose(1, 2), away)
        squares = (weighted * away).sum(dim=1)
        return squares if self._precisions.shape[2] > 1 else squares.sum(dim=1, keepdim=True)

    def moments(self) -> Moments:
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
            sums, scatter = sums + weighted.sum(dim=1), scatter + self._scatter(block.away, weighted)
            bound = bound + densities.sum()
        raw, sums, scatter = (each.cpu().numpy() for each in (raw, sums, scatter))
        return Moments(raw, sums, scatter, float(bound), self.shard.total_weight)
