"""Options and arguments of the commands: how they are called, and what their help says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from globular.cli.models import Model

LABEL_SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
CENTER_SUFFIXES = (".npy", ".csv", ".parquet")


def _number_of_clusters(text: str | None) -> int | str | None:
    """A whole number, or auto."""
    if text is None or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"{text!r} is not a whole number of at least 1, nor auto")
    return int(text)


def _hush(quiet: bool) -> bool:
    """Warnings stay; that kernels are compiled is no news for who wants none."""
    if quiet:
        logging.getLogger("globular").setLevel(logging.ERROR)
    return quiet


DataArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA",
        help="Tables of numbers: .npy .npz .csv .tsv .parquet .feather .jsonl .fvecs .bvecs .ivecs .h5 .svmlight, "
        "several of them, a folder, 'part-*.npy', or - for standard input.",
        show_default=False,
    ),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder that globular fit wrote.", show_default=False)
]
ModelFolderOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="MODEL", help="Folder for the model.", show_default=False)
]
ClustersOption = Annotated[
    Any,
    typer.Option(
        "-k",
        "--clusters",
        metavar="N",
        parser=str,
        callback=_number_of_clusters,
        help="Number of clusters, or auto (see globular select); for infinite mixtures the most, if any.",
    ),
]
ModelOption = Annotated[
    Model | None, typer.Option("--model", help=f"What to fit: {', '.join(Model)}; kmeans by default.")
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        help="auto (default); exact, lloyd or probing for kmeans, em, nested, variational or chunky for gmm.",
    ),
]
InitOption = Annotated[
    str | None, typer.Option("--init", help="Seeding: auto, k-means++, hierarchical, random …; by name as in Python.")
]
RunsOption = Annotated[
    int | None, typer.Option("--n-init", metavar="N", min=1, help="Runs from different starts; the best is kept.")
]
QualityOption = Annotated[
    str | None, typer.Option("--quality", help="For kmeans with many clusters: fast, balanced (default) or best.")
]
MetricOption = Annotated[
    str | None, typer.Option("--metric", help="For the k-means models: euclidean (default) or cosine.")
]
CovarianceOption = Annotated[
    str | None,
    typer.Option("--covariance-type", help="For Gaussian mixtures: tied_spherical, spherical, diag, tied or full."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other parameter of the model, as in Python; repeatable."),
]
IterationsOption = Annotated[int | None, typer.Option("--max-iter", metavar="N", min=0, help="Most iterations.")]
SecondsOption = Annotated[float | None, typer.Option("--max-time", metavar="SECONDS", help="Most seconds.")]
TolOption = Annotated[
    float | None, typer.Option("--tol", metavar="X", help="Smallest change that is worth going on for.")
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="N", min=0, max=2**32 - 1, help="Same seed, same result, on one machine and version."
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", metavar="N", min=1, help="Number of threads; all cores by default.")
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Where to compute: auto (default), cpu, cuda or cuda:N.")
]
WeightsOption = Annotated[
    str | None, typer.Option("--weights", metavar="FILE|COLUMN", help="A weight per row: a file, or a column of DATA.")
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="A,B,…", help="Use only these columns, by name.")
]
LabelsOption = Annotated[
    Path | None, typer.Option("--labels", metavar="FILE", help="Also write the labels (.npy .npz .csv .parquet).")
]
CheckpointOption = Annotated[
    float | None,
    typer.Option("--checkpoint-every", metavar="SECONDS", help="Seconds between two saves of the unfinished model."),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on from the model in MODEL if there is one; iterations count anew.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what is written if it exists already.")]
RowsOption = Annotated[
    list[str] | None, typer.Option("--data", metavar="DATA", help="A table of rows; repeatable.", show_default=False)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", callback=_hush, help="No progress bar, no summary.")]
SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="ADDRESS", help="Work on the Dask cluster there; its workers read DATA."),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="Start N Dask worker processes and work on them.")
]
