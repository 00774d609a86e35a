"""The face `ChunkyGaussianMixture`, and `GaussianMixture(algorithm="chunky")`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data, parametrize_with_checks

import globular
from globular import ChunkyGaussianMixture, GaussianMixture
from globular.algorithms.mixtures import chunky
from globular.algorithms.mixtures.chunky import CONVERGED, ENOUGH_CELLS, POLISHED
from globular.data.open import as_source
from globular.datasets import separated_mixture
from globular.errors import MemoryBudgetError
from globular.estimators import chunky_mixture, inputs
from globular.estimators.chunky_mixture import CHUNKY_STARTS, most_cells, resolved_candidates
from globular.model.covariances import FAMILIES
from globular.model.given import GivenStart
from globular.model.statistics import F64
from makers import blobs, in_form, weights_for

TYPES = sorted(FAMILIES)
OTHER_TREE = "repeated rows make another tree; with single rows for cells weights equal repetitions, see below"


def two_dimensional(n: int = 6000, C: int = 6, separation: float = 2.0, seed: int = 0) -> F64:
    return np.asarray(separated_mixture(n, C, 2, separation=separation, random_state=seed).X)


# The model -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["equal", "learned"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_attributes(covariance_type: str, dtype: type, weights: str) -> None:
    X, w = blobs(n=600, C=10, D=3).astype(dtype), weights_for(600)
    model = ChunkyGaussianMixture(4, covariance_type=covariance_type, weights=weights, random_state=0)
    assert model.fit(X, sample_weight=w) is model
    assert model.means_.shape == (4, 3) and model.weights_.shape == (4,)
    for array in (model.covariances_, model.precisions_, model.precisions_cholesky_):
        assert array.shape == FAMILIES[covariance_type].shape(4, 3) and array.dtype == dtype
    assert model.converged_ and model.stopped_ and 4 <= model.n_cells_ <= 600
    assert len(model.history_.iterations) == model.n_iter_ == len(model.lower_bounds_)
    np.testing.assert_allclose(model.history_.iterations.column("objective") / w.sum(), model.lower_bounds_)
    assert (np.diff(model.lower_bounds_) >= -1e-9).all() and model.lower_bound_ == model.lower_bounds_[-1]
    assert model.lower_bound_ <= model.score(X, sample_weight=w) + 1e-3
    if weights == "equal":
        np.testing.assert_array_equal(model.weights_, 0.25)


@pytest.mark.parametrize("init", CHUNKY_STARTS)
def test_exact_em_finds_little_to_improve(init: str) -> None:
    """From every start: EM on all rows, begun where Chunky EM ended, gains less than a per cent."""
    X = two_dimensional()
    model = ChunkyGaussianMixture(6, init=init, tol=1e-4, random_state=0, max_cells=200).fit(X)
    assert model.n_cells_ <= 400
    polished = GaussianMixture(
        6, weights_init=model.weights_, means_init=model.means_, precisions_init=model.precisions_
    ).fit(X)
    assert model.score(X) > polished.score(X) - 0.01 * abs(polished.score(X))


def test_same_start_as_em_ends_as_em(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunky, "LEAF_SIZE", 1)
    X = two_dimensional(4000, separation=1.0)
    rough = GaussianMixture(6, init_params="random_from_data", max_iter=1, random_state=3)
    with pytest.warns(ConvergenceWarning):
        rough.fit(X)
    given = {
        "weights_init": rough.weights_, "means_init": rough.means_, "precisions_init": rough.precisions_,
    }  # fmt: skip
    exact = GaussianMixture(6, tol=1e-5, max_iter=500, **given).fit(X)
    start = replace(GivenStart.of(rough._mixture()), continues=True)
    monkeypatch.setattr(ChunkyGaussianMixture, "_given", lambda self, data: start)
    ours = ChunkyGaussianMixture(6, tol=1e-5, refine_tol=0.0).fit(X)
    assert ours.lower_bound_ == pytest.approx(exact.lower_bound_, abs=1e-3)
    assert ours.score(X) == pytest.approx(exact.score(X), abs=1e-3)
    exactly = GaussianMixture(6, algorithm="chunky", max_iter=0, **given).fit(X)
    np.testing.assert_allclose(exactly.means_, rough.means_)
    np.testing.assert_allclose(exactly.covariances_, rough.covariances_, rtol=1e-8)


def test_polished_mixtures_are_fixed_points_of_em() -> None:
    X = two_dimensional(4000, separation=1.0)
    rough = ChunkyGaussianMixture(6, max_cells=60, tol=1e-6, random_state=0).fit(X)
    model = ChunkyGaussianMixture(6, max_cells=60, tol=1e-6, polish=True, random_state=0).fit(X)
    assert model.n_cells_ == 4000 and model.converged_ and model.stopped_ == POLISHED
    assert (np.diff(model.lower_bounds_) >= -1e-9).all()
    assert model.lower_bound_ == pytest.approx(model.score(X), abs=1e-5)  # exact, one step behind
    again = GaussianMixture(
        6, algorithm="em", weights_init=model.weights_, means_init=model.means_, precisions_init=model.precisions_,
        tol=1e-5,
    ).fit(X)  # fmt: skip
    assert again.n_iter_ <= 2 and again.score(X) == pytest.approx(model.score(X), abs=1e-5)
    assert model.score(X) > rough.score(X)


def test_polishes_where_cells_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself only with the number of cells left to us, and only if they do not reach `refine_tol`."""
    X = two_dimensional(4000, separation=1.0)
    enough = ChunkyGaussianMixture(6, random_state=0).fit(X)
    assert enough.stopped_ == CONVERGED and enough.n_cells_ < 4000
    monkeypatch.setattr(chunky_mixture, "FEWEST_CELLS", 60)
    monkeypatch.setattr(chunky_mixture, "MOST_CELLS_PER_COMPONENT", 10)
    monkeypatch.setattr(chunky_mixture, "ROWS_PER_CELL", 100)
    too_few = ChunkyGaussianMixture(6, random_state=0).fit(X)
    assert too_few.stopped_ == POLISHED and too_few.n_cells_ == 4000 and too_few.converged_
    assert ChunkyGaussianMixture(6, max_cells=60, random_state=0).fit(X).stopped_ == ENOUGH_CELLS
    assert ChunkyGaussianMixture(6, polish=False, random_state=0).fit(X).stopped_ == ENOUGH_CELLS


