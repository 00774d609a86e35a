"""``globular report``: one HTML page about a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from globular.cli.inputs import load_model, open_for, with_standard_input
from globular.cli.options import ColumnsOption, ForceOption, ModelArgument, QuietOption, RowsOption, ThreadsOption
from globular.cli.shared import bar_of_rows, check_output, print_written


def report(
    model_folder: ModelArgument,
    page: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    data: RowsOption = None,
    columns: ColumnsOption = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Headline of the page.")] = None,
    images: Annotated[
        str, typer.Option("--images", metavar="HxW", help="Rows as images: auto, none, or the size as 28x28.")
    ] = "auto",
    threads: ThreadsOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write one self-contained HTML page about a model: convergence, sizes, a map of the clusters, their rows.

    --data are rows to count and to show, usually those of the fit.
    """
    from globular.report import write_report

    check_output(page, (".html", ".htm"), "a report", data or (), force=force)
    model = load_model(model_folder, threads)
    source = open_for(model, with_standard_input(data), columns) if data else None
    with bar_of_rows("reading rows", shown=not quiet and source is not None) as bar:
        task = bar.add_task("rows", total=0 if source is None else source.n_rows)

        def show(done: int) -> None:
            bar.update(task, completed=done)

        write_report(model, page, data=source, title=title, images=images, progress=show)
    if not quiet:
        print_written(page, "; open it in a browser")
