"""The face `ChunkyGaussianMixture`, and `GaussianMixture(algorithm="chunky")`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data

from globular import ChunkyGaussianMixture, GaussianMixture
from globular.algorithms.mixtures import chunky
from globular.algorithms.mixtures.chunky import CONVERGED, ENOUGH_CELLS, POLISHED
from globular.data.open import as_source
from globular.datasets import separated_mixture
from globular.errors import MemoryBudgetError
from globular.estimators import chunky_mixture, inputs
from globular.estimators.chunky_mixture import CHUNKY_STARTS, most_cells, resolved_candidates
from globular.model.given import GivenStart
from globular.model.statistics import F64
from makers import blobs


def two_dimensional(n: int = 6000, C: int = 6, separation: float = 2.0, seed: int = 0) -> F64:
    return np.asarray(separated_mixture(n, C, 2, separation=separation, random_state=seed).X)


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


def test_one_row_and_one_component() -> None:
    model = ChunkyGaussianMixture(1).fit([[1.0, 2.0]])
    np.testing.assert_allclose(model.means_, [[1.0, 2.0]])
    X = blobs(n=500, D=3)
    one = ChunkyGaussianMixture(1, reg_covar=0.0).fit(X)  # the bound of one Gaussian is exact on any cells
    np.testing.assert_allclose(one.covariances_[0], np.cov(X.T, bias=True), rtol=1e-9)
    assert one.lower_bound_ == pytest.approx(one.score(X), rel=1e-9)


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


def test_memory_is_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.machine.physical_memory", lambda: 10_000)
    with pytest.raises(MemoryBudgetError, match="covariance_type='diag'"):
        ChunkyGaussianMixture(2).fit(two_dimensional(1000))
