"""Tables 1 and 2: clusters of documents by their topics, 20 Newsgroups in place of Citeseer.

    python -m experiments.kurihara2006.text [--quick] [--documents N] [--report-only] [-o DIR]

As in the paper the topics of a document are counted by latent Dirichlet allocation, here with fewer of them, and VIM
and Fast-VIM see log(1 + count). Beside it the same with topics from a non-negative factorisation of the tf-idf matrix,
thirty to a document. The multinomial mixture sees the counts themselves.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.decomposition import NMF, LatentDirichletAllocation
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import normalized_mutual_info_score

from benchmarks.harness.data import real_file
from experiments.common import (
    Band,
    markdown_table,
    parser,
    provenance,
    quick_folder,
    read_results,
    update_report,
    write_results,
)
from experiments.kurihara2006 import HEADING, REPORT
from experiments.kurihara2006.fits import (
    CELLS,
    SETUP,
    TOL,
    algorithms,
    energy_ratio,
    fingerprint,
    on_rows,
    priors,
    run,
    timed,
    warm_up,
)
from experiments.verdicts import Claim, claims_table, in_band, said, tally
from globular import InfiniteMultinomialMixture

CLOSE = Band(high=1.06)
GAUSSIAN = ("VIM", "Fast-VIM", CELLS)
MOST_COMPONENTS = 200
WORDS = 30.0
"""Words that every document counts as: topic counts of more would be surer than they are."""
N_WORDS, N_TOPICS_SHOWN, N_CLUSTERS_SHOWN = 7, 3, 12


@dataclass(frozen=True, slots=True)
class Config:
    """How many documents, words and topics."""

    n_documents: int | None = None
    n_topics: int = 40
    max_iter: int = 200
    """Of the factorisation; latent Dirichlet allocation has a twentieth of it."""


FULL = Config()
QUICK = Config(1000, 8, 40)
FACTORISATIONS = ("LDA", "NMF")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Topic counts of documents, what newsgroup each is of, and the words of the topics."""

    counts: NDArray[np.float64]
    groups: NDArray[np.integer[Any]]
    words: list[list[str]]


def word_counts(matrix: sparse.csr_matrix, n_documents: int) -> sparse.csr_matrix:
    """Words counted, from tf-idf of 1 + log tf and smooth idf: the rarest word of a document is there once."""
    matrix = matrix.copy()
    frequencies = np.bincount(matrix.indices, minlength=matrix.shape[1])
    scaled = matrix.data / (np.log((1 + n_documents) / (1 + frequencies)) + 1)[matrix.indices]
    smallest = np.ones(matrix.shape[0])
    held = np.diff(matrix.indptr) > 0
    smallest[held] = np.minimum.reduceat(scaled, matrix.indptr[:-1][held])
    scaled /= np.repeat(smallest, np.diff(matrix.indptr))
    matrix.data = np.round(np.exp(scaled - 1.0))
    return matrix


