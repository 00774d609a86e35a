"""``globular export``: a model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from globular.cli.inputs import load_model, split_columns
from globular.cli.shared import ARRAY_SUFFIXES, ColumnsOption, ModelArgument, QuietOption, print_written


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
    data: Annotated[
        str | None, typer.Option("--data", metavar="DATA", help="For .faiss: rows to put into the index.")
    ] = None,
    columns: ColumnsOption = None,
    probes: Annotated[int, typer.Option("--probes", min=1, help="For .faiss: lists that a search looks at.")] = 1,
    quiet: QuietOption = False,
) -> None:
    """Write a model as an ONNX file, as a faiss index, or its centres as a table."""
    from globular.export import to_faiss_ivf, to_npy, to_onnx, write_faiss
    from globular.export.faiss import FAISS_SUFFIXES
    from globular.io import open_source
    from globular.io.files import check_file

    check_file(target, (*ARRAY_SUFFIXES, ".onnx", *FAISS_SUFFIXES), "an exported model")
    suffix = target.suffix.lower()
    if data is not None and suffix not in FAISS_SUFFIXES:
        raise ValueError(f"--data goes into a faiss index only, not into {suffix}; leave it out")
    model = load_model(model_folder)
    if suffix == ".onnx":
        to_onnx(model, target)
    elif suffix in FAISS_SUFFIXES:
        rows = None if data is None else open_source(data, columns=split_columns(columns))
        write_faiss(to_faiss_ivf(model, rows, n_probes=probes), target)
    else:
        to_npy(model, target)
    if not quiet:
        print_written(target)
