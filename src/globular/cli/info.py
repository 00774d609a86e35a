"""``globular info``: describe a model or a data file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from globular.cli import options
from globular.cli.shared import as_options, output, print_columns, print_next, print_table, printable

if TYPE_CHECKING:
    from rich.console import Console

    from globular.data.blocks import Column
    from globular.estimators.certificates import Certificate
    from globular.model.history import History
    from globular.persistence import ModelInfo


@dataclass(frozen=True, slots=True)
class Contents:
    """Description of data files; None where unknown."""

    name: str
    n_rows: int | None = None
    n_columns: int | None = None
    dtype: str | None = None
    sparse: bool = False
    columns: Sequence[Column] = ()
    """Columns that have names."""
    arrays: Sequence[str] = ()
    """Names of the arrays, in a file with several."""
    problem: str | None = None
    """Reason why the table cannot be clustered as it is; None if it can."""


def info(
    paths: Annotated[
        list[str], Argument(metavar="MODEL_OR_DATA", help="A model folder, or data files.", show_default=False)
    ],
    columns: options.ColumnsOption = None,
    data: options.RowsOption = None,
    as_json: Annotated[bool, Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Describe a model or data files: columns, types, rows.

    With --data a model that searches few clusters per row reports how many of these rows miss their best cluster.
    """
    from globular.persistence import read_info
    from globular.persistence.folder import JSON_NAME

    console = output()
    if len(paths) == 1 and (Path(paths[0]) / JSON_NAME).is_file():
        found = read_info(paths[0])
        certificate = None if data is None else _certificate(paths[0], data, columns)
        print(_model_as_json(found, certificate)) if as_json else _show_model(console, paths[0], found, certificate)
        return
    if data is not None:
        raise typer.BadParameter("needs a model to be held against these rows", param_hint="--data")
    contents = describe(options.with_standard_input(paths), columns)
    if as_json:
        print(json.dumps(asdict(contents), indent=2))
    else:
        _show_data(console, paths, contents, columns)


def describe(data: Sequence[str], columns: str | None = None) -> Contents:
    """Describe files; for a table that cannot be clustered as it is, list its columns and the reason."""
    from globular.data.formats import arrays_in, described
    from globular.errors import DataError

    table = described(data[0])
    arrays = [f"{name} ({' × '.join(map(str, shape))} {dtype})" for name, shape, dtype in arrays_in(data[0])]
    try:
        source = options.open_tables(data, options.split_columns(columns))
    except DataError as error:
        if table is None and len(arrays) < 2:
            raise
        n_rows, known = (None, []) if table is None else table
        return Contents(
            data[0], n_rows, len(known) or None, columns=known, arrays=arrays, problem=as_options(str(error))
        )
    names = getattr(source, "column_names", None)
    known = [] if table is None or names is None else [column for column in table[1] if column.name in names]
    return Contents(
        source.name, source.n_rows, source.n_columns, str(source.dtype), source.is_sparse, known,
        arrays if len(arrays) > 1 else (),
    )  # fmt: skip


def _certificate(folder: str, data: Sequence[str], columns: str | None) -> Certificate | None:
    """Share and loss of rows whose best cluster a truncated model misses; None if it searches all clusters."""
    from globular.estimators.certificates import Certificate, is_truncated

    model = options.load_model(Path(folder), None)
    if not is_truncated(model):
        return None
    found = model.certificate(options.open_for(model, options.with_standard_input(data), columns))
    assert isinstance(found, Certificate)
    return found


def _model_as_json(found: ModelInfo, certificate: Certificate | None = None) -> str:
    stored = {
        "class": found.class_name, "clusters": found.n_clusters, "columns": found.n_features, "saved": found.created,
        "globular": found.library_version, "parameters": found.parameters, "fitted": found.attributes,
        "history": [asdict(record) for record in found.history],
        **({} if certificate is None else {"certificate": asdict(certificate)}),
    }  # fmt: skip
    return json.dumps(stored, indent=2, default=str)


def _show_model(console: Console, path: str, found: ModelInfo, certificate: Certificate | None = None) -> None:
    print_table(
        console,
        f"{found.class_name} in {path}",
        [
            ("clusters", None if found.n_clusters is None else f"{found.n_clusters:,}"),
            ("columns", found.n_features),
            ("saved", f"{found.created} by globular {found.library_version}"),
            *([] if certificate is None else [("certificate", str(certificate))]),
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
    tail = history[-5:]
    rows = [
        (
            str(record.iteration), f"{record.seconds:.2f}", f"{record.objective:.8g}", f"{record.n_distances:,}",
            "" if record.n_changed is None else f"{record.n_changed:,}",
        )
        for record in tail
    ]  # fmt: skip
    title = f"last {len(tail)} of {len(history)} steps" if len(tail) < len(history) else "steps"
    print_columns(console, title, ("iteration", "seconds", "objective", "distances", "rows moved"), rows)


def _show_data(console: Console, data: Sequence[str], found: Contents, columns: str | None) -> None:
    import numpy as np

    from globular.io import file_size

    rows: list[tuple[str, Any]] = [
        ("rows", None if found.n_rows is None else f"{found.n_rows:,}"),
        ("columns", None if found.n_columns is None else f"{found.n_columns:,}"),
        ("dtype", None if found.dtype is None else f"{found.dtype}{' (sparse)' if found.sparse else ''}"),
    ]
    if found.dtype is not None and not found.sparse:
        size = (found.n_rows or 0) * (found.n_columns or 0) * np.dtype(found.dtype).itemsize
        rows.append(("size in memory", file_size(size)))
    rows += [("arrays", _short(", ".join(found.arrays)) if found.arrays else None)]
    print_table(console, found.name, rows)
    if found.columns and (found.problem or len(found.columns) <= _MOST_SHOWN):
        print_table(console, "columns", [(column.name or "–", column.type) for column in found.columns[:_MOST_SHOWN]])
    if len(found.columns) > _MOST_SHOWN:
        console.print(printable(f"columns: {_short(', '.join(column.name for column in found.columns))}"))
    chosen = columns
    if found.problem is not None:
        console.print(printable(f"Not to be clustered as it is: {found.problem}"), soft_wrap=True)
        chosen = ",".join(_usable(found.columns))
    if "-" not in data and (found.problem is None or chosen):
        k = max(1, min(1000, (found.n_rows or 0) // 20))
        only = ("--columns", chosen) if chosen else ()
        print_next(console, "globular", "fit", *data, "-k", str(k), *only, "-o", "model")


def _usable(columns: Sequence[Column]) -> list[str]:
    """The first column of lists, or all columns of numbers."""
    counts = Counter(column.name for column in columns)
    named = [column for column in columns if column.name and counts[column.name] == 1]
    lists = [column.name for column in named if column.kind == "lists"]
    return lists[:1] or [column.name for column in named if column.kind == "numbers"]


_MOST_SHOWN = 40
"""Most columns that are listed with their types."""


def _short(value: object, length: int = 200) -> str:
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"
