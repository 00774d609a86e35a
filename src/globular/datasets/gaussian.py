"""Gaussian clusters: the BIRCH grid, c-separated mixtures, blobs by the hundred thousand."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from globular.datasets.record import (
    Dataset,
    FloatArray,
    RandomState,
    check_at_least_zero,
    check_count,
    check_positive,
    float_type,
    generator,
    row_blocks,
)


def birch_grid(
    side: int,
    n_per_cluster: int = 100,
    *,
    distance: float = 4.0 * math.sqrt(2.0),
    sigma: float = 1.0,
    random_state: RandomState = None,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Rows from side × side isotropic Gaussians on a square grid in the plane, `n_per_cluster` from each.

    With the defaults of the paper, variance 1 and neighbours 4√2 apart, the true centres leave a mean squared
    error of 2 per row (sigma² per dimension).

    >>> data = birch_grid(4, 100, random_state=0)
    >>> data.X.shape, data.centers.shape
    ((1600, 2), (16, 2))
    """
    check_count("side", side, 1)
    check_count("n_per_cluster", n_per_cluster, 1)
    check_positive("distance", distance)
    check_positive("sigma", sigma)
    rng, dtype = generator(random_state), float_type(dtype)
    along, across = np.divmod(np.arange(side * side), side)
    centers = distance * np.column_stack([along, across]).astype(np.float64)
    y = rng.permutation(np.repeat(np.arange(side * side, dtype=np.int32), n_per_cluster))
    weights = np.full(side * side, 1.0 / (side * side))
    return Dataset(_noise_around(centers, y, sigma, rng, dtype), y, centers, weights=weights)


def separated_mixture(
    n_samples: int,
    n_components: int,
    n_features: int,
    *,
    separation: float = 3.0,
    definition: Literal["verbeek", "kurihara"] = "verbeek",
    eccentricity: float = 3.0,
    random_state: RandomState = None,
    dtype: DTypeLike = np.float64,
) -> Dataset:
    """A random Gaussian mixture with full covariances whose closest pair is exactly `separation` apart.

    Separation c means, for every pair of components, ‖m_i − m_j‖² ≥ c² · s with

    - ``definition="verbeek"``: s = max(trace C_i, trace C_j) (Eq. 15 of Verbeek et al. 2003),
    - ``definition="kurihara"``: s = D · max(λmax_i, λmax_j) (Kurihara et al. 2006), the stricter one.

    The standard deviations along the axes of a component lie between 1 and `eccentricity`; the weights are
    uneven, none below a quarter of 1 / n_components.

    >>> data = separated_mixture(500, 5, 2, separation=3.0, random_state=0)
    >>> data.X.shape, data.covariances.shape
    ((500, 2), (5, 2, 2))
    """
    check_count("n_components", n_components, 1)
    check_count("n_features", n_features, 1)
    check_count("n_samples", n_samples, 1)
    check_positive("separation", separation)
    if definition not in ("verbeek", "kurihara"):
        raise ValueError(f'definition must be "verbeek" or "kurihara", got {definition!r}')
    if not 1.0 <= eccentricity < math.inf:
        raise ValueError(f"eccentricity must be a finite number of at least 1, got {eccentricity!r}")
    rng, dtype = generator(random_state), float_type(dtype)
    axes = np.linalg.qr(rng.standard_normal((n_components, n_features, n_features))).Q
    deviations = rng.uniform(1.0, eccentricity, size=(n_components, n_features))
    factors = axes * deviations[:, None, :]
    variances = deviations**2
    size = variances.sum(axis=1) if definition == "verbeek" else n_features * variances.max(axis=1)
    centers = _separated_centers(separation**2 * size, n_features, rng)
    share = rng.uniform(size=n_components)
    weights = (0.25 + 0.75 * n_components * share / share.sum()) / n_components
    weights /= weights.sum()
    y = rng.choice(n_components, size=n_samples, p=weights).astype(np.int32)
    X = np.empty((n_samples, n_features), dtype)
    for component in range(n_components):
        rows = np.flatnonzero(y == component)
        noise = rng.standard_normal((rows.size, n_features))
        X[rows] = noise @ factors[component].T + centers[component]
    return Dataset(X, y, centers, factors @ factors.transpose(0, 2, 1), weights)


