"""scikit-learn's own tests, imported anew from the installed package with our classes in the place of theirs."""

import importlib.util
import sys
from types import ModuleType
from typing import Any
from unittest.mock import patch


def swapped(module: str, package: str, ours: dict[str, Any]) -> dict[str, Any]:
    """The test functions of a module for which the names of a package mean our objects."""
    found = importlib.util.find_spec(module)
    assert found is not None and found.loader is not None
    with patch.multiple(package, **ours), patch.dict(sys.modules):
        tests: ModuleType = importlib.util.module_from_spec(found)
        found.loader.exec_module(tests)
    return {name: value for name, value in vars(tests).items() if name.startswith("test_") and "array_api" not in name}
