"""What every estimator promises: threads, files, copies, loops and warm starts that change nothing, and its labels.

Labels of a fit are what the fitted model says of the same rows, unless the docs of a parameter say otherwise.
"""

import inspect
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import globular
from globular.algorithms.kmeans import probing
from globular.callbacks import Callback
from globular.data.open import as_source
from globular.estimators import inputs
from globular.model.covariances import FAMILIES
from makers import blobs, weights_for
from reference import assign

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = blobs(n=1500, C=6, D=3)
COUNTS = np.random.default_rng(0).poisson(3.0, size=(300, 6)) + 1
TYPES = ("diag", "spherical", "tied_spherical", "full", "tied")
KMEANS = [globular.KMeans, globular.VariationalKMeans, globular.NestedMiniBatchKMeans]
FITS: dict[str, tuple[Any, Any]] = {
    **{cls.__name__: (cls(30), X) for cls in KMEANS},
    **{f"{cls.__name__}, cosine": (cls(30, metric="cosine"), X) for cls in KMEANS},
    "HierarchicalKMeans": (globular.HierarchicalKMeans([30, 6, 2]), X),
    "GaussianMixture": (globular.GaussianMixture(4), X),
    "VariationalGaussianMixture": (globular.VariationalGaussianMixture(20), X),
    "LowRankGaussianMixture": (globular.LowRankGaussianMixture(20, 2), X),
    "BayesianGaussianMixture": (globular.BayesianGaussianMixture(n_components=4), X),
    "ChunkyGaussianMixture": (globular.ChunkyGaussianMixture(4), X),
    "InfiniteGaussianMixture": (globular.InfiniteGaussianMixture(), X),
    "InfiniteMultinomialMixture": (globular.InfiniteMultinomialMixture(), COUNTS),
    "VonMisesFisherMixture": (globular.VonMisesFisherMixture(4), X),
    "PoissonMixture": (globular.PoissonMixture(4), COUNTS),
    "BernoulliMixture": (globular.BernoulliMixture(4), COUNTS > 3),
}


VARIANTS: dict[str, Any] = {
    "KMeans, limits": globular.KMeans(30, min_cluster_size=40, max_cluster_size=700),
    "HierarchicalKMeans, resampled": globular.HierarchicalKMeans([30, 6], resample=2, weighted=True),
    "KMeans, probing": globular.KMeans(60, algorithm="probing"),
    "VariationalKMeans, one candidate": globular.VariationalKMeans(60, n_candidates=1),
    **{
        f"Nested, {how}": globular.NestedMiniBatchKMeans(60, search=how, batch_size=900) for how in ("yinyang", "cells")
    },
    "GaussianMixture, diag": globular.GaussianMixture(4, covariance_type="diag"),
    "GaussianMixture, noise": globular.GaussianMixture(4, noise=True),
    "GaussianMixture, nested": globular.GaussianMixture(4, algorithm="nested"),
    "VariationalGaussianMixture, neighbors": globular.VariationalGaussianMixture(60, search="neighbors"),
    "ChunkyGaussianMixture, few": globular.ChunkyGaussianMixture(6, n_candidates=2),
    "InfiniteGaussianMixture, rows": globular.InfiniteGaussianMixture(accelerate=False),
}
ANSWERS = ("predict", "transform", "predict_proba", "score_samples", "reconstruct")


def test_all_estimators_are_here() -> None:
    public = {name for name in globular.__all__ if hasattr(getattr(globular, name), "get_params")}
    of_codes = {"ProductKMeans", "ResidualKMeans"}  # codes are no labels: see test_product.py, test_residual.py
    assert public - of_codes <= FITS.keys()


def fresh(name: str, **options: Any) -> Any:
    return clone(FITS[name][0] if name in FITS else VARIANTS[name]).set_params(random_state=0, **options)


@cache
def fitted(name: str) -> Any:
    """A model that no test may change."""
    return fresh(name).fit(FITS[name][1])


def arrays_of(model: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(model).items() if isinstance(value, np.ndarray) and name.endswith("_")}


def assert_same_arrays(one: Any, other: Any) -> None:
    assert arrays_of(one).keys() == arrays_of(other).keys() and arrays_of(one)
    for name, value in arrays_of(one).items():
        np.testing.assert_array_equal(getattr(other, name), value, err_msg=name)


def goodness(model: Any) -> float:
    return float(-model.inertia_ if hasattr(model, "inertia_") else model.lower_bound_)


