"""Either side of every constant at which another path begins; the table is `thresholds.py`."""

import ast
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from attack.cases import Case, exactly
from attack.exceptions import EXCEPTIONS
from attack.oracle import directions
from attack.test_files import FILES, whole
from attack.test_fits import LOW_RANK, check_centers, check_inertia, check_low_rank, check_mixture, fit, same_bits
from attack.thresholds import NEVER, THRESHOLDS
from reference import linear

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
THIN = Case(500, 3, 25, "blobs", "float32", "uneven", 0)
WIDE = Case(400, 24, 20, "blobs", "float32", "some zero", 1)
SPARSE = Case(300, 20, 15, "blobs", "csr32", "uneven", 2)
DENSE = Case(600, 3, 6, "blobs", "float64", "uneven", 3)
FITS: dict[str, list[tuple[str, Case, dict[str, Any]]]] = {
    "centers": [  # in eight iterations a fit has been on every path
        ("KMeans", THIN, {"max_iter": 8}),
        ("KMeans", WIDE, {"algorithm": "probing", "max_iter": 8}),
        ("KMeans", SPARSE, {"algorithm": "lloyd", "max_iter": 8}),
    ],
    "sparse": [("KMeans", SPARSE, {}), ("KMeans", SPARSE, {"metric": "cosine", "algorithm": "lloyd"})],
    "few": [("KMeans", THIN, {}), ("KMeans", WIDE, {}), ("KMeans", WIDE, {"metric": "cosine"})],
    "seeds": [
        ("KMeans", THIN, {"init": init, "algorithm": "lloyd"})
        for init in ("random", "plain k-means++", "k-means++", "afk-mc2", "k-means||", "hierarchical")
    ],
    "batches": [
        ("NestedMiniBatchKMeans", THIN, {"batch_size": 100}),
        ("NestedMiniBatchKMeans", SPARSE, {"batch_size": 60}),
        ("NestedMiniBatchKMeans", WIDE, {"batch_size": 60, "search": "yinyang"}),
    ],
    "neighbors": [("VariationalKMeans", THIN, {}), ("VariationalKMeans", WIDE, {"n_candidates": 1})],
    "mixtures": [
        ("GaussianMixture", DENSE, {}),
        ("GaussianMixture", DENSE, {"covariance_type": "diag"}),
        ("VariationalGaussianMixture", DENSE, {}),
    ],
    "families": [
        ("VonMisesFisherMixture", DENSE, {}),
        ("VonMisesFisherMixture", Case(200, 20, 8, "blobs", "csr32", "uneven", 2), {}),
        ("VonMisesFisherMixture", WIDE, {"init_params": "k-means++"}),
    ],
    "correlated": [
        ("LowRankGaussianMixture", DENSE, {"n_factors": 2, "n_candidates": 2}),
        ("LowRankGaussianMixture", DENSE, {"n_factors": 2, "n_candidates": 6}),
        ("VariationalGaussianMixture", DENSE, {"covariance_type": "full", "n_candidates": 2}),
    ],
    "trees": [("ChunkyGaussianMixture", DENSE, {}), ("InfiniteGaussianMixture", DENSE, {})],
}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "centers": {
        "algorithms.seeding.common.MOST_ROWS": 0,
        "algorithms.kmeans.coreset.FEWEST_PART_ROWS": (32, 32),
        "algorithms.kmeans.coreset.LEAST_PER_CLUSTER": 2,
    },
    "sparse": {"model.sparse_centers.SPARSE_FROM": 1, "passes.cpu.shard.ENTRIES_APART": 0},
    "files": {"estimators.inputs.MEMORY_SHARE": 0.0},
}
"""What else is changed, so that the few rows of a test come to what many rows come to."""
SIDES = [
    pytest.param(name, family, value, id=f"{name}={value}")
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


@pytest.mark.parametrize(("name", "family", "value"), [side for side in SIDES if side.values[1] != "files"])
def test_either_side(name: str, family: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, small in ({**SMALL.get(family, {}), name: value}).items():
        change(monkeypatch, constant, small)
    for estimator, case, options in FITS[family]:
        model = fit(estimator, case, options)
        names = check(model, family, case)
        if value != NEVER:  # else few rows have their usual path, on which test_fits.py compares threads
            same_bits(model, fit(estimator, case, options, n_threads=3), names)


def check(model: Any, family: str, case: Case) -> tuple[str, ...]:
    """Compare a model with brute force; what else there is of it to be compared."""
    if family == "families":
        check_family(model, case)
        return "means_", "weights_", "concentrations_"
    if isinstance(model, globular.LowRankGaussianMixture):
        check_low_rank(model, case)
        return LOW_RANK
    if family in ("mixtures", "correlated", "trees"):
        check_mixture(model, case)
        return "means_", "weights_", "covariances_"
    check_centers(model, case)
    if isinstance(model, globular.KMeans):
        check_inertia(model, case)
    return "cluster_centers_", "labels_"


def check_family(model: Any, case: Case) -> None:
    """Answers as brute force has them."""
    X = case.rows()
    q, densities = linear.posterior(directions(exactly(X)), model._mixture().linear)
    np.testing.assert_allclose(model.score_samples(X), densities, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.predict_proba(X), q, atol=1e-5)
    assert (q[np.arange(len(q)), model.labels_] >= q.max(axis=1) - 1e-9).all()


@pytest.mark.parametrize(("name", "family", "value"), [side for side in SIDES if side.values[1] == "files"])
def test_either_side_of_reading(name, family, value, monkeypatch, tmp_path):
    for constant, small in ({**SMALL[family], name: value}).items():
        change(monkeypatch, constant, small)
    rows = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    np.save(tmp_path / "columns.npy", np.asfortranarray(rows))
    globular.io.write_array(tmp_path / "written.csv", rows)
    for file in FILES:
        (tmp_path / file).write_bytes(whole(file))
    wanted = globular.KMeans(3, init=rows[:3], algorithm="lloyd").fit(rows).cluster_centers_
    for path in sorted(tmp_path.iterdir()):
        found = globular.KMeans(3, init=rows[:3], algorithm="lloyd").fit(path).cluster_centers_
        np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=path.name)


def constants() -> Iterator[str]:
    """Every name in capitals of the package that stands for a number, or for some."""
    package = Path(globular.__file__).parent
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").rstrip(".")
        for line in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            if not isinstance(line, ast.Assign | ast.AnnAssign) or not _is_number(line.value):
                continue
            for name in (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)):
                if name.isupper():
                    yield f"{module}.{name}"


def _is_number(value: Any) -> bool:
    """Whether an expression is made of numbers alone, as far as its text says."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(_is_number, value.elts))
    if isinstance(value, ast.Dict):
        return bool(value.values) and all(map(_is_number, value.values))
    if isinstance(value, ast.BinOp):
        return any(map(_is_number, (value.left, value.right)))
    return isinstance(value, ast.UnaryOp) and _is_number(value.operand)


def test_every_constant_has_its_two_sides_or_a_reason_why_not() -> None:
    known = list(constants())
    excepted = {name: [p for p in EXCEPTIONS if fnmatch(name, p)] for name in known if name not in THRESHOLDS}
    assert [name for name, patterns in excepted.items() if not patterns] == []
    assert [name for name in THRESHOLDS if name not in known] == []
    used = {pattern for patterns in excepted.values() for pattern in patterns}
    assert [pattern for pattern in EXCEPTIONS if pattern not in used] == []
