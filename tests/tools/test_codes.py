"""Residual quantisers outside of Python: the command, faiss, and the report page."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import globular
from globular.cli.main import run
from globular.export import to_faiss_residual, write_faiss

X = np.random.default_rng(0).normal(size=(600, 6)).astype(np.float32)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", X)
    return tmp_path / "rows.npy"


def command(*words: Any) -> int:
    return run([*map(str, words)])


def test_fit_encode_and_decode_give_what_python_gives(rows: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "model"
    assert command("fit", rows, "--residual", "16,8,8", "-o", folder, "--seed", 0) == 0
    assert "ResidualKMeans" in (shown := capsys.readouterr().out) and "[16, 8, 8]" in shown
    model = globular.ResidualKMeans([16, 8, 8], random_state=0).fit(X)
    assert command("encode", folder, rows, "-o", tmp_path / "codes.npy", "-q") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), model.encode(X))
    assert command("decode", folder, tmp_path / "codes.npy", "-o", tmp_path / "back.npy") == 0
    np.testing.assert_array_equal(np.load(tmp_path / "back.npy"), model.decode(model.encode(X)))
    for name in ("codes.csv", "codes.parquet"):
        assert command("encode", folder, rows, "-o", tmp_path / name, "--unique", "--beam", 3) == 0
        assert command("decode", folder, tmp_path / name, "-o", tmp_path / "back.npy", "--force") == 0
        expected = model.decode(model.encode(X, unique=True, beam=3))
        np.testing.assert_array_equal(np.load(tmp_path / "back.npy"), expected)
    assert len(pd.read_csv(tmp_path / "codes.csv").drop_duplicates()) == 600
    assert command("fit", rows, "--model", "residual-kmeans", "-k", 8, "--set", "n_levels=2", "-o", tmp_path / "b") == 0
    assert command("info", tmp_path / "b") == 0
    fit = ["fit", rows, "--residual", "16,8,8", "--set", "unique=True", "-o", tmp_path / "c", "--seed", 0, "-q"]
    assert command(*fit, "--labels", tmp_path / "labels.npy") == 0
    labels = np.load(tmp_path / "labels.npy")
    assert len(np.unique(labels, axis=0)) == 600
    np.testing.assert_array_equal(labels, globular.load(tmp_path / "c").codes_)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--residual", "8,x"], "--residual '8,x': write the clusters of each level"),
        (["--residual", "8,8", "-k", "3"], "leave out -k and --model"),
        (["--residual", "8,8", "--model", "gmm"], "leave out -k and --model"),
        (["--model", "residual-kmeans", "-k", "auto"], "no -k auto"),
        (["--residual", "8,0"], "n_clusters[1]=0"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(rows: Path, words: list[str], message: str, capsys: Any) -> None:
    assert command("fit", rows, *words, "-o", rows.with_name("model")) == 2
    assert message in capsys.readouterr().err
    assert not rows.with_name("model").exists()


def test_other_models_and_no_codes_are_refused(rows: Path, tmp_path: Path, capsys: Any) -> None:
    globular.save(globular.KMeans(3, random_state=0).fit(X), tmp_path / "kmeans")
    globular.save(globular.ResidualKMeans(4, random_state=0).fit(X), tmp_path / "model")
    assert command("encode", tmp_path / "kmeans", rows, "-o", tmp_path / "c.npy") == 2
    assert "holds a KMeans, which has no codes" in capsys.readouterr().err
    assert command("decode", tmp_path / "model", rows, "-o", tmp_path / "c.npy") == 2
    assert "codes must be whole numbers" in capsys.readouterr().err
    assert not (tmp_path / "c.npy").exists()


@pytest.mark.parametrize("sizes", [[16, 16], [5, 12, 3]], ids=str)
def test_faiss_decodes_and_searches_as_the_model_does(sizes: list[int], tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    model = globular.ResidualKMeans(sizes, random_state=0, beam=2).fit(X)
    index = to_faiss_residual(model, X)
    expected = model.decode(model.encode(X))
    found = index.reconstruct_n(0, len(X))
    assert np.square(X - found).sum() == pytest.approx(np.square(X - expected).sum(), rel=1e-3)
    assert np.isclose(found, expected, atol=1e-5).all(axis=1).mean() > 0.98
    assert index.rq.max_beam_size == 2 and index.ntotal == len(X)
    again = faiss.read_index(str(write_faiss(index, tmp_path / "codes.faiss")))
    np.testing.assert_array_equal(again.reconstruct_n(0, len(X)), found)
    globular.save(model, tmp_path / "model")
    assert command("export", tmp_path / "model", "-o", tmp_path / "books.faiss", "-q") == 0
    assert len(sizes) == faiss.read_index(str(tmp_path / "books.faiss")).rq.M
    assert to_faiss_residual(model).ntotal == 0


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_report_shows_the_first_level_and_tells_of_all(metric: str, tmp_path: Path) -> None:
    model = globular.ResidualKMeans([12, 7], random_state=0, metric=metric).fit(X)
    page = globular.report.write_report(model, tmp_path / "page.html", data=X).read_text(encoding="utf-8")
    figures = dict(re.findall(r"<dt>(level[^<]+|rows with[^<]+)</dt><dd>([^<]+)</dd>", page))
    assert figures["rows with the code of another row"] == f"{model.n_collisions_:,}"
    assert figures["level 2: inertia"] == f"{model.inertia_:.6g}"
    assert figures["level 2: words in use"].startswith("7 of 7, ")
    assert "ResidualKMeans" in page and json.dumps("rows")[1:-1] in page
    bare = globular.report.write_report(model, tmp_path / "bare.html").read_text(encoding="utf-8")
    assert "12 clusters" in bare
