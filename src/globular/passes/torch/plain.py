"""What the kernels do, in plain torch: their oracle, and what runs on devices without triton and on float64 rows; and
items in the order of their keys, for both.

The functions are those of `launch`, with the same arguments; what only kernels need is not looked at here. Blocks of
rows bound the memory; everything else is said as directly as torch allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

NUMBERS_AT_ONCE = 1 << 24
"""Numbers of a temporary."""
FAR = float("inf")
RUN = 4096
"""Rows whose running sums are taken together."""


def blocks(n: int, numbers_per_row: int) -> list[slice]:
    """Ranges of rows whose temporaries are small."""
    step = max(1, NUMBERS_AT_ONCE // max(1, numbers_per_row))
    return [slice(begin, min(n, begin + step)) for begin in range(0, n, step)]


def seen(x: Any, scales: Any, dtype: Any, rows: Any = slice(None)) -> Any:
    """Some rows as passes see them."""
    some = x[rows].to(dtype)
    return some if scales is None else some * scales[rows].to(dtype)[:, None]


def running_sums(values: Any) -> Any:
    """Sums of the values up to each of them, (n,), always in the same order: torch's own scan of one long row is not.

    They never fall, whatever the rounding.
    """
    n = len(values)
    inside = torch.cumsum(torch.nn.functional.pad(values, (0, -n % RUN)).view(-1, RUN), dim=1)
    totals = inside[:, -1].expand(2, -1).contiguous()  # two rows: of one, the scan would be torch's long one
    before = torch.nn.functional.pad(torch.cumsum(totals, dim=1)[0, :-1], (1, 0))
    # the largest so far by runs, too: torch takes one long row by a single block of threads
    sums = torch.cummax(inside + before[:, None], dim=1).values
    lead = torch.nn.functional.pad(torch.cummax(sums[:, -1], dim=0).values[:-1], (1, 0))
    return torch.maximum(sums, lead[:, None]).view(-1)[:n]


def prepare(centers: Any, members: Any, product: Any, n_parts: int) -> tuple[Any, Any, Any, Any]:
    """See `products.Prepared`; the parts are the centres themselves, of which nothing is missing."""
    exact = centers.to(product)
    listed = exact if members is None else exact[members]
    norms = (listed * listed).sum(1)
    return exact, listed, norms, torch.stack([norms.max(), torch.zeros_like(norms[0])])


def nominate(
    x: Any, scales: Any, made: Any, members: Any, grouping: Any, starts: Any, limit: Any, kept: int, per_row: int,
    rows: Any, rounding: float, precision: str, doubts: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Squared distances by products to the `kept` closest centres of every item, their numbers, and distances.

    Item i is of row i // per_row, or of rows[i]; grouped by cells it looks at the centres of its own cell alone.
    """
    n = len(grouping.order) if grouping is not None else (len(rows) if rows is not None else len(x))
    scores = torch.full((n, kept), FAR, dtype=made.parts.dtype, device=x.device)
    found = torch.full((n, kept), -1, dtype=torch.int32, device=x.device)
    groups, looks = [(torch.arange(n, device=x.device), 0, len(made.parts))], None
    if grouping is not None:
        bounds, looks = starts.tolist(), starts.diff()[grouping.keys.long()]
        groups = [(grouping.order[grouping.keys == g], bounds[g], bounds[g + 1]) for g in range(len(bounds) - 1)]
    for items, begin, end in groups:
        own, k = made.parts[begin:end], min(kept, end - begin)
        for block in blocks(len(items), max(1, end - begin)):
            some = items[block].long()
            chosen = some // per_row if rows is None else rows[some]
            points = seen(x, scales, own.dtype, chosen)
            squared = (points * points).sum(1)[:, None] + made.norms[begin:end] - 2.0 * (points @ own.T)
            low = torch.sort(squared.clamp_min_(0.0), dim=1, stable=True)
            scores[some, :k] = low.values[:, :k]
            found[some, :k] = (low.indices[:, :k] + begin).to(torch.int32)
    if members is not None:
        found = torch.where(found >= 0, members[found.clamp_min(0).long()].to(torch.int32), -1)
    return scores, found, looks


def decide(
    x: Any, scales: Any, weights: Any, made: Any, candidates: Any, scores: Any, labels: Any, rounding: float, keep: bool
) -> tuple[Any, Any]:
    """See `Aim.decide`."""
    candidates = torch.cat([labels[:, None], candidates], dim=1) if keep else candidates
    found, d2 = torch.empty_like(labels), torch.empty(len(x), dtype=made.exact.dtype, device=x.device)
    for block in blocks(len(x), candidates.shape[1] * x.shape[1]):
        some = candidates[block]
        points = seen(x, scales, made.exact.dtype, block)
        squared = ((points[:, None] - made.exact[some.clamp_min(0).long()]) ** 2).sum(2)
        squared = torch.where(some >= 0, squared, FAR)
        best = squared.min(dim=1).values
        names = torch.where(squared == best[:, None], some, torch.iinfo(torch.int32).max).min(dim=1).values
        if keep:
            names = torch.where(squared[:, 0] == best, some[:, 0], names)
        found[block], d2[block] = names, best
    errors = d2.to(torch.float64) if weights is None else d2.to(torch.float64) * weights
    tally = torch.stack([errors.sum(), (found != labels).sum()])
    labels.copy_(found)
    return d2, tally


