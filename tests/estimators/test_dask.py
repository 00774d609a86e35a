"""Fits on Dask workers: the same bits as in one process, whoever holds the rows, and whoever dies over it."""

import _thread
import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import globular
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.callbacks import Checkpoint
from globular.errors import DataError
from globular.model.covariances import COLUMNS
from globular.model.gaussian import isotropic_mixture
from globular.model.statistics import PairStatistics
from globular.passes.cpu import CpuShard
from globular.seam.among import All, Neighbors, Probe, Remembered
from globular.seam.mixture_passes import Expect
from globular.seam.passes import AddSeeds, Assign, Effect, Pass, ScatterLabels
from globular.seam.shard import Shard
from globular.seam.tree_passes import ExpectCells, Gains, OpenGaining, OpenHeld, Plant, TakeCells
from makers import Rows, blobs, weights_for
from split import SplitShard

from globular import (  # isort: skip
    ChunkyGaussianMixture, GaussianMixture, InfiniteGaussianMixture, KMeans, NestedMiniBatchKMeans,
    ResidualKMeans, VariationalGaussianMixture, VariationalKMeans, seeding,
)  # fmt: skip

pytest.importorskip("distributed", reason='needs Dask: pip install "globular[dask]"')

import dask.array as da
from distributed import Client, LocalCluster, wait

from globular.passes import dask as opening_module
from globular.passes.dask import DaskShard
from globular.passes.dask import cluster as cluster_module
from globular.passes.dask import messages as log_module
from globular.passes.dask.messages import Post, halves, pack, unpack
from globular.passes.dask.workers import collection_partitions
from globular.passes.many import TreeSum

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

N, D = 1200, 4
CUTS = [0, 150, 300, 310, 600, 900, 1000, 1200]
"""Seven partitions of uneven size."""


