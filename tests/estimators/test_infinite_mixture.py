"""`InfiniteGaussianMixture` and `InfiniteMultinomialMixture`: parameters, attributes, edge cases, real data."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data

import globular
from globular import InfiniteGaussianMixture, InfiniteMultinomialMixture
from globular.algorithms.infinite import infinite
from globular.estimators import inputs
from globular.model.history import PART
from makers import corners as blobs

Matrix = NDArray[np.float64]


def documents(n: int = 300, seed: int = 0) -> tuple[Matrix, NDArray[np.int64]]:
    """Rows of counts from three kinds of documents of different lengths."""
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.full(12, 0.3), size=3)
    labels = np.arange(n) % 3
    return np.array([random.multinomial(random.integers(30, 90), shares[c]) for c in labels], dtype=float), labels


FACES: list[Any] = [
    InfiniteGaussianMixture(random_state=0),
    InfiniteGaussianMixture(random_state=0, accelerate=False, covariance_type="diag"),
    InfiniteGaussianMixture(random_state=0, truncation="fixed", max_components=8, accelerate=False),
    InfiniteMultinomialMixture(random_state=0),
]


def data_for(model: Any) -> tuple[Matrix, NDArray[np.int64]]:
    return documents() if isinstance(model, InfiniteMultinomialMixture) else blobs()


@pytest.mark.parametrize("model", FACES)
def test_components_are_found_and_attributes_agree(model: Any) -> None:
    rows, labels = data_for(model)
    model = clone(model).fit(rows)
    T = len(model.weights_)
    if model.truncation == "nested":
        assert T == model.n_components_ == len(np.unique(labels))
    else:
        assert T == 8 >= model.n_components_
        assert model.remaining_weight_ == 0
    assert adjusted_rand_score(labels, model.predict(rows)) > 0.95
    assert model.weights_.sum() + model.remaining_weight_ == pytest.approx(1.0)
    assert model.converged_ and model.n_iter_ == len(model.history_)
    assert model.free_energy_ == pytest.approx(-model.lower_bound_ * len(rows))
    assert model.means_.shape == (T, rows.shape[1])
    q = model.predict_proba(rows)
    assert q.shape == (len(rows), T)
    assert (q.sum(axis=1) <= 1 + 1e-12).all() and (q.sum(axis=1) > 0.5).all()
    assert model.score(rows) == pytest.approx(model.score_samples(rows).mean())
    assert model.bic(rows) > model.aic(rows)
    np.testing.assert_array_equal(model.predict(rows), q.argmax(axis=1))


@pytest.mark.parametrize("model", FACES)
def test_samples_are_like_the_data(model: Any) -> None:
    rows, _ = data_for(model)
    model = clone(model).fit(rows)
    drawn, labels = model.sample(500)
    assert drawn.shape == (500, rows.shape[1]) and labels.max() <= len(model.weights_)
    shares = np.bincount(labels, minlength=len(model.weights_) + 1)[: len(model.weights_)] / 500
    np.testing.assert_allclose(shares, model.weights_, atol=0.08)
    seen = labels < len(model.weights_)
    assert (model.predict(drawn[seen]) == labels[seen]).mean() > 0.9
    with pytest.raises(ValueError, match="n_samples"):
        model.sample(0)


@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_scale_and_shift_do_not_change_the_partition(accelerate: bool, covariance_type: str) -> None:
    rows, _ = blobs(n=2000, C=6, D=3)
    model = InfiniteGaussianMixture(accelerate=accelerate, covariance_type=covariance_type, random_state=0)
    labels = clone(model).fit_predict(rows)
    assert len(np.unique(labels)) == 6
    # the tree of cells knows no other units than those of the columns
    scales = 1.0 if accelerate else np.array([1e-3, 1.0, 1e4])
    for changed in (rows * 1e-130, rows * 1e-5, rows * 1e140, rows + 1e5, rows * scales - 50):
        np.testing.assert_array_equal(clone(model).fit_predict(changed), labels)


def test_paper_splits_and_concentration(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = blobs()
    options = InfiniteGaussianMixture._options
    with monkeypatch.context() as patch:
        patch.setattr(
            InfiniteGaussianMixture, "_options",
            lambda self, data: replace(options(self, data), accept="best", n_candidates=3),
        )  # fmt: skip
        assert InfiniteGaussianMixture(random_state=0).fit(rows).n_components_ == 4
    few = InfiniteGaussianMixture(random_state=0, concentration=1e-3).fit(rows)
    many = InfiniteGaussianMixture(random_state=0, concentration=(1.0, 50.0)).fit(rows)
    assert few.remaining_weight_ < many.remaining_weight_


def test_given_priors_are_used_as_they_are() -> None:
    rows, _ = blobs()
    prior = {"mean": [1.0, 2.0], "mean_precision": 0.5, "degrees_of_freedom": 7.0, "covariance": np.eye(2) * 9}
    model = clone(InfiniteGaussianMixture(random_state=0, prior=prior, concentration=(2.0, 3.0))).fit(rows)
    np.testing.assert_array_equal(model.prior_["scale"], prior["covariance"])
    np.testing.assert_array_equal(model.prior_["means"], [1.0, 2.0])
    assert (model.prior_["mean_precision"], model.prior_["degrees_of_freedom"]) == (0.5, 7.0)
    assert model.posterior_["degrees_of_freedom"].sum() == pytest.approx(7 * model.n_components_ + 600, abs=1)
    fitted = InfiniteGaussianMixture(random_state=0).fit(rows)
    assert np.diag(fitted.prior_["scale"])[0] < 4 * rows[:, 0].var()  # smaller than the data: it has been fitted


def test_weights_equal_repetitions_from_given_means() -> None:
    start = np.random.RandomState(0).rand(3, 30)
    estimator = InfiniteGaussianMixture(truncation="fixed", max_components=3, init_params=start, accelerate=False)
    check_sample_weight_equivalence_on_dense_data("InfiniteGaussianMixture", estimator)


def test_edges_of_counts() -> None:
    for rows in (np.zeros((5, 3)), np.eye(4), np.array([[3.0, 0.0]]), np.tile([5.0, 1.0, 0.0], (30, 1))):
        model = InfiniteMultinomialMixture(random_state=0).fit(rows)
        assert np.isfinite(model.free_energy_) and np.isfinite(model.score_samples(rows)).all()
        assert model.n_components_ == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"concentration": (1.0,)}, "concentration"), ({"concentration": [1.0, -2.0]}, "concentration"),
        ({"prior": [0.0]}, "'prior'"), ({"prior": {"means": [0.0, 0.0]}}, "no part 'means'; its parts are 'mean',"),
        ({"prior": {"mean": [0.0]}}, r"prior\['mean'\] has shape"),
        ({"prior": {"mean": [0.0, np.nan]}}, r"prior\['mean'\]"),
        ({"prior": {"mean_precision": 0}}, r"prior\['mean_precision'\]=0"),
        ({"prior": {"covariance": np.ones((2, 2))}}, r"prior\['covariance'\] must be symmetric"),
        ({"prior": {"covariance": np.ones(2)}}, r"prior\['covariance'\] has shape"),
        ({"prior": {"degrees_of_freedom": 0.5}}, "degrees_of_freedom"),
        ({"init_params": np.zeros((4, 2))}, "truncation='fixed'"),
        ({"init_params": np.zeros((4, 2)), "truncation": "fixed"}, "init_params has shape"),
        ({"truncation": "fixed", "max_components": 1000}, "max_components=1000"),
        ({"n_candidates": 5, "accelerate": False}, "accelerate=True"), ({"tol": 0}, "tol"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(change: dict[str, Any], message: str) -> None:
    rows, _ = blobs()
    with pytest.raises(ValueError, match=message):
        InfiniteGaussianMixture(**change).fit(rows)


def test_counts_may_be_fractions() -> None:
    """As tf-idf makes them; but what adds up to one word a row tells nothing."""
    rows, labels = documents()
    model = InfiniteMultinomialMixture(random_state=0).fit(rows / 2.5)
    assert adjusted_rand_score(labels, model.predict(rows / 2.5)) > 0.99
    assert np.isfinite(model.score_samples(rows / 2.5)).all()
    lonely = InfiniteMultinomialMixture(random_state=0).fit(rows / rows.sum(axis=1, keepdims=True))
    assert lonely.n_components_ == 1


def test_negative_counts_are_found_in_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "rows.npy", np.array([[1.0, 2.0]] * 9 + [[1.0, -1.0]]))
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    with pytest.raises(ValueError, match="Negative values"):
        InfiniteMultinomialMixture().fit(tmp_path / "rows.npy")


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="Negative values"):
        InfiniteMultinomialMixture().fit(np.array([[1.0, -1.0]]))
    with pytest.raises(ValueError, match="smoothing"):
        InfiniteMultinomialMixture(smoothing=[1.0, 0.0]).fit(np.ones((3, 2)))
    with pytest.raises(ValueError, match="overflow"):
        InfiniteGaussianMixture().fit(np.array([[1e200], [-1e200]]))
    with pytest.raises(NotFittedError):
        InfiniteGaussianMixture().predict(np.ones((3, 2)))


def test_parts_that_a_prior_does_not_have_are_said() -> None:
    with pytest.raises(ValueError, match="no part 'mean_prior'; its parts are 'mean'"):
        InfiniteGaussianMixture(prior={"mean_prior": [0.0, 0.0]}).fit(np.random.default_rng(0).normal(size=(50, 2)))


def test_folders_of_older_versions_load(tmp_path: Path) -> None:
    """They know no clusters: every component is one."""
    rows, _ = blobs(n=400)
    model = InfiniteGaussianMixture(random_state=0).fit(rows)
    for name in ("clusters_", "n_clusters_", "labels_", "component_labels_"):
        delattr(model, name)
    globular.save(model, tmp_path / "model")
    loaded = globular.load(tmp_path / "model")
    assert loaded.n_clusters_ == len(loaded.weights_)
    np.testing.assert_array_equal(loaded.clusters_, np.arange(len(loaded.weights_)))
    np.testing.assert_array_equal(loaded.predict(rows), loaded.predict_components(rows))


def test_many_rows_begin_with_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = blobs(n=3000)
    monkeypatch.setattr(infinite, "PART_ROWS", 500)
    model = InfiniteGaussianMixture(random_state=0).fit(rows)
    stages = [record.stage for record in model.history_]
    assert stages[0] == PART and stages[-1] != PART
    monkeypatch.setattr(infinite, "PART_ROWS", 1001)  # fewer than three times as many rows
    whole = InfiniteGaussianMixture(random_state=0).fit(rows)
    assert PART not in [record.stage for record in whole.history_]
    assert model.n_components_ == whole.n_components_
    assert model.score(rows) == pytest.approx(whole.score(rows), abs=1e-3)


def test_a_larger_gain_asked_for_makes_no_more_components() -> None:
    rows = np.random.default_rng(0).uniform(size=(2000, 2))
    found = [
        InfiniteGaussianMixture(min_split_gain=g, random_state=0).fit(rows).n_components_ for g in (0.01, 0.04, 0.2)
    ]
    assert found == sorted(found, reverse=True)


@pytest.mark.realdata
@pytest.mark.parametrize("accelerate", [True, False])
@pytest.mark.parametrize(("name", "n_clusters"), [("s1", 15), ("a1", 20), ("unbalance", 8), ("dim064", 16)])
def test_true_number_of_clusters(real_data: Callable[..., Any], name: str, n_clusters: int, accelerate: bool) -> None:
    rows = real_data("franti", name)["X"]
    model = InfiniteGaussianMixture(accelerate=accelerate, random_state=0).fit(rows)
    assert abs(model.n_components_ - n_clusters) <= 1


def power_law(seed: int = 0) -> Any:
    """Clusters whose sizes fall off like a power of their rank, the small ones of a few rows."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(600 * np.arange(1, 41) ** -1.5, 2).astype(int)
    X = np.repeat(rng.normal(size=(40, 2)) * 15, sizes, axis=0) + rng.normal(size=(sizes.sum(), 2))
    return X[rng.permutation(len(X))]


