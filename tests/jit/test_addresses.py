"""Where arrays lie in memory changes nothing, and what a kernel writes is reached by one of its arguments only."""

import ctypes
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

import globular
from globular.jit.functions import Kernel

CALL = Kernel.__call__
GRAIN = 16  # bytes: arrays begin at multiples of it, as allocators have it
APART = 4096

FITS = {
    "few clusters": ("KMeans", {"n_clusters": 5}, 400, 3),
    "steps": ("KMeans", {"n_clusters": 40, "algorithm": "lloyd", "max_iter": 5}, 2000, 12),
    "many clusters": ("KMeans", {"n_clusters": 600}, 2500, 8),
    "many in the plane": ("KMeans", {"n_clusters": 600}, 2500, 2),
    "directions": ("KMeans", {"n_clusters": 30, "metric": "cosine"}, 1500, 9),
    "batches": ("NestedMiniBatchKMeans", {"n_clusters": 30}, 3000, 5),
    "truncated means": ("VariationalKMeans", {"n_clusters": 60}, 3000, 6),
    "truncated mixture": ("VariationalGaussianMixture", {"n_components": 60}, 3000, 6),
    "full": ("GaussianMixture", {"n_components": 4, "covariance_type": "full"}, 1500, 5),
    "diagonal": ("GaussianMixture", {"n_components": 6, "covariance_type": "diag"}, 1500, 5),
    "low rank": ("LowRankGaussianMixture", {"n_components": 6, "n_factors": 2}, 1500, 6),
    "tree": ("ChunkyGaussianMixture", {"n_components": 5}, 3000, 3),
    "infinite": ("InfiniteGaussianMixture", {}, 300, 4),
}


class Region(NamedTuple):
    """Memory that arrays share."""

    begin: int
    end: int


def arrays_in(argument: Any) -> Iterator[np.ndarray]:
    """Those of nested tuples, in order."""
    if isinstance(argument, np.ndarray):
        yield argument
    elif isinstance(argument, tuple):
        for each in argument:
            yield from arrays_in(each)


def region_of(array: np.ndarray) -> Region:
    return Region(*np.lib.array_utils.byte_bounds(array))


def regions_of(arrays: list[np.ndarray]) -> list[Region]:
    """The memory of all of them, where it overlaps as one."""
    joined: list[Region] = []
    for each in sorted(region_of(array) for array in arrays if array.size):
        if joined and each.begin < joined[-1].end:
            joined[-1] = Region(joined[-1].begin, max(joined[-1].end, each.end))
        else:
            joined.append(each)
    return joined


class Elsewhere:
    """The same arguments at other places in memory."""

    def __init__(self, regions: list[Region], order: np.ndarray, gap: int) -> None:
        self._regions = regions
        room = sum(each.end - each.begin + 2 * GRAIN + gap for each in regions) + GRAIN
        self._memory = np.zeros(room, dtype=np.uint8)
        self._at: dict[Region, int] = {}
        start = self._memory.ctypes.data
        at = -start % GRAIN
        for each in (regions[k] for k in order):
            at += each.begin % GRAIN
            self._at[each] = at
            ctypes.memmove(start + at, each.begin, each.end - each.begin)
            at += each.end - each.begin
            at += gap + GRAIN // 2  # what an allocator notes of its next piece
            at += -(start + at) % GRAIN

    def moved(self, argument: Any) -> Any:
        """An argument that lies there."""
        if isinstance(argument, np.ndarray) and argument.size:
            begin = region_of(argument).begin
            region = next(each for each in self._regions if each.begin <= begin < each.end)
            address = argument.__array_interface__["data"][0]
            array: Any = np.ndarray(
                argument.shape, argument.dtype, self._memory.data,
                self._at[region] + address - region.begin, argument.strides,
            )  # fmt: skip
            array.flags.writeable = argument.flags.writeable
            return array
        if isinstance(argument, tuple):
            moved = [self.moved(each) for each in argument]
            return type(argument)(*moved) if hasattr(argument, "_fields") else tuple(moved)
        return argument

    def contents(self) -> list[bytes]:
        """Of all regions."""
        return [self._memory[at : at + each.end - each.begin].tobytes() for each, at in self._places()]

    def _places(self) -> list[tuple[Region, int]]:
        return [(each, self._at[each]) for each in self._regions]


def call_thrice(kernel: Any, arguments: tuple[Any, ...], random: np.random.Generator) -> Any:
    """Call a kernel on its arguments, on copies side by side and on copies apart; all must end alike."""
    arrays = [array for array in arrays_in(arguments) if array.size]
    regions, name = regions_of(arrays), kernel.__qualname__
    side_by_side = Elsewhere(regions, random.permutation(len(regions)), gap=0)
    apart = Elsewhere(regions, np.arange(len(regions)), gap=APART)
    before = [array.tobytes() for array in arrays]
    given = [repr(CALL(kernel, *each.moved(arguments))) for each in (side_by_side, apart)]
    result = CALL(kernel, *arguments)
    assert given == [repr(result)] * 2, f"{name} returns what depends on where its arrays lie"
    here = [ctypes.string_at(each.begin, each.end - each.begin) for each in regions]
    for place in (side_by_side, apart):
        assert place.contents() == here, f"{name} writes what depends on where its arrays lie"
    written = [array for array, old in zip(arrays, before, strict=True) if array.tobytes() != old]
    for one in written:
        others = [each for each in arrays if each is not one and np.may_share_memory(one, each)]
        assert not any(np.shares_memory(one, each) for each in others), f"{name} writes what it is given twice"
    return result


@pytest.mark.parametrize("what", [*FITS, "sparse rows"])
def test_where_arrays_lie_changes_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, options, n_rows, n_columns = FITS.get(what, ("KMeans", {"n_clusters": 20}, 800, 30))
    random = np.random.default_rng(n_rows)
    X = random.normal(size=(n_rows, n_columns)) + 6.0 * random.integers(0, 5, (n_rows, 1))
    rows: Any = csr_array(X * (random.random(X.shape) < 0.2)) if what == "sparse rows" else X
    seen = 0

    def called(kernel: Any, *arguments: Any) -> Any:
        nonlocal seen
        seen += 1
        return call_thrice(kernel, arguments, random)

    monkeypatch.setattr(Kernel, "__call__", called)
    estimator = getattr(globular, model)(**options, random_state=0, n_threads=1)
    for dtype in (np.float64, np.float32):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.fit(rows.astype(dtype))
    estimator.predict(rows)
    assert seen > 10
