"""The data of the paper, or what stands in for them: rows to cluster, and rows to measure the energy on.

None of the paper's four sets, all of them public, is to be had here. INFMNIST is MNIST with random small deformations,
as the original is; STL10P is 8 × 8 colour patches of the two photographs that come with scikit-learn, those to validate
on from a strip of their own; KDDC98 is the protein homology set of the KDD Cup 2004; RCV1 the 20 newsgroups as tf-idf.
Forest cover types are a fifth set, which the paper has not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.datasets import load_sample_images

from benchmarks.harness.data import real_file
from experiments.common import real_rows
from globular import datasets


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows to learn from and rows to validate on, and what the paper reports."""

    name: str
    title: str
    n_train: int
    n_valid: int
    make: Callable[[int], Any]
    """So many rows in random order, dense or CSR, float32."""
    dense: bool = True
    make_valid: Callable[[int], Any] | None = None
    """The same for validation rows, where rows of `make` may come twice."""

    def load(self, n_train: int | None = None) -> Split:
        """Fewer training rows on demand; the validation rows shrink alike."""
        n = min(n_train or self.n_train, self.n_train)
        n_valid = max(1, self.n_valid * n // self.n_train)
        if self.make_valid is not None:
            return Split(self.make(n), self.make_valid(n_valid))
        X = self.make(n + n_valid)
        return Split(X[:n], X[n:])


@dataclass(frozen=True, slots=True)
class Split:
    """Training and validation rows."""

    train: Any
    valid: Any


def _digits(n: int) -> Any:
    images = real_rows("mnist/mnist.npz")[:60_000]
    return datasets.deform_digits(images, n, elastic=1.0, random_state=0).X


STRIP = 80
"""Columns of each photograph that validation patches come from; training patches come from the others."""


def _photographs() -> Any:
    return np.stack([image[:427, :640] for image in load_sample_images().images])


def _patches(n: int) -> Any:
    return datasets.image_patches(_photographs()[:, :, :-STRIP], 8, n, random_state=0).X


def _held_out_patches(n: int) -> Any:
    return datasets.image_patches(_photographs()[:, :, -STRIP:], 8, n, random_state=1).X


def _proteins(n: int) -> Any:
    X = real_rows("kddbio/kddbio.npz")
    return np.ascontiguousarray(X[np.random.default_rng(0).permutation(len(X))[:n]])


def _forest(n: int) -> Any:
    X = real_rows("covtype/covtype.npz")
    return np.ascontiguousarray(X[np.random.default_rng(0).permutation(len(X))[:n]], dtype=np.float32)


def _newsgroups(n: int) -> Any:
    X = sparse.csr_matrix(sparse.load_npz(real_file("newsgroups20/newsgroups20_tfidf.npz")), dtype=np.float32)
    X.sort_indices()
    return X[np.random.default_rng(0).permutation(X.shape[0])[:n]]


def _blobs(n: int) -> Any:
    return datasets.many_blobs(n, 60, 16, center_std=2.0, random_state=0).X


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("infmnist", "deformed MNIST (for INFMNIST)", 400_000, 20_000, _digits),
        Problem(
            "patches", "8 × 8 colour patches (for STL10P)", 960_000, 20_000, _patches, make_valid=_held_out_patches
        ),
        Problem("kddbio", "protein homology (for KDDC98)", 125_000, 20_000, _proteins),
        Problem("covtype", "forest cover types", 560_000, 20_000, _forest),
        Problem("newsgroups", "20 newsgroups, sparse (for RCV1)", 16_000, 2_800, _newsgroups, dense=False),
        Problem("blobs", "Gaussian blobs (for tests)", 6_000, 1_000, _blobs),
    )
}
PAPERS = ("infmnist", "patches", "kddbio", "newsgroups")
