"""Long tables in pieces: each run of each algorithm is measured for itself, several at once if there are cores.

What came out is handed over as soon as it is there and kept at once, so that a table that was cut off can be continued,
on another machine too. `GLOBULAR_NUM_THREADS` says how many threads each of the processes has.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from globular.errors import DataError

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Cell(Generic[Result]):
    """One piece of a table: a call that another process can make, too."""

    name: tuple[str, ...]
    """Where it belongs."""
    measure: Callable[..., Result]
    arguments: tuple[Any, ...]

    def run(self) -> Result:
        """Measure it here."""
        return self.measure(*self.arguments)


def measured(
    cells: Sequence[Cell[Result]], n_jobs: int, say: Callable[[str], None]
) -> Iterator[tuple[Cell[Result], Result]]:
    """The cells with what came out, as they end; begun in the order given, `n_jobs` at once.

    A cell whose data are not there is left out, which is said.
    """
    if n_jobs == 1 or len(cells) <= 1:
        for cell in cells:
            try:
                yield cell, cell.run()
            except DataError as error:
                say(f"{', '.join(cell.name)}: {error}")
        return
    spawning = multiprocessing.get_context("spawn")  # a fork would take locked threads along
    with ProcessPoolExecutor(min(n_jobs, len(cells)), mp_context=spawning) as pool:
        waiting = {pool.submit(cell.run): cell for cell in cells}
        for ended in as_completed(waiting):
            cell = waiting[ended]
            try:
                yield cell, ended.result()
            except DataError as error:
                say(f"{', '.join(cell.name)}: {error}")


def merged(kept: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What was kept in two places: all of both, lists joined; where both have a number it is the first."""
    found = dict(kept)
    for key, value in other.items():
        if key not in found:
            found[key] = value
        elif isinstance(value, Mapping):
            found[key] = merged(found[key], value)
        elif isinstance(value, list):
            found[key] = sorted({*found[key], *value})
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of experiments that are measured cell by cell."""
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at once, each in a process of its own")
    parser.add_argument("--keep-only", action="store_true", help="keep what is measured and write no report")
    parser.add_argument("--report-only", action="store_true", help="measure nothing: write the report of what is kept")
