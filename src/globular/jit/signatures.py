"""Types of a kernel's arguments as text, for the list of kernels that are built ahead (`manifest.txt`):

    passes.cpu.seeds.seed_cells i8:1C f4:2C! f8:1C i8:1C

A type is a letter and bytes, for arrays with dimensions, layout and "!" if they are read-only; tuples are "(…)", named
ones have their name in front. The library knows types without names and "!": to machine code they are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

PACKAGE = "globular"
NAMES = {
    "f4": "float32", "f8": "float64", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8",
    "u2": "uint16", "u4": "uint32", "u8": "uint64", "b1": "boolean",
}  # fmt: skip
_PIECES = re.compile(r"[\w.]*\(|[^() ]+|\)")


def read(text: str) -> tuple[Any, ...]:
    """Types of arguments from their text."""
    return tuple(_read(iter(_PIECES.findall(text))))


def _read(pieces: Iterator[str]) -> Iterator[Any]:
    from numba import types as numba_types

    types: Any = numba_types
    for piece in pieces:
        if piece == ")":
            return
        if not piece.endswith("("):
            scalar, _, array = piece.partition(":")
            kind = getattr(types, NAMES[scalar])
            yield types.Array(kind, int(array[0]), array[1], readonly=array.endswith("!")) if array else kind
            continue
        within, (module, _, name) = tuple(_read(pieces)), piece[:-1].rpartition(".")
        if not name:
            yield types.Tuple(within)
            continue
        named, alike = getattr(import_module(f"{PACKAGE}.{module}"), name), len(set(within)) == 1
        yield types.NamedUniTuple(within[0], len(within), named) if alike else types.NamedTuple(within, named)


def unnamed(text: str) -> str:
    """The same text as the library writes it."""
    return re.sub(r"[\w.]*\(", "(", text).replace("!", "")


def scratch_words(text: str, roles: list[str]) -> list[int]:
    """Where in the words of a call the arrays begin that each thread has its own of; −1 − that place for zeros."""
    at, argument, depth, found = 0, 0, 0, []
    for piece in _PIECES.findall(text):
        if piece.endswith("("):
            depth += 1
        elif piece == ")":
            depth -= 1
        else:
            array = piece.partition(":")[2]
            if array and roles[argument] in ("Scratch", "Zeros"):
                found.append(at if roles[argument] == "Scratch" else -1 - at)
            at += 5 + 2 * int(array[0]) if array else 1  # five words come before shape and strides
        argument += depth == 0
    return found
