"""Fixtures that every test module may use."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# A build must not fail by a rare example that nobody has touched; at home every run looks at new ones.
settings.register_profile("ours", max_examples=50, deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("ours")

# Whoever starts the tests in the background of a shell has Ctrl-C ignored, and tests of Ctrl-C with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]

LONGEST_FILES = ("test_dask.py", "test_site.py", "test_thresholds.py")
"""Of whole minutes: begun last, one of them would keep one process busy while the others have nothing left to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes take files in the order of the tests."""
    items.sort(key=lambda item: item.path.name not in LONGEST_FILES)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """`watch(owner, name, what)` is a list of `what` of the arguments of every call of that function from now on."""

    def watched(owner: Any, name: str, what: Callable[..., Any] = lambda *given, **named: given) -> list[Any]:
        seen, function = list[Any](), getattr(owner, name)

        def called(*given: Any, **named: Any) -> Any:
            seen.append(what(*given, **named))
            return function(*given, **named)

        monkeypatch.setattr(owner, name, called)
        return seen

    return watched


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Any]:
    """`real_data("mnist")` is the opened .npz of that data set; the test is skipped where it is not to be had.

    Looked for in the folder GLOBULAR_DATA, else in shared/data beside the checkout.
    """
    given = os.environ.get("GLOBULAR_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"

    def load(name: str, file: str | None = None) -> Any:
        path = folder / name / f"{file or name}.npz"
        if not path.is_file():
            pytest.skip(f"no {path}; set GLOBULAR_DATA to the folder that holds {name}/{path.name}")
        return np.load(path)

    return load
