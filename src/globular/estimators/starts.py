"""Where fits start: at centres or means by a named method, at arrays that the user gave, or at the last fit."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from sklearn.utils import check_array

from globular.algorithms import seeding
from globular.algorithms.kmeans.lloyd import TOLERANCE, KMeansOptions, lloyd
from globular.algorithms.kmeans.probing import find_labels
from globular.algorithms.kmeans.variational import VariationalOptions, start_rows, variational_kmeans
from globular.algorithms.mixtures.em import EMOptions, start_at_random, start_from_means
from globular.algorithms.mixtures.pipeline import search_start
from globular.algorithms.mixtures.probing import settle_seeds
from globular.algorithms.seeding.common import Seeds, evenly_spread_masses
from globular.algorithms.seeding.named import SEEDINGS, Start, Starting, automatic, draw_seeds
from globular.algorithms.steps import Step, mapped, to_the_last
from globular.estimators.inputs import Input
from globular.estimators.validation import naming
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.history import ITERATIONS, SEEDS
from globular.model.statistics import F64
from globular.seam.shard import Shard

_KMEANS_ITERATIONS = 300


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
    if checked.shape != (n_clusters, data.n_columns):
        raise ValueError(
            f"{name}: The shape of the initial centers {checked.shape} does not match the number of clusters "
            f"{n_clusters} ({size_name}) or the number of features of the data {data.n_columns}"
        )
    return checked


def _seeds(
    shard: Shard, n_components: int, rng: np.random.Generator, *, n_neighbors: int = 0, rough: bool = False
) -> Starting:
    """Seeds by the method for this number of components: where k-means, of whatever kind, begins for a mixture."""
    return draw_seeds(
        shard, automatic(n_components, shard.n_rows), n_components, rng, rough=rough, n_neighbors=n_neighbors
    )


def _kmeans_means(shard: Shard, n_components: int, rng: np.random.Generator) -> Seeds:
    """Centres of a k-means clustering."""
    start = yield from _seeds(shard, n_components, rng)
    variance = float(shard.column_moments()[1].mean())
    options = KMeansOptions(_KMEANS_ITERATIONS, TOLERANCE * variance)
    return (yield from to_the_last(lloyd(shard, start.centers, options))).model


MEANS_METHODS: dict[str, Callable[[Shard, int, np.random.Generator], Seeds]] = {
    "kmeans": _kmeans_means,
    "k-means++": SEEDINGS["k-means++"],
    "random_from_data": seeding.random,
}
STARTS = ("random", *MEANS_METHODS)


@dataclass(frozen=True, slots=True)
class GivenStart:
    """The parts of a start that are given, checked; None for the others."""

    covariance_type: str
    weights: F64 | None = None
    means: F64 | None = None
    covariances: F64 | None = None
    continues: bool = False
    """Whether these are the parameters that the last fit ended with."""
    bound: float = -np.inf
    """Mean log-likelihood of a row, or its bound, that the last fit ended with."""

    @classmethod
    def check(cls, weights: Any, means: Any, precisions: Any, C: int, D: int, covariance_type: str) -> GivenStart:
        """From `weights_init`, `means_init` and `precisions_init`; an error names the one that is wrong."""
        family = FAMILIES[covariance_type]
        covariances = None
        if precisions is not None:
            given = checked_shape(precisions, family.shape(C, D), "precisions_init", f"{covariance_type} precision")
            if not family.is_positive(given):
                raise ValueError(f"precisions_init: '{covariance_type} precision' should be {family.requirement}")
            covariances = np.asarray(family.inverse(given))
        if weights is not None:
            weights = checked_shares(weights, C, "weights_init", "weights")
        if means is not None:
            means = checked_shape(means, (C, D), "means_init", "means")
        return cls(covariance_type, weights, means, covariances)

    @classmethod
    def of(cls, mixture: GaussianParameters) -> GivenStart:
        """All parts of a mixture."""
        return cls(mixture.covariance_type, mixture.weights, mixture.means, mixture.covariances)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was given."""
        return self.weights is None and self.means is None and self.covariances is None

    def complete(self) -> GaussianParameters | None:
        """The mixture, if every part was given."""
        if self.weights is None or self.means is None or self.covariances is None:
            return None
        return GaussianParameters(self.weights, self.means, self.covariances, self.covariance_type)

    def replace(self, mixture: GaussianParameters) -> GaussianParameters:
        """The mixture with the given parts in place of its own."""
        order = self._order_for(mixture)
        return GaussianParameters(
            mixture.weights if self.weights is None else self.weights[order],
            mixture.means if self.means is None else self.means,
            mixture.covariances if self.covariances is None else self.covariances[order],
            mixture.covariance_type,
        )

    def _order_for(self, mixture: GaussianParameters) -> Any:
        """Which of the given parts every component gets: without means, that with the covariance most like its own."""
        C = mixture.n_components
        if self.means is not None or self.covariances is None or mixture.family.tied:
            return ...
        return linear_sum_assignment(cdist(mixture.covariances.reshape(C, -1), self.covariances.reshape(C, -1)))[1]


