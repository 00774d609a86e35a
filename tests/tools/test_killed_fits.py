"""A fit that is killed at half of its steps goes on from its last checkpoint: at least a third is not lost."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from attack import kills
from globular import KMeans
from globular.data.streamed import ConcatenatedSource
from globular.estimators import inputs

FIT = """
import sys, time
import numpy as np
from globular import KMeans
from globular.callbacks import Checkpoint

data, folder, n_clusters, every, pause = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
X = np.load(data)
KMeans(int(n_clusters), random_state=0).fit(X)  # what is slow the first time

def tell(model, record):
    print(record.seconds, flush=True)
    time.sleep(pause)

callbacks = [Checkpoint(folder, every_seconds=every), tell]
KMeans(int(n_clusters), random_state=0, callbacks=callbacks).fit(X)
"""


def killed_at_half(n_steps: int, X: Any, folder: Path, n_clusters: int, every: float, pause: float) -> list[float]:
    """Kill a fit in another process when half of its steps are done; the seconds of each, by its own clock."""
    np.save(folder / "rows.npy", X)
    arguments = [str(folder / "rows.npy"), str(folder / "run"), str(n_clusters), str(every), str(pause)]
    with subprocess.Popen([sys.executable, "-c", FIT, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [float(process.stdout.readline()) for _ in range(n_steps // 2)]
        process.kill()
    return told


def groups(n_rows: int, n_columns: int) -> Any:
    random = np.random.default_rng(0)
    middles = random.normal(size=(200, n_columns)) * 3
    return (middles[random.integers(0, 200, n_rows)] + random.normal(size=(n_rows, n_columns))).astype(np.float32)


def check_killed_fit(X: Any, folder: Path, n_clusters: int, every: float, pause: float) -> None:
    """Both times are of the process that is killed: what else the machine does slows both."""
    whole = KMeans(n_clusters, random_state=0).fit(X)
    first, *_, last = killed_at_half(len(whole.history_), X, folder, n_clusters, every, pause)
    assert first < 0.3 * last
    saved: KMeans = globular.load(folder / "run")
    assert saved.history_[-1].seconds > last * 2 / 3  # a third of the whole
    n_before = len(saved.history_)
    resumed = saved.set_params(warm_start=True, callbacks=None).fit(X)
    assert resumed.inertia_ < 1.02 * whole.inertia_ and n_before > 2


def test_a_killed_fit_goes_on_from_a_third(tmp_path: Path) -> None:
    check_killed_fit(groups(20_000, 16), tmp_path, 30, every=0.1, pause=0.05)


def test_a_fit_of_files_killed_within_a_pass_goes_on_from_the_last_one(tmp_path: Path) -> None:
    """The small twin of `tests/attack/kills.py`, in steps that the other process tells of."""
    files = kills.write_files(tmp_path / "files", 500, 0)
    plain = kills.Undisturbed("lloyd", files, tmp_path)
    kills.check_kill(plain, tmp_path / "killed", after=3, delay=0.0)


def test_ctrl_c_within_a_pass_over_a_file_keeps_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    files, within = kills.write_files(tmp_path / "files", 500, 0), list[int]()
    whole = kills.model_of("lloyd").set_params(max_iter=3).fit(files)
    read = ConcatenatedSource._pieces

    def interrupted(source: ConcatenatedSource, segment: int, *span: int) -> Iterator[Any]:
        if within and segment == 2:  # on the thread that reads ahead; half of the rows have been seen
            within.clear()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        yield from read(source, segment, *span)

    def armed(model: KMeans, record: Any) -> None:
        within.extend([1] * (record.iteration == 3))

    monkeypatch.setattr(ConcatenatedSource, "_pieces", interrupted)
    with pytest.warns(globular.errors.FitInterruptedWarning):
        model = kills.model_of("lloyd").set_params(callbacks=armed).fit(files)
    assert model.stopped_ == "interrupted" and not within
    assert kills.bits(model)[:3] == kills.bits(whole)[:3]
    np.testing.assert_array_equal(model.labels_, whole.labels_)


@pytest.mark.slow
@pytest.mark.parametrize(("n_clusters", "every"), [(100, 0.1), (1000, 1.0), (10_000, 1.0)])
def test_a_large_killed_fit_goes_on_from_a_third(tmp_path: Path, n_clusters: int, every: float) -> None:
    """A hundred clusters take about a second, so that checkpoints every second would come too late."""
    check_killed_fit(groups(1_000_000, 32), tmp_path, n_clusters, every=every, pause=0.0)
