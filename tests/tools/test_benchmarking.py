"""The measuring itself is measured: exact errors, complete files, nothing fatal about an absent rival."""

import csv
import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import globular
from benchmarks import full, golden, readme
from globular.errors import DataError
from harness.adapters import ADAPTERS, title
from harness.data import Problem
from harness.fits import Rows, Task
from harness.machine import THREAD_VARIABLES, process_environment
from harness.plots import plot_curve
from harness.quantization import quantization_error
from harness.results import COLUMNS, Row, best_runs, excess_percent, markdown_table, read_rows, write_rows, yardstick
from harness.session import Session


@pytest.fixture
def tiny(monkeypatch):
    """A problem small enough for a test, known by name."""
    X = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    problem = Problem("tiny", 5, lambda: Rows(X))
    monkeypatch.setattr(full, "PROBLEMS", {problem.name: problem})
    return problem


def _example_row(**changes) -> Row:
    values = {
        field.name: {"str": "", "int": 0, "float": math.nan, "bool": False}[str(field.type)]
        for field in dataclasses.fields(Row)
    }
    return Row(**(values | {"problem": "p", "adapter": "a", "status": "ok", "n_samples": 1} | changes))


def test_quantization_error_of_thousands_of_centres():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 12)).astype(np.float32)
    centers = rng.normal(size=(5_000, 12))
    expected = np.square(X.astype(np.float64)[:, None] - centers[None]).sum(axis=2).min(axis=1).mean()
    assert quantization_error(X, centers) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("centers", [np.full((2, 3), np.nan), np.zeros((2, 4)), np.zeros(3)])
def test_unusable_centres_are_refused(centers):
    with pytest.raises(ValueError, match="centers"):
        quantization_error(np.zeros((5, 3), np.float32), centers)


def _run(folder, *options: str) -> list[Row]:
    full.main([*options, "--threads", "1", "--output", str(folder)])
    return read_rows(folder / "results.csv")


def test_a_small_run_writes_all_three_files(tiny, tmp_path):
    command = ["--problems", "tiny", "--adapters", "sklearn-lloyd", "--iterations", "4", "--repeats", "1"]
    (row,) = _run(tmp_path / "new", *command)
    with (tmp_path / "new" / "results.csv").open(newline="") as stream:
        assert tuple(csv.DictReader(stream).fieldnames) == COLUMNS
    assert row.status == "ok" and row.seconds > 0.0 and row.version and row.date and row.machine
    assert 0.0 < row.error < tiny.load().var(axis=0).sum()
    assert row.peak_mib > row.data_mib
    assert "sklearn-lloyd" in (tmp_path / "new" / "table.md").read_text()
    assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.rglob("*.part"))


def test_a_given_start_decides_the_result(tmp_path):
    X = np.random.default_rng(1).normal(size=(300, 4)).astype(np.float32)
    Rows(X).write(tmp_path)
    np.save(tmp_path / "start.npy", X[:6])
    adapter = ADAPTERS["sklearn-lloyd"]
    with Session(adapter, tmp_path, 1) as session:
        found = session.fit(6, 1, 2, 60.0, tmp_path / "start.npy")
    here = adapter.fit(Task(X, 6, 2, 1, 0, X[:6].copy()))  # another seed
    np.testing.assert_allclose(found.centers, here, rtol=1e-5, atol=1e-6)


def test_a_missing_rival_is_reported_and_the_rest_runs(tiny, tmp_path, monkeypatch):
    absent = dataclasses.replace(ADAPTERS["lance"], name="absent", module="no_such_library_here")
    monkeypatch.setattr(full, "ADAPTERS", {"absent": absent, "sklearn-minibatch": ADAPTERS["sklearn-minibatch"]})
    rows = _run(tmp_path, "--problems", "tiny", "--iterations", "2", "3", "--repeats", "1")
    assert [row.status for row in rows] == ["left out", "ok", "ok"]  # said once
    assert "absent: not installed; pip install no_such_library_here" in (tmp_path / "table.md").read_text()


