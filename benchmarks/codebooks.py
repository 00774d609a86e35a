"""Codebooks, limits, labels and many small fits: python -m benchmarks.codebooks [job …] [--device cuda] [--threads 16]

`residual`, `splats`, `predict` and `many`, the default, take 1,000,000 generated rows, each under two minutes on a card
or 16 cores. `small`, `product`, `limits` and `line` stand beside faiss and k-means-constrained, on `sift_photos` and
`wordllama256` from GLOBULAR_DATA and on generated rows. A small problem of the same kind warms a job up. Each model is
fitted once, one after the other. Rows are moved to the card before the clock starts. Errors are mean squared distances
of all rows to what their codes stand for, as a share of the variance in `residual`; in `predict` the share of rows
whose label is not the closest centre. A rival that is not installed is left out. Writes codebooks.csv.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from globular import KMeans, ProductKMeans, ResidualKMeans, fit_many
from globular.io import write_whole
from recipes.splat_codebook import generated as generated_splats

HEAD = ("job", "problem", "model", "device", "threads", "seconds", "per_second", "error")
DATA = Path(os.environ.get("GLOBULAR_DATA", "."))
MOST_SECONDS = 70.0
"""`max_time` of the long fits; larger = a slow machine takes longer than two minutes."""
WARM_SHARE = 20
"""How many times smaller the problem is that warms a job up."""


@dataclass(frozen=True)
class Bench:
    """One job's size, and where it runs."""

    n: int
    device: str = "cpu"
    threads: int | None = None

    @property
    def where(self) -> dict[str, Any]:
        """Parameters of an estimator."""
        return {"device": self.device, "n_threads": self.threads, "random_state": 0}

    def moved(self, rows: Any) -> Any:
        """Rows where they are worked on."""
        if not self.device.startswith("cuda"):
            return rows
        import torch

        return torch.as_tensor(rows, device=self.device)


@dataclass(frozen=True)
class Measured:
    """What is timed, and what is told of its result."""

    problem: str
    model: str
    run: Callable[[], Any]
    error: Callable[[Any], float] = lambda found: float("nan")
    n: int = 0
    """Rows or problems that it goes through; 0 where their number a second says nothing."""


Found = Iterator[Measured]


def embeddings(n: int, n_columns: int = 256) -> Any:
    """Rows like means of six word vectors: topics by Zipf's law, and a spectrum that falls like 1 / rank."""
    rng, n_topics, n_words = np.random.default_rng(0), 2_000, 60_000
    fade = np.arange(1, n_columns + 1) ** -0.5
    topics = fade * rng.normal(size=(n_topics, n_columns))
    words = 0.7 * topics[rng.integers(n_topics, size=n_words)] + fade * rng.normal(size=(n_words, n_columns))
    words = words.astype(np.float32)
    of_topic = np.argsort(rng.integers(n_topics, size=n_words)).reshape(n_topics, -1)
    share = 1.0 / np.arange(10, n_topics + 10)
    chosen, rows = rng.choice(n_topics, n, p=share / share.sum()), np.empty((n, n_columns), np.float32)
    for begin in range(0, n, 20_000):
        topic = chosen[begin : begin + 20_000, None]
        own = of_topic[topic, rng.integers(of_topic.shape[1], size=(len(topic), 4))]
        others = rng.integers(n_words, size=(len(topic), 2))
        rows[begin : begin + 20_000] = words[np.concatenate([own, others], axis=1)].mean(axis=1)
    return rows


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
    squares = [np.square(X[a : a + 10_000] - decoded[a : a + 10_000]).sum() for a in range(0, len(X), 10_000)]
    return float(sum(squares) / len(X))


def of_faiss(codec: Any, X: Any) -> Any:
    """Train one of faiss's quantisers with all rows."""
    codec.cp.max_points_per_centroid = len(X)
    codec.train(X)
    return codec


