"""Coresets: all but unbiased, of the weight and the means of all rows, whole where there is nothing to leave out, the
same wherever the rows lie, and good to fit to."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import globular
from globular import GaussianMixture, KMeans, coresets, datasets
from globular.cli.main import run
from reference import assign as hard
from reference import seeds as d2

KINDS = ("k-means", "mixture")


def rows_of(n: int = 6000, dtype: Any = np.float64) -> Any:
    return datasets.many_blobs(n, 12, 3, random_state=0).X.astype(dtype)


def error(X: Any, centers: Any, weights: Any = None) -> float:
    distances = hard.squared_distances(np.asarray(X, dtype=np.float64), centers).min(axis=1)
    return float(distances.sum() if weights is None else weights @ distances)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_error_and_likelihood_of_any_model_are_nearly_unbiased(kind: Any, weighted: bool) -> None:
    """The mean over many draws is the value of all rows, within four standard errors and what calibration costs.

    That is one of the rows of a group: here all 200 rows are one.
    """
    X, random = rows_of(3000), np.random.default_rng(0)
    w = random.gamma(1.0, size=len(X)) if weighted else None
    centers = X[random.choice(len(X), 5, replace=False)]
    mixture = GaussianMixture(5, covariance_type="diag", max_iter=5, random_state=0, tol=0.5).fit(X)
    scores = mixture.score_samples(X)
    found = []
    for seed in range(60):
        part = coresets.coreset(X, 200, kind=kind, sample_weight=w, random_state=seed)
        logs = mixture.score_samples(part.rows)
        found.append([error(part.rows, centers, part.weights), part.weights @ logs])
    every = np.ones(len(X)) if w is None else w
    wanted = np.array([error(X, centers, every), every @ scores])
    spread = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - wanted) < 4 * spread + np.abs(wanted) / 200).all()
    assert (spread < 0.02 * np.abs(wanted)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_groups_weigh_what_they_do_among_all_rows_and_have_their_means(kind: Any) -> None:
    from globular.algorithms import calibration
    from globular.passes.cpu import CpuShard

    X, random = rows_of(20_000), np.random.default_rng(0)
    w = random.gamma(2.0, size=len(X))
    centers: list[Any] = []

    class Watched(CpuShard):
        def run(self, work: Any) -> Any:
            if isinstance(work, calibration.Assign):
                centers.append(np.asarray(work.centers))
            return super().run(work)

    plain = coresets._DRAWS[kind](CpuShard(X, w), 2000, np.random.default_rng(0))
    found = calibration.calibrated(Watched(X, w), plain, random)
    assert (found.weights >= 0.05 * plain.weights).all()
    assert found.weights.sum() == pytest.approx(w.sum(), rel=1e-12)
    G = len(centers[-1])
    assert len(plain.indices) // 192 == G
    groups = hard.squared_distances(X, centers[-1]).argmin(axis=1)
    mine = groups[found.indices]
    for g in range(G):
        all_rows, ours = groups == g, found.indices[mine == g]
        assert found.weights[mine == g].sum() == pytest.approx(w[all_rows].sum(), rel=1e-12)
        mean = np.average(X[all_rows], axis=0, weights=w[all_rows])
        np.testing.assert_allclose(np.average(X[ours], axis=0, weights=found.weights[mine == g]), mean, atol=1e-9)


def test_weights_stay_positive_where_the_mean_cannot_be_reached() -> None:
    from globular.algorithms.calibration import agreeing

    rows, weights = np.random.default_rng(0).normal(size=(40, 3)), np.full(40, 2.0)
    far = agreeing(rows, weights, 100.0, np.full(3, 50.0))
    assert far.min() == pytest.approx(0.25) and far.sum() == pytest.approx(100.0, rel=1e-12)
    before, after = rows.mean(axis=0), far @ rows / 100.0
    assert (after > before).all()
    rows[:, 1] = 1e8  # a column that does not vary
    near = agreeing(rows, weights, 100.0, rows.mean(axis=0) + [0.05, 0.0, 0.05])
    np.testing.assert_allclose((near / 100.0 - 1 / 40) @ rows[:, [0, 2]], 0.05, atol=1e-9)


def test_of_wide_rows_the_weight_alone_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    from globular.algorithms import calibration

    X = rows_of(3000)
    monkeypatch.setattr(calibration, "TAKEN_NUMBERS", 100)
    found = coresets.coreset(X, 200, random_state=0)
    assert found.weights.sum() == pytest.approx(3000, rel=1e-12)
    wide = np.random.default_rng(0).normal(size=(300, 50))  # fewer rows drawn than a mean has need of
    assert coresets.coreset(wide, 60).weights.sum() == pytest.approx(300, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_coreset_of_all_rows_is_the_data(kind: Any) -> None:
    X = rows_of(300, np.float32)
    found = coresets.coreset(X, 300, kind=kind, random_state=0)
    np.testing.assert_array_equal(found.rows, X)
    np.testing.assert_array_equal(found.weights, np.ones(300))
    np.testing.assert_array_equal(found.indices, np.arange(300))
    weights = np.tile([0.0, 2.0, 0.5], 100)
    found = coresets.coreset(X, 1000, kind=kind, sample_weight=weights)
    np.testing.assert_array_equal(found.indices, np.flatnonzero(weights))
    np.testing.assert_array_equal(found.weights, weights[weights > 0])
    np.testing.assert_array_equal(found.rows, X[weights > 0])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_data_and_weights_of_zero_are_never_drawn(kind: Any) -> None:
    X = rows_of(4000, np.float32)
    weights = np.where(np.arange(len(X)) % 3 == 0, 0.0, 1.0 + np.arange(len(X)) % 5)
    found = coresets.coreset(X, 400, kind=kind, sample_weight=weights, random_state=1)
    assert found.indices is not None and found.rows.dtype == np.float32 and 300 < len(found) <= 400
    np.testing.assert_array_equal(found.rows, X[found.indices])
    assert (weights[found.indices] > 0).all() and (np.diff(found.indices) > 0).all()
    assert found.weights.sum() == pytest.approx(weights.sum(), rel=1e-12)
    tiny = coresets.coreset(X, 400, kind=kind, sample_weight=weights * 1e-80, random_state=1)
    np.testing.assert_array_equal(tiny.indices, found.indices)
    np.testing.assert_allclose(tiny.weights, 1e-80 * found.weights, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_files_and_partitions_change_nothing(kind, tmp_path, monkeypatch):
    X = rows_of(5000, np.float32)
    one = coresets.coreset(X, 300, kind=kind, random_state=0, n_threads=1)
    two = coresets.coreset(X, 300, kind=kind, random_state=0, n_threads=2)
    np.testing.assert_array_equal(one.indices, two.indices)
    np.testing.assert_array_equal(one.weights, two.weights)
    for number, part in enumerate(np.array_split(X, 3)):
        np.save(tmp_path / f"part-{number}.npy", part)
    monkeypatch.setattr("globular.estimators.inputs.MEMORY_SHARE", 0.0)  # streamed
    streamed = coresets.coreset(tmp_path, 300, kind=kind, random_state=0)
    np.testing.assert_array_equal(streamed.indices, one.indices)
    np.testing.assert_allclose(streamed.weights, one.weights, rtol=1e-9)
    np.testing.assert_array_equal(streamed.rows, one.rows)


def test_dask_collections_are_drawn_where_they_lie() -> None:
    distributed = pytest.importorskip("distributed", reason='needs Dask: pip install "globular[dask]"')
    import dask.array as da

    X = rows_of(3000)
    whole = coresets.coreset(X, 200, kind="mixture", random_state=0)
    with distributed.Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"):
        found = coresets.coreset(da.from_array(X, chunks=(1000, 3)), 200, kind="mixture", random_state=0)
    np.testing.assert_array_equal(found.indices, whole.indices)
    np.testing.assert_allclose(found.weights, whole.weights, rtol=1e-9)
    np.testing.assert_array_equal(found.rows, whole.rows)


def test_sparse_rows_stay_sparse_and_draw_the_same() -> None:
    dense = np.where(rows_of(2000) > 0.5, rows_of(2000), 0.0)
    found = coresets.coreset(sparse.csr_array(dense), 200, random_state=0)
    assert sparse.issparse(found.rows)
    wanted = coresets.coreset(dense, 200, random_state=0)
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_array_equal(found.rows.toarray(), wanted.rows)
    joined = coresets.merge([found, found], 100, random_state=0)
    assert sparse.issparse(joined.rows) and len(joined) <= 100
    KMeans(5, random_state=0).fit(joined.rows, sample_weight=joined.weights)
    with pytest.raises(TypeError, match="dense rows"):
        coresets.coreset(sparse.csr_array(dense), 200, kind="mixture")


def test_the_cosine_counts_directions() -> None:
    X = rows_of(2000)
    scales = np.exp(np.random.default_rng(0).normal(size=(len(X), 1)))
    found = coresets.coreset(X * scales, 200, metric="cosine", random_state=0)
    unit = coresets.coreset(X / np.linalg.norm(X, axis=1, keepdims=True), 200, random_state=0)
    np.testing.assert_array_equal(found.indices, unit.indices)
    np.testing.assert_array_equal(found.rows, (X * scales)[unit.indices])


def test_chances_are_those_of_the_formula() -> None:
    """A row's weight is its own divided by the expected number of draws, for the groups of the seeds."""
    from globular.algorithms.mixtures.coreset import draw_rows_of_groups
    from globular.passes.cpu import CpuShard
    from globular.seam.passes import AddSeeds

    X, random = rows_of(2000), np.random.default_rng(0)
    w = random.gamma(2.0, size=len(X))
    seeds: list[Any] = []

    class Watched(CpuShard):
        def run(self, work: Any) -> Any:
            if isinstance(work, AddSeeds):
                seeds.append(work.seeds)
            return super().run(work)

    shard = Watched(X, w)
    drawn = draw_rows_of_groups(shard, 320, random)
    known = d2.seed_distances(X, w, np.asarray(seeds[-1]))
    G = len(seeds[-1])
    assert G == 5
    W_g, phi_g = np.bincount(known.seeds, w, minlength=G), np.bincount(known.seeds, w * known.d2, minlength=G)
    sensitivity = known.d2 / known.potential + (phi_g / known.potential + 1 / G)[known.seeds] / W_g[known.seeds]
    chance = 0.5 / w.sum() + sensitivity / 6
    assert (w * chance).sum() == pytest.approx(1.0)
    np.testing.assert_allclose(drawn.weights, drawn.counts / (320 * chance[drawn.indices]), rtol=1e-9)


