"""Which compiler runs, and that every estimator works with numba's public interface alone."""

import ast
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from globular.jit import build, library
from globular.jit.library import LEVELS, levels

JIT = Path(build.__file__).parent
PUBLIC = {"numba", "numba.core.compiler", "numba.core.event", "numba.extending", "llvmlite", "llvmlite.binding"}
"""Modules that the manuals of numba and llvmlite tell of."""
PRIVATE = ("linked", "build")
"""Our files that need others."""

EVERY = """
import logging, sys, warnings
import numpy as np
logging.basicConfig(level=logging.INFO)
warnings.simplefilter("ignore")
{hide}
import globular
random = np.random.default_rng(0)
X = np.floor(4.0 * np.abs(random.normal(size=(300, 3))))
for name, options in (
    ("KMeans", {{"n_clusters": 4}}), ("VariationalKMeans", {{"n_clusters": 8}}),
    ("NestedMiniBatchKMeans", {{"n_clusters": 4}}), ("GaussianMixture", {{"n_components": 2}}),
    ("VariationalGaussianMixture", {{"n_components": 8}}), ("ChunkyGaussianMixture", {{"n_components": 2}}),
    ("LowRankGaussianMixture", {{"n_components": 2, "n_factors": 1}}), ("InfiniteGaussianMixture", {{}}),
    ("InfiniteMultinomialMixture", {{}}), ("VonMisesFisherMixture", {{"n_components": 2}}),
    ("PoissonMixture", {{"n_components": 2}}), ("BernoulliMixture", {{"n_components": 2}}),
)[{some}]:
    rows = (X > 1.0).astype(float) if name == "BernoulliMixture" else X
    getattr(globular, name)(random_state=0, max_iter=3, **options).fit(rows).predict(rows)
print("fitted")
"""


def fitted(code: str, **variables: str) -> str:
    """The log of a process that runs this code."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fitted\n"
    return done.stderr


def without_private_names(some: str) -> str:
    """Fit with a numba whose private names are others: our module that imports them cannot be imported."""
    hide = 'sys.modules["globular.jit.linked"] = None\n'
    hide += 'import globular.jit.library as library\nlibrary._load = lambda: "hidden"'
    return fitted(EVERY.format(hide=hide, some=some), GLOBULAR_JIT="auto")


def test_a_numba_with_other_insides_is_used_by_its_public_interface() -> None:
    said = without_private_names("1:2")
    assert "are compiled by globular.jit.stock: this numba has other insides than those that were tried" in said


@pytest.mark.slow
def test_every_estimator_fits_by_the_public_interface() -> None:
    without_private_names(":")


@pytest.mark.parametrize(("asked", "chosen"), [("stock", "stock: GLOBULAR_JIT=stock"), ("fast", "linked: numba was")])
def test_the_log_says_which_compiler_runs(asked: str, chosen: str) -> None:
    code = "import logging; logging.basicConfig(level=logging.INFO)\nfrom globular.jit.functions import compiler\n"
    said = fitted(code + "compiler(); print('fitted')", GLOBULAR_JIT=asked)
    assert f"are compiled by globular.jit.{chosen}" in said


def test_another_choice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "quick")
    with pytest.raises(ValueError, match="GLOBULAR_JIT='quick' must be one of auto, fast, stock"):
        library.asked_for()


def imported(path: Path) -> set[str]:
    """Modules of numba and llvmlite that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] in ("numba", "llvmlite")}


def test_private_names_are_in_two_files() -> None:
    for path in sorted(JIT.parent.rglob("*.py")):
        if path.parent != JIT:
            assert not imported(path), path
        elif path.stem not in PRIVATE:
            assert imported(path) <= PUBLIC, path
    assert sum(len((JIT / f"{name}.py").read_text().splitlines()) for name in PRIVATE) <= 600


def test_levels_ascend() -> None:
    for machine in LEVELS.values():
        features = [set(features.split(",")) for _, features in machine.values()]
        assert all(lower < higher for higher, lower in pairwise(features))
    assert set(levels()) <= {name for machine in LEVELS.values() for name in machine}
