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

from dataclasses import dataclass, replace

import numpy as np

from globular.model.statistics import F64
from globular.passes.dask.messages import Work
from globular.seam.passes import Effect, Names
from globular.seam.tree_passes import OPENING, FrontierState, Gains, PutFrontier

LOG_BYTES = 2**30
SNAPSHOT_EVERY = 32
"""Changes of a frontier that are replayed at most, if its state is small."""
SNAPSHOT_BYTES = 2**26
"""The largest state of a frontier, for all parts together, that the log takes in."""

_LASTING: Names = frozenset({"tree", "frontier", "gains", "cut", "pairs"})
"""State that later passes cannot do without."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the state."""

    work: Work
    effect: Effect

    @property
    def opens_cells(self) -> bool:
        """Whether it adds to what the log has to keep of the cells of a tree."""
        sets_all = self.effect.afresh and self.effect.writes >= OPENING
        return bool(self.effect.writes & OPENING) and not sets_all


class Log:
    """The changes that a fresh part needs to catch up, oldest first."""

    def __init__(self) -> None:
        self.n_changes = 0
        self.is_cut = False
        """Whether changes that mattered had to go."""
        self.changes: list[Change] = []
        self.gains: Gains | None = None
        """The pass whose gains parts remember."""
        self._most_openings = SNAPSHOT_EVERY

    def append(self, work: Work) -> None:
        """Note a change that is about to be made."""
        self.n_changes += 1
        effect = work.one.effect
        if "tree" in effect.writes:
            self.gains = None
        if isinstance(work.one, Gains):
            if self.gains is not None and work.one.continues(self.gains):  # gains of cells that are known stay
                effect = replace(effect, afresh=False)
            self.gains = work.one
        self._add(Change(work, effect))

    def _add(self, change: Change) -> None:
        # thinned out before it is added: who makes this change may need the state before it once more
        self.changes = [*still_needed(self.changes), change]
        size = sum(len(change.work.payload) for change in self.changes)
        for old in self.changes[:-1]:
            if size > LOG_BYTES and not old.effect.writes & _LASTING:
                self.changes.remove(old)
                size -= len(old.work.payload)
                self.is_cut = True

    @property
    def wants_snapshot(self) -> bool:
        """Whether cells have been opened, or have searched, so often that their state is better put in place."""
        return sum(change.opens_cells for change in self.changes) > self._most_openings

    def put_snapshot(self, states: list[FrontierState | None]) -> None:
        """Note what puts the frontiers as they are now in place, unless one of them takes too many bytes."""
        kept = {number: PutFrontier(state, self.gains) for number, state in enumerate(states) if state is not None}
        if len(kept) < len(states):
            self._most_openings *= 2
        else:
            self._add(Change(Work(dict(kept)), kept[0].effect))

    def first_centers(self) -> F64 | None:
        """The centres of the oldest change of labels that has some."""
        for change in self.changes:
            if "labels" in change.effect.writes:
                work = change.work.one
                centers = getattr(work, "centers", getattr(getattr(work, "mixture", None), "means", None))
                if isinstance(centers, np.ndarray):
                    return centers
        return None


def still_needed(changes: list[Change]) -> list[Change]:
    """The changes that leave a trace in the state as it is now, found from the last to the first."""
    overwritten: set[str] = set()
    kept: list[Change] = []
    for change in reversed(changes):
        effect = change.effect
        if effect.writes - overwritten:
            kept.append(change)
            overwritten = (overwritten | effect.writes if effect.afresh else overwritten - effect.writes) - effect.reads
    return kept[::-1]
