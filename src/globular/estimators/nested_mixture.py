"""Where nested EM begins: the rows of its first batch, and for many components a start that looks at few of them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from globular.algorithms.kmeans.nested_choices import NestedSettings
from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.mixtures.nested import BatchOptions, batch_sizes, is_whole
from globular.algorithms.mixtures.pipeline import rows_of_part
from globular.algorithms.mixtures.probing import start_probing
from globular.algorithms.seeding.common import TAKEN_NUMBERS
from globular.algorithms.steps import Step, mapped
from globular.estimators.inputs import Input
from globular.estimators.mixtures import N_CANDIDATES
from globular.estimators.starts import GivenStart, variational_means
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.nested import Batch
from globular.seam.shard import Shard

PARTS = 2
"""How many times the rows of the part that a start was found on the first batch has."""


def first_batch(data: Input, n_components: int, covariance_type: str, *, truncates: bool) -> BatchOptions:
    """Enough rows to tell more than the part has told that the search was on; neighbours on disk stay together."""
    first = min(data.n_rows, PARTS * rows_of_part(data.shard, n_components, covariance_type))
    settings = NestedSettings(
        n_components, data.n_rows, data.n_columns, data.dtype.itemsize, data.matrix is not None, data.is_streamed, first
    )
    return BatchOptions(first, settings.run, min(N_CANDIDATES, n_components) if truncates else None)


def grows(shard: Shard, n_components: int, covariance_type: str, batches: BatchOptions, options: EMOptions) -> bool:
    """Whether there are batches before all rows."""
    one = isotropic_mixture(np.zeros((n_components, shard.n_columns)), 1.0, covariance_type)
    n_parameters = one.n_parameters(learned_weights=options.learned_weights)
    return not is_whole(batch_sizes(shard.n_rows, batches.first, n_parameters, options.tol)[0], shard.n_rows)


def batch_bytes(data: Input) -> int:
    """The most that batches take beside X: the numbers of their rows, and the rows where these come from elsewhere."""
    n_rows = data.n_rows // 2
    copied = 0 if data.matrix is not None else min(TAKEN_NUMBERS, n_rows * data.n_columns)
    return 9 * n_rows + 16 * copied


def truncated_start(
    shard: Shard,
    n_components: int,
    init_params: str,
    given: GivenStart,
    options: EMOptions,
    batches: BatchOptions,
    rng: np.random.Generator,
) -> Generator[Step[Any], None, GaussianParameters]:
    """Probing k-means on rows of the first batch, and one variance; what is given stays."""
    part = shard
    if not is_whole(batches.first, shard.n_rows):
        batch = Batch(int(rng.integers(2**31)), batches.first, shard.n_rows, batches.run)
        part = shard.subset(batch.rows(shard.n_rows))
    share = shard.total_weight / part.total_weight
    settings = VariationalOptions(C_prime=batches.n_candidates or 1)
    steps = variational_means(part, n_components, init_params, given.means, settings, rng, probes=True)
    means = yield from mapped(steps, lambda step: replace(step, objective=share * step.objective))
    mixture = given.replace(isotropic_mixture(means.centers, 1.0, given.covariance_type))
    kept = given.covariances is not None
    limits = covariance_limits(shard, options)
    return start_probing(
        part, mixture, settings, rng, limits=limits, labelled=means.labelled, keep_covariances=kept
    ).mixture
