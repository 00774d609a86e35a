"""Packs kernels into a wheel: those in the folder that GLOBULAR_BROUGHT names (`make wheel-with-kernels`)."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BringKernels(BuildHookInterface[Any]):
    """Adds the folder, and says which Python and which machine it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("GLOBULAR_BROUGHT")
        if folder is None:
            return
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        # Kernels call nothing of the system's library that numba's own wheels do not.
        machine = f"manylinux_2_28_{platform.machine()}" if sys.platform == "linux" else sysconfig.get_platform()
        build_data["force_include"][folder] = "globular/kernels/brought"
        build_data["pure_python"] = False
        build_data["tag"] = f"{python}-{python}-{machine.replace('-', '_').replace('.', '_')}"
