"""The face `GaussianMixture`: scikit-learn's behaviour, starts, weights, running, input and its errors."""

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture as SklearnMixture
from threadpoolctl import threadpool_limits

from globular import (
    ChunkyGaussianMixture,
    InfiniteGaussianMixture,
    InfiniteMultinomialMixture,
    VariationalGaussianMixture,
)
from globular.algorithms.mixtures.em import ROUNDED
from globular.algorithms.mixtures.prior import STRENGTHS
from globular.algorithms.mixtures.starts import MIXTURE_STARTS
from globular.algorithms.seeding import named
from globular.errors import OverfitWarning
from globular.estimators import variational_mixture
from globular.estimators.mixture import GaussianMixture
from globular.model.covariances import FAMILIES

TYPES = sorted(FAMILIES)
SKLEARN_TYPES = ["full", "tied", "diag", "spherical"]
Rows = NDArray[np.float64]


def blobs(n: int = 300, C: int = 3, D: int = 3, seed: int = 0, apart: float = 6.0) -> tuple[Rows, Rows]:
    """Rows around C corners of a cube, and which corner."""
    random = np.random.default_rng(seed)
    centers = apart * (np.arange(C)[:, None] >> np.arange(D) & 1)
    labels = np.arange(n) % C
    return centers[labels] + random.normal(size=(n, D)) * np.linspace(0.5, 1.5, D), labels


def same_start(rows: Rows, covariance_type: str, C: int = 3) -> dict[str, Any]:
    """Starting parameters for us and for scikit-learn."""
    model = GaussianMixture(C, covariance_type=covariance_type, means_init=rows[:C] + 0.5, max_iter=0).fit(rows)
    return {"weights_init": model.weights_, "means_init": model.means_, "precisions_init": model.precisions_}


@pytest.mark.parametrize("covariance_type", SKLEARN_TYPES)
@pytest.mark.parametrize("reg_covar", [1e-6, 0.1])
def test_fit_follows_scikit_learns_path(covariance_type: str, reg_covar: float) -> None:
    rows, _ = blobs(apart=3.0)
    start = same_start(rows, covariance_type)
    ours = GaussianMixture(3, covariance_type=covariance_type, reg_covar=reg_covar, tol=1e-5, max_iter=500, **start)
    peer = SklearnMixture(3, covariance_type=covariance_type, reg_covar=reg_covar, tol=1e-5, max_iter=500, **start)
    ours.fit(rows)
    with threadpool_limits(1):  # its threads are slower than one on data this small
        peer.fit(rows)
    assert ours.n_iter_ == peer.n_iter_ and ours.converged_ is peer.converged_ is True
    if hasattr(peer, "lower_bounds_"):  # from scikit-learn 1.7 on
        np.testing.assert_allclose(ours.lower_bounds_, peer.lower_bounds_, atol=1e-6)
    assert ours.lower_bound_ == pytest.approx(peer.lower_bound_, abs=1e-6)
    names = ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_")
    for name in names:
        np.testing.assert_allclose(getattr(ours, name), getattr(peer, name), atol=1e-6, err_msg=name)
    for method in ("predict", "predict_proba", "score_samples", "score", "aic", "bic"):
        theirs = getattr(peer, method)(rows)
        np.testing.assert_allclose(getattr(ours, method)(rows), theirs, rtol=1e-6, atol=1e-6, err_msg=method)


def test_attributes_and_methods_of_scikit_learn_are_there() -> None:
    rows, _ = blobs()
    ours = GaussianMixture(2, random_state=0).fit(rows)
    peer = SklearnMixture(2, random_state=0).fit(rows)
    wanted = {name for name in dir(peer) if not name.startswith("_") and name not in ("verbose_interval",)}
    assert wanted <= set(dir(ours))


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("init_params", [name for name in MIXTURE_STARTS if name != "random"])
def test_starts_find_separated_clusters(covariance_type: str, init_params: str) -> None:
    rows, labels = blobs(apart=20.0)
    model = GaussianMixture(
        3, covariance_type=covariance_type, init_params=init_params, n_init=5, random_state=0, tol=1e-6
    )
    assert adjusted_rand_score(labels, model.fit_predict(rows)) == 1.0
    for array in (model.covariances_, model.precisions_, model.precisions_cholesky_):
        assert isinstance(array, np.ndarray) and array.shape == FAMILIES[covariance_type].shape(3, 3)


