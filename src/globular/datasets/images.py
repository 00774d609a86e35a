"""Rows made from given images: patches, slightly deformed digits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy.ndimage import gaussian_filter1d

from globular.datasets.record import (
    Dataset,
    RandomState,
    check_at_least_zero,
    check_count,
    check_numeric_images,
    check_positive,
    float_type,
    generator,
    row_blocks,
)


def image_patches(
    images: ArrayLike,
    size: int | tuple[int, int],
    n_patches: int,
    *,
    normalize: bool = True,
    contrast_floor: float = 10.0,
    random_state: RandomState = None,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Rectangular patches at random places of images, one row each (channels last).

    `images` has shape (n_images, height, width) or (n_images, height, width, channels). With `normalize` each
    patch loses its mean and is divided by √(variance + contrast_floor); the floor of 10 suits values up to
    255 (Coates et al. 2011) and keeps flat patches from becoming noise.

    >>> images = np.random.default_rng(0).integers(0, 256, size=(3, 32, 32, 3))
    >>> image_patches(images, 6, 100, random_state=0).X.shape
    (100, 108)
    """
    stack = np.asarray(images)
    if stack.ndim not in (3, 4):
        raise ValueError(f"images must have shape (n_images, height, width) or (…, channels), got shape {stack.shape}")
    check_numeric_images(stack)
    height, width = (size, size) if isinstance(size, int) else size
    check_count("size", min(height, width), 1)
    if height > stack.shape[1] or width > stack.shape[2]:
        raise ValueError(f"size {height} × {width} exceeds the images of {stack.shape[1]} × {stack.shape[2]}")
    check_count("n_patches", n_patches, 1)
    check_positive("contrast_floor", contrast_floor)
    rng, dtype = generator(random_state), float_type(dtype)
    windows = np.lib.stride_tricks.sliding_window_view(stack, (height, width), axis=(1, 2))
    y = rng.integers(stack.shape[0], size=n_patches, dtype=np.int32)
    top = rng.integers(windows.shape[1], size=n_patches)
    left = rng.integers(windows.shape[2], size=n_patches)
    n_features = math.prod(windows.shape[3:])
    X = np.empty((n_patches, n_features), dtype)
    for rows in row_blocks(n_patches, n_features):
        cut = windows[y[rows], top[rows], left[rows]]
        patches = (np.moveaxis(cut, 1, -1) if stack.ndim == 4 else cut).reshape(-1, n_features)
        if normalize:
            patches = patches - patches.mean(axis=1, keepdims=True, dtype=np.float64)
            patches /= np.sqrt(np.square(patches).mean(axis=1, keepdims=True) + contrast_floor)
        X[rows] = patches
    return Dataset(X, y)


