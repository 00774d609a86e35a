"""Many clusters of sparse rows: python benchmarks/sparse_rows.py [set …] [--clusters 100 1000 …] [--most-rivals 1000]

Sets: `glosses`, the 116,206 definitions of WordNet (Debian's package wordnet-base, or its folder in WORDNET) as tf-idf;
`newsgroups`, from GLOBULAR_DATA; `items`, generated baskets whose items follow Zipf's law within 3,000 tastes. Beside
`KMeans`, up to --most-rivals clusters because they take long: scikit-learn's k-means++ with 25 iterations, and its
mini-batches. Writes sparse.csv and sparse.png.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.cluster import KMeans as Lloyd
from sklearn.cluster import MiniBatchKMeans
from sklearn.feature_extraction.text import TfidfVectorizer

from globular import KMeans, NestedMiniBatchKMeans
from globular.io import write_whole
from globular.plotting.history import BLUE, GREY, pyplot, tidy

HEAD = ("set", "clusters", "model", "seconds", "error", "iterations")
ORANGE = "#d95f02"


def glosses() -> Any:
    """What WordNet says of each word, up to the first semicolon."""
    folder = Path(os.environ.get("WORDNET", "/usr/share/wordnet"))
    texts = [
        line.split("|", 1)[1].split(";")[0]
        for part in ("noun", "verb", "adj", "adv")
        for line in (folder / f"data.{part}").read_text().splitlines()
        if not line.startswith("  ")
    ]
    X = TfidfVectorizer(min_df=5, stop_words="english", dtype=np.float32, sublinear_tf=True).fit_transform(texts)
    return X[np.diff(X.indptr) > 0]


def newsgroups() -> Any:
    return sparse.load_npz(Path(os.environ["GLOBULAR_DATA"]) / "newsgroups20" / "newsgroups20_tfidf.npz")


def items(n: int = 100_000, n_items: int = 50_000, n_tastes: int = 3_000) -> Any:
    """Baskets of 20 items, most of them from the 200 of a taste."""
    rng = np.random.default_rng(0)
    popularity = 1.0 / np.arange(10, n_items + 10)
    popularity /= popularity.sum()
    tastes = rng.choice(n_items, (n_tastes, 200), p=popularity)
    own = tastes[rng.integers(n_tastes, size=n)[:, None], rng.zipf(1.3, (n, 20)) % 200]
    chosen = np.where(rng.random((n, 20)) < 0.2, rng.choice(n_items, (n, 20), p=popularity), own)
    at = np.repeat(np.arange(n, dtype=np.int32), 20), chosen.ravel().astype(np.int32)  # as scikit-learn wants them
    return sparse.coo_array((np.ones(20 * n, dtype=np.float32), at), (n, n_items)).tocsr()


SETS: dict[str, Callable[[], Any]] = {"glosses": glosses, "newsgroups": newsgroups, "items": items}


def fits(k: int, most_rivals: int) -> Iterator[tuple[str, Any]]:
    """The models that are compared."""
    yield "KMeans", KMeans(k, random_state=0)
    if k >= 400:
        yield "NestedMiniBatchKMeans", NestedMiniBatchKMeans(k, random_state=0)
    if k <= most_rivals:
        yield "MiniBatchKMeans", MiniBatchKMeans(k, random_state=0, n_init=1)
        yield "Lloyd", Lloyd(k, random_state=0, n_init=1, max_iter=25, tol=0)


def main() -> None:
    """Parse the command line, measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(SETS))
    parser.add_argument("--clusters", type=int, nargs="+", default=[100, 1000, 3000, 10_000])
    parser.add_argument("--most-rivals", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: list[tuple[Any, ...]] = []
    for name in options.sets:
        X = SETS[name]()
        KMeans(400, random_state=0, max_iter=1).fit(X[:2000])  # loads kernels
        for k in (k for k in options.clusters if 4 * k <= X.shape[0]):
            for model, estimator in fits(k, options.most_rivals):
                started = time.perf_counter()
                estimator.fit(X)
                seconds = time.perf_counter() - started
                error = -estimator.score(X) / X.shape[0] if model != "KMeans" else estimator.inertia_ / X.shape[0]
                found.append((name, k, model, round(seconds, 2), round(float(error), 5), estimator.n_iter_))
                print(*found[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEAD, *found])
    write_whole(options.out / "sparse.csv", lambda file: file.write(text.getvalue().encode()))
    draw(found, options.out / "sparse.png")


def draw(found: list[tuple[Any, ...]], path: Path) -> None:
    """Seconds against clusters, a panel for each set."""
    plt = pyplot()
    names = list(dict.fromkeys(line[0] for line in found))
    shape: dict[str, Any] = {"figsize": (3.4 * len(names), 3.4), "sharex": True, "sharey": True, "squeeze": False}
    figure, panels = plt.subplots(1, len(names), **shape)
    for name, axes in zip(names, panels[0], strict=True):
        for model, colour in (("KMeans", BLUE), ("MiniBatchKMeans", GREY), ("Lloyd", ORANGE)):
            lines = [line for line in found if line[0] == name and line[2] == model]
            label = {"Lloyd": "scikit-learn, 25 iterations", "MiniBatchKMeans": "scikit-learn, mini-batches"}
            axes.plot([k for _, k, *_ in lines], [line[3] for line in lines], "o-", color=colour,
                      label=label.get(model, "globular"))  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="clusters", title=name)
        tidy(axes)
    panels[0][0].set_ylabel("seconds")
    panels[0][-1].legend(frameon=False, fontsize=8, loc="upper right")
    figure.tight_layout()
    write_whole(path, lambda file: figure.savefig(file, dpi=150, format="png"))


if __name__ == "__main__":
    main()
