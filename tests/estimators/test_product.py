"""Product codes: k-means of every group of columns, rotations, faiss, and what is refused."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from globular import KMeans, ProductKMeans
from globular.algorithms.kmeans.rotation import learn_rotation
from globular.estimators import inputs, product
from globular.export import to_faiss_pq, write_faiss
from globular.passes.cpu import CpuShard

random = np.random.default_rng(0)
X = (random.normal(size=(1200, 12)) * np.linspace(3, 0.3, 12) @ np.linalg.qr(random.normal(size=(12, 12)))[0]).astype(
    np.float32
)


def errors(model: ProductKMeans, rows: Any) -> Any:
    return np.square(rows - model.decode(model.encode(rows))).sum(axis=1, dtype=np.float64)


def test_each_group_of_columns_has_the_codebook_of_kmeans() -> None:
    model = ProductKMeans(3, 10, random_state=0).fit(X)
    assert model.codebooks_.shape == (3, 10, 4) and model.codebooks_.dtype == np.float32
    first = KMeans(10, quality="fast", random_state=0).fit(np.ascontiguousarray(X[:, :4]))
    np.testing.assert_array_equal(model.codebooks_[0], first.cluster_centers_)
    codes = model.encode(X)
    assert codes.shape == (1200, 3) and codes.dtype == np.uint8
    for m in range(3):
        d2 = np.square(X[:, None, 4 * m : 4 * m + 4] - model.codebooks_[m]).sum(axis=2)
        np.testing.assert_array_equal(codes[:, m], d2.argmin(axis=1))
    assert model.inertia_ == pytest.approx(errors(model, X).sum(), rel=1e-5)
    assert model.inertia_ == pytest.approx(model.inertia_per_subspace_.sum())
    for same in (model.predict(X), model.transform(X), model.fit_transform(X)):
        np.testing.assert_array_equal(same, codes)
    np.testing.assert_array_equal(model.inverse_transform(codes), model.decode(codes))
    assert model.get_feature_names_out().tolist() == ["productkmeans0", "productkmeans1", "productkmeans2"]


def test_a_rotation_is_one_and_lowers_the_error() -> None:
    plain, turned = (ProductKMeans(4, 16, rotation=kind, random_state=0).fit(X) for kind in (None, "opq"))
    assert plain.rotation_ is None
    np.testing.assert_allclose(turned.rotation_ @ turned.rotation_.T, np.eye(12), atol=1e-5)
    assert turned.inertia_ < 0.9 * plain.inertia_
    assert turned.inertia_ == pytest.approx(errors(turned, X).sum(), rel=1e-4)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_rotations_depend_neither_on_the_unit_nor_on_the_place(scale: float) -> None:
    rows, seeds = X.astype(np.float64), (np.random.default_rng(0) for _ in range(2))
    one, other = (
        learn_rotation(CpuShard(shifted), 3, 8, rng)
        for shifted, rng in zip((rows, scale * (rows + 5.0)), seeds, strict=True)
    )
    np.testing.assert_allclose(abs(one), abs(other), atol=1e-2)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")
def test_constant_rows_and_columns_have_a_rotation() -> None:
    for rows in (np.ones((50, 4)), np.round(X[:50, :4]) * [1, 0, 0, 0]):
        model = ProductKMeans(2, 20, rotation="opq", random_state=0).fit(rows)
        assert np.isfinite(model.rotation_).all() and errors(model, rows).max() < 1e-8


@pytest.mark.parametrize("rotation", [None, "opq"])
def test_threads_copies_and_files_change_nothing(
    rotation: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (ProductKMeans(3, 9, rotation=rotation, random_state=0, n_threads=n).fit(X) for n in (1, 2))
    np.testing.assert_array_equal(one.codebooks_, two.codebooks_)
    np.save(tmp_path / "rows.npy", X)
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    streamed = ProductKMeans(3, 9, rotation=rotation, random_state=0).fit(tmp_path / "rows.npy")
    codes = one.encode(X)
    for model in (
        pickle.loads(pickle.dumps(one)), globular.load(globular.save(one, tmp_path / "model")), two, streamed,
    ):  # fmt: skip
        np.testing.assert_array_equal(model.codebooks_, one.codebooks_)
        np.testing.assert_array_equal(model.encode(X), codes)
        np.testing.assert_array_equal(model.decode(codes), one.decode(codes))
    np.testing.assert_array_equal(one.encode(tmp_path / "rows.npy"), codes)


def test_weights_are_repetitions_and_zeros_do_not_count() -> None:
    rows = np.round(X[:200])
    weights = random.integers(0, 3, size=200)
    weighted = ProductKMeans(12, 5, random_state=0).fit(rows, sample_weight=weights)  # columns, each an optimum
    repeated = ProductKMeans(12, 5, random_state=0).fit(np.repeat(rows, weights, axis=0))
    np.testing.assert_allclose(weighted.codebooks_, repeated.codebooks_, atol=1e-5)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-5)
    heavy = ProductKMeans(3, 5, rotation="opq", random_state=0).fit(X, sample_weight=np.where(X[:, 0] > 0, 1.0, 0.0))
    right = X[:, 0] > 0
    assert heavy.inertia_ == pytest.approx(errors(heavy, X[right]).sum(), rel=1e-4)


def test_blocks_and_samples_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ProductKMeans(3, 9, rotation="opq", random_state=0).fit(X)
    monkeypatch.setattr(product, "ROWS_PER_BLOCK", 64)
    blocks = ProductKMeans(3, 9, rotation="opq", random_state=0).fit(X)
    assert blocks.inertia_ == pytest.approx(whole.inertia_, rel=1e-3)
    monkeypatch.setattr(product, "ROTATION_ROWS", 300)
    some = ProductKMeans(3, 9, rotation="opq", random_state=0).fit(X)
    assert some.inertia_ == pytest.approx(whole.inertia_, rel=0.1)


def test_types_of_codes_and_of_rows() -> None:
    rows = random.normal(size=(400, 2))
    model = ProductKMeans(2, 300, random_state=0).fit(rows)
    assert model.encode(rows).dtype == np.uint16 and model.codebooks_.dtype == np.float64
    small = ProductKMeans(3, 8, rotation="opq", random_state=0).fit((10 * X).astype(np.int8))
    assert small.codebooks_.dtype == np.float32 and small.encode((10 * X).astype(np.int8)).shape == (1200, 3)


def test_a_fit_is_a_loop_over_the_records_of_all_groups() -> None:
    model = ProductKMeans(3, 8, random_state=0)
    records = list(model.fit_iter(X))
    assert list(model.history_) == records and model.n_iter_ >= 3


@pytest.mark.parametrize("rotation", [None, "opq"])
@pytest.mark.parametrize("k", [16, 256])
def test_faiss_has_the_same_codes(rotation: str | None, k: int, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    model = ProductKMeans(4, k, rotation=rotation, random_state=0).fit(X)
    index = to_faiss_pq(model)
    index.add(X)
    np.testing.assert_allclose(index.reconstruct_n(0, 1200), model.decode(model.encode(X)), atol=1e-4)
    again = faiss.read_index(str(write_faiss(index, tmp_path / "codes.faiss")))
    np.testing.assert_array_equal(again.search(X[:9], 3)[1], index.search(X[:9], 3)[1])
    if k == 256:
        inner = faiss.downcast_index(index.index) if rotation else index
        np.testing.assert_array_equal(faiss.vector_to_array(inner.codes).reshape(-1, 4), model.encode(X))


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n_subspaces=5 does not divide the 12 columns of X; take a divisor"):
        ProductKMeans(5, 4).fit(X)
    with pytest.raises(ValueError, match="n_samples=1200 should be >= n_clusters=2000"):
        ProductKMeans(3, 2000).fit(X)
    with pytest.raises(ValueError, match="rotation"):
        ProductKMeans(3, 4, rotation="pca").fit(X)
    model = ProductKMeans(3, 6, random_state=0).fit(X)
    for codes in ([[0, 1, 6]], [[0, -1, 2]], [[0, 1]], [[0.5, 1.0, 2.0]]):
        with pytest.raises(ValueError, match="codes"):
            model.decode(codes)
    with pytest.raises(ValueError, match=r"n_clusters=6 is no power of two"):
        to_faiss_pq(model)
    with pytest.raises(ValueError, match="codebooks_ has shape"):
        globular.save(model.set_params(n_subspaces=4), tmp_path / "model")
