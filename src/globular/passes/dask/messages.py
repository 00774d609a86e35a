"""What travels, and the log of what has been done.

A request goes down a tree of workers, its answers come back up, added on the way. Sums of which few rows are not zero
(what moved in an iteration) travel as those rows, pairs of clusters in the narrowest types that hold them; what arrives
has the same bits.

The log has what has been done to the per-point state, so that it can be done again to a part that was lost. Replaying
the changes gives a part the state it had, to the bit. Every change says which pieces of the state it reads, writes and
overwrites, whatever they were before. Found from the last to the first, those stay whose effect is still there: of a
hundred Lloyd iterations one is replayed, of all looks at the components of a mixture the last.

Cells of a tree are opened one change after the other, and none of them overwrites the others. After `SNAPSHOT_EVERY`
changes the parts are asked for their frontiers, a few numbers a cell, and to put one in place overwrites all before it.
So neither the log nor the time to replay it grows with the iterations of a fit over cells.

What the log needs is bounded by `LOG_BYTES`. Beyond that the oldest searches go, and a lost part begins with one exact
pass at the centres of the oldest change still there; cells without components look at all of them.
"""

from __future__ import annotations

import io
import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from globular.lazy import cached_property
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, PairStatistics
from globular.passes.many import Node, TreeSum
from globular.seam.passes import Effect, Names, Pass
from globular.seam.tree_passes import OPENING, FrontierState, Gains, PutFrontier


class Work:
    """A pass for every part, or one of its own for each of some parts; pickled once, however far it travels.

    The results of one pass become one, those of several come back part by part.
    """

    def __init__(self, value: Pass[Any] | dict[int, Pass[Any]]) -> None:
        vars(self)["value"] = value
        self.payload = _dumps(value)
        self.changes = bool(self.one.effect.writes)
        """Whether the per-row state is another one afterwards."""
        self.parts = frozenset(value) if isinstance(value, dict) else None
        """The parts that have a pass of their own; None for all, with the same pass."""

    @cached_property
    def value(self) -> Pass[Any] | dict[int, Pass[Any]]:
        """The pass, or the passes by part."""
        value: Pass[Any] | dict[int, Pass[Any]] = pickle.loads(self.payload)
        return value

    @property
    def one(self) -> Pass[Any]:
        """The pass, or one of them."""
        return next(iter(self.value.values())) if isinstance(self.value, dict) else self.value

    def of_part(self, number: int) -> Pass[Any] | None:
        """The pass of a part; None where there is nothing to do."""
        return self.value.get(number) if isinstance(self.value, dict) else self.value

    def __getstate__(self) -> dict[str, Any]:
        return {name: kept for name, kept in vars(self).items() if name != "value"}


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _pickler()(buffer).dump(value)
    return buffer.getvalue()


@cache
def _pickler() -> type:
    import cloudpickle  # comes with Dask

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, GaussianParameters):
                name = _MIXTURE_NAMES.setdefault(obj, uuid.uuid4().hex)
                return same_mixture, (name, type(obj), vars(obj))
            return super().reducer_override(obj)

    return Pickler


_MIXTURE_NAMES: WeakKeyDictionary[GaussianParameters, str] = WeakKeyDictionary()
"""The names of mixtures that were sent."""
_MIXTURES: WeakValueDictionary[str, GaussianParameters] = WeakValueDictionary()
"""Mixtures that arrived here, by their names."""


def same_mixture(name: str, kind: type[GaussianParameters], attributes: dict[str, Any]) -> GaussianParameters:
    """The mixture that was sent by this name: one object as long as it is in use, however often it is sent.

    What was computed for a mixture is kept for that very object, so a copy would have it computed again.
    """
    mixture = object.__new__(kind)
    vars(mixture).update(attributes)
    return _MIXTURES.setdefault(name, mixture)


@dataclass(frozen=True, slots=True)
class Post:
    """A worker, and the parts that are asked of it."""

    address: str
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """Work for the workers of `route`: the first of them does its own and passes it on to the others."""

    key: str
    """Names the shard."""
    number: int
    """The number of changes of the state up to and with this one; answered twice, it is done once."""
    n_parts: int
    work: Work
    route: tuple[Post, ...]
    replay: int = 0
    """The repair in whose course parts that were made in it are brought up to `number`, without results; 0 for none."""

    def onward(self) -> list[Request]:
        """The requests to pass on: the rest of the route in two, neighbours staying together."""
        return [replace(self, route=half) for half in halves(self.route[1:])]


def halves(route: tuple[Post, ...]) -> list[tuple[Post, ...]]:
    """A route in two, those that are not empty, cut where the tree over the parts is: so few sums stay incomplete."""

    def evenness(place: int) -> tuple[int, int]:
        first = route[place].parts[0]
        return first & -first, -abs(2 * place - len(route))

    cut = max(range(1, len(route)), key=evenness, default=len(route))
    return [half for half in (route[:cut], route[cut:]) if half]


