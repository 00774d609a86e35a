"""The kernels with numba's index checks switched on: no access outside an array.

The checks are compiled in, so they need a process and a cache of their own; that costs seconds of compiling.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from globular.jit import functions, library

SMALL = """
import numpy as np
from globular.passes.cpu import CpuShard, sums
from globular.seam.passes import Assign, Farthest
random = np.random.default_rng(0)
sums.ROWS_PER_RUN = 40
for n, C, D in [(1, 1, 1), (130, 67, 3), (700, 64, 2)]:
    rows, centers = random.normal(size=(n, D)), random.normal(size=(C, D))
    shard = CpuShard(rows, random.uniform(size=n))
    shard.run(Assign(centers))
    shard.run(Farthest(centers, 5))
    shard.run(Assign(1e200 * centers))  # scores overflow: every centre is checked
print("checked")
"""

LARGE = """
import warnings
import numpy as np
from scipy import sparse
from globular import KMeans
random = np.random.default_rng(0)
dense = random.normal(size=(300, 5))
thin = np.where(np.abs(dense) > 1, dense, 0)
matrices = [dense, dense.astype(np.float32), sparse.csr_matrix(thin), sparse.csr_matrix(thin.astype(np.float32))]
matrices += [np.round(dense).astype(np.uint8), 1e8 + dense, (1e30 * dense).astype(np.float32)]
warnings.simplefilter("ignore")
for X in matrices:
    for metric in ("euclidean", "cosine"):
        for init in ("k-means++", "hierarchical", "afk-mc2", "k-means||", "random"):
            model = KMeans(70, init=init, algorithm="lloyd", metric=metric, random_state=0)
            model.fit(X, sample_weight=random.uniform(size=300)).predict(X[:7])
print("checked")
"""


NESTED = """
import warnings
import numpy as np
from scipy import sparse
from globular import NestedMiniBatchKMeans
from globular.passes.cpu import center_scores
from globular.passes.cpu.assign import votes
random = np.random.default_rng(0)
center_scores.ROWS_PER_PRODUCT = 50
votes.ROWS_PER_SPAN = 30
dense = random.normal(size=(300, 5))
thin = sparse.csr_matrix(np.where(np.abs(dense) > 1, dense, 0))
warnings.simplefilter("ignore")
for X in (dense, dense.astype(np.float32), thin, thin.astype(np.float32), 1e8 + dense, (1e30 * dense).astype("f4")):
    for options in ({"search": "elkan"}, {"search": "yinyang"}, {"search": "exact"}, {"search": "cells"}):
        for k in (1, 23):
            model = NestedMiniBatchKMeans(k, batch_size=40, max_iter=5, random_state=0, **options)
            model.fit(X, sample_weight=random.uniform(size=300))
print("checked")
"""


CHUNKY = """
import numpy as np
from globular.passes.cpu import CpuShard
from globular.model.covariances import FAMILIES
from globular.model.gaussian import isotropic_mixture
from globular.model.graph import random_graph
from globular.model.graph import Search
from globular.seam.among import Neighbors
from globular.seam.tree_passes import ExpectCells, Gains, OpenGaining, Plant
random = np.random.default_rng(0)
for X in (random.normal(size=(300, 3)), np.round(random.normal(size=(90, 1))), np.round(random.normal(size=(90, 2)))):
    for covariance_type in ("full", "diag", "spherical"):
        kind = FAMILIES[covariance_type].scatter
        shard = CpuShard(X, random.uniform(size=len(X)))
        mixture = isotropic_mixture(random.normal(size=(5, X.shape[1])), 1.0, covariance_type)
        graph = random_graph(5, 3, random)
        shard.run(Plant(kind, 4, depth=2))
        for step in range(5):
            shard.run(ExpectCells(mixture, rule="centroid"))
            shard.run(Gains(mixture, 3))
            shard.run(ExpectCells(mixture, Neighbors(graph, Search(2, 1, step, estimate=True))))
            shard.run(OpenGaining(shard.run(Gains(mixture, 3, truncated=True)).smallest_within(40)))
print("checked")
"""


def run_checked(code: str, cache: Path) -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache), "GLOBULAR_JIT": "auto"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("checked\n")


OUTSIDE = {
    "an index beyond the end": (
        "from globular.passes.cpu.rows import look_up\n"
        "from globular.jit import new_queue\n"
        "look_up(new_queue(), 2, np.zeros(3, np.int64), np.full(2, 5, np.int32), np.empty(2, np.int32))\n"
    ),
    "a negative index, which does not count from the end": (
        "from globular.jit import functions\nfunctions.Kernel(lambda x, i: x[i])(np.ones(3), -1)\n"
    ),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_the_check_itself_works(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "auto")
    if "negative" in what and functions.compiler.__wrapped__().__name__ != "globular.jit.linked":
        pytest.skip("numba by its public interface alone has negative indices count from the end")
    with pytest.raises(AssertionError, match="IndexError"):
        run_checked(f"import numpy as np\n{OUTSIDE[what]}print('checked')", tmp_path)


def test_hard_pass_stays_within_its_arrays(tmp_path: Path) -> None:
    run_checked(SMALL, tmp_path)


@pytest.mark.slow
def test_nested_passes_stay_within_their_arrays(tmp_path: Path) -> None:
    run_checked(NESTED, tmp_path)


@pytest.mark.slow
def test_whole_fits_stay_within_their_arrays(tmp_path: Path) -> None:
    run_checked(LARGE, tmp_path)


@pytest.mark.slow
def test_chunky_passes_stay_within_their_arrays(tmp_path: Path) -> None:
    run_checked(CHUNKY, tmp_path)
