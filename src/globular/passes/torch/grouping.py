"""Items in the order of their keys: rows by cluster, visits by cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Grouping:
    """Items in the order of their keys."""

    order: Any
    keys: Any
    starts: Any = None
    """Where the items of each key begin, and end."""


def group(keys: Any, n: int, *, starts: bool = True) -> Grouping:
    """Group items by keys from 0 to n − 1."""
    narrow = keys.to(torch.int16) if n <= 2**15 else keys
    ordered, order = torch.sort(narrow, stable=True)
    grouping = Grouping(order, ordered)
    if starts:
        wanted = torch.arange(n + 1, device=keys.device, dtype=torch.int32)
        grouping.starts = torch.searchsorted(ordered.to(torch.int32), wanted)
    return grouping


def in_order(keys: Any) -> Grouping:
    """Items whose keys are in order already."""
    return Grouping(torch.arange(len(keys), device=keys.device, dtype=torch.int32), keys)
