"""The base class of callbacks, and the progress bar with its estimate of the remaining time.

A fit ends at `max_iter`, `max_time` or convergence, whichever comes first, so the estimate is the smallest of the
three. Convergence is extrapolated by a straight line through the logarithms of the last relative changes: it tells
the iteration in which they fall below `tol`.
"""

from __future__ import annotations

import atexit
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from globular.model.history import ITERATIONS, Record

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

_TREND_LENGTH = 8
_SECONDS_BETWEEN_LINES = 10.0


@dataclass(slots=True)
class Forecast:
    """Estimate of the remaining iterations and seconds of a fit, from its records."""

    max_iter: int | None = None
    max_time: float | None = None
    tol: float | None = None
    n_done: int = 0
    relative_change: float | None = None
    _last: Record | None = None
    _changes: deque[float] = field(default_factory=lambda: deque(maxlen=_TREND_LENGTH))
    _first_seconds: float = 0.0
    _n_alike: int = 0
    """Number of steps of the present stage."""
    _pace: float | None = None

    def update(self, record: Record) -> None:
        """Add the record of the last iteration."""
        last = self._last
        # a new stage, or a new start (n_init)
        if last is None or record.stage != last.stage or 0 < record.iteration <= last.iteration:
            self._changes.clear()
            self.relative_change = None
            self._first_seconds = record.seconds
            self._n_alike, self._pace = 0, None
        else:
            scale = max(abs(last.objective), np.finfo(float).tiny)
            self.relative_change = abs(last.objective - record.objective) / scale
            self._changes.append(self.relative_change)
        self._n_alike += 1
        self.n_done = record.iteration
        self._last = record
        if self._n_alike > 1:  # the first step of a stage also prepares it: it is no measure of the others
            self._pace = (record.seconds - self._first_seconds) / (self._n_alike - 1)

    @property
    def iterations_left(self) -> float | None:
        """Remaining iterations by `max_iter` or by the trend, the smaller; None if unknown."""
        if not self.n_done:  # still preparing: the pace says nothing about iterations
            return None
        most = None if self.max_iter is None else float(max(self.max_iter - self.n_done, 0))
        return _smallest(most, self._iterations_to_tolerance())

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds at the present pace, at most until `max_time`; None if unknown."""
        if self._last is None:
            return None
        left = self.iterations_left
        at_pace = None if left is None or self._pace is None else left * self._pace
        return _smallest(at_pace, None if self.max_time is None else max(self.max_time - self._last.wall_seconds, 0.0))

    @property
    def share_done(self) -> float:
        """Share of the fit that is done, between 0 and 1; 0 while unknown."""
        left = self.seconds_left
        if left is None or self._last is None or self._last.seconds + left <= 0:
            return 0.0
        return self._last.seconds / (self._last.seconds + left)

    def _iterations_to_tolerance(self) -> float | None:
        if not self.tol or len(self._changes) < 3:
            return None
        changes = np.maximum(np.array(self._changes), np.finfo(float).tiny)
        if changes[-1] <= self.tol:  # and still it runs: this algorithm means something else by `tol`
            return None
        slope, _ = np.polyfit(np.arange(changes.size), np.log(changes), 1)
        if slope >= 0:
            return None
        return float((math.log(self.tol) - math.log(changes[-1])) / slope)


def _smallest(*estimates: float | None) -> float | None:
    return min((estimate for estimate in estimates if estimate is not None), default=None)


def describe(record: Record, forecast: Forecast, n_rows: int) -> str:
    """One line about an iteration: objective, change, moved rows, time."""
    parts = [f"objective {record.objective:.6g}"]
    if forecast.relative_change is not None:
        parts.append(f"change {forecast.relative_change:.0e}")
    if record.labels_all_rows and record.n_changed is not None and n_rows > 0:
        parts.append(f"moved {record.n_changed / n_rows:.1%}")
    return "  ".join(parts)


def format_seconds(seconds: float | None) -> str:
    """Format a duration: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Callback:
    """Base class of callbacks; its methods do nothing.

    Examples
    --------
    >>> from globular.callbacks import Callback
    >>> class Print(Callback):
    ...     def on_iteration(self, estimator, record):
    ...         print(record.iteration, record.objective)
    """

    def on_fit_start(self, estimator: Any, n_rows: int, max_iter: int | None, max_time: float | None) -> None:
        """Called once before the first iteration."""

    def on_iteration(self, estimator: Any, record: Record) -> bool | None:
        """Called after each iteration; returning ``True`` ends the fit."""
        return None

    def on_fit_end(self, estimator: Any, reason: str) -> None:
        """Called once after the last iteration, also when the fit was interrupted."""


