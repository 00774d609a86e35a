"""Arrays that stay on a card do what NumPy's do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')

from globular.passes.torch import plain  # noqa: E402
from globular.passes.torch.arrays import DeviceArray  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
A = np.random.default_rng(0).normal(size=(6, 4))
W = np.array([3.0, 0.0, 2.0, 2.0, 1.0, 0.5])
LABELS = np.array([2, 0, 2, 1, 1, 2], dtype=np.int32)
ORDER = np.array([5, 0, 3])

SAME: dict[str, Callable[[Any, Any, Any], Any]] = {
    "arithmetic": lambda a, w, k: (2.0 * a - a / 3.0) ** 2 + w[:, None],
    "with an array of NumPy": lambda a, w, k: W[:, None] * a + A, "matrix product": lambda a, w, k: a @ A.T,
    "comparison": lambda a, w, k: (w > 0) & ~(w >= 2.0), "mask": lambda a, w, k: a[w > 0],
    "numbers": lambda a, w, k: a[ORDER, 1:3], "labels as numbers": lambda a, w, k: w[k],
    "where": lambda a, w, k: np.where((w > 0)[:, None], a, 0.0),
    "divide where": lambda a, w, k: np.divide(1.0, w, out=np.zeros_like(w), where=w > 0),
    "einsum": lambda a, w, k: np.einsum("ij,ij->i", a, a),
    "norm": lambda a, w, k: np.linalg.norm(a, axis=1, keepdims=True),
    "minimum": lambda a, w, k: np.minimum(w, 1.5) + np.maximum(w, w[::1]),
    "concatenate": lambda a, w, k: np.concatenate([a, A[:1]]), "sort": lambda a, w, k: np.sort(w),
    "argsort": lambda a, w, k: np.argsort(k, kind="stable"), "bincount": lambda a, w, k: np.bincount(k, minlength=5),
    "flatnonzero": lambda a, w, k: np.flatnonzero(w == 0), "unique": lambda a, w, k: np.unique(k, return_index=True)[1],
    "unique with counts": lambda a, w, k: np.unique(k, return_counts=True)[1], "cumsum": lambda a, w, k: np.cumsum(k),
    "repeat": lambda a, w, k: np.repeat(k, 2), "largest": lambda a, w, k: np.array(np.abs(a).max(initial=0.0)),
    "means": lambda a, w, k: a.mean(axis=0) + a.sum(axis=0), "argmin": lambda a, w, k: a.argmin(axis=1),
    "astype": lambda a, w, k: a.astype(np.float32), "on the host": lambda a, w, k: np.linalg.eigvalsh(a.T @ a),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_the_same_as_numpy(name: str) -> None:
    wanted = SAME[name](A, W, LABELS)
    found = SAME[name](*(DeviceArray(torch.as_tensor(v, device=DEVICE)) for v in (A, W, LABELS)))
    assert found.dtype.kind == wanted.dtype.kind and found.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-12)


def test_changes_in_place_reach_the_tensor() -> None:
    array = DeviceArray(torch.as_tensor(A.copy(), device=DEVICE))
    view = array[1:3]
    view += 1.0
    array[[0, 5]] = 0.0
    array[4] -= A[4]
    wanted = A.copy()
    wanted[1:3] += 1.0
    wanted[[0, 4, 5]] = 0.0
    np.testing.assert_allclose(np.asarray(array), wanted)
    np.asarray(array)[0] = 7.0
    assert not np.asarray(array[0]).any()


def test_one_element_is_not_taken_for_a_number() -> None:
    one, number = (DeviceArray(torch.as_tensor(v, device=DEVICE)) for v in ([True], 2))
    assert np.array([7.0])[one].tolist() == [7.0]
    assert ORDER[number] == 3


@pytest.mark.parametrize("change", [lambda a: np.add.at(a, [0], 1.0), lambda a: np.copyto(a, 0.0)])
def test_what_would_change_a_copy_is_refused(change: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="would change a copy"):
        change(DeviceArray(torch.as_tensor(A, device=DEVICE)))


def test_running_sums_never_fall_and_are_those_of_numpy() -> None:
    """On either side of the length of a run, and with rounding that would let them fall."""
    for n in (1, plain.RUN - 1, plain.RUN, plain.RUN + 1, 5 * plain.RUN + 7):
        values = np.random.default_rng(n).random(n) * 10.0 ** np.random.default_rng(1).integers(-18, 3, size=n)
        found = plain.running_sums(torch.as_tensor(values, device=DEVICE)).cpu().numpy()
        np.testing.assert_allclose(found, np.cumsum(values), rtol=1e-12)
        assert (np.diff(found) >= 0).all()
