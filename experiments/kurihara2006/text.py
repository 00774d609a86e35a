"""Tables 1 and 2: clusters of documents by their topics, 20 Newsgroups in place of Citeseer.

    python -m experiments.kurihara2006.text [--quick] [-o DIR]

The paper counts the topics of a document by latent Dirichlet allocation. Here topics come from a non-negative
factorisation of the tf-idf matrix; the shares of a document times thirty, rounded, are its topic counts. As in the
paper VIM and Fast-VIM see log(1 + count); the multinomial mixture sees the counts themselves.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import normalized_mutual_info_score

from experiments.common import Band, markdown_table, parser, provenance, update_report, write_results
from experiments.kurihara2006 import HEADING, REPORT
from experiments.kurihara2006.fits import energy_ratio, timed, warm_up
from globular import InfiniteGaussianMixture, InfiniteMultinomialMixture
from globular.benchmarking.problems import data_folder
from globular.errors import DataError

CLOSE = Band(high=1.06)
WORDS = 30.0
"""Words that every document counts as: topic counts of more would be surer than they are."""
N_WORDS, N_TOPICS_SHOWN, N_CLUSTERS_SHOWN = 7, 3, 12


@dataclass(frozen=True, slots=True)
class Config:
    """How many documents, words and topics."""

    n_documents: int | None = None
    n_topics: int = 40
    max_iter: int = 200


FULL = Config()
QUICK = Config(1500, 8, 60)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Topic counts of documents, what newsgroup each is of, and the words of the topics."""

    counts: NDArray[np.float64]
    groups: NDArray[np.integer[Any]]
    words: list[list[str]]


def load(config: Config) -> Corpus:
    """Documents that have any topic."""
    folder = data_folder() / "newsgroups20"
    if not (folder / "newsgroups20_tfidf.npz").is_file():
        raise DataError("no newsgroups20/newsgroups20_tfidf.npz in the data folder; set GLOBULAR_DATA to the folder")
    matrix = sparse.load_npz(folder / "newsgroups20_tfidf.npz").tocsr()
    with np.load(folder / "labels.npz", allow_pickle=True) as arrays:
        groups, vocabulary = arrays["y"], arrays["vocab"]
    chosen = np.random.default_rng(0).permutation(matrix.shape[0])[: config.n_documents]
    matrix, groups = matrix[chosen], groups[chosen]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = NMF(config.n_topics, init="nndsvd", max_iter=config.max_iter, random_state=0)
        shares = model.fit_transform(matrix)
    shares = shares * model.components_.sum(axis=1)  # topics in units of words
    totals = shares.sum(axis=1)
    held = totals > 0
    counts = np.round(WORDS * shares[held] / totals[held, None])
    words = [[str(vocabulary[i]) for i in np.argsort(-topic)[:N_WORDS]] for topic in model.components_]
    return Corpus(counts.astype(np.float64), groups[held], words)


def measure(config: Config) -> tuple[dict[str, Any], dict[str, Any], Corpus]:
    """VIM and Fast-VIM on log counts, and the multinomial mixture on counts."""
    warm_up()
    corpus = load(config)
    transformed = np.log1p(corpus.counts)
    nu = transformed.shape[1] + 2.0
    prior = {"covariance": np.diag(0.1 * nu * transformed.var(axis=0)), "degrees_of_freedom": nu}
    models: dict[str, Any] = {
        "VIM": (InfiniteGaussianMixture(accelerate=False, random_state=0, prior=prior), transformed),
        "Fast-VIM": (InfiniteGaussianMixture(accelerate=True, random_state=0, prior=prior), transformed),
        "multinomial": (InfiniteMultinomialMixture(random_state=0), corpus.counts),
    }
    found: dict[str, Any] = {}
    for name, (model, rows) in models.items():
        _, seconds = timed(lambda model=model, rows=rows: model.fit(rows))
        labels = model.predict(rows)
        found[name] = {
            "seconds": seconds,
            "free_energy": model.free_energy_,
            "n_components": model.n_components_,
            "agreement": float(normalized_mutual_info_score(corpus.groups, labels)),
            "clusters": [
                {"size": int((labels == c).sum()), "topics": _topics(corpus.counts[labels == c])}
                for c in range(min(model.n_components_, N_CLUSTERS_SHOWN))
                if (labels == c).any()
            ],
        }
    found["n_documents"], found["n_topics"] = len(corpus.counts), corpus.counts.shape[1]
    return found, {name: model for name, (model, _) in models.items()}, corpus


def _topics(counts: NDArray[np.float64]) -> list[int]:
    """The most frequent topics of some documents."""
    return [int(topic) for topic in np.argsort(-counts.sum(axis=0))[:N_TOPICS_SHOWN]]


def section(found: dict[str, Any], corpus: Corpus) -> str:
    """Sizes and times, then the clusters by their topics and words."""
    names = ("VIM", "Fast-VIM", "multinomial")
    rows = [
        [name, str(found[name]["n_components"]), f"{found[name]['seconds']:.1f} s", f"{found[name]['agreement']:.3f}"]
        for name in names
    ]
    ratio = energy_ratio(found["Fast-VIM"]["free_energy"], found["VIM"]["free_energy"])
    speedup = found["VIM"]["seconds"] / found["Fast-VIM"]["seconds"]
    parts = [
        "## Tables 1 and 2: documents by topics",
        f"20 Newsgroups in place of Citeseer: {found['n_documents']:,} documents, {found['n_topics']} topics. The last "
        "column is the normalised mutual information with the 20 newsgroups.",
        markdown_table(("", "clusters", "time", "agreement"), rows).rstrip(),
        f"Speed-up {speedup:.1f} × (the paper on Citeseer: 6.7 ×), free-energy ratio {ratio:.4f} "
        f"({CLOSE.text('{:g}')}: {CLOSE.verdict(ratio)}; the paper: 1.040, with 5 and 6 clusters).",
    ]
    for name in names[1:]:
        rows = [
            [
                f"{cluster['size']:,}",
                ", ".join(map(str, cluster["topics"])),
                ", ".join(corpus.words[cluster["topics"][0]]),
            ]
            for cluster in found[name]["clusters"]
        ]
        parts.append(f"The largest clusters of {name}, their most frequent topics, and the words of the first topic:")
        parts.append(markdown_table(("documents", "topics", "words"), rows).rstrip())
    return "\n\n".join([*parts, f"*{provenance()}*"])


def report(config: Config, folder: Path) -> dict[str, Any]:
    """Measure, and write the section."""
    found, _, corpus = measure(config)
    write_results(folder / "text.json", found)
    update_report(folder / "report.md", HEADING, "text", section(found, corpus))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    chosen = parser("clusters of documents", REPORT).parse_args(arguments)
    report(QUICK if chosen.quick else FULL, chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