def test_random_start_gets_there_with_patience() -> None:
    rows, labels = blobs(apart=20.0, C=2)
    model = GaussianMixture(2, covariance_type="spherical", init_params="random", tol=1e-9, max_iter=500)
    model.set_params(random_state=0).fit(rows)
    assert adjusted_rand_score(labels, model.predict(rows)) == 1.0


def test_equal_weights_stay_equal_and_cost_no_parameters() -> None:
    rows, _ = blobs(n=100)
    rows = np.vstack([rows, rows[::3], rows[::3]])  # the first corner is thrice as heavy
    options = {"covariance_type": "tied_spherical", "random_state": 0}
    equal = GaussianMixture(3, weights_init="equal", **options).fit(rows)
    learned = GaussianMixture(3, **options).fit(rows)
    np.testing.assert_array_equal(equal.weights_, 1 / 3)
    assert np.ptp(learned.weights_) > 0.2
    assert learned.score(rows) > equal.score(rows)
    penalty = equal.aic(rows) + 2 * len(rows) * equal.score(rows)
    assert penalty == pytest.approx(2 * (3 * 3 + 1))


def test_given_parts_of_a_start_are_kept() -> None:
    rows, _ = blobs()
    given = same_start(rows, "diag")
    for name, attribute in [("weights_init", "weights_"), ("means_init", "means_"), ("precisions_init", "precisions_")]:
        model = GaussianMixture(3, covariance_type="diag", max_iter=0, random_state=0, **{name: given[name]})
        found = getattr(model.fit(rows), attribute)
        if name == "precisions_init":  # without means they go to the components most like them
            found, given[name] = np.sort(found, axis=0), np.sort(given[name], axis=0)
        np.testing.assert_allclose(found, given[name], rtol=1e-12)
    precision = GaussianMixture(3, covariance_type="tied_spherical", precisions_init=4.0, max_iter=0).fit(rows)
    assert float(precision.covariances_) == 0.25


def test_history_is_the_log_likelihood_of_all_rows_and_rises() -> None:
    rows, _ = blobs(apart=2.0)
    weights = np.random.default_rng(0).uniform(size=len(rows))
    model = GaussianMixture(3, random_state=0, reg_covar=0.0).fit(rows, sample_weight=weights)
    objectives = model.history_.iterations.column("objective")
    np.testing.assert_allclose(objectives / weights.sum(), model.lower_bounds_)
    assert np.all(np.diff(objectives) > -1e-9) and len(objectives) == model.n_iter_
    assert model.history_.iterations.column("n_distances").tolist() == [3 * len(rows)] * model.n_iter_
    assert model.n_distances_ == model.history_.column("n_distances").sum()


def test_bound_of_the_next_iteration_is_the_score_of_this_one() -> None:
    rows, _ = blobs(apart=2.0)
    model = GaussianMixture(3, random_state=0, tol=0.0, max_iter=4)
    with pytest.warns(ConvergenceWarning):
        scores = [model.score(rows) for record in model.fit_iter(rows) if record.labels_all_rows][:-1]
    np.testing.assert_allclose(scores, model.lower_bounds_[1:], rtol=1e-12)


def test_best_of_several_runs_is_kept() -> None:
    rows, _ = blobs(C=6, apart=3.0)
    options = {"n_components": 6, "init_params": "random_from_data", "covariance_type": "spherical"}
    seeds = np.random.RandomState(0)
    single = [GaussianMixture(**options, random_state=seeds).fit(rows).lower_bound_ for _ in range(5)]
    model = GaussianMixture(**options, n_init=5, random_state=np.random.RandomState(0)).fit(rows)
    assert model.lower_bound_ == max(single) > min(single)
    assert model.lower_bounds_[-1] == model.lower_bound_ and len(model.history_.iterations) == model.n_iter_
    assert model.n_distances_ > model.n_iter_ * 6 * len(rows)


