"""What `import globular` costs in a fresh process (of its own time, whatever else the machine does) and promises."""

import subprocess
import sys

import pytest

import globular


def run_python(code: str) -> str:
    """Standard output of a fresh interpreter in which every warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; begun = time.process_time(); import globular; print(time.process_time() - begun); "
        "print([name for name in ('numba', 'sklearn', 'scipy', 'pandas', 'pyarrow', 'matplotlib', 'torch', 'dask') "
        "if name in sys.modules])"
    )
    seconds, loaded = run_python(code).splitlines()
    assert float(seconds) < 1.0
    assert loaded == "[]"


def test_every_public_name_is_there() -> None:
    code = "import globular\nfor name in globular.__all__: getattr(globular, name)\nprint('all')"
    assert run_python(code) == "all\n"
    assert set(globular.__all__) <= set(dir(globular))
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        globular.nothing_of_the_kind


def test_optional_packages_are_not_needed_for_a_fit() -> None:
    code = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pandas", "pyarrow", "h5py", "matplotlib", "torch", "dask", "plotly"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import numpy, globular
print(globular.KMeans(3, random_state=0).fit(numpy.eye(9)).cluster_centers_.shape)
"""
    assert run_python(code) == "(3, 9)\n"


def test_a_small_fit_in_a_new_process_uses_the_cache() -> None:
    code = (
        "import time, numpy\n"
        "import sklearn.cluster, numba\n"
        "from globular import KMeans\n"
        "X = numpy.random.default_rng(0).normal(size=(200, 4))\n"
        "begun = time.process_time()\n"
        "KMeans(5, random_state=0).fit(X)\n"
        "print(time.process_time() - begun)"
    )
    run_python(code)  # compiles, where nobody has before
    assert float(run_python(code)) < 1.5