def test_hardly_a_row_is_drawn_twice() -> None:
    """Nor in a merger, where draws are half as many as rows of uneven weights."""
    X = rows_of(8000)
    parts = [coresets.coreset(rows, 500, kind="mixture", random_state=0) for rows in np.split(X, 8)]
    assert min(map(len, parts)) > 0.92 * 500
    assert len(coresets.merge(parts, 2000, kind="mixture", random_state=0)) > 0.88 * 2000


def test_a_mixture_of_merged_coresets_is_better_than_of_a_plain_sample() -> None:
    random = np.random.default_rng(0)
    chosen = random.choice(12, 40_000, p=random.dirichlet(np.full(12, 0.4)))
    means, spreads = random.normal(0, 4, (12, 4)), random.uniform(0.3, 2, (12, 1))
    X = means[chosen] + spreads[chosen] * random.normal(size=(40_000, 4))
    merged, plain = [], []
    for seed in range(4):
        model = GaussianMixture(12, random_state=seed)
        parts = [coresets.coreset(rows, 300, kind="mixture", random_state=seed) for rows in np.split(X, 8)]
        part = coresets.merge(parts, 1200, kind="mixture", random_state=seed)
        merged.append(model.fit(part.rows, sample_weight=part.weights).score(X))
        plain.append(model.fit(X[random.choice(40_000, 1200, replace=False)]).score(X))
    assert np.mean(merged) > np.mean(plain) + 0.01  # 0.02


