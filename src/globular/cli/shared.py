"""Shared by the commands: output, protection of existing files, warnings."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

FAILED = 2
EXIT_INTERRUPTED = 130


def say(message: str) -> None:
    """Write one line to standard error under the command's name."""
    print(f"globular: {printable(message)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Text with control characters written as escapes, so that a terminal does not obey them, such as ``\\x1b``."""
    return re.sub(r"[^\n -~]", lambda sign: sign[0] if sign[0].isprintable() else repr(sign[0])[1:-1], text)


def as_options(message: str) -> str:
    """Rewrite `columns=['a', 'b']` in a message of the library as ``--columns a,b``."""
    message = re.sub(r"globular\.io\.open_source\(path, (columns=\[[^\]]*\])\)", r"\1", message)
    message = message.replace("columns=[...]", "--columns A,B,…")
    return re.sub(r"columns=\[('[^\]]*)\]", lambda match: f"--columns {_joined(match[1])}", message)


def _joined(names: str) -> str:
    return shlex.quote(",".join(name.strip(" '\"") for name in names.split(",")))


def output() -> Console:
    """Console on standard output that prints ``[red]`` and ``:name:`` literally."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_next(console: Console, *command: str | Path, word: str = "Next") -> None:
    """Print the command to run next, ready to be copied."""
    text = shlex.join(str(part) for part in command)
    console.print(f"{word + ':':<5} {printable(text)}", soft_wrap=True)


def print_table(console: Console, title: str, rows: Sequence[tuple[str, Any]]) -> None:
    """Print names and values in two columns; rows without a value are left out."""
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value is not None:
            table.add_row(printable(name), printable(str(value)))
    # as a title of the table it would be broken to its width
    console.print(printable(title), style="bold", soft_wrap=True)
    console.print(table)


def print_columns(
    console: Console, title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], bold: int | None = None
) -> None:
    """Print a table with headings, one of its rows in bold."""
    from rich.table import Table

    table = Table(title=printable(title), title_justify="left", title_style="bold", box=None, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for number, row in enumerate(rows):
        table.add_row(*row, style="bold" if number == bold else "")
    console.print(table)


@contextmanager
def messages_as_lines() -> Iterator[None]:
    """Print warnings for users as lines of the command and hide others; ``python -W`` still applies.

    The effect of ``--quiet`` on the library's log is undone at the end, since a process may run several commands.
    """

    def show(message: Warning | str, *where: Any) -> None:
        say(f"warning: {as_options(' '.join(str(message).split()))}")

    logger = logging.getLogger("globular")
    before = logger.level
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show  # type: ignore[assignment]
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
                warnings.simplefilter("default", UserWarning)
            yield
    finally:
        logger.setLevel(before)


def bar_of_rows(name: str, *, shown: bool) -> Progress:
    """Progress bar over rows, removed at its end; in a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))


def rows_per_block(n_columns: int) -> int:
    """Number of rows in a block of a few dozen megabytes."""
    return max(1024, (1 << 22) // max(n_columns, 1))


def check_output(
    path: Path, suffixes: tuple[str, ...], what: str, data: Sequence[str], weights: str | None = None, *, force: bool
) -> None:
    """Refuse a file that cannot be written, that is an input of the command, or that exists already without `force`."""
    from globular.io import check_file

    target = check_file(path, suffixes, what)
    refuse_input(target, [*data, weights] if weights is not None and Path(weights).is_file() else data)
    if target.exists() and not force:
        raise ValueError(f"{path}: exists already; replace it with --force, or choose another name")


def refuse_input(target: Path, inputs: Sequence[str]) -> None:
    """Refuse to write to an input file or folder, also through links."""
    from globular.data.formats import expanded, parts_of, split_dataset

    absolute = expanded(target).absolute()
    written = [place.stat() for place in (absolute, *absolute.parents) if place.exists()]
    for name in inputs:
        shown = "/dev/stdin" if name == "-" else name
        for place in (split_dataset(shown)[0], *parts_of(shown)):
            if place.exists() and any(os.path.samestat(place.stat(), each) for each in written):
                raise ValueError(f"{target}: the output would change the input {name}; choose another place for it")


def print_written(path: Path, what_next: str = "") -> None:
    """Print the name and size of a written file."""
    from globular.data.formats import expanded
    from globular.io import file_size

    size = file_size(expanded(path).stat().st_size)
    output().print(f"Written: {path} ({size}){what_next}", soft_wrap=True)
