"""What more cores give: the problems run, the files and remarks are right."""

import dataclasses
import json
import os
import subprocess

import pytest

from benchmarks import threads
from benchmarks.threads import ThreadRun, remarks
from harness import threaded
from harness.threaded import PROBLEMS, Setting, time_problem

TINY = Setting("globular", 1, 1e-9, 1)


@pytest.fixture
def few_iterations(monkeypatch):
    """As few as make a difference."""
    monkeypatch.setattr(threaded, "FEW", 1)
    monkeypatch.setattr(threaded, "MANY", 2)


def _run(program: str, n: int, seconds: float | None, error: float | None = None, problem: str = "predict C=1000"):
    return ThreadRun(problem, program, n, 1.0, "", seconds, error)


def test_all_that_is_asked_for_is_there():
    names = set(PROBLEMS)
    assert len([name for name in names if name.startswith("Lloyd")]) == 18
    assert {"KMeans 32 columns C=10000", "KMeans 2 columns C=3000", "KMeans 192 columns C=8000"} <= names
    assert {"VariationalKMeans C=10000", "GaussianMixture 50 full", "predict C=1000", "predict C=10000"} <= names
    assert {"NestedMiniBatchKMeans", "ChunkyGaussianMixture", "InfiniteGaussianMixture"} <= names


@pytest.mark.parametrize(
    "name",
    [
        "VariationalKMeans C=10000", "NestedMiniBatchKMeans", "ChunkyGaussianMixture", "InfiniteGaussianMixture",
        "predict C=1000", "the machine, products", "the machine, memory", "the machine, gathering",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_problems_of_our_estimators_run(name, few_iterations):
    assert PROBLEMS[name].run(TINY).seconds != 0.0


@pytest.mark.parametrize("program", ["globular", "sklearn"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_both_mixtures_run(program, few_iterations):
    timed = PROBLEMS["GaussianMixture 50 full"].run(Setting(program, 1, 1e-9, 1))
    assert timed.seconds != 0.0 and timed.error is None


def test_a_fit_is_judged():
    for name in ("KMeans 2 columns C=3000", "KMeans 192 columns C=8000"):
        timed = time_problem(PROBLEMS[name], Setting("globular-fast", 1, 1e-9, 1))
        assert timed.seconds > 0.0 and timed.error is not None and timed.error > 0.0


def test_seconds_of_an_iteration_are_a_difference(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(threaded.time, "perf_counter", lambda: clock[0])

    def fit(n_iter: int) -> None:
        clock[0] += 7.0 + 0.5 * n_iter

    assert Setting("any", 1, 1.0, 2).per_iteration(fit) == pytest.approx(0.5)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_small_measurement_is_not_repeated(tmp_path, monkeypatch, capsys):
    output, picture = tmp_path / "new" / "threads.json", tmp_path / "threads.png"
    command = ["--only", "predict C=10000", "--programs", "sklearn", "--scale", "1e-9", "--rounds", "1"]
    command += ["--threads", "1", str(10**6), "--output", str(output), "--picture", str(picture)]
    threads.main(command)
    (run,) = json.loads(output.read_text())["runs"]
    assert run["threads"] == 1 and run["seconds"] is not None and run["message"] == ""
    assert "sklearn" in capsys.readouterr().out and not picture.exists()  # there is no speed-up of one number
    monkeypatch.setattr(threads, "run_one", lambda *_: pytest.fail("run again"))
    threads.main(command)


def test_a_short_measurement_has_what_matters_first_and_ends_in_time(tmp_path, monkeypatch, capsys):
    asked = threads.most_important([1, 2, 4, 8, 16], 1.0, "", list(PROBLEMS.values()))
    first = list(dict.fromkeys(run.problem.split()[0] for run in asked))
    assert first[:2] == ["the", "KMeans"] and first[-1] == "Lloyd"
    assert {run.threads for run in asked if run.program == "globular-balanced"} == {1, 8, 16}
    assert {run.threads for run in asked if run.program == "faiss-kmeans"} == {16}
    began = []

    def take_a_minute(run, rounds, timeout):
        if run.scale == 1.0:
            began.append(run)
            clock[0] += 60.0
        return dataclasses.replace(run, seconds=1.0)

    clock = [0.0]
    monkeypatch.setattr(threads, "run_one", take_a_minute)
    monkeypatch.setattr(threads.time, "monotonic", lambda: clock[0])
    command = ["--minutes", "2", "--output", str(tmp_path / "threads.json"), "--picture", str(tmp_path / "threads.png")]
    threads.main(command)
    assert len(began) == 2 and "no time was left" in capsys.readouterr().out
    assert (tmp_path / "threads.png").exists() == (len({run.threads for run in began}) == 2)
    threads.main(["--minutes", "0", *command[2:]])
    assert len(began) == 2 and began[1].problem in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_what_goes_wrong_is_a_message(monkeypatch):
    run = ThreadRun("no such problem", "globular", 1, 1.0, "")
    assert "no such problem" in threads.run_one(run, 1, 60.0).message
    assert "not done within" in threads.run_one(run, 1, 0.01).message
    none = subprocess.CompletedProcess([], 0, '{"seconds": -0.1, "error": null}\n', "")
    monkeypatch.setattr(threads.subprocess, "run", lambda *_, **__: none)
    assert "too short" in threads.run_one(run, 1, 60.0).message
    assert sorted(threads.cores_in_order()) == sorted(os.sched_getaffinity(0))


def test_slower_with_more_threads_and_faster_peers_are_said():
    runs = [_run("globular", 1, 4.0), _run("globular", 2, 2.0), _run("globular", 4, 2.5)]
    runs += [_run("sklearn", 1, 5.0), _run("sklearn", 4, 1.0), _run("faiss", 2, None)]
    assert remarks(runs) == [
        "predict C=1000, globular: 4 threads are slower than 2",
        "predict C=1000, 4 threads: globular takes 2.50 × the time of sklearn",
    ]


def test_a_faster_fit_with_a_higher_error_is_no_loss():
    name = "KMeans 2 columns C=3000"
    runs = [_run("globular-fast", 1, 2.0, 1.0, name), _run("faiss-kmeans", 1, 1.0, 1.1, name)]
    assert remarks(runs) == []
    assert len(remarks([runs[0], _run("faiss-kmeans", 1, 1.0, 0.9, name)])) == 1


def test_the_picture_has_a_panel_for_every_family(tmp_path):
    runs = [
        _run(program, n, 4.0 / n**0.9, None, name)
        for name in PROBLEMS
        for program in PROBLEMS[name].programs
        for n in (1, 2, 4)
    ]
    threads.draw(runs, tmp_path / "picture.png", "here")
    assert b"here" in (tmp_path / "picture.png").read_bytes()
    threads.draw(runs[:1], tmp_path / "none.png", "here")
    assert not (tmp_path / "none.png").exists()