def sum_clusters(x: Any, factors: Any, weights: Any, d2: Any, grouping: Any) -> Any:
    """(C, D + 2): Σ w x, Σ w and Σ w d² of clusters, by which rows are grouped, in float64."""
    D, device, order, starts = x.shape[1], x.device, grouping.order, grouping.starts
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


def cost_candidates(x: Any, means: Any, precisions: Any, biases: Any, candidates: Any, scales: Any = None) -> Any:
    """−2 log p(c, x) of some components of every row, float64; infinity where there is none."""
    found = torch.empty(candidates.shape, dtype=torch.float64, device=x.device)
    for block in blocks(len(x), candidates.shape[1] * x.shape[1]):
        some = candidates[block].clamp_min(0).long()
        away = seen(x, scales, torch.float64, block)[:, None] - means[some]
        found[block] = (away * away * precisions[some]).sum(dim=2) + biases[some]
    return torch.where(candidates >= 0, found, FAR)


def nominate_components(
    x: Any, means: Any, precisions: Any, biases: Any, middles: Any, kept: int, grouping: Any, starts: Any, members: Any,
    per_row: int,
) -> tuple[Any, Any]:  # fmt: skip
    """The best components of every item's cell: costs, and numbers, −1 where there is nobody."""
    n_items = len(grouping.order)
    scores = torch.full((n_items, kept), FAR, dtype=torch.float64, device=x.device)
    found = torch.full((n_items, kept), -1, dtype=torch.int32, device=x.device)
    for cell, (begin, end) in enumerate(zip(starts.tolist(), starts.tolist()[1:], strict=False)):
        own, items = members[begin:end], grouping.order[grouping.keys == cell]
        if not len(items) or begin == end:
            continue
        k = min(kept, end - begin)
        costs = cost_candidates(x[items // per_row], means, precisions, biases, own.expand(len(items), -1))
        lowest = torch.sort(costs, dim=1, stable=True)
        scores[items, :k] = lowest.values[:, :k]
        found[items, :k] = own[lowest.indices[:, :k]].to(torch.int32)
    return scores, found


def known_members(labels: Any, members: Any) -> Any:
    """K(n); the label alone where K(n) begins with another component."""
    fresh = torch.nn.functional.pad(labels[:, None], (0, members.shape[1] - 1), value=-1)
    return torch.where(members[:, :1] == labels[:, None], members, fresh)


def keep_lowest(labels: Any, members: Any, candidates: Any, costs: Any) -> Any:
    """K(n) becomes the candidates of lowest cost, the first of them the label, in place; returns their costs."""
    lowest = torch.sort(costs, dim=1, stable=True)
    low = lowest.values[:, : members.shape[1]]
    members.copy_(torch.where(low < FAR, torch.gather(candidates, 1, lowest.indices[:, : members.shape[1]]), -1))
    labels.copy_(members[:, 0])
    return low


def weigh(
    x: Any, means: Any, precisions: Any, biases: Any, labels: Any, members: Any, candidates: Any, scores: Any
) -> tuple[Any, Any, Any]:
    """See the kernel; labels and members change in place. Shares, bounds, and bounds before."""
    kept, own = members.shape[1], known_members(labels, members)
    everyone = own if candidates is None else torch.cat([own, candidates], dim=1)
    repeats = torch.zeros_like(everyone, dtype=torch.bool)
    for k in range(1, everyone.shape[1]):
        repeats[:, k] = (everyone[:, :k] == everyone[:, k : k + 1]).any(dim=1)
    costs = cost_candidates(x, means, precisions, biases, torch.where(repeats, -1, everyone))
    before = torch.logsumexp(-0.5 * costs[:, :kept], dim=1)
    low = keep_lowest(labels, members, everyone, costs)
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


@dataclass
class Grouping:
    """Items in the order of their keys."""

    order: Any
    keys: Any
    starts: Any = None
    """Where the items of each key begin, and end."""


def group(keys: Any, n: int, *, starts: bool = True) -> Grouping:
    """Group items by keys from 0 to n − 1."""
    narrow = keys.to(torch.int16) if n <= 2**15 else keys
    ordered, order = torch.sort(narrow, stable=True)
    grouping = Grouping(order, ordered)
    if starts:
        wanted = torch.arange(n + 1, device=keys.device, dtype=torch.int32)
        grouping.starts = torch.searchsorted(ordered.to(torch.int32), wanted)
    return grouping


def in_order(keys: Any) -> Grouping:
    """Items whose keys are in order already."""
    return Grouping(torch.arange(len(keys), device=keys.device, dtype=torch.int32), keys)
