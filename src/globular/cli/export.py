"""``globular export`` and ``globular report``: a model for other programs, and one HTML page about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from globular.cli import options
from globular.cli.inputs import load_model, open_for, with_standard_input
from globular.cli.shared import bar_of_rows, check_output, print_written


def export(
    model_folder: options.ModelArgument,
    target: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Its name says what: .onnx, .faiss, or the centres as .npy, .csv, .parquet.",
            show_default=False,
        ),
    ],
    data: options.RowsOption = None,
    columns: options.ColumnsOption = None,
    probes: Annotated[
        int, typer.Option("--probes", metavar="N", min=1, help="For .faiss: lists that a search looks at.")
    ] = 1,
    coarse: Annotated[
        str, typer.Option("--coarse", help="For .faiss: flat, or hnsw to find lists by a graph of the centres.")
    ] = "flat",
    code_size: Annotated[
        int | None, typer.Option("--code-size", metavar="BYTES", help="For .faiss: rows as product codes (IVF-PQ).")
    ] = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Write a model as an ONNX file, as a faiss index, or its centres as a table."""
    from globular.export import to_faiss_ivf, to_npy, to_onnx, write_faiss
    from globular.export.faiss import FAISS_SUFFIXES

    suffixes = (*options.CENTER_SUFFIXES, ".onnx", *FAISS_SUFFIXES)
    check_output(target, suffixes, "an exported model", data or (), force=force)
    suffix = target.suffix.lower()
    if data and suffix not in FAISS_SUFFIXES:
        raise ValueError(f"--data goes into a faiss index only, not into {suffix}; leave it out")
    model = load_model(model_folder)
    if suffix == ".onnx":
        to_onnx(model, target)
    elif suffix in FAISS_SUFFIXES:
        rows = open_for(model, with_standard_input(data), columns) if data else None
        quantizer: Any = coarse
        write_faiss(to_faiss_ivf(model, rows, n_probes=probes, coarse=quantizer, code_size=code_size), target)
    else:
        to_npy(model, target)
    if not quiet:
        print_written(target)


def report(
    model_folder: options.ModelArgument,
    page: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    data: options.RowsOption = None,
    columns: options.ColumnsOption = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Headline of the page.")] = None,
    images: Annotated[
        str, typer.Option("--images", metavar="HxW", help="Rows as images: auto, none, or the size as 28x28.")
    ] = "auto",
    threads: options.ThreadsOption = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
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
