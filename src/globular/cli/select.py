"""``globular select``: scores for a range of numbers of clusters; and the number that ``fit -k auto`` takes."""

from __future__ import annotations

from enum import StrEnum
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from globular.cli import options
from globular.cli.options import open_weighted, size_of, split_columns, with_standard_input
from globular.cli.shared import check_output, output, print_columns, print_next, say

if TYPE_CHECKING:
    from globular.selection import Selection

_EVERY = 20
"""Number of clusters up to which -k auto tries every number; beyond it steps grow by a quarter."""
_MOST = 100


class Kind(StrEnum):
    """Model that is fitted at each number."""

    KMEANS = "kmeans"
    GMM = "gmm"


def select(
    data: options.DataArgument,
    numbers: Annotated[
        str, Option("-k", "--clusters", metavar="RANGE", help="2:20, or 10:10000:15 (15 numbers), or 4,8,16.")
    ] = "2:20",
    model: Annotated[Kind, Option(help="gmm fits Gaussian mixtures, for BIC and ICL.")] = Kind.KMEANS,
    criterion: Annotated[str, Option(help="auto, elbow, silhouette, variance_ratio, bic or icl.")] = "auto",
    covariance_type: Annotated[str, Option(metavar="TYPES", help="For gmm: full, or full,diag or all.")] = "full",
    metric: Annotated[str, Option(help="euclidean or cosine.")] = "euclidean",
    max_iter: Annotated[int, Option(metavar="N", min=1, help="Most iterations at each number.")] = 30,
    seed: options.SeedOption = None,
    threads: options.ThreadsOption = None,
    weights: options.WeightsOption = None,
    columns: options.ColumnsOption = None,
    scores: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Also write the scores (.csv .parquet).")
    ] = None,
    force: options.ForceOption = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print the best number alone.")] = False,
) -> None:
    """Score numbers of clusters in one run from few to many."""
    from globular.selection import select as score

    if scores is not None:
        check_output(scores, (".csv", ".parquet"), "a table of scores", data, weights, force=force)
    sizes, paths = _sizes(numbers), with_standard_input(data)
    source, sample_weight = open_weighted(paths, split_columns(columns), weights)
    types = covariance_type if "," not in covariance_type else covariance_type.split(",")
    found = score(
        source, sizes, model=model.value, criterion=criterion, covariance_type=types, metric=metric,  # type: ignore[arg-type]
        sample_weight=sample_weight, max_iter=max_iter, random_state=seed, n_threads=threads,
    )  # fmt: skip
    if scores is not None:
        import numpy as np

        from globular.io import write_table

        columns_found = {name: found.column(name) for name in ("error", "elbow", "silhouette", "bic", "icl")}
        table: dict[str, Any] = {"n_clusters": found.column("n_clusters").astype(np.int64)}
        table |= {name: values for name, values in columns_found.items() if not np.isnan(values).all()}
        if found.best_covariance_type:
            table["covariance_type"] = found.column("covariance_type")
        write_table(scores, [table], len(found.scores))
    console = output()
    if quiet:
        console.print(found.best)
        return
    _print_scores(found, source.name)
    if "-" not in data:
        kind: tuple[str, ...] = ()
        if model is Kind.GMM:
            kind = ("--model", "gmm", "--covariance-type", found.best_covariance_type)
        chosen = () if columns is None else ("--columns", columns)
        print_next(console, "globular", "fit", *data, "-k", str(found.best), *kind, *chosen, "-o", "model")


def _sizes(text: str) -> list[int]:
    """Parse a range: 2:20 is every number, 10:10000:15 has a constant factor, 4,8,16 is a list."""
    import numpy as np

    try:
        if ":" not in text:
            return [int(part) for part in text.split(",")]
        first, last, *n_steps = (int(part) for part in text.split(":"))
        if not 1 <= first <= last or len(n_steps) > 1:
            raise ValueError
        if not n_steps:
            return list(range(first, last + 1))
        return sorted({round(number) for number in np.geomspace(first, last, n_steps[0])})
    except ValueError as error:
        raise ValueError(f"-k {text}: write 2:20, or 10:10000:15 for 15 numbers, or 4,8,16") from error


def _print_scores(found: Selection, name: str) -> None:
    digits = {"error": ".6g", "elbow": ".3f", "silhouette": ".3f", "bic": ".8g", "icl": ".8g"}
    if found.criterion == "variance_ratio":
        digits["variance_ratio"] = ".6g"
    known = [name for name in digits if not all(isnan(value) for value in found.column(name))]
    several = len({score.covariance_type for score in found.scores}) > 1
    rows = []
    for score in found.scores:
        values = {name: getattr(score, name) for name in known}
        shown = ["" if isnan(value) else format(value, digits[name]) for name, value in values.items()]
        rows.append([f"{score.n_clusters:,}", *([score.covariance_type] if several else []), *shown])
    best, console = found.best_score(found.criterion), output()
    headings = ("clusters", *(["type"] if several else []), *known)
    bold = [score is best for score in found.scores].index(True)
    print_columns(console, f"numbers of clusters for {name}", headings, rows, bold=bold)
    console.print(f"Best by {found.criterion}: {found.best:,}{f', {best.covariance_type}' if several else ''}")
    for reason in found.doubts:
        console.print(f"Beware: {reason}.")


def find_size(estimator: Any, X: Any, sample_weight: Any, *, quiet: bool) -> None:
    """Set the number of clusters of a model to the best by score."""
    from globular.selection import select as score

    known, size = estimator.get_params(deep=False), size_of(estimator)
    chosen: dict[str, Any] = {"metric": known.get("metric", "euclidean")}
    if size == "n_components":
        chosen = {"model": "gmm", "covariance_type": known["covariance_type"]}
    found = score(
        X, numbers_to_try(X.n_rows if hasattr(X, "n_rows") else None), sample_weight=sample_weight,
        random_state=known["random_state"], n_threads=known["n_threads"], **chosen,
    )  # fmt: skip
    estimator.set_params(**{size: found.best})
    if not quiet:
        say(f"-k auto: {found.best:,} clusters, of {found.scores[0].n_clusters} to {found.scores[-1].n_clusters} tried")


def numbers_to_try(n_rows: int | None) -> list[int]:
    """Every number up to 20, then by steps of a quarter up to 100, and no more than half the rows."""
    sizes, size = list(range(2, _EVERY + 1)), float(_EVERY)
    while (size := size * 1.25) <= _MOST:
        sizes.append(round(size))
    return [number for number in sizes if n_rows is None or 2 * number <= n_rows] or [1]
