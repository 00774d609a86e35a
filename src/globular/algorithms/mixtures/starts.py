"""Where a mixture starts: at means found by a named method, at arrays given by the user, or at the last fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from globular.algorithms import seeding
from globular.algorithms.kmeans.lloyd import TOLERANCE, KMeansOptions, lloyd
from globular.algorithms.kmeans.probing import find_labels
from globular.algorithms.kmeans.variational import VariationalOptions, start_rows, variational_kmeans
from globular.algorithms.mixtures.em import EMOptions, start_at_random, start_from_means
from globular.algorithms.mixtures.pipeline import search_start
from globular.algorithms.mixtures.probing import settle_seeds
from globular.algorithms.seeding.common import Seeds
from globular.algorithms.seeding.named import SEEDINGS, Start, Starting, automatic, draw_seeds
from globular.algorithms.steps import Finding, mapped, to_the_last
from globular.model.gaussian import GaussianParameters
from globular.model.given import GivenStart
from globular.seam.shard import Shard

_KMEANS_ITERATIONS = 300


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
MIXTURE_STARTS = ("random", *MEANS_METHODS)


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What a mixture shall start from."""

    n_components: int
    init_params: str
    """"random" or one of `MEANS_METHODS`."""
    given: GivenStart
    random_state: np.random.RandomState

    @property
    def searches(self) -> bool:
        """Whether nothing is given, and a start is searched for."""
        return self.init_params == "kmeans" and self.given.is_empty

    def rng(self) -> np.random.Generator:
        """The next source of random numbers."""
        return np.random.default_rng(self.random_state.randint(2**31, size=4))


def starting_mixture(
    shard: Shard, options: EMOptions, how: StartOptions, *, rough: bool = False
) -> Finding[GaussianParameters]:
    """A start by `init_params`, except for what was given; a `rough` one for EM on parts of the rows first.

    Deviation: where scikit-learn puts single rows ("k-means++", "random_from_data") or k-means labels beside given
    means, here every row counts for the mean it is closest to, so that weights and covariances belong to the means.
    """
    given, n_components, init_params = how.given, how.n_components, how.init_params
    complete = given.complete()
    if complete is not None:
        return complete
    if given.means is not None:
        found = start_from_means(shard, given.means, given.covariance_type, options)
    elif init_params == "random":
        found = start_at_random(shard, n_components, given.covariance_type, options, how.random_state)
    elif how.searches:
        return (yield from search_start(shard, n_components, given.covariance_type, options, how.rng(), rough=rough))
    else:
        means = yield from MEANS_METHODS[init_params](shard, n_components, how.rng())
        found = start_from_means(shard, means, given.covariance_type, options)
    return given.replace(found)


def variational_means(
    shard: Shard, how: StartOptions, options: VariationalOptions, rng: np.random.Generator, *, probes: bool
) -> Starting:
    """Means by `init_params`, unless they are given, for a variational mixture: no pass looks at all components.

    With "kmeans" the rows are labelled, by the kind of k-means that searches as the mixture will.
    """
    given, n_components, init_params = how.given.means, how.n_components, how.init_params
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
