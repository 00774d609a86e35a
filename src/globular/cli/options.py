"""The estimators as the command calls them, and its options and arguments with what their help says."""

from __future__ import annotations

import logging
from ast import literal_eval
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from globular.cli.shared import say

if TYPE_CHECKING:
    from globular.data.blocks import Source

SIZES = ("n_clusters", "n_components", "max_components")
"""What the estimators call the number that ``-k`` gives."""
_NOT_TO_BE_SET = {
    "callbacks": "callbacks are functions; fit in Python for them",
    "verbose": "the command shows its progress, and with -q does not",
    **dict.fromkeys(SIZES, "the number of clusters is given by -k"),
}
"""Parameters that ``--set`` refuses, and what it says."""
LABEL_SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
CENTER_SUFFIXES = (".npy", ".csv", ".parquet")
DataArgument = Annotated[
    list[str],
    Argument(
        metavar="DATA",
        help="Tables of numbers: .npy .npz .csv .tsv .parquet .feather .jsonl .fvecs .bvecs .ivecs .h5 .svmlight, "
        "several of them, a folder, 'part-*.npy', or - for standard input.",
        show_default=False,
    ),
]
ModelArgument = Annotated[Path, Argument(metavar="MODEL", help="Folder that globular fit wrote.", show_default=False)]
SeedOption = Annotated[
    int | None,
    Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Same seed, same result, on one machine and version."),
]
ThreadsOption = Annotated[
    int | None, Option("--threads", metavar="N", min=1, help="Number of threads; all cores by default.")
]
WeightsOption = Annotated[
    str | None, Option("--weights", metavar="FILE|COLUMN", help="A weight per row: a file, or a column of DATA.")
]
ColumnsOption = Annotated[str | None, Option("--columns", metavar="A,B,…", help="Use only these columns, by name.")]
ForceOption = Annotated[bool, Option("--force", help="Replace what is written if it exists already.")]
RowsOption = Annotated[
    list[str] | None, Option("--data", metavar="DATA", help="A table of rows; repeatable.", show_default=False)
]
SchedulerOption = Annotated[
    str | None, Option("--scheduler", metavar="ADDRESS", help="Work on the Dask cluster there; its workers read DATA.")
]
WorkersOption = Annotated[
    int | None, Option("--workers", metavar="N", min=1, help="Start N Dask worker processes and work on them.")
]


class Model(StrEnum):
    """The estimators, and how the command calls them."""

    KMeans = "kmeans"
    VariationalKMeans = "variational-kmeans"
    NestedMiniBatchKMeans = "nested-kmeans"
    GaussianMixture = "gmm"
    VariationalGaussianMixture = "variational-gmm"
    ChunkyGaussianMixture = "chunky-gmm"
    LowRankGaussianMixture = "low-rank-gmm"
    InfiniteGaussianMixture = "infinite-gmm"
    InfiniteMultinomialMixture = "infinite-multinomial"
    VonMisesFisherMixture = "von-mises-fisher"
    PoissonMixture = "poisson"
    BernoulliMixture = "bernoulli"


def model_there(folder: Path, *, resume: bool, force: bool, quiet: bool) -> Any | None:
    """The model to go on from. One may be the work of hours: it is replaced only if that is asked for."""
    from globular.persistence import check_destination, is_model, load

    there = is_model(folder)
    if there and not (force or resume):
        raise ValueError(
            f"{folder} already holds a model; replace it with --force, go on from it with --resume, or choose another "
            "folder"
        )
    check_destination(folder)
    if resume and not there and not quiet:
        say(f"{folder} has no model yet: starting from the beginning")
    return load(folder) if resume and there else None


def new_model(model: Model, n_clusters: int | str | None) -> Any:
    """An estimator of that size; with auto its own, until the number has been found."""
    import globular

    estimator = getattr(globular, model.name)()
    size = size_of(estimator)
    if size == "max_components":
        return estimator if n_clusters == "auto" else estimator.set_params(max_components=n_clusters)
    if n_clusters is None:
        raise ValueError(
            "-k is missing: say how many clusters, e.g. -k 1000, or have it found: -k auto, or --model infinite-gmm"
        )
    return estimator if n_clusters == "auto" else estimator.set_params(**{size: n_clusters})


def check_found(found: Any, folder: Path, model: Model | None, n_clusters: int | str | None, source: Source) -> None:
    """Refuse a saved model that cannot go on, or is not what the options and the rows say."""
    name, stored = type(found).__name__, found.get_params(deep=False)
    if model is not None and model.name != name:
        raise ValueError(f"{folder} holds a {name}, not a --model {model}")
    if "warm_start" not in stored:
        raise ValueError(f"{folder} holds a {name}, which cannot go on from where it ended; leave out --resume")
    if n_clusters not in (None, stored[size_of(found)]):
        raise ValueError(f"{folder} has {stored[size_of(found)]} clusters, not {n_clusters}; leave out -k")
    if found.n_features_in_ != source.n_columns:
        raise ValueError(
            f"{folder} was fitted on {found.n_features_in_} columns, {source.name} has {source.n_columns}; leave out "
            "--resume to start anew"
        )


def size_of(estimator: Any) -> str:
    """The parameter that ``-k`` is for."""
    known = estimator.get_params(deep=False)
    return next(name for name in SIZES if name in known)


def set_given(estimator: Any, given: dict[str, Any], settings: Sequence[str]) -> None:
    """Set the parameters that were given; one that this model does not have is an error."""
    known = estimator.get_params(deep=False)
    chosen = {name: value for name, value in given.items() if value is not None}
    if "init" in chosen and "init_params" in known:
        chosen["init_params"] = chosen.pop("init")
    for name in chosen:
        if name not in known:
            raise ValueError(f"--{name.replace('_', '-')} does not apply to --model {Model[type(estimator).__name__]}")
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            options = ", ".join(name for name in known if name not in _NOT_TO_BE_SET)
            raise ValueError(f"--set {text}: write NAME=VALUE; {type(estimator).__name__} has {options}")
        if name in _NOT_TO_BE_SET:
            raise ValueError(f"--set {text}: {_NOT_TO_BE_SET[name]}")
        if name in chosen:
            raise ValueError(f"--set {text}: {name} is given twice, with the value {chosen[name]}, too; leave one out")
        try:
            chosen[name] = literal_eval(value)
        except (ValueError, SyntaxError):  # a word
            chosen[name] = value
    estimator.set_params(**chosen)


def _hush(quiet: bool) -> bool:
    """Warnings stay; that kernels are compiled is no news for who wants none."""
    if quiet:
        logging.getLogger("globular").setLevel(logging.ERROR)
    return quiet


QuietOption = Annotated[bool, Option("--quiet", "-q", callback=_hush, help="No progress bar, no summary.")]
