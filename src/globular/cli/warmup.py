"""``globular warmup``: compile kernels now, so that the first fits need not."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from globular.cli.shared import output


def warmup(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Estimator to prepare; may be repeated.", show_default="all"),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", metavar="N", min=1, help="Processes at once; all cores by default.")
    ] = None,
) -> None:
    """Compile the kernels of common fits ahead of time."""
    from globular.warming import checked, compile_all, kernels_on_disk

    console, start, (before, _) = output(), time.perf_counter(), kernels_on_disk()
    for done in compile_all(checked(model), jobs):
        console.print(f"{time.perf_counter() - start:6.1f} s  {done}")
    kernels, folder = kernels_on_disk()
    where = folder or "no folder, because none can be written to"
    console.print(f"{kernels - before} kernels compiled; {kernels} in {where}", soft_wrap=True)
