"""The `device` parameter: on a card, on the CPU by torch, and where there is neither."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from globular import KMeans, NestedMiniBatchKMeans, ResidualKMeans, VariationalKMeans
from globular.errors import DeviceError, MissingExtraError
from makers import blobs, weights_for

ROWS = blobs(n=3000, C=40, D=20, spread=0.7).astype(np.float32)


class OnCard:
    """Looks like a tensor on a card to whoever asks by DLPack."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def on_torch() -> str:
    torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')
    return "cuda" if torch.cuda.is_available() else "torch-cpu"


@pytest.mark.parametrize("k", [5, 60, 600])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_on_a_card_is_that_of_the_cpu(k: int, metric: str, weighted: bool) -> None:
    w = weights_for(len(ROWS)) if weighted else None
    ours, theirs = (
        KMeans(k, metric=metric, random_state=0, device=device).fit(ROWS, sample_weight=w)
        for device in (on_torch(), "cpu")
    )
    assert ours.inertia_ < 1.02 * theirs.inertia_  # another path to another minimum
    assert ours.labels_.shape == (len(ROWS),) and ours.labels_.dtype == np.int32
    np.testing.assert_array_equal(ours.predict(ROWS), KMeans.predict(_on_cpu(ours), ROWS))


@pytest.mark.parametrize("k", [30, 300])
def test_limits_of_size_hold_on_a_card(k: int) -> None:
    n = len(ROWS)
    limits = {"min_cluster_size": n // (2 * k), "max_cluster_size": 3 * n // (2 * k)}
    ours, theirs = (KMeans(k, random_state=0, device=d, **limits).fit(ROWS) for d in (on_torch(), "cpu"))
    assert ours.cluster_sizes_.min() >= n // (2 * k) and ours.cluster_sizes_.max() <= 3 * n // (2 * k)
    assert ours.inertia_ < 1.03 * theirs.inertia_


@pytest.mark.parametrize("where", ["one", "two", "streamed"])
@pytest.mark.parametrize(
    "options", [{"max_size": 300}, {"metric": "cosine", "beam": 3, "n_refinements": 2}, {"unique": True}], ids=str
)
def test_residual_codes_are_found_on_a_card(
    options: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = on_torch()
    device, weights = [device, device] if where == "two" else device, np.arange(len(ROWS)) % 3
    if where == "streamed":
        opening = pytest.importorskip("globular.passes.torch.opening")
        stream = opening.StreamedShard
        monkeypatch.setattr(opening.Plan, "shard", lambda plan, *rows, **how: stream(*rows, plan.device, **how))
    ours, theirs = (
        ResidualKMeans([16, 24, 20], random_state=0, device=device, **options).fit(ROWS, sample_weight=weights)
        for device in (device, "cpu")
    )
    assert ours.inertia_ < 1.05 * theirs.inertia_  # another path to another minimum
    assert ours.codes_.dtype == np.uint8 and isinstance(ours.codebooks_[0], np.ndarray)
    seen = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True) if "metric" in options else ROWS
    left = np.square(seen - ours.decode(ours.codes_)).sum(axis=1)
    assert ours.inertia_ == pytest.approx(weights @ left, rel=1e-4)
    np.testing.assert_array_equal(ours.encode(ROWS), _on_cpu(ours).encode(ROWS))
    if "unique" in options:
        assert len(np.unique(ours.encode(ROWS, unique=True), axis=0)) == len(ROWS)


@pytest.mark.parametrize("init", ["afk-mc2", "k-means||", "random", "hierarchical", "k-means++"])
def test_every_seeding_runs_on_a_card(init: str) -> None:
    ours, theirs = (KMeans(30, init=init, random_state=0, device=d).fit(ROWS) for d in (on_torch(), "cpu"))
    assert ours.init_ == init and ours.inertia_ < 1.02 * theirs.inertia_


@pytest.mark.parametrize("algorithm", ["lloyd", "probing"])
def test_every_algorithm_runs_on_a_card(algorithm: str) -> None:
    ours, theirs = (KMeans(30, algorithm=algorithm, random_state=0, device=d).fit(ROWS) for d in (on_torch(), "cpu"))
    assert ours.inertia_ < 1.01 * theirs.inertia_


@pytest.mark.parametrize(
    "options", [{}, {"n_candidates": 1}, {"metric": "cosine"}, {"neighborhoods": "exhaustive"}], ids=str
)
def test_neighborhoods_are_searched_on_a_card(options: dict[str, Any]) -> None:
    w = weights_for(len(ROWS))
    ours, theirs = (
        VariationalKMeans(60, random_state=0, device=d, **options).fit(ROWS, sample_weight=w)
        for d in (on_torch(), "cpu")
    )
    assert ours.inertia_ < 1.02 * theirs.inertia_
    assert isinstance(ours.neighbors_, np.ndarray) and isinstance(ours.cluster_centers_, np.ndarray)
    objectives = [record.objective for record in ours.history_ if record.iteration]
    assert np.diff(objectives).max() <= 1e-6 * objectives[0]


@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8"])
@pytest.mark.parametrize("algorithm", ["lloyd", "probing"])
def test_every_type_of_rows_has_many_passes(dtype: str, algorithm: str) -> None:
    """The first pass of a kind is carried out as it is, the second recorded, the third replayed."""
    rows = (20 * (ROWS - ROWS.min())).astype(dtype) if dtype == "uint8" else ROWS.astype(dtype)
    ours, theirs = (
        KMeans(30, algorithm=algorithm, init=rows[:30], max_iter=8, tol=0, random_state=0, device=d).fit(rows)
        for d in (on_torch(), "cpu")
    )
    limit = 1.01 if algorithm == "lloyd" else 1.1  # rows that probe see other cells: another path to another minimum
    assert ours.n_iter_ >= 3 and ours.inertia_ < limit * theirs.inertia_


def _on_cpu(model: KMeans) -> KMeans:
    return model.set_params(device="cpu")


def test_models_leave_the_card(tmp_path: Path) -> None:
    model = KMeans(20, random_state=0, device=on_torch()).fit(ROWS)
    globular.save(model, tmp_path / "model")
    loaded = globular.load(tmp_path / "model").set_params(device="cpu")
    np.testing.assert_array_equal(loaded.predict(ROWS), model.labels_)


def test_files_are_read_to_the_card(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    device = on_torch()
    ours, theirs = (KMeans(20, random_state=0, device=device).fit(X) for X in (tmp_path / "rows.npy", ROWS))
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)


def test_tensors_on_a_card_give_tensors_there() -> None:
    torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA card")
    X = torch.as_tensor(ROWS, device="cuda")
    model = KMeans(20, random_state=0).fit(X)
    assert isinstance(model.cluster_centers_, np.ndarray)
    assert model.predict(X).device == X.device and model.transform(X).device == X.device
    with pytest.raises(DeviceError, match="device='cpu'"):
        model.set_params(device="cpu").predict(X)
    with pytest.raises(ValueError, match="row 7"):
        KMeans(3).fit(torch.where(torch.arange(3000, device="cuda")[:, None] == 7, torch.nan, X))


def test_what_cannot_be_is_said_in_one_sentence() -> None:
    with pytest.raises(DeviceError, match=r"NestedMiniBatchKMeans does not run on GPUs.*take KMeans"):
        NestedMiniBatchKMeans(3).fit(OnCard())
    with pytest.raises(DeviceError, match="device='cpu'"):
        KMeans(3, device="cpu").fit(OnCard())
    with pytest.raises(ValueError, match='\'device\' parameter of KMeans must be "auto", "cpu", "cuda", "cuda:N"'):
        KMeans(3, device="tpu").fit(ROWS)
    with pytest.raises(ValueError, match='device must be "auto"'):
        KMeans(3, random_state=0).fit(ROWS).set_params(device="tpu").predict(ROWS)
    torch: Any = None
    try:
        import torch
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"globular\[gpu\]"):
            KMeans(3, device="cuda").fit(ROWS)
        return
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="no CUDA card"):
            KMeans(3, device="cuda").fit(ROWS)


def test_nothing_imports_torch_unless_asked() -> None:
    code = "import sys, globular, globular.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
