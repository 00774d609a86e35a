"""Labels of a fit are what the fitted model says of the same rows, unless the docs of a parameter say otherwise."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import globular
from globular.algorithms.kmeans import probing
from makers import blobs, weights_for

X = blobs(n=1500, C=6, D=3)
COUNTS = np.random.default_rng(0).poisson(3.0, size=(300, 6)) + 1
KMEANS = [globular.KMeans, globular.VariationalKMeans, globular.NestedMiniBatchKMeans]
FITS: dict[str, tuple[Any, Any]] = {
    **{cls.__name__: (cls(30), X) for cls in KMEANS},
    **{f"{cls.__name__}, cosine": (cls(30, metric="cosine"), X) for cls in KMEANS},
    "GaussianMixture": (globular.GaussianMixture(4), X),
    "VariationalGaussianMixture": (globular.VariationalGaussianMixture(20), X),
    "LowRankGaussianMixture": (globular.LowRankGaussianMixture(20, 2), X),
    "ChunkyGaussianMixture": (globular.ChunkyGaussianMixture(4), X),
    "InfiniteGaussianMixture": (globular.InfiniteGaussianMixture(), X),
    "InfiniteMultinomialMixture": (globular.InfiniteMultinomialMixture(), COUNTS),
    "VonMisesFisherMixture": (globular.VonMisesFisherMixture(4), X),
    "PoissonMixture": (globular.PoissonMixture(4), COUNTS),
    "BernoulliMixture": (globular.BernoulliMixture(4), COUNTS > 3),
}


def test_all_estimators_are_here() -> None:
    public = {name for name in globular.__all__ if hasattr(getattr(globular, name), "get_params")}
    assert public <= FITS.keys()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("name", FITS)
def test_labels_of_a_fit_are_those_of_predict(name: str, weighted: bool, dtype: str) -> None:
    model, rows = FITS[name]
    model, rows = model.set_params(random_state=0), rows.astype(dtype)
    weights = weights_for(len(rows)) if weighted else None
    labels = model.fit_predict(rows, sample_weight=weights)
    predicted = model.predict(rows)
    np.testing.assert_array_equal(labels, predicted)
    np.testing.assert_array_equal(model.labels_, predicted)
    assert getattr(model, "label_recall_", 1.0) == 1.0


@pytest.mark.parametrize("cls", KMEANS)
def test_many_clusters_have_nearly_the_labels_of_predict(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "EXACT_LABELS_UP_TO", 500)
    rows = np.random.default_rng(0).normal(size=(6000, 8))
    search = {"search": "cells"} if cls is globular.NestedMiniBatchKMeans else {}
    model = cls(600, random_state=0, **search).fit(rows)
    agree = float(np.mean(model.labels_ == model.predict(rows)))
    assert agree > 0.95 and abs(model.label_recall_ - agree) < 0.03
    assert 1.0 - 1e-12 < model.inertia_ / -model.score(rows) < 1.005


def test_exact_labels_are_those_of_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(6000, 8))
    weights = weights_for(6000)
    for model in (
        globular.KMeans(600, exact_labels=True),
        globular.VariationalKMeans(600),
        globular.NestedMiniBatchKMeans(600, search="cells"),
    ):
        model.set_params(random_state=0).fit(rows, sample_weight=weights)
        np.testing.assert_array_equal(model.labels_, model.predict(rows))
        assert model.inertia_ == pytest.approx(-model.score(rows, sample_weight=weights), rel=1e-12)
        assert model.label_recall_ == 1.0
    monkeypatch.setattr(probing, "EXACT_LABELS_UP_TO", 500)
    model = globular.VariationalKMeans(600, exact_labels=True, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.labels_, model.predict(rows))


def test_the_docs_of_a_parameter_say_where_labels_differ() -> None:
    for cls, parameter in zip(KMEANS, ("exact_labels", "exact_labels", "compute_labels"), strict=True):
        description = inspect.cleandoc(cls.__doc__).split(f"\n{parameter} : bool")[1].split(" : ")[0]
        assert "`predict`" in description and "`label_recall_`" in description, cls


def test_labels_of_rows_between_equal_centers_are_right() -> None:
    """Means of equal rows differ by rounding; either of two such centres is a closest one."""
    rows = np.repeat([[0.12573022], [-0.13210486]], [7, 13], axis=0)
    model = globular.KMeans(3, algorithm="probing", random_state=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(rows)
    assert model.label_recall_ == 1.0
