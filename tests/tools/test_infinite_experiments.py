"""The experiments of Kurihara et al. 2006 in small: they run, and their reports hold what was measured."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import digamma
from sklearn.feature_extraction.text import TfidfTransformer

from experiments.kurihara2006 import figure1, figure2, figure3, fits, one_by_one, peers, text
from globular.model.covariances import FAMILIES
from globular.model.observations import ObservedMoments
from globular.model.wishart import GaussianPrior, MatrixPosterior


@pytest.fixture(autouse=True)
def no_clock_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiles before a clock runs has a test of its own."""
    for module in (figure1, figure2, figure3, text, peers):
        monkeypatch.setattr(module, "warm_up", lambda: None)


def test_every_algorithm_is_compiled_before_the_clock_runs() -> None:
    fits.warm_up()


def test_figure_1(tmp_path: Path) -> None:
    figure1.keep_measuring(figure1.QUICK, tmp_path)
    found = figure1.write_report(figure1.QUICK, tmp_path)
    assert set(found["forced"]) == set(found["free"]) == {"300", "600", "when"}
    forced = found["forced"]["600"][0]
    assert 4 <= forced["VIM"]["n_components"] <= 6 and 4 <= forced[fits.CELLS]["n_components"] <= figure1.QUICK.T
    assert forced[fits.CELLS]["ending"].endswith("cells")
    assert figure1.ratios(found["free"]["600"], "Fast-VIM", "BJ") < 1.05
    written = (tmp_path / "report.md").read_text()
    assert "Beta(1, 1)" in written and "faster than BJ" in written and (tmp_path / "figure1.png").is_file()


def test_figure_2_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = figure2.report(figure2.QUICK, tmp_path)
    assert set(found["cells"]) == set(found["defaults"]) == {"N", "c", "when"} and len(found["cells"]["N"]) == 2
    assert all(figure2.ratio(runs) < 1.1 for way in found.values() for runs in way["N"].values())
    assert all(run[fits.CELLS]["ending"] != "rows" for runs in found["cells"]["c"].values() for run in runs)
    assert "| not run |" in (tmp_path / "report.md").read_text() and (tmp_path / "figure2.png").is_file()
    monkeypatch.setattr(figure2, "run", None)  # nothing is fitted again
    assert figure2.report(figure2.QUICK, tmp_path) == found


def test_rows_come_one_by_one() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(20, 2)), rng.normal(size=(20, 2)) + 6])
    prior = GaussianPrior(MatrixPosterior, 0.5, rows.mean(axis=0), 4.0, 3.0 * np.eye(2))
    order, T, alpha = rng.permutation(40), 4, 1.5
    found = one_by_one.responsibilities(rows, order, T, alpha, prior.beta, prior.m, prior.nu, prior.S)
    assert found.max(axis=0)[1] > 0.5  # the two groups have parted
    q = np.zeros((40, T))
    for n in order:  # the same from all rows before, anew for every row
        counts = q.sum(axis=0)
        means = q.T @ rows / np.maximum(counts, 1e-300)[:, None]
        scatter = np.array([(q[:, [t]] * (rows - mean)).T @ (rows - mean) for t, mean in enumerate(means)])
        beyond = counts.sum() - np.cumsum(counts)
        total = digamma(1 + counts + alpha + beyond)
        weights, left = digamma(1 + counts) - total, digamma(alpha + beyond) - total
        weights[-1] = 0.0
        weights += np.concatenate([[0.0], np.cumsum(left)[:-1]])
        seen = prior.update(ObservedMoments(counts, means, scatter, FAMILIES["full"].scatter)).expected_mixture(weights)
        apart = rows[n] - seen.means
        scores = seen.log_constants - 0.5 * (apart * np.linalg.solve(seen.covariances, apart[..., None])[..., 0]).sum(1)
        q[n] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    np.testing.assert_allclose(found, q, atol=1e-8)
    held = one_by_one.one_by_one(rows, T, alpha, prior, np.random.default_rng(1))
    assert held.counts.sum() == pytest.approx(40) and held.scatter.shape == (T, 2, 2)


def test_cycles_on_rows_go_on_from_cells() -> None:
    rows = fits.Problem(N=600, D=3, k=4).draw(0)
    model, fit = fits.run(rows, fits.algorithms(8, 1)[fits.CELLS] | fits.priors(rows), 0)
    assert fit.start_seconds < fit.seconds and fits.on_rows(model) < fit.free_energy


def test_free_energy_ratio_is_the_papers() -> None:
    assert fits.energy_ratio(1.759e7, 1.684e7) == pytest.approx(1.0445, abs=1e-4)
    assert fits.energy_ratio(-90.0, -100.0) == pytest.approx(1.1)  # worse is above one for negative F too


def test_projection_goes_back() -> None:
    X = np.random.default_rng(0).normal(size=(200, 6)) @ np.diag([5.0, 4, 3, 1e-3, 1e-3, 1e-3]) + 7
    data = figure3.Projection.of(X.astype(np.float32), 3)
    np.testing.assert_allclose(data.back(data.rows), X, atol=0.02)
    np.testing.assert_allclose(data.rows.mean(axis=0), 0, atol=1e-3)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("module", "config", "name"),
    [(figure3, figure3.Config(600, 6, 12), "mnist"), (text, text.Config(400, 6, 20), "newsgroups20")],
    ids=["mnist", "newsgroups20"],
)
def test_real_data_in_small(module: Any, config: Any, name: str, real_data: Callable[..., Any], tmp_path: Path) -> None:
    real_data(name, "labels" if name == "newsgroups20" else None)
    found = module.report(config, tmp_path)
    fits_of = found["LDA"]["fits"] if module is text else found
    assert fits_of["Fast-VIM"]["n_components"] > 1
    assert "free-energy ratio" in (tmp_path / "report.md").read_text()


def test_words_are_counted_again() -> None:
    counts = np.array([[1, 3, 0, 2], [0, 1, 1, 0], [4, 0, 1, 1]])
    weighted = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    np.testing.assert_array_equal(text.word_counts(sparse.csr_matrix(weighted), 3).toarray(), counts)


@pytest.mark.realdata
def test_peers_in_small(real_data: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_data("flowsom_ff")
    (rival,) = peers.QUICK
    monkeypatch.setattr(peers, "QUICK", (replace(rival, load=lambda: rival.load()[::5], max_iter=10),))
    found = peers.report([], tmp_path, quick=True)
    assert found["s1"]["true"] == 15 and found["flowsom_ff"]["components"] > 1
    assert "BayesianGaussianMixture" in (tmp_path / "report.md").read_text()


def test_a_peer_is_cut_off_between_iterations() -> None:
    rows = fits.Problem(N=300, D=3, k=4).draw(0)
    rival = peers.Rival("made", lambda: rows, n_components=5)
    peer = peers.fit_peer(rival, rows, 0.0)
    assert peer.n_done == 1 and not peer.finished and np.isfinite(peer.score(rows))
    peer = peers.fit_peer(rival, rows, 100.0)
    assert peer.finished and peer.n_done == peer.n_iter_ > 1