def test_warm_start_goes_on_where_the_last_fit_ended() -> None:
    rows, _ = blobs(apart=2.0)
    whole = GaussianMixture(3, random_state=0, tol=0.0, max_iter=8)
    parts = GaussianMixture(3, random_state=0, tol=0.0, max_iter=4, warm_start=True)
    with pytest.warns(ConvergenceWarning):
        whole.fit(rows)
    with pytest.warns(ConvergenceWarning):
        bounds = parts.fit(rows).lower_bounds_ + parts.fit(rows).lower_bounds_
    assert bounds == whole.lower_bounds_
    with pytest.raises(ValueError, match="warm_start"):
        parts.set_params(n_components=2).fit(rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_any_real_dtype_gives_the_float64_result(dtype: type, covariance_type: str) -> None:
    rows = np.abs(np.round(4 * blobs()[0])).astype(dtype)
    options = {"n_components": 3, "covariance_type": covariance_type, "means_init": rows[:3].astype(float)}
    ours = GaussianMixture(**options).fit(rows)
    wide = GaussianMixture(**options).fit(rows.astype(np.float64))
    rtol = 1e-9 if dtype is np.int32 else 1e-6  # what float32 holds exactly has parameters in float32
    np.testing.assert_allclose(ours.means_, wide.means_, rtol=rtol)
    np.testing.assert_allclose(ours.score_samples(rows), wide.score_samples(rows.astype(np.float64)), rtol=10 * rtol)
    np.testing.assert_allclose(ours.lower_bounds_, wide.lower_bounds_, rtol=1e-12)  # the fit itself is in float64


@pytest.mark.parametrize("covariance_type", TYPES)
def test_float32_rows_have_float32_parameters_and_probabilities(covariance_type: str) -> None:
    for dtype in (np.float32, np.float64):
        rows = blobs()[0].astype(dtype)
        model = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(rows)
        for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
            assert getattr(model, name).dtype == dtype, name
        assert model.predict_proba(rows).dtype == dtype and model.score_samples(rows).dtype == np.float64


def test_covariances_too_flat_for_float32_stay_in_float64() -> None:
    line = np.random.default_rng(0).normal(size=(300, 1)).astype(np.float32)
    rows = np.hstack([line, line])  # on a line: the covariance is singular but for the floor
    model = GaussianMixture(2, reg_covar=0.0, random_state=0).fit(rows)
    assert model.means_.dtype == np.float32 and model.covariances_.dtype == np.float64
    assert np.isfinite(model.score_samples(rows)).all()
    assert GaussianMixture(2, reg_covar=1e-2, random_state=0).fit(rows).covariances_.dtype == np.float32


@pytest.mark.parametrize("covariance_type", TYPES)
def test_tiny_units_give_the_same_mixture(covariance_type: str) -> None:
    rows = blobs()[0] / blobs()[0].std(axis=0) / 1.01  # variances just below one
    for unit in (1e-5, 1e-9):
        fits = [
            GaussianMixture(3, means_init=rows[:3] * u, covariance_type=covariance_type).fit(rows * u)
            for u in (1.0, unit)
        ]
        np.testing.assert_allclose(fits[1].means_ / unit, fits[0].means_, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(fits[1].covariances_ / unit**2, fits[0].covariances_, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("given", "unit", "added"),
    [("auto", 1.0, [1e-6, 1e-6]), ("auto", 1e-3, [49e-12, 24.5e-12]), (1e-3, 1.0, [1e-3, 1e-3])],
)
def test_reg_covar_is_added_as_it_is_given_or_by_the_variance(given: Any, unit: float, added: list[float]) -> None:
    rows = np.full((50, 2), 7.0) * unit
    rows[:25, 0] = -7.0 * unit  # two places and a constant column: what is added is all that is left
    model = GaussianMixture(2, covariance_type="diag", reg_covar=given, random_state=0).fit(rows)
    np.testing.assert_allclose(model.covariances_, [added] * 2, rtol=1e-6)


def test_attributes_that_are_changed_are_seen_at_once() -> None:
    """A fitted model keeps its factors between calls, but no longer than they are true."""
    X = np.random.default_rng(0).normal(size=(300, 2))
    model = GaussianMixture(2, random_state=0).fit(X)
    before = model.score_samples(X)
    np.testing.assert_array_equal(model.score_samples(X), before)
    model.means_[0] += 1.0  # in place
    moved = model.score_samples(X)
    model.covariances_ = 4.0 * model.covariances_
    wider = model.score_samples(X)
    fresh = pickle.loads(pickle.dumps(model))
    assert "_last_mixture" not in vars(fresh)
    np.testing.assert_array_equal(fresh.score_samples(X), wider)
    assert np.abs(moved - before).max() > 0.1 and np.abs(wider - moved).max() > 0.1


def test_float32_with_an_offset_has_positive_variances() -> None:
    rows = (blobs()[0] + 1e4).astype(np.float32)
    for covariance_type in ("diag", "spherical", "tied_spherical"):
        model = GaussianMixture(3, covariance_type=covariance_type, reg_covar=0.0, random_state=0).fit(rows)
        assert np.all(model.covariances_ > 1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights_init": [0.5, 0.5]}, r"weights_init has shape \(2,\).*shape of \(3,\)"),
        ({"weights_init": [0.5, 0.6, 0.7]}, "weights_init must be"),
        ({"weights_init": [1.5, -0.5, 0.0]}, "weights_init must be"),
        ({"means_init": np.zeros((3, 2))}, "means_init has shape"),
        ({"means_init": np.full((3, 3), np.nan)}, "means_init"),
        ({"precisions_init": np.ones((3, 3))}, "precisions_init has shape"),
        ({"precisions_init": -np.stack([np.eye(3)] * 3)}, "precisions_init: .* symmetric, positive-def"),
    ],
)
def test_bad_parameters_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GaussianMixture(**{"n_components": 3, **options}).fit(blobs()[0])


@pytest.mark.parametrize("n", [6, 40])
def test_other_algorithms_are_the_other_estimators(n: int) -> None:
    X = np.random.default_rng(0).normal(size=(600, 3))
    given: dict[str, Any] = {"covariance_type": "diag", "max_iter": 100, "random_state": 0}
    truncated = GaussianMixture(n, algorithm="variational", means_init=X[:n], **given).fit(X)
    alone = VariationalGaussianMixture(n, init=X[:n], **given).fit(X)
    np.testing.assert_array_equal(truncated.means_, alone.means_)
    assert truncated.lower_bounds_ == alone.lower_bounds_ and truncated.n_distances_ == alone.n_distances_
    chunky = GaussianMixture(n, algorithm="chunky", init_params="k-means++", **given).fit(X)
    alone = ChunkyGaussianMixture(n, polish=True, init="k-means++", **given).fit(X)
    assert chunky.lower_bounds_ == alone.lower_bounds_


@pytest.mark.parametrize("n", [40, 41])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: GaussianMixture(n, algorithm="em", covariance_type="diag"),
        lambda n: GaussianMixture(n, algorithm="chunky"),
        lambda n: GaussianMixture(n, algorithm="variational", covariance_type="diag"),
        lambda n: VariationalGaussianMixture(n, covariance_type="diag"),
        lambda n: VariationalGaussianMixture(n, covariance_type="diag", search="neighbors"),
        lambda n: ChunkyGaussianMixture(n), lambda n: InfiniteGaussianMixture(truncation="fixed", max_components=n),
        lambda n: InfiniteGaussianMixture(truncation="fixed", max_components=n, accelerate=False),
        lambda n: InfiniteMultinomialMixture(truncation="fixed", max_components=n),
    ],
)  # fmt: skip
def test_kmeans_starts_either_side_of_hierarchical_seeds(make: Any, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "GREEDY_UP_TO", 20)
    monkeypatch.setattr(named, "PLUS_PLUS_UP_TO", 40)
    X = np.abs(np.random.default_rng(0).normal(size=(300, 3)))
    with pytest.warns(ConvergenceWarning):
        model = make(n).set_params(max_iter=2, tol=1e-9, random_state=0).fit(X)
    assert model.means_.shape == (n, 3) and np.isfinite(model.means_).all()
    if getattr(model, "algorithm", "") == "variational":  # the same where rows search neighbourhoods
        monkeypatch.setattr(variational_mixture, "NEIGHBORS_UP_TO", n)
        with pytest.warns(ConvergenceWarning):
            assert np.isfinite(model.fit(X).means_).all()


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("make", [GaussianMixture, ChunkyGaussianMixture])
@pytest.mark.parametrize("scale", [2.0**480, 2.0**-450])
def test_scaled_rows_have_scaled_mixtures(make: Any, covariance_type: str, scale: float) -> None:
    X = blobs()[0]
    model = make(3, covariance_type=covariance_type, reg_covar=0, random_state=0)
    one, other = (clone(model).fit(rows) for rows in (X, X * scale))
    np.testing.assert_allclose(other.means_ / scale, one.means_, rtol=1e-9)
    np.testing.assert_allclose(other.covariances_ / scale / scale, one.covariances_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [GaussianMixture, ChunkyGaussianMixture])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_few_rows_of_any_size_have_finite_mixtures_or_an_error(make: Any, covariance_type: str) -> None:
    X = np.random.default_rng(0).normal(size=(2, 3))
    model = make(2, covariance_type=covariance_type, reg_covar=0, random_state=0)
    for scale in (1e150, 1e100, 1e-100, 1e-130):
        clone(model).fit(X * scale)  # which refuses to end in what is not finite
    for scale in (1e160, 1e-150, 1e-160):
        with pytest.raises(ValueError, match="scale X"):
            clone(model).fit(X * scale)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_likelihood_never_falls_without_reg_covar() -> None:
    """All but singular covariances round it by more than sums do; then the fit ends, and says so."""
    for seed, kind in enumerate(("full", "tied", "full", "tied")):
        X = np.random.default_rng(seed).normal(size=(35, 24) if kind == "full" else (782, 9))
        if kind == "tied":
            X[17] = 1e12
        model = GaussianMixture(
            2, covariance_type=kind, reg_covar=0, tol=0, max_iter=25, init_params="random", random_state=seed
        ).fit(X)
        bounds = np.array(model.lower_bounds_)
        assert (np.diff(bounds) >= -2e-9 * (1 + np.abs(bounds[1:]))).all()
        assert model.stopped_ == ROUNDED and model.converged_


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
def test_precisions_without_means_go_to_the_components_that_they_suit(covariance_type: str) -> None:
    """Whatever order they and their weights are in, the start is the same."""
    random = np.random.default_rng(0)
    groups = ([0.1, 3.0], 100), ([2.0, 0.3], 150), ([1.0, 5.0], 250)
    rows = np.vstack([random.normal(40.0 * i, spread, (n, 2)) for i, (spread, n) in enumerate(groups)])
    fitted = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(rows)
    for order in ([0, 1, 2], [2, 0, 1], [1, 0, 2]):
        parts = {"precisions_init": fitted.precisions_[order], "weights_init": fitted.weights_[order]}
        model = GaussianMixture(3, covariance_type=covariance_type, random_state=0, **parts).fit(rows)
        assert model.lower_bounds_[0] == pytest.approx(fitted.lower_bound_, abs=1e-3)


