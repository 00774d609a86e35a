"""`partial_fit` of mixtures: its oracle, what it remembers, and what a stream of batches comes to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import globular
from globular import BernoulliMixture, GaussianMixture, NestedMiniBatchKMeans, PoissonMixture, VonMisesFisherMixture
from globular.algorithms.mixtures import probing
from globular.algorithms.mixtures import stepwise as algorithm
from globular.algorithms.mixtures.em import EMOptions
from globular.algorithms.mixtures.stepwise import Learned, one_batch
from globular.datasets import separated_mixture
from globular.passes.cpu import CpuShard
from reference import expect as soft
from reference import stepwise

KINDS = ["full", "tied", "diag", "spherical", "tied_spherical"]
C = 5


def rows_of(n: int = 12_000, dtype: Any = np.float64) -> Any:
    return separated_mixture(n, C, 3, separation=2.0, random_state=0).X.astype(dtype)


def model_of(kind: str = "diag", **options: Any) -> GaussianMixture:
    return GaussianMixture(C, **{"covariance_type": kind, "random_state": 0, "algorithm": "em", **options})


@pytest.mark.parametrize("kappa", [1.0, 0.6])
def test_batches_add_up_as_the_oracle_says(kappa: float) -> None:
    X, random = rows_of(3000), np.random.default_rng(0)
    w = random.gamma(2.0, size=len(X))
    first = model_of("full", reg_covar=0.0, max_iter=3, tol=1.0).fit(X[:1000], sample_weight=w[:1000])._mixture()
    raw = stepwise.statistics(X[:1000], w[:1000], first)
    learned = Learned(stepwise.m_step(raw), raw.counts * raw.total)
    for begin in (1000, 1400, 2500):
        batch = slice(begin, begin + (400 if begin < 2000 else 500))
        raw = stepwise.joined(raw, stepwise.statistics(X[batch], w[batch], learned.mixture), kappa)
        found = one_batch(CpuShard(X[batch], w[batch]), learned, EMOptions(reg_covar=0.0), kappa=kappa)
        log_likelihood = soft.soft_pass(X[batch], w[batch], learned.mixture).log_likelihood
        assert found.log_likelihood == pytest.approx(log_likelihood / w[batch].sum())
        learned, wanted = found.learned, stepwise.m_step(raw)
        np.testing.assert_allclose(learned.mixture.means, wanted.means, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(learned.mixture.covariances, wanted.covariances, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(learned.mixture.weights, wanted.weights, rtol=1e-9)
        np.testing.assert_allclose(learned.counts, raw.counts * raw.total, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_again_change_a_settled_mixture_little(kind: str) -> None:
    """Statistics taken back from the parameters are those that the parameters came from, `reg_covar` and all."""
    X = rows_of()
    model = model_of(kind, tol=1e-7, max_iter=400, reg_covar=1e-2).fit(X)
    means, covariances = model.means_.copy(), model.covariances_.copy()
    for _ in range(5):
        model.partial_fit(X)
    np.testing.assert_allclose(model.means_, means, atol=2e-2)
    np.testing.assert_allclose(model.covariances_, covariances, atol=2e-2)
    assert model.counts_.sum() == pytest.approx(6 * len(X))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_ends_near_the_fit_to_all_rows(kind: str) -> None:
    X = rows_of(40_000)
    model = model_of(kind)
    for batch in np.split(X, 40):
        model.partial_fit(batch)
    assert model.score(X) > model_of(kind).fit(X).score(X) - 0.02
    assert not hasattr(model, "labels_") and model.predict(X).shape == (40_000,)


def test_the_first_call_is_a_fit() -> None:
    X = rows_of(2000)
    found, wanted = model_of().partial_fit(X), model_of().fit(X)
    np.testing.assert_array_equal(found.means_, wanted.means_)
    np.testing.assert_array_equal(found.counts_, wanted.counts_)
    assert found.counts_.sum() == pytest.approx(2000)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_mixture_without_rows_weighs_nothing() -> None:
    """From given parameters the first batch is an EM step."""
    X = rows_of(2000)
    start = model_of(max_iter=1, tol=1e3).fit(X)
    given = GaussianMixture.from_parameters(start.weights_, start.means_, start.covariances_, "diag").partial_fit(X)
    wanted = model_of(
        weights_init=start.weights_, means_init=start.means_, precisions_init=start.precisions_, max_iter=1, tol=1e3
    ).fit(X)
    np.testing.assert_allclose(given.means_, wanted.means_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(given.covariances_, wanted.covariances_, rtol=1e-7)


def test_weights_are_repetitions_and_their_unit_does_not_matter() -> None:
    X = rows_of(2000)
    w = np.random.default_rng(0).integers(1, 4, 1000).astype(float)
    first = model_of().fit(X[:1000])
    models = {
        "weights": globular_copy(first).partial_fit(X[1000:], sample_weight=w),
        "copies": globular_copy(first).partial_fit(np.repeat(X[1000:], w.astype(int), axis=0)),
    }
    np.testing.assert_allclose(models["weights"].means_, models["copies"].means_, rtol=1e-9)
    huge = model_of().fit(X[:1000], sample_weight=np.full(1000, 1e60))
    huge.partial_fit(X[1000:], sample_weight=1e60 * w)
    np.testing.assert_allclose(huge.means_, models["weights"].means_, rtol=1e-9)
    np.testing.assert_allclose(huge.counts_, 1e60 * models["weights"].counts_, rtol=1e-9)


def globular_copy(model: Any) -> Any:
    import copy

    return copy.deepcopy(model)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_saved_model_goes_on_with_the_same_bits(dtype: Any, tmp_path: Path) -> None:
    X = rows_of(6000, dtype)
    model = model_of("full").partial_fit(X[:3000]).partial_fit(X[3000:4000])
    loaded = globular.load(globular.save(model, tmp_path / "model"))
    for each in (model, loaded):
        each.partial_fit(X[4000:5000]).partial_fit(X[5000:], sample_weight=np.full(1000, 2.0))
    np.testing.assert_array_equal(model.means_, loaded.means_)
    np.testing.assert_array_equal(model.covariances_, loaded.covariances_)
    np.testing.assert_array_equal(model.counts_, loaded.counts_)
    assert model.means_.dtype == dtype


def test_threads_change_nothing() -> None:
    X = rows_of(6000, np.float32)
    one, two = (model_of("full", n_threads=n).partial_fit(X[:3000]).partial_fit(X[3000:]) for n in (1, 2))
    np.testing.assert_array_equal(one.means_, two.means_)
    np.testing.assert_array_equal(one.covariances_, two.covariances_)


def test_many_components_look_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    X = rows_of(6000)
    exact = model_of().fit(X[:3000])
    truncated = globular_copy(exact)
    monkeypatch.setattr("globular.estimators.mixture.VARIATIONAL_FROM", C)
    exact.partial_fit(X[3000:])
    truncated.set_params(algorithm="auto").partial_fit(X[3000:])  # C′ is all of them: the same sums
    np.testing.assert_allclose(truncated.means_, exact.means_, rtol=1e-8, atol=1e-10)


def test_components_without_rows_in_a_batch_stay() -> None:
    X = np.concatenate([np.random.default_rng(0).normal(m, 0.1, size=(500, 2)) for m in (0.0, 10.0)])
    model = GaussianMixture(2, random_state=0).fit(X)
    far = int(model.predict([[10.0, 10.0]])[0])
    before = model.means_[far].copy()
    for _ in range(50):
        model.partial_fit(X[:500])
    np.testing.assert_allclose(model.means_[far], before, rtol=1e-6)
    assert 0 < model.weights_[far] < 0.5


def test_what_does_not_fit_is_named() -> None:
    X = rows_of(2000)
    model = model_of().partial_fit(X)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2])
    with pytest.raises(ValueError, match="fit again for another number"):
        model.set_params(n_components=C + 1).partial_fit(X)
    model.set_params(n_components=C)
    model.counts_ = -model.counts_
    with pytest.raises(ValueError, match="counts_"):
        model.partial_fit(X)
    with pytest.raises(ValueError, match="n_components"):
        model_of().partial_fit(X[:3])


def test_few_rows_at_a_time_and_one() -> None:
    X = rows_of(3000)
    model = model_of().partial_fit(X[:2000])
    before = model.score(X)
    for row in X[2000:2100]:
        model.partial_fit(row[None])
    assert np.isfinite(model.means_).all() and model.score(X) > before - 0.1
    assert 0.5 < algorithm.KAPPA <= 1.0


def test_noise_and_priors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"partial_fit does not go with noise=True; set noise=False"):
        GaussianMixture(2, noise=True).partial_fit(np.eye(8))
    with pytest.raises(ValueError, match=r"partial_fit does not go with prior; set prior=None"):
        GaussianMixture(2, prior=1.0).partial_fit(np.eye(8))


def test_every_batch_draws_cells_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    """The same cells would miss the same components again; a model that was saved midway draws what it would have."""
    drawn = watch(probing, "draw_cells", lambda shard, means, rng: rng.bit_generator.state["state"]["state"])
    monkeypatch.setattr("globular.estimators.mixture.VARIATIONAL_FROM", C)
    X = rows_of(4000)
    model = GaussianMixture(C, covariance_type="diag", random_state=0).fit(X[:1000])
    drawn.clear()
    loaded = globular.load(globular.save(model.partial_fit(X[1000:2000]), tmp_path / "model"))
    copied = globular_copy(model)
    n = len(drawn)
    for each in (model, loaded, copied):
        each.partial_fit(X[2000:3000])
    assert n > 0 and drawn[:n] != drawn[n : 2 * n] == drawn[2 * n : 3 * n] == drawn[3 * n :]
    for other in (loaded, copied):
        np.testing.assert_array_equal(other.means_, model.means_)


def drifting(step: float, n_batches: int = 60) -> Any:
    """Batches whose components move by `step` a batch, and the true mixture of each."""
    random = np.random.default_rng(0)
    means, ways = random.normal(0, 12, size=(C, 3)), random.normal(size=(C, 3))
    for batch in range(n_batches):
        true = GaussianMixture.from_parameters(np.full(C, 1 / C), means + step * batch * ways, np.ones(C), "spherical")
        yield true.set_params(random_state=batch).sample(500)[0], true


@pytest.mark.parametrize("step", [0.0, 0.07])
def test_a_mixture_that_forgets_follows_a_drift(step: float) -> None:
    losses, batches = [], list(drifting(step))
    true = batches[-1][1]
    for decay in (0.0, 0.1, 0.4):
        model = model_of("full", decay=decay)
        for X, _ in batches:
            model.partial_fit(X)
        new = true.sample(4000)[0]
        losses.append(true.score(new) - model.score(new))
    if step == 0.0:
        assert max(losses) < 0.1
    else:
        assert losses[2] < losses[1] < losses[0] and losses[2] < 0.15 < 0.3 < losses[0]


@pytest.mark.parametrize("model", [GaussianMixture(1), NestedMiniBatchKMeans(1), PoissonMixture(1)])
def test_the_rate_of_forgetting_is_the_share_of_every_call(model: Any) -> None:
    """Of batches of one value each, after many of them: what came a calls ago counts (1 − decay)^a decay."""
    model.set_params(decay=0.2)
    values = np.random.default_rng(0).integers(1, 9, size=80).astype(float)
    for value in values:
        model.partial_fit(np.full((10, 1), value) + [[0.0], [0.1]] * 5)
    wanted = np.sum(0.2 * 0.8 ** np.arange(80) * values[::-1]) + 0.05
    found = model.cluster_centers_ if isinstance(model, NestedMiniBatchKMeans) else model.means_
    assert found.item() == pytest.approx(wanted, rel=1e-3)


def test_k_means_that_forgets_follows_a_drift() -> None:
    errors, batches = [], list(drifting(0.1))
    X, true = batches[-1]
    for decay in (0.0, 0.3):
        model = NestedMiniBatchKMeans(C, random_state=0, decay=decay)
        for rows, _ in batches:
            model.partial_fit(rows)
        errors.append(-model.score(X) / np.square(X[:, None] - true.means_).sum(axis=2).min(axis=1).sum())
    assert errors[1] < 1.1 < 2.0 < errors[0]


@pytest.mark.parametrize("family", [PoissonMixture, BernoulliMixture, VonMisesFisherMixture])
@pytest.mark.parametrize("smoothing", [1e-3, 0.5])
def test_a_stream_of_a_family_ends_near_the_fit_to_all_rows(family: Any, smoothing: float, tmp_path: Path) -> None:
    """However strong the prior: it is not counted anew with every batch."""
    random = np.random.default_rng(0)
    rates, chosen = random.gamma(0.5, 3.0, size=(3, 12)), random.integers(3, size=9000)
    X = random.poisson(rates[chosen]) + (0.1 if family is VonMisesFisherMixture else 0.0)
    X = np.minimum(X, 1) if family is BernoulliMixture else X
    whole = family(3, random_state=0, smoothing=smoothing).fit(X)
    model, thin = (family(3, random_state=0, smoothing=smoothing) for _ in range(2))
    for batch in np.split(X, 9):
        model.partial_fit(batch)
        thin.partial_fit(sparse.csr_array(batch))
    assert model.score(X) == pytest.approx(whole.score(X), abs=3e-3)
    assert model.counts_.sum() == pytest.approx(9000) == whole.counts_.sum() and not hasattr(model, "labels_")
    np.testing.assert_allclose(thin.means_, model.means_, rtol=1e-6)
    loaded = globular.load(globular.save(model, tmp_path / "model")).partial_fit(X[:500])
    np.testing.assert_array_equal(loaded.means_, model.partial_fit(X[:500]).means_)
    assert model.lower_bound_ == pytest.approx(whole.score(X[:500]), abs=0.02)
    means = whole.means_.copy()
    np.testing.assert_allclose(whole.partial_fit(X).means_, means, atol=0.05)


def test_a_rate_of_forgetting_is_checked() -> None:
    for estimator in (GaussianMixture(2), PoissonMixture(2), NestedMiniBatchKMeans(2)):
        for decay in (1.0, -0.1, True, "auto"):
            with pytest.raises(ValueError, match="'decay' parameter"):
                estimator.set_params(decay=decay).partial_fit(np.eye(8))


def test_a_small_first_batch_costs_little(tmp_path: Path) -> None:
    """Few rows are kept, and fitted anew each time they have doubled, until they are enough."""
    X, w = rows_of(6000, np.float32), np.random.default_rng(0).uniform(0.5, 2.0, 6000)
    model, wanted = model_of("full"), model_of("full").fit(X[:1400], sample_weight=w[:1400])
    for begin in range(0, 1400, 100):
        assert hasattr(model, "early_rows_") == (0 < begin < 256 * C)
        model.partial_fit(X[begin : begin + 100], sample_weight=w[begin : begin + 100])
        if begin == 600:
            saved = globular.save(model, tmp_path / "model")
    assert model.score(X) > wanted.score(X) - 0.01 and not hasattr(model, "early_rows_")
    assert model.counts_.sum() == pytest.approx(w[:1400].sum())
    loaded = globular.load(saved)
    for begin in range(700, 1400, 100):
        loaded.partial_fit(X[begin : begin + 100], sample_weight=w[begin : begin + 100])
    np.testing.assert_array_equal(loaded.means_, model.means_)
    fitted = model_of("full").partial_fit(X[:300]).fit(X[:400])
    assert not hasattr(fitted.partial_fit(X[400:500]), "early_rows_")
    model = model_of("full").partial_fit(X[:300])
    model.early_weights_ = -model.early_weights_
    with pytest.raises(ValueError, match="early_weights_ must be positive"):
        model.partial_fit(X[300:400])
