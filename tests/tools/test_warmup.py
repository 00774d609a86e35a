"""Compiling ahead: what it prepares need not be compiled any more, and it says what it did."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import globular
from globular import warming
from globular.cli.main import run
from globular.kernels import cache
from globular.kernels.target import Target, levels

FIT = """
import numpy as np
from globular import NestedMiniBatchKMeans
X = np.random.default_rng(1).normal(size=(15_000, 12)).astype(np.float32)
NestedMiniBatchKMeans(100, random_state=1, max_iter=20).fit(X).predict(X)
"""


def test_a_model_that_was_warmed_up_compiles_nothing() -> None:
    assert warming._in_a_process(("NestedMiniBatchKMeans", "float32")) == "NestedMiniBatchKMeans, float32"
    assert cache.count() > 0
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIT], capture_output=True, text=True, check=True)
    assert "compiling" not in done.stderr


WHOLE_FIT = """
import sys
import numpy as np
from globular.warming import FITS
X = np.random.default_rng(1).normal(size=(20_000, 8)) + 9 * np.random.default_rng(2).integers(0, 5, (20_000, 1))
for model in FITS:
    if type(model).__name__ == sys.argv[1]:
        model.set_params(max_iter=type(model)().max_iter, random_state=1)
        model.fit(X.astype(np.float32)).predict(X.astype(np.float32))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", warming.MODELS)
def test_a_whole_fit_compiles_nothing_after_the_short_ones_of_a_warm_up(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To its last iteration: infinite mixtures need their largest kernels after many."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    warming._in_a_process((name, "float32"))
    command = [sys.executable, "-W", "ignore", "-c", WHOLE_FIT, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "compiling" not in done.stderr


def test_the_command_prepares_what_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs: list[tuple[str, str]] = []
    monkeypatch.setattr(warming, "_in_a_process", lambda job, _: jobs.append(job) or ", ".join(job))
    assert run(["warmup", "--model", "KMeans", "--model", "GaussianMixture", "--jobs", "1"]) == 0
    assert jobs == [(name, dtype) for dtype in warming.DTYPES for name in ("KMeans", "GaussianMixture")]
    printed = capsys.readouterr().out
    assert re.search(r"s  KMeans, float32\n", printed)
    assert re.search(r"^\d+ kernels compiled; \d+ in \S+", printed, re.MULTILINE)
    jobs.clear()
    assert globular.warmup("KMeans") == ["KMeans"] and len(jobs) == len(warming.DTYPES)
    jobs.clear()
    assert globular.warmup() == warming.MODELS and len(jobs) == len(warming.MODELS) * len(warming.DTYPES)


def test_every_estimator_of_rows_is_known() -> None:
    estimators = {name for name in globular.__all__ if hasattr(getattr(globular, name), "get_params")}
    of_counts = {"InfiniteMultinomialMixture", "PoissonMixture", "BernoulliMixture"}
    assert set(warming.MODELS) == estimators - of_counts


def test_a_model_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["warmup", "--model", "DBSCAN"]) == 2
    assert re.search("models: no model 'DBSCAN'; there are KMeans, ", capsys.readouterr().err)


def test_a_fit_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"kernels of KMeans in float128x did not compile: TypeError: .*float128x"):
        warming._in_a_process(("KMeans", "float128x"))


def test_kernels_for_a_wheel_are_compiled_for_every_level(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs: list[Any] = []

    def in_a_process(job: tuple[str, str], variables: Mapping[str, str]) -> str:
        jobs.append((job, variables))
        for level in levels().values():
            (tmp_path / cache.name_of(level)).mkdir(exist_ok=True)
            (tmp_path / cache.name_of(level) / "a.kernel").touch()
        return job[0]

    monkeypatch.setattr(warming, "_in_a_process", in_a_process)
    assert list(warming.compile_levels(tmp_path, ["KMeans"])) == [
        f"{name}: KMeans" for name in levels() for _ in warming.DTYPES
    ]
    for (name, _), variables in jobs:
        assert name == "KMeans" and variables["NUMBA_CACHE_DIR"] == str(tmp_path)
        assert Target(variables["NUMBA_CPU_NAME"], variables["NUMBA_CPU_FEATURES"]) in levels().values()
    assert (tmp_path / cache.VERSIONS).read_text() == cache.versions()


def test_a_wheel_without_the_level_that_it_must_have_is_not_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reached = {"x86-64-v3": Target("x86-64-v3", "+avx2")}
    monkeypatch.setattr(warming, "levels", lambda: reached)
    monkeypatch.setattr(warming, "_in_a_process", lambda job, _: pytest.fail("compiled"))
    with pytest.raises(RuntimeError, match=r"kernels of x86-64-v4 cannot be built here: this CPU reaches x86-64-v3;"):
        list(warming.compile_levels(tmp_path, ["KMeans"], ["x86-64-v4", "x86-64-v3"]))
    monkeypatch.setattr(warming, "_in_a_process", lambda job, _: job[0])  # nothing is written
    with pytest.raises(RuntimeError, match="no kernels of x86-64-v3 in"):
        list(warming.compile_levels(tmp_path, ["KMeans"], ["x86-64-v3"]))
