"""``globular fit``: cluster a table and save the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from globular.cli.cluster import SchedulerOption, WorkersOption, dask_workers, on_workers
from globular.cli.fit_options import (
    AlgorithmOption,
    CheckpointOption,
    ClustersOption,
    CovarianceOption,
    FitOptions,
    FolderOption,
    ForceOption,
    InitOption,
    LabelsOption,
    MaxIterOption,
    MaxTimeOption,
    MetricOption,
    ModelKind,
    ModelOption,
    QualityOption,
    ResumeOption,
    SeedOption,
    TolOption,
    WeightsOption,
)
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
    from collections.abc import Sequence

    from globular.data.blocks import Source
    from globular.model.history import Record


def fit(
    data: DataArgument,
    model_folder: FolderOption,
    n_clusters: ClustersOption = None,
    model: ModelOption = ModelKind.kmeans,
    algorithm: AlgorithmOption = None,
    init: InitOption = None,
    quality: QualityOption = None,
    metric: MetricOption = None,
    covariance_type: CovarianceOption = None,
    max_iter: MaxIterOption = None,
    max_time: MaxTimeOption = None,
    tol: TolOption = None,
    seed: SeedOption = None,
    threads: ThreadsOption = None,
    weights: WeightsOption = None,
    columns: ColumnsOption = None,
    labels: LabelsOption = None,
    checkpoint_every: CheckpointOption = None,
    resume: ResumeOption = False,
    force: ForceOption = False,
    scheduler: SchedulerOption = None,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> int:
    """Cluster DATA and save the model.

    Ctrl-C ends the fit and saves what there is; the exit code is then 130.
    """
    given = {
        "algorithm": algorithm,
        "init": init,
        "quality": quality,
        "metric": metric,
        "covariance_type": covariance_type,
        "max_iter": max_iter,
        "max_time": max_time,
        "tol": tol,
        "random_state": seed,
        "n_threads": threads,
    }
    parameters = {name: value for name, value in given.items() if value is not None}
    with dask_workers(scheduler, workers) as distributed:
        return run_fit(
            FitOptions(
                data=data,
                model_folder=model_folder,
                kind=model,
                n_clusters=n_clusters,
                parameters=parameters,
                weights=weights,
                columns=split_columns(columns),
                labels=labels,
                checkpoint_every=checkpoint_every,
                resume=resume,
                force=force,
                quiet=quiet,
                distributed=distributed,
            )
        )


def run_fit(options: FitOptions) -> int:
    """Check everything that can be checked before the fit, fit, save, tell."""
    from globular.callbacks import Callback, Checkpoint, Progress
    from globular.io.files import check_file
    from globular.persistence import save

    folder = _free_folder(options)
    if options.labels is not None:
        check_file(options.labels, ARRAY_SUFFIXES, "labels")
    source, sample_weight = open_weighted(options.data, options.columns, options.weights)
    X = on_workers(options.data, source, _chosen_columns(options, source)) if options.distributed else source
    resumed = _resumed(options, source) if options.resume else None
    model = _new_model(options) if resumed is None else resumed
    warm_start = model.warm_start
    if resumed is not None:
        model.set_params(warm_start=True)
    ending = _Ending()
    progress = Progress()
    callbacks: list[Callback | _Ending] = [ending]
    if options.checkpoint_every is not None:
        callbacks.append(Checkpoint(folder, every_seconds=options.checkpoint_every, include_labels=False))
    if not options.quiet:
        callbacks.append(progress)
    model.set_params(callbacks=callbacks)
    try:
        model.fit(X, sample_weight=sample_weight)
    except KeyboardInterrupt:
        if not ending.n_iterations:
            progress.close()
            say("no iteration was finished: nothing is saved")
            raise
    finally:
        progress.close()
    save(model.set_params(warm_start=warm_start), folder)
    if options.labels is not None:
        _write_labels(model, source, options.labels)
    if not options.quiet:
        _report(model, source, options)
    return INTERRUPTED if ending.interrupted else 0


def _free_folder(options: FitOptions) -> Path:
    """Where to save. A model there may be the work of hours: it is replaced only if that is asked for."""
    from globular.persistence import check_destination, is_model

    if options.force and options.resume:
        raise ValueError("--force and --resume exclude each other; leave one of them out")
    if is_model(options.model_folder) and not (options.force or options.resume):
        raise ValueError(
            f"{options.model_folder} already holds a model; replace it with --force, go on from it with --resume, or "
            "choose another folder"
        )
    return check_destination(options.model_folder)


class _Ending:
    """Notes how a fit ended; as a callback it sees what `fit` itself does not return."""

    def __init__(self) -> None:
        self.n_iterations = 0
        self.reason: str | None = None

    @property
    def interrupted(self) -> bool:
        """By Ctrl-C: the estimator says so, or it did not get to say anything."""
        return self.reason is None or "interrupt" in self.reason

    def on_iteration(self, estimator: Any, record: Record) -> None:
        self.n_iterations += 1

    def on_fit_end(self, estimator: Any, reason: str) -> None:
        self.reason = reason


# --- the model -----------------------------------------------------------------------------------------------


def _new_model(options: FitOptions) -> Any:
    import globular

    if options.n_clusters is None:
        raise ValueError("-k is missing: say how many clusters, e.g. -k 1000")
    if options.kind is ModelKind.kmeans:
        model = globular.KMeans(n_clusters=options.n_clusters)
    else:
        model = globular.GaussianMixture(n_components=options.n_clusters)
    return _set_given(model, options)


def _resumed(options: FitOptions, source: Source) -> Any | None:
    """The saved model, ready to go on; None if there is none yet."""
    from globular.persistence import is_model, load

    if not is_model(options.model_folder):
        if not options.quiet:
            say(f"{options.model_folder} has no model yet: starting from the beginning")
        return None
    model = load(options.model_folder)
    if model.n_features_in_ != source.n_columns:
        raise ValueError(
            f"{options.model_folder} was fitted on {model.n_features_in_} columns, {options.data} has "
            f"{source.n_columns}; leave out --resume to start anew"
        )
    expected = "n_clusters" if options.kind is ModelKind.kmeans else "n_components"
    stored = model.get_params(deep=False).get(expected)
    if stored is None:
        raise ValueError(f"{options.model_folder} holds a {type(model).__name__}, not a --model {options.kind}")
    if options.n_clusters not in (None, stored):
        raise ValueError(f"{options.model_folder} has {stored} clusters, not {options.n_clusters}; leave out -k")
    return _set_given(model, options)


def _set_given(model: Any, options: FitOptions) -> Any:
    """Set the parameters that were given; one that this model does not have is an error."""
    known = model.get_params(deep=False)
    for name in options.parameters:
        if name not in known:
            raise ValueError(f"--{name.replace('_', '-')} does not apply to --model {options.kind}")
    return model.set_params(**options.parameters)


# --- the results ---------------------------------------------------------------------------------------------


def _write_labels(model: Any, source: Source, path: Path) -> None:
    from globular.cli.predict import predict_blocks
    from globular.io import write_array

    labels = getattr(model, "labels_", None)
    write_array(path, predict_blocks(model, source) if labels is None else labels)


def _report(model: Any, source: Source, options: FitOptions) -> None:
    from globular.report.figures import mean_squared_error

    console = output()
    history = model.history_
    centers = getattr(model, "cluster_centers_", getattr(model, "means_", None))
    last = history[-1] if history else None
    inertia, error = getattr(model, "inertia_", None), mean_squared_error(model, history)
    print_table(
        console,
        f"{type(model).__name__} of {source.name}",
        [
            ("rows × columns", f"{source.n_rows:,} × {source.n_columns:,}"),
            ("clusters", None if centers is None else f"{len(centers):,}"),
            ("algorithm", getattr(model, "algorithm_", None)),
            # k-means as it ended: its centres have moved once more since the last record
            ("objective", f"{last.objective:.8g}" if last is not None and inertia is None else None),
            ("inertia", None if inertia is None else f"{inertia:.8g}"),
            ("mean squared error", None if error is None else f"{error:.6g}"),
            ("iterations", getattr(model, "n_iter_", len(history))),
            ("seconds", None if last is None else f"{last.seconds:.2f}"),
            ("distances", f"{model.n_distances_:,}"),
            ("model", options.model_folder),
            ("labels", options.labels),
        ],
    )
    chosen = _chosen_columns(options, source)
    columns = [] if chosen is None else ["--columns", ",".join(chosen)]
    print_next(console, "globular", "predict", options.model_folder, options.data, *columns, "-o", "labels.npy")
    print_next(console, "globular", "report", options.model_folder, "--data", options.data, *columns, word="or")


def _chosen_columns(options: FitOptions, source: Source) -> Sequence[str] | None:
    """The columns that were clustered, unless these are all that DATA has."""
    by_column = options.weights is not None and not Path(options.weights).is_file()
    return options.columns or (getattr(source, "column_names", None) if by_column else None)
