"""``globular info``: what a model or a data file holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from globular.cli.inputs import split_columns
from globular.cli.shared import ColumnsOption, output, print_next, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from globular.model.history import History
    from globular.persistence import ModelInfo


def info(
    path: Annotated[
        str, typer.Argument(metavar="MODEL_OR_DATA", help="A model folder, or a data file.", show_default=False)
    ],
    columns: ColumnsOption = None,
) -> None:
    """Describe a model or a data file."""
    from globular.persistence import read_info
    from globular.persistence.folder import JSON_NAME

    console = output()
    if (Path(path) / JSON_NAME).is_file():
        _show_model(console, path, read_info(path))
    else:
        _show_data(console, path, columns)


def _show_model(console: Console, path: str, found: ModelInfo) -> None:
    print_table(
        console,
        f"{found.class_name} in {path}",
        [
            ("clusters", None if found.n_clusters is None else f"{found.n_clusters:,}"),
            ("columns", found.n_features),
            ("saved", f"{found.created} by globular {found.library_version}"),
        ],
    )
    stored = [(name, _short(value)) for name, value in found.parameters.items()]
    stored += [(name, f"{what} (not stored)") for name, what in found.omitted.items()]
    console.print()
    print_table(console, "parameters", stored)
    console.print()
    print_table(console, "fitted", [(name, _short(value)) for name, value in found.attributes.items()])
    if found.history:
        console.print()
        _show_history(console, found.history)


def _show_history(console: Console, history: History) -> None:
    from rich.table import Table

    n_iterations, tail = len(history), history[-5:]
    title = f"last {len(tail)} of {n_iterations} iterations" if len(tail) < n_iterations else "iterations"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim")
    for name in ("iteration", "seconds", "objective", "distances", "rows moved"):
        table.add_column(name, justify="right")
    for record in tail:
        moved = "" if record.n_changed is None else f"{record.n_changed:,}"
        table.add_row(
            str(record.iteration), f"{record.seconds:.2f}", f"{record.objective:.8g}", f"{record.n_distances:,}", moved
        )
    console.print(table)


def _show_data(console: Console, path: str, columns: str | None) -> None:
    from globular.io import open_source
    from globular.io.files import file_size

    source = open_source(path, columns=split_columns(columns))
    rows: list[tuple[str, Any]] = [
        ("rows", f"{source.n_rows:,}"),
        ("columns", f"{source.n_columns:,}"),
        ("dtype", f"{source.dtype}{' (sparse)' if source.is_sparse else ''}"),
    ]
    if not source.is_sparse:
        size = source.n_rows * source.n_columns * source.dtype.itemsize
        rows.append(("size in memory", file_size(size)))
    names = getattr(source, "column_names", None)
    rows.append(("column names", None if names is None else _short(", ".join(names))))
    print_table(console, source.name, rows)
    k = max(1, min(1000, source.n_rows // 20))
    chosen = () if columns is None else ("--columns", columns)
    print_next(console, "globular", "fit", path, "-k", str(k), *chosen, "-o", "model")


def _short(value: object, length: int = 200) -> str:
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"
