"""The quick compiler makes the code that numba makes, and leaves numba as it was."""

from __future__ import annotations

import gc
import inspect
import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from numba.core import errors, postproc
from numba.core.registry import cpu_target
from numba.core.typed_passes import NativeLowering

from globular import KMeans
from globular.kernels import compile, linking, quick, sums
from globular.kernels.compile import COMPILED, allocating_kernel, kernel
from globular.kernels.quick import undisturbed
from globular.kernels.rows import bits_float, float_bits, order_key


def farthest(x: Any, y: Any, out: Any) -> float:
    """What kernels do: loops, slices, tuples, constants, functions of numba's own."""
    largest, at = -np.inf, (0, 0)
    for i in range(x.shape[0]):
        piece = x[i, : min(x.shape[1], len(y))]
        total = 0.0
        for j in range(piece.shape[0]):
            total += (piece[j] - y[j]) ** 2
        out[i] = np.sqrt(total)
        if total > largest:
            largest, at = total, (i, piece.shape[0])
    return largest + at[0] * at[1]


def with_closures(x: Any, out: Any) -> float:
    def squared(value: float) -> float:
        return value * value

    both = np.array([squared(value) for value in x]) + 2.0 * x
    out[:] = both * both - x
    return float(both.sum())


def code_of(dispatcher: Any) -> str:
    """Optimised code of the function itself, without names."""
    (compiled,) = dispatcher.overloads.values()
    module = str(compiled.library._final_module)
    body = re.search(r"^define [^\n]*i32 @[^\n]*\n(.*?)^}", module, re.DOTALL | re.MULTILINE)
    assert body is not None
    lines = [line.partition(";")[0].rstrip() for line in body.group(1).splitlines()]
    return "\n".join(re.sub(r"[@%!][\w.\"$]+", "_", line) for line in lines if not line.endswith(":"))


@pytest.mark.parametrize("is_known", [True, False])
def test_it_makes_the_code_that_numba_makes(is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "IS_KNOWN", is_known)
    monkeypatch.setattr(quick, "BriefLowering", NativeLowering)  # for that there is test_brief.py
    # LLVM goes over it as often as for numba
    monkeypatch.setattr(linking.KernelCompiler, "library", linking.JITCodeLibrary)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(20, 5)), random.normal(size=5)
    fast, slow = kernel(farthest), numba.njit(farthest, **COMPILED, _nrt=False)
    found, wanted = np.empty(20), np.empty(20)
    assert fast(x, y, found) == slow(x, y, wanted)
    assert found.tobytes() == wanted.tobytes()
    assert code_of(fast) == code_of(slow)


def small_fit() -> list[float]:
    """Numbers of a fit that is large enough for two threads and needs few kernels."""
    X = np.random.default_rng(0).normal(size=(60_000, 2)) + np.repeat([[0.0], [9.0], [30.0]], 20_000, axis=0)
    model = KMeans(3, init=X[::20_000], algorithm="lloyd", n_threads=2).fit(X)
    return [model.inertia_, *model.cluster_centers_.ravel()]


UNKNOWN = f"""
import json, numba
numba.version_info, numba.__version__ = numba.version_info._replace(short=(99, 0)), "99.0"
import numpy as np
from globular import KMeans
from globular.kernels import linking, quick, team
from globular.threads import how_many
{inspect.getsource(small_fit)}
print(json.dumps(small_fit()))
assert not quick.IS_KNOWN and not linking.OPTIMISES_ONCE and not team._idle
assert how_many.WAKING == how_many.WAITING
"""


@pytest.mark.slow
def test_a_fit_with_a_version_of_numba_that_was_not_tried_is_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", UNKNOWN], capture_output=True, text=True, check=True)
    np.testing.assert_allclose(json.loads(done.stdout), small_fit(), rtol=1e-9)
    assert done.stderr.count("compiling kernels") == done.stderr.count("numba 99.0 is newer than ")


def test_a_version_of_numba_that_was_not_tried_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile, "IS_KNOWN", False)
    notice, event = compile._CompilationNotice(), SimpleNamespace(data={"dispatcher": sums.sum_spans})
    for _ in range(2):
        notice.on_start(event)
    assert caplog.text.count(f"numba {numba.__version__} is newer than ") == 1