@pytest.mark.parametrize("how", [{"discount": 0.4}, {"concentration": "gamma"}])
@pytest.mark.parametrize("truncation", ["nested", "fixed"])
def test_the_bound_rises_with_other_sticks(how: dict[str, Any], truncation: str) -> None:
    model = InfiniteGaussianMixture(truncation=truncation, accelerate=False, random_state=0, tol=1e-6, **how)
    model.fit(power_law())
    bounds = np.array(model.lower_bounds_[: -1 if truncation == "nested" else None])
    steps = np.diff(bounds)
    assert (steps >= -1e-9 * np.abs(bounds[1:])).all()
    assert model.weights_.sum() + model.remaining_weight_ == pytest.approx(1.0)


def test_no_discount_is_the_same_fit() -> None:
    X = power_law()
    plain, zero = (InfiniteGaussianMixture(random_state=0, **how).fit(X) for how in ({}, {"discount": 0.0}))
    np.testing.assert_array_equal(plain.means_, zero.means_)
    assert plain.free_energy_ == zero.free_energy_ and plain.prior_.keys() == zero.prior_.keys()


def test_a_discount_finds_more_of_sizes_that_follow_a_power() -> None:
    how = {"min_split_gain": 0.0, "min_component_weight": 1.0, "prior": {"covariance": 4 * np.eye(2)}}
    found = []
    for discount in (0.0, 0.6):
        model = InfiniteGaussianMixture(discount=discount, accelerate=False, random_state=0, **how)
        found.append(sum(model.fit(power_law(seed)).n_components_ for seed in range(4)))
    assert found[1] > found[0]