def deform_digits(
    images: ArrayLike,
    n_samples: int,
    *,
    max_rotation: float = 15.0,
    max_scaling: float = 0.15,
    max_shear: float = 0.15,
    max_shift: float = 2.0,
    elastic: float = 0.0,
    elastic_smoothness: float = 4.0,
    random_state: RandomState = None,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Random small deformations of given images, one flattened row each.

    `images` has shape (n_images, height, width), or (n_images, pixels) for square images. Every sample takes
    an image at random, rotates it by up to `max_rotation` degrees, scales each side by up to
    1 ± `max_scaling`, shears by up to `max_shear` and shifts by up to `max_shift` pixels, each uniform, about
    the middle of the image; bilinear, with zeros coming in from outside. `elastic` > 0 adds a smooth random
    displacement field with that standard deviation in pixels, smoothed by a Gaussian of `elastic_smoothness`
    pixels.

    >>> digits = np.zeros((2, 28, 28))
    >>> digits[:, 8:20, 12:16] = 255
    >>> deform_digits(digits, 10, elastic=1.0, random_state=0).X.shape
    (10, 784)
    """
    stack = _square_images(images)
    check_count("n_samples", n_samples, 1)
    check_at_least_zero("max_rotation", max_rotation)
    check_at_least_zero("max_scaling", max_scaling, below=1.0)
    check_at_least_zero("max_shear", max_shear)
    check_at_least_zero("max_shift", max_shift)
    check_at_least_zero("elastic", elastic)
    check_positive("elastic_smoothness", elastic_smoothness)
    rng, dtype = generator(random_state), float_type(dtype)
    _, height, width = stack.shape
    y = rng.integers(stack.shape[0], size=n_samples, dtype=np.int32)
    matrices = _small_affine_maps(n_samples, max_rotation, max_scaling, max_shear, rng)
    shifts = rng.uniform(-max_shift, max_shift, size=(n_samples, 2)).astype(np.float32)
    # A border of zeros: every place outside the image reads from it.
    framed = np.pad(stack.astype(np.float32), ((0, 0), (1, 1), (1, 1)))
    X = np.empty((n_samples, height * width), dtype)
    for rows in row_blocks(n_samples, 4 * height * width):
        places = _affine_places(matrices[rows], shifts[rows], height, width)
        if elastic > 0.0:
            for axis in places:
                axis += elastic * _smooth_fields(len(axis), height, width, elastic_smoothness, rng)
        X[rows] = _bilinear(framed, y[rows], places[0], places[1])
    return Dataset(X, y)


def _small_affine_maps(
    n_samples: int, max_rotation: float, max_scaling: float, max_shear: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    """One 2 × 2 matrix rotation · shear · scaling per sample; it maps places of the result to the source."""
    angle = np.deg2rad(rng.uniform(-max_rotation, max_rotation, size=n_samples))
    scaling = rng.uniform(1.0 - max_scaling, 1.0 + max_scaling, size=(n_samples, 1, 2))
    shear = rng.uniform(-max_shear, max_shear, size=n_samples)
    one, zero = np.ones(n_samples), np.zeros(n_samples)
    rotate = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]).transpose(2, 0, 1)
    lean = np.array([[one, shear], [zero, one]]).transpose(2, 0, 1)
    return ((rotate @ lean) / scaling).astype(np.float32)


def _affine_places(
    matrices: NDArray[np.float32], shifts: NDArray[np.float32], height: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Row and column in the source for every pixel of every result, shape (n, height · width) each."""
    middle = np.array([(height - 1) / 2, (width - 1) / 2], np.float32)
    grid = np.indices((height, width), dtype=np.float32).reshape(2, -1) - middle[:, None]
    places = matrices @ grid
    places += (middle - shifts)[:, :, None]
    return np.ascontiguousarray(places[:, 0]), np.ascontiguousarray(places[:, 1])


def _smooth_fields(n: int, height: int, width: int, smoothness: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Gaussian-filtered white noise with unit variance at every pixel, shape (n, height · width).

    Filtering is linear and separable, so a whole block of fields is two small matrix products.
    """
    smoothers = []
    for length in (height, width):
        kernel = gaussian_filter1d(np.eye(length), smoothness, axis=0, mode="nearest")
        smoothers.append((kernel / np.linalg.norm(kernel, axis=1, keepdims=True)).astype(np.float32))
    noise = rng.standard_normal((n, height, width), dtype=np.float32)
    return (smoothers[0] @ noise @ smoothers[1].T).reshape(n, height * width)


def _bilinear(
    framed: NDArray[np.float32], source: NDArray[np.int32], down: NDArray[np.float32], right: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Values of the framed images at fractional places given in coordinates of the unframed ones."""
    _, height, width = framed.shape
    down = np.clip(down + 1.0, 0.0, np.float32(height - 1.001))
    right = np.clip(right + 1.0, 0.0, np.float32(width - 1.001))
    row, column = down.astype(np.intp), right.astype(np.intp)
    down -= row
    right -= column
    corner = row * width
    corner += column
    corner += (source.astype(np.intp) * (height * width))[:, None]
    flat = framed.reshape(-1)
    upper = flat[corner]
    upper += right * (flat[corner + 1] - upper)
    corner += width
    lower = flat[corner]
    lower += right * (flat[corner + 1] - lower)
    lower -= upper
    lower *= down
    upper += lower
    return upper


def _square_images(images: ArrayLike) -> NDArray[Any]:
    """Images as (n, height, width); flat rows are taken for square images."""
    stack = np.asarray(images)
    if stack.ndim == 2:
        side = math.isqrt(stack.shape[1])
        if side * side != stack.shape[1]:
            raise ValueError(
                f"images with {stack.shape[1]} pixels per row are not square; reshape them to (n_images, height, width)"
            )
        stack = stack.reshape(-1, side, side)
    if stack.ndim != 3:
        raise ValueError(
            f"images must have shape (n_images, height, width) or (n_images, pixels), got shape {stack.shape}"
        )
    check_numeric_images(stack)
    return stack
