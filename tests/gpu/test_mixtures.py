"""Mixtures on the card: E-steps against their oracle in every family, and fits against those of the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from globular import ChunkyGaussianMixture, GaussianMixture, VariationalGaussianMixture
from globular.errors import DeviceError
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.seam.mixture_passes import Expect, ExpectWithin
from globular.seam.passes import Assign
from makers import blobs, weights_for
from reference import expect as oracle

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')
from globular.passes.torch import TorchShard, expect  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_TORCH = "cuda" if torch.cuda.is_available() else "torch-cpu"
N, C = 700, 6


def rows_of(D: int, dtype: str = "float64") -> Any:
    return blobs(n=N, C=C, D=D).astype(dtype)


def mixture_of(rows: Any, kind: str, width: float = 1.0) -> GaussianParameters:
    """Components about some rows, of different shapes; a small `width` makes their expanded squares cancel."""
    rng, D = np.random.default_rng(1), rows.shape[1]
    family = FAMILIES[kind]
    if family.scatter.separable:
        covariances = rng.uniform(0.5, 2.0, size=family.shape(C, D))
    else:
        factors = 0.3 * rng.normal(size=family.shape(C, D)) + np.eye(D)
        covariances = factors @ np.swapaxes(factors, -1, -2)
    return GaussianParameters(rng.dirichlet(np.full(C, 5.0)), rows[:C].astype(float), width * covariances, kind)


def check(found: Any, wanted: Any, rtol: float = 1e-9) -> None:
    for name in ("counts", "sums", "scatter"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * np.abs(other).max())
    assert found.log_likelihood == pytest.approx(wanted.log_likelihood, rel=1e-11)
    assert found.n_distances == wanted.n_distances


def on_card(rows: Any, weights: Any = None) -> TorchShard:
    return TorchShard(torch.as_tensor(rows, device=DEVICE), weights)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [1.0, 1e-7])
@pytest.mark.parametrize("D", [1, 7, 45])
def test_an_e_step_is_that_of_the_oracle(kind: str, weighted: bool, width: float, D: int) -> None:
    rows = rows_of(D)
    w = weights_for(N) if weighted else None
    mixture = mixture_of(rows, kind, width)
    found = on_card(rows, w).run(Expect(mixture))
    check(found, oracle.soft_pass(rows, np.ones(N) if w is None else w, mixture), 1e-8)


@pytest.mark.parametrize("kind", FAMILIES)
def test_float32_rows_lose_nothing_but_their_own_rounding(kind: str) -> None:
    rows = rows_of(7, "float32")
    mixture = mixture_of(rows, kind)
    check(on_card(rows).run(Expect(mixture)), oracle.soft_pass(rows.astype(float), np.ones(N), mixture))


def test_blocks_of_rows_make_no_difference_but_by_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(7)
    mixture, shard = mixture_of(rows, "full"), on_card(rows)
    whole = shard.run(Expect(mixture))
    monkeypatch.setattr(expect, "NUMBERS_AT_ONCE", 1 << 14)
    check(shard.run(Expect(mixture)), whole, 1e-12)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("at_once", [1, 1 << 26])
def test_components_from_inside(kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expect, "NUMBERS_AT_ONCE", at_once)
    rows, w = rows_of(5), weights_for(N)
    mixture, shard = mixture_of(rows, kind), on_card(rows, w)
    shard.run(Assign(rows[[0, 0, 3]]))  # of label 1 there are none
    labels = np.asarray(shard.labels)
    found = shard.run(ExpectWithin(mixture, 2))
    wanted = oracle.within_pass(rows, w, mixture, labels, 2)
    check(found.parts, wanted.parts)
    np.testing.assert_allclose(found.log_likelihoods, wanted.log_likelihoods)


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_same_bits_again(kind: str) -> None:
    rows = rows_of(7, "float32")
    first, second = (on_card(rows).run(Expect(mixture_of(rows, kind))) for _ in "ab")
    assert first.scatter.tobytes() == second.scatter.tobytes() and first.log_likelihood == second.log_likelihood


ROWS = blobs(n=3000, C=8, D=6).astype(np.float32)


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_on_a_card_is_that_of_the_cpu(kind: str, weighted: bool) -> None:
    w = weights_for(len(ROWS)) if weighted else None
    ours, theirs = (
        GaussianMixture(8, covariance_type=kind, random_state=0, device=device).fit(ROWS, sample_weight=w)
        for device in (ON_TORCH, "cpu")
    )
    assert ours.lower_bound_ > theirs.lower_bound_ - 1e-2
    assert isinstance(ours.means_, np.ndarray) and ours.means_.dtype == np.float32
    on_cpu = GaussianMixture(8, covariance_type=kind, random_state=0).set_params(device="cpu")
    vars(on_cpu).update({name: value for name, value in vars(ours).items() if name.endswith("_")})
    np.testing.assert_array_equal(ours.predict(ROWS), on_cpu.predict(ROWS))
    np.testing.assert_array_equal(ours.labels_, ours.predict(ROWS))
    np.testing.assert_allclose(ours.score_samples(ROWS), on_cpu.score_samples(ROWS), rtol=1e-9)
    np.testing.assert_allclose(ours.predict_proba(ROWS), on_cpu.predict_proba(ROWS), atol=1e-7)
    assert ours.score(ROWS) == pytest.approx(on_cpu.score(ROWS), rel=1e-9)


@pytest.mark.parametrize("init", ["k-means++", "random", "random_from_data"])
def test_every_start_runs_on_a_card(init: str) -> None:
    ours = GaussianMixture(5, init_params=init, random_state=0, tol=0.1, device=ON_TORCH).fit(ROWS)
    assert np.isfinite(ours.lower_bound_) and ours.converged_


def test_models_leave_the_card(tmp_path: Path) -> None:
    model = GaussianMixture(5, random_state=0, device=ON_TORCH).fit(ROWS)
    globular.save(model, tmp_path / "model")
    loaded = globular.load(tmp_path / "model").set_params(device="cpu")
    np.testing.assert_array_equal(loaded.predict(ROWS), model.labels_)


def test_tensors_on_a_card_give_tensors_there() -> None:
    if DEVICE != "cuda":
        pytest.skip("needs a CUDA card")
    X = torch.as_tensor(ROWS, device="cuda")
    model = GaussianMixture(5, random_state=0).fit(X)
    for of_rows in (model.predict, model.predict_proba, model.score_samples):
        assert of_rows(X).device == X.device


def test_chunks_of_rows_are_refused_on_a_card() -> None:
    rows = np.tile(ROWS[:, :3], (40, 1))
    with pytest.raises(DeviceError, match="algorithm='em'"):
        GaussianMixture(5, algorithm="chunky", device=ON_TORCH).fit(rows)
    from test_device import OnCard

    with pytest.raises(DeviceError, match="take GaussianMixture"):
        ChunkyGaussianMixture(5).fit(OnCard())


MANY = blobs(n=3000, C=150, D=5, spread=0.7).astype(np.float32)


@pytest.mark.parametrize("kind", ["diag", "spherical", "tied_spherical"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_truncated_fit_on_a_card_is_that_of_the_cpu(kind: str, weighted: bool) -> None:
    w = weights_for(len(MANY)) if weighted else None
    ours, theirs = (
        VariationalGaussianMixture(120, covariance_type=kind, random_state=0, reg_covar=0.0, device=device).fit(
            MANY, sample_weight=w
        )
        for device in (ON_TORCH, "cpu")
    )
    assert ours.lower_bound_ > theirs.lower_bound_ - 2e-2 and ours.search_ == "probing"
    assert np.diff(ours.lower_bounds_).min() > -1e-9
    assert isinstance(ours.neighbors_, np.ndarray) and ours.neighbors_.shape == (120, 5)
    on_cpu = VariationalGaussianMixture(120, covariance_type=kind, device="cpu")
    vars(on_cpu).update({name: value for name, value in vars(ours).items() if name.endswith("_")})
    assert (ours.predict(MANY, exact=False) == on_cpu.predict(MANY, exact=False)).mean() > 0.99
    np.testing.assert_allclose(ours.score_samples(MANY), on_cpu.score_samples(MANY), rtol=1e-9)
    bounds = ours.score_samples(MANY, exact=False)
    # a row that is about as close to two cells may look into the other one
    assert np.isclose(bounds, on_cpu.score_samples(MANY, exact=False), rtol=1e-2).mean() > 0.999
    assert (bounds <= ours.score_samples(MANY) + 1e-9).all()


def test_many_components_are_truncated_on_a_card_too() -> None:
    model = GaussianMixture(500, covariance_type="diag", tol=0.1, random_state=0, device=ON_TORCH).fit(MANY)
    assert model.algorithm_ == "variational" and model.labels_.shape == (len(MANY),)


@pytest.mark.parametrize("kind", ["full", "tied", "spherical"])
def test_a_fit_with_noise_on_a_card_is_that_of_the_cpu(kind: str) -> None:
    X = rows_of(3)
    X[::11] = np.random.default_rng(0).uniform(-20.0, 20.0, size=X[::11].shape)
    options: dict[str, Any] = {"covariance_type": kind, "noise": True, "random_state": 0, "means_init": X[1 : 1 + C]}
    here, there = (GaussianMixture(C, device=device, **options).fit(X) for device in ("cpu", ON_TORCH))
    np.testing.assert_allclose(there.means_, here.means_, rtol=1e-6, atol=1e-8)
    assert there.noise_weight_ == pytest.approx(here.noise_weight_, rel=1e-6)
    np.testing.assert_array_equal(there.labels_, here.labels_)
    np.testing.assert_allclose(there.predict_proba(X), here.predict_proba(X), atol=1e-7)
    searched = GaussianMixture(C, covariance_type=kind, noise=True, random_state=0, device=ON_TORCH).fit(X)
    assert 0.0 < searched.noise_weight_ < 0.5
