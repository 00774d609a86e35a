"""Factor analysers on a card: fits and answers are those of the CPU, wherever M-steps are made."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')

from globular import LowRankGaussianMixture  # noqa: E402
from globular.passes.torch import low_rank  # noqa: E402
from makers import weights_for  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "torch-cpu"


def analysed(C: int = 30, D: int = 12, q: int = 2, n: int = 3000) -> np.ndarray:
    """Rows of factor analysers far from each other."""
    rng = np.random.default_rng(0)
    loadings, means, z = rng.normal(size=(C, q, D)), 5 * rng.normal(size=(C, D)), rng.integers(C, size=n)
    along = np.einsum("nq,nqd->nd", rng.normal(size=(n, q)), loadings[z])
    return (means[z] + along + 0.3 * rng.normal(size=(n, D))).astype(np.float32)


ROWS = analysed()


def fitted(device: Any, **changes: Any) -> LowRankGaussianMixture:
    given = {"random_state": 0, "max_iter": 15, "tol": 0.0, "init": ROWS[:: len(ROWS) // 30][:30], **changes}
    with pytest.warns(UserWarning, match="did not converge"):
        return LowRankGaussianMixture(30, 2, device=device, **given).fit(ROWS, sample_weight=weights_for(len(ROWS)))


@pytest.mark.parametrize("on_card", [True, False])
@pytest.mark.parametrize(
    "changes", [{}, {"correlated_noise": True}, {"noise": "tied_spherical"}, {"noise": "spherical"}]
)
def test_exact_em_is_that_of_the_cpu(changes: Any, on_card: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank, "LEFT_ON_CARD", 0 if on_card else 1 << 40)
    given = {"correlated_noise": False, "n_candidates": 30, **changes}
    ours, theirs = fitted(DEVICE, **given), fitted("cpu", **given)
    np.testing.assert_allclose(ours.lower_bounds_, theirs.lower_bounds_, rtol=1e-5)
    np.testing.assert_allclose(ours.loadings_, theirs.loadings_, atol=1e-2)
    assert np.mean(ours.labels_ == theirs.labels_) > 0.999
    assert isinstance(ours.means_, np.ndarray)


@pytest.mark.parametrize("correlated", [True, False])
def test_truncated_em_rises_to_where_the_cpu_ends(correlated: bool) -> None:
    """Nominations on a card are by other products, and may differ; the bound never falls."""
    ours, theirs = (fitted(device, correlated_noise=correlated, reg_covar=0.0) for device in (DEVICE, "cpu"))
    bounds = np.array(ours.lower_bounds_)
    assert correlated or (np.diff(bounds) >= -1e-9 * np.abs(bounds[1:])).all()
    assert ours.score(ROWS) > theirs.score(ROWS) - 0.05


@pytest.mark.parametrize("correlated", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_answers_are_those_of_the_cpu(exact: bool, correlated: bool) -> None:
    model = fitted("cpu", correlated_noise=correlated)
    asked = {
        "predict": {}, "score_samples": {}, "transform": {}, "reconstruct": {},
    }  # fmt: skip
    on_cpu = {name: getattr(model, name)(ROWS, exact=exact, **how) for name, how in asked.items()}
    on_cpu["predict_proba"], on_cpu["score"] = model.predict_proba(ROWS), model.score(ROWS)
    model.set_params(device=DEVICE)
    for name, how in asked.items():
        np.testing.assert_allclose(getattr(model, name)(ROWS, exact=exact, **how), on_cpu[name], atol=1e-4)
    np.testing.assert_allclose(model.predict_proba(ROWS), on_cpu["predict_proba"], atol=1e-5)
    assert model.score(ROWS) == pytest.approx(on_cpu["score"], rel=1e-6)


def test_two_parts_are_one() -> None:
    given = {"correlated_noise": False, "n_candidates": 30}
    one, two = (fitted(device, **given) for device in (DEVICE, [DEVICE, DEVICE]))
    np.testing.assert_allclose(one.lower_bounds_, two.lower_bounds_, rtol=1e-9)
    np.testing.assert_array_equal(one.predict(ROWS), two.predict(ROWS))


def test_a_tensor_has_its_answers_beside_it() -> None:
    rows = torch.as_tensor(ROWS, device="cuda" if torch.cuda.is_available() else "cpu")
    model = fitted("cpu", correlated_noise=False)
    model.set_params(device=DEVICE)
    assert model.predict(ROWS).dtype == np.int64
    if rows.is_cuda:
        assert model.predict(rows).is_cuda
