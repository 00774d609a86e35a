"""Mixtures of directions, counts, and zeros and ones: the truth found again, oracles, invariants, refusals."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    check_sample_weight_equivalence_on_sparse_data,
)

from globular import BernoulliMixture, PoissonMixture, VonMisesFisherMixture
from globular.algorithms.mixtures import exponential
from globular.model.exponential import Bernoulli, Directions, Poisson
from globular.passes.cpu import CpuShard
from globular.seam.mixture_passes import Survey
from reference import linear
from split import SplitShard

KINDS: dict[str, tuple[type, type]] = {
    "von Mises-Fisher": (VonMisesFisherMixture, Directions),
    "Poisson": (PoissonMixture, Poisson),
    "Bernoulli": (BernoulliMixture, Bernoulli),
}
ESTIMATORS = [estimator for estimator, _ in KINDS.values()]


def truth(kind: str, C: int, D: int, rng: np.random.Generator) -> Any:
    """A mixture whose components can be told from each other."""
    weights = rng.dirichlet(np.full(C, 5.0))
    if kind == "von Mises-Fisher":
        means = rng.normal(size=(C, D))
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        return Directions(weights, means, rng.uniform(1.0, 3.0, C) * D)
    if kind == "Poisson":
        return Poisson(weights, rng.gamma(1.0, 4.0, size=(C, D)) + 0.05)
    return Bernoulli(weights, rng.beta(0.7, 0.7, size=(C, D)).clip(0.02, 0.98))


def generated(kind: str, n: int = 3000, C: int = 6, D: int = 20, seed: int = 0) -> tuple[Any, Any, Any]:
    """A true mixture, rows of it in a random order, and their components; a column of zeros and ones says little."""
    mixture = truth(kind, C, 3 * D if kind == "Bernoulli" else D, np.random.default_rng(seed))
    rows, labels = mixture.sample(n, np.random.RandomState(seed))
    order = np.random.default_rng(seed).permutation(n)
    return mixture, rows[order], labels[order]


@pytest.mark.parametrize(("C", "D", "seed"), [(3, 10, 0), (3, 10, 1), (3, 10, 2), (10, 30, 0), (20, 60, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_is_found_again(kind: str, C: int, D: int, seed: int) -> None:
    mixture, rows, labels = generated(kind, 200 * C, C, D, seed)
    bayes = linear.posterior(rows, mixture.linear)[0].argmax(axis=1)
    assert adjusted_rand_score(labels, bayes) >= 0.95  # else the data are no test
    model = KINDS[kind][0](C, random_state=seed).fit(rows)
    assert adjusted_rand_score(labels, model.labels_) >= 0.95
    own = linear.log_joint(rows, kind, mixture.weights, mixture.arrays)
    assert model.score(rows) >= np.logaddexp.reduce(own, axis=1).mean() - 1e-3  # no worse than the truth
    assert model.converged_


def test_directions_in_many_columns() -> None:
    mixture, rows, labels = generated("von Mises-Fisher", 1500, 8, 784, 1)
    model = VonMisesFisherMixture(8, random_state=0).fit(3.0 * rows)  # lengths do not count
    assert adjusted_rand_score(labels, model.labels_) == 1.0
    order = np.argmax(model.means_ @ mixture.means.T, axis=1)
    np.testing.assert_allclose(model.concentrations_, mixture.concentrations[order], rtol=0.05)


@pytest.mark.parametrize("kind", ["Poisson", "Bernoulli"])
def test_steps_of_em_are_those_of_the_reference(kind: str) -> None:
    _, rows, _ = generated(kind, 400, 4, 6)
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(rows))
    start = np.clip(rows[:4] * 0.5 + 0.25, 0.1, None)
    model = KINDS[kind][0](4, means_init=start, tol=0.0, max_iter=7, smoothing=1e-2)
    with pytest.warns(UserWarning, match="did not converge"):
        model.fit(rows, sample_weight=w)
    means, weights = start, np.full(4, 0.25)
    for record in model.history_:
        weights, means, objective = linear.em_step(rows, w, kind, weights, means, 1e-2)
        assert record.objective == pytest.approx(objective, rel=1e-10)
    np.testing.assert_allclose(model.means_, means, rtol=1e-8)
    np.testing.assert_allclose(model.weights_, weights, rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_densities(kind: str) -> None:
    _, rows, _ = generated(kind, 300, 4, 6)
    model = KINDS[kind][0](4, random_state=0).fit(rows)
    arrays = {"means": model.means_, "concentrations": getattr(model, "concentrations_", None)}
    joint = linear.log_joint(rows, kind, model.weights_, arrays)
    density = np.logaddexp.reduce(joint, axis=1)
    np.testing.assert_allclose(model.score_samples(rows), density, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(model.predict_proba(rows), np.exp(joint - density[:, None]), atol=1e-8)
    np.testing.assert_array_equal(model.predict(rows), joint.argmax(axis=1))
    assert model.score(rows) == pytest.approx(density.mean(), rel=1e-9)
    n_parameters = 4 * rows.shape[1] + 3  # directions have one degree of freedom less, and a concentration
    assert model.bic(rows) == pytest.approx(n_parameters * np.log(300) - 2 * density.sum(), rel=1e-9)
    assert model.aic(rows) == pytest.approx(2 * n_parameters - 2 * density.sum(), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_come_from_the_mixture(kind: str) -> None:
    mixture, rows, labels = generated(kind, 40_000, 3, 5)
    for c in range(3):
        own = rows[labels == c]
        expected = mixture.means[c]
        if kind == "von Mises-Fisher":
            np.testing.assert_allclose(np.linalg.norm(own, axis=1), 1.0)
            expected = expected * linear.mean_cosine(5, float(mixture.concentrations[c]))
        deviations = own.std(axis=0) / np.sqrt(len(own))
        assert (np.abs(own.mean(axis=0) - expected) < 5 * deviations + 1e-12).all()
    model = KINDS[kind][0](3, random_state=0).fit(rows[:2000])
    drawn, components = model.sample(500)
    assert drawn.shape == (500, rows.shape[1]) and len(np.unique(components)) == 3
    assert np.mean(model.predict(drawn) == components) > 0.8


@pytest.mark.parametrize("D", [1, 2])
def test_directions_in_few_columns(D: int) -> None:
    mixture = Directions(np.array([0.5, 0.5]), np.eye(2) if D == 2 else np.array([[1.0], [-1.0]]), np.full(2, 80.0))
    rows, labels = mixture.sample(2000, np.random.RandomState(0))
    model = VonMisesFisherMixture(2, random_state=0).fit(rows)
    assert adjusted_rand_score(labels, model.labels_) > 0.95
    assert np.isfinite(model.score(rows))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_objective_never_falls(kind: str, weighted: bool, dtype: str) -> None:
    _, rows, _ = generated(kind, 500, 3, 8, seed=3)
    weights = np.random.default_rng(0).uniform(0.1, 2.0, len(rows)) if weighted else None
    model = KINDS[kind][0](9, random_state=0, tol=1e-9, max_iter=300).fit(rows.astype(dtype), sample_weight=weights)
    bounds = np.array(model.lower_bounds_)
    assert (np.diff(bounds) >= -1e-11 * np.abs(bounds[1:])).all()


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_rows_are_dense_rows(kind: str) -> None:
    _, rows, _ = generated(kind, 600, 4, 12)
    rows = np.where(np.random.default_rng(0).random(rows.shape) < 0.7, rows, 0.0)  # hardly any as far from two starts
    rows = rows[rows.any(axis=1)]
    weights = np.random.default_rng(1).uniform(0.1, 2.0, len(rows))
    dense, thin = (
        KINDS[kind][0](4, means_init=rows[:4]).fit(each, sample_weight=weights)
        for each in (rows, sparse.csr_array(rows))
    )
    np.testing.assert_allclose(thin.means_, dense.means_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(thin.lower_bounds_, dense.lower_bounds_, rtol=1e-9)
    np.testing.assert_array_equal(thin.labels_, dense.labels_)
    for ask in ("predict", "predict_proba", "score_samples"):
        np.testing.assert_allclose(
            getattr(dense, ask)(sparse.csr_matrix(rows)), getattr(dense, ask)(rows), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_rows_is_a_start(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exponential, "FEWEST_SEARCHED", 300)
    monkeypatch.setattr(exponential, "PART_ROWS_PER_COMPONENT", 50)
    _, rows, labels = generated(kind, 3000, 4, 12)
    model = KINDS[kind][0](4, random_state=0).fit(sparse.csr_array(rows))
    assert {record.stage for record in model.history_} == {"part", "iterations"}
    assert adjusted_rand_score(labels, model.labels_) >= 0.95


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_float32_rows_give_float32(estimator: Any) -> None:
    rows = (np.random.default_rng(0).random((300, 5)) < 0.4).astype(np.float32)
    rows[:, 0] = 1.0
    model = estimator(3, random_state=0).fit(rows)
    assert model.weights_.dtype == model.predict_proba(rows).dtype == np.float32
    same = estimator(3, random_state=0).fit(rows.astype(np.float64))
    np.testing.assert_allclose(model.score_samples(rows), same.score_samples(rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_edge_cases_have_an_answer(estimator: Any) -> None:
    same = np.ones((7, 3))
    for rows, C in ((same, 1), (same, 3), (np.eye(4), 4), (same[:1], 1), (np.eye(3)[[0, 0, 0, 1]], 2)):
        model = estimator(C, random_state=0).fit(rows)
        assert np.isfinite(model.score_samples(rows)).all() and model.labels_.shape == (len(rows),)
        np.testing.assert_allclose(model.predict_proba(rows).sum(axis=1), 1.0)
    constant = np.column_stack([same, np.zeros(7)])
    assert np.isfinite(estimator(2, random_state=0).fit(constant).score_samples(1.0 - constant)).all()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(
    ("estimator", "value", "message"),
    [
        (PoissonMixture, -1.0, "Negative values in data passed to PoissonMixture, first in row 7 .*: X holds counts"),
        (BernoulliMixture, 2.0, "1 values of X are neither 0 nor 1.*, first in row 7 .*say what counts as one"),
        (BernoulliMixture, 0.5, "1 values of X are neither 0 nor 1"),
    ],
)
def test_values_that_a_family_does_not_take_are_refused(estimator: Any, value: float, message: str, form: Any) -> None:
    rows = (np.random.default_rng(0).random((50, 4)) < 0.5).astype(float)
    model = estimator(2, random_state=0).fit(form(rows))
    rows[7, 2] = value
    for ask in (estimator(2).fit, model.predict, model.score_samples):
        with pytest.raises(ValueError, match=message):
            ask(form(rows))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_rows_without_a_direction_are_refused(form: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    rows[[3, 9]] = 0.0
    with pytest.raises(ValueError, match=r"2 of the rows of X are zero .*, first in row 3 .*; leave them out"):
        VonMisesFisherMixture(2).fit(form(rows))
    weights = np.ones(50)
    weights[:5] = 0.0
    with pytest.raises(ValueError, match=r"1 of the rows of X are zero .*, first in row 9 "):
        VonMisesFisherMixture(2).fit(form(rows), sample_weight=weights)
    parts = SplitShard([CpuShard(form(rows[:6]), unit_rows=True), CpuShard(form(rows[6:]), unit_rows=True)])
    assert parts.run(Survey(Directions)).first == 3
    assert parts.run(Survey(Bernoulli)).first == CpuShard(form(rows)).run(Survey(Bernoulli)).first == 0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_parameters_are_checked(estimator: Any) -> None:
    rows = np.eye(5)
    with pytest.raises(ValueError, match="means_init has shape"):
        estimator(2, means_init=np.ones((3, 5))).fit(rows)
    with pytest.raises(ValueError, match="n_components=9"):
        estimator(9).fit(rows)


@pytest.mark.parametrize(
    "check", [check_sample_weight_equivalence_on_dense_data, check_sample_weight_equivalence_on_sparse_data]
)
@pytest.mark.parametrize("estimator", [VonMisesFisherMixture, PoissonMixture])
def test_weights_equal_repetitions_from_given_means(check: Any, estimator: Any) -> None:
    check(estimator.__name__, estimator(3, means_init=np.random.RandomState(0).rand(3, 30)))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_means_init_is_the_start_that_was_given(kind: str) -> None:
    """Whatever the smoothing; zeros, which would be impossible, are the only values that give way to it."""
    _, rows, _ = generated(kind, 400, 3, 6)
    given = np.random.default_rng(0).uniform(0.2, 0.8, size=(3, rows.shape[1]))
    given[0, 0] = 0.0
    model = KINDS[kind][0](3, means_init=given, smoothing=0.5, max_iter=0).fit(rows)
    wanted = given / np.linalg.norm(given, axis=1, keepdims=True) if kind == "von Mises-Fisher" else given
    np.testing.assert_allclose(model.means_[1:], wanted[1:], rtol=1e-14)
    np.testing.assert_allclose(model.means_[0, 1:], wanted[0, 1:], rtol=1e-14)
    assert np.isfinite(model.score(rows)) and (kind == "von Mises-Fisher" or model.means_[0, 0] > 1e-3)


def test_binary_digits(real_data: Any) -> None:
    data = real_data("mnist")
    rows, digits = data["X"][:2000] > 127, data["y"][:2000]
    model = BernoulliMixture(30, random_state=0).fit(rows)
    found = np.array([np.bincount(digits[model.labels_ == c], minlength=10).max() for c in range(30)]).sum()
    assert found / len(rows) > 0.6  # rows whose component is mostly of their digit


def test_the_strength_of_the_prior_is_chosen_by_rows_left_out() -> None:
    """Few counts in many columns: rates of a component are known from some hundred rows, most of them zeros."""
    random = np.random.default_rng(0)
    rates = random.gamma(0.2, 0.5, size=(4, 400))
    X, held_out = (random.poisson(rates[random.integers(4, size=n)]) for n in (400, 1000))
    models = {smoothing: PoissonMixture(8, smoothing=smoothing, random_state=0).fit(X) for smoothing in (1e-3, "auto")}
    assert models["auto"].smoothing_ > 1e-3 and models[1e-3].smoothing_ == 1e-3
    assert models["auto"].score(held_out) > models[1e-3].score(held_out) + 1.0
    assert (np.diff(models["auto"].lower_bounds_) > -1e-9).all()
    same = PoissonMixture(8, smoothing=models["auto"].smoothing_, random_state=0).fit(sparse.csr_array(X))
    assert same.smoothing_ == models["auto"].smoothing_


@pytest.mark.parametrize("kind", [VonMisesFisherMixture, PoissonMixture, BernoulliMixture])
def test_few_rows_leave_none_out(kind: type) -> None:
    X = np.eye(3)[np.arange(60) % 3]
    assert kind(3, smoothing="auto", random_state=0).fit(X).smoothing_ == 1e-3
    with pytest.raises(ValueError, match="smoothing"):
        kind(3, smoothing="strong").fit(X)


@pytest.mark.parametrize("kind", KINDS)
def test_gaussians_stand_for_a_family(kind: str) -> None:
    """Densities that differ by what all components share, which adds up to what the moments of the columns say."""
    mixture, rows, _ = generated(kind, 200, 7, 5)
    if kind == "von Mises-Fisher":
        mixture = Directions(mixture.weights, mixture.means, np.array([1e-9, 0.1, 2.0, 30.0, 1e3, 1e5, 5.0]))
    standing = mixture.as_gaussians()
    g = standing.mixture
    squares = np.square(rows[:, None] - g.means).sum(axis=2)
    joint = g.log_constants - 0.5 * squares * g.each(g.precisions)[:, 0]
    expected = rows @ mixture.linear.slopes.T + mixture.linear.constants
    rest = rows @ standing.slope + 0.5 * standing.curvature * np.square(rows).sum(axis=1)
    np.testing.assert_allclose(joint + rest[:, None], expected, atol=1e-9 * max(1.0, np.abs(joint).max()))
    np.testing.assert_allclose(standing.shared(len(rows), rows.mean(axis=0), rows.var(axis=0)), rest.sum(), rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_few_components_of_a_row_are_all_if_there_are_no_more(kind: str) -> None:
    _, rows, _ = generated(kind, 600, 5)
    how = {"n_components": 5, "random_state": 0, "tol": 0.0, "max_iter": 6}
    w = np.random.default_rng(0).uniform(0.5, 2.0, len(rows))
    with pytest.warns(UserWarning, match="did not converge"):
        exact, few = (
            KINDS[kind][0](algorithm=name, **how).fit(rows, sample_weight=w) for name in ("em", "variational")
        )
    assert (exact.algorithm_, few.algorithm_) == ("em", "variational")
    np.testing.assert_allclose(few.lower_bounds_, exact.lower_bounds_, rtol=1e-7)
    np.testing.assert_allclose(few.means_, exact.means_, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_among_few_components(kind: str) -> None:
    """The bound rises, lies below the likelihood, and hardly below that of EM; threads change nothing."""
    _, rows, _ = generated(kind, 4000, 60)
    few, again, exact = (
        KINDS[kind][0](60, algorithm=name, random_state=0, n_threads=n, max_iter=300).fit(rows)
        for name, n in (("variational", 1), ("variational", 2), ("em", 1))
    )
    bounds = np.array(few.lower_bounds_)
    assert (np.diff(bounds) >= -1e-9 * np.abs(bounds[1:])).all()
    np.testing.assert_array_equal(few.means_, again.means_)
    assert few.score(rows) > exact.score(rows) - 0.05
    assert few.n_distances_ / few.n_iter_ < exact.n_distances_ / exact.n_iter_


def test_who_looks_at_few_components() -> None:
    _, rows, _ = generated("Bernoulli", 200)
    with pytest.raises(TypeError, match=r"set algorithm='em'"):
        BernoulliMixture(3, algorithm="variational").fit(sparse.csr_array(rows))
    model = BernoulliMixture(3, random_state=0).fit(rows)
    assert model.algorithm_ == "em"
