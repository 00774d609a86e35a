"""``globular encode`` and ``decode``: rows as codes of a residual quantiser, and rows from codes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from globular.cli import options
from globular.cli.shared import check_output, print_written, rows_per_block

TargetOption = Annotated[Path, Option("--output", "-o", metavar="FILE", help="The table.", show_default=False)]


def _model(folder: Path, n_threads: int | None) -> Any:
    model = options.load_model(folder, n_threads)
    if not hasattr(model, "codebooks_"):
        raise ValueError(f"{folder} holds a {type(model).__name__}, which has no codes; make one by fit --residual")
    return model


def _write(target: Path, blocks: Iterable[dict[str, Any]], n_rows: int, *, quiet: bool) -> None:
    from globular.io import write_table

    write_table(target, blocks, n_rows)
    if not quiet:
        print_written(target)


def encode(
    model_folder: options.ModelArgument,
    data: options.DataArgument,
    target: TargetOption,
    beam: Annotated[int | None, Option(metavar="N", min=1, help="Partial codes of a row; as in the fit.")] = None,
    unique: Annotated[bool, Option("--unique", help="A different code for every row.")] = False,
    columns: options.ColumnsOption = None,
    threads: options.ThreadsOption = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Write the code of every row of DATA, a number for each level."""
    check_output(target, options.LABEL_SUFFIXES, "a table of codes", data, force=force)
    model = _model(model_folder, threads)
    source = options.open_for(model, options.with_standard_input(data), columns)
    _write(target, [{"code": model.encode(source, beam=beam, unique=unique)}], source.n_rows, quiet=quiet)


def decode(
    model_folder: options.ModelArgument,
    data: options.DataArgument,
    target: TargetOption,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Write the rows that the codes in DATA stand for."""
    check_output(target, options.LABEL_SUFFIXES, "a table of rows", data, force=force)
    model = _model(model_folder, None)
    source = options.open_tables(options.with_standard_input(data), None)
    blocks = ({"X": model.decode(block.rows)} for block in source.blocks(rows_per_block(model.n_features_in_)))
    _write(target, blocks, source.n_rows, quiet=quiet)
