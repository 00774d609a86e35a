"""The recipes run, and do what they say."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.cluster import MiniBatchKMeans

from harness.data import data_folder
from recipes import (
    city_map,
    curate,
    cytometry,
    ivf_index,
    palette,
    plaid,
    semantic_ids,
    semdedup,
    speech_units,
    splat_codebook,
    weight_palette,
)

ROOT = Path(__file__).parents[2]


def test_ivf_recall_grows_with_the_probes_and_matches_faiss() -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    ours, theirs = ivf_index.main(["--small", "--queries", "200"])
    for result in (ours, theirs):
        assert (np.diff(list(result.recall.values())) >= 0).all()
        assert result.recall[32] > 0.9 and result.training_seconds > 0
    assert ours.recall[4] > theirs.recall[4] - 0.05


def test_semdedup_drops_the_planted_copies_and_little_else(tmp_path: Path) -> None:
    path = semdedup.planted(tmp_path / "x.npy", 4000)
    kept = semdedup.main([str(path), "-o", str(tmp_path / "kept.npy")])
    np.testing.assert_array_equal(np.load(tmp_path / "kept.npy"), kept)
    pairs = np.arange(5, 4000, 5)
    alive = np.isin(pairs, kept).astype(int) + np.isin(pairs - 1, kept)
    assert (alive == 1).mean() > 0.97  # one of each pair stays; a pair in two clusters is not seen
    others = np.setdiff1d(np.arange(4000), np.concatenate([pairs, pairs - 1]))
    assert np.isin(others, kept).mean() > 0.99


def test_semdedup_never_drops_the_last_of_a_group() -> None:
    rows = np.repeat(np.eye(4, dtype=np.float32), 5, axis=0)
    keep = semdedup.keep_of_cluster(rows, rows.mean(axis=0), 0.95)
    assert keep.reshape(4, 5).sum(axis=1).tolist() == [1, 1, 1, 1]


def test_plaid_residuals_bring_the_vectors_closer() -> None:
    two, four = (plaid.main(["--small", "--bits", bits]) for bits in ("2", "4"))
    assert two.bytes_per_vector == 36 and four.bytes_per_vector == 68
    assert two.centroid_similarity < two.similarity < four.similarity <= 1.0
    assert two.n_centroids == 2**10


def test_semantic_ids_are_unique_and_stand_beside_their_items(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed; it is in the extra 'io'")
    items = semantic_ids.generated(tmp_path / "items.parquet", 3000)
    result = semantic_ids.main(["--small", str(items), "-o", str(tmp_path / "ids.parquet")])
    table = parquet.read_table(tmp_path / "ids.parquet")
    assert table.column_names == ["name", "embedding", "semantic_id"]
    codes = np.array(table["semantic_id"].to_pylist())
    np.testing.assert_array_equal(codes, result.codes)
    assert len(np.unique(codes, axis=0)) == 3000 and result.n_collisions >= 30  # so many rows are repeated
    assert (np.diff(result.errors) < 0).all() and result.errors[-1] < 1.05 * result.errors_before[-1]
    pytest.importorskip("matplotlib", reason="matplotlib is not installed; it is in the extra 'plot'")
    semantic_ids.draw(result, str(tmp_path / "ids.png"))
    assert (tmp_path / "ids.png").stat().st_size > 10_000


def test_palette_of_the_colours_is_that_of_the_pixels(tmp_path: Path) -> None:
    few, many = (palette.main(["--small", "-k", k]) for k in ("8", "64"))
    assert few.psnr < many.psnr and few.colors.shape == (8, 3)
    assert {tuple(color) for color in np.unique(few.image.reshape(-1, 3), axis=0)} <= {tuple(c) for c in few.colors}
    flat = palette.reduce_colors(np.zeros((4, 4, 3), dtype=np.uint8), 5)
    assert flat.psnr == np.inf and flat.n_distinct == 1
    pytest.importorskip("matplotlib")
    palette.main(["--small", "-k", "8", "-o", str(tmp_path / "p.png")])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_weight_palettes_are_closer_than_even_steps(tmp_path: Path) -> None:
    few, many = (weight_palette.main(["--small", "-k", k]) for k in ("4", "16"))
    assert few.decibels < many.decibels and many.decibels > many.decibels_of_even_steps + 2.0
    layers = weight_palette.generated(64)
    for layer, palettes, codes in zip(layers, many.palettes, many.codes, strict=True):
        distances = np.abs(layer[:, :, None] - palettes[:, None])
        np.testing.assert_array_equal(codes, distances.argmin(axis=2))
    save_file({"a": layers[0], "bias": layers[0][0]}, tmp_path / "w.safetensors")
    result = weight_palette.main([str(tmp_path / "w.safetensors")])
    np.testing.assert_array_equal(result.palettes[0], many.palettes[0])
    pytest.importorskip("matplotlib")
    weight_palette.main(["--small", "-o", str(tmp_path / "p.png")])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_city_map_serves_everybody_and_gets_closer_with_more_depots(tmp_path: Path) -> None:
    few, many = (city_map.main(["--small", "-k", k]) for k in ("10", "100"))
    total = city_map.generated()[1].sum()
    for depots in (few, many):
        assert depots.people.sum() == pytest.approx(total)
        assert (np.abs(depots.degrees) <= [180, 90]).all()
    assert many.mean_km < few.mean_km / 2
    pytest.importorskip("matplotlib")
    city_map.main(["--small", "-k", "10", "-o", str(tmp_path / "m.png")])
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")


def test_speech_units_are_those_of_the_file_and_as_good_as_scikit_learns(tmp_path: Path) -> None:
    features, path = tmp_path / "features", tmp_path / "km.joblib"
    features.mkdir()
    speech_units.generated(features, 20)
    result = speech_units.main([str(features), "-k", "40", "-o", str(path)])
    utterances = [np.load(file) for file in sorted(features.glob("*.npy"))]
    for units, again in zip(result.units, speech_units.write_units(path, utterances), strict=True):
        np.testing.assert_array_equal(units, again)
        assert (units[1:] != units[:-1]).all()
    frames = np.concatenate(utterances)
    assert result.n_frames / sum(map(len, result.units)) > 5  # phones last 7.5 frames
    theirs = MiniBatchKMeans(40, batch_size=10_000, max_no_improvement=100, n_init=3, tol=0.0, random_state=0)
    assert result.inertia_per_frame < 1.02 * theirs.fit(frames).inertia_ / len(frames)


def test_cytometry_finds_the_populations_and_their_number(tmp_path: Path) -> None:
    found = cytometry.main(["--small", "-o", str(tmp_path / "labels.npy")])
    assert found.n_components == 7  # six populations and the debris
    assert found.agreement > 0.95 and found.purity > 0.95
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), found.labels)


def test_cytometry_figures_leave_out_cells_without_a_gate() -> None:
    gate = np.array([0, 0, 1, 1, 2, 2])
    cells = cytometry.Cells(np.zeros((6, 1), dtype=np.float32), gate, ("a", "b", cytometry.UNGATED))
    perfect = cytometry.compare(cells, np.array([5, 5, 1, 1, 1, 5]))
    assert perfect.n_components == 2 and perfect.agreement == 1.0 and perfect.purity == 1.0
    assert cytometry.compare(cells, np.array([0, 0, 0, 1, 2, 2])).purity == 0.75


@pytest.mark.realdata
def test_cytometry_on_real_cells_keeps_gates_apart(real_data, monkeypatch):
    monkeypatch.setenv("GLOBULAR_DATA", str(data_folder()))
    real_data("flowsom_ff")
    cells = cytometry.measured()
    some = cytometry.Cells(cells.X[::4], cells.gate[::4], cells.names)
    monkeypatch.setattr(cytometry, "measured", lambda: some)
    found = cytometry.main(["--min-split-gain", "0.1"])
    assert found.purity > 0.9 and found.n_components < 60


def test_curation_keeps_what_is_rare(tmp_path: Path) -> None:
    found = curate.main(["--small", "-o", str(tmp_path / "kept.npy")])
    np.testing.assert_array_equal(np.load(tmp_path / "kept.npy"), found.rows)
    assert len(found.rows) == 500 and found.evenness > 0.9 > found.random_evenness
    assert found.n_concepts > 1.2 * found.n_random_concepts
    np.save(tmp_path / "x.npy", curate.crowded(600)[0])
    assert len(curate.main([str(tmp_path / "x.npy"), "--levels", "12,3", "--rows", "40"]).rows) == 40


def test_a_codebook_keeps_the_colours_of_splats(tmp_path: Path) -> None:
    few, many = (splat_codebook.main(["--small", "-k", k, "-o", str(tmp_path / "c.npz")]) for k in ("64", "512"))
    assert few.kept < many.kept < 1.0 and many.colors.shape == (512, 45)
    assert np.load(tmp_path / "c.npz")["codes"].dtype == np.uint16
    names = ["x", *(f"f_rest_{i}" for i in range(45)), "opacity", "scale_0", "scale_1", "scale_2"]
    splats = np.random.default_rng(0).normal(size=(200, len(names))).astype("<f4")
    header = ["ply", "format binary_little_endian 1.0", "element vertex 200", *(f"property float {n}" for n in names)]
    path = tmp_path / "splats.ply"
    path.write_bytes("\n".join([*header, "end_header", ""]).encode() + splats.tobytes())
    X, weights = splat_codebook.read_splats(path)
    np.testing.assert_array_equal(X, splats[:, 1:46])
    assert weights.shape == (200,) and np.median(weights) == 1.0
    assert splat_codebook.main([str(path), "-k", "20"]).codes.max() == 19
    path.write_bytes(path.read_bytes().replace(b"f_rest_44", b"g_rest_44"))
    with pytest.raises(ValueError, match="has no f_rest_44"):
        splat_codebook.read_splats(path)


def test_every_recipe_is_on_the_page() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    names = [path.stem for path in (ROOT / "recipes").glob("[!_]*.py")]
    assert len(names) >= 5
    for name in names:
        assert f"recipes/{name}.py" in page, name
