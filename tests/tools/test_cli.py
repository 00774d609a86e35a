"""The command: what it writes, what it says, and how it fails."""

import errno
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import globular
from globular._version import __version__
from globular.cli.main import run
from globular.cli.options import Model
from globular.datasets import many_blobs, separated_mixture
from globular.estimators import running
from makers import raising


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "points.npy"
    np.save(path, many_blobs(2000, 20, 3, random_state=0).X)
    return path


@pytest.fixture
def model_folder(tmp_path: Path, data: Path) -> Path:
    folder = tmp_path / "model"
    assert run(["fit", str(data), "-k", "20", "-o", str(folder), "--seed", "0", "-q"]) == 0
    return folder


def command(*arguments: Any) -> int:
    return run([str(argument) for argument in arguments])


def assert_refused(capsys: pytest.CaptureFixture[str], *arguments: Any, says: str) -> None:
    """One line on standard error, exit code 2, nothing on standard output."""
    capsys.readouterr()
    assert command(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(r"globular: error: [^\n]+\n", printed.err), printed.err
    assert re.search(says, printed.err), printed.err


# --- fit
def test_fit_does_what_the_estimator_does(data: Path, tmp_path: Path) -> None:
    folder, labels = tmp_path / "model", tmp_path / "labels.npy"
    options = ["--seed", 3, "--max-iter", 7, "--tol", 0.0, "--algorithm", "lloyd", "--threads", 1]
    assert command("fit", data, "-k", 20, "-o", folder, "--labels", labels, *options) == 0
    expected = globular.KMeans(n_clusters=20, random_state=3, max_iter=7, tol=0.0, algorithm="lloyd", n_threads=1)
    expected.fit(np.load(data))
    model = globular.load(folder)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(np.load(labels), expected.labels_)
    stored = model.get_params()
    assert (stored["max_iter"], stored["n_threads"], stored["warm_start"]) == (7, 1, False)


def test_fit_reports_and_names_the_next_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my model"
    assert command("fit", data, "-k", 20, "-o", folder, "--seed", 0) == 0
    printed = capsys.readouterr()
    model = globular.load(folder)
    assert f"{model.inertia_:.8g}" in printed.out
    assert f"{model.n_distances_:,}" in printed.out
    assert f"globular predict '{folder}' {data} -o labels.npy" in printed.out
    assert "\x1b" not in printed.err and printed.err.count("\n") <= 3  # a log file stays readable


def test_fit_tells_compiling_apart(data, tmp_path, capsys, monkeypatch):
    compiled = iter([0.0])
    monkeypatch.setattr(running, "compile_seconds", lambda: next(compiled, 6.1))
    assert command("fit", data, "-k", 20, "-o", tmp_path / "model") == 0
    assert "6.1 s beside these" in capsys.readouterr().out


def test_help_names_no_types_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("", "fit", "select", "predict", "info", "report", "export", "coreset", "demo"):
        assert command(*name.split(), "--help") == 0
        assert not re.search(r"<\w[\w ]*[>|]|list\[", capsys.readouterr().out), name


def test_quiet_says_nothing(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("fit", data, "-k", 5, "-o", tmp_path / "model", "-q") == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [kind for kind in Model if kind is not Model.ResidualKMeans])  # test_codes.py
def test_every_estimator_can_be_fitted_and_used(kind: Model, data: Path, tmp_path: Path) -> None:
    if kind in (Model.InfiniteMultinomialMixture, Model.PoissonMixture, Model.BernoulliMixture):
        rows = np.random.default_rng(0).poisson([[8, 1, 1], [1, 1, 8]], size=(60, 2, 3)).reshape(-1, 3)
        np.save(data, (rows > 3 if kind is Model.BernoulliMixture else rows).astype(np.float32))
    folder, labels, later = (tmp_path / name for name in ("model", "labels.npy", "later.npy"))
    infinite = kind.name.startswith("Infinite")
    options = [] if infinite else ["-k", 5]
    assert command("fit", data, "--model", kind, "-o", folder, "--labels", labels, "--seed", 0, *options) == 0
    size = {} if infinite else {"n_clusters" if "kmeans" in kind else "n_components": 5}
    expected = getattr(globular, kind.name)(**size, random_state=0).fit(np.load(data))
    model, centers = globular.load(folder), "cluster_centers_" if "kmeans" in kind else "means_"
    assert type(model) is type(expected)
    np.testing.assert_array_equal(getattr(model, centers), getattr(expected, centers))
    assert command("predict", folder, data, "-o", later, "-q") == 0
    np.testing.assert_array_equal(np.load(later), expected.predict(np.load(data)))
    np.testing.assert_array_equal(np.load(labels), np.load(later))
    assert command("info", folder) == 0
    assert command("report", folder, "--data", data, "-o", tmp_path / "page.html") == 0
    assert command("export", folder, "-o", tmp_path / "centers.npy") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "centers.npy"), getattr(expected, centers))


