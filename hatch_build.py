"""Packs the library of kernels into a wheel: the folder that GLOBULAR_LIBRARY names (`make wheel`)."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BringLibrary(BuildHookInterface[Any]):
    """Adds the folder, and says which machine it is for; Python's version does not matter to it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = os.environ.get("GLOBULAR_LIBRARY")
        if folder is None:
            return
        # Of the system's library it calls nothing that is newer.
        machine = f"manylinux_2_28_{platform.machine()}" if sys.platform == "linux" else sysconfig.get_platform()
        build_data["force_include"][folder] = "globular/jit/lib"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{machine.replace('-', '_').replace('.', '_')}"
