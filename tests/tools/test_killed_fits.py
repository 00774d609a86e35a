"""A fit that is killed at half of its time goes on from its last checkpoint: at least a third is not lost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from globular import KMeans
from globular.callbacks import Checkpoint

FIT = """
import sys, time
import numpy as np
from globular import KMeans
from globular.callbacks import Checkpoint

data, folder, n_clusters, every, pause = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
X = np.load(data)
KMeans(int(n_clusters), random_state=0).fit(X)  # what is slow the first time
print("begins", flush=True)
callbacks = [Checkpoint(folder, every_seconds=every), lambda *_: time.sleep(pause)]
KMeans(int(n_clusters), random_state=0, callbacks=callbacks).fit(X)
"""


def killed_at(seconds: float, X: Any, folder: Path, n_clusters: int, every: float, pause: float) -> KMeans:
    """What the last checkpoint holds of a fit in another process that is killed so many seconds after it began."""
    np.save(folder / "rows.npy", X)
    arguments = [str(folder / "rows.npy"), str(folder / "run"), str(n_clusters), str(every), str(pause)]
    with subprocess.Popen([sys.executable, "-c", FIT, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begins\n"
        time.sleep(seconds)
        assert process.poll() is None
        process.kill()
    model: KMeans = globular.load(folder / "run")
    return model


def groups(n_rows: int, n_columns: int) -> Any:
    random = np.random.default_rng(0)
    middles = random.normal(size=(200, n_columns)) * 3
    return (middles[random.integers(0, 200, n_rows)] + random.normal(size=(n_rows, n_columns))).astype(np.float32)


def check_killed_fit(X: Any, folder: Path, n_clusters: int, every: float, pause: float) -> None:
    def nap(*_: Any) -> None:
        time.sleep(pause)

    KMeans(n_clusters, random_state=0).fit(X)  # what is slow the first time
    callbacks = [Checkpoint(folder / "whole", every_seconds=every), nap]
    whole = KMeans(n_clusters, random_state=0, callbacks=callbacks)
    begun = time.perf_counter()
    whole.fit(X)
    seconds = time.perf_counter() - begun
    assert whole.history_[0].seconds < 0.15 * seconds
    saved = killed_at(seconds / 2, X, folder, n_clusters, every, pause)
    assert saved.history_[-1].seconds > seconds / 3
    n_before = len(saved.history_)
    resumed = saved.set_params(warm_start=True, callbacks=None).fit(X)
    assert resumed.inertia_ < 1.02 * whole.inertia_ and n_before > 2


def test_a_killed_fit_goes_on_from_a_third(tmp_path: Path) -> None:
    check_killed_fit(groups(20_000, 16), tmp_path, 30, every=0.1, pause=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("n_clusters", "every"), [(100, 0.1), (1000, 1.0), (10_000, 1.0)])
def test_a_large_killed_fit_goes_on_from_a_third(tmp_path: Path, n_clusters: int, every: float) -> None:
    """A hundred clusters take about a second, so that checkpoints every second would come too late."""
    check_killed_fit(groups(1_000_000, 32), tmp_path, n_clusters, every=every, pause=0.0)