def test_polishes_with_few_components_per_row() -> None:
    X = two_dimensional(3000)
    model = ChunkyGaussianMixture(6, n_candidates=3, polish=True, random_state=0).fit(X)
    assert model.stopped_ == POLISHED and model.n_cells_ == 3000
    assert model.lower_bound_ == pytest.approx(model.score(X), abs=0.01)


def test_threads_and_seeds() -> None:
    X = two_dimensional()
    one, two = (ChunkyGaussianMixture(6, random_state=0, n_threads=n).fit(X) for n in (1, 2))
    np.testing.assert_array_equal(one.means_, two.means_)
    assert one.lower_bounds_ == two.lower_bounds_
    few = [ChunkyGaussianMixture(6, n_candidates=2, random_state=0, n_threads=n).fit(X) for n in (1, 2)]
    np.testing.assert_array_equal(few[0].means_, few[1].means_)
    assert few[0].lower_bound_ <= few[0].score(X)


def test_n_init_keeps_the_best_and_warm_start_goes_on() -> None:
    X = two_dimensional(separation=0.5)
    single = [ChunkyGaussianMixture(6, init="random_from_data", random_state=seed).fit(X) for seed in range(3)]
    many = ChunkyGaussianMixture(6, init="random_from_data", n_init=5, random_state=0).fit(X)
    assert many.lower_bound_ >= single[0].lower_bound_
    model = ChunkyGaussianMixture(6, random_state=0, warm_start=True, max_iter=2, tol=1e-6)
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    bound = model.lower_bound_
    model.set_params(max_iter=1000, tol=1e-4).fit(X)
    assert model.lower_bound_ > bound


def test_stops_by_time_and_goes_on_record_by_record() -> None:
    X = two_dimensional()
    hurried = ChunkyGaussianMixture(6, tol=0.0, max_time=1e-6, random_state=0).fit(X)
    assert hurried.stopped_ == "max_time" and hurried.n_iter_ == 1
    model = ChunkyGaussianMixture(6, tol=0.0, random_state=0)
    for record in model.fit_iter(X):
        assert model.lower_bound_ == pytest.approx(record.objective / len(X))
        if record.iteration == 3:
            break
    assert model.n_iter_ == 3


