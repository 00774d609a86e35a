"""Rows on several cards, or in several parts on one: the fits of one card, up to the order of sums."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from globular import GaussianMixture, HierarchicalKMeans, KMeans, VariationalGaussianMixture, VariationalKMeans
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from makers import blobs, weights_for

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')
from globular.passes.torch import opening  # noqa: E402
from globular.passes.torch.cards import CardsShard  # noqa: E402

CARD = "cuda" if torch.cuda.is_available() else "torch-cpu"
ROWS = blobs(n=3000, C=40, D=20, spread=0.7).astype(np.float32)

MODELS: dict[str, Any] = {
    "lloyd": lambda **more: KMeans(30, algorithm="lloyd", random_state=0, **more),
    "probing": lambda **more: KMeans(60, algorithm="probing", random_state=0, **more),
    "exact": lambda **more: KMeans(8, random_state=0, **more),
    "limits": lambda **more: KMeans(30, min_cluster_size=50, max_cluster_size=150, random_state=0, **more),
    "cosine": lambda **more: KMeans(60, metric="cosine", random_state=0, **more),
    "variational": lambda **more: VariationalKMeans(40, random_state=0, **more),
    "tree": lambda **more: HierarchicalKMeans([60, 8], resample=1, random_state=0, **more),
    "em": lambda **more: GaussianMixture(5, random_state=0, **more),
    "truncated": lambda **more: VariationalGaussianMixture(60, random_state=0, reg_covar=1e-3, **more),
}


def quality_of(model: Any) -> float:
    return float(model.lower_bound_ if hasattr(model, "lower_bound_") else -model.inertia_ / len(ROWS))


def arrays_of(model: Any) -> bytes:
    return b"".join(
        np.asarray(getattr(model, name)).tobytes()
        for name in ("cluster_centers_", "labels_", "means_", "weights_")
        if hasattr(model, name)
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_on_two_cards_is_that_of_one(name: str) -> None:
    weights = np.where(np.arange(3000) % 11 == 0, 0.0, weights_for(3000))
    one, two, again = (
        MODELS[name](device=device).fit(ROWS, **({} if name == "limits" else {"sample_weight": weights}))
        for device in (CARD, [CARD, CARD], [CARD, CARD])
    )
    assert quality_of(two) == pytest.approx(quality_of(one), rel=0.03)
    assert arrays_of(two) == arrays_of(again)
    assert two.labels_.shape == (3000,) and isinstance(two.labels_, np.ndarray)
    np.testing.assert_array_equal(two.predict(ROWS), two.set_params(device="cpu").predict(ROWS))


def test_rows_on_workers_lie_on_their_cards() -> None:
    pytest.importorskip("distributed", reason='needs Dask: pip install "globular[dask]"')
    import dask.array as da
    from distributed import Client, LocalCluster

    X = da.from_array(ROWS, chunks=(800, 20))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", memory_limit=0
        ) as cluster,
        Client(cluster),
    ):
        for name in ("lloyd", "em"):
            one, workers = MODELS[name](device=CARD).fit(ROWS), MODELS[name](device=CARD).fit(X)
            assert quality_of(workers) == pytest.approx(quality_of(one), rel=0.03)
            np.testing.assert_array_equal(np.asarray(workers.predict(X)), one.__class__.predict(workers, ROWS))
