"""What the kernels do, in plain torch: their oracle, and what runs on devices without triton and on float64 rows.

Blocks of rows bound the memory; everything else is said as directly as torch allows.
"""

from __future__ import annotations

from typing import Any

import torch

NUMBERS_AT_ONCE = 1 << 24
"""Numbers of a temporary."""
FAR = float("inf")


def blocks(n: int, numbers_per_row: int) -> list[slice]:
    """Ranges of rows whose temporaries are small."""
    step = max(1, NUMBERS_AT_ONCE // max(1, numbers_per_row))
    return [slice(begin, min(n, begin + step)) for begin in range(0, n, step)]


def seen(x: Any, scales: Any, dtype: Any, rows: Any = slice(None)) -> Any:
    """Some rows as passes see them."""
    some = x[rows].to(dtype)
    return some if scales is None else some * scales[rows].to(dtype)[:, None]


def nominate(
    x: Any, scales: Any, centers: Any, norms: Any, kept: int, cells: Any, starts: Any, per_row: int, rows: Any
) -> tuple[Any, Any]:
    """Squared distances by products to the `kept` closest centres of every item, and their numbers.

    Item i is of row i // per_row, or of rows[i]; with `cells` it looks at the centres of its own cell alone.
    """
    n = len(cells) if cells is not None else (len(rows) if rows is not None else len(x))
    scores = torch.full((n, kept), FAR, dtype=centers.dtype, device=x.device)
    found = torch.full((n, kept), -1, dtype=torch.int32, device=x.device)
    everyone = torch.arange(n, device=x.device)
    groups = [(everyone, 0, len(centers))]
    if cells is not None:
        bounds = starts.tolist()
        groups = [(torch.nonzero(cells == g)[:, 0], bounds[g], bounds[g + 1]) for g in range(len(bounds) - 1)]
    for items, begin, end in groups:
        own, k = centers[begin:end], min(kept, end - begin)
        for block in blocks(len(items), max(1, end - begin)):
            some = items[block]
            chosen = some // per_row if rows is None else rows[some]
            points = seen(x, scales, centers.dtype, chosen)
            squared = (points * points).sum(1)[:, None] + norms[begin:end] - 2.0 * (points @ own.T)
            low = torch.sort(squared.clamp_min_(0.0), dim=1, stable=True)
            scores[some, :k] = low.values[:, :k]
            found[some, :k] = (low.indices[:, :k] + begin).to(torch.int32)
    return scores, found


def decide(x: Any, scales: Any, centers: Any, candidates: Any, *, own_first: bool) -> tuple[Any, Any]:
    """The closest candidate of every row by differences, and its squared distance; see the kernel."""
    n, n_candidates = candidates.shape
    labels = torch.empty(n, dtype=torch.int32, device=x.device)
    d2 = torch.empty(n, dtype=centers.dtype, device=x.device)
    for block in blocks(n, n_candidates * x.shape[1]):
        some = candidates[block]
        points = seen(x, scales, centers.dtype, block)
        squared = ((points[:, None] - centers[some.clamp_min(0).long()]) ** 2).sum(2)
        squared = torch.where(some >= 0, squared, FAR)
        best = squared.min(dim=1).values
        names = torch.where(squared == best[:, None], some, torch.iinfo(torch.int32).max).min(dim=1).values
        if own_first:
            names = torch.where(squared[:, 0] == best, some[:, 0], names)
        labels[block], d2[block] = names, best
    return labels, d2


def sum_clusters(x: Any, factors: Any, weights: Any, d2: Any, order: Any, starts: Any) -> Any:
    """(C, D + 2): Σ w x, Σ w and Σ w d² of clusters, whose rows are order[starts[c]:starts[c + 1]], in float64."""
    D, device = x.shape[1], x.device
    out = torch.zeros((len(starts) - 1, D + 2), dtype=torch.float64, device=device)
    labels = torch.repeat_interleave(torch.arange(len(out), device=device), starts.diff())
    for block in blocks(len(order), D):
        rows, of = order[block], labels[block]
        values = x[rows].to(torch.float64)
        share = torch.ones(len(rows), dtype=torch.float64, device=device) if weights is None else weights[rows]
        values = values if factors is None else values * factors[rows, None]
        errors = share * d2[rows].to(torch.float64) if d2 is not None else torch.zeros_like(share)
        out.index_add_(0, of, torch.cat([values, share[:, None], errors[:, None]], dim=1))
    return out
