"""What is to be known of columns, distances to all centres, and coordinates in a subspace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from globular.model.statistics import F64, ColumnMoments
from globular.passes.cpu.codes import best_codes
from globular.passes.torch.plain import blocks, seen
from globular.passes.torch.shard import CardShard, TorchShard
from globular.seam.answers import NEAREST, Answer, Centers, Coding, Nearest, Own
from globular.seam.passes import Extremes, Moments, Project
from globular.threads import even_ranges


@TorchShard.implements(Moments)
def moments(shard: TorchShard, work: Moments) -> ColumnMoments:
    """About the mean of a sample, float64; zeros where nothing counts."""
    weight, D = shard.total_weight, shard.n_columns
    if not weight > 0:
        return ColumnMoments(((weight, np.zeros(D), np.zeros(D)),))
    sample = shard.take_tensor(slice(0, shard.n_rows, -(-shard.n_rows // 256)))
    constant = (sample == sample[0]).all(dim=0)
    shift = torch.where(constant, sample[0], sample.mean(dim=0))
    first, second = torch.zeros((2, D), dtype=torch.float64, device=shard.device)
    for block, rows in _rows(shard, 1):
        apart = rows - shift
        w = torch.ones(len(apart), dtype=torch.float64, device=shard.device) if shard.w is None else shard.w[block]
        first, second = first + w @ apart, second + w @ (apart * apart)
    first, second = first / weight, second / weight
    mean, variance = shift + first, (second - first**2).clamp_min(0.0)
    return ColumnMoments(((weight, mean.cpu().numpy(), variance.cpu().numpy()),))


@TorchShard.implements(Extremes)
def extremes(shard: TorchShard, work: Extremes) -> F64:
    found: F64 = torch.stack([shard.x.amin(dim=0), shard.x.amax(dim=0)]).to(torch.float64).cpu().numpy()
    return found


@CardShard.implements(Project)
def project(shard: CardShard, work: Project) -> TorchShard:
    """The coordinates of all rows, those of one part after the other; in half precision where rows are."""
    coordinates, begin, d = None, 0, work.subspace.dimension
    origin, basis = shard.tensor(work.subspace.origin, shard.exact), shard.tensor(work.subspace.basis, shard.exact)
    for part in cast(Iterator[TorchShard], shard.parts()):
        dtype = torch.float16 if part.x.dtype == torch.float16 else shard.exact
        if coordinates is None:
            coordinates = torch.empty((shard.n_rows, d), dtype=dtype, device=shard.device)
        for block in blocks(part.n_rows, part.n_columns):
            here = slice(begin + block.start, begin + block.stop)
            coordinates[here] = ((seen(part.x, part.scales, shard.exact, block) - origin) @ basis).to(dtype)
        begin += part.n_rows
    return TorchShard(coordinates, shard.w, state=shard.state, first_row=shard.first_row)


def _rows(shard: TorchShard, width: int) -> Iterator[tuple[slice, Any]]:
    """All rows as passes see them, float64, in blocks beside which `width` numbers a row have room."""
    for block in blocks(shard.n_rows, max(width, shard.n_columns)):
        yield block, seen(shard.x, shard.scales, torch.float64, block)


def _distances(rows: Any, centers: Any) -> Any:
    return torch.cdist(rows, centers, compute_mode="donot_use_mm_for_euclid_dist")


@TorchShard.implements(Answer, Centers)
def distances(shard: TorchShard, work: Answer) -> list[Any]:
    """Distances of every row to all centres, (N, k); cosine distances if asked for."""
    centers = shard.tensor(work.model.centers)
    found = np.empty((shard.n_rows, len(centers)), dtype=shard.dtype)
    by_angle = work.model.metric == "cosine"
    centers = torch.nn.functional.normalize(centers, dim=1) if by_angle else centers
    for block, rows in _rows(shard, len(centers)):
        values = 1.0 - torch.nn.functional.normalize(rows, dim=1) @ centers.T if by_angle else _distances(rows, centers)
        found[block] = values.cpu().numpy()
    return [found]


@CardShard.implements(Answer, Coding)
def codes(shard: CardShard, work: Answer) -> list[Any]:
    """The codes of all rows; words and what they leave stay on the card."""
    books = [shard.give(shard.tensor(book, shard.exact)) for book in work.model.books]
    coding, found = replace(work.model, books=books), list[Any]()
    for part in cast(Iterator[TorchShard], shard.parts()):
        for begin, end in even_ranges(part.n_rows, coding.rows_at_once):
            rows = shard.give(seen(part.x, part.scales, part.exact, slice(begin, end)))
            found.append(best_codes(part.local, rows, coding))
    return found


@TorchShard.implements(Answer, Own)
def squares(shard: TorchShard, work: Answer) -> list[Any]:
    """Squared distances of all rows to their own centres, (N,)."""
    centers, labels, found = shard.tensor(work.model.centers), shard.label_tensor.long(), np.empty(shard.n_rows)
    for block, rows in _rows(shard, 1):
        found[block] = (rows - centers[labels[block]]).square().sum(dim=1).cpu().numpy()
    return [found]


@TorchShard.implements(Answer, Nearest)
def nearest(shard: TorchShard, work: Answer) -> list[Any]:
    """The closest centres of all rows in ascending order, (N, n); of those equally far the first comes first."""
    centers, n = shard.tensor(work.model.centers), work.model.n
    found = np.empty((shard.n_rows, n), dtype=NEAREST)
    for block, rows in _rows(shard, len(centers)):
        ordered = _distances(rows, centers).sort(dim=1, stable=True)
        found["center"][block] = ordered.indices[:, :n].cpu().numpy()
        found["square"][block] = ordered.values[:, :n].square().cpu().numpy()
    return [found]
