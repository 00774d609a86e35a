"""Pictures: panels, files, and the time–quality curve: one panel per problem, seconds against the error above E*."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from globular.io import write_whole
from globular.plotting.history import BLUE, HUES, INK, pyplot, tidy

from .adapters import title
from .results import Row, best_runs, excess_percent, yardstick

_MARKERS = "s^vD<>pPXhd*"
_PEER_HUES = HUES[1:]  # the first is too near to our blue
_QUALITIES = ("globular-fast", "globular-balanced", "globular-best")
_TICKS = (-30, -10, -3, -1, 0, 1, 3, 10, 30, 100, 300)


def new_panels(n: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure with n panels, three in a row, each of so many inches."""
    n_columns = min(3, n)
    n_rows = -(-n // n_columns)
    figure, panels = pyplot().subplots(
        n_rows, n_columns, figsize=(width * n_columns, height * n_rows), layout="constrained", squeeze=False
    )
    for panel in panels.ravel()[n:]:
        panel.set_visible(False)
    return figure, list(panels.ravel()[:n])


def save(figure: Any, path: Path, source: str) -> None:
    """Write a PNG file whole and close the figure; `source`, where the data come from, is kept in its metadata."""
    write_whole(path, lambda file: figure.savefig(file, format="png", dpi=120, metadata={"Source": source}))
    pyplot().close(figure)


def plot_curve(rows: Sequence[Row], path: Path, *, source: str = "") -> None:
    """Draw finished runs; the settings of `quality`, and numbers of iterations of one adapter, are joined by a line."""
    good = [row for row in best_runs(rows) if row.status == "ok"]
    problems = list(dict.fromkeys(row.problem for row in good))
    styles = _styles(good)
    figure, panels = new_panels(len(problems), 3.9, 2.9)
    width, height = figure.get_size_inches()
    figure.set_size_inches(max(width, 8.0), height + 0.9)  # room for the legend
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    for panel, problem in zip(panels, problems, strict=True):
        _draw_panel(panel, [row for row in good if row.problem == problem], styles)
    for first in panels[::3]:
        first.set_ylabel("error against E*")
    handles: dict[str, Any] = {}
    for panel in panels:
        lines, names = panel.get_legend_handles_labels()
        handles |= dict(zip(names, lines, strict=True))
    in_order = [name for name in styles if name in handles]
    figure.legend(
        [handles[name] for name in in_order], in_order, loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    save(figure, path, source)


def _series(row: Row) -> str:
    """The name of the line a run belongs to."""
    return "globular: fast, balanced (default), best" if row.adapter in _QUALITIES else title(row.adapter)


def _styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Colour and marker of every line, the same in all panels: blue is ours."""
    styles: dict[str, dict[str, Any]] = {}
    for row in rows:
        index = sum(style["color"] != BLUE for style in styles.values())
        if row.ours:
            marker = "o" if row.adapter in _QUALITIES else _MARKERS[len(styles) % len(_MARKERS)]
            look = {"color": BLUE, "marker": marker, "zorder": 3}
        else:
            look = {"color": _PEER_HUES[index % len(_PEER_HUES)], "marker": _MARKERS[index % len(_MARKERS)]}
        styles.setdefault(_series(row), look)
    return styles


def _draw_panel(panel: Any, rows: list[Row], styles: dict[str, dict[str, Any]]) -> None:
    reference = yardstick(rows)
    tidy(panel)
    panel.axhline(0.0, color=INK, linewidth=0.8)
    panel.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
    for name, style in styles.items():
        points = sorted((row.seconds, excess_percent(row, reference)) for row in rows if _series(row) == name)
        if points:
            seconds, excess = zip(*points, strict=True)
            panel.plot(seconds, excess, linewidth=1.3, markersize=7, markeredgecolor="white", label=name, **style)
    first = rows[0]
    panel.set_title(f"{first.problem}  ({first.n_samples:,} × {first.n_features})", fontsize=10, color=INK)
    panel.set_xlabel("seconds", fontsize=9)
    _scale(panel, "E*" if any(row.exact for row in rows) else "best")


def _scale(panel: Any, zero: str) -> None:
    """Seconds by powers; errors too, but linear around zero, so that results below E* have a place."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    panel.margins(0.1)
    panel.set_xscale("log")
    panel.set_yscale("symlog", linthresh=1.0, linscale=0.6)
    panel.autoscale()
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.yaxis.set_major_locator(FixedLocator(_TICKS))
    percent = FuncFormatter(lambda value, _: f"{value:+g} %".replace("-", "−") if value else zero)
    panel.yaxis.set_major_formatter(percent)
    panel.yaxis.set_minor_locator(NullLocator())
    panel.tick_params(labelsize=9)
