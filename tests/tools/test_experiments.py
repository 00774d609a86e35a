"""The experiments in small: they run, their reports hold what was measured, their yardsticks are right."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from experiments import common
from experiments.forster2018 import figure2, figure3, figure_c1, fits, table2, table2_rows, traces
from globular import KMeans, datasets, seeding
from globular.errors import DataError


@pytest.fixture(scope="module")
def grid():
    """A small BIRCH grid and seeds."""
    X = datasets.birch_grid(6, 40, random_state=0).X
    return X, seeding.afk_mc2(X, 36, chain_length=50, random_state=0)


def test_lloyd_by_tree_is_lloyd(grid):
    X, seeds = grid
    model = KMeans(36, algorithm="lloyd", init=seeds, tol=0.0, max_iter=100, random_state=0).fit(X)
    found = common.lloyd_run(X, seeds, 100)
    assert found.n_iter == model.n_iter_
    np.testing.assert_allclose(found.centers, model.cluster_centers_, rtol=1e-5)
    assert found.error == pytest.approx(model.inertia_ / len(X), rel=1e-6)


def test_lloyd_with_many_columns_is_the_estimator():
    X = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
    found = common.lloyd_run(X, X[:10], 50)
    assert found.error == pytest.approx(KMeans(10, algorithm="lloyd", init=X[:10], tol=0.0).fit(X).inertia_ / 300)


@pytest.mark.parametrize("kind", ["k-means", "GMM"])
def test_variants_with_all_clusters_are_the_exact_algorithms(grid, kind):
    X, seeds = grid
    whole = fits.run(X, seeds, fits.Variant(kind, 36, max_iter=30), seed=0)
    assert whole.savings(len(X)) == 1.0
    if kind == "k-means":
        assert common.exact_error(X, whole.centers) == pytest.approx(common.lloyd_run(X, seeds, 30).error, rel=1e-6)


def test_savings_of_kmeans_are_exact(grid):
    X, seeds = grid
    variant = fits.Variant("k-means", 5, n_random=1, n_warmup=3, max_iter=4)
    assert fits.run(X, seeds, variant, seed=0).savings(len(X)) == pytest.approx(variant.least_savings(36), rel=0.01)


def test_savings_of_mixtures_are_at_least_the_least(grid):
    X, seeds = grid
    variant = fits.Variant("GMM", 3, n_random=1, n_warmup=3, max_iter=4)
    assert fits.run(X, seeds, variant, seed=0).savings(len(X)) >= variant.least_savings(36) == 3.6


@pytest.mark.parametrize("kind", ["k-means", "GMM"])
@pytest.mark.parametrize("how", ["S", "X"])
def test_traced_free_energy_rises_and_stays_below_the_likelihood(grid, kind, how):
    X, seeds = grid
    variant = fits.Variant(kind, 4, neighborhoods=how, max_iter=12)
    found = traces.trace(X, seeds, variant, 0, likelihood=True)
    energies = found.free_energies[np.isfinite(found.free_energies)]
    assert (np.diff(energies) >= -1e-9 * np.abs(energies[1:])).all()
    both = np.isfinite(found.log_likelihoods) & np.isfinite(found.free_energies)
    assert both.sum() >= 10
    assert (found.free_energies[both] <= found.log_likelihoods[both] + 1e-9).all()
    assert np.isfinite(found.errors).all() and found.errors[-1] < found.errors[0]


def test_table_keeps_what_was_measured_and_adds_to_it(tmp_path, capsys):
    problem = dataclasses.replace(
        table2_rows.QUICK.problems[0],
        n_clusters=36,
        load=table2_rows.birch(6, 30),
        entries=(
            table2_rows.Entry(fits.Variant("k-means", 3, 1, 5, max_iter=15), "9×", 1.5, common.Band(-50, 50)),
            table2_rows.Entry(fits.Variant("GMM", 2, 1, 5, max_iter=15), least_savings=1000.0),
        ),
        max_iter=15,
    )
    config = table2_rows.Config((problem,), n_runs=2, only=("k-means",))
    table2.report(config, tmp_path)
    first = common.read_results(tmp_path / "table2.json")
    text = (tmp_path / "report.md").read_text()
    assert "Not run: var-GMM-S G=2 + 1" in text and "+1.5 %" in text and "| yes |" in text
    table2.report(dataclasses.replace(config, only=("GMM",)), tmp_path)
    second = common.read_results(tmp_path / "table2.json")
    text = (tmp_path / "report.md").read_text()
    assert second["birch-256"]["baseline"] == first["birch-256"]["baseline"]
    assert set(second["birch-256"]["entries"]) == {"var-k-means-S G=3 + 1", "var-GMM-S G=2 + 1"}
    assert "Not run" not in text and "**no**" in text and text.count("## Table 2") == 1
    assert (tmp_path / "table2.png").read_bytes().startswith(b"\x89PNG")
    assert "birch-256" in capsys.readouterr().out and not list(tmp_path.rglob("*.part"))


def test_missing_data_is_said_and_not_fatal(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLOBULAR_DATA", str(tmp_path / "nowhere"))
    table2.report(table2_rows.Config((table2_rows.KDD,), n_runs=1), tmp_path)
    assert "GLOBULAR_DATA" in capsys.readouterr().out
    assert not (tmp_path / "report.md").exists()


def test_figure_2(tmp_path):
    found = figure2.report(figure2.Config(side=4, sizes=(2, 5, 16), n_iter=6, n_runs=2), tmp_path)
    assert len(found) == 12 and all(len(runs) == 2 for runs in found.values())
    assert (tmp_path / "figure2.png").is_file()
    assert "var-GMM-X" in (tmp_path / "report.md").read_text()


def test_figure_3(tmp_path, capsys):
    config = figure3.Config(sides=(4, 6), n_runs=2, max_iter=25, n_per_cluster=30)
    figure3.report(config, tmp_path, only_up_to=16)
    assert "Not run: C = 36" in (tmp_path / "report.md").read_text()
    figure3.report(config, tmp_path)
    results = common.read_results(tmp_path / "figure3.json")
    assert set(results) == {"16", "36"}
    assert "C = 36" in capsys.readouterr().out and (tmp_path / "figure3.png").is_file()


def test_iterations_to_pass_are_the_first_that_do(grid):
    X, seeds = grid
    variant = fits.Variant("k-means", 5, n_random=1, n_warmup=4, max_iter=20)
    errors = [common.exact_error(X, moment.centers) for moment in fits.moments(X, seeds, variant, 0)]
    assert figure3.passing(X, [seeds], variant, 1.0001 * min(errors)) <= 4 + 20
    assert figure3.passing(X, [seeds], variant, 2 * max(errors)) == 4 + 1
    assert figure3.passing(X, [seeds], variant, 0.5 * min(errors)) is None


def test_slope():
    assert figure3.slope([10, 100, 1000], [10, 100, 1000]) == pytest.approx(1.0)
    assert figure3.slope([10, 100, 1000], [7, None, 7]) == pytest.approx(0.0)
    assert math.isnan(figure3.slope([10, 100], [None, 5]))


def test_figure_c1(tmp_path):
    config = dataclasses.replace(figure_c1.BIRCH, sizes=(3, 25), n_iter=5, n_runs=2, every=2)
    found = figure_c1.report([config], tmp_path)["birch"]
    assert figure_c1.gap(found["var-GMM-S G=25"]) == pytest.approx(0.0, abs=1e-6)  # all clusters: the bound is tight
    assert figure_c1.gap(found["var-k-means-S G=3"]) > 0
    assert (tmp_path / "figure-c1-birch.png").is_file()


@pytest.mark.parametrize("module", [table2, figure2, figure3, figure_c1])
def test_commands_explain_themselves(module, capsys):
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0 and "--quick" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        module.main(["--runs", "0"])


def test_bands():
    assert common.Band(3, 9).holds(3.0) and not common.Band(3, 9).holds(9.1)
    assert common.Band(high=-2).text() == "at most -2 %" and common.Band(3, 9).text() == "+3 % … +9 %"
    assert common.Band(low=1).verdict(0.0) == "**no**"


def test_a_damaged_results_file_is_named(tmp_path):
    (tmp_path / "table2.json").write_text("{")
    with pytest.raises(DataError, match=r"table2\.json.*delete it"):
        common.read_results(tmp_path / "table2.json")


def test_sections_of_a_report_replace_themselves(tmp_path):
    path = tmp_path / "report.md"
    for section, body in (("a", "one"), ("b", "two"), ("a", r"three \1")):
        common.update_report(path, "Title", section, body)
    text = path.read_text()
    assert text.startswith("# Title\n") and "one" not in text
    assert text.index(r"three \1") < text.index("two")
