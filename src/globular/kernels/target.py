"""Which processor kernels are compiled for: the one that they run on, or a level that many processors reach.

A level is a set of instructions that all newer processors of a kind have. Machine code of a level can be brought along
(`cache.BROUGHT`), because it runs wherever its instructions are. All kernels of a process are of one target, those that
were brought and those that are compiled beside them.
"""

from __future__ import annotations

import functools
import platform
from typing import Any, NamedTuple

import llvmlite.binding as llvm
from numba.core import config as numba_config
from numba.core.codegen import get_host_cpu_features

config: Any = numba_config  # its names are set when it is imported

CACHE_LINE = 64
"""Bytes that memory hands over at once."""


class Target(NamedTuple):
    """A processor as LLVM calls it, and its instructions: "+" for what it has, "-" for what code must do without."""

    cpu: str
    features: str

    def has(self, *names: str) -> bool:
        """Whether the processor has all these instructions."""
        return {f"+{name}" for name in names} <= set(self.features.split(","))

    def runs_on(self, other: Target) -> bool:
        """Whether another processor has all the instructions of this one."""
        return other.has(*(feature[1:] for feature in self.features.split(",") if feature.startswith("+")))


V3 = "+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+fxsr,+lzcnt,+movbe,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave"
V4 = f"{V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"
LEVELS: dict[tuple[str, str], list[tuple[str, Target]]] = {
    ("Linux", "x86_64"): [("x86-64-v4", Target("x86-64-v4", V4)), ("x86-64-v3", Target("x86-64-v3", V3))],
    ("Windows", "AMD64"): [("x86-64-v4", Target("x86-64-v4", V4)), ("x86-64-v3", Target("x86-64-v3", V3))],
    # What LLVM cannot tell of a processor under Linux, no code may need.
    ("Linux", "aarch64"): [
        ("armv8.2", Target("neoverse-n1", "+crc,+fp-armv8,+lse,+neon,-dotprod,-fullfp16,-rcpc,-ssbs"))
    ],
    ("Darwin", "arm64"): [("apple-m1", Target("apple-m1", ""))],
}
"""The levels of each kind of machine, the highest first."""


def levels() -> dict[str, Target]:
    """The levels that this processor reaches, the highest first."""
    here = LEVELS.get((platform.system(), platform.machine()), [])
    return {name: level for name, level in here if level.runs_on(host())}


@functools.cache
def host() -> Target:
    """This processor."""
    return Target(llvm.get_host_cpu_name(), get_host_cpu_features())


def asked_for() -> Target | None:
    """The target that numba's variables name, if they name one."""
    if config.CPU_NAME is None and config.CPU_FEATURES is None:
        return None
    return Target(
        host().cpu if config.CPU_NAME is None else config.CPU_NAME,
        host().features if config.CPU_FEATURES is None else config.CPU_FEATURES,
    )