@pytest.mark.parametrize(
    "form", ["float32", "float16", "uint8", "int64", "fortran", "big-endian", "strided", "readonly"]
)
def test_reads_every_form(form: str) -> None:
    X = in_form(blobs(n=300, D=3), form)
    before = X.copy()
    model = ChunkyGaussianMixture(3, random_state=0).fit(X)
    np.testing.assert_array_equal(X, before)  # trees are grown on a copy
    same = ChunkyGaussianMixture(3, random_state=0).fit(np.ascontiguousarray(X, dtype=np.float64))
    np.testing.assert_allclose(model.means_, same.means_, rtol=1e-5, atol=1e-5)


def test_streamed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = two_dimensional(3000)
    np.save(tmp_path / "rows.npy", X)
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    streamed = ChunkyGaussianMixture(4, random_state=0).fit(as_source(tmp_path / "rows.npy"))
    with pytest.raises(ValueError, match="polish=False"):
        ChunkyGaussianMixture(4, n_candidates=2, polish=True).fit(as_source(tmp_path / "rows.npy"))
    polished = ChunkyGaussianMixture(4, polish=True, random_state=0).fit(as_source(tmp_path / "rows.npy"))
    assert polished.n_cells_ == 3000 and polished.stopped_ == POLISHED
    assert GaussianMixture(4, algorithm="chunky", random_state=0).fit(as_source(tmp_path / "rows.npy")).converged_
    held = ChunkyGaussianMixture(4, random_state=0).fit(X)
    assert streamed.lower_bound_ == pytest.approx(held.lower_bound_, rel=0.01)
    assert streamed.predict(tmp_path / "rows.npy").shape == (3000,)


def test_pickle_save_and_load(tmp_path: Path) -> None:
    X = two_dimensional(1000)
    model = ChunkyGaussianMixture(4, random_state=0).fit(X)
    globular.save(model, tmp_path / "model")
    for copy in (pickle.loads(pickle.dumps(model)), globular.load(tmp_path / "model")):
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        assert copy.get_params() == model.get_params() and copy.n_cells_ == model.n_cells_
    assert not hasattr(clone(model), "means_")


def test_predictions_are_those_of_the_mixture() -> None:
    X = two_dimensional(1000)
    model = ChunkyGaussianMixture(4, random_state=0).fit(X)
    exact = GaussianMixture(4, max_iter=0, weights_init=model.weights_, means_init=model.means_,
                            precisions_init=model.precisions_).fit(X)  # fmt: skip
    np.testing.assert_array_equal(model.predict(X), exact.predict(X))
    np.testing.assert_allclose(model.predict_proba(X), exact.predict_proba(X), atol=1e-9)
    np.testing.assert_allclose(model.score_samples(X), exact.score_samples(X), rtol=1e-9)
    assert model.bic(X) == pytest.approx(exact.bic(X), rel=1e-9)
    assert model.sample(7)[0].shape == (7, 2)


# Hard data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("n_candidates", [None, 2])
@pytest.mark.parametrize("init", ["kmeans", "greedy"])
@pytest.mark.parametrize(
    "rows",
    [
        np.repeat(np.eye(2), 500, axis=0),
        np.full((60, 2), 1e8),
        np.column_stack([np.arange(80.0), np.zeros(80)]),
        np.column_stack([np.arange(80.0), np.arange(80.0)]) + 1e8,
        np.arange(6.0).reshape(3, 2),
    ],
    ids=["duplicates", "constant far", "flat", "line far", "as many rows as components"],
)
def test_degenerate_data_give_finite_mixtures(
    rows: F64, init: str, n_candidates: int | None, covariance_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunky, "LEAF_SIZE", 2)
    model = ChunkyGaussianMixture(
        3, covariance_type=covariance_type, init=init, n_candidates=n_candidates, max_iter=20, tol=1e-2, reg_covar=0.0,
        random_state=0,
    )  # fmt: skip
    model.fit(rows)
    for values in (model.weights_, model.means_, model.covariances_, model.precisions_, model.lower_bounds_):
        assert np.isfinite(values).all()
    assert np.isfinite(model.score_samples(rows)).all()
    assert (model.means_ >= rows.min(axis=0) - 1e-6).all() and (model.means_ <= rows.max(axis=0) + 1e-6).all()


def test_one_row_and_one_component() -> None:
    model = ChunkyGaussianMixture(1).fit([[1.0, 2.0]])
    np.testing.assert_allclose(model.means_, [[1.0, 2.0]])
    X = blobs(n=500, D=3)
    one = ChunkyGaussianMixture(1, reg_covar=0.0).fit(X)  # the bound of one Gaussian is exact on any cells
    np.testing.assert_allclose(one.covariances_[0], np.cov(X.T, bias=True), rtol=1e-9)
    assert one.lower_bound_ == pytest.approx(one.score(X), rel=1e-9)


