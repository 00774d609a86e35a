"""Plans of what fits compile: they name kernels that there are, in types that can be read, as fits need them.

`python tests/passes/test_plan.py` runs the fits of `globular.warming`, each in a process of its own, and writes the
plans anew; with kernels on disk that takes a minute or two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from importlib import import_module
from itertools import product
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import pytest
from numba import njit, types
from numba.core.event import Listener, install_listener

from globular import warming
from globular.backends.cpu.products import THIN
from globular.kernels import plan
from globular.kernels.label import Given
from globular.kernels.linking import Kernel

SIZES = {"float32": 4, "float64": 8}
COLUMNS = {2: (2, THIN), 16: (16,)}
"""Columns that a plan is for, and those of the fits that it is made of."""


def needed(fit: int, dtype: str, n_columns: int) -> list[str]:
    """The kernels that one of the fits needs in this process, in order."""
    found: list[str] = []
    compile_one = Kernel.compile

    def note(self: Any, sig: Any) -> Any:
        name = f"{self.py_func.__module__.removeprefix(plan.PACKAGE + '.')}.{self.py_func.__name__}"
        found.append(" ".join([name, *map(plan.written, sig)]))
        return compile_one(self, sig)

    Kernel.compile = note  # type: ignore[method-assign]
    random = np.random.default_rng(0)
    X = random.normal(size=(warming.ROWS, n_columns)) + 9 * random.integers(0, 5, (warming.ROWS, 1))
    model = warming.FITS[fit]
    whole = type(model)().max_iter  # the last kernels are those of the last iterations
    model.set_params(random_state=0, max_iter=whole).fit(X.astype(dtype))
    return list(dict.fromkeys(found))


def in_a_process(fit: int, dtype: str, n_columns: int) -> list[str]:
    command = [sys.executable, __file__, str(fit), dtype, str(n_columns)]
    environment = {**os.environ, "GLOBULAR_COMPILE_AHEAD": "0", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return list(json.loads(done.stdout))


def in_both_precisions(single: list[str], double: list[str]) -> list[str]:
    """The kernels that both need, in the order of the first: "*" where the precision of the rows decides.

    Cells, means and few rows are in float64 whatever the rows are: the same kernel may be needed for these and for
    rows, which in float64 is one.
    """
    merged = []
    for line in single:
        alike = [other for other in double if _width_left_out(other) == _width_left_out(line)]
        if alike:
            wide = line if line in alike else alike[0]
            merged.append("".join(a if a == b else "*" for a, b in zip(line, wide, strict=True)))
    return list(dict.fromkeys(merged))


def joined(plan: list[str], other: list[str]) -> list[str]:
    """All kernels of two plans: what the first lacks stands behind what comes before it in the second."""
    whole = list(plan)
    for before, line in zip(["", *other], other, strict=False):
        if line not in whole:
            whole.insert(whole.index(before) + 1 if before in whole else 0, line)
    return whole


def _width_left_out(line: str) -> str:
    return line.replace("4", "*").replace("8", "*")


def write() -> None:
    """Run all fits and write what they need."""
    usual = [k for k, fit in enumerate(warming.FITS) if fit.get_params().get("algorithm", "auto") == "auto"]
    cases = [(fit, columns) for fit in usual for columns in COLUMNS]
    jobs = [(fit, dtype, n) for fit, columns in cases for n in COLUMNS[columns] for dtype in SIZES]
    with ThreadPoolExecutor(2) as pool:
        lists = dict(zip(jobs, pool.map(lambda job: in_a_process(*job), jobs), strict=True))
    kernels: dict[str, int] = {}
    fits = []
    for fit, columns in cases:
        each = [in_both_precisions(*(lists[fit, dtype, n] for dtype in SIZES)) for n in COLUMNS[columns]]
        lines = reduce(joined, each)
        numbers = [kernels.setdefault(line, len(kernels)) for line in lines]
        model, n_clusters, covariance = warming.FITS[fit]._plan
        fits.append([model, covariance, n_clusters, columns, numbers])
    write_down(list(kernels), fits)
    print(f"{len(kernels)} kernels, {len(fits)} fits, {plan.FILE.stat().st_size} bytes")


def write_down(kernels: list[str], fits: list[Any]) -> None:
    """Write the file, with what each kernel costs now."""
    lines, whole = (",\n".join(f"  {json.dumps(entry)}" for entry in entries) for entries in (kernels, fits))
    costs = json.dumps(costs_of(kernels))
    plan.FILE.write_text(f'{{"kernels": [\n{lines}\n], "costs": {costs}, "fits": [\n{whole}\n]}}\n')


def costs_of(kernels: list[str]) -> list[float]:
    """Seconds of this processor that each kernel takes to compile with all that it calls, and nothing else before."""
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run(
            [sys.executable, __file__, "costs"], input=json.dumps(kernels), check=True, capture_output=True, text=True,
            env=environment,
        )  # fmt: skip
    return list(json.loads(done.stdout))


class Costs(Listener):
    """What functions cost to compile, each without those that it calls: kernels have these in common."""

    def __init__(self) -> None:
        self.seconds: dict[Any, float] = {}
        """By the code that was made."""
        self._begun: list[list[float]] = []

    def on_start(self, event: Any) -> None:
        self._begun.append([process_time(), 0.0])

    def on_end(self, event: Any) -> None:
        begin, called = self._begun.pop()
        seconds = process_time() - begin
        self.seconds[event.data["dispatcher"].overloads[event.data["args"]].library] = seconds - called
        if self._begun:
            self._begun[-1][1] += seconds

    def of(self, library: Any) -> float:
        """All that goes into this code."""
        found, new = {library}, [library]
        while new:
            called = new.pop()._linking_libraries
            new += dict.fromkeys(other for other in called if other not in found)
            found.update(called)
        return sum(self.seconds.get(part, 0.0) for part in found)


def costs_here(kernels: list[str]) -> list[float]:
    """The same in this process."""
    costs, costed = Costs(), []
    njit(lambda: 0)()  # what numba does once is nobody's
    for line in kernels:
        name, _, kinds = line.replace("*", "4").partition(" ")
        module, _, function = name.rpartition(".")
        kernel, types_ = getattr(import_module(f"{plan.PACKAGE}.{module}"), function), plan.read(kinds)
        with install_listener("numba:compile", costs):
            kernel.compile(types_)
        costed.append(round(costs.of(kernel.overloads[types_].library), 1))
    return costed


def test_types_have_a_short_form() -> None:
    kinds = (
        types.int64, types.boolean, types.Array(types.float32, 2, "C", readonly=True),
        types.Array(types.int32, 2, "F"), types.UniTuple(types.float64[::1], 1),
        types.NamedUniTuple(types.float64[::1], 3, Given),
        types.NamedTuple([types.float64[::1], types.float32, types.int8[:]], Given),
    )  # fmt: skip
    text = " ".join(map(plan.written, kinds))
    assert text.startswith("i8 b1 f4:2C! i4:2F (f8:1C) label.Given(f8:1C,f8:1C,f8:1C) ")
    assert plan.read(text) == kinds
    assert str(plan.read(text)) == str(kinds)  # files have their names from it


def test_what_has_no_short_form_is_refused() -> None:
    with pytest.raises(ValueError, match="no short form"):
        plan.written(types.unicode_type)


@pytest.mark.parametrize("size", SIZES.values())
def test_plans_name_kernels_that_there_are_with_as_many_arguments(size: int) -> None:
    for line in plan.plans()[0]:
        name, _, kinds = line.replace("*", str(size)).partition(" ")
        module, _, function = name.rpartition(".")
        kernel = getattr(import_module(f"{plan.PACKAGE}.{module}"), function)
        assert isinstance(kernel, Kernel)
        assert len(plan.read(kinds)) == kernel.py_func.__code__.co_argcount


def test_every_model_that_is_warmed_up_has_a_plan() -> None:
    for fit in warming.FITS:
        model, n_clusters, covariance = fit._plan
        assert plan.plan_for(model, covariance, n_clusters, 5, 4)


def test_a_fit_takes_the_plan_of_the_one_most_like_it() -> None:
    few, many = plan.plan_for("KMeans", "", 9, 3, 8), plan.plan_for("KMeans", "", 10**6, 200, 4)
    assert any(line.startswith("few_rows.try_few ") for line in few)
    assert any(line.startswith("cells.search_cells ") for line in many)
    assert not any("*" in line for line in few + many)
    assert plan.plan_for("NoSuchModel", "", 8, 2, 8) == []


def test_the_largest_kernels_of_a_plan_can_come_first() -> None:
    content = plan.plans()
    assert len(content.costs) == len(content.kernels)
    planned = plan.plan_for("KMeans", "", 8, 2, 4)
    largest = plan.plan_for("KMeans", "", 8, 2, 4, largest_first=True)
    assert sorted(planned) == sorted(largest)
    assert largest[0].startswith("assign.assign_spans ")


def test_a_plan_of_both_precisions_has_what_each_needs() -> None:
    single, double = ["a f4:1C", "b f8:1C", "c i8", "b f4:1C"], ["a f8:1C", "b f8:1C", "c i8"]
    assert in_both_precisions(single, double) == ["a f*:1C", "b f8:1C", "c i8", "b f*:1C"]
    assert joined(["a", "b", "c"], ["x", "a", "y", "c", "z"]) == ["x", "a", "y", "b", "c", "z"]


def test_a_plan_names_no_kernel_twice() -> None:
    for fit in warming.FITS:
        model, n_clusters, covariance = fit._plan
        for size, n_columns in product(SIZES.values(), COLUMNS):
            planned = plan.plan_for(model, covariance, n_clusters, n_columns, size)
            assert len(set(planned)) == len(planned)


@pytest.mark.parametrize("dtype", SIZES)
def test_a_plan_has_what_the_fit_needs(dtype: str) -> None:
    model, n_clusters, covariance = warming.FITS[0]._plan
    planned = plan.plan_for(model, covariance, n_clusters, 2, SIZES[dtype])
    found = in_a_process(0, dtype, 2)
    assert set(found) <= set(planned), "write the plans anew: python tests/passes/test_plan.py"


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write()
    elif sys.argv[1] == "costs":
        print(json.dumps(costs_here(json.load(sys.stdin))))
    else:
        print(json.dumps(needed(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
