"""The experiments on nested mini-batches in small: they run, keep their numbers, and their yardsticks are right."""

from pathlib import Path

import numpy as np
import pytest

from experiments.common import read_results
from experiments.newling2016 import figure2, figure3, figure6, table1
from experiments.newling2016.curves import Curve, Setup, from_json, mean_curve, mean_first_within, to_json, trace
from experiments.newling2016.problems import PROBLEMS
from globular.errors import DataError


def test_a_curve_says_when_it_stays_below() -> None:
    curve = Curve([0.0, 1.0, 2.0, 3.0], [9.0, 5.0, 7.0, 5.0], 10, 3, 100, "")
    assert mean_first_within([curve], 9.0) == 0.0
    assert mean_first_within([curve], 7.0) == 1.0
    assert mean_first_within([curve], 6.0) == 3.0  # it rose again in between
    assert mean_first_within([curve], 4.0) == np.inf
    assert mean_first_within([curve, Curve([0.0, 2.5], [9.0, 1.0], 0, 0, 0, "")], 4.0) == 2.5
    np.testing.assert_array_equal(curve.at(np.array([0.5, 2.0, 99.0])), [9.0, 7.0, 5.0])
    mean, deviation = mean_curve([curve, Curve([0.0], [11.0], 0, 0, 0, "")], np.array([1.5]))
    assert (mean[0], deviation[0]) == (8.0, 3.0)
    assert from_json(to_json({"a": [curve]})) == {"a": [curve]}


def test_seconds_are_compared_with_the_best_of_all_runs() -> None:
    slow, fast = Curve([0.0, 4.0], [100.0, 50.0], 0, 0, 0, ""), Curve([0.0, 2.0], [100.0, 50.5], 0, 0, 0, "")
    assert figure2.seconds_to({"slow": [slow], "fast": [fast]}, 2.0) == {"slow": 4.0, "fast": 2.0}
    assert figure2.seconds_to({"slow": [slow], "fast": [fast]}, 0.5) == {"slow": 4.0, "fast": np.inf}


def test_by_start_a_run_is_compared_with_what_began_at_the_same_rows() -> None:
    def run(at: float, energy: float) -> Curve:
        return Curve([0.0, at], [1000.0, energy], 0, 0, 0, "")

    curves = {"mbatch": [run(4.0, 50.0), run(9.0, 101.0)], "nmbatch": [run(2.0, 50.5), run(3.0, 100.0)]}
    found = figure2.seconds_by_start(curves, 2.0)
    assert {name: list(seconds) for name, seconds in found.items()} == {"mbatch": [4.0, 9.0], "nmbatch": [2.0, 3.0]}
    assert list(figure2.seconds_by_start(curves, 0.5)["nmbatch"]) == [np.inf, 3.0]
    assert figure2.seconds_to(curves, 2.0) == {"mbatch": np.inf, "nmbatch": np.inf}  # two local minima
    curves |= {"lloyd": curves["mbatch"], "yinyang": curves["mbatch"]}
    assert figure2.earlier(curves, "nmbatch", "mbatch", 2.0, by_start=True)[0] == 6.5 / 2.5
    claim, *_ = figure2.claims("blobs", "nmbatch", curves, by_start=True)
    assert claim.ours == "2.6×" and claim.verdict == "**no**" and "2.5 s against 6.5 s" in claim.remark
    assert figure2.claims("blobs", "nmbatch", curves, by_start=False)[0].ours == "not there by the end"


@pytest.mark.parametrize(
    "algorithm", ["lloyd", "yinyang", "mbatch", "mbatch.remove", "nmbatch", "nmbatch.deact", "nmbatch.mean"]
)
def test_every_algorithm_lowers_the_validation_energy(algorithm: str) -> None:
    split = PROBLEMS["blobs"].load(3000)
    curve = trace(split, Setup(k=20, b0=300, seconds=0.1, threads=1), algorithm, 0)
    assert curve.energies[-1] < 0.8 * curve.energies[0]
    assert curve.seconds == sorted(curve.seconds) and curve.n_distances > 0
    if algorithm in ("lloyd", "yinyang"):
        assert curve.batch_size == 3000


@pytest.mark.parametrize("experiment", [figure2, figure3, figure6, table1])
def test_reports(experiment, tmp_path: Path) -> None:
    name = experiment.__name__.rpartition(".")[2]
    seconds = [] if experiment is table1 else ["--seconds", "0.03"]
    assert experiment.main(["--quick", "--runs", "1", "--rows", "1000", *seconds, "-o", str(tmp_path)]) == 0
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert f"<!-- {name}-quick -->" in report and "nan" not in report.lower().replace("nan×", "")
    assert list(read_results(tmp_path / f"{name}-quick.json")) == ["blobs"]
    assert (tmp_path / f"{name}-quick.png").is_file() == (experiment is not table1)
    assert "**Set-up.**" in report
    assert (tmp_path / "figure4-quick.png").is_file() == (experiment is figure3)


def test_missing_data_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOBULAR_DATA", str(tmp_path))
    for name in ("infmnist", "kddbio", "newsgroups"):
        with pytest.raises(DataError, match="GLOBULAR_DATA"):
            PROBLEMS[name].load(100)


def test_patches_need_no_data_folder() -> None:
    split = PROBLEMS["patches"].load(2000)
    assert split.train.shape == (2000, 192) and split.valid.shape == (41, 192)
    assert not {row.tobytes() for row in split.train} & {row.tobytes() for row in split.valid}
