"""The experiments in small: they run, their reports hold what was measured, their yardsticks are right."""

import dataclasses
import importlib
import math
import types

import numpy as np
import pytest

from experiments import cells, common, overview, readers, verdicts
from experiments.kurihara2006 import peers, text
from experiments.verbeek2003 import speed as verbeek_speed
from globular import KMeans, datasets, seeding
from globular.errors import DataError

from experiments.forster2018 import (  # isort: skip
    figure2, figure3, figure_c1, fits, open_choices, program, table2, table2_rows, traces,
)  # fmt: skip


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


@pytest.mark.parametrize("kind", ["k-means", "GMM"])
def test_variants_with_all_clusters_are_the_exact_algorithms(grid, kind):
    X, seeds = grid
    whole = fits.run(X, seeds, fits.Variant(kind, 36, max_iter=30), seed=0)
    assert whole.savings(len(X)) == 1.0
    if kind == "k-means":
        assert common.exact_error(X, whole.centers) == pytest.approx(common.lloyd_run(X, seeds, 30).error, rel=1e-6)


def test_authors_program_with_all_clusters_is_lloyd(grid):
    X, seeds = grid
    centers, n_iter = program.run_program(X, seeds, fits.Variant("k-means", 36, max_iter=100), seed=0)
    assert common.exact_error(X, centers) == pytest.approx(common.lloyd_run(X, seeds, 100).error, rel=1e-6)
    assert n_iter < 100


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
    found = traces.trace(X, seeds, variant, 0)
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
            table2_rows.Entry(fits.Variant("k-means", 3, 1, 5), "9×", 1.5),
            table2_rows.Entry(fits.Variant("GMM", 2, 1, 5), "400× / 1000×", 1000.0),
        ),
        max_iter=15,
    )
    config = table2_rows.Config((problem,), n_runs=2, only=("k-means",))
    table2.keep_measuring(config, tmp_path)
    table2.write_report(config, tmp_path)
    first = common.read_results(tmp_path / "table2.json")
    text = (tmp_path / "report.md").read_text()
    assert "Not run: var-GMM-S G=2 + 1" in text and "+1.5 %" in text and "| yes |" in text and "| not run |" in text
    assert all(run["n_iter"] <= 15 for run in first["birch-256"]["entries"]["var-k-means-S G=3 + 1"]["runs"].values())
    table2.keep_measuring(dataclasses.replace(config, only=("GMM",)), tmp_path)
    table2.write_report(config, tmp_path)
    second = common.read_results(tmp_path / "table2.json")
    text = (tmp_path / "report.md").read_text()
    assert second["birch-256"]["baseline"] == first["birch-256"]["baseline"]
    assert set(second["birch-256"]["entries"]) == {"var-k-means-S G=3 + 1", "var-GMM-S G=2 + 1"}
    assert "Not run" not in text and "| not run |" not in text
    assert "**no**" in text and text.count("## Table 2") == 1 and "**Set-up.**" in text
    assert (tmp_path / "table2.png").read_bytes().startswith(b"\x89PNG")
    assert "birch-256" in capsys.readouterr().out and not list(tmp_path.rglob("*.part"))


def test_cells_in_processes_are_those_of_one(tmp_path):
    problem = dataclasses.replace(
        table2_rows.QUICK.problems[0], n_clusters=16, load=table2_rows.birch(4, 20), max_iter=5
    )
    config = table2_rows.Config((problem,), n_runs=1)
    for n_jobs in (1, 2):
        table2.keep_measuring(config, tmp_path / str(n_jobs), n_jobs=n_jobs)
    one, two = (common.read_results(tmp_path / n / "table2.json")["birch-256"] for n in "12")
    assert one["baseline"] == two["baseline"] and set(one["entries"]) == set(two["entries"])
    for name, entry in one["entries"].items():
        assert entry["runs"]["0"]["error"] == two["entries"][name]["runs"]["0"]["error"]


def test_what_was_kept_in_two_places_is_joined():
    here, there = {"a": {"0": 1, "when": ["x"]}}, {"a": {"0": 2, "1": 3, "when": ["x", "y"]}, "b": {}}
    assert cells.merged(here, there) == {"a": {"0": 1, "1": 3, "when": ["x", "y"]}, "b": {}}