@dataclass
class Reply:
    """What the workers of a route found, or what kept them from it; on a journey sums take fewer bytes."""

    sums: dict[Node, Any] = field(default_factory=dict)
    """Results put together as far as the tree over the parts allows."""
    singles: dict[int, Any] = field(default_factory=dict)
    """Results part by part."""
    lost: list[str] = field(default_factory=list)
    """Workers that do not answer."""
    missing: list[int] = field(default_factory=list)
    """Parts that their worker does not have, or has in an earlier state."""
    error: BaseException | None = None

    def join(self, other: Reply, request: Request) -> None:
        """Take in the answer of another route."""
        self.lost += other.lost
        self.missing += other.missing
        self.error = self.error or other.error
        self.singles |= other.singles
        if self.sums or other.sums:
            tree = TreeSum[Any](request.n_parts, request.work.one.merge)
            tree.nodes.update(self.sums)
            for (level, number), value in other.sums.items():
                tree.insert(level, number, value)
            self.sums = tree.nodes

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "sums": {node: pack(value) for node, value in self.sums.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, sums={node: unpack(value) for node, value in state["sums"].items()})


class Packed(NamedTuple):
    """Something in fewer bytes: what makes it again, and from what."""

    make: Callable[..., Any]
    given: tuple[Any, ...]


def pack(value: Any) -> Any:
    """Statistics in a form that takes fewer bytes; `unpack` restores every bit."""
    if isinstance(value, np.ndarray) and value.ndim in (1, 2) and value.dtype == np.float64:
        occupied = np.ascontiguousarray(value).view(np.int64).any(axis=tuple(range(1, value.ndim)))
        indices = np.flatnonzero(occupied).astype(np.int32)
        few = 2 * len(indices) < len(value)
        return Packed(_with_rows, (value.shape, indices, value[indices])) if few else value
    if isinstance(value, PairStatistics):
        pieces = [tuple(map(narrowed, piece)) for piece in value.pieces if len(piece[0])]
        return Packed(PairStatistics.of_pieces, (pieces,))
    if is_dataclass(value) and not isinstance(value, type):
        return Packed(type(value), tuple(pack(getattr(value, item.name)) for item in fields(value)))
    return value


def unpack(value: Any) -> Any:
    """The inverse of `pack`."""
    return value.make(*map(unpack, value.given)) if isinstance(value, Packed) else value


def _with_rows(shape: tuple[int, ...], indices: NDArray[np.int32], rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts or sums of which few rows differ from zero."""
    whole = np.zeros(shape)
    whole[indices] = rows
    return whole


def narrowed(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers that are all whole and small in one or two bytes each, others as they are."""
    if values.dtype.kind == "f" and (values[:100] % 1).any():
        return values
    least, largest = values.min(initial=0), values.max(initial=0)
    for kind in (np.uint8, np.uint16):
        if least >= 0 and largest <= np.iinfo(kind).max:
            small = values.astype(kind)
            return small if values.dtype.kind != "f" or np.array_equal(small, values) else values
    return values


LOG_BYTES = 2**30
SNAPSHOT_EVERY = 32
"""Changes of a frontier that are replayed at most, if its state is small."""
SNAPSHOT_BYTES = 2**26
"""The largest state of a frontier, for all parts together, that the log takes in."""

_LASTING: Names = frozenset({"tree", "frontier", "gains", "cut", "pairs"})
"""State that later passes cannot do without."""


@dataclass(frozen=True, slots=True)
class StateChange:
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
        self.changes: list[StateChange] = []
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
        self._add(StateChange(work, effect))

    def _add(self, change: StateChange) -> None:
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
            self._add(StateChange(Work(dict(kept)), kept[0].effect))

    def first_centers(self) -> F64 | None:
        """The centres of the oldest change of labels that has some."""
        for change in self.changes:
            if "labels" in change.effect.writes:
                work = change.work.one
                centers = getattr(work, "centers", getattr(getattr(work, "mixture", None), "means", None))
                if isinstance(centers, np.ndarray):
                    return centers
        return None


def still_needed(changes: list[StateChange]) -> list[StateChange]:
    """The changes that leave a trace in the state as it is now, found from the last to the first."""
    overwritten: set[str] = set()
    kept: list[StateChange] = []
    for change in reversed(changes):
        effect = change.effect
        if effect.writes - overwritten:
            kept.append(change)
            overwritten = (overwritten | effect.writes if effect.afresh else overwritten - effect.writes) - effect.reads
    return kept[::-1]
