"""How many clusters: the criteria find the number where there is one, and the path keeps its promises."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import silhouette_score

import globular
from globular.algorithms.kmeans import path
from globular.algorithms.kmeans.lloyd import KMeansOptions
from globular.algorithms.kmeans.path import grow
from globular.algorithms.mixtures.path import PathOptions, _Walk
from globular.datasets import birch_grid, separated_mixture
from globular.passes.cpu import CpuShard
from globular.selection import Score, Selection, elbow, select, silhouette
from tests.makers import blobs


def round_clusters(k: int, D: int = 3, n: int = 1200, seed: int = 0) -> Any:
    return separated_mixture(n, k, D, separation=5.0, eccentricity=1.0, random_state=seed).X


@pytest.mark.parametrize("k", [3, 6, 11])
def test_all_criteria_find_a_clear_number(k: int) -> None:
    X = round_clusters(k, seed=k)
    found = select(X, range(1, 16), model="gmm", covariance_type="spherical", random_state=0)
    assert [found.best_by(name) for name in ("bic", "silhouette", "elbow")] == [k, k, k]
    assert found.best == k and found.criterion == "bic"


def test_bic_finds_stretched_components() -> None:
    X = separated_mixture(2000, 5, 2, separation=3.0, eccentricity=4.0, random_state=2).X
    assert select(X, range(1, 10), model="gmm", random_state=0).best == 5


def test_hundreds_of_clusters_in_steps_of_a_factor() -> None:
    X = birch_grid(12, 40, random_state=0).X
    found = select(X, [36, 54, 81, 108, 144, 192, 256], random_state=0)
    assert found.best == 144


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_error_falls_along_the_path(metric: Any) -> None:
    X = blobs(500, 6, 4)
    found = select(X, [1, 2, 3, 5, 8, 13, 100, 180], metric=metric, random_state=1)  # the last steps add in batches
    assert (np.diff(found.column("error")) < 0).all()
    for score, centers in zip(found.scores, found.centers, strict=True):
        assert centers.shape == (score.n_clusters, 4)
        rows = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
        exact = np.square(rows[:, None] - centers).sum(axis=2).min(axis=1).mean()
        assert score.error == pytest.approx(exact, rel=1e-9)


def test_the_path_probes_when_there_are_many_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    X, options = blobs(2000, 30, 4), KMeansOptions(max_iter=30)
    exact = list(grow(CpuShard(X), [20, 60, 120], options, np.random.default_rng(0)))
    monkeypatch.setattr(path, "PROBING_FROM", 40)
    found = list(grow(CpuShard(X), [20, 60, 120], options, np.random.default_rng(0)))
    assert [len(growth.centers) for growth in found] == [20, 60, 120]
    assert found[-1].error < 1.05 * exact[-1].error


def test_a_path_is_no_worse_than_independent_fits() -> None:
    X = blobs(800, 12, 3)
    found = select(X, range(2, 20), random_state=0)
    for k in (5, 12, 19):
        alone = globular.KMeans(k, random_state=0).fit(X).inertia_ / len(X)
        assert found.column("error")[k - 2] < 1.05 * alone


def test_a_final_fit_goes_on_from_the_centers() -> None:
    X = round_clusters(6)
    found = select(X, range(2, 10), random_state=0)
    model = globular.KMeans(found.best, init=found.centers_for(found.best)).fit(X)
    assert model.inertia_ / len(X) <= found.scores[found.best - 2].error * (1 + 1e-9)
    with pytest.raises(ValueError, match="n_clusters=77 was not tried"):
        found.centers_for(77)


def test_weights_are_repetitions() -> None:
    X = round_clusters(4, n=300)
    weights = np.random.default_rng(0).integers(1, 4, 300)
    weighted = select(X, range(1, 7), model="gmm", sample_weight=weights, random_state=0)
    repeated = select(np.repeat(X, weights, axis=0), range(1, 7), model="gmm", random_state=0)
    assert weighted.best == repeated.best == 4
    assert weighted.scores[3].bic == pytest.approx(repeated.scores[3].bic, rel=1e-3)
    assert weighted.scores[3].variance_ratio == pytest.approx(repeated.scores[3].variance_ratio, rel=1e-3)


def test_bic_is_that_of_the_estimator() -> None:
    X = round_clusters(3)
    found = select(X, [3], model="gmm", random_state=0)
    model = globular.GaussianMixture(3, means_init=found.centers_for(3)).fit(X)
    assert found.scores[0].bic == pytest.approx(model.bic(X), rel=1e-4)
    assert found.scores[0].bic == pytest.approx(found.best_model_.bic(X), rel=1e-9)
    assert found.scores[0].icl == pytest.approx(found.best_model_.icl(X), rel=1e-9)


TYPES = ("full", "tied", "diag", "spherical")


def drawn(covariance_type: str, k: int, D: int, n: int, seed: int = 0) -> Any:
    """Rows of a mixture of a known number and type."""
    random = np.random.default_rng(seed)
    means = 6.0 * np.stack([np.roll(np.arange(D), i) + i for i in range(k)]) / np.sqrt(D)
    roots = random.normal(size=(k, D, D)) / np.sqrt(D) + 0.5 * np.eye(D)
    full = roots @ roots.transpose(0, 2, 1) + 0.05 * np.eye(D)
    variances = random.uniform(0.2, 3.0, (k, D))
    shapes = {"full": full, "tied": full[0], "diag": variances, "spherical": variances[:, 0]}
    true = globular.GaussianMixture.from_parameters(np.full(k, 1 / k), means, shapes[covariance_type], covariance_type)
    return true.set_params(random_state=seed).sample(n)[0]


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("criterion", ["bic", "icl"])
def test_the_number_and_the_type_are_found_together(covariance_type: str, criterion: Any) -> None:
    X = drawn(covariance_type, 4, 3, 3000)
    found = select(X, range(1, 9), model="gmm", covariance_type=TYPES, criterion=criterion, random_state=0)
    assert (found.best, found.best_covariance_type) == (4, covariance_type)
    assert len(found.scores) == 8 * 4
    model = found.best_model_
    assert (model.n_components, model.covariance_type) == (4, covariance_type)
    assert found.best_score(criterion).bic == pytest.approx(model.bic(X), rel=1e-9)
    assert model.converged_ and model.labels_.shape == (3000,)
    assert model.lower_bound_ == pytest.approx(model.score(X))
    again = clone(model).fit(X)
    assert model.bic(X) < again.bic(X) + 2e-3 * len(X)


def test_scores_of_a_part_are_refined_on_all_rows() -> None:
    """Where rows are many, the path takes some of them, and the best mixture is one of all of them."""
    X = drawn("diag", 5, 3, 20_000)
    found = select(X, range(1, 9), model="gmm", covariance_type=["diag", "spherical"], random_state=0)
    assert (found.best, found.best_covariance_type) == (5, "diag")
    loop = globular.GaussianMixture(5, covariance_type="diag", random_state=0).fit(X)
    assert found.best_model_.bic(X) < loop.bic(X) + 1e-4 * abs(loop.bic(X))


def test_a_type_that_could_not_catch_up_is_left() -> None:
    options = PathOptions(("diag",), n_numbers=20)
    anything: Any = object()
    falls = [1000.0, 900.0, 820.0, 760.0, 710.0, 670.0]  # by 330 in five numbers, so by 924 in the 14 to come
    for lowest, leaves in ((-200.0, False), (-300.0, True)):
        walk = _Walk("diag", options)
        for score in falls:
            assert not walk.leaves(-1e9)  # too early to tell
            walk.take(anything, score)
        assert walk.leaves(lowest) is leaves
        assert not walk.leaves(walk.lowest)  # it is the lowest itself
    patient = _Walk("diag", replace(options, may_leave=False))
    for score in falls:
        patient.take(anything, score)
    assert not patient.leaves(-1e9)


def test_a_type_that_rises_for_long_is_left() -> None:
    X = drawn("spherical", 2, 2, 1500)
    found = select(X, range(1, 16), model="gmm", covariance_type="all", random_state=0)
    assert found.best == 2
    assert np.isnan(found.column("bic")).any() and not np.isnan(found.column("error")).any()
    by_silhouette = select(X, range(1, 16), model="gmm", criterion="silhouette", random_state=0)
    assert not np.isnan(by_silhouette.column("bic")).any()
    assert by_silhouette.best_model_.n_components == by_silhouette.best == 2


def test_icl_counts_clusters_where_bic_counts_gaussians() -> None:
    random = np.random.default_rng(0)
    t = random.standard_t(3, size=(3000, 2))  # heavier tails than one Gaussian has
    X = np.concatenate([t[:1500], t[1500:] + [40.0, 0.0]])
    found = select(X, range(1, 9), model="gmm", random_state=0)
    assert found.best_by("icl") < found.best_by("bic")
    assert (found.column("icl") >= found.column("bic") - 1e-6)[~np.isnan(found.column("bic"))].all()


def test_the_best_model_is_ready() -> None:
    X = pd.DataFrame(round_clusters(4).astype(np.float32), columns=["a", "b", "c"])
    found = select(X, range(2, 8), random_state=0)
    model = found.best_model_
    assert isinstance(model, globular.KMeans) and model.n_clusters == 4
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    assert model.inertia_ == pytest.approx(len(X) * found.scores[2].error, rel=1e-5)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"] and model.cluster_centers_.dtype == np.float32
    mixture = select(X, range(2, 8), model="gmm", random_state=0).best_model_
    assert mixture.means_.dtype == np.float32 and mixture.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(mixture.labels_, mixture.predict(X))


def test_doubts_have_reasons() -> None:
    assert select(round_clusters(6), range(2, 12), random_state=0).doubts == ()
    none = np.random.default_rng(0).normal(size=(1000, 5))
    doubts = " ".join(select(none, range(2, 12), random_state=0).doubts)
    assert "rows without clusters" in doubts
    short = select(round_clusters(9), range(2, 6), random_state=0)
    assert any("largest number tried" in reason for reason in short.doubts)
    assert "Beware: " in repr(short)
    wide = select(np.random.default_rng(0).normal(size=(60, 45)), range(1, 4), model="gmm", random_state=0)
    assert wide.best > 1 and any("too few rows" in reason for reason in wide.doubts)
    few = Selection(tuple(Score(k, 1.0, np.nan, 0.5, np.nan) for k in range(2, 9)), "silhouette", ())
    assert any("score as well" in reason for reason in few.doubts)
    apart = Selection(tuple(Score(k, 1.0, -k, k / 10, np.nan) for k in range(2, 9)), "silhouette", ())
    assert any("by elbow" in reason for reason in apart.doubts)


def test_silhouette_resembles_the_original() -> None:
    X = round_clusters(5)
    model = globular.KMeans(5, random_state=0).fit(X)
    ours = silhouette(X, np.ones(len(X)), model.cluster_centers_.astype(float))
    assert ours == pytest.approx(silhouette_score(X, model.labels_), abs=0.1)
    assert np.isnan(silhouette(X, np.ones(len(X)), X[:1].astype(float)))


def test_elbow_of_a_straight_line_is_zero() -> None:
    sizes = np.array([1, 2, 4, 8, 16])
    np.testing.assert_allclose(elbow(sizes, sizes ** (-2 / 3))[1:-1], 0.0, atol=1e-12)
    kink = np.where(sizes <= 4, sizes ** (-2.0), 4.0 ** (-1.5) * sizes ** (-0.5))
    assert np.nanargmax(elbow(sizes, kink)) == 2
    assert np.isnan(elbow(sizes, kink)[[0, -1]]).all()


def test_same_seed_same_scores_whatever_the_threads(tmp_path: Path) -> None:
    X = blobs(1000, 8, 4).astype(np.float32)
    np.save(tmp_path / "x.npy", X)
    one = select(X, range(1, 12), random_state=3, n_threads=1)
    for again in (
        select(X, range(1, 12), random_state=3, n_threads=2),
        select(tmp_path / "x.npy", range(1, 12), random_state=3),
    ):
        np.testing.assert_array_equal(one.column("error"), again.column("error"))
        np.testing.assert_array_equal(one.column("silhouette"), again.column("silhouette"))


def test_mixtures_are_the_same_whatever_the_threads_and_wherever_rows_lie(tmp_path, monkeypatch):
    X = drawn("diag", 4, 3, 9000)
    np.save(tmp_path / "x.npy", X)
    arguments: dict[str, Any] = {"model": "gmm", "covariance_type": ["full", "tied", "diag"], "random_state": 3}
    one, two = (select(X, range(1, 7), n_threads=n, **arguments) for n in (1, 2))
    np.testing.assert_array_equal(one.column("bic"), two.column("bic"))
    np.testing.assert_array_equal(one.best_model_.means_, two.best_model_.means_)
    monkeypatch.setattr("globular.estimators.inputs.MEMORY_SHARE", 0.0)
    streamed = select(tmp_path / "x.npy", range(1, 7), **arguments)
    assert (streamed.best, streamed.best_covariance_type) == (one.best, one.best_covariance_type) == (4, "diag")
    np.testing.assert_allclose(streamed.column("bic"), one.column("bic"), rtol=1e-6)
    noisy = globular.GaussianMixture(4, noise=True, random_state=0)
    np.testing.assert_allclose(clone(noisy).fit(tmp_path / "x.npy").means_, noisy.fit(X).means_, rtol=1e-6)


def test_duplicates_end_the_path_with_a_warning() -> None:
    X = np.repeat([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0]], 10, axis=0)
    with pytest.warns(UserWarning, match="fewer distinct rows than 4"):
        found = select(X, range(1, 8), random_state=0)
    assert [score.n_clusters for score in found.scores] == [1, 2, 3] and found.scores[-1].error == 0.0
    assert np.isfinite(found.column("error")).all()


def test_large_offsets_do_not_matter() -> None:
    X = round_clusters(5)
    assert select(X + 1e8, range(2, 9), random_state=0).best == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n_clusters": []}, "n_clusters must be whole"), ({"n_clusters": [0, 2]}, "n_clusters must be whole"),
        ({"n_clusters": [2.5]}, "n_clusters must be whole"), ({"n_clusters": [5000]}, "5000 is more than the 120 rows"),
        ({"model": "dbscan"}, "model must be"), ({"criterion": "gap"}, "criterion must be"),
        ({"criterion": "bic"}, "needs model='gmm'"), ({"model": "gmm", "metric": "cosine"}, "cosine"),
        ({"model": "gmm", "covariance_type": "oblong"}, "covariance_type must be"),
        ({"model": "gmm", "covariance_type": ["full", "oblong"]}, "covariance_type must be"),
        ({"model": "gmm", "covariance_type": []}, "covariance_type must be"),
        ({"criterion": "icl"}, "needs model='gmm'"), ({"max_iter": 0}, "max_iter"), ({"sample_size": 0}, "sample_size"),
        ({"n_clusters": [1]}, "silhouette.*two clusters"),
        ({"n_clusters": [2, 3], "criterion": "elbow"}, "elbow.*three"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        select(round_clusters(3, n=120), **arguments)


def test_the_record_speaks(tmp_path: Path) -> None:
    found = globular.select(round_clusters(4), range(1, 8), random_state=0)
    frame = found.to_pandas()
    assert frame["n_clusters"].tolist() == list(range(1, 8)) and np.isnan(frame["bic"]).all()
    text = repr(found)
    assert text.startswith("Selection(best=4 by silhouette)") and text.count("\n") == 8 + len(found.doubts)
    with pytest.raises(ValueError, match=r"bic.*was not computed"):
        found.best_by("bic")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left, right = found.plot()
        left.figure.savefig(tmp_path / "selection.png")
    assert "4 clusters" in right.get_title()
    np.testing.assert_array_equal(left.lines[0].get_xdata(), range(1, 8))
    pyplot.close("all")


def test_one_number_is_enough_for_its_centers() -> None:
    found = select(round_clusters(4), 4, random_state=0)  # type: ignore[arg-type]
    assert isinstance(found, Selection) and found.best == 4
