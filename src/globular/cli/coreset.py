"""``globular coreset``: few weighted rows in place of many."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from globular.cli import options
from globular.cli.inputs import open_weighted, split_columns, with_standard_input
from globular.cli.shared import check_output, output, print_next, print_written

if TYPE_CHECKING:
    from globular.coresets import Coreset

WEIGHT = "weight"
"""The column of the weights."""


class Kind(StrEnum):
    """What shall be fitted to the rows."""

    KMEANS = "k-means"
    MIXTURE = "mixture"


def coreset(
    data: options.DataArgument,
    n_rows: Annotated[int, typer.Option("-n", "--rows", metavar="N", min=1, help="Most rows that are drawn.")],
    target: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The rows: .parquet, .csv or .npz.", show_default=False),
    ],
    kind: Annotated[Kind, typer.Option("--kind", help="What shall be fitted: k-means or mixture.")] = Kind.KMEANS,
    weights: options.WeightsOption = None,
    columns: options.ColumnsOption = None,
    metric: Annotated[str, typer.Option("--metric", help="euclidean or cosine.")] = "euclidean",
    seed: options.SeedOption = None,
    threads: options.ThreadsOption = None,
    force: options.ForceOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Draw rows that stand for all of DATA, with a column of weights."""
    from globular import coresets
    from globular.data.columns import column_names
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
        model = () if kind is Kind.KMEANS else ("--model", "gmm")
        print_next(output(), "globular", "fit", target, "-k", "100", *model, "--weights", WEIGHT, "-o", "model")


def _block(found: Coreset, names: Any) -> dict[str, Any]:
    """A column for each name, or one of rows without names; and the weights."""
    columns = {"X": found.rows} if names is None else {name: found.rows[:, i] for i, name in enumerate(names)}
    return {**columns, WEIGHT: found.weights}
