"""Codebooks beside faiss, limits beside k-means-constrained: python -m benchmarks.codebooks [job …] [--rows 200000]

Jobs: `residual`, `product`, `limits`, `line`, `splats`, `predict`. Rows are means of six word vectors each
(`wordllama256`), local features of photos (`sift_photos`), both from GLOBULAR_DATA, and generated ones. Each model is
fitted once, one after the other, with as many threads as the machine has; errors are mean squared distances of all rows
to what their codes stand for. Rivals get all rows, where they would draw some. Writes codebooks.csv.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from globular import KMeans, ProductKMeans, ResidualKMeans
from globular.io import write_whole
from recipes.splat_codebook import generated as generated_splats

HEAD = ("job", "rows", "model", "seconds", "error")
Found = Iterator[tuple[str, str, Callable[[], Any], Callable[[Any], float]]]
DATA = Path(os.environ.get("GLOBULAR_DATA", "."))


def sentences(n: int) -> Any:
    """Means of six word vectors each, the words by Zipf's law."""
    rng, words = np.random.default_rng(0), np.load(DATA / "wordllama256/wordllama256.npz")["X"].astype(np.float32)
    share = 1.0 / np.arange(10, len(words) + 10)
    return words[rng.choice(len(words), (n, 6), p=share / share.sum())].mean(axis=1)


def photos(n: int) -> Any:
    return np.load(DATA / "sift_photos/sift_photos.npz")["X"][:n].astype(np.float32)


def blobs(n: int, n_columns: int, n_groups: int) -> Any:
    rng = np.random.default_rng(0)
    return (2.0 * rng.normal(size=(n_groups, n_columns))[rng.integers(n_groups, size=n)]
            + rng.normal(size=(n, n_columns))).astype(np.float32)  # fmt: skip


def error_of_codes(X: Any, decoded: Any) -> float:
    return float(np.mean([np.square(X[a : a + 10_000] - decoded[a : a + 10_000]).sum(axis=1).mean()
                          for a in range(0, len(X) - len(X) % 10_000, 10_000)]))  # fmt: skip


def of_faiss(codec: Any, X: Any) -> Any:
    """Train one of faiss's quantisers with all rows."""
    codec.cp.max_points_per_centroid = len(X)
    codec.train(X)
    return codec


def residual(n: int) -> Found:
    """Three levels of 256 and of 2,048 clusters, with and without a beam."""
    import faiss

    X = sentences(n)

    def rival(bits: int, beam: int) -> Any:
        codec = faiss.ResidualQuantizer(X.shape[1], 3, bits)
        codec.max_beam_size = beam
        return of_faiss(codec, X)

    for bits, beam in ((8, 1), (8, 5), (11, 1)):
        name = f"3 x {2**bits}, beam {beam}"
        yield (name, "ResidualKMeans", partial(ResidualKMeans(2**bits, beam=beam, random_state=0).fit, X),
               lambda model: error_of_codes(X, model.decode(model.codes_)))  # fmt: skip
        yield (name, "faiss", partial(rival, bits, beam),
               lambda codec: error_of_codes(X, codec.decode(codec.compute_codes(X))))  # fmt: skip


def product(n: int) -> Found:
    """16 subspaces of 256 clusters, as the columns are and rotated."""
    import faiss

    X = photos(n)

    def rotated() -> Any:
        rotation = faiss.OPQMatrix(X.shape[1], 16)
        rotation.train(X)
        return rotation, of_faiss(faiss.ProductQuantizer(X.shape[1], 16, 8), rotation.apply(X))

    def decoded(pair: Any) -> Any:
        rotation, codec = pair
        return rotation.reverse_transform(codec.decode(codec.compute_codes(rotation.apply(X))))

    def ours(model: Any) -> float:
        return error_of_codes(X, model.decode(model.encode(X)))

    yield "16 x 256", "ProductKMeans", lambda: ProductKMeans(16, random_state=0).fit(X), ours
    yield ("16 x 256", "faiss", lambda: of_faiss(faiss.ProductQuantizer(X.shape[1], 16, 8), X),
           lambda codec: error_of_codes(X, codec.decode(codec.compute_codes(X))))  # fmt: skip
    yield "16 x 256, OPQ", "ProductKMeans", lambda: ProductKMeans(16, rotation="opq", random_state=0).fit(X), ours
    yield "16 x 256, OPQ", "faiss", rotated, lambda pair: error_of_codes(X, decoded(pair))


