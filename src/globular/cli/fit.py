"""``globular fit``: fit a model to a table and save it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from globular.cli import options
from globular.cli.predict import Wanted, blocks_of_answers
from globular.cli.select import find_size
from globular.cli.shared import EXIT_INTERRUPTED, check_output, output, print_next, print_table, refuse_input, say

if TYPE_CHECKING:
    from globular.data.blocks import Source
    from globular.model.history import Record


def _number_of_clusters(text: str | None) -> int | str | None:
    """Parse -k: a whole number, or auto."""
    if text is None or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is not a whole number of at least 1, nor auto")
    return int(text)


def fit(
    data: options.DataArgument,
    folder: Annotated[
        Path, Option("--output", "-o", metavar="MODEL", help="Folder for the model.", show_default=False)
    ],
    n_clusters: Annotated[
        Any,
        Option(
            "-k",
            "--clusters",
            metavar="N",
            parser=str,
            callback=_number_of_clusters,
            help="Number of clusters, or auto (see globular select); for infinite mixtures the most, if any.",
        ),
    ] = None,
    model: Annotated[
        options.Model | None, Option(help=f"What to fit: {', '.join(options.Model)}; kmeans by default.")
    ] = None,
    residual: Annotated[
        str | None, Option(metavar="K,K,…", help="Clusters of each level of a residual quantiser, instead of -k.")
    ] = None,
    algorithm: Annotated[
        str | None,
        Option(help="auto (default); exact, lloyd or probing for kmeans, em, nested, variational or chunky for gmm."),
    ] = None,
    init: Annotated[
        str | None, Option(help="Seeding: auto, k-means++, hierarchical, random …; by name as in Python.")
    ] = None,
    n_init: Annotated[
        int | None, Option(metavar="N", min=1, help="Runs from different starts; the best is kept.")
    ] = None,
    quality: Annotated[
        str | None, Option(help="For kmeans with many clusters: fast, balanced (default) or best.")
    ] = None,
    metric: Annotated[str | None, Option(help="For the k-means models: euclidean (default) or cosine.")] = None,
    covariance_type: Annotated[
        str | None, Option(help="For Gaussian mixtures: tied_spherical, spherical, diag, tied or full.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Any other parameter of the model, as in Python; repeatable."),
    ] = None,
    max_iter: Annotated[int | None, Option(metavar="N", min=0, help="Most iterations.")] = None,
    max_time: Annotated[float | None, Option(metavar="SECONDS", help="Most seconds.")] = None,
    tol: Annotated[float | None, Option(metavar="X", help="Smallest change that is worth going on for.")] = None,
    seed: options.SeedOption = None,
    threads: options.ThreadsOption = None,
    device: Annotated[
        str | None, Option(help="Where to compute: auto (default), cpu, cuda, cuda:N, cuda:all or CARD,CARD.")
    ] = None,
    weights: options.WeightsOption = None,
    columns: options.ColumnsOption = None,
    labels: Annotated[
        Path | None, Option(metavar="FILE", help="Also write the labels (.npy .npz .csv .parquet).")
    ] = None,
    checkpoint_every: Annotated[
        float | None, Option(metavar="SECONDS", help="Seconds between two saves of the unfinished model.")
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Go on from the model in MODEL if there is one; iterations count anew.")
    ] = False,
    force: options.ForceOption = False,
    scheduler: options.SchedulerOption = None,
    workers: options.WorkersOption = None,
    quiet: options.QuietOption = False,
) -> int:
    """Cluster DATA and save the model.

    Ctrl-C ends the fit and saves what there is; the exit code is then 130.
    """
    from globular.io import write_table
    from globular.persistence import save

    refuse_input(folder, data)
    found = options.model_there(folder, resume=resume, force=force, quiet=quiet)
    if labels is not None:
        check_output(labels, options.LABEL_SUFFIXES, "a table of labels", data, weights, force=force)
        if folder.resolve().is_relative_to(labels.resolve()):
            raise ValueError(f"--labels {labels}: the model of -o {folder} goes there; choose another name")
    names, paths = options.split_columns(columns), options.with_standard_input(data)
    source, sample_weight = options.open_weighted(paths, names, weights)
    if names is None and weights is not None and not Path(weights).is_file():
        names = getattr(source, "column_names", None)  # all but the weights
    given = {
        "algorithm": algorithm, "init": init, "n_init": n_init, "quality": quality, "metric": metric,
        "covariance_type": covariance_type, "max_iter": max_iter, "max_time": max_time, "tol": tol,
        "random_state": seed, "n_threads": threads, "device": device.split(",") if device and "," in device else device,
    }  # fmt: skip
    if residual is not None:
        n_clusters = options.split_sizes(residual, model, n_clusters)
        model = options.Model.ResidualKMeans
    estimator = options.new_model(model or options.Model.KMeans, n_clusters) if found is None else found
    if model is options.Model.ResidualKMeans and (n_clusters == "auto" or checkpoint_every is not None):
        raise ValueError("a residual quantiser has no -k auto and no --checkpoint-every; give --residual K,K,… alone")
    if found is not None:
        options.check_found(found, folder, model, n_clusters, source)
    options.set_given(estimator, given, settings or ())
    with options.dask_workers(scheduler, workers) as distributed:
        X = options.on_workers(paths, source, names) if distributed else source
        if n_clusters == "auto" and options.size_of(estimator) != "max_components":
            find_size(estimator, X, sample_weight, quiet=quiet)
        code = _run(estimator, X, sample_weight, folder, checkpoint_every, warm=found is not None, quiet=quiet)
        save(estimator, folder)
        if labels is not None:
            known = getattr(estimator, "labels_", getattr(estimator, "codes_", None))  # else those of the model now
            blocks: Any = blocks_of_answers(estimator, source, Wanted()) if known is None else [{"label": known}]
            write_table(labels, blocks, source.n_rows)
    if not quiet:
        _report(estimator, source, data, names, folder, labels)
    return code


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
    return EXIT_INTERRUPTED if interrupted else 0


def _report(
    estimator: Any, source: Source, data: Sequence[str], names: Sequence[str] | None, folder: Path, labels: Path | None
) -> None:
    from globular.report import mean_squared_error

    console, history = output(), estimator.history_
    stages = history.stage_seconds
    parts = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items())
    inertia, error = getattr(estimator, "inertia_", None), mean_squared_error(estimator, history)
    compiling = history[-1].compile_seconds
    centers = estimator.means_ if inertia is None else getattr(estimator, "cluster_centers_", ())
    print_table(
        console,
        f"{type(estimator).__name__} of {source.name}",
        [
            ("rows × columns", f"{source.n_rows:,} × {source.n_columns:,}"),
            ("clusters", f"{len(centers):,}" if len(centers) else str(estimator.n_clusters)),
            ("algorithm", getattr(estimator, "algorithm_", None)),
            # k-means as it ended: its centres have moved once more since the last record
            ("objective", f"{history[-1].objective:.8g}" if inertia is None else None),
            ("inertia", None if inertia is None else f"{inertia:.8g}"),
            ("mean squared error", None if error is None else f"{error:.6g}"),
            ("iterations", estimator.n_iter_),
            ("seconds", f"{history[-1].seconds:.2f}" + (f" ({parts})" if len(stages) > 1 else "")),
            ("compiling", f"{compiling:.1f} s beside these" if compiling else None),
            ("distances", f"{estimator.n_distances_:,}"),
            ("model", folder),
            ("labels", labels),
        ],
    )
    if "-" in data:
        return  # what came from standard input is gone
    columns = [] if names is None or hasattr(estimator, "feature_names_in_") else ["--columns", ",".join(names)]
    print_next(console, "globular", "predict", folder, *data, *columns, "-o", "labels.npy")
    tables = [part for name in data for part in ("--data", name)]
    print_next(console, "globular", "report", folder, *tables, *columns, word="or")