def test_a_run_without_its_baseline_is_not_compared():
    kept = {"baseline": {"1": {"error": 2.0}}, "entries": {"a": {"runs": {"0": {"error": 9.0}, "1": {"error": 3.0}}}}}
    assert table2.compared(kept, "a") == [(3.0, 2.0)] and table2.relative_error(kept, "a") == pytest.approx(50.0)
    assert table2.compared(kept, "b") == table2.compared(None, "a") == []


def test_runs_that_end_early_wait_for_those_before(grid):
    X, seeds = grid
    each = [traces.trace(X, seeds, fits.Variant("k-means", 4, max_iter=4), seed) for seed in range(3)]
    runs = traces.Runs()
    runs.put(2, each[2], "there")
    again = traces.Runs(runs.as_dict())
    assert len(again) == 0 and again.has(2) and not again.has(0)
    again.put(0, each[0], "here")
    again.put(1, each[1], "here")
    np.testing.assert_allclose(again.finals, [one.errors[-1] for one in each], rtol=1e-12)
    assert "waiting" not in again.as_dict() and again.when == ["here", "there"]


def test_figures_2_and_c1_are_of_the_same_runs(tmp_path):
    config = dataclasses.replace(figure_c1.BIRCH, sizes=(2, 3, 5, 25), n_iter=5, n_runs=2, every=2)
    found = figure_c1.report([config], tmp_path)["birch"]
    assert found["GMM G=25"].gap == pytest.approx(0.0, abs=1e-6)  # all clusters: the bound is tight
    assert found["var-k-means-S G=3"].gap > 0
    assert len(found) == 2 + 4 * 3 and all(len(runs) == 2 for runs in found.values())
    again = figure2.report(config, tmp_path, report_only=True)
    assert {name: list(runs.finals) for name, runs in again.items()} == {n: list(r.finals) for n, r in found.items()}
    more = figure_c1.measure(dataclasses.replace(config, n_runs=3), tmp_path)
    assert all(len(runs) == 3 and list(runs.finals[:2]) == list(found[name].finals) for name, runs in more.items())
    text = (tmp_path / "report.md").read_text()
    assert "var-GMM-X" in text and text.count("**Set-up.**") == 2
    assert (tmp_path / "figure2.png").is_file() and (tmp_path / "figure-c1-birch.png").is_file()