def test_options_go_to_the_parameters_of_each_model(data: Path, tmp_path: Path) -> None:
    fit = ["fit", data, "--max-iter", 3, "-q", "-o"]
    most = ["--model", "infinite-gmm", "-k", 4, "--init", "k-means++"]
    most += ["--set", "truncation=fixed", "--set", "accelerate=False"]
    assert command(*fit, tmp_path / "infinite", *most) == 0
    infinite = globular.load(tmp_path / "infinite").get_params()
    assert (infinite["max_components"], infinite["init_params"]) == (4, "k-means++")
    assert (infinite["truncation"], infinite["accelerate"]) == ("fixed", False)
    nested = ["--model", "nested-kmeans", "-k", 4, "--metric", "cosine", "--set", "batch_size=500"]
    assert command(*fit, tmp_path / "nested", *nested) == 0
    found = globular.load(tmp_path / "nested")
    assert found.batch_size == 500
    np.testing.assert_allclose(np.linalg.norm(found.cluster_centers_, axis=1), 1.0, rtol=1e-5)
    mixture = ["--model", "gmm", "-k", 4, "--covariance-type", "diag", "--labels", tmp_path / "labels.csv"]
    assert command(*fit, tmp_path / "mixture", *mixture) == 0
    found = globular.load(tmp_path / "mixture")
    assert found.covariance_type == "diag"
    labels = np.loadtxt(tmp_path / "labels.csv", dtype=int, skiprows=1)
    np.testing.assert_array_equal(labels, found.predict(np.load(data)))


def test_resume_takes_the_kind_of_the_model_there(data, tmp_path, capsys):
    for kind, k in (("variational-gmm", ["-k", 4]), ("infinite-gmm", [])):
        assert command("fit", data, "--model", kind, "-o", tmp_path / kind, "--max-iter", 2, "-q", *k) == 0
    assert command("fit", data, "-o", tmp_path / "variational-gmm", "--resume", "--max-iter", 3, "-q") == 0
    assert globular.load(tmp_path / "variational-gmm").max_iter == 3
    assert command("fit", data, "-o", tmp_path / "infinite-gmm", "--resume", "--max-iter", 2, "-q") == 0
    assert command("fit", data, "--residual", "4,4", "-o", tmp_path / "codes", "-q") == 0
    assert_refused(capsys, "fit", data, "-o", tmp_path / "codes", "--resume", says="cannot go on")


def test_weights_from_a_file_and_from_a_column_are_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(200, 2)).round(3), rng.integers(1, 5, 200).astype(float)
    np.savetxt(tmp_path / "all.csv", np.column_stack([X, weights]), delimiter=",", header="a,b,w", comments="")
    np.savetxt(tmp_path / "rows.csv", X, delimiter=",", header="a,b", comments="")
    np.save(tmp_path / "w.npy", weights)
    np.savetxt(tmp_path / "w.csv", weights)
    options = ["-k", 6, "--seed", 0, "-q"]
    calls = {
        "file": ["rows.csv", "--weights", tmp_path / "w.npy"],
        "text": ["rows.csv", "--weights", tmp_path / "w.csv"],
        "column": ["all.csv", "--weights", "w"],
        "chosen": ["all.csv", "--weights", "w", "--columns", "a, b"],
    }
    for name, (file, *more) in calls.items():
        assert command("fit", tmp_path / file, *more, "-o", tmp_path / name, *options) == 0
    expected = globular.KMeans(n_clusters=6, random_state=0).fit(X, sample_weight=weights).cluster_centers_
    for name in calls:
        np.testing.assert_array_equal(globular.load(tmp_path / name).cluster_centers_, expected, err_msg=name)


