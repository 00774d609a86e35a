"""Problems × adapters: the runs interleaved, the best of several kept, the files written whole."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from globular.benchmarking.adapters import ADAPTERS, Adapter, find_adapter
from globular.benchmarking.measure import Run, run_once
from globular.benchmarking.plots import plot_curve
from globular.benchmarking.problems import FULL_PROBLEMS, QUICK_PROBLEMS, Problem, find_problem
from globular.benchmarking.results import Machine, Row, describe_machine, write_rows
from globular.benchmarking.table import markdown_table
from globular.errors import MissingExtraError
from globular.io.files import write_whole

QUICK_SECONDS = 100.0  # after this no further run is started: two minutes in all
_QUICK_RUN_SECONDS = 45.0  # room for a first compilation, which is not timed but has to happen
_QUICK_GRACE_SECONDS = 15.0  # what a run may take beyond the deadline
_QUICK_ITERATIONS = 10
_QUICK_ADAPTERS = (
    "globular-fast",
    "globular-balanced",
    "globular-best",
    "globular-lloyd",
    "sklearn-lloyd",
    "sklearn-minibatch",
    "sklearnex-lloyd",
    "faiss-kmeans",
    "faiss-afkmc2",
    "superkmeans-flat",
    "superkmeans-hierarchical",
    "lance",
)


@dataclass(frozen=True)
class Plan:
    """How every run of a benchmark is done."""

    threads: int
    repeats: int
    n_iters: tuple[int, ...]
    seed: int
    timeout: float
    same_start: bool
    deadline: float


def run_benchmark(
    problems: Sequence[str],
    adapters: Sequence[str],
    *,
    threads: int = 2,
    repeats: int = 1,
    n_iter: int | Sequence[int] = 25,
    quick: bool = False,
    output: Path,
    progress: Callable[[str], None],
    seed: int = 0,
    timeout: float = 1800.0,
    same_start: bool = False,
) -> Path:
    """Measure adapters on problems and write results.csv, table.md and curve.png into the folder `output`.

    Parameters
    ----------
    problems, adapters : sequences of names
        Keys of `globular.benchmarking.problems.PROBLEMS` and `globular.benchmarking.adapters.ADAPTERS`; empty
        means all of them (with `quick`, the small generated problems and one setting per library).
        Missing data and libraries are listed with the reason, and the rest runs.
    threads, repeats, seed, timeout
        Threads of every run; runs per setting (the fastest counts); the seed of all; seconds after which a
        run is ended.
    n_iter : int or sequence of int
        Iterations given to everybody; several values give a curve.
    quick : bool
        At most 10 iterations, one repeat, and no new run after 100 seconds.
    same_start : bool
        Give the adapters that take a start the same random rows; otherwise everybody seeds by itself.
    progress : callable
        Receives one line of text per run.

    Returns
    -------
    The path of results.csv.

    Examples
    --------
    >>> from pathlib import Path
    >>> from globular.benchmarking.run import run_benchmark
    >>> run_benchmark(["quick-birch-1024"], ["sklearn-lloyd"], output=Path("bench-results"),
    ...               progress=print)  # doctest: +SKIP
    """
    chosen_problems = [find_problem(name) for name in problems or (QUICK_PROBLEMS if quick else FULL_PROBLEMS)]
    chosen_adapters = [find_adapter(name) for name in adapters or (_QUICK_ADAPTERS if quick else ADAPTERS)]
    plan = _plan(threads, repeats, n_iter, quick=quick, seed=seed, timeout=timeout, same_start=same_start)
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    results = output / "results.csv"
    machine, rows = describe_machine(), list[Row]()
    for problem in chosen_problems:
        for row in _run_problem(problem, chosen_adapters, plan, machine):
            rows.append(row)
            progress(_progress_line(row))
            # After every run: whatever ends a long benchmark, what was measured is on disk.
            write_rows(results, rows)
    write_whole(output / "table.md", lambda file: file.write(markdown_table(rows).encode()))
    try:
        plot_curve(rows, output / "curve.png")
    except (MissingExtraError, ValueError) as error:  # matplotlib is not installed, or nothing ran
        progress(f"curve.png not drawn: {error}")
    return results


def _plan(
    threads: int, repeats: int, n_iter: int | Sequence[int], *, quick: bool, seed: int, timeout: float, same_start: bool
) -> Plan:
    """Checked arguments, with the limits of a quick benchmark applied."""
    n_iters = (n_iter,) if isinstance(n_iter, int) else tuple(n_iter)
    for name, value in (("threads", threads), ("repeats", repeats), *(("n_iter", value) for value in n_iters)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not n_iters:
        raise ValueError("n_iter is empty; give at least one number of iterations")
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
    if not quick:
        return Plan(threads, repeats, n_iters, seed, timeout, same_start, math.inf)
    capped = tuple(dict.fromkeys(min(value, _QUICK_ITERATIONS) for value in n_iters))
    deadline = time.monotonic() + QUICK_SECONDS
    return Plan(threads, 1, capped, seed, min(timeout, _QUICK_RUN_SECONDS), same_start, deadline)


def _run_problem(problem: Problem, adapters: list[Adapter], plan: Plan, machine: Machine) -> Iterator[Row]:
    """All runs on one problem; the rows pass to the processes through one temporary .npy file."""
    if problem.missing_file() is not None:
        reason = Run("missing data", message=f"{problem.file} not found; set GLOBULAR_DATA")
        nothing = np.empty((0, 0), np.float32)
        yield _row(problem, nothing, None, plan, machine, reason, n_iter=plan.n_iters[0], repeat=0)
        return
    X = problem.load()
    with tempfile.TemporaryDirectory(prefix="globular-bench-") as folder:
        data, start = Path(folder, "data.npy"), None
        np.save(data, X)
        if plan.same_start:
            start = Path(folder, "start.npy")
            rng = np.random.default_rng(plan.seed)
            np.save(start, X[rng.choice(len(X), size=problem.n_clusters, replace=False)])
        # Repeats outside, adapters inside: a disturbance of the machine hits everybody alike.
        for repeat in range(plan.repeats):
            for n_iter in plan.n_iters:
                for adapter in adapters:
                    run = _refused(adapter, X.shape[1], problem.n_clusters, plan)
                    if run is not None and (repeat or n_iter != plan.n_iters[0]):
                        continue  # said once is enough
                    run = run or run_once(
                        adapter,
                        data,
                        X,
                        problem.n_clusters,
                        n_iter=n_iter,
                        threads=plan.threads,
                        seed=plan.seed,
                        timeout=min(plan.timeout, plan.deadline + _QUICK_GRACE_SECONDS - time.monotonic()),
                        start=start,
                    )
                    yield _row(problem, X, adapter, plan, machine, run, n_iter=n_iter, repeat=repeat)


def _refused(adapter: Adapter, n_features: int, n_clusters: int, plan: Plan) -> Run | None:
    """Why there will be no run, or None."""
    if not adapter.is_installed():
        return Run("not installed", message=f"pip install {adapter.distribution}")
    refusal = adapter.refusal(n_features, n_clusters)
    if refusal is not None:
        return Run("not applicable", message=refusal)
    if time.monotonic() > plan.deadline:
        return Run("skipped", message="time of the quick benchmark is spent")
    return None


def _row(
    problem: Problem,
    X: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    adapter: Adapter | None,
    plan: Plan,
    machine: Machine,
    run: Run,
    *,
    n_iter: int,
    repeat: int,
) -> Row:
    """Everything about one run in one flat record."""
    given = plan.same_start and adapter is not None and adapter.accepts_start
    return Row(
        **asdict(machine),
        problem=problem.name,
        n_samples=X.shape[0],
        n_features=X.shape[1],
        n_clusters=problem.n_clusters,
        adapter="" if adapter is None else adapter.name,
        settings="" if adapter is None else adapter.settings,
        distribution="" if adapter is None else adapter.distribution,
        version="" if adapter is None else adapter.version(),
        exact=adapter is not None and adapter.exact,
        ours=adapter is not None and adapter.ours,
        all_rows=adapter is not None and adapter.all_rows,
        start="given" if given else "own",
        threads=plan.threads,
        n_iter=n_iter,
        seed=plan.seed,
        repeat=repeat,
        **asdict(run),
        data_mib=X.nbytes / (1 << 20),
    )


def _progress_line(row: Row) -> str:
    name = f"{row.problem}  {row.adapter or '(all)'}"
    if row.status != "ok":
        return f"{name}: {row.status}" + (f" ({row.message})" if row.message else "")
    return f"{name}  {row.n_iter} iterations: {row.seconds:.3g} s, error {row.error:.6g} per row"
