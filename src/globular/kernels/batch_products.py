"""Nested mini-batches: rows that have to be compared with all centres, by products; labels from these, and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.kernels.batch import LARGEST, place_of, stored_lower, stored_upper
from globular.kernels.columns import closest_by_scores, column_scores, keep_products
from globular.kernels.nearest import scores_may_overflow
from globular.kernels.scores import decide, rounding, score_rows


@inline
def name_block(
    begin: int, n: int, positions: Any, batch: Any, places: Any, scales: Any, chosen: Any, at: Any, stretches: Any
) -> None:
    """Numbers, places and scales of the rows positions[begin:begin + n] of the batch. O(n)."""
    for k in range(n):
        chosen[k] = batch[positions[begin + k]]
        at[k] = place_of(begin + k, chosen[k], places)
        if scales.shape[0]:
            stretches[k] = scales[chosen[k]]


@kernel
def label_by_products(
    queue: Queue,  # IN/OUT blocks of B rows
    positions: Any,  # IN  (n,) rows of the batch to label
    rows: Any,  # IN  dense
    places: Any,  # IN  (n,) or empty
    scales: Any,  # IN  (N,) or empty
    batch: Any,  # IN  (b,)
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # IN  (D, C) −2 (m − offset)ᵀ
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    score_norms: Any,  # IN  (C,) ‖m − offset‖²
    longest: float,  # IN  the largest ‖m − offset‖
    unit: float,  # IN  unit round-off of the scores
    tiny: float,  # IN  their smallest normal number
    group_of: Any,  # IN  (C,)
    drift: Any,  # IN  (C,)
    group_drift: Any,  # IN  (groups,), or empty: no bounds
    upper: Any,  # OUT (N,)
    lower: Any,  # OUT (N, groups)
    labels: Any,  # OUT (b,)
    seen: Scratch,  # scratch (B, D)
    scores: Scratch,  # scratch (B, C)
    chosen: Scratch,  # scratch (2, B) int64
    floats: Scratch,  # scratch (3, B) float64
    found: Scratch,  # scratch (B,) int32
    least: Scratch,  # scratch (groups,) float64
) -> None:
    """Rows against all centres: labels, and bounds if there are any. O(n · C · D)."""
    n, B, D = positions.shape[0], scores.shape[0], centers.shape[1]
    begin = B * take_number(queue)
    while begin < n:
        m = min(B, n - begin)
        numbers, at, lengths, best = chosen[0, :m], chosen[1, :m], floats[0, :m], floats[1, :m]
        stretches = floats[2, : m if scales.shape[0] else 0]
        name_block(begin, m, positions, batch, places, scales, numbers, at, stretches)
        score_rows(rows[0], at, offset, factors, seen, scores[:m], lengths)
        decide(rows, at, lengths, stretches, scores[:m], score_norms, centers, norms, unit, tiny, best, found)
        for k in range(m):
            labels[positions[begin + k]] = found[k]
        if group_drift.shape[0]:
            bound_by_scores(
                rows, at, numbers, lengths, stretches, scores, score_norms, longest, 0.0, group_of, drift, group_drift,
                D, unit, tiny, best, found, upper, lower, least,
            )  # fmt: skip
        begin = B * take_number(queue)


@kernel
def label_by_columns(
    queue: Queue,  # IN/OUT blocks of B rows
    positions: Any,  # IN  (n,) rows of the batch to label
    rows: Any,  # IN  CSR
    places: Any,  # IN  (n,) or empty
    scales: Any,  # IN  (N,) or empty
    batch: Any,  # IN  (b,)
    columns: Any,  # IN  (D, ≥ C) the centres column by column
    factors: Any,  # IN  (C,)
    score_norms: Any,  # IN  (C,) ‖m‖²
    longest: float,  # IN  the largest ‖m‖
    slack: float,  # IN  error of the norms
    unit: float,  # IN
    tiny: float,  # IN
    group_of: Any,  # IN  as in `label_by_products`, like all that follows
    drift: Any,  # IN
    group_drift: Any,  # IN
    upper: Any,  # OUT
    lower: Any,  # OUT
    labels: Any,  # IN/OUT (b,)
    own: Any,  # OUT (b,) x · m with the new centre of rows that change their cluster, or empty: see `keep_products`
    former: Any,  # OUT (b,) the same with the former one
    all_lengths: Any,  # OUT (b,) ‖x‖
    scores: Scratch,  # scratch (B, ≥ C)
    chosen: Scratch,  # scratch (2, B) int64
    floats: Scratch,  # scratch (3, B) float64
    found: Scratch,  # scratch (2, B) int32
    least: Scratch,  # scratch (groups,) float64
) -> None:
    """The same for sparse rows beside centres that are kept column by column. O(nnz · C)."""
    n, B = positions.shape[0], scores.shape[0]
    begin = B * take_number(queue)
    while begin < n:
        m = min(B, n - begin)
        numbers, at, lengths, best = chosen[0, :m], chosen[1, :m], floats[0, :m], floats[1, :m]
        stretches, new, old = floats[2, : m if scales.shape[0] else 0], found[0, :m], found[1, :m]
        name_block(begin, m, positions, batch, places, scales, numbers, at, stretches)
        column_scores(rows, at, columns, factors, scores[:m], lengths)
        closest_by_scores(rows, at, lengths, stretches, scores, score_norms, slack, columns, factors, best, new)
        for k in range(m):
            old[k] = labels[positions[begin + k]]
            labels[positions[begin + k]] = new[k]
        if own.shape[0]:
            keep_products(scores, lengths, new, old, positions[begin : begin + m], own, former, all_lengths)
        if group_drift.shape[0]:
            bound_by_scores(
                rows, at, numbers, lengths, stretches, scores, score_norms, longest, slack, group_of, drift,
                group_drift, 0, unit, tiny, best, new, upper, lower, least,
            )  # fmt: skip
        begin = B * take_number(queue)


@kernel
def bound_by_scores(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    chosen: Any,  # IN  (n,) rows of the shard
    lengths: Any,  # IN  (n,) ‖x − offset‖
    scales: Any,  # IN  (n,) or empty
    scores: Any,  # IN  (n, ≥ C) −2 x·(m − offset)
    score_norms: Any,  # IN  (C,) ‖m − offset‖²
    longest: float,  # IN  the largest ‖m − offset‖
    slack: float,  # IN  error of the norms
    group_of: Any,  # IN  (C,)
    drift: Any,  # IN  (C,)
    group_drift: Any,  # IN  (groups,)
    n_columns: int,  # IN
    unit: float,  # IN  unit round-off of the scores
    tiny: float,  # IN  their smallest normal number
    best: Any,  # IN  (n,) no less than the squared distance to the own centre
    labels: Any,  # IN  (n,)
    upper: Any,  # OUT (N,)
    lower: Any,  # OUT (N, groups)
    least: Any,  # scratch (groups,)
) -> None:
    """Lines 22 and 26 of Alg. 5: bounds as tight as the scores allow. O(n · C)."""
    n_groups, C = group_drift.shape[0], group_of.shape[0]
    for i in range(chosen.shape[0]):
        r = chosen[i]
        scale = scales[i] if scales.shape[0] else 1.0
        length = scale * lengths[i]
        error = slack + rounding(rows, at[i], length + longest, scale, n_columns, unit, tiny)
        useless = scores_may_overflow(length + longest, scale, tiny)
        shift = length * length - error
        if n_groups == C:  # Elkan's: every centre is its own group
            for c in range(C):
                squared = score_norms[c] + scale * scores[i, c] + shift
                lower[r, c] = stored_lower(0.0 if useless else np.sqrt(max(squared, 0.0)), group_drift[c])
            lower[r, labels[i]] = LARGEST
        else:
            for g in range(n_groups):
                least[g] = np.inf
            for c in range(C):
                if c != labels[i]:
                    squared = score_norms[c] + scale * scores[i, c] + shift
                    least[group_of[c]] = min(least[group_of[c]], squared)
            for g in range(n_groups):
                lower[r, g] = stored_lower(0.0 if useless else np.sqrt(max(least[g], 0.0)), group_drift[g])
        reach = 2.0 * length + np.sqrt(best[i])
        own = np.sqrt(best[i] + slack + rounding(rows, at[i], reach, scale, n_columns, unit, tiny))
        upper[r] = stored_upper(own, drift[labels[i]])
