"""``globular coreset``, ``export`` and ``report``: weighted samples, models for other programs, report pages."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from globular.cli import options
from globular.cli.options import load_model, open_for, open_weighted, split_columns, with_standard_input
from globular.cli.shared import bar_of_rows, check_output, output, print_next, print_written

if TYPE_CHECKING:
    from globular.coresets import Coreset

WEIGHT = "weight"
"""Name of the column of weights in a coreset."""


class ExportKind(StrEnum):
    """Kind of model that will be fitted to a coreset."""

    KMEANS = "k-means"
    MIXTURE = "mixture"


def coreset(
    data: options.DataArgument,
    n_rows: Annotated[int, Option("-n", "--rows", metavar="N", min=1, help="Most rows that are drawn.")],
    target: Annotated[
        Path, Option("--output", "-o", metavar="FILE", help="The rows: .parquet, .csv or .npz.", show_default=False)
    ],
    kind: Annotated[ExportKind, Option(help="What shall be fitted: k-means or mixture.")] = ExportKind.KMEANS,
    weights: options.WeightsOption = None,
    columns: options.ColumnsOption = None,
    metric: Annotated[str, Option(help="euclidean or cosine.")] = "euclidean",
    seed: options.SeedOption = None,
    threads: options.ThreadsOption = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Draw rows that stand for all of DATA, with a column of weights."""
    from globular import coresets
    from globular.data.blocks import column_names
    from globular.errors import DataError
    from globular.io import write_table

    suffixes = (".npz", ".csv", ".parquet")
    check_output(target, suffixes, "a coreset", data, weights, force=force)
    source, sample_weight = open_weighted(with_standard_input(data), split_columns(columns), weights)
    if source.is_sparse:
        raise DataError(f"{source.name}: sparse rows have no columns to write; draw them in Python: globular.coresets")
    names = column_names(source)
    if names is not None and WEIGHT in names:
        raise ValueError(f"{source.name}: has a column {WEIGHT!r} already; say --weights {WEIGHT}, or rename it")
    found = coresets.coreset(
        source, n_rows, kind=kind.value, sample_weight=sample_weight, metric=metric, random_state=seed,  # type: ignore[arg-type]
        n_threads=threads,
    )  # fmt: skip
    write_table(target, [_block(found, names)], len(found))
    if quiet:
        return
    output().print(f"{len(found):,} rows for {source.n_rows:,}, of weight {found.weights.sum():,.6g} in all")
    print_written(target)
    if target.suffix.lower() != ".npz":
        model = () if kind is ExportKind.KMEANS else ("--model", "gmm")
        print_next(output(), "globular", "fit", target, "-k", "100", *model, "--weights", WEIGHT, "-o", "model")


def _block(found: Coreset, names: Any) -> dict[str, Any]:
    """A block of the coreset as columns (one column of lists without names) and the weights."""
    columns = {"X": found.rows} if names is None else {name: found.rows[:, i] for i, name in enumerate(names)}
    return {**columns, WEIGHT: found.weights}


def export(
    model_folder: options.ModelArgument,
    target: Annotated[
        Path,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Its name says what: .onnx, .faiss, or the centres as .npy, .csv, .parquet.",
            show_default=False,
        ),
    ],
    data: options.RowsOption = None,
    columns: options.ColumnsOption = None,
    probes: Annotated[int, Option(metavar="N", min=1, help="For .faiss: lists that a search looks at.")] = 1,
    coarse: Annotated[str, Option(help="For .faiss: flat, or hnsw to find lists by a graph of the centres.")] = "flat",
    code_size: Annotated[
        int | None, Option(metavar="BYTES", help="For .faiss: rows as product codes (IVF-PQ).")
    ] = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Write a model as an ONNX file, as a faiss index, or its centres as a table."""
    from globular.export import to_faiss_ivf, to_faiss_residual, to_npy, to_onnx, write_faiss
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
        if hasattr(model, "codebooks_"):
            index = to_faiss_residual(model, rows)
        else:
            index = to_faiss_ivf(model, rows, n_probes=probes, coarse=quantizer, code_size=code_size)
        write_faiss(index, target)
    else:
        to_npy(model, target)
    if not quiet:
        print_written(target)


def report(
    model_folder: options.ModelArgument,
    page: Annotated[Path, Option("--output", "-o", metavar="FILE", help="The page.")] = Path("report.html"),
    data: options.RowsOption = None,
    columns: options.ColumnsOption = None,
    title: Annotated[str | None, Option(metavar="TEXT", help="Headline of the page.")] = None,
    images: Annotated[str, Option(metavar="HxW", help="Rows as images: auto, none, or the size as 28x28.")] = "auto",
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
