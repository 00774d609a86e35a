"""Per-row state in runs of rows: sums and counts, on all threads."""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, kernel, take_number


@kernel
def weighted_sum(
    d2: Any,  # IN  (n,)
    weights: Any,  # IN  (n,) or empty
) -> float:
    """Σ w d². O(n)."""
    total = 0.0
    for i in range(d2.shape[0]):
        total += d2[i] * (weights[i] if weights.shape[0] else 1.0)
    return total


@kernel
def settle_runs(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    former: Any,  # IN  (N,), or empty: nothing is compared
    labels: Any,  # IN  (N,), or as empty
    d2: Any,  # IN  (N,), or empty: nothing is summed
    weights: Any,  # IN  (N,) or empty
    sums: Any,  # OUT (runs,) Σ w d²
    changes: Any,  # OUT (runs,) rows whose labels differ
) -> None:
    """O(N)."""
    r = take_number(queue)
    while r < sums.shape[0]:
        begin, end = r * length, min((r + 1) * length, max(d2.shape[0], former.shape[0]))
        sums[r] = weighted_sum(d2[begin:end], weights[begin:end])
        n = 0
        for i in range(begin, min(end, former.shape[0])):
            n += former[i] != labels[i]
        changes[r] = n
        r = take_number(queue)


@kernel
def sum_by_key(
    queue: Queue,  # IN/OUT spans of rows
    keys: Any,  # IN  (N,)
    d2: Any,  # IN  (N,), or empty: all ones
    weights: Any,  # IN  (N,) or empty
    sums: Any,  # OUT (spans, K) Σ w d² of the rows of each key
) -> None:
    """A span of the rows at a time. O(N + spans · K)."""
    n, n_spans = keys.shape[0], sums.shape[0]
    s = take_number(queue)
    while s < n_spans:
        sums[s] = 0.0
        for i in range(n * s // n_spans, n * (s + 1) // n_spans):
            share = d2[i] if d2.shape[0] else 1.0
            sums[s, keys[i]] += share * weights[i] if weights.shape[0] else share
        s = take_number(queue)


@kernel
def locate_in_runs(
    queue: Queue,  # IN/OUT runs that masses fall into
    length: int,  # IN  rows of a run
    runs: Any,  # IN  (R,)
    firsts: Any,  # IN  (R + 1,) where the masses of each run begin
    masses: Any,  # IN  (m,) ascending, less the sum of all rows before their run
    d2: Any,  # IN  (N,), or empty: all ones
    weights: Any,  # IN  (N,) or empty
    found: Any,  # OUT (m,) the first row at which the sum of w d² exceeds the mass, or else the last that adds to it
) -> None:
    """O(R · length)."""
    n = max(d2.shape[0], weights.shape[0])
    r = take_number(queue)
    while r < runs.shape[0]:
        k, total, last = firsts[r], 0.0, runs[r] * length
        for i in range(runs[r] * length, min((runs[r] + 1) * length, n)):
            share = d2[i] if d2.shape[0] else 1.0
            raised = total + (share * weights[i] if weights.shape[0] else share)
            last = i if raised > total else last
            total = raised
            while k < firsts[r + 1] and masses[k] < total:
                found[k] = i
                k += 1
        for rest in range(k, firsts[r + 1]):
            found[rest] = last
        r = take_number(queue)