def test_missing_data_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GLOBULAR_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="no data"):
        full.main(["--problems", "mnist-1000", "--output", str(tmp_path / "out")])
    assert "mnist/mnist.npz not found; set GLOBULAR_DATA" in capsys.readouterr().out


def test_a_crashing_and_a_slow_rival_are_left_with_a_message(tiny, tmp_path, monkeypatch):
    unknown = dataclasses.replace(ADAPTERS["sklearn-lloyd"], name="unknown to the process")
    monkeypatch.setattr(full, "ADAPTERS", {"unknown": unknown})
    (crashed,) = _run(tmp_path, "--quick", "--problems", "tiny", "--adapters", "unknown")
    assert crashed.status == "failed" and "unknown to the process" in crashed.message
    (slow,) = _run(tmp_path, "--quick", "--problems", "tiny", "--adapters", "unknown", "--timeout", "0.01")
    assert slow.status == "failed" and "not done within" in slow.message
    (late,) = _run(tmp_path, "--quick", "--problems", "tiny", "--adapters", "unknown", "--seconds", "-1")
    assert late.status == "left out" and "no time" in late.message


def test_every_thread_variable_is_set_before_the_process_starts():
    environment = process_environment(3, tune_openblas=False)
    assert {environment[name] for name in THREAD_VARIABLES} == {"3"}
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"} <= set(environment)


def test_openblas_core_of_the_user_is_kept(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "ZEN")
    assert process_environment(1, tune_openblas=True)["OPENBLAS_CORETYPE"] == "ZEN"


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match=r"other\.csv"):
        read_rows(path)
    with pytest.raises(DataError, match=r"absent\.csv"):
        read_rows(tmp_path / "absent.csv")


def test_table_keeps_the_fastest_repeat_and_measures_against_exact_runs():
    rows = [
        _example_row(adapter="exact", exact=True, seconds=9.0, error=4.0, n_iter=25),
        _example_row(adapter="exact", exact=True, seconds=8.0, error=4.0, n_iter=25, repeat=1),
        _example_row(adapter="mine", ours=True, seconds=2.0, error=4.02, n_iter=25),
        _example_row(adapter="lucky", seconds=1.0, error=3.0, n_iter=25),
        _example_row(adapter="gone", status="left out", message="not installed"),
    ]
    best = best_runs(rows)
    assert [row.seconds for row in best if row.adapter == "exact"] == [8.0]
    assert yardstick(best) == 4.0
    assert excess_percent(rows[2], 4.0) == pytest.approx(0.5)
    text = markdown_table(rows)
    assert text.index("lucky") < text.index("mine") < text.index("| exact")
    assert "+0.50 %" in text and "- gone: not installed" in text
    assert "fastest peer lucky" in text and "0.50×" in text


@pytest.mark.parametrize("name", ["sklearn-lloyd", "sklearn-elkan", "sklearn-minibatch"])
def test_adapters_keep_the_contract(name):
    X = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    centers = ADAPTERS[name].fit(Task(X, 4, 2, 1, 0))
    assert centers.shape == (4, 3) and np.isfinite(centers).all()
    from_here, from_there = (ADAPTERS[name].fit(Task(X, 4, 1, 1, 0, start.copy())) for start in (X[:4], X[4:8]))
    assert not np.allclose(from_here, from_there)


def test_readme_shows_the_kept_results():
    """Table and picture are made of the newest file in benchmarks/results: `python benchmarks/readme.py` does it."""
    text = readme.README.read_text(encoding="utf-8")
    assert text.partition(readme.BEGIN)[2].partition(readme.END)[0] == readme.block(readme.newest())
    assert readme.source(readme.newest()).encode() in readme.PICTURE.read_bytes()


