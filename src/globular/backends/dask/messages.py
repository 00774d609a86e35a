"""What travels: a request goes down a tree of workers, its answers come back up, added on the way.

Sums of which few rows are not zero (what moved in an iteration) travel as those rows, pairs of clusters in the
narrowest types that hold them; what arrives has the same bits.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from globular.backends.tree import Node, TreeSum
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import PairStatistics

Merge = Callable[[Any, Any], Any]

STATELESS = frozenset(
    {
        "soft_pass", "claim_pass", "trial_pass", "locate", "locate_weight", "seed_weights", "label_errors",
        "label_sums", "take", "take_potential", "take_weights", "column_moments", "farthest", "weighted_moments",
        "potential_of", "labels_of", "labels_at", "on_arrays", "cell_pass", "gap_pass", "claim_chunks", "take_chunks",
        "frontier_of",
    }
)  # fmt: skip
"""What leaves the per-point state as it is, but for what can be computed from it again. Any other pass is taken to
change it, which is always safe."""


@dataclass(frozen=True, slots=True)
class Work:
    """A function of a shard for every part, or with arguments of its own for some parts."""

    name: str
    payload: bytes
    """Pickled (function, args, kwargs), or (function, {part: args})."""
    merge: Merge | None
    """How two results become one; None returns them part by part."""
    parts: frozenset[int] | None = None
    """The parts that have arguments of their own; None for all, with the same arguments."""

    @property
    def changes(self) -> bool:
        """Whether the per-point state is another one afterwards."""
        return self.name not in STATELESS

    @classmethod
    def for_all(cls, function: Callable[..., Any], args: Any, kwargs: Any, merge: Merge | None) -> Work:
        """The same arguments for every part."""
        return cls(function.__name__, _dumps((function, args, kwargs)), merge)

    @classmethod
    def for_some(
        cls, function: Callable[..., Any], arguments: dict[int, tuple[Any, ...]], merge: Merge | None = None
    ) -> Work:
        """Arguments of its own for each of these parts."""
        return cls(function.__name__, _dumps((function, arguments)), merge, frozenset(arguments))


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
                name = _NAMES.setdefault(obj, uuid.uuid4().hex)
                return same_mixture, (name, type(obj), vars(obj))
            return super().reducer_override(obj)

    return Pickler


_NAMES: WeakKeyDictionary[GaussianParameters, str] = WeakKeyDictionary()
"""Of mixtures that were sent …"""
_MIXTURES: WeakValueDictionary[str, GaussianParameters] = WeakValueDictionary()
"""… and of those that arrived here."""


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
        """The requests to pass on: two halves of the rest of the route, neighbours staying together."""
        return [
            Request(self.key, self.number, self.n_parts, self.work, half, self.replay)
            for half in halves(self.route[1:])
        ]


def halves(route: tuple[Post, ...]) -> list[tuple[Post, ...]]:
    """A route in two, those that are not empty."""
    middle = (len(route) + 1) // 2
    return [half for half in (route[:middle], route[middle:]) if half]


@dataclass(slots=True)
class Answer:
    """What the workers of a route found, or what kept them from it."""

    sums: dict[Node, Any] = field(default_factory=dict)
    """Results put together as far as the tree over the parts allows."""
    singles: dict[int, Any] = field(default_factory=dict)
    """Results part by part."""
    lost: list[str] = field(default_factory=list)
    """Workers that do not answer."""
    missing: list[int] = field(default_factory=list)
    """Parts that their worker does not have, or has in an earlier state."""
    error: BaseException | None = None
    n_bytes: int = 0
    """Size of the answers on all links so far."""

    def join(self, other: Answer, request: Request) -> None:
        """Take in the answer of another route."""
        self.lost += other.lost
        self.missing += other.missing
        self.error = self.error or other.error
        self.n_bytes += other.n_bytes
        self.singles |= other.singles
        if request.work.merge is not None and (self.sums or other.sums):
            tree = TreeSum[Any](request.n_parts, request.work.merge)
            tree.nodes.update(self.sums)
            for (level, number), value in other.sums.items():
                tree.insert(level, number, value)
            self.sums = tree.nodes

    def packed(self) -> Answer:
        """The same for the journey, its size added to `n_bytes`."""
        sums = {node: pack(value) for node, value in self.sums.items()}
        n_bytes = self.n_bytes + sum(map(size_of, sums.values())) + sum(map(size_of, self.singles.values()))
        return Answer(sums, self.singles, self.lost, self.missing, self.error, n_bytes)

    def unpacked(self) -> Answer:
        """The same after the journey."""
        sums = {node: unpack(value) for node, value in self.sums.items()}
        return Answer(sums, self.singles, self.lost, self.missing, self.error, self.n_bytes)


@dataclass(frozen=True, slots=True)
class SparseRows:
    """A matrix of which few rows differ from zero."""

    shape: tuple[int, ...]
    indices: NDArray[np.int32]
    rows: NDArray[np.float64]

    def unpacked(self) -> NDArray[np.float64]:
        matrix = np.zeros(self.shape)
        matrix[self.indices] = self.rows
        return matrix


@dataclass(frozen=True, slots=True)
class PackedPairs:
    """Pieces of pair statistics, each row of them in the narrowest type that holds its numbers."""

    pieces: list[tuple[NDArray[Any], ...]]
    """c, c̃, Σ w d and Σ w."""

    def unpacked(self) -> PairStatistics:
        return PairStatistics.of_pieces(self.pieces)


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass taken apart."""

    kind: type
    values: list[Any]

    def unpacked(self) -> Any:
        return self.kind(*map(unpack, self.values))


def pack(value: Any) -> Any:
    """Statistics in a form that takes fewer bytes; `unpack` restores every bit."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype == np.float64:
        occupied = np.ascontiguousarray(value).view(np.int64).any(axis=1)
        indices = np.flatnonzero(occupied).astype(np.int32)
        return SparseRows(value.shape, indices, value[indices]) if 2 * len(indices) < len(value) else value
    if isinstance(value, PairStatistics):
        return PackedPairs([tuple(map(narrowed, piece)) for piece in value.pieces])
    if is_dataclass(value) and not isinstance(value, type):
        return Record(type(value), [pack(getattr(value, item.name)) for item in fields(value)])
    return value


def unpack(value: Any) -> Any:
    """The inverse of `pack`."""
    return value.unpacked() if isinstance(value, SparseRows | PackedPairs | Record) else value


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


def size_of(value: Any) -> int:
    """Bytes of the arrays and numbers in a value."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, SparseRows):
        return int(value.indices.nbytes + value.rows.nbytes)
    if isinstance(value, PackedPairs):
        return size_of(value.pieces)
    if isinstance(value, Record):
        return size_of(value.values)
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    if is_dataclass(value) and not isinstance(value, type):
        return sum(size_of(getattr(value, item.name)) for item in fields(value))
    return 8
