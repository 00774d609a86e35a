"""Exports say the same as the model, and imports give what the other library found."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
import sklearn.mixture

import globular
from globular.cli.main import run
from globular.datasets import many_blobs
from globular.errors import DataError, MemoryBudgetError, MissingExtraError
from globular.export import centers_from, to_faiss_ivf, to_npy, to_onnx, write_faiss

X = many_blobs(800, 15, 6, random_state=0).X
QUERIES = many_blobs(200, 15, 6, random_state=1).X


@pytest.fixture(scope="module")
def model() -> Any:
    return globular.KMeans(15, random_state=0).fit(X)


def test_centers_from_models_arrays_and_files(model: Any, tmp_path: Path) -> None:
    peer = sklearn.cluster.KMeans(5, n_init=1, random_state=0).fit(X)
    np.testing.assert_array_equal(centers_from(peer), peer.cluster_centers_)
    mixture = sklearn.mixture.GaussianMixture(3, random_state=0).fit(X)
    np.testing.assert_array_equal(centers_from(mixture), mixture.means_)
    np.testing.assert_array_equal(centers_from(peer.cluster_centers_.tolist()), peer.cluster_centers_)
    globular.save(model, tmp_path / "model")
    to_npy(model, tmp_path / "centers.npy")
    for place in (tmp_path / "model", tmp_path / "centers.npy", str(tmp_path / "centers.npy")):
        np.testing.assert_array_equal(centers_from(place), model.cluster_centers_)
    assert centers_from(np.arange(6).reshape(3, 2)).dtype == np.float64
    copied = centers_from(model)
    copied[:] = 0
    assert model.cluster_centers_.any()


def test_centers_on_a_device_are_fetched() -> None:
    device = SimpleNamespace(get=lambda: np.ones((2, 3), dtype=np.float32))
    assert centers_from(SimpleNamespace(cluster_centers_=device)).shape == (2, 3)


def test_a_warm_start_never_ends_worse(model: Any) -> None:
    peer = sklearn.cluster.MiniBatchKMeans(15, n_init=1, max_iter=1, random_state=0).fit(X)
    continued = globular.KMeans(15, init=centers_from(peer)).fit(X)
    assert continued.inertia_ <= -peer.score(X) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (sklearn.cluster.KMeans(3), "call fit first"),
        (np.zeros((0, 3)), "minimum of 1"),
        (np.array([[1.0, np.nan]]), "NaN"),
        ("nowhere.npy", "nowhere.npy"),
        (3, "source|X must be"),
        (SimpleNamespace(cluster_centers_=np.zeros(3)), "no table of centres"),
    ],
)
def test_what_are_no_centers_is_refused(source: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        centers_from(source)


def test_faiss_index_has_our_lists(model: Any, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    index = to_faiss_ivf(model, X, n_probes=3)
    assert (index.nlist, index.ntotal, index.nprobe, index.is_trained) == (15, 800, 3, True)
    np.testing.assert_array_equal(centers_from(index), model.cluster_centers_)
    sizes = [index.invlists.list_size(c) for c in range(15)]
    np.testing.assert_array_equal(sizes, np.bincount(model.predict(X), minlength=15))
    apart = np.square(QUERIES[:, None].astype(float) - X).sum(axis=2)
    index.nprobe = 15
    np.testing.assert_array_equal(index.search(QUERIES, 1)[1].ravel(), apart.argmin(axis=1))
    path = write_faiss(index, tmp_path / "x.faiss")
    again = faiss.read_index(str(path))
    np.testing.assert_array_equal(again.search(QUERIES, 5)[1], faiss.downcast_index(index).search(QUERIES, 5)[1])


def test_faiss_with_the_cosine(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    model = globular.KMeans(6, metric="cosine", random_state=0).fit(X)
    rows = X.copy()
    index = to_faiss_ivf(model, rows, n_probes=6)
    np.testing.assert_array_equal(rows, X)  # scaled in a copy
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    similarity, ids = index.search(unit[:50], 1)
    np.testing.assert_allclose(similarity, 1.0, rtol=1e-5)
    assert (ids.ravel() == np.arange(50)).all()


@pytest.mark.parametrize("coarse", ["flat", "hnsw"])
def test_faiss_with_codes_and_a_graph_of_centres(coarse: Any, model: Any, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    flat = to_faiss_ivf(model, X, n_probes=15, coarse=coarse)
    np.testing.assert_array_equal(flat.search(X[:50], 1)[1].ravel(), np.arange(50))
    codes = faiss.read_index(
        str(write_faiss(to_faiss_ivf(model, X, n_probes=15, coarse=coarse, code_size=3), tmp_path / "c.faiss"))
    )
    assert (codes.ntotal, codes.nlist, faiss.downcast_index(codes).code_size) == (800, 15, 3)
    found = codes.search(X[:50].astype(np.float32), 5)[1]
    assert (found == np.arange(50)[:, None]).any(axis=1).mean() > 0.5
    quantizer = faiss.downcast_index(codes.quantizer)
    assert isinstance(quantizer, faiss.IndexHNSWFlat if coarse == "hnsw" else faiss.IndexFlat)
    np.testing.assert_allclose(centers_from(codes), model.cluster_centers_, rtol=1e-6)


def test_codes_that_cannot_be_are_refused(model: Any) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    with pytest.raises(ValueError, match="code_size must divide the 6 columns, got 4"):
        to_faiss_ivf(model, X, code_size=4)
    with pytest.raises(ValueError, match="codes are trained on rows; pass X"):
        to_faiss_ivf(model, code_size=3)
    with pytest.raises(ValueError, match="at least 256 rows to train on, X has 100"):
        to_faiss_ivf(model, X[:100], code_size=3)
    with pytest.raises(ValueError, match="coarse must be flat, hnsw or tree, got 'ball'"):
        to_faiss_ivf(model, coarse="ball")  # type: ignore[arg-type]


def test_centres_have_the_names_of_the_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame(X[:, :2], columns=["lon", "lat"])
    named = globular.KMeans(3, random_state=0).fit(frame)
    assert to_npy(named, tmp_path / "c.csv").read_text().startswith("lon,lat\n")
    assert pd.read_parquet(to_npy(named, tmp_path / "c.parquet")).columns.tolist() == ["lon", "lat"]


def test_centers_from_faiss_objects() -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    peer = faiss.Kmeans(6, 10, niter=3, seed=1)
    peer.train(X)
    np.testing.assert_array_equal(centers_from(peer), peer.centroids)
    clustering = faiss.Clustering(6, 10)
    clustering.train(X, faiss.IndexFlatL2(6))
    assert centers_from(clustering).shape == (10, 6)
    flat = faiss.IndexFlatL2(6)
    flat.add(X[:7])
    np.testing.assert_array_equal(centers_from(flat), X[:7])


def test_faiss_refuses_what_does_not_fit(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metric"):
        to_faiss_ivf(model, metric="manhattan")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_probes"):
        to_faiss_ivf(model, n_probes=0)
    pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    with pytest.raises(DataError, match="3 columns"):
        to_faiss_ivf(model, X[:, :3])
    with pytest.raises(DataError, match=r"\.faiss"):
        write_faiss(to_faiss_ivf(model), tmp_path / "x.bin")


def run_onnx(path: Path, rows: Any) -> list[Any]:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"X": rows}))


def needs_onnx() -> None:
    pytest.importorskip("onnx", reason="onnx is not installed; it is in the extra 'export'")


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_onnx_kmeans_labels_as_the_model_does(metric: str, dtype: Any, offset: float, tmp_path: Path) -> None:
    needs_onnx()
    rows, queries = (X + offset).astype(dtype), (QUERIES + offset).astype(dtype)
    found = globular.KMeans(15, metric=metric, random_state=0).fit(rows)
    label, distance = run_onnx(to_onnx(found, tmp_path / "m.onnx", dtype=dtype), queries)
    distances = found.transform(queries)
    chosen = distances[np.arange(len(label)), label]
    loose = {"rtol": 1e-3, "atol": 2e-3 if offset else 1e-4}
    np.testing.assert_allclose(chosen, distances.min(axis=1), **loose)  # ties within rounding aside
    np.testing.assert_allclose(distance, chosen, **loose)
    assert (label == found.predict(queries)).mean() > (0.95 if metric == "cosine" and offset else 0.99)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical", "tied_spherical"])
def test_onnx_mixture_says_what_the_model_says(covariance_type: str, tmp_path: Path) -> None:
    needs_onnx()
    rows = (X + 100).astype(np.float64)
    found = globular.GaussianMixture(5, covariance_type=covariance_type, random_state=0).fit(rows)
    queries = (QUERIES + 100).astype(np.float64)
    label, probabilities, likelihood = run_onnx(to_onnx(found, tmp_path / "m.onnx", dtype="float64"), queries)
    np.testing.assert_array_equal(label, found.predict(queries))
    np.testing.assert_allclose(probabilities, found.predict_proba(queries), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(likelihood, found.score_samples(queries), rtol=1e-8)
    label32 = run_onnx(to_onnx(found, tmp_path / "m32.onnx"), queries.astype(np.float32))[0]
    assert (label32 == label).mean() > 0.99


def test_onnx_of_other_mixtures_but_not_of_infinite_ones(tmp_path: Path) -> None:
    needs_onnx()
    variational = globular.VariationalGaussianMixture(10, weights="learned", random_state=0)
    for found in (variational, globular.ChunkyGaussianMixture(4, random_state=0)):
        label = run_onnx(to_onnx(found.fit(X), tmp_path / "m.onnx"), QUERIES)[0]
        assert (label == found.predict(QUERIES)).mean() > 0.99
    with pytest.raises(TypeError, match="averages over its posterior"):
        to_onnx(globular.InfiniteGaussianMixture(random_state=0).fit(X), tmp_path / "i.onnx")


def test_onnx_refuses_what_it_cannot_write(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"\.onnx"):
        to_onnx(model, tmp_path / "m.pb")
    with pytest.raises(ValueError, match="dtype"):
        to_onnx(model, tmp_path / "m.onnx", dtype="float16")  # type: ignore[arg-type]
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"globular\[export\]"):
        to_onnx(model, tmp_path / "m.onnx")
    monkeypatch.undo()
    needs_onnx()
    with pytest.raises(ValueError, match="not fitted"):
        to_onnx(globular.KMeans(3), tmp_path / "m.onnx")
    with pytest.raises(TypeError, match="no ONNX form"):
        to_onnx(sklearn.mixture.GaussianMixture(2).fit(X), tmp_path / "m.onnx")
    monkeypatch.setattr("globular.export.onnx._LARGEST_ONNX", 10)
    with pytest.raises(MemoryBudgetError, match="to_npy"):
        to_onnx(model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_missing_faiss_names_the_extra(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"globular\[export\]"):
        to_faiss_ivf(model)


def test_the_command_exports(model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    globular.save(model, tmp_path / "model")
    np.save(tmp_path / "x.npy", X)
    assert run(["export", str(tmp_path / "model"), "-o", str(tmp_path / "c.csv")]) == 0
    assert str(tmp_path / "c.csv") in capsys.readouterr().out
    np.testing.assert_array_equal(
        np.loadtxt(tmp_path / "c.csv", delimiter=",").astype(np.float32), model.cluster_centers_
    )
    for arguments, says in [
        (["-o", str(tmp_path / "m.bin")], "onnx"),
        (["-o", str(tmp_path / "m.npy"), "--data", str(tmp_path / "x.npy")], "--data"),
    ]:
        assert run(["export", str(tmp_path / "model"), *arguments]) == 2
        assert says in capsys.readouterr().err


def test_the_command_exports_onnx_and_faiss(model: Any, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    needs_onnx()
    globular.save(model, tmp_path / "model")
    np.save(tmp_path / "x.npy", X)
    command = ["export", str(tmp_path / "model"), "-q", "-o"]
    assert run([*command, str(tmp_path / "m.onnx")]) == 0
    assert run([*command, str(tmp_path / "m.faiss"), "--data", str(tmp_path / "x.npy"), "--probes", "4"]) == 0
    index = faiss.read_index(str(tmp_path / "m.faiss"))
    assert index.ntotal == 800 and faiss.downcast_index(index).nprobe == 4
    assert (run_onnx(tmp_path / "m.onnx", X)[0] == model.labels_).mean() > 0.99
