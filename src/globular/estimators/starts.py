"""Where fits start: at centres or means by a named method, at arrays that the user gave, or at the last fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.utils import check_array

from globular.algorithms.seeding.common import evenly_spread_masses
from globular.algorithms.seeding.named import Start, Starting, draw_seeds
from globular.estimators.inputs import Input
from globular.estimators.validation import naming
from globular.model.history import ITERATIONS, SEEDS
from globular.model.statistics import F64


def starting_centers(
    estimator: Any, data: Input, random_state: np.random.RandomState, *, rough: bool = False
) -> Starting:
    """The centres for one run of an estimator with `init`, `n_clusters`, `warm_start` and `metric`.

    `rough`: see `draw_seeds`.
    """
    unit = estimator.metric == "cosine"
    if continues(estimator, "cluster_centers_"):
        if len(estimator.cluster_centers_) != estimator.n_clusters:
            raise ValueError(
                f"warm_start has {len(estimator.cluster_centers_)} centres from the last fit, n_clusters="
                f"{estimator.n_clusters}; set warm_start=False to start anew"
            )
        centers = _check(estimator.cluster_centers_, estimator.n_clusters, data, "warm_start centres")
        last = last_stage(estimator)
        start = Start(centers, "warm start", unfinished=last is not None and last != ITERATIONS)
    else:
        start = yield from choose_centers(
            estimator.init, estimator.n_clusters, data, random_state, unit=unit, rough=rough
        )
    return replace(start, centers=of_unit_length(start.centers)) if unit else start


def continues(estimator: Any, centers: str) -> bool:
    """Whether a fit goes on from the last one; one that was ended among its seeds has nothing to go on from."""
    return bool(estimator.warm_start) and hasattr(estimator, centers) and last_stage(estimator) != SEEDS


def last_stage(estimator: Any) -> str | None:
    """The stage in which the last fit ended, where it has left a history."""
    history = getattr(estimator, "history_", None)
    return history[-1].stage if history else None


def of_unit_length(centers: F64) -> F64:
    """The centres scaled to unit length; a row of zeros has no direction, any will do."""
    lengths = np.linalg.norm(centers, axis=1, keepdims=True)
    scaled = np.divide(centers, lengths, out=np.zeros_like(centers), where=lengths > 0)
    scaled[lengths[:, 0] == 0, 0] = 1.0
    return scaled


def spare_centers(data: Input, n_clusters: int) -> F64:
    """Rows in the place of seeds that are not drawn yet; they take none of the random numbers of a fit."""
    shard, rng = data.shard, np.random.default_rng(0)
    masses = evenly_spread_masses(shard.total_weight, n_clusters, rng)
    return rng.permutation(shard.take(shard.locate(masses, "weights")))


def filled_up(centers: F64, n_clusters: int, spare: Callable[[], F64]) -> F64:
    """The centres and, where they are fewer than `n_clusters`, as many spare ones as are missing."""
    return centers if len(centers) == n_clusters else np.concatenate([centers, spare()[len(centers) :]])


def choose_centers(
    init: Any,
    n_clusters: int,
    data: Input,
    random_state: np.random.RandomState,
    *,
    unit: bool = False,
    rough: bool = False,
    size_name: str = "n_clusters",
) -> Starting:
    """Centres by an `init` argument: the name of a seeding, an array or a callable.

    `unit` says that centres shall have unit length, `size_name` what the caller's users know `n_clusters` as; `rough`:
    see `draw_seeds`.
    """
    if isinstance(init, str):
        rng = np.random.default_rng(random_state.randint(2**31, size=4).astype(np.uint32))
        return (yield from draw_seeds(data.shard, init, n_clusters, rng, rough=rough, unit_centers=unit))
    if callable(init):
        if data.matrix is None:
            raise ValueError("init as a callable needs X in memory; pass the name of a seeding or an array instead")
        centers = init(data.matrix, n_clusters, random_state=random_state)
        return Start(_check(centers, n_clusters, data, "centres returned by init", size_name), "callable")
    return Start(_check(init, n_clusters, data, "init", size_name), "array")


def _check(centers: Any, n_clusters: int, data: Input, name: str, size_name: str = "n_clusters") -> F64:
    with naming(name):
        checked: F64 = check_array(centers, dtype=np.float64, input_name=name, copy=True)
    wanted = (
        (n_clusters, f"clusters {n_clusters} ({size_name})"),
        (data.n_columns, f"features of the data {data.n_columns}"),
    )
    for n, (expected, what) in zip(checked.shape, wanted, strict=True):
        if n != expected:
            raise ValueError(
                f"{name}: The shape of the initial centers {checked.shape} does not match the number of {what}"
            )
    return checked


def checked_shape(values: Any, shape: tuple[int, ...], name: str, what: str = "") -> F64:
    """A copy of values that a user gave as a float64 array; an error names the argument, and `what` it is elsewhere."""
    array = np.asarray(values)
    if array.shape != shape:
        wanted = f". The parameter '{what}' should have the shape of {shape}, but got {array.shape}"
        raise ValueError(f"{name} has shape {array.shape}{wanted if what else f', expected {shape}'}")
    flat: F64 = check_array(array.reshape(1, -1), dtype=np.float64, input_name=name, copy=True)
    return flat.reshape(shape)


def checked_shares(values: Any, n: int, name: str, what: str = "") -> F64:
    """The same for n numbers that add up to 1, but for what the user has rounded."""
    shares = checked_shape(values, (n,), name, what)
    if (shares < 0).any() or abs(shares.sum() - 1.0) > 1e-6:
        raise ValueError(
            f"{name} must be at least 0 and add up to 1, "
            f"got a smallest of {shares.min():.6g} and a sum of {shares.sum():.6g}"
        )
    return np.asarray(shares / shares.sum())
