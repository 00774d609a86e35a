"""Where SciPy's BLAS is in this process, for kernels: they read addresses from variables such as `globular_dgemm`.

A number in compiled code would be wrong in the next process, which reads the code from disk.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache

ROUTINES = ("dgemm", "dsyrk", "dtrmm", "sgemm")
"""What is called of BLAS, always with 32-bit numbers and everything by reference, as Fortran has it."""


@cache
def address_of(routine: str) -> int:
    """The address of a routine in this process: SciPy's BLAS."""
    from scipy.linalg import cython_blas

    routines: Mapping[str, object] = cython_blas.__pyx_capi__
    capsule = routines[routine]
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, name(capsule)))


def symbol(routine: str) -> str:
    """The name of the variable that has the address of a routine."""
    return f"globular_{routine}"


@cache
def announce() -> list[ctypes.c_void_p]:
    """Let machine code that numba makes or reads from disk find the addresses; the variables stay for good."""
    import llvmlite.binding as llvm

    variables = [ctypes.c_void_p(address_of(routine)) for routine in ROUTINES]
    for routine, each in zip(ROUTINES, variables, strict=True):
        llvm.add_symbol(symbol(routine), ctypes.addressof(each))
    return variables
