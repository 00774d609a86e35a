"""Tables and weights as the options of a command name them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from globular.data.blocks import Source


def split_columns(text: str | None) -> list[str] | None:
    """Take ``a,b,c`` apart."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"--columns {text!r} has an empty name; write it as a,b,c")
    return names


def load_model(folder: Path, n_threads: int | None = None) -> Any:
    """Load the model of a folder; `n_threads` replaces its own number of threads."""
    from globular.persistence import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that its init function was not saved matters to fits only
        model = load(folder)
    return model if n_threads is None else model.set_params(n_threads=n_threads)


def open_weighted(data: str, columns: Sequence[str] | None, weights: str | None) -> tuple[Source, NDArray[Any] | None]:
    """Open the table, without the column of weights if that is a part of it, and read the weights."""
    from globular.io import open_source

    if weights is None:
        return open_source(data, columns=columns), None
    if Path(weights).is_file():
        source = open_source(data, columns=columns)
        values = _weights_from_file(Path(weights))
    else:
        coordinates = _columns_but(data, weights) if columns is None else columns
        if weights in coordinates:
            raise ValueError(f"--weights {weights}: also in --columns; a weight is not a coordinate")
        source = open_source(data, columns=coordinates)
        values = _only_column(open_source(data, columns=[weights]))
    if len(values) != source.n_rows:
        raise ValueError(f"--weights {weights}: {len(values):,} weights for {source.n_rows:,} rows")
    return source, values


def _weights_from_file(path: Path) -> NDArray[Any]:
    import numpy as np

    from globular.errors import DataError
    from globular.io import open_source

    if path.suffix.lower() == ".npy":  # usually a one-dimensional array, which is not a table
        try:
            stored = np.load(path, mmap_mode="r", allow_pickle=False)  # refuses a header that declares too much
            if stored.ndim == 1:
                return np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DataError(f"{path}: not a complete .npy file of numbers ({error})") from error
    return _only_column(open_source(path))


def _only_column(table: Source) -> NDArray[Any]:
    """The values of a table with one column, as a vector."""
    import numpy as np

    from globular.errors import DataError

    if table.n_columns != 1:
        raise DataError(f"{table.name}: weights are one column, this has {table.n_columns}")
    rows: Any = table.whole()
    return np.asarray(rows.toarray() if table.is_sparse else rows).ravel()


def _columns_but(data: str, weight_column: str) -> list[str]:
    """All columns of the table except the weights."""
    from globular.io import open_source

    names = getattr(open_source(data), "column_names", None)
    if names is None:
        raise ValueError(
            f"--weights {weight_column}: there is no such file, and the columns of {data} have no names; "
            "give a file, or for a folder of parts name the columns to cluster with --columns"
        )
    if weight_column not in names:
        raise ValueError(f"--weights {weight_column}: neither a file nor a column of {data}")
    return [name for name in names if name != weight_column]
