"""``globular export``: a model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from globular.cli.inputs import load_model, open_for, with_standard_input
from globular.cli.options import CENTER_SUFFIXES, ColumnsOption, ForceOption, ModelArgument, QuietOption, RowsOption
from globular.cli.shared import check_output, print_written


def export(
    model_folder: ModelArgument,
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
    data: RowsOption = None,
    columns: ColumnsOption = None,
    probes: Annotated[
        int, typer.Option("--probes", metavar="N", min=1, help="For .faiss: lists that a search looks at.")
    ] = 1,
    coarse: Annotated[
        str, typer.Option("--coarse", help="For .faiss: flat, or hnsw to find lists by a graph of the centres.")
    ] = "flat",
    code_size: Annotated[
        int | None, typer.Option("--code-size", metavar="BYTES", help="For .faiss: rows as product codes (IVF-PQ).")
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write a model as an ONNX file, as a faiss index, or its centres as a table."""
    from globular.export import to_faiss_ivf, to_npy, to_onnx, write_faiss
    from globular.export.faiss import FAISS_SUFFIXES

    suffixes = (*CENTER_SUFFIXES, ".onnx", *FAISS_SUFFIXES)
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
