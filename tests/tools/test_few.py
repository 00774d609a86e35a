"""Few clusters: the file of runs, what they come to, the process that stays, and a small measurement."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import sparse

from benchmarks import few
from benchmarks.few import OURS, THEIRS, FewRun, summary, verdicts
from globular.errors import DataError
from harness import quantization, results
from harness.adapters import ADAPTERS
from harness.data import real_file
from harness.fits import Rows, Task
from harness.results import RunFile, read_runs
from harness.session import Session


def _run(
    adapter: str, seconds: float | None, error: float | None, *, k: int = 8, seed: int = 0, message: str = ""
) -> FewRun:
    return FewRun("set", 1000, 3, k, adapter, "1", "", "2026", 2, seed, 0, seconds, error, message)


X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
KINDS = {
    "dense": Rows(X),
    "weighted": Rows(X, np.arange(1, 301, dtype=np.float32)),
    "sparse": Rows(sparse.csr_matrix(np.where(X > 1, X, 0))),
}


def test_sums_of_scikit_learns_runs_decide():
    theirs = [(5, 3.8), (6, 4.4), (9, 4.4)]
    runs = [_run(THEIRS, seconds, error, seed=seed) for seed, (seconds, error) in enumerate(theirs)]
    runs += [
        _run(OURS, 3.0, 4.0),
        _run(OURS, 2.0, 4.0, seed=1),
        _run("faiss-kmeans", 1.0, 4.1),
        _run("lance", 1.9, 3.9),
    ]
    (found,) = verdicts(runs)
    assert (found.seconds, found.their_seconds, found.ratio) == (2.0, 6.0, 3.0)
    assert found.above_best == pytest.approx(4.0 / 3.8 - 1) and found.above_mean == pytest.approx(4.0 / 4.2 - 1)
    assert found.beaten_by == ("lance",)
    text = "\n".join(summary([found]))
    assert (
        "geometric mean: 3.00" in text
        and "best of its runs: 0 of 1" in text
        and "above the mean of its runs: 0" in text
    )
    assert "lance is faster and better" in text and "above their best (+5.26%)" in text


def test_errors_from_elsewhere_take_the_place_of_theirs():
    runs = [_run(OURS, 2.0, 4.0), _run(THEIRS, 1.0, 3.0)]
    (found,) = verdicts(runs, {("set", 8): [4.0, 5.0]})
    assert found.above_best == 0.0 and found.losses == ("slower than one run (0.50×)",)
    assert verdicts(runs, {}) == verdicts(runs[:1]) == [] and "no problem" in summary([])[0]


def test_failed_runs_do_not_count():
    (found,) = verdicts([_run(OURS, 2.0, 4.0), _run(THEIRS, 1.0, 4.0), _run("lance", 0.1, 0.1, message="died")])
    assert found.beaten_by == () and found.above_mean == 0.0


def test_runs_survive_their_file(tmp_path, monkeypatch):
    path = tmp_path / "few.json"
    file = RunFile(path, FewRun)
    good, bad = _run(OURS, 2.0, 4.0), _run("lance", None, None, message="died")
    file.add(good)
    file.add(bad)
    again = RunFile(path, FewRun)
    assert again.has(good) and not again.has(bad) and not again.has(dataclasses.replace(good, seed=1))
    assert list(again.runs.values()) == [good, bad] and [each.name for each in tmp_path.iterdir()] == ["few.json"]
    elsewhere = dataclasses.replace(results.describe_machine(), machine="there")
    monkeypatch.setattr(results, "describe_machine", lambda: elsewhere)
    with pytest.raises(DataError, match="another machine"):
        RunFile(path, FewRun).add(good)
    for text in ("{}", "[1]", "no JSON", '{"machine": "m", "runs": [{"x": 1}]}'):
        path.write_text(text)
        with pytest.raises(DataError, match=r"few\.json"):
            RunFile(path, FewRun)


def test_longer_runs_are_foreseen():
    runs = [_run("lance", 3.0, 1.0, k=8), _run("lance", 2.0, 1.0, k=8, seed=1), _run("lance", 40.0, 1.0, k=256)]
    assert few.expected_seconds(runs, ("set", 16), "lance") == 4.0
    assert few.expected_seconds(runs, ("set", 8), "lance") == 2.0
    assert few.expected_seconds(runs, ("set", 200), "lance") == 40.0
    assert few.expected_seconds(runs, ("set", 16), "faiss") == few.expected_seconds(runs, ("other", 16), "lance") == 0.0


def test_runs_take_turns():
    adapters = tuple(ADAPTERS[name] for name in (OURS, THEIRS))
    turns = [(a.name, seed, repeat) for a, seed, repeat in few.Plan((), (), adapters, 5, 2, math.inf).turns()]
    assert turns[:4] == [(OURS, 0, 0), (THEIRS, 0, 0), (OURS, 0, 1), (THEIRS, 1, 0)]
    assert [turn for turn in turns if turn[0] == OURS] == [(OURS, 0, repeat) for repeat in range(3)]
    assert [turn for turn in turns if turn[0] == THEIRS] == [(THEIRS, seed, 0) for seed in range(5)]


def test_a_small_measurement_ends_in_a_table_and_is_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(few, "SETS", {"dense": lambda: Rows(X), "absent": lambda: real_file("no/such/file.npz")})
    monkeypatch.setattr(few, "OWN", (OURS,))
    output = tmp_path / "new" / "few.json"
    command = ["--sets", "dense", "absent", "--k", "3", "--peers", THEIRS, "--runs", "2", "--threads", "1"]
    few.main([*command, "--output", str(output)])
    said = capsys.readouterr().out
    assert "absent: no/such/file.npz not found" in said and "1 problems" in said
    assert [run.adapter for run in read_runs(output, FewRun)[1]].count(OURS) == few.REPEATS
    before = output.read_bytes()
    monkeypatch.setattr(Session, "fit", lambda *_: pytest.fail("asked again"))
    few.main([*command, "--output", str(output), "--errors-from", str(output)])
    assert output.read_bytes() == before and "scikit-learn's seconds ÷ ours" in capsys.readouterr().out


@pytest.mark.parametrize("rows", KINDS.values(), ids=KINDS)
def test_a_session_fits_as_often_as_it_is_asked(rows, tmp_path):
    rows.write(tmp_path)
    adapter = ADAPTERS[THEIRS]
    assert adapter.refusal(3, 4, weighted=rows.weights is not None, sparse=rows.is_sparse) is None
    with Session(adapter, tmp_path, 1) as session:
        for seed in (0, 1):
            answer = session.fit(4, seed, 2, 60.0)
            assert answer.message == "" and answer.seconds > 0.0
            expected = adapter.fit(Task(rows.X, 4, 2, 1, seed, weights=rows.weights))
            np.testing.assert_allclose(answer.centers, expected, rtol=1e-5, atol=1e-6)
        assert "n_clusters" in session.fit(400, 0, 2, 60.0).message  # and it lives on
        assert session.fit(5, 0, 2, 60.0).centers.shape == (5, 3)


def test_what_an_adapter_does_not_take():
    assert ADAPTERS["lance"].refusal(3, 4, weighted=True) == "takes no weights"
    assert ADAPTERS["faiss-kmeans"].refusal(3, 4, weighted=True) is None
    assert ADAPTERS["faiss-kmeans"].refusal(3, 4, sparse=True) == "takes no sparse rows"
    assert "1000 clusters" in (ADAPTERS[THEIRS].refusal(3, 1_001) or "")


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("n_features", [3, 8, 9, 33])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_weighted_and_sparse_errors_equal_brute_force(is_sparse, n_features, offset, monkeypatch):
    monkeypatch.setattr(quantization, "_ROWS_AT_ONCE", 50)  # several blocks of rows
    random = np.random.default_rng(0)
    X = (random.normal(size=(120, n_features)) + offset) * (random.random((120, n_features)) < 0.4)
    X = X.astype(np.float32)
    centers, weights = random.normal(size=(9, n_features)), random.random(120).astype(np.float32)
    squares = np.square(X.astype(np.float64)[:, None] - centers).sum(axis=2).min(axis=1)
    given = sparse.csr_matrix(X) if is_sparse else X
    assert quantization.quantization_error(given, centers) == pytest.approx(squares.mean(), rel=1e-12)
    weighted = quantization.quantization_error(given, centers, weights=weights)
    assert weighted == pytest.approx(squares @ weights.astype(np.float64) / weights.sum(dtype=np.float64), rel=1e-12)