def start_cluster(n_workers: int, *, processes: bool = True) -> LocalCluster:
    """Workers of one thread each, quiet and without a dashboard."""
    return LocalCluster(
        n_workers=n_workers, threads_per_worker=1, processes=processes, silence_logs=logging.CRITICAL,
        dashboard_address=":0",  # any free port: another cluster may have the usual one
        memory_limit="2GB" if processes else 0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with start_cluster(2) as cluster, Client(cluster, set_as_default=False, timeout="60s") as connected:
        yield connected


@pytest.fixture
def current(client: Client) -> Iterator[Client]:
    """The client, in whose context a fit finds it."""
    with client.as_current():
        yield client


def as_dask(rows: Any, cuts: list[int] = CUTS) -> Any:
    sizes = tuple(b - a for a, b in pairwise(cuts))
    return da.from_array(rows, chunks=(sizes, rows.shape[1]) if rows.ndim == 2 else (sizes,), asarray=False)


def as_split(rows: Any, weights: Rows | None = None, *, unit_rows: bool = False) -> SplitShard:
    return SplitShard(
        [
            CpuShard(rows[a:b], None if weights is None else weights[a:b], unit_rows=unit_rows, first_row=a)
            for a, b in pairwise(CUTS)
        ]
    )


def fit_locally(model: Any, rows: Any, weights: Rows | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fit in this process over the same parts, through the same estimator."""
    from globular.estimators import inputs, validation

    def split_input(estimator: Any, X: Any, *args: Any, **kwargs: Any) -> inputs.Input:
        shard = as_split(rows, weights, unit_rows=getattr(estimator, "metric", "") == "cosine")
        return inputs.Input(shard, inputs.working_dtype(rows.dtype), len(rows), rows.shape[1])

    with monkeypatch.context() as patch:
        patch.setattr("globular.estimators.centroids.open_input", split_input)
        patch.setattr("globular.estimators.base.open_input", split_input)
        estimator_open = validation.validate_data
        estimator_open(model, rows, dtype=validation.REAL_DTYPES, reset=True)
        return model.fit(rows)


MODELS = {
    "lloyd": lambda: KMeans(12, algorithm="lloyd", random_state=0, max_iter=8, tol=0),
    "k-means||": lambda: KMeans(24, algorithm="lloyd", init="k-means||", random_state=1, max_iter=8, tol=0),
    "probing": lambda: KMeans(40, algorithm="probing", init="hierarchical", random_state=2, max_iter=6),
    "cosine": lambda: KMeans(16, metric="cosine", init="afk-mc2", random_state=3, max_iter=6),
    "variational": lambda: VariationalKMeans(30, init="hierarchical", random_state=4, max_iter=13),
    "em": lambda: GaussianMixture(4, random_state=6, max_iter=6, tol=0),
    "nested": lambda: NestedMiniBatchKMeans(12, random_state=8, max_iter=8),
    "chunky": lambda: ChunkyGaussianMixture(4, random_state=9),
    "infinite": lambda: InfiniteGaussianMixture(random_state=10, max_iter=5),
    "residual": lambda: ResidualKMeans([6, 6, 6], random_state=11, n_refinements=2, beam=2),
    "residual cosine": lambda: ResidualKMeans([40, 40], metric="cosine", random_state=12, max_size=60, unique=True),
    "var-gmm": lambda: VariationalGaussianMixture(15, random_state=7, max_iter=6, tol=0),
}


def fitted_arrays(model: Any) -> dict[str, bytes]:
    names = (
        "cluster_centers_", "codebooks_", "codes_", "inertia_per_level_", "labels_", "means_", "covariances_",
        "weights_",
    )  # fmt: skip
    return {name: np.asarray(getattr(model, name)).tobytes() for name in names if hasattr(model, name)}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("name", "weighted"), [(name, number % 2 == 1) for number, name in enumerate(MODELS)])
def test_fits_equal_those_of_one_process_bit_for_bit(name, weighted, current, monkeypatch):
    rows = blobs(N, C=20, D=D).astype(np.float64 if weighted else np.float32)
    weights = np.maximum(weights_for(N), 0.5) if weighted else None
    found = MODELS[name]().fit(as_dask(rows), sample_weight=None if weights is None else as_dask(weights))
    expected = fit_locally(MODELS[name](), rows, weights, monkeypatch)
    assert fitted_arrays(found) == fitted_arrays(expected)
    assert [record.objective for record in found.history_] == [record.objective for record in expected.history_]
    assert found.n_distances_ == expected.n_distances_


def fit_alone(name: str, n_threads: int | None = None) -> dict[str, bytes]:
    """What a fit of rows in memory finds, wherever it runs."""
    model = MODELS[name]().set_params(n_threads=n_threads).fit(blobs(N, C=20, D=D))
    return fitted_arrays(model)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["probing", "infinite"])
def test_a_fit_inside_a_task_is_that_of_this_process(name: str, client: Client) -> None:
    """Workers have one thread each and may run both tasks at once."""
    tasks = [client.submit(fit_alone, name, n_threads, pure=False) for n_threads in (None, 2)]
    with client.as_current():
        wait(tasks, timeout=500)  # else a cluster that has lost its workers would be waited for without end
    assert client.gather(tasks) == [fit_alone(name)] * 2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["probing", "infinite"])
def test_fits_at_once_in_threads_of_one_process_are_those_alone(name: str) -> None:
    """As tasks of a worker inside this process are; they share our threads, and the hold on BLAS."""
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(fit_alone, [name] * 3, [1, 2, None]))
    assert found == [fit_alone(name)] * 3


@pytest.mark.parametrize("whole_part", [False, True], ids=["single rows", "a whole part"])
@pytest.mark.parametrize("model", [GaussianMixture(4), ChunkyGaussianMixture(4), InfiniteGaussianMixture()], ids=str)
def test_far_rows_of_weight_zero_are_no_rows(model: Any, whole_part: bool, current: Client) -> None:
    rows, weights = blobs(N, C=4, D=D, spread=0.1), np.ones(N)
    far = slice(300, 310) if whole_part else slice(5, None, 40)
    without = clone(model).set_params(random_state=0).fit(np.delete(rows, far, axis=0))
    rows[far], weights[far] = 1e15, 0.0
    found = clone(model).set_params(random_state=0).fit(as_dask(rows), sample_weight=as_dask(weights))
    assert len(found.weights_) == len(without.weights_)
    scores = [fitted.score(rows[weights > 0]) for fitted in (found, without)]
    assert scores[0] == pytest.approx(scores[1], abs=0.05)


def test_a_dask_shard_keeps_the_protocol(client: Client) -> None:
    rows = blobs(N, D=D)
    shard = DaskShard(client, collection_partitions(as_dask(rows)))
    assert isinstance(shard, Shard)
    assert (shard.n_rows, shard.n_columns, shard.total_weight) == (N, D, N)
    assert shard.lacks == as_split(rows).lacks
    assert (shard.labels.copy() == -1).all()
    shard.run(Assign(rows[:9]))
    labels = CpuShard(rows)
    labels.run(Assign(rows[:9]))
    chosen = np.array([1199, 0, 305, 305, 150])
    np.testing.assert_array_equal(shard.labels[chosen], labels.labels[chosen])
    np.testing.assert_array_equal(np.asarray(shard.labels), labels.labels)
    np.testing.assert_array_equal(shard.labels[-3:], labels.labels[-3:])


class IsDirect(Pass[bool]):
    """Whether kernels read the rows of a part where they lie."""


@CpuShard.implements(IsDirect)
def is_direct(part: CpuShard, work: IsDirect) -> bool:
    return part.rows.is_direct()


@dataclass(frozen=True)
class Bump(Pass[int]):
    """Raise all labels; not idempotent: done twice it shows."""

    by: int
    seconds: float = 0.0
    effect = Effect({"labels"})


@CpuShard.implements(Bump)
def bump(part: CpuShard, work: Bump) -> int:
    time.sleep(work.seconds)
    part.labels[:] += work.by
    return part.n_rows


def test_rows_that_came_over_the_network_are_used_where_they_lie(client: Client) -> None:
    """Dask hands out arrays at odd addresses, and persisted data that nobody refers to are forgotten."""
    rows = blobs(N, D=D).astype(np.float32)
    shard = DaskShard(client, collection_partitions(client.persist(as_dask(rows))))
    assert all(shard._some(dict.fromkeys(range(len(shard.partitions)), IsDirect())).values())


def test_forms_of_input(current: Client) -> None:
    """Sparse chunks, integers, several chunks of columns, data frames: the labels of the same rows in memory."""
    rows = np.round(blobs(N, C=8, D=D) * 5)
    start = np.unique(rows, axis=0)[::90][:8]
    model = KMeans(len(start), init=start, max_iter=5, algorithm="lloyd")
    expected = KMeans(len(start), init=start, max_iter=5, algorithm="lloyd").fit(rows).labels_
    sparse_chunks = as_dask(rows).map_blocks(sparse.csr_matrix, meta=sparse.csr_matrix((0, 0)))
    forms = [as_dask(rows.astype(np.int16)), da.from_array(rows, chunks=(500, 2)), sparse_chunks]
    for X in forms:
        np.testing.assert_array_equal(model.fit(X).labels_, expected)
    with pytest.raises(TypeError, match="dense rows"):
        GaussianMixture(2).fit(sparse_chunks)


def test_data_frames(current: Client) -> None:
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    dd = pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]")
    rows = blobs(N, C=8, D=D)
    frame = pandas.DataFrame(rows, columns=list("abcd"))
    lazy = dd.from_pandas(frame, npartitions=5)
    weights = weights_for(N)
    model = KMeans(8, init=rows[:8], max_iter=4, algorithm="lloyd").fit(lazy, sample_weight=weights)
    local = KMeans(8, init=rows[:8], max_iter=4, algorithm="lloyd").fit(frame, sample_weight=weights)
    np.testing.assert_array_equal(model.labels_, local.labels_)
    assert model.feature_names_in_.tolist() == list("abcd")
    predicted = model.predict(lazy)
    assert isinstance(predicted, da.Array)
    np.testing.assert_array_equal(predicted.compute(scheduler=current), local.predict(frame))
    filtered = lazy[lazy.a > rows[:300, 0].max()]  # partitions of unknown, perhaps no length
    kept = frame[frame.a > rows[:300, 0].max()]
    np.testing.assert_array_equal(model.predict(filtered).compute(scheduler=current), local.predict(kept))
    with pytest.raises(ValueError, match="sample_weight"):
        KMeans(2).fit(lazy, sample_weight=weights[:-1])
    own = KMeans(8, init=rows[:8], max_iter=4, algorithm="lloyd").fit(lazy, sample_weight=lazy.a.abs())
    same = KMeans(8, init=rows[:8], max_iter=4, algorithm="lloyd").fit(frame, sample_weight=frame.a.abs())
    np.testing.assert_array_equal(own.labels_, same.labels_)
    with pytest.raises(DataError, match=r"not numbers: 'kind'; drop"):
        KMeans(2).fit(lazy.assign(kind="x"))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler:UserWarning")  # of older Dask: it is meant
def test_answers_for_every_row_are_lazy(current: Client) -> None:
    rows = blobs(N, C=5, D=D).astype(np.float32)
    X = as_dask(rows)
    kmeans = KMeans(5, random_state=0).fit(rows)
    mixture = GaussianMixture(3, random_state=0, max_iter=3).fit(rows)
    truncated = VariationalGaussianMixture(6, random_state=0, max_iter=3).fit(rows)
    lazy = [
        (kmeans, "predict", {}), (kmeans, "predict", {"exact": False}), (kmeans, "transform", {}),
        (mixture, "predict", {}), (mixture, "predict_proba", {}), (mixture, "score_samples", {}),
        (truncated, "predict", {"exact": False}), (truncated, "score_samples", {}),
    ]  # fmt: skip
    for model, name, options in lazy:
        answer = getattr(model, name)(X, **options)
        expected = getattr(model, name)(rows, **options)
        assert isinstance(answer, da.Array)
        assert answer.shape == expected.shape and answer.dtype == expected.dtype
        for computed in (answer.compute(scheduler=current), answer.compute(scheduler="synchronous")):
            np.testing.assert_allclose(computed, expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="features"):
        kmeans.predict(X[:, :2])
    assert kmeans.score(X) == pytest.approx(kmeans.score(rows), rel=1e-6)
    assert mixture.score(X) == pytest.approx(mixture.score(rows), rel=1e-6)
    assert mixture.bic(X) == pytest.approx(mixture.bic(rows), rel=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["lloyd", "probing", "nested", "var-gmm", "chunky"])
def test_partitions_of_any_size(name: str, current: Client) -> None:
    """A single row, nearly all rows, none: those without rows change nothing."""
    rows = blobs(N, C=20, D=D)
    found = MODELS[name]().fit(as_dask(rows, [0, 0, 1, 1, 1191, 1191, 1193, N, N]))
    assert fitted_arrays(found) == fitted_arrays(MODELS[name]().fit(as_dask(rows, [0, 1, 1191, 1193, N])))
    few = rows[:60]
    assert MODELS[name]().fit(as_dask(few, [0, 0, *range(61), 60])).n_iter_ > 0  # more partitions than rows


def test_no_rows_at_all(current: Client) -> None:
    with pytest.raises(DataError, match="0 sample"):
        KMeans(2).fit(da.zeros((0, 3)))
    nothing_left = as_dask(blobs(N, D=D))
    with pytest.raises(DataError, match="0 sample"):
        KMeans(2).fit(nothing_left[nothing_left[:, 0] > 1e9])  # known only once it is computed


def test_public_seeding(current: Client) -> None:
    rows = blobs(N, C=5, D=D)
    centers = seeding.kmeans_parallel(as_dask(rows), 7, random_state=0)
    assert centers.shape == (7, D)
    seeds = seeding.hierarchical(as_dask(rows), 40, random_state=0)
    assert seeds.labels.shape == (N,) and isinstance(seeds.labels, np.ndarray)


# --- files ---------------------------------------------------------------------------------------------------------
def write_parts(folder: Path, rows: Rows, suffix: str) -> list[Path]:
    folder.mkdir()
    paths = []
    for number, (a, b) in enumerate(pairwise([0, 500, 700, 1200])):
        path = folder / f"part-{number}{suffix}"
        if suffix == ".npy":
            np.save(path, rows[a:b])
        else:
            globular.io.write_array(path, rows[a:b])
        paths.append(path)
    return paths


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_files_are_read_by_the_workers(suffix, keep, tmp_path, current, monkeypatch):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    if not keep:
        monkeypatch.setattr(opening_module, "WORKER_SHARE", 0.0)
    rows = blobs(N, C=6, D=D)
    paths = write_parts(tmp_path / "parts", rows, suffix)
    options = {"init": rows[:6], "algorithm": "lloyd", "max_iter": 5}
    expected = KMeans(6, **options).fit(rows)
    for X in (tmp_path / "parts", [str(path) for path in paths]):
        model = KMeans(6, **options).fit(X)
        np.testing.assert_array_equal(model.labels_, expected.labels_)
        np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-12)
    np.testing.assert_array_equal(model.transform(paths), model.transform(rows))
    weights = weights_for(N)
    for given in (weights, da.from_array(weights, chunks=500)):  # a collection is brought here
        weighted = KMeans(6, **options).fit(paths, sample_weight=given)
        assert weighted.inertia_ == pytest.approx(KMeans(6, **options).fit(rows, sample_weight=weights).inertia_)
    predicted = model.predict(paths)
    assert isinstance(predicted, np.ndarray)
    np.testing.assert_array_equal(predicted, expected.labels_)
    mixture = GaussianMixture(2, random_state=0).fit(rows)
    np.testing.assert_array_equal(mixture.predict(paths), mixture.predict(rows))


def test_bounds_of_rows_that_workers_stream_have_a_budget_of_their_own(tmp_path, current, monkeypatch):
    write_parts(tmp_path / "parts", blobs(N, C=6, D=D), ".npy")
    monkeypatch.setattr("globular.algorithms.kmeans.nested_choices.STREAMED_BOUNDS", 0)
    model = NestedMiniBatchKMeans(6, max_iter=1, random_state=0)
    assert model.fit(tmp_path / "parts").search_ == "elkan"  # kept in the workers' memory
    monkeypatch.setattr(opening_module, "WORKER_SHARE", 0.0)
    assert model.fit(tmp_path / "parts").search_ == "exact"


def test_a_list_of_files_without_a_client(tmp_path: Path) -> None:
    rows = blobs(N, C=6, D=D)
    paths = write_parts(tmp_path / "parts", rows, ".npy")
    model = KMeans(6, init=rows[:6], max_iter=3).fit(paths)
    np.testing.assert_array_equal(model.labels_, KMeans(6, init=rows[:6], max_iter=3).fit(rows).labels_)


def test_the_command_fits_and_predicts_on_workers(tmp_path: Path, client: Client) -> None:
    from globular.cli.main import run

    rows = blobs(N, C=6, D=D)
    write_parts(tmp_path / "parts", rows, ".npy")
    data, model, labels = (str(tmp_path / name) for name in ("parts", "model", "labels.npy"))
    scheduler = ["--scheduler", client.scheduler.address, "-q"]
    assert run(["fit", data, "-k", "6", "-o", model, "--seed", "0", *scheduler]) == 0
    assert run(["predict", model, data, "-o", labels, *scheduler]) == 0
    np.testing.assert_array_equal(np.load(labels), globular.load(model).predict(rows))
    assert run(["fit", data, "-k", "6", "-o", model, "--workers", "2", *scheduler]) == 2


# --- bad input -----------------------------------------------------------------------------------------------------
def test_bad_input_is_named(current: Client, tmp_path: Path) -> None:
    rows = blobs(N, D=D)
    with pytest.raises(ValueError, match="n_samples=1200"):
        KMeans(1201).fit(as_dask(rows))
    rows[650, 1] = np.nan
    with pytest.raises(DataError, match="partition 4 of X: NaN"):
        KMeans(2).fit(as_dask(rows))
    rows[650, 1] = 0.0
    with pytest.raises(ValueError, match="zero everywhere"):
        KMeans(2).fit(as_dask(rows), sample_weight=da.zeros(N))
    with pytest.raises(ValueError, match="negative"):
        KMeans(2).fit(as_dask(rows), sample_weight=as_dask(-np.ones(N)))
    with pytest.raises(ValueError, match="sample_weight"):
        KMeans(2).fit(as_dask(rows), sample_weight=da.ones(N - 1))
    with pytest.raises(ValueError, match="2D"):
        KMeans(2).fit(da.zeros(10))
    with pytest.raises(DataError, match="nowhere"):
        KMeans(2).fit([tmp_path / "nowhere.npy"])


def test_a_collection_needs_a_client() -> None:
    with pytest.raises(RuntimeError, match="start one"):
        KMeans(2).fit(as_dask(blobs(N, D=D)))


# --- traffic -------------------------------------------------------------------------------------------------------
def test_few_changed_sums_travel_as_few_rows(client: Client) -> None:
    """What moved is small towards the end of a fit."""
    rows = blobs(N, C=20, D=D)
    shard = DaskShard(client, collection_partitions(as_dask(rows, [0, 300, 600, 900, 1200])))
    C = 200
    found = shard.run(Assign(rows[:C]))
    found.sums[5:] = found.counts[5:] = 0.0
    assert len(pickle.dumps(found)) > 8 * C * D > 3 * len(pickle.dumps(pack(found)))
    np.testing.assert_array_equal(unpack(pack(found)).sums, found.sums)


def test_pairs_keep_their_bits_on_the_way() -> None:
    random = np.random.default_rng(0)
    for C, largest in ((200, 3), (60_000, 300), (70_000, 70_000)):
        pairs = random.integers(C, size=(2, 500)).astype(np.int32)
        sums = np.stack([random.random(500), random.integers(largest, size=500)]).astype(np.float32)
        one, other = PairStatistics(pairs[:, :200], sums[:, :200]), PairStatistics(pairs[:, 200:], sums[:, 200:])
        packed = pack(one + other)
        assert (len(pickle.dumps(packed)) < 16 * 500) == (C < 2**16)
        np.testing.assert_array_equal(unpack(packed).pairs, pairs)
        np.testing.assert_array_equal(unpack(packed).sums, sums)
        assert unpack(packed).pairs.dtype == np.int32 and unpack(packed).sums.dtype == np.float32
    fractions = np.array([[1.0] * 200 + [0.5]], dtype=np.float32).repeat(2, axis=0)
    np.testing.assert_array_equal(unpack(pack(PairStatistics(pairs[:, :201], fractions))).sums, fractions)


def test_workers_that_only_the_scheduler_reaches(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = blobs(N, C=20, D=D)
    shard = DaskShard(client, collection_partitions(as_dask(rows)))
    assert shard._direct
    direct = shard.run(Assign(rows[:30]))
    monkeypatch.setattr(client, "direct_to_workers", False)
    shard = DaskShard(client, collection_partitions(as_dask(rows)))
    assert not shard._direct
    assert shard.run(Assign(rows[:30])).sums.tobytes() == direct.sums.tobytes()


def test_workers_forget_what_is_no_longer_needed(client: Client) -> None:
    from globular.passes.dask import workers

    def hosts() -> set[Any]:
        return set().union(*client.run(lambda: set(workers._HOSTS)).values())

    before = hosts()
    shard = DaskShard(client, collection_partitions(as_dask(blobs(N, D=D))))
    added = hosts() - before
    assert len(added) == 2
    del shard
    deadline = time.monotonic() + 10
    while hosts() & added and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not hosts() & added


# --- faults --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def breakable() -> Iterator[list[Client]]:
    """The cluster whose workers tests kill, for as long as its nannies start new ones."""
    clients: list[Client] = []
    yield clients
    for connected in clients:
        close_with_cluster(connected)


def close_with_cluster(connected: Client) -> None:
    cluster = connected.cluster
    connected.close()
    cluster.close()


@pytest.fixture
def fragile(breakable: list[Client]) -> Client:
    """Two workers at least that a test may kill, of a new cluster where a nanny has given up.

    A nanny does so where its worker dies, or does not answer in time, while it starts: on a machine that is busy, that
    is where a test has killed the one before.
    """
    if breakable:
        try:
            breakable[0].wait_for_workers(2, timeout=20)
        except TimeoutError:
            close_with_cluster(breakable.pop())
    if not breakable:
        breakable.append(Client(start_cluster(3), set_as_default=False, timeout="60s"))
    return breakable[0]


def kill_one(client: Client) -> None:
    """SIGKILL a worker process."""
    pids = client.run(os.getpid)
    os.kill(pids[sorted(pids)[0]], signal.SIGKILL)


def holder(client: Client, shard: DaskShard) -> int:
    """The process of a worker that has a part: one that came late may have none."""
    return int(client.run(os.getpid)[shard.owners[0]])


def test_workers_killed_while_parts_are_loaded(fragile: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the end of its tasks and the question what it holds, and another before its parts are made."""
    ask, moments = DaskShard._ask_owners, ["rows_held", "make_parts"]

    def kill_and_ask(crew: Any, function: Any, arguments: Any) -> Any:
        if function.__name__ in moments:
            moments.remove(function.__name__)
            kill_one(fragile)
        return ask(crew, function, arguments)

    monkeypatch.setattr(DaskShard, "_ask_owners", kill_and_ask)
    rows = blobs(N, C=20, D=D)
    shard = DaskShard(fragile, collection_partitions(as_dask(rows)))
    assert not moments and shard.n_rows == N
    assert shard.run(Assign(rows[:30])).sums.tobytes() == as_split(rows).run(Assign(rows[:30])).sums.tobytes()


def deadly(chunk: Any, mark: str) -> Any:
    """The rows of a chunk; who loads the first one first dies over it."""
    if not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return chunk


def test_a_worker_that_dies_over_its_loading_task(fragile: Client, tmp_path: Path) -> None:
    rows = blobs(N, C=20, D=D)
    X = as_dask(rows).map_blocks(deadly, str(tmp_path / "dead"), dtype=rows.dtype, meta=np.empty((0, D)))
    shard = DaskShard(fragile, collection_partitions(X))
    assert (tmp_path / "dead").exists()
    np.testing.assert_array_equal(shard.take(np.arange(N)), rows)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_all_workers_killed_at_once(fragile: Client) -> None:
    """Their nannies start others, at other addresses; those load all rows again."""
    rows = blobs(N, C=20, D=D)
    with fragile.as_current():
        expected, model = MODELS["lloyd"]().fit(as_dask(rows)), MODELS["lloyd"]()
        for record in model.fit_iter(as_dask(rows)):
            if record.iteration == 3:
                for pid in fragile.run(os.getpid).values():
                    os.kill(pid, signal.SIGKILL)
    # sums that are taken afresh may differ in the last digit from those that were brought up to date
    np.testing.assert_allclose(model.cluster_centers_, expected.cluster_centers_, rtol=1e-12)
    np.testing.assert_array_equal(model.labels_, expected.labels_)


def test_lazy_answers_outlive_the_worker_that_has_the_model(fragile: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.estimators.elsewhere._SMALL_MODEL", 0)
    rows = blobs(N, C=5, D=D)
    model = KMeans(5, random_state=0).fit(rows)
    with fragile.as_current():
        answer = model.predict(as_dask(rows))
        while not (holders := [address for found in fragile.who_has().values() for address in found]):
            time.sleep(0.05)
        os.kill(fragile.run(os.getpid)[holders[0]], signal.SIGKILL)
        np.testing.assert_array_equal(answer.compute(scheduler=fragile), model.predict(rows))


def pause(dask_worker: Any) -> None:
    dask_worker.status = type(dask_worker.status).paused


def test_workers_that_are_too_full_to_load_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PATIENCE_SECONDS", 1.5)
    with start_cluster(1, processes=False) as cluster, Client(cluster, set_as_default=False) as connected:
        connected.run(pause)
        with pytest.raises(globular.errors.GlobularError, match="too full"):
            DaskShard(connected, collection_partitions(as_dask(blobs(N, D=D))))


@pytest.mark.parametrize("end", ["client", "cluster", "workers"])
def test_a_cluster_that_goes_away_ends_a_fit_with_a_message(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PATIENCE_SECONDS", 1.5)
    rows = blobs(N, C=20, D=D)
    with start_cluster(2, processes=False) as cluster, Client(cluster, set_as_default=False) as connected:
        shard = DaskShard(connected, collection_partitions(as_dask(rows)))
        shard.run(Assign(rows[:9]))
        if end == "workers":
            cluster.scale(0)
            while connected.nthreads():
                time.sleep(0.05)
        else:
            (connected if end == "client" else cluster).close()
        expected = "lost all of its 2 workers" if end == "workers" else "cluster is gone"
        with pytest.raises(globular.errors.GlobularError, match=expected):
            shard.run(Assign(rows[:9]))


def test_changes_of_labels_ask_for_no_cells(client: Client) -> None:
    rows = blobs(N, C=20, D=D)
    shard = DaskShard(client, collection_partitions(as_dask(rows)))
    for _ in range(2 * log_module.SNAPSHOT_EVERY):
        shard.run(Bump(1))
    assert (shard.labels.copy() == 2 * log_module.SNAPSHOT_EVERY - 1).all()


def search_cells(shard: Any, rows: Rows) -> None:
    """Many changes of the cells of a tree and of what they remember."""
    shard.run(Plant(COLUMNS, 8, largest=40.0))
    for step in range(14):
        mixture = isotropic_mixture(rows[5 * step : 5 * step + 12], 2.0, "diag")
        graph = np.arange(12, dtype=np.int32)[:, None]
        shard.run(
            ExpectCells(mixture, Neighbors(graph, globular.model.graph.Search(3, n_random=2, seed=step, estimate=True)))
        )
        for _ in range(2):  # the second keeps what the first has found
            gains = shard.run(Gains(mixture, 4, truncated=True))
            shard.run(OpenGaining(float(gains.gains[-1])))
        if step == 5:
            shard.run(OpenHeld(mixture, np.array([3]), 10))
        shard.run(Expect(mixture, Remembered(renew=step % 3 == 0)))


def test_cells_of_a_tree_are_made_again_from_few_changes(fragile: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the log nor the replay grows with the number of changes, and every bit is there again."""
    monkeypatch.setattr(log_module, "SNAPSHOT_EVERY", 6)
    rows = blobs(N, C=20, D=D)
    shard, split = DaskShard(fragile, collection_partitions(as_dask(rows))), as_split(rows)
    for each in (shard, split):
        search_cells(each, rows)
    assert shard.log.n_changes > 70
    assert len(shard.log.changes) < 12
    kill_one(fragile)
    one, two = shard.run(TakeCells()), split.run(TakeCells())
    assert shard.n_repairs >= 1
    np.testing.assert_array_equal(one.means, two.means)
    mixture = isotropic_mixture(rows[65:77], 2.0, "diag")
    for each in (shard, split):
        each.run(OpenGaining(float(each.run(Gains(mixture, 5, truncated=True)).gains[-1])))
    search = globular.model.graph.Search(3, n_random=2, seed=99, estimate=True)
    graph = np.arange(12, dtype=np.int32)[:, None]
    one, two = (each.run(ExpectCells(mixture, Neighbors(graph, search))) for each in (shard, split))
    assert one.sums.tobytes() == two.sums.tobytes() and one.log_likelihood == two.log_likelihood
    one, two = (each.run(Expect(mixture, Remembered(renew=False))) for each in (shard, split))
    assert one.sums.tobytes() == two.sums.tobytes()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_killed_worker_changes_nothing(fragile: Client) -> None:
    """SIGKILL in the middle of a fit: the same bits as without, whatever the state of the rows."""
    rows = blobs(N, C=20, D=D)
    with fragile.as_current():
        for name in ("variational", "nested", "residual"):
            expected = MODELS[name]().fit(as_dask(rows))
            model = MODELS[name]()
            for record in model.fit_iter(as_dask(rows)):
                if record.iteration == 3:
                    kill_one(fragile)
            assert fitted_arrays(model) == fitted_arrays(expected), name


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("init", ["k-means||", "hierarchical", "afk-mc2"])
def test_a_worker_killed_while_seeds_are_drawn(init: str, fragile: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = blobs(N, C=20, D=D)
    model = KMeans(40, init=init, algorithm="probing", random_state=0, max_iter=2)
    with fragile.as_current():
        expected = fitted_arrays(model.fit(as_dask(rows)))
        send, seen = DaskShard._send, []

        def send_and_kill(crew: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(work.one.variant)
            if len(seen) == 5:
                kill_one(fragile)
            return send(crew, work, *args, **kwargs)

        monkeypatch.setattr(DaskShard, "_send", send_and_kill)
        assert fitted_arrays(model.fit(as_dask(rows))) == expected
    assert Probe not in seen[:5]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ["lloyd", "variational"])
def test_an_interrupted_fit_leaves_a_usable_model(name: str, current: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while workers are at a pass: the last finished iteration stays, and the next fit is not disturbed."""
    rows = blobs(N, C=20, D=D)
    expected = fitted_arrays(MODELS[name]().fit(as_dask(rows)))
    exchange, passes = DaskShard._exchange, []

    async def interrupted(crew: Any, requests: Any) -> Any:
        passes.append(requests[0].work.one.variant)
        if passes.count(passes[-1]) == 4 and passes[-1] in (All, Neighbors):
            _thread.interrupt_main()  # as Ctrl-C does; the request is on its way all the same
        return await exchange(crew, requests)

    model = MODELS[name]()
    with monkeypatch.context() as patch:
        patch.setattr(DaskShard, "_exchange", interrupted)
        with pytest.warns(globular.errors.FitInterruptedWarning):
            model.fit(as_dask(rows))
    assert 0 < model.n_iter_ <= 4
    assert model.labels_.shape == (N,) and model.labels_.min() >= 0
    np.testing.assert_array_equal(model.predict(as_dask(rows)).compute(scheduler=current), model.predict(rows))
    assert fitted_arrays(model.fit(as_dask(rows))) == expected


def test_changes_to_some_parts_survive_as_well(fragile: Client) -> None:
    rows = blobs(N, C=20, D=D)
    shard = DaskShard(fragile, collection_partitions(as_dask(rows)))
    assert shard._some({1: Bump(3), 6: Bump(5)}) == {1: 150, 6: 200}
    shard.run(Bump(1))
    kill_one(fragile)
    expected = np.zeros(N, dtype=np.int32)
    expected[150:300] += 3
    expected[1000:] += 5
    np.testing.assert_array_equal(shard.labels.copy(), expected)


def test_pages_of_the_documentation_run(client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The blocks of docs/scaling.md that need Dask."""
    import re

    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(block, {"__name__": "docs"})


def test_a_worker_killed_in_the_middle_of_a_pass(fragile: Client) -> None:
    rows = blobs(N, C=20, D=D)
    shard, split = DaskShard(fragile, collection_partitions(as_dask(rows))), as_split(rows)
    for each in (shard, split):
        each.run(AddSeeds(rows[:20]))
        each.run(Assign(rows[:30]))
    victim = holder(fragile, shard)  # known beforehand: asking for it may take longer than the pass
    threading.Timer(0.4, os.kill, [victim, signal.SIGKILL]).start()
    assert shard.run(Bump(0, seconds=0.3)) == N  # counts as a change of state, and is replayed
    assert shard.n_repairs >= 1
    np.testing.assert_array_equal(shard.labels.copy(), split.labels)
    np.testing.assert_array_equal(shard.take(np.arange(N), "errors"), split.take(np.arange(N), "errors"))
    one, two = shard.run(Assign(rows[:31])), split.run(Assign(rows[:31]))
    assert one.sums.tobytes() == two.sums.tobytes() and one.n_changed == two.n_changed


def test_a_cut_log_is_made_up_for_by_one_exact_pass(fragile: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = blobs(N, C=20, D=D)
    shard = DaskShard(fragile, collection_partitions(as_dask(rows)))
    monkeypatch.setattr(log_module, "LOG_BYTES", 3000)  # the centres of one or two passes
    graph = np.arange(40, dtype=np.int32)[:, None]
    search = globular.model.graph.Search(1, n_random=2, seed=0, estimate=False)
    shard.run(ScatterLabels(40, 0))
    before = np.inf
    for iteration in range(6):
        if iteration == 4:
            os.kill(holder(fragile, shard), signal.SIGKILL)
        statistics = shard.run(Assign(rows[:40], Neighbors(graph, search)))
        assert statistics.objective <= before
        assert statistics.counts.sum() == N
        before = statistics.objective
    assert shard.log.is_cut and shard.n_repairs >= 1


def test_without_workers_a_fit_ends_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PATIENCE_SECONDS", 1.0)
    with (
        start_cluster(0) as cluster,
        Client(cluster, set_as_default=False, timeout="60s") as connected,
        connected.as_current(),
        pytest.raises(globular.errors.GlobularError, match="no workers"),
    ):
        KMeans(2).fit(as_dask(blobs(N, D=D)))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_checkpoint_resumes_on_another_cluster_size(tmp_path: Path, current: Client, fragile: Client) -> None:
    rows = blobs(N, C=20, D=D)
    folder = tmp_path / "model"
    model = KMeans(25, algorithm="lloyd", random_state=0, max_iter=30, tol=0)
    model.set_params(callbacks=[Checkpoint(folder, every_iterations=1)])
    for record in model.fit_iter(as_dask(rows)):
        if record.iteration == 4:
            break
    model.set_params(callbacks=None)
    with fragile.as_current():
        resumed = globular.load(folder).set_params(warm_start=True, max_iter=26, callbacks=None)
        resumed.fit(as_dask(rows))
    whole = KMeans(25, algorithm="lloyd", random_state=0, max_iter=30, tol=0).fit(as_dask(rows))
    np.testing.assert_allclose(resumed.cluster_centers_, whole.cluster_centers_, rtol=1e-12)
    np.testing.assert_array_equal(resumed.labels_, whole.labels_)


@pytest.mark.parametrize("n_workers", [1, 2, 3, 10, 100, 1000])
def test_the_client_gets_two_sums_from_any_number_of_workers(n_workers: int) -> None:
    def found_by(route: tuple[Post, ...]) -> dict[Any, list[int]]:
        tree = TreeSum[list[int]](n_workers, list.__add__)
        tree.insert(0, route[0].parts[0], list(route[0].parts))
        for half in halves(route[1:]):
            for (level, number), value in found_by(half).items():
                tree.insert(level, number, value)
        return tree.nodes

    whole = tuple(Post(str(number), (number,)) for number in range(n_workers))
    found = [found_by(half) for half in halves(whole)]
    assert [len(sums) for sums in found] == [1] * min(2, n_workers)
    assert [part for sums in found for value in sums.values() for part in value] == list(range(n_workers))


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    """Also with a tree of several levels: five workers, of which some pass requests on."""
    rows = blobs(N, C=20, D=D)
    found = []
    for n_workers in (1, 5):
        with start_cluster(n_workers, processes=False) as cluster, Client(cluster, set_as_default=False) as connected:
            shard = DaskShard(connected, collection_partitions(as_dask(rows, list(range(0, N + 1, 120)))))
            assert len(set(shard.owners)) == n_workers
            steps = list(lloyd(shard, rows[:30], KMeansOptions(max_iter=4)))
            found.append((steps[-1].model.tobytes(), steps[-1].objective, shard.labels.copy().tobytes()))
    assert found[0] == found[1]
