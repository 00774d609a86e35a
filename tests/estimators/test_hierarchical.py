"""Trees of clusters: what belongs together, resampling, and samples that are balanced over the tree."""

from pathlib import Path

import numpy as np
import pytest

import globular
from globular import HierarchicalKMeans, KMeans
from globular.datasets import many_blobs
from globular.estimators.hierarchical import even_shares
from globular.export import centers_from, to_faiss_ivf, to_tree_table
from globular.plotting import plot_icicle
from globular.report import write_report
from reference import assign

X = many_blobs(3000, 40, 3, center_std=8.0, random_state=0).X
LEVELS = (60, 12, 3)


@pytest.fixture(scope="module")
def model() -> HierarchicalKMeans:
    return HierarchicalKMeans(LEVELS, random_state=0).fit(X)


@pytest.mark.parametrize("options", [{}, {"resample": 2}, {"resample": 1, "sample_size": 3, "weighted": True}])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_every_cluster_belongs_to_the_closest_one_above(options: dict, metric: str) -> None:
    model = HierarchicalKMeans(LEVELS, metric=metric, random_state=0, **options).fit(X.astype(np.float32))
    levels = [model.cluster_centers_, *model.upper_centers_]
    assert [len(centers) for centers in levels] == list(LEVELS) and levels[1].dtype == np.float32
    for centers, above, parents in zip(levels, levels[1:], model.parents_, strict=False):
        seen = assign.as_seen(centers, unit_rows=metric == "cosine")
        np.testing.assert_array_equal(parents, assign.closest_centers(seen, above.astype(np.float64)))
        assert np.bincount(parents).min() > 0
    np.testing.assert_array_equal(model.labels_, model.predict(X.astype(np.float32)))
    np.testing.assert_array_equal(model.level_labels_[:, 0], model.labels_)
    np.testing.assert_array_equal(model.level_labels_[:, 2], model.parents_[1][model.level_labels_[:, 1]])


def test_the_table_of_the_tree_has_all_clusters(model: HierarchicalKMeans) -> None:
    nodes = model.tree_
    assert len(nodes) == sum(LEVELS) and nodes["parent"][-3:].tolist() == [-1, -1, -1]
    np.testing.assert_array_equal(nodes["level"], np.repeat([0, 1, 2], LEVELS))
    for place, node in enumerate(nodes):
        rows = model.level_labels_[:, node["level"]] == node["number"]
        assert node["size"] == rows.sum()
        if node["parent"] >= 0:
            above = nodes[node["parent"]]
            assert above["level"] == node["level"] + 1
            assert above["size"] == nodes["size"][nodes["parent"] == node["parent"]].sum(), place


def test_one_level_is_k_means_and_levels_below_do_not_know_those_above(model: HierarchicalKMeans) -> None:
    one = HierarchicalKMeans(60, random_state=0).fit(X)
    np.testing.assert_array_equal(one.cluster_centers_, model.cluster_centers_)
    assert one.parents_ == [] and one.level_labels_.shape == (3000, 1) and one.sample(10).shape == (10,)
    assert one.inertia_ <= 1.02 * KMeans(60, random_state=0).fit(X).inertia_


def test_weights_are_repetitions_of_rows_and_lead_centers_only_if_asked() -> None:
    rows, weights = np.repeat(X[:600], 2, axis=0), np.full(600, 2.0)
    init = {"algorithm": "lloyd", "random_state": 0}
    one = HierarchicalKMeans((20, 4), weighted=True, **init).fit(X[:600], sample_weight=weights)
    two = HierarchicalKMeans((20, 4), weighted=True, **init).fit(X[:600])
    np.testing.assert_array_equal(one.level_labels_, two.level_labels_)  # all rows weigh the same
    assert two.inertia_ * 2 == pytest.approx(one.inertia_)
    assert HierarchicalKMeans((20, 4), **init).fit(rows).tree_["size"][:20].sum() == 1200
    heavy = np.where(np.arange(600) < 300, 100.0, 1.0)
    plain, led = (
        HierarchicalKMeans((20, 4), weighted=weighted, **init).fit(X[:600], sample_weight=heavy)
        for weighted in (False, True)
    )
    np.testing.assert_array_equal(plain.cluster_centers_, led.cluster_centers_)
    sums = np.bincount(led.labels_, heavy, minlength=20)
    for c, center in enumerate(led.upper_centers_[0]):
        own = led.parents_[0] == c
        np.testing.assert_allclose(center, np.average(led.cluster_centers_[own], axis=0, weights=sums[own]))
        own = plain.parents_[0] == c
        np.testing.assert_allclose(plain.upper_centers_[0][c], plain.cluster_centers_[own].mean(axis=0))


def test_resampling_spreads_clusters_over_what_there_is() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(5000, 2)), rng.uniform(-12, 12, size=(400, 2))])
    plain, resampled = (HierarchicalKMeans((80, 8), resample=n, random_state=0).fit(rows) for n in (0, 3))

    def in_the_crowd(model: HierarchicalKMeans) -> int:
        return int((np.linalg.norm(model.cluster_centers_, axis=1) < 2.5).sum())

    assert in_the_crowd(resampled) < in_the_crowd(plain)
    assert resampled.inertia_ == pytest.approx(
        np.square(rows - resampled.cluster_centers_[resampled.labels_]).sum(), rel=1e-9
    )