def test_readme_table_counts_the_later_run_and_says_who_is_as_good(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "KEPT", tmp_path)
    old, new = {"date": "2026-01-01T00:00:00Z"}, {"date": "2026-01-02T00:00:00Z"}
    common = {"problem": "mnist-1000", "n_iter": 25}
    write_rows(
        tmp_path / "old.csv",
        [
            _example_row(adapter="faiss-afkmc2", exact=True, seconds=8.0, error=4.0, **old, **common),
            _example_row(adapter="globular-balanced", ours=True, seconds=1.0, error=3.0, **old, **common),
            _example_row(adapter="lance", seconds=0.5, error=4.4, **old, **common),
        ],
    )
    again = _example_row(adapter="globular-balanced", ours=True, seconds=2.0, error=3.9, **new, **common)
    write_rows(tmp_path / "new.csv", [again])
    kept = readme.keep([tmp_path / "new.csv", tmp_path / "old.csv"])
    assert kept.name == "2026-01-02.csv" and kept == readme.newest()
    text = " ".join(readme.block(kept).split())
    assert "| **globular (default)** | 2.0 (−2.5 %) |" in text and "| lance (subsamples) | 0.5 (+10.0 %) |" in text
    assert "fastest globular* | *4.0* |" in text and "÷ default* | *nobody does* |" in text
    assert "2026-01-01 to 2026-01-02" in text and "faiss, AFK-MC² seeds, 25 iterations" in text


def test_results_of_two_machines_are_not_mixed(tmp_path, monkeypatch):
    monkeypatch.setattr(readme, "KEPT", tmp_path)
    write_rows(tmp_path / "a.csv", [_example_row(machine="a"), _example_row(machine="b")])
    with pytest.raises(SystemExit, match="several machines"):
        readme.keep([tmp_path / "a.csv"])
    assert not list(tmp_path.glob("20*.csv"))


def test_every_adapter_has_a_title_and_a_place_in_the_picture(tmp_path):
    rows = [
        _example_row(adapter=name, ours=adapter.ours, exact=adapter.exact, seconds=1.0 + index, error=2.0)
        for index, (name, adapter) in enumerate(ADAPTERS.items())
    ]
    assert all(title(name) != name for name in ADAPTERS) and title("of old") == "of old"
    plot_curve(rows, tmp_path / "curve.png", source="here")
    assert b"here" in (tmp_path / "curve.png").read_bytes()


def test_golden_bits_of_a_checkout_equal_themselves():
    src = str(Path(globular.__file__).parents[1])
    command = [sys.executable, golden.__file__, src, src, "--only", "KMeans(n_clusters=8) fit 1500×10 csr seed 0"]
    run_twice = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run_twice.returncode == 0, run_twice.stderr
    assert "no difference\n3 cases compared, 0 differ" in run_twice.stdout  # of all three estimators of that name


def test_golden_bits_tell_what_differs_and_by_how_much():
    before = {"a": {"same": np.arange(3.0), "x": np.array([1.0, 2.0]), "gone": np.array(1)}, "b": {"y": np.array(0.0)}}
    before["d"] = {"z": np.array(0)}
    after = {"a": {"same": np.arange(3.0), "x": np.array([1.0, 2.0 + 2**-50])}, "b": {"y": np.array(-0.0)}, "c": {}}
    after["d"] = {"error": np.array("ValueError: no")}
    assert golden.compare(before, after) == [
        "a: gone: only before",
        "a: x: 1 of 2 differ, by up to 4.4e-16 of the value",
        "b: y: the same values in other bits",
        "d: fails after: ValueError: no",
    ]


def test_golden_bits_skip_the_clock_of_a_history():
    blobs = np.random.default_rng(0).normal(size=(60, 2))
    names = dict(golden.fitted_attributes(globular.KMeans(3, random_state=0, n_threads=1).fit(blobs)))
    assert {"cluster_centers_", "labels_", "inertia_", "history_.objective"} <= names.keys()
    assert not any("seconds" in name for name in names)
