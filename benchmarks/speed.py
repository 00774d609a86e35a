"""A gate for speed: six problems before and after a change, in turns; slower by more than 15 % is a failure.

    python benchmarks/speed.py                  # what is checked out here against the last commit
    python benchmarks/speed.py v0.1.0           # against a tag, a branch or a commit
    python benchmarks/speed.py main --rounds 9  # where the machine is noisy

The rows are generated, so that it runs everywhere. Each side is a process of its own, in which a fit of some rows comes
first (it compiles); the fastest round counts. A problem that seems slower is measured once more before it counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from before_and_after import difference, in_turns
from harness.data import groups

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1.15
PROBLEMS: tuple[tuple[str, tuple[int, int, int], dict[str, Any]], ...] = (
    # rows, columns and groups of the rows; what is fitted to them
    ("KMeans, few clusters", (200_000, 16, 50), {"estimator": "KMeans", "n_clusters": 50}),
    ("KMeans, many clusters", (200_000, 32, 4_000), {"estimator": "KMeans", "n_clusters": 2_000}),
    (
        "KMeans, exact iterations",
        (200_000, 64, 200),
        {"estimator": "KMeans", "n_clusters": 256, "options": {"algorithm": "lloyd", "max_iter": 10}},
    ),
    ("VariationalKMeans", (100_000, 16, 2_000), {"estimator": "VariationalKMeans", "n_clusters": 1_000}),
    ("NestedMiniBatchKMeans", (300_000, 32, 200), {"estimator": "NestedMiniBatchKMeans", "n_clusters": 200}),
    ("GaussianMixture", (50_000, 8, 20), {"estimator": "GaussianMixture", "n_clusters": 20}),
)


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The sources of a commit, in a work tree that goes away again."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", tree, commit], cwd=ROOT, check=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


def ratio_of(name: str, sources: list[Path], job: dict[str, Any], rounds: int) -> float:
    """Seconds after in units of those before, with a line about them."""
    best, objectives = in_turns(sources, job, rounds)
    print(f"{name:<28}{best[0]:9.3f} {best[1]:9.3f} {best[1] / best[0]:7.3f}  {difference(objectives)}", flush=True)
    return best[1] / best[0]


def main() -> None:
    """Measure all, and end with status 1 where something has become slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="HEAD", help="tag, branch or commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=LIMIT, help="the largest ratio that is accepted")
    parser.add_argument("--only", default="", metavar="TEXT", help="problems whose name has this in it")
    options = parser.parse_args()
    slower = []
    print(f"{'':<28}{'before s':>9} {'after s':>9} {'ratio':>7}  objective")
    with checked_out(options.base) as before, tempfile.TemporaryDirectory() as folder:
        for name, shape, what in PROBLEMS:
            if options.only not in name:
                continue
            rows = Path(folder) / "rows.npy"
            np.save(rows, groups(*shape))
            job, sources = {"rows": str(rows), "options": {}} | what, [before, ROOT / "src"]
            ratios = [ratio_of(name, sources, job, options.rounds)]
            if ratios[0] > options.limit:
                ratios.append(ratio_of(f"{name}, again", sources, job, options.rounds))
            if min(ratios) > options.limit:
                slower.append(name)
    if slower:
        sys.exit(f"slower than {options.base} by more than {100 * (options.limit - 1):.0f} %: {', '.join(slower)}")


if __name__ == "__main__":
    main()
