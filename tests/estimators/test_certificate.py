"""The certificate of truncation says what a search among few clusters misses, and how sure that is."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import globular
from globular.cli.main import app
from globular.datasets import many_blobs
from globular.estimators.certificates import is_truncated


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return many_blobs(6000, 400, 12, center_std=1.0, random_state=0).X


@pytest.fixture(scope="module")
def kmeans(rows: np.ndarray) -> globular.VariationalKMeans:
    return globular.VariationalKMeans(400, max_iter=5, random_state=0).fit(rows)


@pytest.fixture(scope="module")
def mixture(rows: np.ndarray) -> globular.VariationalGaussianMixture:
    return globular.VariationalGaussianMixture(400, n_candidates=2, tol=1.0, random_state=0).fit(rows)


def test_all_rows_of_kmeans_are_those_of_predict(rows: np.ndarray, kmeans: globular.VariationalKMeans) -> None:
    found = kmeans.certificate(rows, n_samples=10**6)
    _, rough = kmeans.predict(rows, exact=False, return_distance=True)
    _, exact = kmeans.predict(rows, return_distance=True)
    assert found.n_samples == len(rows) and 0 < found.missed < 0.5
    assert found.missed == pytest.approx(np.mean(rough > exact), abs=2e-3)
    assert found.loss == pytest.approx(np.mean(rough**2) / np.mean(exact**2) - 1, rel=1e-6)


def test_all_rows_of_a_mixture_are_those_of_its_bound(rows, mixture):
    found = mixture.certificate(rows, n_samples=len(rows))
    gaps = mixture.score_samples(rows) - mixture.score_samples(rows, exact=False)
    assert gaps.min() > -1e-6  # a lower bound
    assert found.loss == pytest.approx(gaps.mean(), rel=1e-6) and found.loss > 0
    assert found.loss_error == pytest.approx(gaps.std() / np.sqrt(len(rows) - 1), rel=1e-6)
    kept = mixture.predict_proba(rows, truncated=True)[np.arange(len(rows)), mixture.predict(rows)]
    assert found.missed == pytest.approx(np.mean(kept == 0), abs=1e-3)


def test_a_sample_is_within_its_standard_errors(rows: np.ndarray, kmeans: globular.VariationalKMeans) -> None:
    whole, sample = kmeans.certificate(rows, n_samples=len(rows)), kmeans.certificate(rows, n_samples=500)
    assert sample.n_samples == 500
    assert abs(sample.missed - whole.missed) < 5 * sample.missed_error + 1e-3
    assert abs(sample.loss - whole.loss) < 5 * sample.loss_error + 1e-3


def test_few_clusters_miss_nothing(rows: np.ndarray) -> None:
    model = globular.KMeans(3, random_state=0).fit(rows)
    found = model.certificate(rows)
    assert (found.missed, found.loss) == (0.0, 0.0) and not is_truncated(model)


@pytest.mark.parametrize("n_samples", [0, -1, 2.5, "all"])
def test_a_bad_size_is_named(rows: np.ndarray, kmeans: globular.VariationalKMeans, n_samples: object) -> None:
    with pytest.raises(ValueError, match="n_samples"):
        kmeans.certificate(rows, n_samples=n_samples)  # type: ignore[arg-type]


def test_info_shows_it(rows: np.ndarray, kmeans: globular.VariationalKMeans, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows)
    globular.save(kmeans, tmp_path / "model")
    shown = CliRunner().invoke(app, ["info", str(tmp_path / "model"), "--data", str(tmp_path / "rows.npy")])
    assert shown.exit_code == 0 and "certificate" in shown.output and "sampled" in shown.output
    told = CliRunner().invoke(app, ["info", str(tmp_path / "model"), "--data", str(tmp_path / "rows.npy"), "--json"])
    assert '"missed"' in told.output
    alone = CliRunner().invoke(app, ["info", str(tmp_path / "rows.npy"), "--data", str(tmp_path / "rows.npy")])
    assert alone.exit_code != 0
