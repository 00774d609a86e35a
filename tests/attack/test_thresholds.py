"""Either side of every constant at which another path begins; the table is `thresholds.py`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pytest

from attack.cases import Case
from attack.test_fits import check_centers, check_inertia, check_mixture, fit, same_bits
from attack.thresholds import THRESHOLDS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
THIN = Case(900, 3, 40, "blobs", "float32", "uneven", 0)
WIDE = Case(700, 24, 30, "blobs", "float32", "some zero", 1)
SPARSE = Case(500, 20, 25, "blobs", "csr32", "uneven", 2)
DENSE = Case(600, 3, 6, "blobs", "float64", "uneven", 3)
FITS: dict[str, list[tuple[str, Case, dict[str, Any]]]] = {
    "centers": [
        ("KMeans", THIN, {}),
        ("KMeans", WIDE, {"algorithm": "probing"}),
        ("KMeans", SPARSE, {"algorithm": "yinyang"}),
    ],
    "batches": [
        ("NestedMiniBatchKMeans", THIN, {"batch_size": 100}),
        ("NestedMiniBatchKMeans", SPARSE, {"batch_size": 60}),
    ],
    "neighbors": [("VariationalKMeans", THIN, {}), ("VariationalKMeans", WIDE, {"n_candidates": 1})],
    "mixtures": [
        ("GaussianMixture", DENSE, {}),
        ("GaussianMixture", DENSE, {"covariance_type": "diag"}),
        ("VariationalGaussianMixture", DENSE, {}),
    ],
    "trees": [("ChunkyGaussianMixture", DENSE, {}), ("InfiniteGaussianMixture", DENSE, {})],
}
SIDES = [
    pytest.param(name, family, value, id=f"{name}={value:g}")
    for name, (family, values) in THRESHOLDS.items()
    for value in values
]


def change(monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    """Set a constant wherever it was imported."""
    module, constant = f"globular.{name}".rsplit(".", 1)
    before = getattr(import_module(module), constant)
    for known in [module for key, module in sys.modules.items() if key.startswith("globular")]:
        if vars(known).get(constant) is before:
            monkeypatch.setattr(known, constant, value)


@pytest.mark.parametrize(("name", "family", "value"), SIDES)
def test_either_side(name: str, family: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, name, value)
    for estimator, case, options in FITS[family]:
        model = fit(estimator, case, options)
        if family in ("mixtures", "trees"):
            check_mixture(model, case)
            names: tuple[str, ...] = ("means_", "weights_", "covariances_")
        else:
            check_centers(model, case)
            names = ("cluster_centers_", "labels_")
        if estimator == "KMeans":
            check_inertia(model, case)
        same_bits(model, fit(estimator, case, options, n_threads=3), names)
