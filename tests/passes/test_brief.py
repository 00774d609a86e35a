"""Loops and items in few instructions: the numbers that Python finds."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import globular.kernels
from globular.kernels.brief import BriefLower
from globular.kernels.compile import allocating_kernel, kernel

STEP = 3
ENDS = [(0, 0), (0, 5), (2, 7), (-4, 3), (3, -4), (5, 5), (-3, -1)]


def count(start: int, stop: int, seen: Any) -> int:
    n = 0
    for i in range(start, stop):
        seen[n] = i
        n += 1
    for i in range(stop):
        seen[n] = i
        n += 1
    return n


def count_in_steps(start: int, stop: int, seen: Any) -> int:
    n = 0
    for i in range(start, stop, STEP):
        seen[n] = i
        n += 1
    for i in range(start, stop):
        for j in range(i, stop):
            if j > i + 1:
                break
            seen[n] = i * j
            n += 1
    return n


def count_by(start: int, stop: int, step: int, seen: Any) -> int:
    n = 0
    for i in range(start, stop, step):
        seen[n] = i
        n += 1
    for i in range(stop, start, -2):
        seen[n] = i
        n += 1
    for i in range(3):
        seen[n] = i
        n += 1
    return n


def count_either(which: bool, stop: int, seen: Any) -> int:
    numbers = range(stop) if which else range(stop, 0, -1)
    n = 0
    for i in numbers:
        seen[n] = i
        n += 1
    return n


def fill(items: Any, index: Any, out: Any) -> None:
    for i in range(items.shape[0]):
        for j in range(items.shape[1]):
            out[j, i] = items[i, j]
            out[0, index[i]] = items[i, index[i]]


@pytest.mark.parametrize("function", [count, count_in_steps])
def test_loops_see_what_ranges_have(function: Callable[..., int]) -> None:
    compiled = kernel(function)
    for start, stop in ENDS:
        seen, wanted = np.full((2, 60), -99)
        assert compiled(start, stop, seen) == function(start, stop, wanted)
        np.testing.assert_array_equal(seen, wanted)


def test_steps_that_are_not_known_may_count_down() -> None:
    compiled = kernel(count_by)
    for (start, stop), step in itertools.product(ENDS, [1, 2, -1, -3]):
        seen, wanted = np.full((2, 60), -99)
        assert compiled(start, stop, step, seen) == count_by(start, stop, step, wanted)
        np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize("which", [True, False])
def test_a_range_may_be_one_of_two(which: bool) -> None:
    seen, wanted = np.full((2, 60), -99)
    assert kernel(count_either)(which, 7, seen) == count_either(which, 7, wanted)
    np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("dtype", "index"), [("?", "i8"), ("i4", "i1"), ("u1", "i4"), ("u8", "u8"), ("f4", "u4"), ("f8", "i8")]
)
def test_items_of_any_type_and_order(dtype: str, index: str, order: Any) -> None:
    items = np.asarray(np.arange(12).reshape(4, 3) % 5, dtype=dtype, order=order)
    places = np.array([2, 0, 1, 2], dtype=index)
    found, wanted = np.zeros((3, 4), dtype), np.zeros((3, 4), dtype)
    kernel(fill)(items, places, found)
    fill(items, places, wanted)
    np.testing.assert_array_equal(found, wanted)
    strided = np.zeros((6, 8), dtype)
    kernel(fill)(items, places, strided[::2, ::2])
    np.testing.assert_array_equal(strided[::2, ::2], wanted)


def test_an_index_that_is_known_to_be_negative_counts_from_the_end() -> None:
    def last(x: Any) -> float:
        return x[-1] - x[0]

    def corners(x: Any) -> float:
        return x[1, 0] - x[0, 1]

    assert kernel(last)(np.array([1.0, 2.0, 7.0])) == 6.0
    assert kernel(corners)(np.array([[1.0, 2.0], [7.0, 4.0]])) == 5.0
    assert kernel(lambda x: x[1, 0, 1])(np.arange(12.0).reshape(3, 2, 2)) == 5.0


def test_an_array_without_axes_has_one_item() -> None:
    def doubled(x: Any, out: Any) -> None:
        out[()] = 2.0 * x[()]

    out = np.zeros(())
    kernel(doubled)(np.array(3.0), out)
    assert out == 6.0


NUMBERS: list[Any] = [0, 1, -3, 2**62, 0.0, -0.0, 1.5, -np.inf, np.inf, np.nan]


@pytest.mark.parametrize(
    "function", [operator.add, operator.sub, operator.mul, operator.lt, operator.le, operator.gt, operator.ge,
                 operator.eq, operator.ne],
)  # fmt: skip
def test_numbers_are_combined_as_numba_does(function: Callable[[Any, Any], Any]) -> None:
    sign = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.lt: "<", operator.le: "<="}
    sign |= {operator.gt: ">", operator.ge: ">=", operator.eq: "==", operator.ne: "!="}
    scope: dict[str, Any] = {"__name__": kernel.__module__}
    exec(f"def combined(a, b):\n    return a {sign[function]} b\n", scope)
    ours, numbas = kernel(scope["combined"]), numba.njit(scope["combined"])
    for a in NUMBERS:
        for b in [*NUMBERS, np.float32(0.1), np.int32(-7), True]:
            found, wanted = ours(a, b), numbas(a, b)
            assert type(found) is type(wanted)
            np.testing.assert_equal(found, wanted)


def test_views_of_what_is_counted_stay_alive() -> None:
    def summed(n: int) -> float:
        made = np.ones((n, 3))
        total = 0.0
        for i in range(n):
            row = made[i]
            for j in range(3):
                total += row[j] * made[i, j]
        return total

    assert allocating_kernel(summed)(100) == 300.0


def test_it_is_what_kernels_are_compiled_by(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find(self: BriefLower, array: Any, index: Any) -> Any:
        asked.append(array.name)
        return None  # numba knows it, too

    monkeypatch.setattr(BriefLower, "_find_item", find)
    out = np.zeros((2, 3))
    kernel(fill)(np.ones((3, 2)), np.zeros(3, dtype=np.int64), out)
    assert asked
    np.testing.assert_array_equal(out, 1.0)


def test_no_kernel_counts_from_the_end_in_one_of_several_indices() -> None:
    """There its type does not tell that a number is negative."""
    for file in Path(globular.kernels.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
                assert not any(isinstance(each, ast.UnaryOp) for each in node.slice.elts), f"{file.name}: {node.lineno}"
