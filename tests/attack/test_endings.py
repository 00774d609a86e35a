"""However a fit ends, what it hands out belongs together: labels, inertia and recall are of its centres."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import globular
from attack.counting import attack
from attack.oracle import squared_distances
from ctrl_c import CtrlC
from globular.algorithms.kmeans import pipeline, probing
from globular.errors import FitInterruptedWarning

N_CLUSTERS = 60
ROWS = np.random.default_rng(0).normal(size=(900, 12))
"""One cloud: cells of centres are a poor guide, and labels after a single look are mostly wrong."""
COUNTS = np.random.default_rng(0).poisson(3.0, size=(300, 6)) + 1
KMEANS: dict[str, Callable[..., Any]] = {
    "probing": lambda **how: globular.KMeans(N_CLUSTERS, algorithm="probing", **how),
    "best": lambda **how: globular.KMeans(N_CLUSTERS, algorithm="probing", quality="best", **how),
    "cosine": lambda **how: globular.KMeans(N_CLUSTERS, algorithm="probing", metric="cosine", **how),
    "exact": lambda **how: globular.KMeans(N_CLUSTERS, **how),
    "lloyd": lambda **how: globular.KMeans(N_CLUSTERS, algorithm="lloyd", **how),
    "variational": lambda **how: globular.VariationalKMeans(N_CLUSTERS, **how),
    "nested": lambda **how: globular.NestedMiniBatchKMeans(N_CLUSTERS, search="cells", batch_size=200, **how),
    "nested, exact": lambda **how: globular.NestedMiniBatchKMeans(N_CLUSTERS, batch_size=200, **how),
}
MIXTURES: dict[str, tuple[Callable[..., Any], Any]] = {
    "full": (lambda **how: globular.GaussianMixture(6, **how), ROWS),
    "noise": (lambda **how: globular.GaussianMixture(6, noise=True, **how), ROWS),
    "variational": (lambda **how: globular.VariationalGaussianMixture(20, **how), ROWS),
    "low rank": (lambda **how: globular.LowRankGaussianMixture(6, 2, **how), ROWS),
    "chunky": (lambda **how: globular.ChunkyGaussianMixture(6, **how), ROWS),
    "infinite": (lambda **how: globular.InfiniteGaussianMixture(**how), ROWS),
    "infinite, counts": (lambda **how: globular.InfiniteMultinomialMixture(**how), COUNTS),
    "directions": (lambda **how: globular.VonMisesFisherMixture(6, **how), ROWS),
    "counts": (lambda **how: globular.PoissonMixture(6, **how), COUNTS),
    "bits": (lambda **how: globular.BernoulliMixture(6, **how), COUNTS > 3),
}
ENDINGS = st.one_of(
    st.tuples(st.just("max_iter"), st.integers(1, 12)),
    st.tuples(st.just("max_time"), st.sampled_from([1e-4, 1e-2, 0.05, 0.2])),
    st.tuples(st.just("callback"), st.integers(0, 12)),
    st.tuples(st.just("Ctrl-C"), st.integers(0, 12)),
    st.tuples(st.just("Ctrl-C within"), st.integers(0, 4000)),
)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few clusters take the paths of thousands."""
    monkeypatch.setattr(probing, "EXACT_LABELS_UP_TO", N_CLUSTERS // 2)
    monkeypatch.setattr(pipeline, "PROBING_FROM", 2 * N_CLUSTERS)


class _Ends:
    """A callback that ends a fit at a record, by its answer or by Ctrl-C."""

    def __init__(self, ending: str, record: int) -> None:
        self.ending, self.left = ending, record

    def __call__(self, estimator: Any, record: Any) -> bool:
        self.left -= 1
        if self.left < 0 and self.ending == "Ctrl-C":
            raise KeyboardInterrupt
        return self.left < 0


def ended(make: Callable[..., Any], X: Any, how: str, when: float, seed: int) -> tuple[Any, list[Warning]] | None:
    """A fit that ends like that, and its warnings; None where Ctrl-C came before there was anything to keep."""
    options: dict[str, Any] = {how: when} if how.startswith("max") else {}
    if how in ("callback", "Ctrl-C"):
        options["callbacks"] = _Ends(how, int(when))
    model = make(random_state=seed, n_threads=1, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = sys.gettrace()
        try:
            if how == "Ctrl-C within":
                sys.settrace(CtrlC(int(when), "globular.algorithms."))
            model.fit(X)
        except KeyboardInterrupt:
            return None
        finally:
            sys.settrace(trace)
    return model, [each.message for each in caught if isinstance(each.message, Warning)]


@pytest.mark.parametrize("name", KMEANS)
@attack
@given(ending=ENDINGS, seed=st.integers(0, 999))
def test_labels_inertia_and_recall_are_of_the_centers(name: str, ending: tuple[str, float], seed: int) -> None:
    found = ended(KMEANS[name], ROWS, *ending, seed)
    if found is None:
        return
    model, told = found
    rows = ROWS / np.linalg.norm(ROWS, axis=1)[:, None] if name == "cosine" else ROWS
    all_distances = squared_distances(rows, model.cluster_centers_)
    distances = all_distances[np.arange(len(rows)), model.labels_]
    right = (distances <= (1.0 + 1e-12) * all_distances.min(axis=1)).mean()
    np.testing.assert_allclose(model.inertia_, distances.sum(), rtol=1e-9)
    np.testing.assert_allclose(model.label_recall_, right, atol=1e-9)  # the sample is all rows
    assert (right < probing.LEAST_RECALL) == any("labels_ hold the closest centre" in str(each) for each in told)
    if not ending[0].startswith("max_time"):
        assert right >= probing.LEAST_RECALL
    if any(isinstance(each, FitInterruptedWarning) for each in told):
        assert model.stopped_ == "interrupted"


@pytest.mark.parametrize("name", MIXTURES)
@attack
@given(ending=ENDINGS, seed=st.integers(0, 999))
def test_labels_are_of_the_mixture(name: str, ending: tuple[str, float], seed: int) -> None:
    make, rows = MIXTURES[name]
    found = ended(make, rows, *ending, seed)
    if found is None:
        return
    model, _ = found
    np.testing.assert_array_equal(model.labels_, model.predict(rows))
    assert np.isfinite(model.score(rows))


@pytest.mark.parametrize("max_iter", [2, 5])
def test_a_fit_that_ends_among_swaps_has_the_labels_of_its_centers(max_iter: int) -> None:
    rows = globular.datasets.many_blobs(6000, 300, 32, center_std=1.0, unevenness=0.5, random_state=0).X
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = globular.KMeans(500, max_iter=max_iter, random_state=0).fit(rows)
    assert model.history_[-1].stage == "swaps"
    assert (model.labels_ == model.predict(rows)).mean() > 0.9
    assert model.inertia_ < -1.03 * model.score(rows)
