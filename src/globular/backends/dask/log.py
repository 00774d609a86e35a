"""What has been done to the per-point state, so that it can be done again to a part that was lost.

Replaying the changes gives a part the state it had, to the bit. Every change says which pieces of the state it reads,
writes and overwrites, whatever they were before. Found from the last to the first, those stay whose effect is still
there: of a hundred Lloyd iterations one is replayed, of all looks at the components of a mixture the last.

Cells of a tree are opened one change after the other, and none of them overwrites the others. After `SNAPSHOT_EVERY`
changes the parts are asked for their frontiers, a few numbers a cell, and to put one in place overwrites all before it.
So neither the log nor the time to replay it grows with the iterations of a fit over cells.

What the log needs is bounded by `LOG_BYTES`. Beyond that the oldest searches go, and a lost part begins with one exact
pass at the centres of the oldest change still there; cells without components look at all of them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from globular.backends.dask.messages import Work
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64

LOG_BYTES = 2**30
SNAPSHOT_EVERY = 32
"""Changes of a frontier that are replayed at most, if its state is small …"""
SNAPSHOT_BYTES = 2**26
"""… which is no more than so much for all parts together."""

Names = frozenset[str]
_NONE: Names = frozenset()
_CELLS: Names = frozenset({"frontier", "held", "gains"})
"""The cells of a tree, the components that each of them holds, and what opening it would gain."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a pass does to the pieces of the state."""

    reads: Names
    writes: Names
    overwrites: Names = _NONE
    """Those of the writes that do not depend on what was there before."""


def _renews(*names: str) -> Effect:
    return Effect(frozenset(names), frozenset(names))


def _sets(*names: str, reads: Names = _NONE) -> Effect:
    return Effect(reads, frozenset(names), frozenset(names))


_EFFECTS: dict[str, Effect] = {
    "hard_pass": _sets("labels"),
    "scatter_labels": _sets("labels"),
    "relabel": _renews("labels"),
    "label_by_seeds": _renews("labels", "d2", "seeds"),
    "bounded_pass": _renews("labels", "yinyang"),
    "truncated_pass": _renews("labels", "members"),
    "truncated_soft_pass": _renews("labels", "members"),
    "probing_pass": _renews("labels", "d2"),
    "probing_soft_pass": _renews("labels", "members"),
    "routed_pass": _renews("labels", "d2", "cells"),
    "d2_pass": _renews("d2", "seeds"),
    "kept_pass": _sets("kept"),
    "plant_tree": _sets("tree", *_CELLS),
    "put_frontier": _sets(*_CELLS, reads=frozenset({"tree"})),
    "best_nodes": _sets("parted", reads=frozenset({"tree"})),
    "forget_members": _sets("held", reads=frozenset({"tree"})),
    "truncated_cell_pass": Effect(frozenset({"tree", "frontier", "held"}), frozenset({"held"})),
    "gain_pass": _sets("gains", reads=frozenset({"tree", "frontier", "held"})),
    "expand_chunks": Effect(_CELLS | {"tree"}, _CELLS),
    "open_rows": Effect(_CELLS | {"tree"}, _CELLS),
    "open_claimed": Effect(_CELLS | {"tree"}, _CELLS),
    "open_best": Effect(_CELLS | {"tree", "parted"}, _CELLS),
}
"""Of a pass that is not here nothing is assumed."""
_EVERYTHING: Names = _NONE.union(*(effect.writes for effect in _EFFECTS.values())) | {"anything else"}
_LASTING = frozenset(
    name for name, effect in _EFFECTS.items() if effect.writes & {"tree", "frontier", "gains", "parted", "kept"}
)
"""Passes that others cannot do without."""
_OPENINGS = frozenset(name for name, effect in _EFFECTS.items() if effect.writes & _CELLS) - {
    "plant_tree", "put_frontier",
}  # fmt: skip
"""Passes over the cells of a tree that add to what the log has to keep."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the state."""

    work: Work
    effect: Effect


class Log:
    """The changes that a fresh part needs to catch up, oldest first."""

    def __init__(self, max_bytes: int = LOG_BYTES) -> None:
        self.n_changes = 0
        self.is_cut = False
        """Whether changes that mattered had to go."""
        self.changes: list[Change] = []
        self.gains_under: tuple[GaussianParameters, bool] | None = None
        """The mixture of the gains that parts remember, and whether they are truncated."""
        self._max_bytes = max_bytes
        self._most_openings = SNAPSHOT_EVERY

    def append(self, work: Work, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        """Note a change that is about to be made."""
        self.n_changes += 1
        self._add(Change(work, self._effect(work.name, args, kwargs or {})))

    def _add(self, change: Change) -> None:
        # thinned out before it is added: who makes this change may need the state before it once more
        self.changes = [*still_needed(self.changes), change]
        size = sum(len(change.work.payload) for change in self.changes)
        for old in self.changes[:-1]:
            if size > self._max_bytes and old.work.name not in _LASTING:
                self.changes.remove(old)
                size -= len(old.work.payload)
                self.is_cut = True

    def _effect(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Effect:
        effect = _EFFECTS.get(name, Effect(_EVERYTHING, _EVERYTHING))
        if name == "plant_tree":
            self.gains_under = None
        elif name == "gain_pass":
            known, under = self.gains_under, (args[0], kwargs["truncated"])
            self.gains_under = under
            if known is not None and known[0] is under[0] and known[1] == under[1]:  # cells that are known stay
                return Effect(effect.reads | effect.writes, effect.writes)
        elif name == "kept_pass" and not kwargs["renew"]:
            return Effect(effect.writes, _NONE)
        elif (
            (name == "d2_pass" and kwargs.get("restart"))
            or (name == "routed_pass" and kwargs.get("route", "top") == "top")
            or (name == "bounded_pass" and args[2] is None)
        ):
            return Effect(_NONE, effect.writes, effect.writes)
        return effect

    @property
    def wants_snapshot(self) -> bool:
        """Whether cells have been opened, or have searched, so often that their state is better put in place."""
        return sum(change.work.name in _OPENINGS for change in self.changes) > self._most_openings

    def put_snapshot(self, work: Work | None) -> None:
        """Note what puts the frontiers as they are now in place; None if they take too many bytes."""
        if work is None:
            self._most_openings *= 2
        else:
            self._add(Change(work, _EFFECTS["put_frontier"]))

    def first_centers(self) -> F64 | None:
        """The centres of the oldest change of labels that has some."""
        for change in self.changes:
            if "labels" not in change.effect.writes:
                continue
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
        if change.effect.writes & live:
            kept.append(change)
            live = (live - change.effect.overwrites) | change.effect.reads
    return kept[::-1]
