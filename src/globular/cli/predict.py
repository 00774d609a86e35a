"""``globular predict``: the cluster of every row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from globular.cli.cluster import SchedulerOption, WorkersOption, dask_workers, on_workers
from globular.cli.inputs import load_model, split_columns
from globular.cli.shared import (
    ARRAY_SUFFIXES,
    ColumnsOption,
    DataArgument,
    ModelArgument,
    QuietOption,
    ThreadsOption,
    bar_of_rows,
    output,
    rows_per_block,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from globular.data.blocks import Source


def predict(
    model_folder: ModelArgument,
    data: DataArgument,
    labels: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Labels: .npy, .csv or .parquet.", show_default=False)
    ],
    columns: ColumnsOption = None,
    threads: ThreadsOption = None,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the cluster of every row of DATA."""
    from globular.data.columns import check_columns
    from globular.io import open_source, write_array
    from globular.io.files import check_file

    check_file(labels, ARRAY_SUFFIXES, "labels")
    model = load_model(model_folder, threads)
    source = open_source(data, columns=split_columns(columns))
    check_columns(source, model.n_features_in_, getattr(model, "feature_names_in_", None))
    with dask_workers(scheduler, workers) as distributed:
        if distributed:
            write_array(labels, model.predict(on_workers(data, source, split_columns(columns))))
        else:
            write_array(labels, predict_blocks(model, source, show_progress=not quiet))
    if not quiet:
        output().print(f"{source.n_rows:,} labels written to {labels}", markup=False, soft_wrap=True)


def predict_blocks(model: Any, source: Source, *, show_progress: bool = False) -> NDArray[Any]:
    """Predict block by block, so that only the labels need room for all rows."""
    import numpy as np

    from globular.data.open import as_source

    labels: NDArray[Any] | None = None
    with bar_of_rows("predict", shown=show_progress) as bar:
        task = bar.add_task("predict", total=source.n_rows)
        for block in source.blocks(rows_per_block(source.n_columns)):
            found = model.predict(as_source(block.rows))
            if labels is None:
                labels = np.empty(source.n_rows, dtype=found.dtype)
            labels[block.start : block.stop] = found
            bar.update(task, completed=block.stop)
    return np.empty(0, dtype=np.int32) if labels is None else labels
