"""Options and arguments of the commands with their help, and opening the tables, weights, models and Dask workers that
they name.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import sys
import tempfile
import warnings
from ast import literal_eval
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from globular.cli.shared import say
from globular.errors import import_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from globular.data.blocks import Column, Source

SIZES = ("n_clusters", "n_components", "max_components")
"""Names of the parameter that ``-k`` sets, one per kind of estimator."""
_NOT_TO_BE_SET = {
    "callbacks": "callbacks are functions; fit in Python for them",
    "verbose": "the command shows its progress, and with -q does not",
    **dict.fromkeys(SIZES, "the number of clusters is given by -k"),
}
"""Parameters that ``--set`` refuses, with the messages."""
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
    """Names of the estimators on the command line."""

    KMeans = "kmeans"
    VariationalKMeans = "variational-kmeans"
    NestedMiniBatchKMeans = "nested-kmeans"
    ResidualKMeans = "residual-kmeans"
    GaussianMixture = "gmm"
    VariationalGaussianMixture = "variational-gmm"
    ChunkyGaussianMixture = "chunky-gmm"
    BayesianGaussianMixture = "bayesian-gmm"
    LowRankGaussianMixture = "low-rank-gmm"
    InfiniteGaussianMixture = "infinite-gmm"
    InfiniteMultinomialMixture = "infinite-multinomial"
    VonMisesFisherMixture = "von-mises-fisher"
    PoissonMixture = "poisson"
    BernoulliMixture = "bernoulli"


def model_there(folder: Path, *, resume: bool, force: bool, quiet: bool) -> Any | None:
    """Load the model to resume, or None; an existing model is replaced only with --force."""
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
    """New estimator with this number of clusters; with auto its default, until the number is found."""
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


def split_sizes(text: str, model: Model | None, n_clusters: Any) -> list[int]:
    """Parse the ``8192,256`` of --residual."""
    if n_clusters is not None or model not in (None, Model.ResidualKMeans):
        raise ValueError("--residual says model and clusters; leave out -k and --model")
    if not all(size.strip().isdecimal() for size in text.split(",")):
        raise ValueError(f"--residual {text!r}: write the clusters of each level, such as 8192,8192,8192")
    return [int(size) for size in text.split(",")]


def check_found(found: Any, folder: Path, model: Model | None, n_clusters: int | str | None, source: Source) -> None:
    """Refuse a saved model that cannot be resumed or contradicts the options or the rows."""
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
    """Name of the parameter that ``-k`` sets."""
    known = estimator.get_params(deep=False)
    return next(name for name in SIZES if name in known)


def set_given(estimator: Any, given: dict[str, Any], settings: Sequence[str]) -> None:
    """Set the given parameters; an unknown one is an error."""
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
    """Silence the message about compiling kernels; warnings stay."""
    if quiet:
        logging.getLogger("globular").setLevel(logging.ERROR)
    return quiet


QuietOption = Annotated[bool, Option("--quiet", "-q", callback=_hush, help="No progress bar, no summary.")]


_BEGINNINGS = {
    b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"PAR1": ".parquet", b"ARROW1": ".feather", b"\x89HDF": ".h5",
    b"\x1f\x8b": ".csv.gz", b"{": ".jsonl", b"[": ".jsonl",
}  # fmt: skip
"""First bytes of file formats, to recognise standard input."""


def split_columns(text: str | None) -> list[str] | None:
    """Parse ``a,b,c``."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"--columns {text!r} has an empty name; write it as a,b,c")
    return names


def with_standard_input(data: Sequence[str]) -> list[str]:
    """Replace ``-`` by a temporary file with the contents of standard input."""
    return [_kept_input() if name == "-" else name for name in data]