def test_rows_of_weight_zero_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunky, "LEAF_SIZE", 1)
    X, weights = two_dimensional(1000), np.ones(1100)
    weights[1000:] = 0.0
    far = np.vstack([X, 1e6 * np.ones((100, 2))])
    given: dict[str, Any] = {"init": X[:3], "refine_tol": 0.0}
    one, other = (
        ChunkyGaussianMixture(3, **given).fit(X),
        ChunkyGaussianMixture(3, **given).fit(far, sample_weight=weights),
    )
    assert one.lower_bound_ == pytest.approx(other.lower_bound_, abs=1e-2)
    assert (np.abs(other.means_) < 1e3).all()


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_an_offset_changes_nothing_but_the_means(covariance_type: str) -> None:
    X = np.round(64 * two_dimensional(2000)) / 64
    near, far = (
        ChunkyGaussianMixture(4, covariance_type=covariance_type, init=X[:4] + offset).fit(X + offset)
        for offset in (0.0, 1e8)
    )
    assert near.lower_bound_ == pytest.approx(far.lower_bound_, abs=1e-4)
    np.testing.assert_allclose(near.means_ + 1e8, far.means_, atol=1e-3)


def test_weights_equal_repetitions_where_cells_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunky, "LEAF_SIZE", 1)
    monkeypatch.setattr(chunky, "CELLS_PER_COMPONENT", 1000)
    estimator = ChunkyGaussianMixture(3, init=np.random.RandomState(0).rand(3, 30), refine_tol=0.0)
    check_sample_weight_equivalence_on_dense_data("ChunkyGaussianMixture", estimator)


# Conventions, choices and refusals -----------------------------------------------------------------------------------


def expected_failures(estimator: BaseEstimator) -> dict[str, str]:
    if getattr(estimator, "n_components", 1) == 1:
        return {}
    return {"check_sample_weight_equivalence_on_dense_data": OTHER_TREE}


@parametrize_with_checks(
    [
        ChunkyGaussianMixture(),
        ChunkyGaussianMixture(3, init="greedy", covariance_type="diag"),
        ChunkyGaussianMixture(3, n_candidates=2),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learn_conventions(estimator: BaseEstimator, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_gaussian_mixture_takes_it_by_name() -> None:
    X = two_dimensional(6000)
    model = GaussianMixture(6, algorithm="chunky", random_state=0).fit(X)
    assert model.algorithm_ == "chunky" and model.converged_
    assert model.lower_bound_ == pytest.approx(model.score(X), abs=1e-2)  # polished
    exact = GaussianMixture(6, algorithm="em", random_state=0).fit(X)
    assert model.score(X) == pytest.approx(exact.score(X), rel=0.01)
    forced = GaussianMixture(2, algorithm="chunky", weights_init="equal", random_state=0, warm_start=True).fit(X)
    bound = forced.lower_bound_
    assert forced.algorithm_ == "chunky" and forced.fit(X).lower_bound_ >= bound - 1e-2


def test_defaults_follow_the_data() -> None:
    assert most_cells(5000, 2) == 1000 and most_cells(10**6, 50) == 100_000 and most_cells(10**4, 1000) == 40_000
    assert resolved_candidates("auto", 50) is None and resolved_candidates("auto", 1000) == 5
    assert (
        resolved_candidates(7, 5) is None and resolved_candidates(7, 50) == 7 and resolved_candidates(None, 50) is None
    )


def test_bad_input_is_named() -> None:
    X = two_dimensional(100)
    with pytest.raises(TypeError, match="dense rows"):
        ChunkyGaussianMixture(2).fit(sparse.csr_array(X))
    with pytest.raises(ValueError, match="n_components=101"):
        ChunkyGaussianMixture(101).fit(X)
    with pytest.raises(ValueError, match="'max_cells'"):
        ChunkyGaussianMixture(2, max_cells=0).fit(X)
    with pytest.raises(ValueError, match="init has shape"):
        ChunkyGaussianMixture(2, init=[[0.0, 0.0]]).fit(X)
    with pytest.raises(NotFittedError):
        ChunkyGaussianMixture(2).predict(X)


def test_memory_is_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 10_000)
    with pytest.raises(MemoryBudgetError, match="covariance_type='diag'"):
        ChunkyGaussianMixture(2).fit(two_dimensional(1000))