def residual(bench: Bench) -> Found:
    """Three levels of 8,192 words for a million rows of 256 columns, and what codes take after the fit."""
    X, k = embeddings(bench.n), max(512, bench.n * 8192 // 1_000_000)
    variance, rows, held = float(X[::7].var(axis=0).sum()), bench.moved(X), list[Any]()
    name = f"{len(X)} x 256, 3 x {k}"

    def fit() -> Any:
        held[:] = [ResidualKMeans([k] * 3, max_time=MOST_SECONDS, **bench.where).fit(rows)]
        return held[0]

    yield Measured(name, "fit", fit, lambda model: model.inertia_ / len(X) / variance, len(X))
    model = held[0]
    yield Measured(name, "encode", lambda: model.encode(rows), n=len(X))
    few = bench.moved(X[: len(X) // 50])
    yield Measured(f"{len(X) // 50} rows", "encode, beam 5", lambda: model.encode(few, beam=5),
                   lambda codes: error_of_codes(X[: len(X) // 50], model.decode(_host(codes))) / variance,
                   len(X) // 50)  # fmt: skip
    codes = bench.moved(model.codes_.astype(np.int32))
    yield Measured(name, "decode", lambda: model.decode(codes), n=len(X))


def _host(values: Any) -> Any:
    return values.cpu().numpy() if hasattr(values, "cpu") else values


def small(bench: Bench) -> Found:
    """Three levels of 256 and of 2,048 clusters beside faiss, with and without a beam."""
    import faiss

    X = sentences(bench.n)

    def rival(bits: int, beam: int) -> Any:
        codec = faiss.ResidualQuantizer(X.shape[1], 3, bits)
        codec.max_beam_size = beam
        return of_faiss(codec, X)

    for bits, beam in ((8, 1), (8, 5), (11, 1)):
        name = f"3 x {2**bits}, beam {beam}"
        yield Measured(name, "ResidualKMeans", partial(ResidualKMeans(2**bits, beam=beam, **bench.where).fit, X),
                       lambda model: error_of_codes(X, model.decode(model.codes_)))  # fmt: skip
        yield Measured(name, "faiss", partial(rival, bits, beam),
                       lambda codec: error_of_codes(X, codec.decode(codec.compute_codes(X))))  # fmt: skip


def product(bench: Bench) -> Found:
    """16 subspaces of 256 clusters, as the columns are and rotated."""
    import faiss

    X, where = photos(bench.n), {"random_state": 0, "n_threads": bench.threads}

    def rotated() -> Any:
        rotation = faiss.OPQMatrix(X.shape[1], 16)
        rotation.train(X)
        return rotation, of_faiss(faiss.ProductQuantizer(X.shape[1], 16, 8), rotation.apply(X))

    def decoded(pair: Any) -> Any:
        rotation, codec = pair
        return rotation.reverse_transform(codec.decode(codec.compute_codes(rotation.apply(X))))

    def ours(model: Any) -> float:
        return error_of_codes(X, model.decode(model.encode(X)))

    yield Measured("16 x 256", "ProductKMeans", lambda: ProductKMeans(16, **where).fit(X), ours)
    yield Measured("16 x 256", "faiss", lambda: of_faiss(faiss.ProductQuantizer(X.shape[1], 16, 8), X),
           lambda codec: error_of_codes(X, codec.decode(codec.compute_codes(X))))  # fmt: skip
    yield Measured("16 x 256, OPQ", "ProductKMeans", lambda: ProductKMeans(16, rotation="opq", **where).fit(X), ours)
    yield Measured("16 x 256, OPQ", "faiss", rotated, lambda pair: error_of_codes(X, decoded(pair)))


def limits(bench: Bench) -> Found:
    """At most 1.2 times the mean size, beside no limit; and 20,000 rows beside k-means-constrained."""
    X, k = blobs(bench.n, 64, bench.n // 200), bench.n // 100
    most = int(1.2 * len(X) / k)

    def error(model: Any) -> float:
        assert np.bincount(model.labels_).max() <= most
        return float(model.inertia_ / len(X))

    yield Measured(f"{k} clusters", "KMeans", lambda: KMeans(k, **bench.where).fit(X), lambda m: m.inertia_ / len(X))
    yield Measured(f"{k} clusters", "at most 1.2 x mean",
                   lambda: KMeans(k, max_cluster_size=most, **bench.where).fit(X), error)  # fmt: skip
    X, most = blobs(20_000, 50, 60), 240
    yield Measured("100 clusters", "at most 1.2 x mean",
                   lambda: KMeans(100, max_cluster_size=240, **bench.where).fit(X), error)  # fmt: skip
    from k_means_constrained import KMeansConstrained

    yield Measured("100 clusters", "k-means-constrained",
                   lambda: KMeansConstrained(100, size_max=240, n_init=1, random_state=0).fit(X), error)  # fmt: skip


def line(bench: Bench) -> Found:
    """Ten million rows of one column, 256 clusters: the optimum, and 25 iterations of faiss."""
    X = np.random.default_rng(0).lognormal(size=(50 * bench.n, 1)).astype(np.float32)
    yield Measured("256 clusters", "KMeans", lambda: KMeans(256, **bench.where).fit(X), lambda m: m.inertia_ / len(X))
    import faiss

    def rival() -> Any:
        model = faiss.Kmeans(1, 256, niter=25, max_points_per_centroid=len(X))
        model.train(X)
        return model

    yield Measured("256 clusters", "faiss", rival, lambda model: float(model.obj[-1] / len(X)))


def splats(bench: Bench) -> Found:
    """45 weighted columns, a code for 15 rows; on a card beside ten of Lloyd's iterations from random rows."""
    X, weights = generated_splats(bench.n)
    rows, k = bench.moved(X), max(2, bench.n // 15)

    def error(model: Any) -> float:
        return float(model.inertia_ / weights.sum())

    long = KMeans(k, max_time=MOST_SECONDS, **bench.where)
    yield Measured(f"{k} codes", "KMeans", lambda: long.fit(rows, sample_weight=weights), error, len(X))
    if bench.device.startswith("cuda"):
        plain = KMeans(k, algorithm="lloyd", init="random", max_iter=10, **bench.where)
        yield Measured(f"{k} codes", "10 iterations", lambda: plain.fit(rows, sample_weight=weights), error, len(X))


def predict(bench: Bench) -> Found:
    """Labels of n rows of 32 columns among up to n centres, other rows of the same groups, by cells and by all."""
    both = blobs(2 * bench.n, 32, max(1, bench.n // 20))
    centers, rows = both[: bench.n], bench.moved(both[bench.n :])
    for k in (min(bench.n, 65_536), bench.n):
        model = KMeans(k, **bench.where)
        model.cluster_centers_, model.n_features_in_ = centers[:k], 32
        name, some = f"{k} centres", rows[:: 1 if bench.device.startswith("cuda") else 100]
        yield Measured(name, "exact=False", partial(model.predict, rows, exact=False),
                       lambda labels, model=model: model.certificate(rows).missed, len(rows))  # fmt: skip
        yield Measured(name, "exact", partial(model.predict, some), lambda labels: 0.0, len(some))


def many(bench: Bench) -> Found:
    """Thousands of small problems on all threads, and some of them by scikit-learn, one after the other."""
    from sklearn.cluster import KMeans as Theirs

    rng = np.random.default_rng(0)
    for n, shape, k in ((bench.n // 50, (128, 1), 16), (bench.n // 1_000, (500, 8), 16)):
        Xs, few = rng.standard_t(5, size=(n, *shape)).astype(np.float32), max(1, n // 200)
        name = f"{shape[0]} x {shape[1]}, {k} clusters"
        yield Measured(name, "fit_many", partial(fit_many, Xs, k, random_state=0, n_threads=bench.threads),
                       lambda found, m=few: float(found.inertia[:m].sum()), n)  # fmt: skip
        yield Measured(name, "scikit-learn", lambda Xs=Xs, m=few, k=k: [
            Theirs(k, n_init=1, random_state=0).fit(X) for X in Xs[:m]],
            lambda found: sum(each.inertia_ for each in found), few)  # fmt: skip


JOBS = {
    "residual": residual, "splats": splats, "predict": predict, "many": many, "small": small, "product": product,
    "limits": limits, "line": line,
}  # fmt: skip
LARGE = ("residual", "splats", "predict", "many")
ON_HOST = ("many", "small", "product", "line")


def measured(job: str, bench: Bench) -> Iterator[tuple[Any, ...]]:
    """The lines of a job; of one whose rival is missing those before it."""
    try:
        for each in JOBS[job](bench):
            started = time.perf_counter()
            found = each.run()
            seconds = time.perf_counter() - started
            speed = round(each.n / seconds) if each.n else ""
            device, threads = ("cpu" if job in ON_HOST else bench.device), bench.threads or ""
            yield job, each.problem, each.model, device, threads, round(seconds, 3), speed, f"{each.error(found):.6g}"
    except ImportError as error:
        print(f"{job}: {error.name} is not installed; its rows are left out")


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", default=list(LARGE), help=", ".join(JOBS))
    parser.add_argument("--rows", type=int, help="1,000,000 by default; 200,000 beside rivals")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or torch-cpu")
    parser.add_argument("--threads", type=int, help="all by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    lines: list[tuple[Any, ...]] = []
    for job in options.jobs:
        bench = Bench(options.rows or (1_000_000 if job in LARGE else 200_000), options.device, options.threads)
        if job in LARGE:  # kernels are compiled before the clock starts
            for _ in measured(job, Bench(max(1_000, bench.n // WARM_SHARE), bench.device, bench.threads)):
                pass
        for row in measured(job, bench):
            lines.append(row)
            print(*row, sep="  ", flush=True)
    print_table([HEAD, *lines])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEAD, *lines])
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "codebooks.csv", lambda file: file.write(text.getvalue().encode()))


def print_table(lines: list[tuple[Any, ...]]) -> None:
    """Columns of equal width."""
    widths = [max(len(str(line[i])) for line in lines) for i in range(len(HEAD))]
    print()
    for line in lines:
        print("  ".join(str(value).ljust(width) for value, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
