"""Semantic de-duplication: cluster embeddings by direction, and drop rows that are nearly the same as one kept.

    python -m recipes.semdedup embeddings.npy --threshold 0.95 -o kept.npy

Pairs are compared inside clusters only, so the cost falls from N² to N²/k. Of a group of duplicates the row farthest
from the centre stays, as in the method's paper (Abbas et al. 2023): it is the least typical one. The file is memory-
mapped and may be larger than memory.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from globular import KMeans
from globular.datasets import many_blobs
from globular.io import write_array


def main(arguments: Sequence[str] | None = None) -> NDArray[np.int64]:
    parser = argparse.ArgumentParser(description="drop near-duplicates among embeddings")
    parser.add_argument("data", nargs="?", help=".npy file of embeddings; generated with planted duplicates by default")
    parser.add_argument("-o", "--output", help="write the numbers of the rows to keep (.npy, .csv, .parquet)")
    parser.add_argument(
        "--threshold", type=float, default=0.95, help="cosine similarity from which rows are duplicates"
    )
    parser.add_argument("--factor", type=float, default=1.0, help="number of clusters is this times √N")
    parser.add_argument("--small", action="store_true", help="a few seconds")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = options.data or planted(Path(folder) / "embeddings.npy", 4_000 if options.small else 200_000)
        X = np.load(path, mmap_mode="r")
        kept = deduplicate(X, options.threshold, max(1, int(options.factor * np.sqrt(len(X)))))
        print(f"{len(X):,} rows, {len(kept):,} kept, {len(X) - len(kept):,} duplicates dropped")
        del X  # closes the file before its folder goes
    if options.output:
        write_array(options.output, kept)
    return kept


def planted(path: Path, n: int) -> Path:
    """Embeddings of which every fifth is a slightly changed copy of the row before it."""
    random = np.random.default_rng(0)
    X = many_blobs(n, n // 50, 64, cluster_std=3.0, random_state=0).X
    copies = np.arange(5, n, 5)
    X[copies] = X[copies - 1] * random.uniform(0.5, 2.0, size=(len(copies), 1)) + 0.02 * random.normal(
        size=(len(copies), 64)
    )
    np.save(path, X)
    return path


def deduplicate(X: NDArray[np.floating], threshold: float, n_clusters: int) -> NDArray[np.int64]:
    """Numbers of the rows to keep, ascending."""
    model = KMeans(n_clusters, metric="cosine", quality="fast", random_state=0).fit(X)
    order = np.argsort(model.labels_, kind="stable")
    ends = np.cumsum(np.bincount(model.labels_, minlength=n_clusters))
    kept = [
        members[keep_of_cluster(np.asarray(X[members], dtype=np.float32), center, threshold)]
        for members, center in zip(np.split(order, ends[:-1]), model.cluster_centers_, strict=True)
        if len(members)
    ]
    return np.sort(np.concatenate(kept))


def keep_of_cluster(rows: NDArray[np.float32], center: NDArray[np.floating], threshold: float) -> NDArray[np.bool_]:
    """Go from the least typical row to the most typical one; a row too similar to one before it goes."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    order = np.argsort(unit @ center.astype(np.float32), kind="stable")
    alike = unit[order] @ unit[order].T >= threshold
    duplicate = np.triu(alike, k=1).any(axis=0)
    keep = np.empty(len(rows), dtype=bool)
    keep[order] = ~duplicate
    return keep


if __name__ == "__main__":
    main()