@pytest.mark.parametrize(("n", "warns"), [(300, True), (3000, False)])
def test_many_components_of_too_few_rows_are_told(n: int, warns: bool) -> None:
    X = np.random.default_rng(0).normal(size=(n, 3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        VariationalGaussianMixture(150, prior=None, random_state=0).fit(X)
    told = [str(each.message) for each in caught if each.category is OverfitWarning]
    assert len(told) == warns and all("of 150 components" in text and "covariance_type" in text for text in told)


@pytest.mark.parametrize("kind", [GaussianMixture, VariationalGaussianMixture])
@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
def test_a_prior_keeps_many_components_from_overfitting(kind: type, covariance_type: str) -> None:
    X, held_out = np.random.default_rng(0).normal(size=(2, 600, 4)) * [1.0, 10.0, 0.1, 5.0]
    given: dict[str, Any] = {"covariance_type": covariance_type, "random_state": 0, "reg_covar": 0.0, "max_iter": 30}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        free, held = (kind(60, prior=prior, **given).fit(X) for prior in (None, 10.0))
        strong = kind(60, prior=1e9, **given).fit(X)
    assert held.score(held_out) > free.score(held_out) + 0.2
    assert (np.diff(held.lower_bounds_) > -1e-9).all()
    scale = X.var(axis=0) * 60 ** (-2.0 / 4)  # where only the prior counts
    expected = {"full": np.diag(scale), "diag": scale, "spherical": scale.mean()}[covariance_type]
    np.testing.assert_allclose(strong.covariances_[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [GaussianMixture, VariationalGaussianMixture])
@pytest.mark.parametrize(("C", "n"), [(120, 480), (600, 1500)])
def test_thin_components_choose_a_prior_by_rows_left_out(kind: type, C: int, n: int) -> None:
    X, held_out = np.random.default_rng(0).normal(size=(2, n, 4)) * [1.0, 10.0, 0.1, 5.0]
    given: dict[str, Any] = {"covariance_type": "diag", "random_state": 0, "max_iter": 15}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        chosen = kind(C, **given, n_init=2).fit(X)  # the warning of thin components is an error
        same = kind(C, **given, n_init=2, prior=chosen.prior_).fit(X)
        with pytest.warns(OverfitWarning, match="prior='auto'"):
            free = kind(C, prior=None, **given).fit(X)
    assert chosen.prior_ >= 0.3 and free.prior_ is None
    assert chosen.score(held_out) > free.score(held_out) + 0.5
    np.testing.assert_allclose(same.score(held_out), chosen.score(held_out), atol=0.05)


@pytest.mark.parametrize("kind", [GaussianMixture, VariationalGaussianMixture])
def test_components_of_many_rows_have_no_prior_unless_asked_for(kind: type) -> None:
    X = np.concatenate([np.random.default_rng(seed).normal(8 * seed, size=(300, 2)) for seed in range(3)])
    plain, none, auto = (kind(3, random_state=0, prior=prior).fit(X) for prior in ("thin", None, "auto"))
    np.testing.assert_array_equal(plain.covariances_, none.covariances_)
    assert plain.prior_ is None and auto.prior_ in (None, *STRENGTHS)
    assert auto.score(X) == pytest.approx(none.score(X), abs=0.01)
    assert kind(2, prior="auto", random_state=0).fit(X[:50]).prior_ is None  # too few rows to leave some out
    assert kind(3, covariance_type="tied_spherical", random_state=0).fit(X[:30]).prior_ is None
    with pytest.raises(ValueError, match="prior"):
        kind(3, prior="strong").fit(X)


def test_a_prior_of_nothing_is_refused() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    for refused in ({"covariance_type": "tied"}, {"algorithm": "chunky"}, {"algorithm": "nested"}):
        with pytest.raises(ValueError, match="prior needs"):
            GaussianMixture(2, prior=1.0, **refused).fit(X)
    with pytest.raises(ValueError, match="prior is that of each"):
        VariationalGaussianMixture(2, prior=1.0, covariance_type="tied_spherical").fit(X)
    with pytest.raises(ValueError, match="does not go with prior"):
        GaussianMixture(2, prior=1.0).fit(np.where(X > 1.5, np.nan, X), missing=True)
