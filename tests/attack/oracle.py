"""Brute force in float64: distances, densities, and what they say about a fitted model."""

from typing import Any

import numpy as np

from makers import Rows


def squared_distances(X: Rows, centers: Rows) -> Rows:
    """All of them, from differences."""
    return ((X[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)


def directions(X: Rows) -> Rows:
    """Rows of length one; a row of zeros stays."""
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return np.divide(X, lengths, out=np.zeros_like(X), where=lengths > 0.0)


def rounding_of_distances(X: Rows, centers: Rows) -> Rows:
    """How much the squared distances of rows and centres in float32 may be off, (n, C): both are rounded once."""
    sizes = np.maximum(np.abs(X).max(axis=1, initial=0.0)[:, None], np.abs(centers).max(axis=1, initial=0.0))
    return 64.0 * X.shape[1] * (np.finfo(np.float32).eps * sizes) ** 2


def which_are_nearest(X: Rows, centers: Rows, labels: Any) -> Any:
    """Of every row, whether no other centre is nearer than the one that its label names, but for rounding."""
    distances, rounding = squared_distances(X, centers), rounding_of_distances(X, centers)
    chosen = (distances - rounding)[np.arange(len(X)), labels]
    return chosen <= ((1.0 + 1e-5) * distances + rounding).min(axis=1)


def are_nearest(X: Rows, centers: Rows, labels: Any) -> bool:
    """Whether that is so of all rows."""
    return bool(np.all(which_are_nearest(X, centers, labels)))


def log_densities(X: Rows, model: Any) -> Rows:
    """log p(c) + log p(x | c) for every row and component, from the fitted parameters alone."""
    means, weights = np.asarray(model.means_, np.float64), np.asarray(model.weights_, np.float64)
    found = np.empty((len(X), len(means)))
    for c, covariance in enumerate(full_covariances(model, len(means), X.shape[1])):
        root = np.linalg.cholesky(covariance)
        away = np.linalg.solve(root, (X - means[c]).T)
        constant = X.shape[1] * np.log(2.0 * np.pi) + 2.0 * np.log(np.diag(root)).sum()
        with np.errstate(divide="ignore"):
            found[:, c] = np.log(weights[c]) - 0.5 * (constant + (away**2).sum(axis=0))
    return found


def full_covariances(model: Any, n_components: int, D: int) -> Rows:
    """Every component's covariance as a matrix, whatever the type."""
    given, kind = np.asarray(model.covariances_, np.float64), model.covariance_type
    if kind == "full":
        return given
    if kind == "tied":
        return np.broadcast_to(given, (n_components, D, D))
    if kind == "diag":
        return given[:, :, None] * np.eye(D)
    return np.broadcast_to(given.reshape(-1, 1, 1), (n_components, 1, 1)) * np.eye(D)


def worst_condition(model: Any, n_components: int, D: int) -> float:
    """The largest ratio of two eigenvalues of one covariance."""
    return float(max(np.linalg.cond(covariance) for covariance in full_covariances(model, n_components, D)))
