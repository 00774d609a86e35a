"""The kernels with numba's index checks switched on: no access outside an array.

The checks are compiled in, so they need a process and a cache of their own; that costs seconds of compiling.
"""

import os
import subprocess
import sys

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
ASKED = """
for what, code in {outside}.items():
    try:
        exec(code)
    except IndexError:
        print(what)
"""


def test_a_hard_pass_stays_within_its_arrays_and_the_check_itself_works(tmp_path, monkeypatch):
    monkeypatch.setenv(library.VARIABLE, "auto")
    outside = dict(OUTSIDE)
    if functions.compiler.__wrapped__().__name__ != "globular.jit.linked":
        outside.popitem()  # numba by its public interface alone has negative indices count from the end
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "GLOBULAR_JIT": "auto"}
    code = SMALL + ASKED.format(outside=outside)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["checked", *outside]
