"""The time–quality curve: one panel per problem, seconds against the error above E*."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from globular.benchmarking.results import Row
from globular.benchmarking.table import best_runs, excess_percent, yardstick
from globular.errors import MissingExtraError

_MARKERS = "os^vD<>pPX*hd"


def plot_curve(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG file; runs of one adapter with several numbers of iterations are joined by a line."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing the time–quality curve") from error
    good = [row for row in best_runs(rows) if row.status == "ok"]
    if not good:
        raise ValueError("rows has no finished run to draw; see the reasons in the table")
    problems = list(dict.fromkeys(row.problem for row in good))
    adapters = list(dict.fromkeys(row.adapter for row in good))
    n_columns = min(3, len(problems))
    n_rows = -(-len(problems) // n_columns)
    figure = Figure(figsize=(5.0 * n_columns + 2.4, 3.8 * n_rows), layout="constrained")
    panels = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
    for panel, problem in zip(panels, problems, strict=False):
        _draw_panel(panel, [row for row in good if row.problem == problem], adapters)
    for panel in panels[len(problems) :]:
        panel.set_visible(False)
    handles: dict[str, Any] = {}
    for panel in panels[: len(problems)]:
        lines, names = panel.get_legend_handles_labels()
        handles |= dict(zip(names, lines, strict=True))
    figure.legend(list(handles.values()), list(handles), loc="outside right upper", prop={"size": "small"})
    temporary = path.with_name(path.name + ".part")
    figure.savefig(temporary, format="png", dpi=130)
    temporary.replace(path)


def _draw_panel(panel: Any, rows: list[Row], adapters: list[str]) -> None:
    reference = yardstick(rows)
    for index, adapter in enumerate(adapters):
        points = sorted((row.seconds, excess_percent(row, reference)) for row in rows if row.adapter == adapter)
        if points:
            ours = any(row.ours for row in rows if row.adapter == adapter)
            panel.plot(
                [seconds for seconds, _ in points],
                [excess for _, excess in points],
                marker=_MARKERS[index % len(_MARKERS)],
                color=f"C{index % 10}",
                linewidth=1.2,
                markersize=10 if ours else 6,
                label=adapter,
            )
    first = rows[0]
    panel.axhline(1.0, color="0.6", linestyle=":", linewidth=1)
    panel.set_xscale("log")
    # Linear around zero, so that results below E* have a place too.
    panel.set_yscale("symlog", linthresh=5.0)
    panel.set_title(f"{first.problem}  ({first.n_samples:,} × {first.n_features})", fontsize="medium")
    panel.set_xlabel("seconds")
    panel.set_ylabel("error above E* [%]")
    panel.grid(alpha=0.25)
