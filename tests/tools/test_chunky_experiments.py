"""The experiments of Verbeek et al. 2003 in small: they run, and their reports hold what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.verbeek2003 import figure1, figure2, fits, printed, speed
from globular import GaussianMixture


def test_figure_1(tmp_path: Path) -> None:
    config = figure1.Config(fits.Problem(N=600, d=4, k=5, c=2.0, n_test=1), depths=(0, 2, 4, 12), n_runs=2)
    found = figure1.report(config, tmp_path)
    assert found.shape == (2, 4) and found.min() >= -1e-6  # optimal is never worse
    assert found[:, -1].max() < 1e-6  # single rows: both rules are the posterior
    text = (tmp_path / "report.md").read_text()
    assert "| yes |" in text and "**Set-up.**" in text and (tmp_path / "figure1.png").is_file()


def test_figure_2(tmp_path: Path) -> None:
    config = figure2.Config(fits.Problem(N=2000, n_test=300), {"N": (2000, 40_000), "c": (2, 3)}, {"N": 2, "c": 1})
    figure2.report(replace(config, sweeps={"N": config.sweeps["N"]}), tmp_path)
    found = figure2.report(replace(config, sweeps={"c": config.sweeps["c"]}), tmp_path)  # in parts
    assert set(found) == {"N", "c"} and len(found["N"]) == 2
    assert all(figure2.shortfall(runs) < 1.0 for sweep in found.values() for runs in sweep.values())
    assert figure2.growth(found["N"], "operations").exponent > 0.5
    text = (tmp_path / "report.md").read_text()
    assert "separation" in text and "to the power of" in text and (tmp_path / "figure2.png").is_file()


def test_figure_2_as_printed(tmp_path: Path) -> None:
    config = figure2.Config(fits.Problem(N=1500, n_test=300), {"N": (1000, 8000), "c": (1, 3)})
    found = printed.report(config, tmp_path, n_runs=1)
    again = printed.report(config, tmp_path, n_runs=2)  # adds a run
    assert again["N"]["1000"][:1] == found["N"]["1000"] and len(again["c"]["3"]) == 2
    assert printed.slope(again["N"]) > 0.5  # cells do not become more with the rows
    text = (tmp_path / "report.md").read_text()
    assert "cells; no step on rows" in text and "Not run: sweeps over" not in text
    assert (tmp_path / "figure2-printed.png").is_file()


def test_the_printed_algorithm_opens_more_cells_at_a_finer_tolerance() -> None:
    rows = fits.draw(fits.Problem(N=40, k=2), 0).rows[:40]
    found = fits.kmeans_start(rows, 2, 0)
    start = GaussianMixture.from_parameters(found.weights, found.means, found.covariances)
    coarse, fine = (printed.chunky_as_printed(rows, start, tol) for tol in (1e-2, 0.0))
    assert coarse.n_cells < fine.n_cells and coarse.operations < fine.operations


def test_operations_of_a_cell_are_those_of_a_row_and_its_scatter() -> None:
    row, cell = (printed.operations(1, 3, cells=cells) for cells in (False, True))
    assert cell - row == 2 * (9 + 3) and printed.operations(1, 3, cells=False, m_step=False) == 9 + 9


def test_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "QUICK", (speed.Problem("tiny", speed.generated(5000, 4, 2.0), 4, 0.0),))
    monkeypatch.setattr(speed, "TREE_ROWS", 200_000)
    monkeypatch.setattr(speed, "MANY_ROWS", 2_000_000)
    found = speed.report([], tmp_path, quick=True)
    assert set(found) == {"tiny", "tree", "memory"} and found["tiny"]["loss"] < 1.01 * found["tiny"]["peer_loss"]
    assert "scikit-learn" in (tmp_path / "report.md").read_text()