@pytest.mark.parametrize("model", [InfiniteGaussianMixture, InfiniteMultinomialMixture])
@pytest.mark.parametrize("how", [{"discount": 0.4}, {"concentration": {"shape": 2.0, "rate": 3.0}}])
def test_other_sticks_are_saved(model: Any, how: dict[str, Any], tmp_path: Path) -> None:
    X = np.random.default_rng(0).poisson(4.0, size=(200, 3)).astype(float)
    fitted = model(random_state=0, **how).fit(X)
    restored = globular.load(globular.save(fitted, tmp_path / "model"))
    np.testing.assert_array_equal(restored.predict_proba(X), fitted.predict_proba(X))
    np.testing.assert_array_equal(restored.score_samples(X), fitted.score_samples(X))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"discount": 1.0}, "discount"),
        ({"discount": 0.5, "concentration": (0.4, 1.0)}, "discount=0.5 must be less than the first number"),
        ({"discount": 0.5, "concentration": "gamma"}, "discount=0.5 needs a number for concentration"),
        ({"concentration": {"shape": -1.0}}, "a Gamma prior has a positive 'shape'"),
        ({"concentration": {"scale": 1.0}}, "a Gamma prior has a positive 'shape'"),
        ({"concentration": "beta"}, "concentration"),
    ],
)
def test_sticks_that_cannot_be_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InfiniteGaussianMixture(**how).fit(np.eye(9))


