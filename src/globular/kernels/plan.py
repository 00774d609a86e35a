"""Which kernels a fit will need, in which order: written down once for some fits, so that they can be compiled ahead.

A kernel is compiled for the types of its arguments, which nobody knows before they are made. But fits of one model on
rows like each other's need the same kernels for the same types. `plans.json` has them for the fits of `warming.py`,
each kernel with its types in a short form that is the same for both precisions of the rows:

    seeds.seed_cells i8:1C f*:2C! f8:1C i8:1C

The types are letter and bytes (`*`: as many as a number of the rows has), then, for arrays, dimensions, layout and "!"
if they are read-only; tuples are "(…)", named ones have their name in front. The file is a guess that costs nothing
where it is wrong: what a plan lacks is compiled when it is needed. `python tests/passes/test_plan.py` writes it anew.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from numba import types

FILE = Path(__file__).parent / "plans.json"
PACKAGE = __name__.rpartition(".")[0]
SCALARS: dict[str, Any] = {
    "f4": types.float32, "f8": types.float64, "i4": types.int32, "i8": types.int64, "u4": types.uint32,
    "u8": types.uint64, "u1": types.uint8, "i1": types.int8, "i2": types.int16, "u2": types.uint16, "b1": types.boolean,
}  # fmt: skip
_LETTERS = {kind: letters for letters, kind in SCALARS.items()}
_PIECES = re.compile(r"[\w.*]*\(|[^(), ]+|\)")


class Fit(NamedTuple):
    """A fit whose kernels are known."""

    model: str
    covariance: str
    n_clusters: int
    n_columns: int
    kernels: list[int]
    """Which of all kernels, in the order in which the fit needs them."""


class Plans(NamedTuple):
    """What the file has."""

    kernels: list[str]
    costs: list[float]
    """Seconds that each of them took to compile with all that it calls: kernels that have much in common are alike."""
    fits: list[Fit]


@cache
def plans() -> Plans:
    """All kernels of all plans, and the fits."""
    content = json.loads(FILE.read_text())
    return Plans(content["kernels"], content["costs"], [Fit(*fit) for fit in content["fits"]])


def plan_for(
    model: str, covariance: str, n_clusters: int, n_columns: int, itemsize: int, *, largest_first: bool = False
) -> list[str]:
    """The kernels that a fit will probably need: those of the fit most like it; empty where there is none.

    They are in the order in which the fit needs them, or those first that take the longest to compile.
    """
    kernels, costs, fits = plans()

    def unlikeness(fit: Fit) -> float:
        return abs(log(fit.n_clusters / n_clusters)) + abs(log(fit.n_columns / n_columns))

    known = [fit for fit in fits if (fit.model, fit.covariance) == (model, covariance)]
    chosen = min(known, key=unlikeness).kernels if known else []
    if largest_first:
        chosen = sorted(chosen, key=lambda number: -round(2 * costs[number]))  # among like ones what is needed first
    return list(dict.fromkeys(kernels[number].replace("*", str(itemsize)) for number in chosen))


def written(kind: Any) -> str:
    """A type of an argument in short; ValueError for one that has no short form."""
    if kind in _LETTERS:
        return _LETTERS[kind]
    if isinstance(kind, types.Array) and kind.aligned:
        return f"{written(kind.dtype)}:{kind.ndim}{kind.layout}{'' if kind.mutable else '!'}"
    if isinstance(kind, types.BaseTuple):
        members: Any = kind
        named = getattr(kind, "instance_class", tuple)
        name = "" if named is tuple else f"{named.__module__}.{named.__name__}".removeprefix(f"{PACKAGE}.")
        return f"{name}({','.join(map(written, members.types))})"
    raise ValueError(f"no short form of {kind}")


def read(text: str) -> tuple[Any, ...]:
    """Types of arguments from their short forms, with blanks or commas between."""
    return tuple(_read(iter(_PIECES.findall(text))))


def _read(pieces: Iterator[str]) -> Iterator[Any]:
    for piece in pieces:
        if piece == ")":
            return
        if not piece.endswith("("):
            yield _read_plain(piece)
            continue
        within, (module, _, name) = tuple(_read(pieces)), piece[:-1].rpartition(".")
        if not name:
            yield types.Tuple(within)
            continue
        named = getattr(import_module(f"{PACKAGE}.{module}"), name)
        alike = len(set(within)) == 1
        yield types.NamedUniTuple(within[0], len(within), named) if alike else types.NamedTuple(within, named)


def _read_plain(piece: str) -> Any:
    scalar, _, array = piece.partition(":")
    if not array:
        return SCALARS[scalar]
    return types.Array(SCALARS[scalar], int(array[0]), array[1], readonly=array.endswith("!"))


def compile_planned(line: str) -> bool:
    """Compile a kernel of a plan, unless it is on disk or under way elsewhere; whether it was to be done."""
    name, _, kinds = line.partition(" ")
    module, _, function = name.rpartition(".")
    return bool(getattr(import_module(f"{PACKAGE}.{module}"), function).compile_if_free(read(kinds)))


def compile_the_largest(
    model: str, covariance: str, n_clusters: str, n_columns: str, itemsize: str, number: str = "0", among: str = "1"
) -> None:
    """Compile the kernels of a fit, the largest first, as one of some processes that do so: each of them runs this.

    It leaves aside what is on disk or under way elsewhere, and ends with its parent.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.disable()  # what it makes stays until its end, which is soon
    _leave_out("scipy.linalg")
    planned = plan_for(model, covariance, int(n_clusters), int(n_columns), int(itemsize), largest_first=True)
    own = planned[int(number) :: int(among)]
    for line in dict.fromkeys([*own, *planned]):
        compile_planned(line)


def _leave_out(package: str) -> None:
    """Have modules of a package without the package itself, which takes a fifth of a second to import."""
    spec = find_spec(package)
    if spec is not None and package not in sys.modules:
        sys.modules[package] = module_from_spec(spec)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # until the parent closes it, or is gone
    os._exit(1)