def test_a_sample_is_even_over_the_tree(model: HierarchicalKMeans) -> None:
    for n in (1, 7, 300, 3000):
        rows = model.sample(n, random_state=3)
        assert len(np.unique(rows)) == n and (np.diff(rows) > 0).all() if n > 1 else len(rows) == 1
        top = np.bincount(model.level_labels_[rows, 2], minlength=3)
        sizes = model.tree_["size"][-3:]
        short = top < top.max() - 1  # who got less has no more
        np.testing.assert_array_equal(top[short], sizes[short])
    np.testing.assert_array_equal(model.sample(50, random_state=1), model.sample(50, random_state=1))
    assert (model.sample(50, random_state=1) != model.sample(50, random_state=2)).any()
    for wrong, message in ((0, "n_samples"), (3001, "n_samples=3001 is more than the 3000 rows")):
        with pytest.raises(ValueError, match=message):
            model.sample(wrong)


@pytest.mark.parametrize("n", [0, 1, 5, 17, 30])
def test_shares_are_even_but_for_those_who_have_less(n: int) -> None:
    sizes = np.array([0, 1, 2, 10, 17])
    shares = even_shares(n, sizes, np.random.default_rng(0))
    assert shares.sum() == n and (shares <= sizes).all()
    full = shares == sizes
    assert full.all() or (np.ptp(shares[~full]) <= 1 and (shares[full] <= shares[~full].max()).all())


def test_a_loop_that_is_left_has_one_level() -> None:
    model = HierarchicalKMeans(LEVELS, random_state=0)
    next(iter(model.fit_iter(X)))
    assert model.parents_ == [] and len(model.predict(X[:5])) == 5


def test_bad_levels_are_refused(tmp_path: Path) -> None:
    for levels in ((3, 12), (4, 4), (), (5, 0), (2.5, 1), "ab", ((4, 2), (2, 1))):
        with pytest.raises((ValueError, TypeError), match="n_clusters"):
            HierarchicalKMeans(levels).fit(X)
    with pytest.raises(ValueError, match="n_samples=3 should be >= n_clusters=60"):
        HierarchicalKMeans(LEVELS).fit(X[:3])
    model = HierarchicalKMeans((6, 2), random_state=0).fit(X)
    model.parents_ = [model.parents_[0][:3]]
    with pytest.raises(ValueError, match="parents_"):
        globular.save(model, tmp_path / "model")


def test_tables_hold_the_tree(model: HierarchicalKMeans, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    vectors = np.concatenate([model.cluster_centers_, *model.upper_centers_])
    lines = to_tree_table(model, tmp_path / "tree.csv").read_text().splitlines()
    table = parquet.read_table(to_tree_table(model, tmp_path / "tree.parquet"))
    assert len(lines) == 1 + sum(LEVELS) and lines[0] == "id,parent,vector"
    for number in (0, 61, 74):
        mark, parent, vector = lines[1 + number].split(",", 2)
        assert int(mark) == number and (parent == "") == (number > 71)
        np.testing.assert_array_equal(np.array(vector.strip('"[]').split(","), dtype=float), vectors[number])
        assert table["parent"][number].as_py() == (int(parent) if parent else None)
        np.testing.assert_array_equal(table["vector"][number].as_py(), vectors[number])
    with pytest.raises(TypeError, match="HierarchicalKMeans"):
        to_tree_table(KMeans(2).fit(X[:9]), tmp_path / "tree.csv")
    np.testing.assert_array_equal(centers_from(model), model.cluster_centers_)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_an_index_finds_its_lists_by_the_level_above(metric: str) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed; it is in the extra 'export'")
    rows = X.astype(np.float32)
    model = HierarchicalKMeans((60, 6), metric=metric, random_state=0).fit(rows)
    tree, flat = (to_faiss_ivf(model, rows, n_probes=60, coarse=coarse) for coarse in ("tree", "flat"))
    queries = rows[:50] / np.linalg.norm(rows[:50], axis=1, keepdims=True) if metric == "cosine" else rows[:50]
    np.testing.assert_array_equal(tree.search(queries, 3)[1], flat.search(queries, 3)[1])
    with pytest.raises(TypeError, match="coarse='tree' needs a fitted HierarchicalKMeans"):
        to_faiss_ivf(model.cluster_centers_, coarse="tree")


def test_the_picture_has_a_box_for_each_cluster(model: HierarchicalKMeans) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    axes = plot_icicle(model)
    assert [len(boxes.get_paths()) for boxes in axes.collections] == [3, 12, 60]
    for boxes in axes.collections:
        spans = np.array([path.get_extents().intervalx for path in boxes.get_paths()])
        np.testing.assert_allclose(np.sort(spans[:, 0])[1:], np.sort(spans[:, 1])[:-1])
        assert spans.min() == 0 and spans.max() == pytest.approx(1.0)
    assert axes.get_title() == "3 > 12 > 60 clusters"
    with pytest.raises(TypeError, match="tree_"):
        plot_icicle(KMeans(2).fit(X[:9]))


def test_a_report_tells_of_the_lowest_level(model: HierarchicalKMeans, tmp_path: Path) -> None:
    page = write_report(model, tmp_path / "report.html", data=X).read_text(encoding="utf-8")
    assert "HierarchicalKMeans" in page and "60" in page