def test_sparse_counts_are_fitted_as_dense_ones() -> None:
    rows, labels = documents(600)
    weights = np.arange(600) % 4 + 0.0
    dense, thin = (
        InfiniteMultinomialMixture(accelerate=False, random_state=0).fit(given, sample_weight=weights)
        for given in (rows, sparse.csr_array(rows))
    )
    assert len(thin.means_) == 3 and adjusted_rand_score(labels[weights > 0], thin.predict(rows[weights > 0])) > 0.95
    assert thin.lower_bound_ == pytest.approx(dense.lower_bound_, rel=1e-10)
    np.testing.assert_allclose(thin.means_, dense.means_, rtol=1e-9)
    for ask in ("predict_proba", "score_samples", "predict"):
        found = getattr(thin, ask)(sparse.csr_array(rows))
        np.testing.assert_allclose(found, getattr(dense, ask)(rows), rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="Negative values"):
        InfiniteMultinomialMixture().fit(sparse.csr_array(-rows))


@pytest.mark.parametrize("model", FACES)
def test_warm_start_goes_on_where_the_last_fit_ended(model: Any) -> None:
    rows, _ = data_for(model)
    model = clone(model).set_params(warm_start=True).fit(rows)
    before, n_components, n_iter = model.score(rows), model.n_components_, model.n_iter_
    model.fit(rows)
    assert model.n_components_ == n_components and model.n_iter_ < n_iter
    assert model.score(rows) == pytest.approx(before, abs=1e-3)
    far = rows[:100] + 30 * rows.std(axis=0) * (np.arange(rows.shape[1]) == 0)
    if model.truncation == "nested":  # what is new gets components
        assert model.fit(np.concatenate([rows, far])).n_components_ > n_components
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(max_components=2).fit(rows)
