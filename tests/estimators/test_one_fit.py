"""One small fit of each estimator: the last part of `make test-fast`."""

import sys
import warnings
from typing import Any

import numpy as np
import pytest

import globular
from globular.jit.functions import Kernel
from globular.passes.cpu.assign.all import assign_spans

OPTIONS: dict[str, dict[str, Any]] = {
    "KMeans": {"n_clusters": 20}, "VariationalKMeans": {"n_clusters": 50}, "NestedMiniBatchKMeans": {"n_clusters": 20},
    "GaussianMixture": {"n_components": 3}, "VariationalGaussianMixture": {"n_components": 50},
    "ChunkyGaussianMixture": {"n_components": 3}, "LowRankGaussianMixture": {"n_components": 3, "n_factors": 1},
    "BayesianGaussianMixture": {"n_components": 3},
    "InfiniteGaussianMixture": {}, "InfiniteMultinomialMixture": {}, "VonMisesFisherMixture": {"n_components": 3},
    "PoissonMixture": {"n_components": 3}, "BernoulliMixture": {"n_components": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_groups_that_lie_apart_are_found(name: str) -> None:
    random = np.random.default_rng(0)
    groups = np.arange(600) % 3
    X = 8.0 * np.eye(3, 5)[groups] + np.abs(random.normal(size=(600, 5)))
    X = (X > 4.0).astype(float) if name == "BernoulliMixture" else np.floor(4.0 * X) if "Multi" in name else X
    X = np.floor(4.0 * X) if name == "PoissonMixture" else X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labels = getattr(globular, name)(random_state=0, **OPTIONS[name]).fit(X).predict(X)
    for label in np.unique(labels):
        assert len(np.unique(groups[labels == label])) == 1


@pytest.mark.parametrize(("is_streamed", "most"), [(False, 11), (True, 14)])
def test_few_frames_lie_between_a_fit_and_its_kernel(is_streamed, most, tmp_path, monkeypatch):
    """`fit` and the call of the kernel are among them."""
    X = np.random.default_rng(0).normal(size=(300, 3))
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr("globular.estimators.inputs._fits", lambda source: False)
    ways: list[list[str]] = []
    call = Kernel.__call__

    def noted(kernel: Any, *arguments: Any) -> Any:
        if kernel is assign_spans:
            names, frame = [assign_spans.__name__], sys._getframe(1)
            while frame.f_code is not globular.KMeans.fit.__code__:
                names.append(frame.f_code.co_qualname)
                frame = frame.f_back
            ways.append([*names, "fit"])
        return call(kernel, *arguments)

    monkeypatch.setattr(Kernel, "__call__", noted)
    globular.KMeans(5, algorithm="lloyd", max_iter=2, random_state=0).fit(tmp_path / "X.npy" if is_streamed else X)
    assert len(ways[0]) <= most, " <- ".join(ways[0])