def load(config: Config, factorisation: str) -> Corpus:
    """Documents that have any topic."""
    matrix = sparse.csr_matrix(sparse.load_npz(real_file("newsgroups20/newsgroups20_tfidf.npz")), dtype=np.float64)
    with np.load(real_file("newsgroups20/labels.npz"), allow_pickle=True) as arrays:
        groups, vocabulary = arrays["y"], arrays["vocab"]
    if factorisation == "LDA":
        matrix = word_counts(matrix, matrix.shape[0])
    chosen = np.random.default_rng(0).permutation(matrix.shape[0])[: config.n_documents]
    matrix, groups = matrix[chosen], groups[chosen]
    if factorisation == "LDA":
        lda = LatentDirichletAllocation(
            config.n_topics, learning_method="online", max_iter=max(1, config.max_iter // 20), random_state=0
        )
        shares, topics = lda.fit_transform(matrix), lda.components_
        lengths = np.asarray(matrix.sum(axis=1)).ravel()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            nmf = NMF(config.n_topics, init="nndsvd", max_iter=config.max_iter, random_state=0)
            shares = nmf.fit_transform(matrix)
        topics = nmf.components_
        shares = shares * topics.sum(axis=1)  # topics in units of words
        lengths = np.full(len(shares), WORDS)
    totals = shares.sum(axis=1)
    held = (totals > 0) & (lengths > 0)
    counts = np.round(lengths[held, None] * shares[held] / totals[held, None])
    words = [[str(vocabulary[i]) for i in np.argsort(-topic)[:N_WORDS]] for topic in topics]
    return Corpus(counts.astype(np.float64), groups[held], words)


def measure(config: Config, factorisation: str) -> dict[str, Any]:
    """VIM and Fast-VIM on log counts, and the multinomial mixture on counts."""
    warm_up()
    corpus = load(config, factorisation)
    transformed = np.log1p(corpus.counts)
    found: dict[str, Any] = {"n_documents": len(corpus.counts), "n_topics": corpus.counts.shape[1], "fits": {}}
    shared, chosen = priors(transformed), algorithms(MOST_COMPONENTS, 1, accept="all")
    for name in (*GAUSSIAN, "multinomial"):
        if name in GAUSSIAN:
            model, fit = run(transformed, chosen[name] | shared, 0)
            labels, numbers = model.predict(transformed), fit.as_dict()
            numbers |= {"on_rows": on_rows(model)} if name == CELLS else {}
        else:
            model, seconds = timed(lambda: InfiniteMultinomialMixture(random_state=0).fit(corpus.counts))
            numbers = {"seconds": seconds, "free_energy": model.free_energy_, "ending": "rows"}
            labels = model.predict(corpus.counts)
        _, sizes = np.unique(labels, return_counts=True)
        found["fits"][name] = numbers | {
            "n_components": len(sizes),
            "agreement": float(normalized_mutual_info_score(corpus.groups, labels)),
            "clusters": _largest(labels, corpus),
        }
    found |= {"when": provenance(), "asked": config.n_documents, "fingerprint": fingerprint()}
    return found


def _largest(labels: NDArray[Any], corpus: Corpus) -> list[dict[str, Any]]:
    """The largest clusters by their topics, and the words of the first one."""
    names, sizes = np.unique(labels, return_counts=True)
    shown = []
    for place in np.argsort(-sizes, kind="stable")[:N_CLUSTERS_SHOWN]:
        topics = _topics(corpus.counts[labels == names[place]])
        shown.append({"size": int(sizes[place]), "topics": topics, "words": corpus.words[topics[0]]})
    return shown


def _topics(counts: NDArray[np.float64]) -> list[int]:
    """The most frequent topics of some documents."""
    return [int(topic) for topic in np.argsort(-counts.sum(axis=0))[:N_TOPICS_SHOWN]]


def section(kept: dict[str, Any]) -> str:
    """Sizes and times, then the clusters by their topics and words."""
    asked_for = next((one["asked"] for one in kept.values() if one["asked"]), None)
    setup = replace(
        SETUP, command="kurihara2006.text" + (f" --documents {asked_for}" if asked_for else ""),
        data="20 Newsgroups in place of Citeseer, topics by LDA (the paper: 200 topics) and by NMF",
        stopping=f"cycles end when F falls by less than {TOL:g} per row; at most {MOST_COMPONENTS} components",
        splits="all splits of a round that lower F by 0.02 nats per row of their component (the paper: the best one)",
        priors=f"{SETUP.priors}. The multinomial mixture: Dirichlet, a count of 1 in every column, defaults otherwise",
        deviations="documents, fewer of them and fewer topics; counts of words are worked out from tf-idf; with NMF "
        f"every document counts as {WORDS:g} words, shared among its topics; LDA by scikit-learn, online, ten rounds. "
        f"As in the paper VIM and Fast-VIM see log(1 + count). {SETUP.deviations}",
        runs="one fit each. Seconds are processor time",
    )  # fmt: skip
    parts = [
        "## Tables 1 and 2: documents by topics",
        "The last column is the normalised mutual information with the 20 newsgroups. F is a few nats a document, "
        "positive or negative as the densities of topics that a cluster has not make it, so that a ratio of two F says "
        "little: differences a document are beside it. Most counts are zero and documents lie on faces of the space; a "
        "cell that is not within one face has a width there that no row has, so that cells alone end far above rows, "
        "and Fast-VIM goes over to rows. What VIM and Fast-VIM differ by then is which local minimum their splits lead "
        "to, in either direction.",
        setup.text(one["when"] for one in kept.values()),
    ]
    for factorisation in FACTORISATIONS:
        found = kept.get(factorisation)
        if found is None:
            parts.append(f"Topics by {factorisation}: not run.")
            continue
        fits, n = found["fits"], found["n_documents"]
        base = fits["VIM"]["free_energy"]
        rows = [
            [
                name, str(fit["n_components"]), f"{fit['seconds']:.1f} s", f"{fit['free_energy'] / n:.3f}",
                f"{energy_ratio(fit['free_energy'], base):.4f}" if name in GAUSSIAN else "–",
                f"{(fit['free_energy'] - base) / n:+.3f}".replace("-", "−") if name in GAUSSIAN else "–",
                fit["ending"], f"{fit['agreement']:.3f}",
            ]
            for name, fit in fits.items()
        ]  # fmt: skip
        head = ("", "clusters", "time", "F a document", "ratio to VIM", "difference to VIM", "at the end", "agreement")
        parts += [f"Topics by {factorisation}: {n:,} documents, {found['n_topics']} topics.",
                  markdown_table(head, rows).rstrip()]  # fmt: skip
        if "on_rows" in fits[CELLS]:
            after = (fits[CELLS]["on_rows"] - base) / n
            shown = f"{fits[CELLS]['on_rows'] / n:.3f} a document, {after:+.3f} to VIM".replace("-", "−")
            parts.append(
                f"Cycles on rows from where Fast-VIM on cells has ended, without another split, come to F = {shown}: "
                "the rest of its difference lies in the cells."
            )
        for name in fits:
            lines = [
                [f"{one['size']:,}", ", ".join(map(str, one["topics"])), ", ".join(one["words"])]
                for one in fits[name]["clusters"]
            ]
            parts.append(f"The largest clusters of {name}, their most frequent topics, and the words of the first:")
            parts.append(markdown_table(("documents", "topics", "words"), lines).rstrip())
    asked = claims(kept)
    return "\n\n".join([*parts, claims_table(asked), tally(asked)])


def claims(kept: dict[str, Any]) -> list[Claim]:
    """The paper's numbers, which are of other documents: no bands but for the ratio."""
    fits = kept.get("LDA", {}).get("fits")
    remark = "other documents: Citeseer"
    if not fits:
        asked = {"speed-up": "6.7 ×", "free-energy ratio": "1.040", "clusters of VIM, Fast-VIM": "6, 5"}
        return [Claim(what, paper, remark=remark) for what, paper in asked.items()]
    fast, slow = fits[CELLS], fits["VIM"]
    ratio = energy_ratio(fast["free_energy"], slow["free_energy"])
    counts = f"{slow['n_components']}, {fast['n_components']}"
    firsts = {name: [cluster["topics"][0] for cluster in fits[name]["clusters"]] for name in ("VIM", CELLS)}
    apart = {name: f"{len(set(topics))} of {len(topics)}" for name, topics in firsts.items()}
    return [
        in_band("speed-up of Fast-VIM on cells", "6.7 ×", slow["seconds"] / fast["seconds"], Band(low=1.0), "{:.1f} ×",
                f"{remark}; here {fast['ending']} for {kept['LDA']['n_documents']:,} rows, and {fast['n_iter']} cycles "
                f"against {slow['n_iter']}"),
        in_band("free-energy ratio of Fast-VIM on cells", "1.040", ratio, CLOSE, "{:.4f}",
                "the cells' own widths, see above"),
        Claim("clusters of VIM, Fast-VIM on cells", "6, 5", counts, "", None, remark),
        said("documents are well-clustered: first topics among the largest clusters",
             "; ".join(f"{name}: {text}" for name, text in apart.items()),
             all(2 * len(set(topics)) > len(topics) for topics in firsts.values()),
             f"most clusters share the commonest topic; agreement with the newsgroups {slow['agreement']:.3f} and "
             f"{fast['agreement']:.3f}"),
    ]  # fmt: skip


def report(config: Config, folder: Path, *, report_only: bool = False) -> dict[str, Any]:
    """Measure, and write the section."""
    kept = read_results(folder / "text.json")
    for factorisation in () if report_only else FACTORISATIONS:
        kept[factorisation] = measure(config, factorisation)
        write_results(folder / "text.json", kept)
    update_report(folder / "report.md", HEADING, "text", section(kept))
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    made = parser("clusters of documents", REPORT)
    made.add_argument("--documents", type=int, default=None, metavar="N", help="so many documents, instead of all")
    made.add_argument("--report-only", action="store_true", help="measure nothing: write the report of what is kept")
    chosen = made.parse_args(arguments)
    config = QUICK if chosen.quick else FULL
    config = replace(config, n_documents=chosen.documents or config.n_documents)
    report(config, quick_folder(chosen), report_only=chosen.report_only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
