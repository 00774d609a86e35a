"""``globular predict``: the cluster of every row, with distances or probabilities."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from globular.cli import options
from globular.cli.options import dask_workers, load_model, on_workers, open_for, with_standard_input
from globular.cli.shared import bar_of_rows, check_output, output, rows_per_block

if TYPE_CHECKING:
    from globular.data.blocks import Source
    from globular.io import Block

_STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Answers to write for every row."""

    probabilities: bool = False
    distances: bool = False
    top: int | None = None
    max_distance: float | None = None

    @property
    def is_label(self) -> bool:
        """True if only labels are written."""
        return self == Wanted()

    def check(self, model: Any) -> None:
        """Refuse answers that this model does not have, and options that exclude each other."""
        name, n_clusters = type(model).__name__, n_clusters_of(model)
        if self.probabilities and not hasattr(model, "predict_proba"):
            raise ValueError(f"--proba: a {name} has no probabilities; mixtures have, --distances works here")
        if (self.distances or self.max_distance is not None) and not hasattr(model, "nearest_centers"):
            option = "--distances" if self.distances else "--max-distance"
            raise ValueError(f"{option}: a {name} has no distances; k-means models have, --proba works here")
        if self.top is not None and self.top > n_clusters:
            raise ValueError(f"--top {self.top}: the model has {n_clusters} clusters")
        if self.top is not None and self.max_distance is not None:
            raise ValueError("--top and --max-distance exclude each other; leave one of them out")

    def columns(self) -> list[str]:
        """Names of the columns that are written."""
        if self.probabilities and self.top is None:
            return ["probability"]
        return ["label", *["distance"] * self.distances, *["probability"] * self.probabilities]


def predict(
    model_folder: options.ModelArgument,
    data: options.DataArgument,
    target: Annotated[
        str,
        Option(
            "--output", "-o", metavar="FILE", help="The labels: .npy, .npz, .csv, .parquet, or - .", show_default=False
        ),
    ],
    probabilities: Annotated[
        bool, Option("--proba", help="For mixtures: the probabilities of all components, or of --top M.")
    ] = False,
    distances: Annotated[
        bool, Option("--distances", help="For k-means models: also the distance to the centre.")
    ] = False,
    top: Annotated[int | None, Option(metavar="M", min=1, help="The M closest or likeliest clusters of a row.")] = None,
    max_distance: Annotated[float | None, Option(metavar="D", help="Rows farther from their centre get -1.")] = None,
    keep: Annotated[
        bool, Option("--keep-columns", help="Write all columns of DATA, too (text to .csv, else .parquet).")
    ] = False,
    columns: options.ColumnsOption = None,
    threads: options.ThreadsOption = None,
    scheduler: options.SchedulerOption = None,
    workers: options.WorkersOption = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Write the cluster of every row of DATA."""
    paths = with_standard_input(data)
    wanted = Wanted(probabilities, distances, top, max_distance)
    beside = _columns_beside(paths, target, wanted) if keep else None
    if target != _STANDARD_OUTPUT:
        check_output(Path(target), options.LABEL_SUFFIXES, "a table of labels", data, force=force)
        if Path(target).suffix.lower() == ".npy" and len(wanted.columns()) > 1:
            what = " and ".join(wanted.columns())
            raise ValueError(
                f"{target}: a .npy file holds one array, and here are {what}; write .npz, .csv or .parquet"
            )
    model = load_model(model_folder, threads)
    wanted.check(model)
    source = open_for(model, paths, columns)
    with dask_workers(scheduler, workers) as distributed:
        if distributed and not wanted.is_label:
            raise ValueError("on Dask workers predict gives labels alone; leave out --workers and --scheduler")
        if distributed:
            names = getattr(source, "column_names", None)
            blocks: Any = iter([{"label": model.predict(on_workers(paths, source, names))}])
        else:
            blocks = blocks_of_answers(model, source, wanted, show_progress=not quiet)
        _write(target, blocks, source.n_rows, beside)
    if not quiet and target != _STANDARD_OUTPUT:
        output().print(f"{source.n_rows:,} labels written to {target}", soft_wrap=True)


def n_clusters_of(model: Any) -> int:
    """Number of clusters or components of a model."""
    return len(model.cluster_centers_ if hasattr(model, "cluster_centers_") else model.means_)


def _columns_beside(paths: list[str], target: str, wanted: Wanted) -> Any:
    """Columns of the files, which are written before the answers."""
    from globular.io import open_beside

    beside = open_beside(paths)
    suffix = ".csv" if target == _STANDARD_OUTPUT else Path(target).suffix.lower()
    if suffix != beside.suffix:
        raise ValueError(
            f"--keep-columns: the columns of {paths[0]} are written to a {beside.suffix} file, not {suffix}"
        )
    if taken := [name for name in wanted.columns() if name in (beside.names or ())]:
        raise ValueError(f"--keep-columns: {paths[0]} has a column {taken[0]!r} already; rename it")
    return beside


def _write(target: str, blocks: Any, n_rows: int, beside: Any) -> None:
    from globular.io import write_csv_blocks, write_table

    if target == _STANDARD_OUTPUT:
        write_csv_blocks(sys.stdout.buffer, blocks, n_rows, beside)
        sys.stdout.buffer.flush()
    else:
        write_table(target, blocks, n_rows, beside=beside)


def blocks_of_answers(model: Any, source: Source, wanted: Wanted, *, show_progress: bool = False) -> Iterator[Block]:
    """Answers of the model block by block, for tables larger than memory."""
    from globular.data.open import as_source

    n_numbers = source.n_columns if wanted.is_label else max(source.n_columns, n_clusters_of(model))
    with bar_of_rows("predict", shown=show_progress) as bar:
        task = bar.add_task("predict", total=source.n_rows)
        for block in source.blocks(rows_per_block(n_numbers)):
            yield answers(model, as_source(block.rows), wanted)
            bar.update(task, completed=block.stop)


def answers(model: Any, rows: Source, wanted: Wanted) -> Block:
    """Answers of the model for some rows, by column name."""
    import numpy as np

    if wanted.top is not None and hasattr(model, "nearest_centers"):
        labels, distances = model.nearest_centers(rows, wanted.top)
        return {"label": labels, "distance": distances} if wanted.distances else {"label": labels}
    if wanted.top is not None:
        found = model.predict_proba(rows)
        order = np.argsort(-found, axis=1, kind="stable")[:, : wanted.top]
        ranked = {"label": order.astype(np.int32), "probability": np.take_along_axis(found, order, axis=1)}
        return ranked if wanted.probabilities else {"label": ranked["label"]}
    if wanted.probabilities:
        return {"probability": model.predict_proba(rows)}
    if wanted.distances:
        labels, distances = model.predict(rows, return_distance=True, max_distance=wanted.max_distance)
        return {"label": labels, "distance": distances}
    if wanted.max_distance is not None:
        return {"label": model.predict(rows, max_distance=wanted.max_distance)}
    return {"label": model.predict(rows)}
