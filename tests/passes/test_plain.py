"""The skeleton that is read first says what the passes do."""

import numpy as np
import pytest

from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.passes.cpu import CpuShard, plain
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("duplicates", [False, True])
def test_assign(offset: float, duplicates: bool) -> None:
    random = np.random.default_rng(0)
    rows, weights = offset + random.normal(size=(1500, 7)), random.random(1500)
    centers = rows[:40].copy()
    centers[20:] = centers[:20] if duplicates else centers[20:]
    shard, labels = CpuShard(rows, weights), np.full(1500, -1, dtype=np.int32)
    found, expected = shard.run(Assign(centers)), plain.assign(rows, weights, centers, labels)
    np.testing.assert_array_equal(shard.labels, labels)
    assert (found.n_changed, found.n_distances) == (expected.n_changed, expected.n_distances)
    for name in ("sums", "counts", "objective"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_expect(family: str) -> None:
    random = np.random.default_rng(0)
    rows, weights = random.normal(size=(1500, 4)), random.random(1500)
    covariances = FAMILIES[family].isotropic(0.7, 6, 4)
    mixture = GaussianParameters(random.dirichlet(np.ones(6)), rows[:6].copy(), covariances, family)
    found, expected = CpuShard(rows, weights).run(Expect(mixture)), plain.expect(rows, weights, mixture)
    for name in ("counts", "sums", "scatter", "log_likelihood", "total_weight", "n_distances"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
