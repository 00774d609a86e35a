"""Kernels of truncated mixtures with their grids: tensors in, tensors out."""

from __future__ import annotations

from typing import Any

import torch

from globular.backends.torch import entries, weighing

ITEMS, WARPS = 128, 4
"""Rows and warps of a program that nominates."""
NUMBERS = 1024
"""Numbers of rows in the hands of a program that weighs."""
BLOCK, SUMMED = 512, 16
"""Entries that one program sums where a component has many, and those that it reads at once."""
CHUNK = 64
"""Columns at a time."""


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def nominate_components(
    x: Any, means: Any, precisions: Any, biases: Any, middles: Any, kept: int, grouping: Any, starts: Any, members: Any,
    per_row: int,
) -> tuple[Any, Any]:  # fmt: skip
    """See the kernel and `plain_mixtures.nominate_components`; items come grouped by their cells."""
    n_items, D = len(grouping.order), x.shape[1]
    width = max(16, _power(D)) if D <= CHUNK else -(-D // CHUNK) * CHUNK
    own_cells = torch.repeat_interleave(
        torch.arange(len(middles), device=x.device), starts.diff(), output_size=len(members)
    )
    away, listed = means[members] - middles[own_cells], precisions[members]
    pulls = torch.nn.functional.pad((-2.0 * listed * away).to(torch.float32), (0, width - D)).contiguous()
    by_column = listed.shape[1] > 1
    curves = torch.nn.functional.pad(listed.to(torch.float32), (0, width - D if by_column else 0)).contiguous()
    norms = ((listed * away * away).sum(dim=1) + biases[members]).clamp_max(1e37).to(torch.float32)
    scores = torch.empty((n_items, kept), dtype=torch.float32, device=x.device)
    found = torch.empty((n_items, kept), dtype=torch.int32, device=x.device)
    weighing.nominate_components[(-(-n_items // ITEMS),)](
        x, middles, pulls, curves, norms, members, grouping.order, grouping.keys, starts, scores, found,
        n_items, D, per_row, BY_COLUMN=by_column, KEPT=kept, SLOTS=_power(kept), ROWS=ITEMS, WIDTH=width,
        CHUNK=min(width, CHUNK), num_warps=WARPS, num_stages=2,
    )  # fmt: skip
    return scores, found


def cost_candidates(x: Any, means: Any, precisions: Any, biases: Any, candidates: Any) -> Any:
    """See the kernel and `plain_mixtures.costs_of`."""
    n, D = x.shape
    chunk = min(CHUNK, max(16, _power(D)))
    size = max(8, NUMBERS // chunk)
    costs = torch.empty(candidates.shape, dtype=torch.float64, device=x.device)
    weighing.cost_candidates[(-(-n // size),)](
        x, means, precisions, biases, candidates.contiguous(), costs, n, D, candidates.shape[1],
        BY_COLUMN=precisions.shape[1] > 1, ROWS=size, CHUNK=chunk, N_CHUNKS=-(-D // chunk), num_warps=4,
    )  # fmt: skip
    return costs


def weigh(
    x: Any, means: Any, precisions: Any, biases: Any, labels: Any, members: Any, candidates: Any, scores: Any
) -> tuple[Any, Any, Any]:
    """See the kernel."""
    (n, D), kept = x.shape, members.shape[1]
    chunk = min(CHUNK, max(16, _power(D)))
    size = max(8, NUMBERS // chunk)
    shares = torch.empty((n, kept), dtype=torch.float64, device=x.device)
    bounds, before = torch.empty((2, n), dtype=torch.float64, device=x.device)
    n_more = 0 if candidates is None else candidates.shape[1]
    weighing.weigh[(-(-n // size),)](
        x, means, precisions, biases, labels, members, members if candidates is None else candidates.contiguous(),
        bounds if scores is None else scores.contiguous(), shares, bounds, before, n, D, n_more,
        BY_COLUMN=precisions.shape[1] > 1, KEPT=kept, SLOTS=_power(kept), ROWS=size, CHUNK=chunk,
        N_CHUNKS=-(-D // chunk), num_warps=4,
    )  # fmt: skip
    return shares, bounds, before


def sum_entries(x: Any, shares: Any, means: Any, grouping: Any, kept: int) -> Any:
    """See the kernel and `plain_mixtures.sum_entries`; entries come grouped by component, nobody's last."""
    (C, D), n, device = means.shape, len(grouping.order), x.device
    chunk = min(CHUNK, max(16, _power(D)))
    blocks = torch.empty((max(1, n // BLOCK), 2 * D + 1), dtype=torch.float64, device=device)
    out = torch.empty((C, 2 * D + 1), dtype=torch.float64, device=device)
    sizes = {"KEPT": kept, "BLOCK": BLOCK, "ROWS": SUMMED, "CHUNK": chunk}
    if n >= BLOCK:
        entries.sum_entry_blocks[(n // BLOCK, -(-D // chunk))](
            x, shares, means, grouping.order, grouping.keys, blocks, C, D, **sizes, num_warps=4
        )
    entries.sum_entries[(C, -(-D // chunk))](
        x, shares, means, grouping.order, grouping.starts, blocks, out, D, **sizes, num_warps=2
    )
    return out
