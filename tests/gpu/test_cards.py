"""Rows on several cards, or in several parts on one: the fits of one card, up to the order of sums."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from globular import GaussianMixture, HierarchicalKMeans, KMeans, VariationalGaussianMixture, VariationalKMeans
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.callbacks import Checkpoint
from globular.cli.main import run
from makers import blobs, weights_for

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')
from globular.passes.torch import TorchShard, opening  # noqa: E402
from globular.passes.torch.cards import CardsShard  # noqa: E402

CARD = "cuda" if torch.cuda.is_available() else "torch-cpu"
ROWS = blobs(n=3000, C=40, D=20, spread=0.7).astype(np.float32)

MODELS: dict[str, Any] = {
    "lloyd": lambda **more: KMeans(30, algorithm="lloyd", random_state=0, **more),
    "probing": lambda **more: KMeans(60, algorithm="probing", random_state=0, **more),
    "exact": lambda **more: KMeans(8, random_state=0, **more),
    "limits": lambda **more: KMeans(30, min_cluster_size=50, max_cluster_size=150, random_state=0, **more),
    "cosine": lambda **more: KMeans(60, metric="cosine", random_state=0, **more),
    "variational": lambda **more: VariationalKMeans(40, random_state=0, **more),
    "tree": lambda **more: HierarchicalKMeans([60, 8], resample=1, random_state=0, **more),
    "em": lambda **more: GaussianMixture(5, random_state=0, **more),
    "truncated": lambda **more: VariationalGaussianMixture(60, random_state=0, reg_covar=1e-3, **more),
}


def leave_little_room(monkeypatch: pytest.MonkeyPatch, n_bytes: float) -> None:
    monkeypatch.setattr(opening, "SPARE_BYTES", 0)
    monkeypatch.setattr(opening, "PART_BYTES", 20_000)
    monkeypatch.setattr(opening, "free_bytes", lambda device: n_bytes)


def quality_of(model: Any) -> float:
    return float(model.lower_bound_ if hasattr(model, "lower_bound_") else -model.inertia_ / len(ROWS))


def arrays_of(model: Any) -> bytes:
    return b"".join(
        np.asarray(getattr(model, name)).tobytes()
        for name in ("cluster_centers_", "labels_", "means_", "weights_")
        if hasattr(model, name)
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_on_two_cards_is_that_of_one(name: str) -> None:
    weights = np.where(np.arange(3000) % 11 == 0, 0.0, weights_for(3000))
    one, two, again = (
        MODELS[name](device=device).fit(ROWS, **({} if name == "limits" else {"sample_weight": weights}))
        for device in (CARD, [CARD, CARD], [CARD, CARD])
    )
    assert quality_of(two) == pytest.approx(quality_of(one), rel=0.03)
    assert arrays_of(two) == arrays_of(again)
    assert two.labels_.shape == (3000,) and isinstance(two.labels_, np.ndarray)
    np.testing.assert_array_equal(two.predict(ROWS), two.set_params(device="cpu").predict(ROWS))


def test_iterations_of_two_parts_equal_those_of_one() -> None:
    weights = weights_for(3000)
    one, three = (opening.shard_on_cards(ROWS, weights, device) for device in (CARD, [CARD] * 3))
    assert isinstance(three, CardsShard) and three.weights_of_parts.shape == (3,)
    start, options = ROWS[3::100].astype(float), KMeansOptions(max_iter=4)
    for expected, found in zip(lloyd(one, start, options), lloyd(three, start, options), strict=True):
        np.testing.assert_array_equal(np.asarray(three.labels), np.asarray(one.labels))
        np.testing.assert_allclose(np.asarray(found.model), np.asarray(expected.model), rtol=1e-12, atol=1e-12)
    numbers = np.array([2999, 0, 1001, 1000, 999, 0])
    for what in ("rows", "labels", "weights"):
        np.testing.assert_array_equal(np.asarray(three.take(numbers, what)), np.asarray(one.take(numbers, what)))
    chosen = np.arange(5, 3000, 7)
    for part in (one.subset(chosen), three.subset(chosen)):
        np.testing.assert_array_equal(np.asarray(part.take(np.arange(len(chosen)))), ROWS[chosen])
        np.testing.assert_array_equal(np.asarray(part.take(np.arange(len(chosen)), "weights")), weights[chosen])


def test_a_start_in_a_subspace_is_made_on_each_card(caplog: pytest.LogCaptureFixture) -> None:
    rows = np.pad(ROWS[:, :6], ((0, 0), (0, 60))) + np.random.default_rng(0).normal(scale=0.01, size=(3000, 66))
    one, two = MODELS["probing"](device=CARD), MODELS["probing"](device=[CARD, CARD])
    one.fit(rows)
    with caplog.at_level("INFO", "globular"):
        two.fit(rows)
    assert "of 66 dimensions" in caplog.text
    assert quality_of(two) == pytest.approx(quality_of(one), rel=0.03)


def test_parts_that_do_not_fit_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    fit = MODELS["lloyd"](device=[CARD, CARD])
    expected = fit.fit(ROWS).labels_
    leave_little_room(monkeypatch, 800_000)  # each part takes half of it
    np.testing.assert_array_equal(fit.fit(tmp_path / "rows.npy").labels_, expected)


@pytest.mark.parametrize("device", [CARD, [CARD, CARD]], ids=["one", "two"])
def test_bfloat16_goes_to_cards_as_it_is(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        opening, "TorchShard", lambda rows, *given, **more: seen.append(rows) or TorchShard(rows, *given, **more)
    )
    model = KMeans(8, random_state=0, device=device).fit(torch.as_tensor(ROWS).to(torch.bfloat16))
    assert {rows.dtype for rows in seen} == {torch.bfloat16} and isinstance(model.labels_, np.ndarray)
    assert model.labels_.shape == (3000,)


def test_more_cards_than_rows() -> None:
    model = KMeans(2, device=[CARD] * 5, random_state=0).fit(ROWS[:3])
    assert model.labels_.shape == (3,)


@pytest.mark.parametrize("wrong", [[], ["cpu"], ["cuda:all"], ["cuda:x"], [0], "cuda:all:1"])
def test_what_is_no_list_of_cards_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match='"cuda:all" or a list of cards'):
        KMeans(2, device=wrong).fit(ROWS)


def test_the_command_takes_several_cards_and_saves_the_model(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    asked = ["fit", str(tmp_path / "rows.npy"), "-k", "8", "-o", str(tmp_path / "model"), "--seed", "0", "-q"]
    assert run([*asked, "--device", f"{CARD},{CARD}"]) == 0
    loaded = globular.load(tmp_path / "model")
    assert list(loaded.device) == [CARD, CARD]
    assert arrays_of(loaded) == arrays_of(KMeans(8, device=[CARD, CARD], random_state=0).fit(ROWS))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("layout", ["one", "two", "file"])
@pytest.mark.parametrize("name", ["lloyd", "em"])
def test_a_fit_goes_on_from_a_checkpoint_with_the_same_bits(
    name: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = [CARD, CARD] if layout == "two" else CARD
    X: Any = ROWS
    if layout == "file":
        leave_little_room(monkeypatch, 600_000)
        np.save(tmp_path / "rows.npy", ROWS)
        X = tmp_path / "rows.npy"
    whole = MODELS[name](device=device, max_iter=7, tol=0).fit(X)
    at_three = [Checkpoint(tmp_path / "run", every_iterations=1), lambda model, record: record.iteration == 3]
    MODELS[name](device=device, max_iter=7, tol=0, callbacks=at_three).fit(X)
    if layout == "file":  # another number of parts that stay
        leave_little_room(monkeypatch, 700_000)
    resumed = globular.load(tmp_path / "run").set_params(warm_start=True, max_iter=4).fit(X)
    assert arrays_of(resumed) == arrays_of(whole)


def test_the_time_of_a_fit_on_several_cards_is_limited() -> None:
    def wait(*_: Any) -> None:
        time.sleep(0.2)

    model = KMeans(300, algorithm="lloyd", tol=0, device=[CARD, CARD], max_time=0.5, callbacks=wait).fit(ROWS)
    assert model.stopped_ == "max_time" and model.labels_.shape == (len(ROWS),)


def test_rows_on_workers_lie_on_their_cards() -> None:
    pytest.importorskip("distributed", reason='needs Dask: pip install "globular[dask]"')
    import dask.array as da
    from distributed import Client, LocalCluster

    X = da.from_array(ROWS, chunks=(800, 20))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0", memory_limit=0
        ) as cluster,
        Client(cluster),
    ):
        for name in ("lloyd", "em"):
            one, workers = MODELS[name](device=CARD).fit(ROWS), MODELS[name](device=CARD).fit(X)
            assert quality_of(workers) == pytest.approx(quality_of(one), rel=0.03)
            np.testing.assert_array_equal(np.asarray(workers.predict(X)), one.__class__.predict(workers, ROWS))