class Progress(Callback):
    """A progress bar with objective, relative change, share of rows that moved, elapsed and remaining time.

    In a terminal it updates in place and leaves one line at the end; elsewhere it prints a line every ten seconds. The
    remaining time is estimated from `max_iter`, `max_time` and the trend of the relative change.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to draw; standard error by default.

    Examples
    --------
    >>> import globular
    >>> from globular.callbacks import Progress
    >>> model = globular.KMeans(n_clusters=100, callbacks=[Progress()])
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console
        self._forecast: Forecast | None = None
        """Forecast of the fit that is shown; None if there is none."""
        self._bar: RichProgress | None = None

    def on_fit_start(self, estimator: Any, n_rows: int, max_iter: int | None, max_time: float | None) -> None:
        """Open the display, after closing one that a failed fit left open."""
        from rich.console import Console

        self.close()
        tol = getattr(estimator, "tol", None)
        tol = float(tol) if isinstance(tol, int | float) and tol > 0 else None
        self._forecast = Forecast(max_iter=max_iter, max_time=max_time, tol=tol)
        self._out = self.console or Console(stderr=True)
        self._title, self._n_rows = type(estimator).__name__, n_rows
        self._last_line, self._start = -math.inf, time.perf_counter()
        self._last_record: Record | None = None
        if self._out.is_terminal:
            self._open()

    def on_iteration(self, estimator: Any, record: Record) -> None:
        """Update the display."""
        if self._forecast is None:
            return
        try:
            self._show(record, self._forecast)
        except BaseException:
            self.close()
            raise

    def on_fit_end(self, estimator: Any, reason: str) -> None:
        """Replace the bar by one line."""
        if self._forecast is not None:
            record, elapsed = self._last_record, format_seconds(time.perf_counter() - self._start)
            line = f"{self._title}: {reason}, {elapsed}"
            if record is not None:
                line = f"{self._line(record, self._forecast)}  {elapsed}, {reason}"
            self.close()
            self._print(line)

    def close(self) -> None:
        """Release the terminal after a fit that ended without :meth:`on_fit_end`; otherwise harmless."""
        self._forecast, bar, self._bar = None, self._bar, None
        if bar is not None:
            bar.stop()
            atexit.unregister(self.close)

    def __deepcopy__(self, memo: dict[int, Any]) -> Progress:
        # sklearn.base.clone copies parameters deeply; a console and a running bar cannot be copied
        return Progress(console=self.console)

    def __reduce__(self) -> tuple[type[Progress], tuple[()]]:
        return Progress, ()

    def _open(self) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        spare = self._out.width - 90  # a narrow terminal has room for the numbers only
        self._bar = Bar(
            *((SpinnerColumn(), BarColumn(bar_width=min(30, spare))) if spare >= 5 else ()),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[left]}", markup=False, table_column=Column(no_wrap=True, min_width=10)),
            console=self._out,
            transient=True,
        )
        self._task = self._bar.add_task(self._title, total=1.0, detail="starting", left="")
        atexit.register(self.close)  # a fit that dies must not leave the cursor hidden
        self._bar.start()

    def _show(self, record: Record, forecast: Forecast) -> None:
        forecast.update(record)
        self._last_record = record
        left = "" if forecast.seconds_left is None else f"~{format_seconds(forecast.seconds_left)} left"
        if self._bar is not None:
            self._bar.update(
                self._task,
                completed=forecast.share_done,
                description=self._heading(record, forecast),
                detail=describe(record, forecast, self._n_rows),
                left=left,
            )
        elif time.perf_counter() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.perf_counter()
            self._print(f"{self._line(record, forecast)}  {format_seconds(record.wall_seconds)} {left}".rstrip())

    def _heading(self, record: Record, forecast: Forecast) -> str:
        stage = "" if record.stage == ITERATIONS else f" {record.stage}"
        if not record.iteration:
            return f"{self._title}{stage}"
        of = "" if forecast.max_iter is None else f"/{forecast.max_iter}"
        return f"{self._title}{stage} {record.iteration}{of}"

    def _line(self, record: Record, forecast: Forecast) -> str:
        return f"{self._heading(record, forecast)}  {describe(record, forecast, self._n_rows)}"

    def _print(self, text: str) -> None:
        self._out.print(text, markup=False, highlight=False, soft_wrap=True)