def test_thin_components_have_their_rows() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(20_000, 2))
    X[:40] = 9.0 + 0.1 * random.normal(size=(40, 2))
    found = [coresets.coreset(X, 640, kind="mixture", random_state=seed) for seed in range(5)]
    count = np.mean([np.count_nonzero(np.asarray(part.indices) < 40) for part in found])
    assert count > 8 > 5 * 640 * 40 / 20_000  # a sixth of the draws is shared out among ten groups


def test_merged_coresets_stand_for_all_rows() -> None:
    X = rows_of(8000)
    parts = [coresets.coreset(part, 500, random_state=seed) for seed, part in enumerate(np.array_split(X, 4))]
    joined = coresets.merge(parts)
    assert len(joined) == sum(map(len, parts)) and joined.indices is None
    mean = X.mean(axis=0)
    assert joined.weights.sum() == pytest.approx(len(X), rel=1e-12)
    np.testing.assert_allclose(np.average(joined.rows, axis=0, weights=joined.weights), mean, atol=1e-9)
    centers = X[:5]
    errors = []
    for seed in range(40):
        merged = coresets.merge(parts, 300, random_state=seed)
        assert len(merged) <= 300
        assert merged.weights.sum() == pytest.approx(len(X), rel=1e-12)
        np.testing.assert_allclose(np.average(merged.rows, axis=0, weights=merged.weights), mean, atol=1e-9)
        errors.append(error(merged.rows, centers, merged.weights))
    spread = np.std(errors, ddof=1) / np.sqrt(len(errors))
    wanted = error(joined.rows, centers, joined.weights)
    assert abs(np.mean(errors) - wanted) < 4 * spread + wanted / 200