def limits(n: int) -> Found:
    """At most 1.2 times the mean size, beside no limit; and 20,000 rows beside k-means-constrained."""
    X, k = blobs(n, 64, n // 200), n // 100
    most = int(1.2 * n / k)

    def error(model: Any) -> float:
        assert np.bincount(model.labels_).max() <= most
        return float(model.inertia_ / len(X))

    yield f"{k} clusters", "KMeans", lambda: KMeans(k, random_state=0).fit(X), lambda m: float(m.inertia_ / len(X))
    yield f"{k} clusters", "at most 1.2 x mean", lambda: KMeans(k, max_cluster_size=most, random_state=0).fit(X), error
    X, most = blobs(20_000, 50, 60), 240
    yield "100 clusters", "at most 1.2 x mean", lambda: KMeans(100, max_cluster_size=240, random_state=0).fit(X), error
    try:
        from k_means_constrained import KMeansConstrained
    except ImportError:
        print("k-means-constrained is not installed")
        return
    yield "100 clusters", "k-means-constrained", lambda: KMeansConstrained(
        100, size_max=240, n_init=1, random_state=0).fit(X), error  # fmt: skip


def line(n: int) -> Found:
    """Ten million rows of one column, 256 clusters: the optimum, and 25 iterations of faiss."""
    import faiss

    X = np.random.default_rng(0).lognormal(size=(50 * n, 1)).astype(np.float32)
    yield "256 clusters", "KMeans", lambda: KMeans(256, random_state=0).fit(X), lambda m: float(m.inertia_ / len(X))

    def rival() -> Any:
        model = faiss.Kmeans(1, 256, niter=25, max_points_per_centroid=len(X))
        model.train(X)
        return model

    yield "256 clusters", "faiss", rival, lambda model: float(model.obj[-1] / len(X))


def splats(n: int) -> Found:
    """45 weighted columns, a code for 15 rows, and ten of Lloyd's iterations from random rows."""
    X, weights = generated_splats(n)
    k = n // 15

    def error(model: Any) -> float:
        return float(model.inertia_ / weights.sum())

    yield f"{k} codes", "KMeans", lambda: KMeans(k, random_state=0).fit(X, sample_weight=weights), error
    plain = KMeans(k, algorithm="lloyd", init="random", max_iter=10, random_state=0)
    yield f"{k} codes", "10 iterations", lambda: plain.fit(X, sample_weight=weights), error


def predict(n: int) -> Found:
    """Labels of n rows of 32 columns among 65,536 and a million centres: "error" is the share of labels missed."""
    rows = blobs(1_000_000, 32, 50_000)
    for k in (65_536, 1_000_000):
        model = KMeans(k)
        model.cluster_centers_, model.n_features_in_ = rows[:k], rows.shape[1]
        X = rows[:n] + np.random.default_rng(1).normal(scale=0.5, size=(n, 32)).astype(np.float32)
        some = X[:: max(1, n // 2_000)]
        yield f"{n} rows, {k} centres", "exact=False", partial(model.predict, X, exact=False), lambda found: 0.0
        print("missed", model.certificate(X).missed)
        yield f"{len(some)} rows, {k} centres", "exact", partial(model.predict, some), lambda found: 0.0


JOBS = {"residual": residual, "product": product, "limits": limits, "line": line, "splats": splats, "predict": predict}


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    lines: list[tuple[Any, ...]] = []
    for job in options.jobs:
        for problem, model, fit, error in JOBS[job](options.rows):
            started = time.perf_counter()
            fitted = fit()
            lines.append((job, problem, model, round(time.perf_counter() - started, 2), round(error(fitted), 6)))
            print(*lines[-1], flush=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEAD, *lines])
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "codebooks.csv", lambda file: file.write(text.getvalue().encode()))


if __name__ == "__main__":
    main()
