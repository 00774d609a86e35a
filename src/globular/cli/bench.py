"""``globular bench``: measure globular beside other libraries on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from globular.cli.options import ThreadsOption
from globular.cli.shared import output


def bench(
    problems: Annotated[
        list[str] | None, typer.Argument(metavar="PROBLEM", help="Problems by name; a standard choice by default.")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the tables and pictures go.")
    ] = Path("bench-results"),
    quick: Annotated[bool, typer.Option("--quick", help="Small problems, about two minutes.")] = False,
    adapters: Annotated[
        str | None, typer.Option("--adapters", metavar="A,B,…", help="Libraries to compare; all installed by default.")
    ] = None,
    threads: ThreadsOption = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Runs of each; the fastest counts.")
    ] = 1,
    iterations: Annotated[
        str, typer.Option("--iterations", metavar="N,…", help="Iterations; several numbers give a curve.")
    ] = "25",
) -> None:
    """Measure globular beside other libraries: seconds, memory and error."""
    from rich.markdown import Markdown

    from globular.benchmarking.run import run_benchmark
    from globular.threads import default_threads

    console = output()
    results = run_benchmark(
        problems or (),
        [] if adapters is None else [name.strip() for name in adapters.split(",")],
        threads=threads or default_threads(),
        repeats=repeats,
        n_iter=_numbers(iterations),
        quick=quick,
        output=folder,
        progress=lambda line: console.print(line, soft_wrap=True),
    )
    table = (results.parent / "table.md").read_text(encoding="utf-8")
    if console.width >= 120:
        console.print(Markdown(table))
    else:  # drawn in fewer columns, its names would be cut
        console.print(table, soft_wrap=True)
    for path in sorted(results.parent.iterdir()):
        console.print(f"Written: {path}", soft_wrap=True)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--iterations {text!r}: write whole numbers as 25 or 5,10,25") from error
