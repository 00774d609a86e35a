"""Where a Gaussian mixture starts: from a named method, from arrays given by the user, or from both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils import check_array

from globular.algorithms import seeding
from globular.algorithms.em import EMOptions, start_at_random, start_from_means
from globular.algorithms.lloyd import KMeansOptions, lloyd
from globular.algorithms.probing import find_labels
from globular.algorithms.probing_mixture import settle_seeds, start_probing
from globular.algorithms.variational import (
    SoftStart,
    VariationalOptions,
    start_rows,
    variational_kmeans,
    warm_up_mixture,
)
from globular.backends.protocol import Shard
from globular.estimators.starts import SEEDINGS, Start, automatic
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.graph import Graph
from globular.model.statistics import F64

_KMEANS_ITERATIONS = 300
_KMEANS_TOLERANCE = 1e-4
"""As in `KMeans`: shifts of the centres relative to the variance of the columns."""

MeansMethod = Callable[[Shard, int, np.random.Generator], F64]


def _kmeans_means(shard: Shard, n_components: int, rng: np.random.Generator) -> F64:
    """Centres of a k-means clustering."""
    centers = _seeds(shard, n_components, rng)
    variance = float(shard.column_moments()[1].mean())
    for step in lloyd(shard, centers, KMeansOptions(_KMEANS_ITERATIONS, _KMEANS_TOLERANCE * variance)):
        centers = step.model
    return centers


def _seeds(shard: Shard, n_components: int, rng: np.random.Generator) -> F64:
    """Seeds by the method for so many."""
    name = automatic(n_components)
    if name == "hierarchical":
        return np.asarray(seeding.hierarchical(shard, n_components, rng, 0).centers)
    return SEEDINGS[name](shard, n_components, rng)


MEANS_METHODS: dict[str, MeansMethod] = {
    "kmeans": _kmeans_means,
    "k-means++": seeding.plus_plus,
    "random_from_data": seeding.random,
}
STARTS = ("random", *MEANS_METHODS)


@dataclass(frozen=True, slots=True)
class GivenStart:
    """The parts of a start that the user gave, checked; None for the others."""

    weights: F64 | None
    means: F64 | None
    covariances: F64 | None

    @classmethod
    def check(cls, weights: Any, means: Any, precisions: Any, C: int, D: int, covariance_type: str) -> GivenStart:
        """From `weights_init`, `means_init` and `precisions_init`; an error names the one that is wrong."""
        family = FAMILIES[covariance_type]
        covariances = _checked(precisions, family.shape(C, D), "precisions_init")
        if covariances is not None:
            if not family.is_positive(covariances):
                raise ValueError(
                    f"precisions_init must be {family.requirement} for covariance_type={covariance_type!r}"
                )
            covariances = family.inverse(covariances)
        weights = _checked(weights, (C,), "weights_init")
        if weights is not None:
            if (weights < 0).any() or abs(weights.sum() - 1) > 1e-6:
                raise ValueError(
                    "weights_init must be at least 0 and add up to 1, "
                    f"got a smallest of {weights.min():.6g} and a sum of {weights.sum():.6g}"
                )
            weights = weights / weights.sum()
        return cls(weights, _checked(means, (C, D), "means_init"), covariances)

    def complete(self, covariance_type: str) -> GaussianParameters | None:
        """The mixture, if every part was given."""
        if self.weights is None or self.means is None or self.covariances is None:
            return None
        return GaussianParameters(self.weights, self.means, self.covariances, covariance_type)

    def replace(self, mixture: GaussianParameters) -> GaussianParameters:
        """The mixture with the given parts in place of its own."""
        return GaussianParameters(
            mixture.weights if self.weights is None else self.weights,
            mixture.means if self.means is None else self.means,
            mixture.covariances if self.covariances is None else self.covariances,
            mixture.covariance_type,
        )


def starting_mixture(
    shard: Shard,
    n_components: int,
    covariance_type: str,
    init_params: str,
    given: GivenStart,
    options: EMOptions,
    random_state: np.random.RandomState,
) -> GaussianParameters:
    """A start by `init_params`, except for what was given.

    Deviation: where scikit-learn puts single rows ("k-means++", "random_from_data") or k-means labels beside given
    means, here every row counts for the mean it is closest to, so that weights and covariances belong to the means.
    """
    complete = given.complete(covariance_type)
    if complete is not None:
        return complete
    if given.means is not None:
        found = start_from_means(shard, given.means, covariance_type, options)
    elif init_params == "random":
        found = start_at_random(shard, n_components, covariance_type, options, random_state)
    else:
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        means = MEANS_METHODS[init_params](shard, n_components, rng)
        found = start_from_means(shard, means, covariance_type, options)
    return given.replace(found)


NEIGHBORS_UP_TO = 25
"""So few components are searched by neighbourhoods: those of K(n) hold most of them."""


def automatic_search(n_components: int, *, wants_neighborhoods: bool = False) -> str:
    """Where the rows of a variational mixture shall find candidates: "probing" or "neighbors"."""
    return "neighbors" if wants_neighborhoods or n_components <= NEIGHBORS_UP_TO else "probing"


def neighborhood_start(
    shard: Shard,
    chosen: Start,
    continued: GaussianParameters | None,
    covariance_type: str,
    options: VariationalOptions,
    limits: CovarianceLimits,
    rng: np.random.Generator,
    *,
    at_random: bool,
) -> SoftStart:
    """From chosen means, or where the last fit ended: first labels, neighbourhoods and variance."""
    graph = start_rows(shard, chosen.centers, chosen.graph, options.G, at_random, rng)
    mixture = continued or isotropic_mixture(chosen.centers, 1.0, covariance_type)
    kept = continued is not None
    return warm_up_mixture(shard, mixture, options, rng, limits=limits, graph=graph, keep_covariances=kept)


def probing_start(
    shard: Shard,
    chosen: Start,
    continued: GaussianParameters | None,
    covariance_type: str,
    options: VariationalOptions,
    limits: CovarianceLimits,
    rng: np.random.Generator,
) -> SoftStart:
    """The same for probing; seeds become k-means centres first."""
    means = chosen.centers
    if chosen.is_seeding:  # a start that the user has chosen stays as it is
        if not chosen.labelled:
            find_labels(shard, means, rng, n_rounds=1)
        means = settle_seeds(shard, means, rng)
    mixture = continued or isotropic_mixture(means, 1.0, covariance_type)
    return start_probing(
        shard, mixture, options, rng,
        limits=limits, labelled=chosen.is_seeding, keep_covariances=continued is not None,
    )  # fmt: skip


def starting_variational(
    shard: Shard,
    n_components: int,
    covariance_type: str,
    init_params: str,
    given: GivenStart,
    continued: GaussianParameters | None,
    options: VariationalOptions,
    limits: CovarianceLimits,
    rng: np.random.Generator,
) -> SoftStart:
    """The same for the variational algorithm: equal weights, one variance, and no pass over all components.

    The search decides how to get there; see `automatic_search`.
    """
    probes = automatic_search(n_components) == "probing"
    graph: Graph | None = None
    labelled = False
    if continued is not None:
        mixture = continued
    else:
        if given.means is not None:
            means = given.means
        elif init_params == "random":
            mean, variance = shard.column_moments()
            means = mean + rng.normal(size=(n_components, len(mean))) * np.sqrt(variance / (3 * shard.n_rows))
        elif init_params == "kmeans" and probes:
            means, labelled = _probed_means(shard, n_components, rng), True
        elif init_params == "kmeans":
            means, graph = _variational_means(shard, n_components, options, rng)
        else:
            means = MEANS_METHODS[init_params](shard, n_components, rng)
        mixture = given.replace(isotropic_mixture(means, 1.0, covariance_type))
    kept = continued is not None or given.covariances is not None
    if probes:
        return start_probing(shard, mixture, options, rng, limits=limits, labelled=labelled, keep_covariances=kept)
    if graph is None:
        graph = start_rows(shard, mixture.means, None, options.G, False, rng)
    return warm_up_mixture(shard, mixture, options, rng, limits=limits, graph=graph, keep_covariances=kept)


def _probed_means(shard: Shard, n_components: int, rng: np.random.Generator) -> F64:
    """Centres of probing k-means; the rows are labelled."""
    name = automatic(n_components)
    if name == "hierarchical":
        centers = seeding.hierarchical(shard, n_components, rng, 0, rough=True).centers
    else:
        centers = SEEDINGS[name](shard, n_components, rng)
        shard.label_by_seeds()
    return settle_seeds(shard, centers, rng)


def _variational_means(
    shard: Shard, n_components: int, options: VariationalOptions, rng: np.random.Generator
) -> tuple[F64, Graph]:
    """Centres of a variational k-means clustering, and their neighbourhoods; the rows are labelled."""
    name = automatic(n_components)
    graph: Graph | None = None
    if name == "hierarchical":
        seeds = seeding.hierarchical(shard, n_components, rng, options.G)
        centers, graph = seeds.centers, seeds.neighbors
    else:
        centers = SEEDINGS[name](shard, n_components, rng)
    graph = start_rows(shard, centers, graph, options.G, False, rng)
    hard = replace(options, tol=_KMEANS_TOLERANCE, max_iter=_KMEANS_ITERATIONS, relocate_empty=True)
    for step in variational_kmeans(shard, centers, hard, rng, graph):
        centers, graph = step.model.centers, step.model.graph
    return centers, np.asarray(graph)


def _checked(values: Any, shape: tuple[int, ...], name: str) -> F64 | None:
    if values is None:
        return None
    array: F64 = np.asarray(values)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
    flat: F64 = check_array(array.reshape(1, -1), dtype=np.float64, input_name=name, copy=True)
    return flat.reshape(shape)
