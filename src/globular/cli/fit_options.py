"""The options of ``globular fit``: how each is written and explained, and what the command makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class ModelKind(StrEnum):
    """What to fit."""

    kmeans = "kmeans"
    gmm = "gmm"


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The options as they were given; None leaves the estimator's default (or, with `resume`, the saved value)."""

    data: str
    model_folder: Path
    kind: ModelKind
    n_clusters: int | None
    parameters: dict[str, Any]
    weights: str | None
    columns: list[str] | None
    labels: Path | None
    checkpoint_every: float | None
    resume: bool
    force: bool
    quiet: bool
    distributed: bool


FolderOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="MODEL", help="Folder for the model.", show_default=False)
]
ClustersOption = Annotated[int | None, typer.Option("-k", "--clusters", metavar="N", min=1, help="Number of clusters.")]
ModelOption = Annotated[ModelKind, typer.Option("--model", help="k-means or a Gaussian mixture.")]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        help="auto (default); lloyd, yinyang or probing for k-means, em, variational or chunky for --model gmm.",
    ),
]
InitOption = Annotated[
    str | None,
    typer.Option("--init", help="Seeding: auto (default), k-means++, hierarchical, random …; by name as in Python."),
]
QualityOption = Annotated[
    str | None, typer.Option("--quality", help="For k-means with many clusters: fast, balanced (default) or best.")
]
MetricOption = Annotated[str | None, typer.Option("--metric", help="euclidean (default) or cosine.")]
CovarianceOption = Annotated[
    str | None,
    typer.Option("--covariance-type", help="For --model gmm: tied_spherical, spherical, diag, tied or full."),
]
MaxIterOption = Annotated[int | None, typer.Option("--max-iter", metavar="N", min=0, help="Most iterations.")]
MaxTimeOption = Annotated[float | None, typer.Option("--max-time", metavar="SECONDS", help="Most seconds.")]
TolOption = Annotated[float | None, typer.Option("--tol", help="Smallest change that is worth going on for.")]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Same seed, same result.")
]
WeightsOption = Annotated[
    str | None,
    typer.Option("--weights", metavar="FILE|COLUMN", help="A weight per row: a file, or a column of DATA."),
]
LabelsOption = Annotated[
    Path | None, typer.Option("--labels", metavar="FILE", help="Also write the labels (.npy .csv .parquet).")
]
CheckpointOption = Annotated[
    float | None,
    typer.Option("--checkpoint-every", metavar="SECONDS", help="Save the model as often while it is fitted."),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on from the model in MODEL if there is one; iterations count anew.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the model in MODEL if there is one.")]
