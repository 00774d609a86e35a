"""What has been done to the per-point state, so that it can be done again to a part that was lost.

Replaying the changes gives a part the state it had, to the bit. Changes whose effect was overwritten since are left
out, so that of a hundred Lloyd iterations one is replayed; what the log needs is bounded by `LOG_BYTES`. Beyond that
the oldest changes go, and a lost part begins with one exact pass at the centres of the oldest change still there.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from globular.backends.dask.messages import Work
from globular.model.statistics import F64

LOG_BYTES = 2**30

_TOUCHED: dict[str, frozenset[str]] = {
    "hard_pass": frozenset({"labels"}),
    "scatter_labels": frozenset({"labels"}),
    "relabel": frozenset({"labels"}),
    "label_by_seeds": frozenset({"labels", "d2", "seeds"}),
    "bounded_pass": frozenset({"labels", "yinyang"}),
    "truncated_pass": frozenset({"labels", "members"}),
    "truncated_soft_pass": frozenset({"labels", "members"}),
    "probing_pass": frozenset({"labels", "d2"}),
    "probing_soft_pass": frozenset({"labels", "members"}),
    "routed_pass": frozenset({"labels", "d2", "cells"}),
    "d2_pass": frozenset({"d2", "seeds"}),
}
"""The per-point arrays that a pass reads or writes; of one that is not here nothing is assumed."""
_EVERYTHING = frozenset[str]().union(*_TOUCHED.values()) | {"anything else"}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the state."""

    work: Work
    starts_afresh: bool
    """Whether what it writes does not depend on what was there before."""

    @property
    def touched(self) -> frozenset[str]:
        return _TOUCHED.get(self.work.name, _EVERYTHING)


class Log:
    """The changes that a fresh part needs to catch up, oldest first."""

    def __init__(self, max_bytes: int = LOG_BYTES) -> None:
        self.n_changes = 0
        self.is_cut = False
        """Whether changes that mattered had to go."""
        self.changes: list[Change] = []
        self._max_bytes = max_bytes

    def append(self, work: Work, kwargs: dict[str, Any]) -> None:
        """Note a change that is about to be made."""
        self.n_changes += 1
        fresh = work.name in ("hard_pass", "scatter_labels") or (
            (work.name == "d2_pass" and bool(kwargs.get("restart")))
            or (work.name == "routed_pass" and kwargs.get("route", "top") == "top")
        )
        # thinned out before it is added: who makes this change may need the state before it once more
        self.changes = [*still_needed(self.changes), Change(work, fresh)]
        size = sum(len(change.work.payload) for change in self.changes)
        while size > self._max_bytes and len(self.changes) > 1:
            size -= len(self.changes.pop(0).work.payload)
            self.is_cut = True

    def first_centers(self) -> F64 | None:
        """The centres of the oldest change that has some."""
        for change in self.changes:
            _, args, *_ = pickle.loads(change.work.payload)
            own = next(iter(args.values()), ()) if isinstance(args, dict) else args
            for value in own[:1]:
                centers = getattr(value, "means", getattr(value, "centers", value))
                if isinstance(centers, np.ndarray) and centers.ndim == 2:
                    return centers
        return None


def still_needed(changes: list[Change]) -> list[Change]:
    """The changes that leave a trace in the state as it is now, found from the last to the first."""
    live = set(_EVERYTHING)
    kept: list[Change] = []
    for change in reversed(changes):
        if not change.touched & live:
            continue
        kept.append(change)
        if change.starts_afresh:
            live -= change.touched
        else:
            live |= change.touched
    return kept[::-1]