def test_added_up_runs_have_the_mean_and_its_error(grid):
    X, seeds = grid
    each = [traces.trace(X, seeds, fits.Variant("k-means", 4, max_iter=5), seed) for seed in range(3)]
    runs = traces.Runs()
    for one in each:
        runs.add(one, "here")
    errors = np.array([one.errors for one in each])
    np.testing.assert_allclose(runs.mean("errors"), errors.mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(runs.error_of_mean("errors"), errors.std(axis=0) / math.sqrt(2), rtol=1e-4, atol=1e-5)
    assert runs.first_within(float(errors.mean(axis=0)[-1]) * 1.0001) <= 5 and runs.first_within(0.0) is None


def test_figure_3(tmp_path, capsys):
    config = figure3.Config(sides=(4, 6), n_runs=2, max_iter=25, n_per_cluster=30)
    figure3.keep_measuring(config, tmp_path, only_up_to=16)
    figure3.write_report(config, tmp_path)
    assert "Not run: C = 36" in (tmp_path / "report.md").read_text()
    figure3.keep_measuring(config, tmp_path)
    figure3.write_report(config, tmp_path)
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


COMMANDS = {
    "forster2018": "figure2 figure3 figure_c1 table2",
    "kurihara2006": "figure1 figure2 figure3 peers text",
    "newling2016": "figure2 figure3 figure6 table1",
    "verbeek2003": "figure1 figure2 printed speed",
}


@pytest.mark.parametrize("name", [f"{paper}.{name}" for paper, names in COMMANDS.items() for name in names.split()])
def test_commands_explain_themselves(name, capsys):
    module = importlib.import_module(f"experiments.{name}")
    with pytest.raises(SystemExit) as stopped:
        module.main(["--help"])
    assert stopped.value.code == 0 and "--quick" in capsys.readouterr().out


@pytest.mark.parametrize(
    "load",
    [
        verbeek_speed.geonames, verbeek_speed.hipparcos, lambda: peers.measure_franti("s1"),
        lambda: text.load(text.QUICK, "LDA"), peers.mnist,
    ],
)  # fmt: skip
def test_missing_data_is_named(load, monkeypatch, tmp_path):
    monkeypatch.setenv("GLOBULAR_DATA", str(tmp_path))
    with pytest.raises(DataError, match="GLOBULAR_DATA"):
        load()


def test_claims_say_what_was_not_run():
    asked = [
        verdicts.near("a", -4.3, -3.0), verdicts.near("b", -4.3, 0.0), verdicts.near("c", 1.0, None),
        verdicts.said("d", "3 of 4", None),
    ]  # fmt: skip
    assert [one.verdict for one in asked] == ["yes", "**no**", "not run", "–"]
    assert verdicts.tally(asked) == "Of 4 claims 1 inside, 1 outside, 1 not run, 1 without a verdict."
    assert "| −4.3 % | −3.0 % | −6.3 % … −2.3 % | yes |" in verdicts.claims_table(asked)


def test_one_command_makes_the_whole_report(tmp_path):
    made = []
    experiments = [types.SimpleNamespace(__name__="a.b", main=lambda given: made.append(given) or 0)] * 2
    assert verdicts.whole_report("All", tmp_path, experiments, ["--quick", "--runs", "2"]) == 0
    assert made == [["-o", str(tmp_path), "--quick", "--runs", "2"]] * 2


def test_bands():
    assert common.Band(3, 9).holds(3.0) and not common.Band(3, 9).holds(9.1)
    assert common.Band(high=-2).text() == "at most -2 %" and common.Band(3, 9).text() == "+3 % … +9 %"
    assert common.Band(low=1).verdict(0.0) == "**no**"


def test_a_damaged_results_file_is_named(tmp_path):
    (tmp_path / "table2.json").write_text("{")
    with pytest.raises(DataError, match=r"table2\.json.*delete it"):
        common.read_results(tmp_path / "table2.json")


def test_readers_pick_what_was_measured(tmp_path, capsys):
    report = tmp_path / "paper" / "report" / "report.md"
    report.parent.mkdir(parents=True)
    table = common.markdown_table(
        ("N", "paper", "ours", "runs"), [["10", "2.0", "1.9 ×", "5"], ["20", "–", "never", "5"]]
    )
    setup = "*Command:* `python -m experiments.paper.figure1` (and more)."
    report.write_text(
        f"<!-- figure 1 -->\n{setup}\n\n{table}<!-- end of figure 1 -->\n<!-- b -->\n{table}<!-- end of b -->\n"
    )
    (found,) = readers.numbers(report)
    assert (found.report, found.section, found.row, found.column, found.value) == (
        "paper", "figure 1", "10", "ours", "1.9 ×",
    )  # fmt: skip
    readers.main(["--seed", "2", "-n", "3"])
    first = capsys.readouterr().out
    readers.main(["--seed", "2", "-n", "3"])
    assert capsys.readouterr().out == first and first.count("python -m experiments.") == 3


def test_the_overview_says_what_the_reports_say():
    page = (overview.HERE / "README.md").read_text(encoding="utf-8")
    assert page == overview.page() and len(overview.ITEMS) == 14


def test_open_choices_are_tried_and_told(tmp_path, capsys):
    assert open_choices.main(["--quick", "-o", str(tmp_path), "--only", "chains", "--runs", "1"]) == 0
    kept = common.read_results(tmp_path / "open-choices-quick.json")
    assert set(kept["chains"]) == {"1", "20"} and set(kept["chains"]["1"]) == {"0"}
    text = (tmp_path / "report.md").read_text()
    assert "not run" in text and "The paper: +101.8 %" in text and "chains 20 0" in capsys.readouterr().out
    runs = {str(n): {"error": 1.0 + (n >= 5), "lloyd": 1.5} for n in range(10)}
    assert open_choices.groups_of_five({"1": runs}).startswith("Of 2 groups of five runs 1 end")
    warm = open_choices.Question("w", "", "warm-up", (3,), open_choices._TINY, fits.Variant("GMM", 2), 1, None)
    assert warm.at(3) == (fits.Variant("GMM", 2, n_warmup=3), fits.CHAIN_LENGTH)