def many_blobs(
    n_samples: int,
    n_clusters: int,
    n_features: int,
    *,
    cluster_std: float = 1.0,
    center_std: float = 4.0,
    unevenness: float = 0.0,
    random_state: RandomState = None,
    dtype: DTypeLike = np.float32,
) -> Dataset:
    """Isotropic blobs, fast enough for ten million rows and a hundred thousand clusters.

    Centres are normal with standard deviation `center_std`, rows normal around them with `cluster_std`. Every
    cluster has at least one row. With `unevenness` = 0 cluster sizes differ by one at most; otherwise they
    are drawn from log-normal weights with that standard deviation of the logarithm (1 is uneven, 2 very).
    Memory beyond the result: the labels and a few megabytes of workspace.

    >>> data = many_blobs(1000, 50, 8, random_state=0)
    >>> data.X.shape, data.X.dtype
    ((1000, 8), dtype('float32'))
    """
    check_count("n_clusters", n_clusters, 1)
    check_count("n_features", n_features, 1)
    check_count("n_samples", n_samples, n_clusters, because="every cluster has at least one row")
    check_positive("cluster_std", cluster_std)
    check_positive("center_std", center_std)
    check_at_least_zero("unevenness", unevenness)
    rng, dtype = generator(random_state), float_type(dtype)
    centers = center_std * rng.standard_normal((n_clusters, n_features))
    weights = np.full(n_clusters, 1.0 / n_clusters)
    if unevenness > 0.0:
        weights = rng.lognormal(sigma=unevenness, size=n_clusters)
        weights /= weights.sum()
        sizes = 1 + rng.multinomial(n_samples - n_clusters, weights)
    else:
        sizes = np.full(n_clusters, n_samples // n_clusters)
        sizes[: n_samples % n_clusters] += 1
    y = np.repeat(np.arange(n_clusters, dtype=np.int32), sizes)
    rng.shuffle(y)
    return Dataset(_noise_around(centers, y, cluster_std, rng, dtype), y, centers, weights=weights)


def _noise_around(
    centers: NDArray[np.float64], y: NDArray[np.int32], sigma: float, rng: np.random.Generator, dtype: np.dtype[Any]
) -> FloatArray:
    """Rows centers[y] + sigma · noise: drawn in place, moved block by block."""
    X: FloatArray = np.empty((y.size, centers.shape[1]), dtype)
    rng.standard_normal(out=X, dtype=dtype.type)
    typed_centers = centers.astype(dtype)
    for rows in row_blocks(*X.shape):
        X[rows] *= dtype.type(sigma)
        X[rows] += typed_centers[y[rows]]
    return X


def _separated_centers(required: NDArray[np.float64], n_features: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Means whose pairs keep ‖m_i − m_j‖² ≥ max(required_i, required_j), the closest pair with equality.

    Means are drawn from a normal distribution that widens whenever 64 draws in a row are too close to others; in the
    end all are scaled so that the closest pair has equality.
    """
    n_components = required.size
    centers = np.zeros((n_components, n_features))
    spread = math.sqrt(required.mean() / n_features)
    tightest = math.inf
    for i in range(1, n_components):
        need = np.maximum(required[:i], required[i])
        while True:
            darts = spread * rng.standard_normal((64, n_features))
            squared = np.square(darts[:, None, :] - centers[None, :i]).sum(axis=2)
            slack = (squared / need).min(axis=1)
            fits = np.flatnonzero(slack >= 1.0)
            if fits.size:
                break
            spread *= 1.1
        centers[i] = darts[fits[0]]
        tightest = min(tightest, float(slack[fits[0]]))
    # A hair more than needed, so that rounding never breaks the promise.
    return centers / math.sqrt(tightest) * (1.0 + 1e-12) if n_components > 1 else centers