def starting_mixture(
    shard: Shard,
    n_components: int,
    init_params: str,
    given: GivenStart,
    options: EMOptions,
    random_state: np.random.RandomState,
    *,
    rough: bool = False,
) -> Generator[Step[Any], None, GaussianParameters]:
    """A start by `init_params`, except for what was given; a `rough` one for EM on parts of the rows first.

    Deviation: where scikit-learn puts single rows ("k-means++", "random_from_data") or k-means labels beside given
    means, here every row counts for the mean it is closest to, so that weights and covariances belong to the means.
    """
    complete = given.complete()
    if complete is not None:
        return complete
    if given.means is not None:
        found = start_from_means(shard, given.means, given.covariance_type, options)
    elif init_params == "random":
        found = start_at_random(shard, n_components, given.covariance_type, options, random_state)
    elif init_params == "kmeans" and given.is_empty:
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        return (yield from search_start(shard, n_components, given.covariance_type, options, rng, rough=rough))
    else:
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        means = yield from MEANS_METHODS[init_params](shard, n_components, rng)
        found = start_from_means(shard, means, given.covariance_type, options)
    return given.replace(found)


def variational_means(
    shard: Shard,
    n_components: int,
    init_params: str,
    given: F64 | None,
    options: VariationalOptions,
    rng: np.random.Generator,
    *,
    probes: bool,
) -> Starting:
    """Means by `init_params`, unless they are given, for a variational mixture: no pass looks at all components.

    With "kmeans" the rows are labelled, by the kind of k-means that searches as the mixture will.
    """
    if given is not None:
        return Start(given, "array")
    if init_params == "random":
        mean, variance = shard.column_moments()
        spread = np.sqrt(variance / (3 * shard.n_rows))
        return Start(mean + rng.normal(size=(n_components, len(mean))) * spread, init_params)
    if init_params != "kmeans":
        means = yield from MEANS_METHODS[init_params](shard, n_components, rng)
        return Start(means, init_params)
    if not probes:
        seeds = yield from _seeds(shard, n_components, rng, n_neighbors=options.G)
        return (yield from _variational_kmeans(shard, seeds, options, rng))
    seeds = yield from _seeds(shard, n_components, rng, rough=True)
    return (yield from settled(shard, seeds, rng))


def settled(shard: Shard, seeds: Start, rng: np.random.Generator) -> Starting:
    """Seeds after swaps and steps of probing k-means; the rows are labelled."""
    if not seeds.labelled:
        find_labels(shard, seeds.centers, rng, n_rounds=1)
    last = yield from to_the_last(settle_seeds(shard, seeds.centers, rng))
    return replace(seeds, centers=last.model, labelled=True)


def _variational_kmeans(shard: Shard, seeds: Start, options: VariationalOptions, rng: np.random.Generator) -> Starting:
    """Centres of a variational k-means clustering, and their neighbourhoods; the rows are labelled."""
    graph = start_rows(shard, seeds.centers, seeds.graph, options.G, rng)
    hard = replace(options, n_warmup=0, tol=TOLERANCE, max_iter=_KMEANS_ITERATIONS, relocate_empty=True)
    steps = to_the_last(variational_kmeans(shard, seeds.centers, hard, rng, graph))
    found = (yield from mapped(steps, lambda step: step.holding(step.model.centers))).model
    return replace(seeds, centers=found.centers, graph=found.graph, labelled=True)


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