MORE: dict[str, Any] = {
    "one candidate": globular.VariationalKMeans(40, n_candidates=1),
    "exhaustive": globular.VariationalKMeans(40, neighborhoods="exhaustive", metric="cosine"),
    "exact labels": globular.VariationalKMeans(40, exact_labels=True),
    **{
        f"{cls.__name__} {kind} {weights}": cls(6, covariance_type=kind, weights=weights)
        for cls, kinds in ((globular.ChunkyGaussianMixture, TYPES), (globular.VariationalGaussianMixture, TYPES[:3]))
        for kind in kinds
        for weights in ("equal", "learned")
    },
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", MORE.values(), ids=MORE)
def test_attributes_belong_together(model: Any, dtype: str) -> None:
    rows, weights = X[:600].astype(dtype), weights_for(600)
    model = clone(model).set_params(random_state=0)
    assert model.fit(rows, sample_weight=weights) is model and model.stopped_
    iterations = model.history_.iterations
    objective = iterations.column("objective")
    assert len(iterations) == model.n_iter_ and model.labels_.shape == (600,) and model.labels_.dtype == np.int32
    assert model.n_distances_ >= sum(record.n_distances for record in model.history_)
    C = len(getattr(model, "means_", getattr(model, "cluster_centers_", ())))
    if hasattr(model, "neighbors_"):
        np.testing.assert_array_equal(model.neighbors_[:, 0], np.arange(C))
        assert model.neighbors_.shape == (C, min(C, model.n_neighbors or 5))
    if hasattr(model, "means_"):
        np.testing.assert_allclose(objective / weights.sum(), model.lower_bounds_)
        assert (np.diff(model.lower_bounds_) >= -1e-9).all() and model.lower_bound_ == model.lower_bounds_[-1]
        assert model.converged_ and model.lower_bound_ <= model.score(rows, sample_weight=weights) + 1e-3
        for array in (model.covariances_, model.precisions_, model.precisions_cholesky_):
            assert array.shape == FAMILIES[model.covariance_type].shape(C, 3) and array.dtype == dtype
        assert (np.ptp(model.weights_) == 0) == (model.weights == "equal")
    else:
        seen = assign.as_seen(rows, unit_rows=model.metric == "cosine")
        d2 = assign.squared_distances(seen, model.cluster_centers_.astype(np.float64))
        assert model.inertia_ == pytest.approx(weights @ d2[np.arange(600), model.labels_], rel=1e-5)
        assert np.mean(model.labels_ == d2.argmin(axis=1)) > 0.9 and model.cluster_centers_.dtype == dtype
        assert (np.diff(objective) <= 1e-6 * objective[:-1]).all()


@pytest.mark.parametrize("name", [*FITS, *VARIANTS])
def test_threads_change_no_bit_and_rows_stay_as_they_are(name: str) -> None:
    rows = FITS[name][1] if name in FITS else X
    several = name.startswith(("KMeans", "GaussianMixture"))  # rows enough for parts and batches
    rows = np.tile(rows, (14, 1))[: 20_000 if several else 6000]
    if rows.dtype == X.dtype:
        rows = rows + 1e-3 * np.random.default_rng(1).normal(size=rows.shape)
    before = rows.copy()
    one, two = (fresh(name, n_threads=n_threads).fit(rows) for n_threads in (1, 2))
    assert_same_arrays(one, two)
    assert [record.objective for record in one.history_] == [record.objective for record in two.history_]
    np.testing.assert_array_equal(rows, before)
    if isinstance(one, globular.PoissonMixture | globular.VonMisesFisherMixture | globular.BernoulliMixture):
        assert_same_arrays(*(fresh(name, n_threads=n).fit(sparse.csr_array(rows)) for n in (1, 3)))


@pytest.mark.parametrize("name", FITS)
def test_copies_and_saved_models_answer_as_the_model(name: str, tmp_path: Path) -> None:
    rows, model = FITS[name][1], fitted(name)
    for copy in (pickle.loads(pickle.dumps(model)), globular.load(globular.save(model, tmp_path / "model"))):
        assert type(copy) is type(model) and copy.get_params() == model.get_params()
        assert_same_arrays(copy, model)
        assert goodness(copy) == goodness(model) and len(copy.history_) == len(model.history_)
        for answer in ANSWERS:
            if hasattr(model, answer):
                np.testing.assert_array_equal(getattr(copy, answer)(rows), getattr(model, answer)(rows))
    assert not arrays_of(clone(model))


@pytest.mark.parametrize("name", FITS)
def test_files_and_streams_give_the_model_of_their_rows(name, tmp_path, monkeypatch):
    rows = FITS[name][1].astype(np.float64)
    weights = weights_for(len(rows))
    np.save(tmp_path / "rows.npy", rows)
    model = fresh(name).fit(rows, sample_weight=weights)
    assert_same_arrays(fresh(name).fit(tmp_path / "rows.npy", sample_weight=weights), model)
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    monkeypatch.setattr("globular.passes.many.PART_BYTES", 100 * 3 * 8)
    source = as_source(tmp_path / "rows.npy")
    streamed = fresh(name).fit(source, sample_weight=weights)
    if name.startswith(("KMeans", "VariationalKMeans", "GaussianMixture", "VariationalGaussianMixture")):
        np.testing.assert_array_equal(streamed.labels_, model.labels_)
        assert goodness(streamed) == pytest.approx(goodness(model), rel=1e-9)
    assert streamed.score(rows) == pytest.approx(model.score(rows), rel=0.02)
    np.testing.assert_array_equal(streamed.predict(source), streamed.predict(rows))


@pytest.mark.parametrize("name", FITS)
def test_a_loop_over_a_fit_is_the_fit_and_may_be_left(name: str) -> None:
    rows = FITS[name][1]
    watched, left = fresh(name), fresh(name, tol=1e-12)
    for record in watched.fit_iter(rows):
        assert watched.history_[-1] is record and watched.n_iter_ == record.iteration
        assert np.isfinite(record.objective) and len(watched.predict(rows[:3])) == 3
    assert_same_arrays(watched, fitted(name))
    for record in left.fit_iter(rows):
        if record.iteration == 1:
            break
    assert left.n_iter_ == 1 and len(left.predict(rows)) == len(rows)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_goes_on_where_the_last_one_ended_and_the_best_run_is_kept(name: str) -> None:
    rows, once = FITS[name][1], fitted(name)
    if "n_init" in once.get_params():
        assert goodness(fresh(name, n_init=3).fit(rows)) >= goodness(once) - 1e-12 * abs(goodness(once))
    if "warm_start" in once.get_params():
        model = fresh(name, warm_start=True, max_iter=2).fit(rows)
        begun = goodness(model)
        again = model.set_params(max_iter=50, tol=1e-6).fit(rows)
        assert goodness(again) >= begun - 1e-3 * abs(begun)
        assert "seeds" not in {record.stage for record in again.history_}


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


class Refuses(Callback):
    def on_fit_start(self, *told: Any) -> None:
        raise ValueError("refused")


REFUSED: dict[str, Any] = {
    "NaN": lambda model, rows: model.fit(np.where(rows == rows[3, 1], np.nan, rows)),
    "NaN in a frame": lambda model, rows: model.fit(pd.DataFrame(np.where(rows == rows[3, 1], np.nan, rows))),
    "weights": lambda model, rows: model.fit(rows, sample_weight=np.zeros(len(rows))),
    "parameter": lambda model, rows: model.set_params(max_iter=-1).fit(rows),
    "callback": lambda model, rows: model.set_params(callbacks=Refuses()).fit(rows),
}
NO_ANSWERS = ("fit", "fit_iter", "fit_predict", "fit_transform", "partial_fit", "from_parameters")


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize("name", [name for name in FITS if "cosine" not in name])
def test_after_a_first_fit_that_was_refused_a_model_is_not_fitted(name: str, how: str, tmp_path: Path) -> None:
    model, rows = fresh(name), FITS[name][1][:50]
    with pytest.raises(ValueError, match=r"NaN|sample_weight|max_iter|refused"):
        REFUSED[how](model, rows)
    model.set_params(max_iter=9)
    asked = 0
    for method, function in inspect.getmembers(type(model), inspect.isfunction):
        if method in NO_ANSWERS or method.startswith(("_", "get_", "set_")):
            continue
        parameters = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
        with pytest.raises(NotFittedError, match="is not fitted yet"):
            getattr(model, method)(*(rows if each.name == "X" else [0] for each in parameters[1:]))
        asked += 1
    assert asked >= 4
    with pytest.raises(NotFittedError):
        globular.save(model, tmp_path / "model")
