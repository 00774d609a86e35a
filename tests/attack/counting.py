"""What makes a test an attack: how many cases of it are tried, for how long, and how many it has been.

`run.py` sets GLOBULAR_ATTACK_EXAMPLES (cases of each attack), GLOBULAR_ATTACK_UNTIL (the time, in seconds since the
epoch, from which on cases are no longer tried) and GLOBULAR_ATTACK_COUNT (a file that gets a byte for each case tried).
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_SETTINGS = settings(
    max_examples=int(os.environ.get("GLOBULAR_ATTACK_EXAMPLES", "8")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
_END = float(os.environ.get("GLOBULAR_ATTACK_UNTIL", "inf"))
_COUNT = os.environ.get("GLOBULAR_ATTACK_COUNT")


def attack(test: Any) -> Any:
    """Above `given`: many cases of it, counted as they end."""
    test.hypothesis.inner_test = _counted(test.hypothesis.inner_test)
    return _SETTINGS(test)


def _counted(tried: Callable[..., None]) -> Callable[..., None]:
    begun: set[tuple[Any, ...]] = set()

    @functools.wraps(tried)
    def counted(*args: Any, **kwargs: Any) -> None:
        # Hypothesis takes a test that draws as it goes, and no longer does, for one that draws at random.
        draws_on = tuple(value for name, value in kwargs.items() if name != "data") if "data" in kwargs else None
        if time.time() > _END and draws_on not in begun:
            pytest.skip("the time is up")
        if draws_on is not None:
            begun.add(draws_on)
        tried(*args, **kwargs)
        if _COUNT:
            with open(_COUNT, "ab") as file:
                file.write(b".")

    return counted
