"""Results as a Markdown table per problem.

Errors are given against the yardstick E*: the lowest error of the runs that are exact Lloyd iterations over
all rows, or of all runs where no run is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from globular.benchmarking.results import Row


def best_runs(rows: Iterable[Row]) -> list[Row]:
    """The fastest of the repeats of each setting; a setting without a good run keeps its first row."""
    chosen: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        key = (row.problem, row.adapter, row.n_iter)
        known = chosen.get(key)
        if known is None or _rank(row) < _rank(known):
            chosen[key] = row
    return list(chosen.values())


def yardstick(rows: Iterable[Row]) -> float:
    """E* of one problem; NaN without a good run."""
    good = [row for row in rows if row.status == "ok"]
    exact = [row.error for row in good if row.exact]
    return min(exact or [row.error for row in good], default=math.nan)


def excess_percent(row: Row, reference: float) -> float:
    """How far the error lies above E*, in percent; a perfect fit of both is 0."""
    if reference == 0.0:
        return 0.0 if row.error == 0.0 else math.inf
    return 100.0 * (row.error / reference - 1.0)


def markdown_table(rows: Sequence[Row]) -> str:
    """One section per problem, fastest first, what did not run at the end with its reason."""
    best = best_runs(rows)
    sections = []
    for problem in dict.fromkeys(row.problem for row in best):
        sections.append(_section(problem, [row for row in best if row.problem == problem]))
    return "\n".join([_headline(rows), *sections]) if rows else "No runs.\n"


def _rank(row: Row) -> tuple[bool, float]:
    return (row.status != "ok", row.seconds if row.status == "ok" else math.inf)


def _headline(rows: Sequence[Row]) -> str:
    first = rows[0]
    commit = f", commit {first.commit[:10]}" if first.commit else ""
    return (
        f"{first.machine}; {first.threads} threads; Python {first.python}; "
        f"globular {first.globular_version}{commit}; {first.date}\n"
    )


def _section(problem: str, rows: list[Row]) -> str:
    reference = yardstick(rows)
    good = sorted((row for row in rows if row.status == "ok"), key=lambda row: row.seconds)
    shape = next(((row.n_samples, row.n_features, row.n_clusters) for row in rows if row.n_samples), None)
    size = "" if shape is None else f" ({shape[0]:,} × {shape[1]}, {shape[2]:,} clusters)"
    lines = [f"### {problem}{size}", ""]
    if good:
        lines += [
            f"E* = {reference:.6g} per row",
            "",
            "| adapter | version | settings | iterations | seconds | error vs E* | within 1 % | peak MiB |",
            "|---|---|---|---:|---:|---:|:---:|---:|",
            *(_line(row, reference) for row in good),
            "",
            *_verdict(good, reference),
        ]
    lines += [f"- {row.adapter}: {_reason(row)}" for row in rows if row.status != "ok"]
    return "\n".join(lines) + "\n"


def _line(row: Row, reference: float) -> str:
    excess = excess_percent(row, reference)
    name = f"**{row.adapter}**" if row.ours else row.adapter
    remarks = [row.settings, row.message, "" if row.all_rows else "not all rows"]
    settings = "; ".join(remark for remark in remarks if remark)
    peak = "–" if math.isnan(row.peak_mib) else f"{row.peak_mib:,.0f}"
    mark = "yes" if excess <= 1.0 else ""
    return (
        f"| {name} | {row.version} | {settings} | {row.n_iter} | {row.seconds:.3g} "
        f"| {excess:+.2f} % | {mark} | {peak} |"
    )


def _verdict(good: list[Row], reference: float) -> list[str]:
    """Seconds to come within 1 % of E*: ours against the fastest peer."""
    within = [row for row in good if excess_percent(row, reference) <= 1.0]
    ours = next((row for row in within if row.ours), None)
    peer = next((row for row in within if not row.ours), None)
    if ours is None or peer is None:
        return []
    ratio = peer.seconds / ours.seconds
    return [
        f"Within 1 % of E*: {ours.adapter} {ours.seconds:.3g} s, fastest peer {peer.adapter} "
        f"{peer.seconds:.3g} s ({ratio:.2f}×).",
        "",
    ]


def _reason(row: Row) -> str:
    return f"{row.status} ({row.message})" if row.message else row.status
