"""What each part of the method is worth: fits without it beside fits with it, over a panel of problems.

    python benchmarks/ablation.py                            # all parts, all problems, three seeds; an hour or more
    python benchmarks/ablation.py --only kddbio --seeds 1    # problems whose name has this in it
    python benchmarks/ablation.py --parts momentum,subspace
    python benchmarks/ablation.py --table                    # nothing is run: the table and the picture of the CSV

One process has a problem's rows. For each seed it fits with everything, without two of the parts, with everything
again, and so on: a fit without a part is compared to the fit with everything beside it, in the same process and minute.
The CSV (`results/ablation.csv`) has a line a fit; the table (which `docs/method.md` holds) and the picture have the
geometric means over seeds of seconds, distances and errors without the part, as multiples of those with it. More than
1: the part is worth something.

Errors are those of the fitted centres over all rows (of very large problems over a sample of them, the same for all
fits). That of a mixture is exp(−2 · score / columns), the variance of a column that has this density: 1 % more is
half a hundredth of a nat a column less.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ablation_parts import GONE, PARTS, Part, switched_off
from globular.errors import DataError
from harness.data import SETS, groups, real_array

FOLDER = Path(__file__).resolve().parent / "results"
COLUMNS = ("problem", "part", "seed", "seconds", "distances", "error", "full_seconds", "full_distances", "full_error")
SAMPLED = 50_000
"""Rows that tell the error where all would take longer than a fit."""
SHORT = 0.3
"""Seconds up to which a fit is repeated."""
LARGEST_TABLE = 3e10
"""Rows × clusters × columns up to which all rows tell it."""


class Problem(NamedTuple):
    """An estimator, its options, and rows with their weights, if they have any."""

    name: str
    estimator: str
    k: int
    columns: int
    """0 for CSR rows."""
    make: Callable[[], Any]
    options: dict[str, Any] = {}  # noqa: RUF012
    weights: Callable[[], Any] | None = None


def real(file: str, name: str = "X", dtype: str = "float32") -> Callable[[], np.ndarray]:
    """Rows of a file of the folder of real data."""
    return lambda: np.ascontiguousarray(real_array(file, name), dtype=dtype)


def texts() -> Any:
    """tf-idf rows of 18,846 newsgroup posts."""
    return SETS["newsgroups20"]().X


def in_order(rows: np.ndarray) -> np.ndarray:
    """The rows sorted by their first column, so that neighbours in a file are alike."""
    return rows[np.argsort(rows[:, 0])]


def filed(rows: np.ndarray) -> Any:
    """Rows that are read from a file in every pass."""
    import atexit
    import tempfile

    import globular.estimators.inputs

    globular.estimators.inputs.MEMORY_SHARE = 0.0  # as if they were more than memory holds
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    file = Path(folder.name) / "rows.npy"
    np.save(file, rows)
    return str(file)


def _kmeans(name: str, k: int, columns: int, make: Callable[[], Any], **more: Any) -> Problem:
    return Problem(name, more.pop("estimator", "KMeans"), k, columns, make, **more)


KDD, GLOVE, SIFT = "kddbio/kddbio.npz", "glove50/glove50_200k.npz", "sift_photos/sift_photos.npz"
COVTYPE, MNIST, GEO = "covtype/covtype.npz", "mnist/mnist.npz", "geonames500/geonames500.npz"
SKIN, UBER, FLOW = "skin/skin.npz", "uber_nyc/uber_nyc.npz", "flowsom_ff/flowsom_ff.npz"
WORDS = "wordllama256/wordllama256.npz"
HIPPARCOS = "hipparcos/hipparcos.npz"
NESTED, TRUNCATED = {"estimator": "NestedMiniBatchKMeans"}, {"estimator": "VariationalKMeans"}

PANEL = (
    _kmeans("1,000 rows, k=3", 3, 4, lambda: groups(1000, 4, 3).astype(np.float64)),
    _kmeans("two clusters, 1M rows", 2, 2, lambda: groups(1_000_000, 2, 2)),
    _kmeans("skin k=8", 8, 3, real(SKIN)),
    _kmeans("covtype k=20", 20, 54, real(COVTYPE)),
    _kmeans("uber k=50, weighted", 50, 2, real(UBER), weights=real(UBER, "w", "float64")),
    _kmeans("flowsom k=30, float64", 30, 18, real(FLOW, dtype="float64")),
    _kmeans("mnist k=100", 100, 784, real(MNIST)),
    _kmeans("one normal k=256, 1M rows", 256, 16, lambda: groups(1_000_000, 16, 1)),
    _kmeans("sorted file k=300", 300, 32, lambda: filed(in_order(groups(300_000, 32, 300)))),
    _kmeans("texts k=100, sparse", 100, 0, texts),
    _kmeans("glove k=800, cosine", 800, 50, real(GLOVE), options={"metric": "cosine"}),
    _kmeans("words k=1,000, 256 columns", 1000, 256, real(WORDS)),
    _kmeans("kddbio k=2,000", 2000, 74, real(KDD)),
    _kmeans("glove k=2,000", 2000, 50, real(GLOVE)),
    _kmeans("sift k=4,096", 4096, 128, real(SIFT)),
    _kmeans("geonames k=5,000, weighted", 5000, 2, real(GEO), weights=real(GEO, "population", "float64")),
    _kmeans("groups k=20,000, 1M rows", 20_000, 8, lambda: groups(1_000_000, 8, 20_000, spread=4.0)),
    _kmeans("truncated: glove k=2,000", 2000, 50, real(GLOVE), **TRUNCATED),
    _kmeans("truncated: plane k=3,000", 3000, 2, lambda: groups(200_000, 2, 3000, spread=50.0), **TRUNCATED),
    _kmeans("truncated: 8 columns k=1,000", 1000, 8, lambda: groups(200_000, 8, 1000), **TRUNCATED),
    _kmeans("batches: mnist k=300", 300, 784, real(MNIST), **NESTED),
    _kmeans("batches: covtype k=100", 100, 54, real(COVTYPE), **NESTED),
    _kmeans("batches: texts k=50, sparse", 50, 0, texts, **NESTED),
    Problem("mixture: flowsom k=8", "GaussianMixture", 8, 18, real(FLOW, dtype="float64")),
    Problem("mixture: 16 columns k=30", "GaussianMixture", 30, 16, lambda: groups(100_000, 16, 30, spread=1.0)),
    Problem("mixture: hipparcos k=50", "GaussianMixture", 50, 7, real(HIPPARCOS)),
    Problem("mixture: skin k=20, 245,057 rows", "GaussianMixture", 20, 3, real(SKIN)),
    Problem("diagonal: kddbio k=600", "VariationalGaussianMixture", 600, 74, real(KDD)),
    Problem("chunky: 8 columns k=500", "ChunkyGaussianMixture", 500, 4, lambda: groups(300_000, 4, 500, spread=20.0)),
    Problem("infinite: hipparcos", "InfiniteGaussianMixture", 0, 7, real(HIPPARCOS)),
    Problem("infinite: 200,000 x 4", "InfiniteGaussianMixture", 0, 4, lambda: groups(200_000, 4, 40, spread=5.0)),
)


def judge(model: Any, X: Any, weights: Any) -> float:
    """The error of a fit."""
    if hasattr(model, "means_") and not hasattr(model, "cluster_centers_"):
        return float(np.exp(-2.0 * model.score(X) / model.n_features_in_))
    if isinstance(X, str):
        return -model.score(X) / len(np.load(X, mmap_mode="r"))
    n = X.shape[0]
    if n * np.size(model.cluster_centers_) > LARGEST_TABLE:
        chosen = np.sort(np.random.default_rng(0).permutation(n)[:SAMPLED])
        X, weights = X[chosen], None if weights is None else weights[chosen]
    total = float(X.shape[0] if weights is None else weights.sum())
    return -model.score(X, sample_weight=weights) / total


def fit(problem: Problem, X: Any, weights: Any, seed: int, n_threads: int, part: Part | None) -> tuple[float, ...]:
    """Seconds, distances and error of a fit."""
    import globular

    make = getattr(globular, problem.estimator)
    count = {"n_components" if "Mixture" in problem.estimator else "n_clusters": problem.k} if problem.k else {}
    model = make(**count, **problem.options, random_state=seed, n_threads=n_threads)
    best = spent = 0.0
    with switched_off(part):
        while spent <= SHORT:  # the best of several short fits
            began = time.perf_counter()
            model.fit(X, **({} if weights is None else {"sample_weight": weights}))
            seconds = time.perf_counter() - began
            best, spent = min(best or seconds, seconds), spent + seconds
    return best, float(model.n_distances_), judge(model, X, weights)


def parts_of(problem: Problem) -> list[Part]:
    """The parts that a problem can have."""
    return [part for part in PARTS if problem.estimator in part.estimators and part.applies(problem)]


def measure(problem: Problem, parts: Iterable[Part], seeds: int, n_threads: int, deadline: float) -> None:
    """Print a line of the CSV for each part and seed, as long as there is time."""
    warnings.simplefilter("ignore")
    X, weights = problem.make(), None if problem.weights is None else problem.weights()
    fit(problem, X, weights, 0, n_threads, None)  # compiles what has to be, and draws the rows into memory
    write = csv.writer(sys.stdout)
    for seed in range(seeds):
        pairs = list(parts)
        np.random.default_rng(seed).shuffle(pairs)  # type: ignore[arg-type]
        for k, part in enumerate(pairs):
            if time.time() > deadline:
                return
            if k % 2 == 0:
                full = fit(problem, X, weights, seed, n_threads, None)
            write.writerow((problem.name, part.name, seed, *fit(problem, X, weights, seed, n_threads, part), *full))
            sys.stdout.flush()


def run_all(problems: list[Problem], names: set[str], seeds: int, threads: int, minutes: float, out: Path) -> None:
    """Measure all problems, each in a process of its own, side by side where there are threads enough."""
    from concurrent.futures import ThreadPoolExecutor

    cores = sorted(os.sched_getaffinity(0))
    seats = [cores[at : at + threads] for at in range(0, len(cores) - threads + 1, threads)]
    deadline = time.time() + 60.0 * minutes

    def run(problem: Problem) -> str:
        seat = seats.pop()
        command = [sys.executable, __file__, "--one", problem.name, "--seeds", str(seeds), "--threads", str(threads)]
        command += ["--deadline", str(deadline), *(["--parts", ",".join(names)] if names else [])]
        before = lambda: os.sched_setaffinity(0, seat)  # noqa: E731
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=before)
        seats.append(seat)
        print(f"{problem.name}: {len(done.stdout.splitlines())} fits", flush=True)
        return done.stdout

    with ThreadPoolExecutor(len(seats)) as pool, out.open("w", newline="") as file:
        csv.writer(file).writerow(COLUMNS)
        for text in pool.map(
            run, sorted(problems, key=lambda problem: -problem.k * problem.columns)
        ):  # long ones first
            file.write(text)
            file.flush()


# --- what comes of it ----------------------------------------------------------------------------------------------


class Worth(NamedTuple):
    """Ratios without ÷ with, and the standard deviation of their logarithms over seeds."""

    seconds: float
    distances: float
    error: float
    spread: float
    """Of seconds."""
    n: int


def ratios(file: Path) -> dict[tuple[str, str], Worth]:
    """(part, problem) -> what the part is worth there."""
    logs: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    with file.open(newline="") as lines:
        for line in csv.DictReader(lines):
            pairs = [(float(line[name]), float(line[f"full_{name}"])) for name in ("seconds", "distances", "error")]
            logs[line["part"], line["problem"]].append(
                np.array([np.log(a / b) if a > 0 < b else 0.0 for a, b in pairs])
            )
    found = {}
    for key, values in logs.items():
        seconds, distances, error = np.exp(np.mean(values, axis=0))
        found[key] = Worth(seconds, distances, error, float(np.std(values, axis=0)[0]), len(values))
    return found


def table(found: dict[tuple[str, str], Worth]) -> str:
    """Markdown: each part over all problems that can have it, those that were deleted for it last."""
    lines = ["| part | problems | time | largest | error | largest |", "|---|---:|---:|---:|---:|---:|"]
    for name, what in [(part.name, part.what) for part in PARTS] + [(name, f"{GONE[name]} (deleted)") for name in GONE]:
        here = [worth for (part, _), worth in found.items() if part == name]
        if here:
            mean = np.exp(np.mean(np.log([[w.seconds, w.error] for w in here]), axis=0))
            lines.append(
                f"| *{name}*: {what} | {len(here)} | {mean[0]:.2f} | {max(w.seconds for w in here):.2f}"
                f" | {100 * (mean[1] - 1):+.2f} % | {100 * (max(w.error for w in here) - 1):+.2f} % |"
            )
    return "\n".join(lines)


def draw(found: dict[tuple[str, str], Worth], out: Path) -> None:
    """Parts × problems: colour is what seconds, and what errors, are multiplied by without the part."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [part.name for part in PARTS] + list(GONE)
    parts = [name for name in names if any(name == part for part, _ in found)]
    problems = [problem.name for problem in PANEL if any(name == problem.name for _, name in found)]
    figure, axes = pyplot.subplots(1, 2, figsize=(17, 0.32 * len(parts) + 3.2), sharey=True, layout="constrained")
    for axis, field, title, most in (
        (axes[0], "seconds", "time without the part ÷ with it", 2.0),
        (axes[1], "error", "error without the part ÷ with it", 1.05),
    ):
        values = np.full((len(parts), len(problems)), np.nan)
        for (part, problem), worth in found.items():
            if part in parts and problem in problems:
                values[parts.index(part), problems.index(problem)] = getattr(worth, field)
        limit = np.log(most)
        image = axis.imshow(np.log(values), cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
        axis.set_xticks(range(len(problems)), problems, rotation=60, ha="right", fontsize=8)
        axis.set_yticks(range(len(parts)), parts, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.set_facecolor("#eeeeee")
        for y, x in zip(*np.nonzero(np.isfinite(values)), strict=True):
            text = (
                f"{values[y, x]:.2f}"
                if field == "seconds"
                else f"{100 * (values[y, x] - 1):+.1f}".replace("+0.0", "0").replace("-0.0", "0")
            )
            strong = abs(np.log(values[y, x])) > 0.7 * limit
            axis.text(x, y, text, ha="center", va="center", fontsize=5.5, color="white" if strong else "black")
        bar = figure.colorbar(image, ax=axis, shrink=0.6, ticks=[-limit, 0, limit])
        bar.ax.set_yticklabels([f"{1 / most:.2f}", "1", f"{most:.2f}"], fontsize=8)
    figure.savefig(out, dpi=100)


def main() -> None:
    """Parse the command line, measure or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--parts", default="", help="names of parts with commas between them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of a fit; problems run side by side on the other cores")
    parser.add_argument("--minutes", type=float, default=600.0, help="no fit begins after that")
    parser.add_argument("--out", type=Path, default=FOLDER / "ablation.csv")
    parser.add_argument("--table", action="store_true", help="only show what the CSV has")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=np.inf, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = set(filter(None, given.parts.split(",")))
    if given.one:
        (problem,) = (each for each in PANEL if each.name == given.one)
        parts = [part for part in parts_of(problem) if not names or part.name in names]
        try:
            measure(problem, parts, given.seeds, given.threads, given.deadline)
        except DataError as error:
            print(f"{problem.name}: left out, {error}", file=sys.stderr)
        return
    if not given.table:
        problems = [each for each in PANEL if given.only in each.name]
        run_all(problems, names, given.seeds, given.threads, given.minutes, given.out)
    found = ratios(given.out)
    print(table(found))
    if found:
        draw(found, given.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