@pytest.mark.parametrize("decorated", [kernel, allocating_kernel])
def test_code_that_llvm_goes_over_once_gives_the_same_numbers(decorated: Any) -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(37, 9)), random.normal(size=9)
    found, wanted = np.empty(37), np.empty(37)
    assert decorated(farthest)(x, y, found) == pytest.approx(numba.njit(farthest)(x, y, wanted), rel=1e-15)
    np.testing.assert_allclose(found, wanted, rtol=1e-15)


def test_closures_and_expressions_of_arrays_are_compiled_as_numba_does() -> None:
    x, found, wanted = np.linspace(0, 1, 7), np.empty(7), np.empty(7)
    assert allocating_kernel(with_closures)(x, found) == numba.njit(with_closures, **COMPILED)(x, wanted)
    assert found.tobytes() == wanted.tobytes()


def test_numba_is_left_as_it_was() -> None:
    assert gc.isenabled()
    with undisturbed():
        assert not gc.isenabled()
        assert errors.termcolor().errmsg("message") == "message"
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert type(errors.termcolor()).__name__ != "_Plain"
    kernel(farthest)(np.ones((1, 1)), np.ones(1), np.empty(1))
    assert postproc.PostProcessor.__name__ == "PostProcessor"


@pytest.mark.parametrize(("single", "whole"), [(np.float32, np.int32), (np.float64, np.int64)])
def test_bits_of_floats_sort_like_the_floats(single: Any, whole: Any) -> None:
    values = np.array([-np.inf, -3.5, -1e-30, -0.0, 0.0, 1e-30, 2.0, np.inf], single)

    @kernel
    def look(values: Any, bits: Any, keys: Any, again: Any) -> None:
        for i in range(values.shape[0]):
            bits[i], keys[i] = float_bits(values[i]), order_key(values[i])
            again[i] = bits_float(float_bits(np.float64(values[i])))

    bits, keys, again = np.empty(8, np.int64), np.empty(8, np.int64), np.empty(8)
    look(values, bits, keys, again)
    assert (bits == values.view(whole)).all()
    assert (np.diff(keys) > 0).all()
    assert (again == values).all()


class Within(NamedTuple):
    """Arguments inside arguments."""

    matrix: Any
    pair: Any
    factor: float
    is_wanted: bool


def test_arguments_of_every_kind_reach_a_kernel() -> None:
    @kernel
    def gather(within: Any, narrow: Any, large: Any, short: int, out: Any) -> tuple[float, int]:
        first, second = within.pair
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[i, j] = within.matrix[i, j] * first[j] + second[i, j] if within.is_wanted else within.factor
        return narrow + out.shape[1], large - short

    matrix = np.arange(12.0).reshape(3, 4)
    turned, first, second = np.asfortranarray(matrix), np.arange(8.0)[::2], matrix[:, ::-1].astype(np.float32)
    for is_wanted, wanted in ((True, matrix * first + second), (np.False_, np.full((3, 4), 2.5))):
        out = np.empty((3, 4))
        within = Within(turned, (first, second), 2.5, bool(is_wanted))
        assert gather(within, np.float32(1.5), np.uint64(2**63), np.int16(1), out) == (5.5, 2**63 - 1)
        assert (out == wanted).all()


def test_an_error_in_a_kernel_is_one_of_python() -> None:
    @kernel
    def refuse(values: Any, k: int) -> float:
        if k > 0:
            raise ValueError("no more than that")
        return float(values[k])

    assert refuse(np.ones(1), 0) == 1.0
    with pytest.raises(ValueError, match="no more than that"):
        refuse(np.ones(1), 1)


@pytest.mark.skipif(numba.version_info.short < (0, 62), reason="this version of numba has nothing to initialise")
def test_what_a_callee_has_initialised_its_callers_know() -> None:
    callee = Mock(_reload_init={"init"}, _get_module_for_linking=lambda: llvm.parse_assembly(""))
    library: Any = linking._LinkedLibrary(cpu_target.target_context.codegen(), "caller")
    library._linking_libraries.append(callee)
    library.finalize()
    assert library._reload_init == {"init"}