def _kept_input() -> str:
    """Temporary file with standard input, since tables are read several times."""
    stream = sys.stdin.buffer
    first = stream.read(1 << 16)
    if not first:
        raise ValueError("-: standard input is empty; pipe a table into the command")
    begins = (suffix for begin, suffix in _BEGINNINGS.items() if first.lstrip(b" \r\n").startswith(begin))
    folder = tempfile.mkdtemp(prefix="globular-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, f"stdin{next(begins, '.csv')}")
    with path.open("wb") as file:
        file.write(first)
        shutil.copyfileobj(stream, file)
    return str(path)


def open_tables(data: Sequence[str], columns: Sequence[str] | None) -> Source:
    """Open all files as one table, rows one below the other."""
    from globular.data.open import Files

    return Files(tuple(data), None if columns is None else tuple(columns)).open()


def describe_tables(data: Sequence[str]) -> tuple[int, list[Column]] | None:
    """Number of rows of all files, and columns of the first of any type; None where columns have no names."""
    from globular.data.formats import described

    found = [described(name) for name in data]
    if any(each is None or any(not column.name for column in each[1]) for each in found):
        return None
    known = [each for each in found if each is not None]
    return sum(n_rows for n_rows, _ in known), known[0][1]


def load_model(folder: Path, n_threads: int | None = None) -> Any:
    """Load a model; `n_threads` replaces its number of threads."""
    from globular.persistence import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that its init function was not saved matters to fits only
        model = load(folder)
    return model if n_threads is None else model.set_params(n_threads=n_threads)


def open_for(model: Any, data: Sequence[str], columns: str | None) -> Source:
    """Open the columns of a table for a model: the ones asked for, else the columns of its fit by name."""
    from globular.data.blocks import check_columns

    chosen = split_columns(columns)
    source = open_tables(data, _columns_of(model, data) if chosen is None else chosen)
    check_columns(source, model.n_features_in_, getattr(model, "feature_names_in_", None))
    return source


def _columns_of(model: Any, data: Sequence[str]) -> list[str] | None:
    """Columns of the fit, or the only column of lists beside others; None means all columns."""
    described = describe_tables(data)
    if described is None:
        return None
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        return [str(name) for name in names]
    lists = [column.name for column in described[1] if column.kind == "lists"]
    return lists if len(lists) == 1 < len(described[1]) else None


def open_weighted(
    data: Sequence[str], columns: Sequence[str] | None, weights: str | None
) -> tuple[Source, NDArray[Any] | None]:
    """Open the table without its column of weights, if it has one, and read the weights."""
    if weights is None:
        return open_tables(data, columns), None
    if Path(weights).is_file():
        source = open_tables(data, columns)
        values = _weights_from_file(Path(weights))
    else:
        coordinates = _columns_but(data, weights) if columns is None else columns
        if weights in coordinates:
            raise ValueError(f"--weights {weights}: also in --columns; a weight is not a coordinate")
        source = open_tables(data, coordinates)
        values = _only_column(open_tables(data, [weights]))
    if len(values) != source.n_rows:
        raise ValueError(f"--weights {weights}: {len(values):,} weights for {source.n_rows:,} rows")
    return source, values


def _weights_from_file(path: Path) -> NDArray[Any]:
    import numpy as np

    from globular.errors import DataError

    if path.suffix.lower() == ".npy":  # usually a one-dimensional array, which is not a table
        try:
            stored = np.load(path, mmap_mode="r", allow_pickle=False)  # refuses a header that declares too much
            if stored.ndim == 1:
                return np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise DataError(f"{path}: not a complete .npy file of numbers ({error})") from error
    return _only_column(open_tables([str(path)], None))


def _only_column(table: Source) -> NDArray[Any]:
    """The values of a table with one column, as a vector."""
    import numpy as np

    from globular.errors import DataError

    if table.n_columns != 1:
        raise DataError(f"{table.name}: weights are one column, this has {table.n_columns}")
    rows: Any = table.whole()
    return np.asarray(rows.toarray() if table.is_sparse else rows).ravel()


def _columns_but(data: Sequence[str], weight_column: str) -> list[str]:
    """All columns of the table except the weights."""
    described = describe_tables(data)
    if described is None:
        raise ValueError(
            f"--weights {weight_column}: there is no such file, and the columns of {data[0]} have no names; give a file"
        )
    names = [column.name for column in described[1]]
    if weight_column not in names:
        raise ValueError(f"--weights {weight_column}: neither a file nor a column of {data[0]}")
    return [name for name in names if name != weight_column]


@contextmanager
def dask_workers(scheduler: str | None, n_workers: int | None) -> Iterator[bool]:
    """Start or join a Dask cluster if either option was given; True if there is one."""
    if scheduler is None and n_workers is None:
        yield False
        return
    if scheduler is not None and n_workers is not None:
        raise ValueError("--scheduler and --workers exclude each other; leave one of them out")
    Client = import_extra("distributed", "distributed", "dask", "working on Dask workers").Client
    with ExitStack() as stack:
        target = stack.enter_context(_local_cluster(n_workers)) if scheduler is None else scheduler
        try:
            client = stack.enter_context(Client(target, set_as_default=False, timeout="30s"))
        except OSError as error:
            raise ValueError(f"--scheduler {scheduler}: no Dask scheduler answers there ({error})") from error
        stack.enter_context(client.as_current())
        yield True


def _local_cluster(n_workers: int | None) -> Any:
    """Worker processes that share this machine's cores."""
    import logging

    from distributed import LocalCluster

    from globular.threads import default_threads

    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=max(1, default_threads() // (n_workers or 1)),
        processes=True,
        dashboard_address=":0",
        silence_logs=logging.ERROR,
    )


def on_workers(data: Sequence[str], source: Source, columns: Sequence[str] | None) -> Any:
    """DATA as files that the workers read, with the chosen columns of `source`."""
    from globular.data.open import Files

    chosen = None if columns is None else (getattr(source, "column_names", None) or columns)
    return Files(tuple(data), None if chosen is None else tuple(chosen))
