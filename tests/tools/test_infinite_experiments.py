"""The experiments of Kurihara et al. 2006 in small: they run, and their reports hold what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

from experiments.kurihara2006 import figure1, figure2, figure3, fits, peers, text
from globular.errors import DataError


def test_figure_1(tmp_path: Path) -> None:
    found = figure1.report(figure1.QUICK, tmp_path)
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


def test_free_energy_ratio_is_the_papers() -> None:
    assert fits.energy_ratio(1.759e7, 1.684e7) == pytest.approx(1.0445, abs=1e-4)
    assert fits.energy_ratio(-90.0, -100.0) == pytest.approx(1.1)  # worse is above one for negative F too


def test_projection_goes_back() -> None:
    X = np.random.default_rng(0).normal(size=(200, 6)) @ np.diag([5.0, 4, 3, 1e-3, 1e-3, 1e-3]) + 7
    data = figure3.Projection.of(X.astype(np.float32), 3)
    np.testing.assert_allclose(data.back(data.rows), X, atol=0.02)
    np.testing.assert_allclose(data.rows.mean(axis=0), 0, atol=1e-3)


@pytest.mark.realdata
@pytest.mark.parametrize(("module", "name"), [(figure3, "mnist"), (text, "newsgroups20")])
def test_real_data_in_small(module: Any, name: str, real_data: Callable[..., Any], tmp_path: Path) -> None:
    real_data(name, "labels" if name == "newsgroups20" else None)
    found = module.report(module.QUICK, tmp_path)
    fits_of = found["LDA"]["fits"] if module is text else found
    assert fits_of["Fast-VIM"]["n_components"] > 1
    assert "free-energy ratio" in (tmp_path / "report.md").read_text()


def test_words_are_counted_again() -> None:
    counts = np.array([[1, 3, 0, 2], [0, 1, 1, 0], [4, 0, 1, 1]])
    weighted = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    np.testing.assert_array_equal(text.word_counts(sparse.csr_matrix(weighted), 3).toarray(), counts)


@pytest.mark.realdata
def test_peers_in_small(real_data: Callable[..., Any], tmp_path: Path) -> None:
    real_data("flowsom_ff")
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


def test_missing_data_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLOBULAR_DATA", str(tmp_path))
    for load in (lambda: peers.measure_franti("s1"), lambda: text.load(text.QUICK, "LDA"), peers.mnist):
        with pytest.raises(DataError, match="GLOBULAR_DATA"):
            load()


@pytest.mark.parametrize("module", [figure1, figure2, figure3, text, peers])
def test_commands_explain_themselves(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0 and "--quick" in capsys.readouterr().out
