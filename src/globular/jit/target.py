"""Which processors kernels are compiled for: the one that they run on, or a level that many processors reach.

A level is a set of instructions that all newer processors of a kind have. The library has kernels of levels; numba
compiles for the processor of the process. Vectors are equally wide in both, because the tiles that centres are laid out
in depend on it.
"""

from __future__ import annotations

import functools
import os
import platform

CACHE_LINE = 64
"""Bytes that memory hands over at once."""

V3 = "+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+fxsr,+lzcnt,+movbe,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave"
V4 = f"{V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"
LEVELS: dict[tuple[str, str], dict[str, tuple[str, str]]] = {
    ("Linux", "x86_64"): {"x86-64-v4": ("x86-64-v4", V4), "x86-64-v3": ("x86-64-v3", V3)},
    # What LLVM cannot tell of a processor under Linux, no code may need.
    ("Linux", "aarch64"): {"armv8.2": ("neoverse-n1", "+crc,+fp-armv8,+lse,+neon,-dotprod,-fullfp16,-rcpc,-ssbs")},
    ("Darwin", "arm64"): {"apple-m1": ("apple-m1", "")},
}
"""The levels of each kind of machine, the highest first: a processor as LLVM calls it, and its instructions."""


def levels() -> dict[str, tuple[str, str]]:
    """The levels of this kind of machine; none where no library is built."""
    return LEVELS.get((platform.system(), platform.machine()), {})


@functools.cache
def vector_bytes() -> int:
    """Bytes of a vector of this process, as the library has them, else as numba will."""
    from globular.jit import library

    if platform.machine() not in ("x86_64", "AMD64"):
        return 16
    level = library.level()
    if level is not None:
        features = levels()[level][1]
    else:
        import llvmlite.binding as llvm

        asked = os.environ.get("NUMBA_CPU_FEATURES")
        features = asked if asked is not None else llvm.get_host_cpu_features().flatten()
    return 64 if "+avx512f" in features else 32 if "+avx2" in features else 16