def test_models_of_a_coreset_are_nearly_those_of_all_rows() -> None:
    X = datasets.many_blobs(60_000, 20, 4, random_state=0).X
    part = coresets.coreset(X, 4000, random_state=0)
    few = KMeans(20, random_state=0).fit(part.rows, sample_weight=part.weights)
    whole = KMeans(20, random_state=0).fit(X)
    assert -few.score(X) < 1.015 * whole.inertia_
    part = coresets.coreset(X, 8000, kind="mixture", random_state=0)
    options: dict[str, Any] = {"covariance_type": "diag", "algorithm": "em", "random_state": 0}
    fitted = GaussianMixture(20, **options).fit(part.rows, sample_weight=part.weights)
    assert fitted.score(X) > GaussianMixture(20, **options).fit(X).score(X) - 0.02


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n_rows": 0}, "n_rows=0 must be a whole number"),
        ({"n_rows": 2.5}, "n_rows=2.5"),
        ({"n_rows": 5, "kind": "gmm"}, "kind='gmm'"),
        ({"n_rows": 5, "metric": "manhattan"}, "metric='manhattan'"),
        ({"n_rows": 5, "sample_weight": [1.0]}, "sample_weight"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        coresets.coreset(rows_of(50), **arguments)


def test_wrong_mergers_are_named() -> None:
    part = coresets.coreset(rows_of(50), 10)
    with pytest.raises(ValueError, match="must not be empty"):
        coresets.merge([])
    with pytest.raises(TypeError, match="got ndarray"):
        coresets.merge([part, np.ones(3)])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="same columns, got 2 and 3"):
        coresets.merge([part, coresets.coreset(rows_of(50)[:, :2], 10)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_coreset_of_one_row_stands_for_all(kind: Any) -> None:
    found = coresets.coreset(rows_of(50), 1, kind=kind, random_state=0)
    assert len(found) == 1 and found.weights.sum() == pytest.approx(50)
    merged = coresets.merge([found, coresets.coreset(rows_of(30), 2, random_state=0)], 1, kind=kind, random_state=0)
    assert len(merged) == 1 and merged.weights.sum() == pytest.approx(80)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_rows_and_few_distinct_ones(kind: Any) -> None:
    found = coresets.coreset(np.ones((500, 3)), 50, kind=kind, random_state=0)
    assert found.weights.sum() == pytest.approx(500, rel=1e-12)
    two = np.repeat([[0.0, 1.0], [5.0, 5.0]], [990, 10], axis=0)
    found = coresets.coreset(two, 200, kind=kind, random_state=0)
    assert found.weights @ (found.rows[:, 0] == 5.0) == pytest.approx(10, rel=0.3)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npz"])
def test_the_command_writes_rows_and_weights(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X = rows_of(2000)
    np.save(tmp_path / "rows.npy", X)
    target = tmp_path / f"part{suffix}"
    assert run(["coreset", str(tmp_path / "rows.npy"), "-n", "200", "-o", str(target), "--seed", "3"]) == 0
    assert f"Written: {target}" in capsys.readouterr().out
    wanted = coresets.coreset(X, 200, random_state=3)
    source, weights = f"{target}::X" if suffix == ".npz" else str(target), "weight"
    if suffix == ".npz":
        np.testing.assert_array_equal(np.load(target)["X"], wanted.rows)
        np.testing.assert_array_equal(np.load(target)["weight"], wanted.weights)
        return
    fit = ["fit", source, "-k", "7", "--weights", weights, "-o", str(tmp_path / "model"), "--seed", "0", "-q"]
    assert run(fit) == 0
    expected = KMeans(7, random_state=0).fit(wanted.rows, sample_weight=wanted.weights)
    found = globular.load(tmp_path / "model")
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-12)
    again = ["coreset", source, "-n", "50", "--weights", "weight", "-o", str(tmp_path / "less.csv"), "-q"]
    assert run(again) == 0


def test_the_command_keeps_names_and_refuses_a_second_weight(tmp_path, capsys):
    globular.io.write_array(tmp_path / "named.csv", rows_of(500), names=["a", "b", "c"])
    target = tmp_path / "part.parquet"
    assert run(["coreset", str(tmp_path / "named.csv"), "-n", "50", "--kind", "mixture", "-o", str(target), "-q"]) == 0
    assert pq.read_table(target).column_names == ["a", "b", "c", "weight"]
    capsys.readouterr()
    assert run(["coreset", str(target), "-n", "5", "-o", str(tmp_path / "x.csv"), "-q"]) == 2
    assert "has a column 'weight' already; say --weights weight" in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()
    assert run(["coreset", str(target), "-n", "5", "-o", str(tmp_path / "x.npy"), "-q"]) == 2
