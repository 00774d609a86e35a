"""Fits that are killed at random times: python tests/attack/kills.py --kills 50 [--seed 7]

Half of the kills hit a process that fits a folder of files, read anew for every pass, and saves a checkpoint after each
iteration. What lies in the folder then must be the state after one of the iterations, to the bit; what goes on from it
must end like an undisturbed fit that went on from there; and no finished iteration but the last may be lost.

The other half hit a worker of a Dask cluster in the middle of a fit, which must end with the bits of one without.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import globular
from globular import KMeans
from globular.callbacks import Checkpoint
from globular.estimators import inputs

KINDS = ("lloyd", "probing")


def model_of(kind: str) -> KMeans:
    """A fit of some dozen iterations."""
    return KMeans(40, algorithm=kind, init="random", random_state=0, tol=0.0, max_iter=15, quality="best", n_threads=1)


def bits(model: KMeans) -> tuple[Any, ...]:
    """What must be equal."""
    return model.cluster_centers_.tobytes(), model.inertia_, model.history_[-1].iteration, len(model.history_)


def write_files(folder: Path, n_rows: int, seed: int) -> Path:
    """Rows in four files that hang together."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    for number in range(4):
        np.save(folder / f"{number}.npy", random.normal(size=(n_rows, 8)).astype(np.float32))
    return folder


class Undisturbed:
    """A fit of files that nobody kills, with the state after each of its steps."""

    def __init__(self, kind: str, files: Path, folder: Path) -> None:
        self.kind, self.files, self.folder, self.states = kind, files, folder, dict[int, tuple[Any, ...]]()
        self.ends = dict[int, tuple[Any, ...]]()
        self.model = model_of(kind).set_params(callbacks=self._keep).fit(files)

    def _keep(self, model: KMeans, record: Any) -> None:
        n = len(model.history_)
        globular.save(model, self.folder / f"{self.kind}-{n}")
        self.states[n] = bits(model)

    def end_from(self, n: int) -> tuple[Any, ...]:
        """Where a fit ends that goes on from the state after n steps."""
        if n not in self.ends:
            self.ends[n] = bits(resumed(self.folder / f"{self.kind}-{n}", self.files))
        return self.ends[n]


def resumed(folder: Path, files: Path) -> KMeans:
    """A fit that goes on from a model folder."""
    model: KMeans = globular.load(folder)
    return model.set_params(warm_start=True, callbacks=None).fit(files)


def killed_fit(kind: str, files: Path, folder: Path, after: int, delay: float) -> int:
    """Kill a fit in another process so many seconds after it has told of a step; the number of steps it told of."""
    command = [sys.executable, str(Path(__file__).resolve()), "--fit", kind, str(files), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = 0
        for _ in range(after):
            told += bool(process.stdout.readline())
        timer = threading.Timer(delay, process.kill)
        timer.start()
        told += len(process.stdout.readlines())
        timer.join()
    return told


def fit_and_tell(kind: str, files: str, folder: str) -> None:
    """What the process does that is killed: the checkpoint of a step is written before it is told."""
    inputs.MEMORY_SHARE = 0.0  # read anew for every pass
    tell = lambda model, record: print(len(model.history_), flush=True)  # noqa: E731
    model_of(kind).set_params(callbacks=[Checkpoint(folder, every_iterations=1), tell]).fit(files)


def check_kill(plain: Undisturbed, folder: Path, after: int, delay: float) -> None:
    """Kill a fit and go on from what it leaves."""
    told = killed_fit(plain.kind, plain.files, folder, after, delay)
    if not told and not folder.exists():
        return
    found = globular.load(folder)
    n = len(found.history_)
    assert told <= n <= told + 1, (plain.kind, told, n)
    if bits(found) == bits(plain.model):  # it had ended before
        return
    assert bits(found) == plain.states[n], (plain.kind, n)
    assert bits(resumed(folder, plain.files)) == plain.end_from(n)


def kill_processes(n_kills: int, random: np.random.Generator, n_rows: int) -> None:
    """Kill fits of files."""
    inputs.MEMORY_SHARE = 0.0
    with TemporaryDirectory() as name:
        files = write_files(Path(name) / "files", n_rows, int(random.integers(1000)))
        plain = [Undisturbed(kind, files, Path(name)) for kind in KINDS[:n_kills]]
        for number in range(n_kills):
            one = plain[number % len(plain)]
            after = int(random.integers(0, len(one.states)))
            check_kill(one, Path(name) / f"killed-{number}", after, float(random.uniform(0.0, 0.05)))


def end(process: int) -> None:
    """SIGKILL, to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def processes(cluster: Any, client: Any) -> list[int]:
    """The processes of three workers, once they live."""
    while True:
        cluster.scale(3)  # a nanny whose worker was killed as it started gives up
        with contextlib.suppress(OSError, TimeoutError):  # one that has just been killed
            client.wait_for_workers(3, timeout=20)
            found = client.run(os.getpid)
            if len(found) == 3:
                return [found[address] for address in sorted(found)]
        time.sleep(0.1)


def kill_workers(n_kills: int, random: np.random.Generator, n_rows: int) -> None:
    """Kill a worker at some time of a fit of files; there are always three of them again."""
    from distributed import Client, LocalCluster

    with (
        TemporaryDirectory() as name,
        LocalCluster(
            n_workers=3, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as cluster,
        Client(cluster) as client,
    ):
        files = write_files(Path(name) / "files", n_rows, int(random.integers(1000)))
        expected = {kind: bits(model_of(kind).fit(files)) for kind in KINDS}
        for number in range(n_kills):
            kind, step = KINDS[number % 2], int(random.integers(0, 15))
            victim = processes(cluster, client)[number % 3]
            timers = list[threading.Timer]()

            def kill(model: KMeans, record: Any, step: int = step, victim: int = victim, timers: Any = timers) -> None:
                if len(model.history_) == step + 1:
                    timers.append(threading.Timer(float(random.uniform(0.0, 0.1)), end, [victim]))
                    timers[-1].start()

            found = bits(model_of(kind).set_params(callbacks=kill).fit(files))
            for timer in timers:
                timer.join()
            assert found == expected[kind], (kind, step)


def main() -> None:
    """Kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rows", type=int, default=20_000, help="of each of four files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fit", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.fit:
        fit_and_tell(*options.fit)
        return
    random = np.random.default_rng(options.seed)
    kill_processes(options.kills // 2, random, options.rows)
    kill_workers(options.kills - options.kills // 2, random, options.rows)
    print(f"{options.kills} kills from seed {options.seed}: nothing lost")


if __name__ == "__main__":
    main()