def test_checkpoints_are_written_during_the_fit_and_resume_goes_on(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    start = ["fit", data, "-k", 20, "-o", folder, "--seed", 1, "--tol", 0.0, "--set", "algorithm=lloyd", "-q"]
    assert command(*start, "--max-iter", 2, "--checkpoint-every", 1e-6) == 0
    half_way = globular.load(folder)
    assert command("fit", data, "-o", folder, "--resume", "--max-iter", 300, "-q") == 0
    resumed = globular.load(folder)
    assert resumed.history_[0].objective <= half_way.history_[-1].objective
    whole = globular.KMeans(n_clusters=20, algorithm="lloyd", random_state=1, tol=0.0).fit(np.load(data))
    np.testing.assert_allclose(resumed.inertia_, whole.inertia_, rtol=1e-6)
    assert resumed.warm_start is False and resumed.max_iter == 300


def test_resume_without_a_model_starts(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("fit", data, "-k", 5, "-o", tmp_path / "m", "--resume") == 0
    assert "starting from the beginning" in capsys.readouterr().err
    assert_refused(capsys, "fit", data, "-o", tmp_path / "n", "--resume", "-q", says="-k is missing")


def test_checkpoints_that_cannot_be_written_are_a_line_and_a_model_that_cannot_is_an_error(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = raising(OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("globular.persistence.folder._write_safetensors", full)
    again = ["fit", data, "-k", 20, "-o", tmp_path / "m", "--checkpoint-every", 1e-6, "-q"]
    assert command(*again) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert re.search(r"warning: checkpoint .*m could not be written, the fit goes on: .*No space left", lines[0])
    assert re.search(r"error: .*m: the model could not be written \(No space left", lines[1])
    assert not (tmp_path / "m").exists()


def test_a_model_is_replaced_only_if_that_is_asked_for(data, model_folder, capsys):
    again = ["fit", data, "-k", 3, "-o", model_folder, "-q"]
    assert_refused(capsys, *again, says="already holds a model; replace it with --force")
    assert len(globular.load(model_folder).cluster_centers_) == 20
    assert command(*again, "--force") == 0
    assert len(globular.load(model_folder).cluster_centers_) == 3


def test_an_output_that_exists_is_replaced_only_with_force(data, model_folder, tmp_path, capsys):
    folder = tmp_path / "new"
    for asked, option, name in [
        (["fit", data, "-k", 3, "-o", folder], "--labels", "labels.npy"),
        (["predict", model_folder, data], "-o", "labels.npy"),
        (["select", data, "-k", "2,3"], "-o", "scores.csv"),
        (["report", model_folder], "-o", "report.html"),
        (["export", model_folder], "-o", "centers.npy"),
        (["coreset", data, "-n", 50], "-o", "part.csv"),
    ]:
        target = tmp_path / name
        target.write_bytes(b"hours of work")
        assert_refused(capsys, *asked, option, target, "-q", says=f"{name}: exists already; replace it with --force")
        assert target.read_bytes() == b"hours of work"
        assert command(*asked, option, target, "-q", "--force") == 0
        assert target.read_bytes() != b"hours of work"
    again = ["fit", data, "-o", folder, "--resume", "--max-iter", 1, "--labels", tmp_path / "labels.npy", "-q"]
    assert_refused(capsys, *again, says="labels.npy: exists already")
    assert command(*again, "--force") == 0
    assert len(globular.load(folder).cluster_centers_) == 3  # of --resume; --force is for the labels


def test_an_output_that_is_an_input_is_refused_also_with_force(data, model_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("parts").mkdir()
    Path("parts/1.npy").write_bytes(data.read_bytes())
    Path("link.npy").symlink_to(data)
    Path("hard.npy").hardlink_to(data)
    Path("linked").symlink_to("parts")
    np.save("weights.npy", np.ones(2000))
    np.savez("several.npz", X=np.load(data), other=np.ones(3))
    predict = ["predict", model_folder, "--force", "-q"]
    fit = ["fit", data, "-k", 3, "-o", "m", "--force", "-q"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.np*")}
    for asked in (
        *([*predict, data, "-o", same] for same in (data, "points.npy", "link.npy", "hard.npy")),
        *([*predict, "parts", "-o", inside] for inside in ("parts/1.npy", "parts/new.npy", "linked/new.npy")),
        [*predict, "part*/*.npy", "-o", "parts/1.npy"], [*predict, "several.npz::X", "-o", "several.npz"],
        [*fit, "--labels", data], [*fit, "--weights", "weights.npy", "--labels", "weights.npy"],
        ["fit", "parts", "-k", 3, "-o", "parts", "--force"], ["fit", "parts", "-k", 3, "-o", "parts/model"],
        ["coreset", "several.npz::X", "-n", 9, "-o", "several.npz", "--force"],
        ["export", model_folder, "--data", "parts", "-o", "parts/x.faiss"],
        ["report", model_folder, "--data", "parts", "-o", "parts/report.html"],
        ["select", "parts", "-k", "2,3", "-o", "parts/scores.csv"],
    ):  # fmt: skip
        assert_refused(capsys, *asked, says="the output would change the input .*; choose another place for it")
    assert_refused(capsys, *fit[:-4], "-o", "x.npy", "--labels", "x.npy", says="the model of -o x.npy goes there")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.np*")} == before


@pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="standard input has no name here")
def test_the_file_behind_standard_input_is_an_input(data: Path, model_folder: Path) -> None:
    asked = [sys.executable, "-m", "globular", "predict", str(model_folder), "-", "-o", str(data), "--force"]
    with data.open("rb") as file:
        done = subprocess.run(asked, stdin=file, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "the output would change the input -" in done.stderr
    assert np.load(data).shape == (2000, 3)


def test_a_name_that_begins_with_a_tilde(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fit = ["fit", "~x.npy", "-k", 3, "-q", "-o"]
    assert_refused(capsys, *fit, "m", says="~x.npy: no home folder is known for ~x.npy; write the full path")
    Path("~x.npy").write_bytes(data.read_bytes())
    assert_refused(capsys, *fit, "~m/a", says="~m/a: no home folder is known for ~m; write the full path")
    assert_refused(capsys, *fit, "m", "--labels", "~l.npy", says="~l.npy: no home folder is known")
    assert command(*fit, tmp_path / "~m", "--labels", tmp_path / "~l.npy") == 0
    assert command("predict", "~m", "~x.npy", "-o", "~l.npy", "--force", "-q") == 0
    assert len(globular.load("~m").predict("~x.npy")) == globular.io.open_source("~x.npy").n_rows == 2000
    monkeypatch.setenv("HOME", str(tmp_path))
    assert globular.io.open_source("~/points.npy").n_rows == 2000


def test_columns_are_those_of_the_fit_by_their_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(200, 3))
    np.savetxt("abc.csv", rows, delimiter=",", header="a,b,c", comments="")
    lines = [f"{c},x,{b},{a}\n" for a, b, c in rows.tolist()]
    Path("cba.csv").write_text("c,text,b,a\n" + "".join(lines))
    assert command("fit", "abc.csv", "-k", 5, "-o", "model", "-q", "--labels", "labels.npy") == 0
    for asked in (["predict", "model", "cba.csv", "-o", "again.npy"], ["report", "model", "--data", "cba.csv"]):
        assert command(*asked, "-q") == 0
        others = [*asked, "--force", "--columns", "c,b,a"]
        assert_refused(capsys, *others, says=r"other columns .* order; choose --columns a,b,c$")
    assert command("export", "model", "-o", "x.faiss", "--data", "cba.csv", "-q") == 0
    assert capsys.readouterr().err == ""  # no warning that blocks of the file have no names
    np.testing.assert_array_equal(np.load("again.npy"), np.load("labels.npy"))
    np.save("rows.npy", rows)  # without names columns count by their place
    assert command("predict", "model", "rows.npy", "-o", "again.npy", "--force", "-q") == 0
    np.testing.assert_array_equal(np.load("again.npy"), np.load("labels.npy"))
    Path("ab.csv").write_text("a,b\n1,2\n")
    assert_refused(capsys, "predict", "model", "ab.csv", "-o", "x.npy", says=r"ab\.csv: no column 'c'; it has: a, b")


def test_the_only_column_of_lists_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    lists = pa.array(rows.tolist(), pa.list_(pa.float32(), 3))
    pq.write_table(pa.table({"id": np.arange(200), "emb": lists}), "e.parquet")
    assert command("fit", "e.parquet", "-k", 4, "--columns", "emb", "-o", "m", "--labels", "l.npy", "-q") == 0
    assert command("predict", "m", "e.parquet", "-o", "again.npy", "-q") == 0
    np.testing.assert_array_equal(np.load("again.npy"), np.load("l.npy"))


# --- fit: what is refused, and that nothing is left behind
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-k", "0"], "-k"),
        (["-k", "3000"], "2000"),
        ([], "-k is missing"),
        (["-k", "5", "--algorithm", "magic"], "algorithm"),
        (["-k", "5", "--init", "magic"], "init"),
        (["-k", "5", "--metric", "magic"], "metric"),
        (["-k", "5", "--covariance-type", "full"], "--covariance-type does not apply to --model kmeans"),
        (["-k", "5", "--model", "chunky-gmm", "--metric", "cosine"], "--metric does not apply to --model chunky-gmm"),
        (["-k", "5", "--set", "magic=1"], "--set magic=1: .*KMeans has .*n_init"),
        (["-k", "5", "--set", "n_init"], "write NAME=VALUE"),
        (["-k", "5", "--set", "n_init=0"], "n_init"),
        (["-k", "5", "--set", "n_clusters=3"], "--set n_clusters=3: the number of clusters is given by -k"),
        (["-k", "5", "--set", "callbacks=print"], "--set callbacks=print: callbacks are functions; fit in Python"),
        (["-k", "5", "--set", "verbose=1"], "--set verbose=1: the command shows its progress"),
        (["-k", "5", "--set", "tol=0", "--tol", "1"], "--set tol=0: tol is given twice, with the value 1.0, too"),
        (["-k", "5", "--set", "tol=0", "--set", "tol=1"], "--set tol=1: tol is given twice, with the value 0, too"),
        (["--model", "nested-kmeans"], "-k is missing.*infinite-gmm"),
        (["-k", "5", "--max-iter", "0"], "max_iter"),
        (["-k", "5", "--seed", "-1"], "--seed"),
        (["-k", "5", "--columns", "a"], "columns"),
        (["-k", "5", "--columns", "a,,b"], "empty name"),
        (["-k", "5", "--weights", "nowhere.npy"], "nowhere.npy"),
        (["-k", "5", "--labels", "labels.txt"], "ends in .npy"),
        (["-k", "5", "--labels", "no-such-folder/labels.npy"], "does not exist"),
        (["-k", "5", "--checkpoint-every", "-1"], "every_seconds"),
        (["-k", "five"], "-k.*'five' is not a whole number of at least 1, nor auto"),
        (["-k", "5", "--n-init", "0"], "--n-init"),
        (["-k", "5", "--model", "nested-kmeans", "--quality", "best"], "--quality does not apply to --model nested"),
        (["-k", "5", "--no-such-option"], "no-such-option"),
    ],
)
def test_a_wrong_option_is_one_line(data, tmp_path, capsys, arguments, says):
    assert_refused(capsys, "fit", data, "-o", tmp_path / "model", "-q", *arguments, says=says)
    assert [entry.name for entry in tmp_path.iterdir()] == ["points.npy"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.npy", None, "no such file"),
        ("notes.docx", b"words", "not known; globular reads"),
        ("cut.npy", "truncated", "cut.npy"),
        ("words.csv", b"a,b\nx,y\nz,w\n", "words.csv"),
        ("nan.npy", np.array([[1.0, np.nan], [2.0, 3.0]]), "NaN"),
        ("flat.npy", np.arange(5.0), "2D"),
    ],
)
def test_bad_data_is_one_line_that_names_the_file(tmp_path, capsys, name, content, says):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        np.save(path, np.zeros((100, 2)))
        path.write_bytes(path.read_bytes()[:-100])
    elif content is not None:
        np.save(path, content)
    fit = ["fit", path, "-k", 1, "-o", tmp_path / "model", "-q"]
    assert_refused(capsys, *fit, says=says)
    assert_refused(capsys, *fit, says=re.escape(name))
    assert not (tmp_path / "model").exists()


def test_what_it_says_to_do_next_can_be_done(tmp_path, monkeypatch, capsys):
    """Also where only some of the columns were clustered."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(200, 3)) ** 2
    np.savetxt("all.csv", rows, delimiter=",", header="a,b,w", comments="")
    assert command("fit", "all.csv", "-k", 6, "-o", "model", "--weights", "w") == 0
    proposed = re.findall(r"^(?:Next|or): +globular (.+)$", capsys.readouterr().out, re.MULTILINE)
    assert [line.split()[0] for line in proposed] == ["predict", "report"]
    for line in proposed:
        assert command(*line.split()) == 0
    assert len(np.load("labels.npy")) == 200 and Path("report.html").is_file()


def test_a_wrong_option_leads_to_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, "fit", says=r"DATA.*\. See: globular fit --help$")
    assert_refused(capsys, "fit", "x.npy", "-k", 0, "-o", "m", says=r"-k.*\. See: globular fit --help$")
    assert_refused(capsys, "fot", says=r"('fit'\?|'fot'\.) See: globular --help$")  # click 8.1 guesses nothing


def test_bad_weights_are_one_line(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = ["fit", data, "-k", 5, "-o", tmp_path / "model", "-q", "--weights"]
    for name, weights, says in (
        ("short.npy", np.ones(7), "7 weights for 2,000 rows"),
        ("negative.npy", -np.ones(2000), "egative|weight"),
        ("zero.npy", np.zeros(2000), "weight"),
        ("wide.npy", np.ones((2000, 2)), "one column"),
    ):
        np.save(tmp_path / name, weights)
        assert_refused(capsys, *fit, tmp_path / name, says=says)
    (tmp_path / "broken.npy").write_bytes(b"not numpy")
    assert_refused(capsys, *fit, tmp_path / "broken.npy", says=r"broken\.npy")
    assert not (tmp_path / "model").exists()


def test_a_foreign_folder_is_refused_before_the_fit(data, tmp_path, capsys):
    assert_refused(capsys, "fit", data, "-k", 5, "-o", tmp_path, says="other than a globular model")


def test_resume_refuses_what_does_not_match(model_folder, data, tmp_path, capsys):
    np.save(tmp_path / "wide.npy", np.zeros((50, 7)))
    resume = ["-o", model_folder, "--resume", "-q"]
    assert_refused(capsys, "fit", tmp_path / "wide.npy", *resume, says="3 columns.* has 7")
    assert_refused(capsys, "fit", data, "-k", 7, *resume, says="has 20 clusters, not 7")
    assert_refused(capsys, "fit", data, "--model", "gmm", *resume, says="holds a KMeans")


# --- predict and info
@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_predict_writes_the_models_labels(model_folder: Path, data: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"labels{suffix}"
    assert command("predict", model_folder, data, "-o", path, "-q") == 0
    expected = globular.load(model_folder).predict(np.load(data))
    written = np.load(path) if suffix == ".npy" else globular.io.open_source(path).whole().ravel()
    np.testing.assert_array_equal(written, expected)


def test_predict_in_many_blocks_is_the_same(model_folder, data, tmp_path, monkeypatch):
    monkeypatch.setattr("globular.cli.predict.rows_per_block", lambda n_columns: 300)
    assert command("predict", model_folder, data, "-o", tmp_path / "l.npy", "--threads", 1) == 0
    expected = globular.load(model_folder).predict(np.load(data))
    np.testing.assert_array_equal(np.load(tmp_path / "l.npy"), expected)


def test_predict_refuses_and_writes_nothing(model_folder, data, tmp_path, capsys):
    np.save(tmp_path / "wide.npy", np.zeros((5, 7)))
    np.save(tmp_path / "nan.npy", np.full((5, 3), np.nan))
    out = tmp_path / "out.npy"
    assert_refused(capsys, "predict", model_folder, tmp_path / "wide.npy", "-o", out, says="7 columns.*3")
    assert_refused(capsys, "predict", model_folder, tmp_path / "nan.npy", "-o", out, says="NaN")
    assert_refused(capsys, "predict", tmp_path / "gone", data, "-o", out, says="no such model folder")
    assert_refused(capsys, "predict", model_folder, data, "-o", tmp_path / "out.txt", says="ends in .npy")
    next(model_folder.glob("*.safetensors")).write_bytes(b"short")
    assert_refused(capsys, "predict", model_folder, data, "-o", out, says="damaged or truncated")
    assert not out.exists()


def test_info_of_a_model(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("info", model_folder) == 0
    printed = capsys.readouterr().out
    for expected in ("KMeans", "random_state", __version__, "steps", "array 20 × 3"):
        assert expected in printed


def test_info_of_a_damaged_model_speaks_of_the_model(model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model_folder / "model.json").write_text("no JSON")
    assert_refused(capsys, "info", model_folder, says="damaged or truncated")


def test_errors_name_the_option_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "places.csv"
    table.write_text("lon,lat,name\n1,2,Oslo\n3,4,Rome\n")
    assert_refused(capsys, "fit", table, "-k", 1, "-o", tmp_path / "m", says="--columns A,B")
    assert command("info", table, "--columns", "lon,lat") == 0
    assert "-k 1 --columns lon,lat -o model" in capsys.readouterr().out
    table.write_text("lon;lat\n1,5;2,5\n3,5;4,5\n")
    assert_refused(capsys, "fit", table, "-k", 1, "-o", tmp_path / "m", says="decimal points")


def test_info_of_data(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("info", data) == 0
    printed = capsys.readouterr().out
    for expected in ("2,000", "float32", "24 kB", "globular fit"):
        assert expected in printed
    assert_refused(capsys, "info", tmp_path / "missing.npy", says="no such file")


def test_info_describes_a_table_that_cannot_be_clustered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "places.csv").write_text("lon,lat,name\n1,2,Oslo\n3,4,Rome\n")
    assert command("info", tmp_path / "places.csv") == 0
    printed = capsys.readouterr().out
    assert re.search(r"rows +2\b", printed) and re.search(r"name +text", printed) and re.search(r"lon +number", printed)
    assert "Not to be clustered as it is" in printed and "-k 1 --columns lon,lat -o model" in printed
    np.savez(tmp_path / "x.npz", train=np.zeros((5, 2)), test=np.zeros((3, 2)))
    assert command("info", tmp_path / "x.npz") == 0
    assert "train (5 × 2 float64), test (3 × 2 float64)" in " ".join(capsys.readouterr().out.split())


def test_two_columns_of_one_name_are_refused_before_the_fit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("x.csv", np.random.default_rng(0).normal(size=(50, 4)), delimiter=",", header="a,b,a,c", comments="")
    says = "x.csv: 2 columns are called 'a'; rename them, or choose others: --columns A,B,…"
    assert_refused(capsys, "fit", "x.csv", "-k", 3, "-o", "m", says=says)
    assert command("info", "x.csv") == 0
    printed = capsys.readouterr().out
    assert says in printed and "globular fit x.csv -k 2 --columns b,c -o model" in printed
    assert command("fit", "x.csv", "-k", 2, "--columns", "b,c", "-o", "model", "--labels", "l.npy", "-q") == 0
    assert command("predict", "model", "x.csv", "-o", "again.npy", "-q") == 0
    np.testing.assert_array_equal(np.load("again.npy"), np.load("l.npy"))


def test_info_as_json(model_folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("info", model_folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["class"], found["clusters"], found["columns"]) == ("KMeans", 20, 3)
    assert found["parameters"]["random_state"] == 0 and found["history"][-1]["objective"] > 0
    assert command("info", data, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["n_rows"], found["n_columns"], found["dtype"]) == (2000, 3, "float32")
    (tmp_path / "t.csv").write_text("a,b\n1,x\n")
    assert command("info", tmp_path / "t.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [column["type"] for column in found["columns"]] == ["number", "text"] and "hold" in found["problem"]


# --- what predict writes
def test_distances_and_the_closest_clusters(model_folder: Path, data: Path, tmp_path: Path) -> None:
    model, rows = globular.load(model_folder), np.load(data)
    labels, distances = model.predict(rows, return_distance=True)
    several, apart = model.nearest_centers(rows, 3)
    predict = ["predict", model_folder, data, "-q", "-o"]
    assert command(*predict, tmp_path / "a.npz", "--distances") == 0
    found = np.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["label"], labels)
    np.testing.assert_array_equal(found["distance"], distances)
    assert command(*predict, tmp_path / "b.npy", "--top", 3) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), several)
    assert command(*predict, tmp_path / "c.csv", "--top", 3, "--distances") == 0
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert lines[0] == "label_0,label_1,label_2,distance_0,distance_1,distance_2"
    np.testing.assert_array_equal(np.loadtxt(lines[1:], delimiter=","), np.hstack([several, apart]))
    assert command(*predict, tmp_path / "d.parquet", "--top", 3, "--distances") == 0
    table = pq.read_table(tmp_path / "d.parquet")
    assert table["label"].to_pylist() == several.tolist() and table["distance"].to_pylist() == apart.tolist()
    limit = float(np.median(distances))
    assert command(*predict, tmp_path / "e.npy", "--max-distance", limit) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), np.where(distances > limit, -1, labels))


def test_probabilities_of_a_mixture(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixture"
    assert command("fit", data, "-k", 4, "-o", folder, "--model", "gmm", "--seed", 0, "-q") == 0
    wanted = globular.load(folder).predict_proba(np.load(data))
    predict = ["predict", folder, data, "-q", "-o"]
    assert command(*predict, tmp_path / "p.npy", "--proba") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), wanted)
    assert command(*predict, tmp_path / "p.npz", "--proba", "--top", 2) == 0
    found = np.load(tmp_path / "p.npz")
    np.testing.assert_array_equal(found["label"][:, 0], wanted.argmax(axis=1))
    np.testing.assert_array_equal(found["probability"], -np.sort(-wanted, axis=1)[:, :2])
    assert command(*predict, tmp_path / "l.npy", "--top", 2) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "l.npy"), found["label"])


def test_what_predict_cannot_give_is_refused(model_folder, data, tmp_path, capsys):
    predict = ["predict", model_folder, data, "-o"]
    assert_refused(capsys, *predict, tmp_path / "a.npy", "--proba", says="KMeans has no probabilities.*--distances")
    assert_refused(capsys, *predict, tmp_path / "a.npy", "--distances", says=r"one array, and here are label and dist")
    assert_refused(capsys, *predict, tmp_path / "a.npy", "--top", 21, says="--top 21: the model has 20 clusters")
    assert_refused(capsys, *predict, tmp_path / "a.npy", "--top", 2, "--max-distance", 1, says="exclude each other")
    assert_refused(capsys, *predict, tmp_path / "a.csv", "--keep-columns", says="columns are kept of text")
    assert not list(tmp_path.glob("a.*"))


def test_labels_beside_the_columns_of_the_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("globular.cli.predict.rows_per_block", lambda n_columns: 7)
    rows = np.random.default_rng(0).normal(size=(40, 2))
    lines = [f'{a};"no. {i}; of 40";{b}' for i, (a, b) in enumerate(rows.tolist())]
    Path("x.csv").write_text("a;name;b\n" + "\n\n".join(lines) + "\n")
    assert command("fit", "x.csv", "-k", 3, "--columns", "a,b", "-o", "m", "--labels", "l.npy", "-q") == 0
    assert command("predict", "m", "x.csv", "-o", "out.csv", "--keep-columns", "-q") == 0
    written = Path("out.csv").read_text().splitlines()
    assert written[0] == "a;name;b;label"
    assert written[1:] == [f"{line};{label}" for line, label in zip(lines, np.load("l.npy"), strict=True)]
    table = pa.table({"a": rows[:, 0], "name": [str(i) for i in range(40)], "b": rows[:, 1]})
    pq.write_table(table, "x.parquet", row_group_size=16)
    assert command("predict", "m", "x.parquet", "-o", "out.parquet", "--keep-columns", "--distances", "-q") == 0
    found = pq.read_table("out.parquet")
    assert found.column_names == ["a", "name", "b", "label", "distance"]
    assert found.select(["a", "name", "b"]).equals(table) and found["label"].to_pylist() == np.load("l.npy").tolist()
    keep = ["--keep-columns", "-q"]
    assert_refused(capsys, "predict", "m", "x.csv", "-o", "o.parquet", *keep, says=r"written to a \.csv file")
    assert_refused(capsys, "predict", "m", "out.csv", "-o", "o.csv", *keep, says="has a column 'label' already")


# --- where rows come from and answers go to
def test_several_files_a_pattern_and_standard_input(data, tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    rows = np.load(data)
    np.save("part-1.npy", rows[:700])
    np.save("part-2.npy", rows[700:])
    expected = globular.KMeans(5, random_state=0).fit(rows)
    fit = ["-k", 5, "--seed", 0, "-q", "-o"]
    assert command("fit", "part-1.npy", "part-2.npy", *fit, "several") == 0
    assert command("fit", "part-*.npy", *fit, "pattern") == 0
    for name in ("several", "pattern"):
        np.testing.assert_array_equal(globular.load(name).cluster_centers_, expected.cluster_centers_)
    for content in (data.read_bytes(), b"".join(b"%r,%r,%r\n" % tuple(row) for row in rows.astype(float).tolist())):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert command("predict", "several", "-", "-o", "-") == 0
        printed = capsysbinary.readouterr().out.decode().split()
        assert printed[0] == "label" and [int(word) for word in printed[1:]] == expected.predict(rows).tolist()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert command("fit", "-", *fit, "nothing") == 2
    assert b"standard input is empty" in capsysbinary.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="a pipe of the shell")
def test_output_that_nobody_reads_is_no_error(model_folder: Path, data: Path) -> None:
    python = f"{sys.executable} -m globular predict {model_folder} {data} {data} {data} {data} {data} -o - --top 9"
    done = subprocess.run(f"{python} --distances | head -1", shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("label_0,") and done.stderr == ""


def test_quiet_is_quiet_while_kernels_are_compiled(data, tmp_path, monkeypatch, capsys):
    logger = logging.getLogger("globular")
    monkeypatch.setattr("globular.cli.fit.find_size", lambda estimator, *_, **__: logger.warning("compiling kernels"))
    assert command("fit", data, "-k", "auto", "-o", tmp_path / "m", "-q") == 0
    assert capsys.readouterr() == ("", "") and logger.level == logging.NOTSET


# --- how many clusters
def test_select_prints_and_writes_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", separated_mixture(1000, 7, 3, separation=5.0, eccentricity=1.0, random_state=0).X)
    select = ["select", tmp_path / "x.npy", "--seed", 0]
    assert command(*select, "-k", "2:12", "-o", tmp_path / "s.csv") == 0
    printed = capsys.readouterr().out
    assert "Best by silhouette: 7" in printed and "-k 7 -o model" in printed
    expected = globular.select(np.load(tmp_path / "x.npy"), range(2, 13), random_state=0)
    written = np.genfromtxt(tmp_path / "s.csv", delimiter=",", names=True)
    assert written.dtype.names == ("n_clusters", "error", "elbow", "silhouette")
    np.testing.assert_array_equal(written["silhouette"], expected.column("silhouette"))
    assert command(*select, "-k", "4:16:3", "-q") == 0  # 4, 8, 16
    assert capsys.readouterr().out == "8\n"
    assert command(*select, "-k", "6,7,8", "--model", "gmm", "-q") == 0
    assert capsys.readouterr().out == "7\n"
    types = ["--model", "gmm", "--covariance-type", "full,tied_spherical", "--criterion", "icl"]
    assert command(*select, "-k", "2:8", *types, "-o", tmp_path / "t.csv") == 0
    printed = capsys.readouterr().out
    assert "Best by icl: 7, tied_spherical" in printed and "--covariance-type tied_spherical" in printed
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0].endswith("bic,icl,covariance_type") and len(lines) == 1 + 7 * 2
    assert command(*select, "-k", "2:5") == 0
    assert "Beware: 5 is the largest number tried" in capsys.readouterr().out
    for wrong in ("many", "5:2", "1:2:3:4", "0:3"):
        assert_refused(capsys, *select, "-k", wrong, says=f"-k {wrong}: write 2:20")


def test_fit_finds_the_number_of_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", separated_mixture(1000, 7, 3, separation=5.0, eccentricity=1.0, random_state=0).X)
    fit = ["fit", tmp_path / "x.npy", "-k", "auto", "--seed", 0, "-o"]
    assert command(*fit, tmp_path / "m") == 0
    assert "-k auto: 7 clusters, of 2 to" in capsys.readouterr().err
    assert len(globular.load(tmp_path / "m").cluster_centers_) == 7
    assert command(*fit, tmp_path / "i", "--model", "infinite-gmm", "-q") == 0
    assert globular.load(tmp_path / "i").max_components is None
    assert command(*fit, tmp_path / "g", "--model", "variational-gmm", "--n-init", 2, "-q") == 0
    assert globular.load(tmp_path / "g").n_init == 2


# --- demo, the command itself
def test_demo_compares_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    assert command("demo", "-o", folder, "--side", 6) == 0
    printed = capsys.readouterr().out
    for name in ("clusters.png", "history.png", "time-quality.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
        assert str(folder / name) in printed
    assert all(name in printed for name in ("globular KMeans", "scikit-learn KMeans", "MiniBatchKMeans"))
    assert len(globular.load(folder / "model").cluster_centers_) == 36
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "clusters.png", "history.png", "model", "report.html", "time-quality.png",
    ]  # fmt: skip


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--version") == 0
    assert capsys.readouterr().out == f"globular {__version__}\n"
    assert command("--help") == 0
    told = capsys.readouterr()
    assert "demo" in told.out
    assert command() == 0
    assert capsys.readouterr() == told
    assert_refused(capsys, "fti", says="fti")


def test_a_bug_is_not_hidden(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.cli.options.open_tables", lambda *a, **k: {}["bug"])
    with pytest.raises(KeyError):
        command("info", data)


def test_the_traceback_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOBULAR_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no such file"):
        command("info", tmp_path / "missing.npy")


def test_help_is_fast_and_loads_nothing_heavy() -> None:
    code = "import sys; from globular.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert not {"numba", "sklearn", "scipy", "matplotlib", "pandas"} & set(done.stderr.split())


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "globular", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"globular {__version__}\n")


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a signal")
def test_ctrl_c_saves_what_there_is_and_exits_with_130(tmp_path: Path) -> None:
    np.save(tmp_path / "big.npy", np.random.default_rng(0).normal(size=(100_000, 8)).astype(np.float32))
    arguments = ["fit", "big.npy", "-k", "1000", "-o", "model", "--init", "random", "--algorithm", "lloyd"]
    arguments += ["--tol", "0", "--max-iter", "100000", "--checkpoint-every", "0.001"]
    process = subprocess.Popen(
        [sys.executable, "-m", "globular", *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "model" / "model.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and errors.endswith("globular: interrupted\n")
    document = json.loads((tmp_path / "model" / "model.json").read_text())
    assert document["attributes"]["n_iter_"] >= 1 and "labels_" in document["attributes"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["big.npy", "model"]


def test_the_shell_completes_commands() -> None:
    asked = {**os.environ, "_GLOBULAR_COMPLETE": "complete_bash", "COMP_WORDS": "globular fi", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "globular"], env=asked, capture_output=True, text=True)
    assert done.stdout.split() == ["fit"]
