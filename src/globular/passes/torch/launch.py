"""Kernels with their grids: tensors in, tensors out; `plain` has the same functions without kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl

from globular.passes.torch import nominating, plain, summing, weighing
from globular.passes.torch.plain import group

SHAPES = {"half": (128, 4, 2), "parts": (64, 4, 3), "three": (64, 4, 1), "single": (64, 4, 2)}
"""Rows of a program, warps and stages for products of one half-precision number, of one or two, of three, for several
stages of which there is no room, and of float32."""
CHUNK = 128
"""Columns of a product; rows of more are read once for every tile of centres."""
BLOCK = 512
"""Rows that one program sums where a cluster has many: long clusters are cut."""
SUMMED = {"blocks": (16, 4), "clusters": (16, 2)}
"""Rows that the threads of a program add side by side, and warps: for blocks of long clusters, and for clusters."""
ITEMS, WARPS = 128, 4
"""Rows and warps of a program that nominates."""
NUMBERS = 1024
"""Numbers of rows in the hands of a program that weighs."""
ENTRIES_READ = 16
"""Entries of a component that a program reads at once where it sums them."""
FEWER = 64
"""Columns at a time of kernels of mixtures."""
PRODUCT = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def prepare(centers: Any, members: Any, product: Any, n_parts: int) -> tuple[Any, Any, Any, Any]:
    """See `products.Prepared`."""
    n, D = centers.shape
    width = max(16, _power(D)) if D <= CHUNK else -(-D // CHUNK) * CHUNK
    exact = torch.empty((n, D), dtype=torch.float32, device=centers.device)
    parts = torch.empty((n_parts, n, width), dtype=product, device=centers.device)
    norms = torch.empty(n, dtype=torch.float32, device=centers.device)
    extent = torch.zeros(2, dtype=torch.float32, device=centers.device)
    size = max(1, 2048 // min(width, CHUNK))
    nominating.prepare[(-(-n // size),)](
        centers.contiguous(), norms if members is None else members, exact, parts, norms, extent, n, D,
        65504.0 if product == torch.float16 else 3e38, LISTED=members is not None, N_PARTS=n_parts,
        ROWS=size, WIDTH=width, CHUNK=min(width, CHUNK), num_warps=4,
    )  # fmt: skip
    return exact, parts, norms, extent


def nominate(
    x: Any, scales: Any, made: Any, members: Any, grouping: Any, starts: Any, limit: Any, kept: int, per_row: int,
    rows: Any, rounding: float, precision: str, doubts: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """See `Aim.nominate`; the third are numbers of distances, to be added."""
    if rows is not None:  # they are brought together
        x, scales = x[rows], None if scales is None else scales[rows]
    n_parts, n_centers, width = made.parts.shape
    n_items = len(x) if grouping is None else len(grouping.order)
    is_single = made.parts.dtype == torch.float32
    shape = "single" if is_single else "half" if n_parts == 1 and kept <= 2 else "parts" if n_parts < 3 else "three"
    size, n_warps, n_stages = SHAPES[shape]
    n_programs = -(-n_items // size)
    scores = torch.empty((n_items, kept), dtype=torch.float32, device=x.device)
    found = torch.empty((n_items, kept), dtype=torch.int32, device=x.device)
    looks = torch.empty(n_programs, dtype=torch.int64, device=x.device)
    if not n_items:
        return scores, found, looks
    nothing, is_grouped = made.norms, grouping is not None
    nominating.nominate[(n_programs,)](
        x, nothing if scales is None else scales, made.parts, made.norms, made.extent,
        nothing if members is None else members, grouping.order if is_grouped else nothing,
        grouping.keys if is_grouped else nothing, starts if is_grouped else nothing,
        nothing if limit is None else limit, scores, found, looks,
        n_items, n_centers, x.shape[1], per_row, rounding,
        GROUPED=is_grouped, LISTED=members is not None, LIMITED=limit is not None, SCALED=scales is not None,
        WITH_DOUBTS=doubts,
        N_PARTS=n_parts, KEPT=kept, SLOTS=_power(kept), ROWS=size, WIDTH=width,
        CHUNK=min(width, 64 if is_single else CHUNK), PRODUCT=PRODUCT[made.parts.dtype], PRECISION=precision,
        num_warps=n_warps, num_stages=n_stages,
    )  # fmt: skip
    return scores, found, looks


def decide(
    x: Any, scales: Any, weights: Any, made: Any, candidates: Any, scores: Any, labels: Any, rounding: float, keep: bool
) -> tuple[Any, Any]:
    """See `Aim.decide`."""
    n, D = x.shape
    chunk = min(CHUNK, max(16, _power(D)))
    size = max(4, 4096 // chunk)
    n_programs = -(-n // size)
    d2 = torch.empty(n, dtype=torch.float32, device=x.device)
    tally = torch.empty((n_programs, 2), dtype=torch.float64, device=x.device)
    nothing = made.norms
    weighing.decide[(n_programs,)](
        x, nothing if scales is None else scales, nothing if weights is None else weights, made.exact,
        candidates.contiguous(), nothing if scores is None else scores.contiguous(), made.extent, labels, d2, tally,
        n, D, candidates.shape[1], rounding, SCALED=scales is not None, WEIGHTED=weights is not None,
        SCORED=scores is not None, KEEP=keep, ROWS=size, CHUNK=chunk, N_CHUNKS=-(-D // chunk), num_warps=4,
    )  # fmt: skip
    return d2, tally.sum(0)


def sum_clusters(x: Any, factors: Any, weights: Any, d2: Any, grouping: Any) -> Any:
    """See `plain.sum_clusters`."""
    D, n, n_clusters, device = x.shape[1], len(grouping.order), len(grouping.starts) - 1, x.device
    chunk = min(CHUNK, max(16, _power(D)))
    blocks = torch.empty((max(1, n // BLOCK), D + 2), dtype=torch.float64, device=device)
    out = torch.empty((n_clusters, D + 2), dtype=torch.float64, device=device)
    nothing = grouping.order
    rows = (
        x, nothing if factors is None else factors, nothing if weights is None else weights,
        nothing if d2 is None else d2, grouping.order,
    )  # fmt: skip
    flags = {"WEIGHTED": factors is not None, "WITH_ERRORS": d2 is not None, "BLOCK": BLOCK, "CHUNK": chunk}
    if n >= BLOCK:
        size, n_warps = SUMMED["blocks"]
        summing.sum_blocks[(n // BLOCK, -(-D // chunk))](
            *rows, grouping.keys, blocks, D, **flags, ROWS=size, num_warps=n_warps
        )
    size, n_warps = SUMMED["clusters"]
    summing.sum_clusters[(n_clusters, -(-D // chunk))](
        *rows, grouping.starts, blocks, out, D, **flags, ROWS=size, num_warps=n_warps
    )
    return out


def nominate_components(
    x: Any, means: Any, precisions: Any, biases: Any, middles: Any, kept: int, grouping: Any, starts: Any, members: Any,
    per_row: int,
) -> tuple[Any, Any]:  # fmt: skip
    """See the kernel and `plain.nominate_components`; items come grouped by their cells."""
    n_items, D = len(grouping.order), x.shape[1]
    width = max(16, _power(D)) if D <= FEWER else -(-D // FEWER) * FEWER
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
        CHUNK=min(width, FEWER), num_warps=WARPS, num_stages=2,
    )  # fmt: skip
    return scores, found


def cost_candidates(x: Any, means: Any, precisions: Any, biases: Any, candidates: Any, scales: Any = None) -> Any:
    """See the kernel and `plain.cost_candidates`, which takes rows with scales too."""
    if scales is not None:
        return plain.cost_candidates(x, means, precisions, biases, candidates, scales)
    n, D = x.shape
    chunk = min(FEWER, max(16, _power(D)))
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
    chunk = min(FEWER, max(16, _power(D)))
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


def sum_entries(x: Any, shares: Any, means: Any, members: Any) -> Any:
    """See the kernel and `plain.sum_entries`; entries are grouped by component, nobody's last."""
    (C, D), n, device = means.shape, members.numel(), x.device
    grouping = group(torch.where(members >= 0, members, C).reshape(-1), C + 1)
    chunk = min(FEWER, max(16, _power(D)))
    blocks = torch.empty((max(1, n // BLOCK), 2 * D + 1), dtype=torch.float64, device=device)
    out = torch.empty((C, 2 * D + 1), dtype=torch.float64, device=device)
    sizes = {"KEPT": members.shape[1], "BLOCK": BLOCK, "ROWS": ENTRIES_READ, "CHUNK": chunk}
    if n >= BLOCK:
        summing.sum_entry_blocks[(n // BLOCK, -(-D // chunk))](
            x, shares, means, grouping.order, grouping.keys, blocks, C, D, **sizes, num_warps=4
        )
    summing.sum_entries[(C, -(-D // chunk))](
        x, shares, means, grouping.order, grouping.starts, blocks, out, D, **sizes, num_warps=2
    )
    return out
