"""``globular fit``: fit a model to a table and save it."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from globular.cli.cluster import SchedulerOption, WorkersOption, dask_workers, on_workers
from globular.cli.inputs import open_weighted, split_columns
from globular.cli.shared import (
    ARRAY_SUFFIXES,
    INTERRUPTED,
    ColumnsOption,
    DataArgument,
    QuietOption,
    ThreadsOption,
    output,
    print_next,
    print_table,
    say,
)

if TYPE_CHECKING:
    from globular.data.blocks import Source
    from globular.model.history import History, Record

_SIZES = ("n_clusters", "n_components", "max_components")
"""What the estimators call the number that ``-k`` gives."""


class Model(StrEnum):
    """The estimators, and how the command calls them."""

    KMeans = "kmeans"
    VariationalKMeans = "variational-kmeans"
    NestedMiniBatchKMeans = "nested-kmeans"
    GaussianMixture = "gmm"
    VariationalGaussianMixture = "variational-gmm"
    ChunkyGaussianMixture = "chunky-gmm"
    InfiniteGaussianMixture = "infinite-gmm"
    InfiniteMultinomialMixture = "infinite-multinomial"


def fit(
    data: DataArgument,
    folder: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL", help="Folder for the model.", show_default=False)
    ],
    n_clusters: Annotated[
        int | None,
        typer.Option(
            "-k", "--clusters", metavar="N", min=1, help="Number of clusters; for infinite mixtures the most, if any."
        ),
    ] = None,
    model: Annotated[Model | None, typer.Option("--model", help="What to fit; kmeans by default.")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            help="auto (default); lloyd, yinyang or probing for kmeans, em, variational or chunky for gmm.",
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option("--init", help="Seeding: auto, k-means++, hierarchical, random …; by name as in Python."),
    ] = None,
    quality: Annotated[
        str | None, typer.Option("--quality", help="For kmeans with many clusters: fast, balanced (default) or best.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="For the k-means models: euclidean (default) or cosine.")
    ] = None,
    covariance_type: Annotated[
        str | None,
        typer.Option("--covariance-type", help="For Gaussian mixtures: tied_spherical, spherical, diag, tied or full."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other parameter of the model, as in Python; repeatable."),
    ] = None,
    max_iter: Annotated[int | None, typer.Option("--max-iter", metavar="N", min=0, help="Most iterations.")] = None,
    max_time: Annotated[float | None, typer.Option("--max-time", metavar="SECONDS", help="Most seconds.")] = None,
    tol: Annotated[float | None, typer.Option("--tol", help="Smallest change that is worth going on for.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Same seed, same result.")
    ] = None,
    threads: ThreadsOption = None,
    device: Annotated[
        str | None, typer.Option("--device", help="Where to compute: auto (default), cpu, cuda or cuda:N.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="FILE|COLUMN", help="A weight per row: a file, or a column of DATA."),
    ] = None,
    columns: ColumnsOption = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", metavar="FILE", help="Also write the labels (.npy .csv .parquet).")
    ] = None,
    checkpoint_every: Annotated[
        float | None,
        typer.Option(
            "--checkpoint-every", metavar="SECONDS", help="Seconds between two saves of the unfinished model."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the model in MODEL if there is one; iterations count anew.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the model in MODEL if there is one.")] = False,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> int:
    """Cluster DATA and save the model.

    Ctrl-C ends the fit and saves what there is; the exit code is then 130.
    """
    from globular.cli.predict import predict_blocks
    from globular.io import write_array
    from globular.io.files import check_file
    from globular.persistence import save

    found = _model_there(folder, resume=resume, force=force, quiet=quiet)
    if labels is not None:
        check_file(labels, ARRAY_SUFFIXES, "labels")
    names = split_columns(columns)
    source, sample_weight = open_weighted(data, names, weights)
    if names is None and weights is not None and not Path(weights).is_file():
        names = getattr(source, "column_names", None)  # all but the weights
    estimator = _new(model or Model.KMeans, n_clusters) if found is None else _checked(found, folder, model, n_clusters)
    if found is not None and found.n_features_in_ != source.n_columns:
        raise ValueError(
            f"{folder} was fitted on {found.n_features_in_} columns, {data} has {source.n_columns}; leave out --resume "
            "to start anew"
        )
    given = {
        "algorithm": algorithm, "init": init, "quality": quality, "metric": metric, "covariance_type": covariance_type,
        "max_iter": max_iter, "max_time": max_time, "tol": tol, "random_state": seed, "n_threads": threads,
        "device": device,
    }  # fmt: skip
    _set_given(estimator, given, settings or ())
    with dask_workers(scheduler, workers) as distributed:
        X = on_workers(data, source, names) if distributed else source
        code = _run(estimator, X, sample_weight, folder, checkpoint_every, warm=found is not None, quiet=quiet)
        save(estimator, folder)
        if labels is not None:
            known = getattr(estimator, "labels_", None)
            write_array(labels, predict_blocks(estimator, source) if known is None else known)
    if not quiet:
        _report(estimator, source, data, names, folder, labels)
    return code


def _model_there(folder: Path, *, resume: bool, force: bool, quiet: bool) -> Any | None:
    """The model to go on from. One may be the work of hours: it is replaced only if that is asked for."""
    from globular.persistence import check_destination, is_model, load

    if force and resume:
        raise ValueError("--force and --resume exclude each other; leave one of them out")
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


def _new(model: Model, n_clusters: int | None) -> Any:
    import globular

    estimator = getattr(globular, model.name)()
    size = _size(estimator)
    if n_clusters is None and size != "max_components":
        raise ValueError("-k is missing: say how many clusters, e.g. -k 1000, or have --model infinite-gmm find out")
    return estimator.set_params(**{size: n_clusters})


def _checked(found: Any, folder: Path, model: Model | None, n_clusters: int | None) -> Any:
    """A saved model that can go on, and is what the options say."""
    name, stored = type(found).__name__, found.get_params(deep=False)
    if model is not None and model.name != name:
        raise ValueError(f"{folder} holds a {name}, not a --model {model}")
    if "warm_start" not in stored:
        raise ValueError(f"{folder} holds a {name}, which cannot go on from where it ended; leave out --resume")
    if n_clusters not in (None, stored[_size(found)]):
        raise ValueError(f"{folder} has {stored[_size(found)]} clusters, not {n_clusters}; leave out -k")
    return found


def _size(estimator: Any) -> str:
    """The parameter that ``-k`` is for."""
    known = estimator.get_params(deep=False)
    return next(name for name in _SIZES if name in known)


def _set_given(estimator: Any, given: dict[str, Any], settings: Sequence[str]) -> None:
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
            options = ", ".join(name for name in known if name not in ("callbacks", "verbose", *_SIZES))
            raise ValueError(f"--set {text}: write NAME=VALUE; {type(estimator).__name__} has {options}")
        try:
            chosen[name] = literal_eval(value)
        except (ValueError, SyntaxError):  # a word
            chosen[name] = value
    estimator.set_params(**chosen)


def _run(
    estimator: Any, X: Any, sample_weight: Any, folder: Path, checkpoint_every: float | None, *, warm: bool, quiet: bool
) -> int:
    """Fit, with checkpoints and a progress bar; returns the exit code."""
    from globular.callbacks import Checkpoint, Progress

    progress, seen = Progress(), list[Any]()

    def note(estimator: Any, record: Record) -> None:
        seen.append(record)

    callbacks: list[Any] = [note] if quiet else [note, progress]
    if checkpoint_every is not None:
        callbacks.append(Checkpoint(folder, every_seconds=checkpoint_every, include_labels=False))
    usual = {"warm_start": estimator.warm_start} if warm else {}
    estimator.set_params(callbacks=callbacks, **dict.fromkeys(usual, True))
    try:
        estimator.fit(X, sample_weight=sample_weight)
        interrupted = estimator.stopped_ == "interrupted"
    except KeyboardInterrupt:
        if not seen:
            progress.close()
            say("no iteration was finished: nothing is saved")
            raise
        interrupted = True
    finally:
        progress.close()
    estimator.set_params(**usual)
    return INTERRUPTED if interrupted else 0


def _seconds_by_stage(history: History) -> str:
    """The seconds of a fit, and of its stages where there are several."""
    stages = history.stage_seconds
    parts = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items()) if len(stages) > 1 else ""
    return f"{history[-1].seconds:.2f}" + (f" ({parts})" if parts else "")


def _report(
    estimator: Any, source: Source, data: str, names: Sequence[str] | None, folder: Path, labels: Path | None
) -> None:
    from globular.report.figures import mean_squared_error

    console = output()
    history = estimator.history_
    inertia, error = getattr(estimator, "inertia_", None), mean_squared_error(estimator, history)
    centers = estimator.means_ if inertia is None else estimator.cluster_centers_
    print_table(
        console,
        f"{type(estimator).__name__} of {source.name}",
        [
            ("rows × columns", f"{source.n_rows:,} × {source.n_columns:,}"),
            ("clusters", f"{len(centers):,}"),
            ("algorithm", getattr(estimator, "algorithm_", None)),
            # k-means as it ended: its centres have moved once more since the last record
            ("objective", f"{history[-1].objective:.8g}" if inertia is None else None),
            ("inertia", None if inertia is None else f"{inertia:.8g}"),
            ("mean squared error", None if error is None else f"{error:.6g}"),
            ("iterations", estimator.n_iter_),
            ("seconds", _seconds_by_stage(history)),
            ("distances", f"{estimator.n_distances_:,}"),
            ("model", folder),
            ("labels", labels),
        ],
    )
    columns = [] if names is None else ["--columns", ",".join(names)]
    print_next(console, "globular", "predict", folder, data, *columns, "-o", "labels.npy")
    print_next(console, "globular", "report", folder, "--data", data, *columns, word="or")
