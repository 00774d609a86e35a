"""The progress display: how far a fit is, how long it will still take, and how to say it.

A fit ends at whichever comes first of `max_iter`, `max_time` and convergence, so the estimate is the smallest
of the three. Convergence is foreseen by a straight line through the logarithm of the last relative changes:
it says in which iteration they will fall below `tol`.
"""

from __future__ import annotations

import atexit
import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from globular.model.history import ITERATIONS, Record

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_TREND_LENGTH = 8
_SECONDS_BETWEEN_LINES = 10.0


@dataclass(slots=True)
class Forecast:
    """Follows a fit by its records and estimates what is left of it."""

    max_iter: int | None = None
    max_time: float | None = None
    tol: float | None = None
    n_done: int = 0
    relative_change: float | None = None
    _last: Record | None = None
    _changes: deque[float] = field(default_factory=lambda: deque(maxlen=_TREND_LENGTH))
    _first_seconds: float = 0.0
    _n_alike: int = 0
    """Steps of the present stage."""
    _pace: float | None = None

    def update(self, record: Record) -> None:
        """Take in the record of the iteration that has just ended."""
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
        """Iterations still to come by `max_iter` or by the trend, the smaller; None when neither says."""
        if not self.n_done:  # still preparing: the pace says nothing about iterations
            return None
        most = None if self.max_iter is None else float(max(self.max_iter - self.n_done, 0))
        return _smallest(most, self._iterations_to_tolerance())

    @property
    def seconds_left(self) -> float | None:
        """Time still to go: the iterations left at the present pace, and never beyond `max_time`."""
        if self._last is None:
            return None
        left = self.iterations_left
        at_pace = None if left is None or self._pace is None else left * self._pace
        return _smallest(at_pace, None if self.max_time is None else max(self.max_time - self._last.wall_seconds, 0.0))

    @property
    def share_done(self) -> float:
        """Between 0 and 1, for the bar; 0 while nothing is known."""
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
    """Say in one line what the iteration has brought."""
    parts = [f"objective {record.objective:.6g}"]
    if forecast.relative_change is not None:
        parts.append(f"change {forecast.relative_change:.0e}")
    if record.labels_all_rows and record.n_changed is not None and n_rows > 0:
        parts.append(f"moved {record.n_changed / n_rows:.1%}")
    return "  ".join(parts)


def format_seconds(seconds: float | None) -> str:
    """Write a duration as people do: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min."""
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


class Display:
    """A bar that renews itself in a terminal; elsewhere (a log file) a plain line now and then."""

    def __init__(self, console: Console, title: str, n_rows: int, forecast: Forecast) -> None:
        self._console = console
        self._title = title
        self._n_rows = n_rows
        self._forecast = forecast
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._last_line = -math.inf
        self._last_record: Record | None = None
        self._start = time.perf_counter()
        if console.is_terminal:
            self._open()

    def _open(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        spare = self._console.width - 90  # a narrow terminal has room for the numbers only
        self._bar = Progress(
            *((SpinnerColumn(), BarColumn(bar_width=min(30, spare))) if spare >= 5 else ()),
            TextColumn("{task.description}", markup=False),
            TextColumn("{task.fields[detail]}", markup=False),
            TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
            TextColumn("{task.fields[left]}", markup=False, table_column=Column(no_wrap=True, min_width=10)),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(self._title, total=1.0, detail="starting", left="")
        atexit.register(self.close)  # a fit that dies must not leave the cursor hidden
        self._bar.start()

    def show(self, record: Record) -> None:
        """Show the state after an iteration."""
        self._forecast.update(record)
        self._last_record = record
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                completed=self._forecast.share_done,
                description=self._heading(record),
                detail=describe(record, self._forecast, self._n_rows),
                left=self._remaining(),
            )
        elif time.perf_counter() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.perf_counter()
            self._print(f"{self._line(record)}  {format_seconds(record.wall_seconds)} {self._remaining()}".rstrip())

    def finish(self, reason: str) -> None:
        """Take the bar away and leave one line that says how it ended."""
        self.close()
        elapsed = format_seconds(time.perf_counter() - self._start)
        if self._last_record is None:
            self._print(f"{self._title}: {reason}, {elapsed}")
        else:
            self._print(f"{self._line(self._last_record)}  {elapsed}, {reason}")

    def close(self) -> None:
        """Give the terminal back; harmless when it has been given back already."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()
            atexit.unregister(self.close)

    def _heading(self, record: Record) -> str:
        stage = "" if record.stage == ITERATIONS else f" {record.stage}"
        if not record.iteration:
            return f"{self._title}{stage}"
        of = "" if self._forecast.max_iter is None else f"/{self._forecast.max_iter}"
        return f"{self._title}{stage} {record.iteration}{of}"

    def _line(self, record: Record) -> str:
        return f"{self._heading(record)}  {describe(record, self._forecast, self._n_rows)}"

    def _remaining(self) -> str:
        left = self._forecast.seconds_left
        return "" if left is None else f"~{format_seconds(left)} left"

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
