"""Properties of the generated data: the promises of the docstrings, checked on the result."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.ndimage import affine_transform, gaussian_filter

from globular import datasets
from globular.datasets import Dataset, images

MAKERS: dict[str, Callable[[int], Dataset]] = {
    "birch": lambda seed: datasets.birch_grid(5, 20, random_state=seed),
    "separated": lambda seed: datasets.separated_mixture(300, 4, 3, random_state=seed, dtype=np.float32),
    "blobs": lambda seed: datasets.many_blobs(500, 30, 4, unevenness=1.0, random_state=seed),
    "patches": lambda seed: datasets.image_patches(_photos(), 5, 60, random_state=seed),
    "digits": lambda seed: datasets.deform_digits(_photos()[..., 0], 40, elastic=1.0, random_state=seed),
}


def _photos() -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, size=(4, 20, 20, 3), dtype=np.uint8)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_same_seed_same_rows_other_seed_other_rows(make):
    first, again, other = make(1), make(1), make(2)
    assert np.array_equal(first.X, again.X) and np.array_equal(first.y, again.y)
    assert not np.array_equal(first.X, other.X)
    assert first.X.dtype == np.float32 and first.X.flags.c_contiguous and np.isfinite(first.X).all()
    assert first.y.shape == (len(first.X),) and first.y.dtype == np.int32


def test_birch_grid_is_the_papers():
    data = datasets.birch_grid(30, 100, random_state=0)
    assert data.X.shape == (90_000, 2)
    assert (np.bincount(data.y) == 100).all()
    per_row = np.square(data.X - data.centers[data.y]).sum(axis=1)
    assert per_row.mean() == pytest.approx(2.0, abs=5 * per_row.std() / np.sqrt(len(per_row)))
    gaps = np.square(data.centers[:, None] - data.centers[None]).sum(axis=2)
    np.fill_diagonal(gaps, np.inf)
    assert np.allclose(gaps.min(axis=1), 32.0)  # (4√2)²


@pytest.mark.parametrize("definition", ["verbeek", "kurihara"])
@pytest.mark.parametrize(("n_components", "n_features", "c"), [(10, 2, 3.0), (20, 10, 2.0), (40, 1, 1.0)])
def test_closest_pair_of_a_separated_mixture_is_c_apart(definition, n_components, n_features, c):
    data = datasets.separated_mixture(50, n_components, n_features, separation=c, definition=definition, random_state=3)
    if definition == "verbeek":
        size = np.trace(data.covariances, axis1=1, axis2=2)
    else:
        size = n_features * np.linalg.eigvalsh(data.covariances)[:, -1]
    squared = np.square(data.centers[:, None] - data.centers[None]).sum(axis=2)
    ratio = squared / np.maximum(size[:, None], size[None])
    np.fill_diagonal(ratio, np.inf)
    assert ratio.min() >= c**2 * (1 - 1e-10)
    assert ratio.min() == pytest.approx(c**2)


def test_separated_mixture_samples_its_own_model():
    data = datasets.separated_mixture(60_000, 3, 2, random_state=0)
    shares = np.bincount(data.y, minlength=3) / len(data.y)
    assert np.allclose(shares, data.weights, atol=0.01)
    for component in range(3):
        rows = data.X[data.y == component]
        assert np.allclose(rows.mean(axis=0), data.centers[component], atol=0.15)
        assert np.allclose(np.cov(rows.T), data.covariances[component], rtol=0.1, atol=0.2)


@pytest.mark.parametrize("unevenness", [0.0, 2.0])
def test_blob_sizes(unevenness):
    data = datasets.many_blobs(10_007, 500, 3, unevenness=unevenness, random_state=0)
    sizes = np.bincount(data.y, minlength=500)
    assert sizes.sum() == 10_007 and sizes.min() >= 1
    assert (np.ptp(sizes) <= 1) == (unevenness == 0.0)


def test_blob_rows_surround_their_centres_in_every_block(monkeypatch):
    monkeypatch.setattr("globular.datasets.record._BLOCK_VALUES", 1_000)
    small_blocks = datasets.many_blobs(5_000, 40, 6, cluster_std=0.5, random_state=0)
    monkeypatch.undo()
    one_block = datasets.many_blobs(5_000, 40, 6, cluster_std=0.5, random_state=0)
    assert np.array_equal(small_blocks.X, one_block.X)
    residual = one_block.X - one_block.centers[one_block.y]
    assert residual.std() == pytest.approx(0.5, rel=0.02)
    assert abs(residual.mean()) < 0.01


def test_plain_patches_occur_in_their_images():
    photos = _photos()
    data = datasets.image_patches(photos, (4, 6), 30, normalize=False, random_state=0)
    for row, source in zip(data.X, data.y, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(photos[source], (4, 6), axis=(0, 1))
        candidates = np.moveaxis(windows, 2, -1).reshape(-1, 72)
        assert (candidates == row).all(axis=1).any()


def test_normalized_patches_have_no_mean_and_bounded_contrast():
    data = datasets.image_patches(_photos(), 6, 50, random_state=0, dtype=np.float64)
    assert np.allclose(data.X.mean(axis=1), 0.0)
    variance = data.X.var(axis=1)
    assert (variance < 1.0).all() and (variance > 0.9).all()
    flat = datasets.image_patches(np.full((1, 9, 9), 200), 3, 4, random_state=0)
    assert not flat.X.any()


def test_no_deformation_is_the_image_itself():
    digits = _photos()[..., 0]
    data = datasets.deform_digits(digits, 20, max_rotation=0, max_scaling=0, max_shear=0, max_shift=0, random_state=0)
    assert np.allclose(data.X, digits.reshape(4, -1)[data.y], atol=0.05)


def test_affine_sampling_equals_scipy():
    rng = np.random.default_rng(0)
    picture = rng.uniform(size=(12, 15)).astype(np.float32)
    matrix = (np.eye(2) + rng.uniform(-0.3, 0.3, size=(2, 2))).astype(np.float32)
    shift = np.array([0.7, -1.2], np.float32)
    down, right = images._affine_places(matrix[None], shift[None], 12, 15)
    got = images._bilinear(np.pad(picture, 1)[None], np.zeros(1, np.int32), down, right).reshape(12, 15)
    middle = np.array([5.5, 7.0])
    # grid-constant interpolates into the zeros outside, as a border of zeros does
    expected = affine_transform(picture, matrix, offset=middle - shift - matrix @ middle, order=1, mode="grid-constant")
    assert np.allclose(got, expected, atol=1e-3)


def test_elastic_field_is_smoothed_noise_of_unit_variance():
    fields = images._smooth_fields(4_000, 10, 14, 2.0, np.random.default_rng(0)).reshape(-1, 10, 14)
    assert np.allclose(fields.std(axis=0), 1.0, atol=0.06)
    noise = np.random.default_rng(0).standard_normal((4_000, 10, 14), dtype=np.float32)[0]
    filtered = gaussian_filter(noise, 2.0, mode="nearest")
    assert np.corrcoef(fields[0, 3:7, 5:9].ravel(), filtered[3:7, 5:9].ravel())[0, 1] > 0.99


def test_elastic_deformation_changes_what_affine_alone_gives():
    digits = _photos()[..., 0].reshape(4, -1)
    still = {"max_rotation": 0.0, "max_scaling": 0.0, "max_shear": 0.0, "max_shift": 0.0, "random_state": 0}
    assert (
        np.abs(
            datasets.deform_digits(digits, 8, elastic=1.0, **still).X - datasets.deform_digits(digits, 8, **still).X
        ).max()
        > 1.0
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: datasets.birch_grid(0), "side"), (lambda: datasets.birch_grid(3, sigma=-1.0), "sigma"),
        (lambda: datasets.birch_grid(3, dtype=np.int32), "dtype"),
        (lambda: datasets.birch_grid(3, random_state=-1), "random_state"),
        (lambda: datasets.separated_mixture(10, 2, 2, definition="moore"), "definition"),
        (lambda: datasets.separated_mixture(10, 2, 2, separation=0.0), "separation"),
        (lambda: datasets.separated_mixture(10, 2, 2, eccentricity=0.5), "eccentricity"),
        (lambda: datasets.many_blobs(10, 11, 2), "n_samples"),
        (lambda: datasets.many_blobs(10, 2, 2, unevenness=np.nan), "unevenness"),
        (lambda: datasets.image_patches(np.zeros((2, 5)), 2, 3), "images"),
        (lambda: datasets.image_patches(np.zeros((2, 5, 5)), 6, 3), "size"),
        (lambda: datasets.image_patches(np.full((2, 5, 5), np.nan), 2, 3), "images"),
        (lambda: datasets.deform_digits(np.zeros((2, 5)), 3), "images"),
        (lambda: datasets.deform_digits(np.zeros((0, 4)), 3), "images"),
        (lambda: datasets.deform_digits(np.zeros((2, 4)), 3, max_scaling=1.0), "max_scaling"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_a_count_must_be_an_integer():
    with pytest.raises(TypeError, match="n_clusters"):
        datasets.many_blobs(10, 2.5, 2)
