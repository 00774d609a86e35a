"""What the kernels of truncated mixtures do, in plain torch: their oracle, and what runs on devices without triton."""

from __future__ import annotations

from typing import Any

import torch

from globular.backends.torch.plain import blocks, seen

NOBODY = float("inf")


def costs_of(x: Any, means: Any, precisions: Any, biases: Any, candidates: Any, scales: Any = None) -> Any:
    """−2 log p(c, x) of some components of every row, float64; infinity where there is none."""
    found = torch.empty(candidates.shape, dtype=torch.float64, device=x.device)
    for block in blocks(len(x), candidates.shape[1] * x.shape[1]):
        some = candidates[block].clamp_min(0).long()
        away = seen(x, scales, torch.float64, block)[:, None] - means[some]
        found[block] = (away * away * precisions[some]).sum(dim=2) + biases[some]
    return torch.where(candidates >= 0, found, NOBODY)


def nominate_components(
    x: Any, means: Any, precisions: Any, biases: Any, kept: int, cells: Any, starts: Any, members: Any, per_row: int
) -> tuple[Any, Any]:
    """The best components of every item's cell: costs, and numbers, −1 where there is nobody."""
    scores = torch.full((len(cells), kept), NOBODY, dtype=torch.float64, device=x.device)
    found = torch.full((len(cells), kept), -1, dtype=torch.int32, device=x.device)
    for cell, (begin, end) in enumerate(zip(starts.tolist(), starts.tolist()[1:], strict=False)):
        own, items = members[begin:end], torch.nonzero(cells == cell)[:, 0]
        if not len(items) or begin == end:
            continue
        k = min(kept, end - begin)
        costs = costs_of(x[items // per_row], means, precisions, biases, own.expand(len(items), -1))
        lowest = torch.sort(costs, dim=1, stable=True)
        scores[items, :k] = lowest.values[:, :k]
        found[items, :k] = own[lowest.indices[:, :k]].to(torch.int32)
    return scores, found


def weigh(
    x: Any, means: Any, precisions: Any, biases: Any, labels: Any, members: Any, candidates: Any
) -> tuple[Any, Any, Any]:
    """See the kernel; labels and members change in place. Shares, bounds, and bounds before."""
    kept = members.shape[1]
    is_known = members[:, :1] == labels[:, None]
    fresh = torch.nn.functional.pad(labels[:, None], (0, kept - 1), value=-1)
    own = torch.where(is_known, members, fresh)
    everyone = own if candidates is None else torch.cat([own, candidates], dim=1)
    repeats = torch.zeros_like(everyone, dtype=torch.bool)
    for k in range(1, everyone.shape[1]):
        repeats[:, k] = (everyone[:, :k] == everyone[:, k : k + 1]).any(dim=1)
    costs = costs_of(x, means, precisions, biases, torch.where(repeats, -1, everyone))
    before = torch.logsumexp(-0.5 * costs[:, :kept], dim=1)
    lowest = torch.sort(costs, dim=1, stable=True)
    low = lowest.values[:, :kept]
    members.copy_(torch.where(low < NOBODY, torch.gather(everyone, 1, lowest.indices[:, :kept]), -1))
    labels.copy_(members[:, 0])
    bounds = torch.logsumexp(-0.5 * low, dim=1)
    return torch.exp(-0.5 * low - bounds[:, None]), bounds, before


def sum_entries(x: Any, shares: Any, means: Any, members: Any) -> Any:
    """(C, 2 D + 1): Σ q, Σ q (x − μ), Σ q (x − μ)² of every component, float64."""
    n_kept, flat = members.shape[1], members.reshape(-1)
    out = torch.zeros((len(means), 2 * x.shape[1] + 1), dtype=torch.float64, device=x.device)
    entries = torch.nonzero(flat >= 0)[:, 0]
    for block in blocks(len(entries), 2 * x.shape[1]):
        some = entries[block]
        of, share = flat[some].long(), shares.reshape(-1)[some, None]
        away = x[some // n_kept].to(torch.float64) - means[of]
        out.index_add_(0, of, torch.cat([share, share * away, share * away * away], dim=1))
    return out
