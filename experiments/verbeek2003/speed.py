"""Beyond the paper: the tree over a million rows, mixtures of 50 components against their peers, ten million rows.

    python -m experiments.verbeek2003.speed [--quick] [--only NAME ...] [-o DIR]

From the same starting mixture the peers and Chunky EM run with their defaults, in turns; the median of our runs counts,
and a single one of a peer that takes minutes. scikit-learn takes no weights: data with weights are compared twice, with
exact EM of this library as they are, and with scikit-learn on as many rows drawn in proportion to their weights.
Likelihoods are of held-out rows.
"""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as PeerMixture

from benchmarks.harness.data import real_array
from experiments.common import (
    Band,
    markdown_table,
    parser,
    percent,
    provenance,
    read_results,
    real_rows,
    update_report,
    write_results,
)
from experiments.verbeek2003 import HEADING, REPORT
from globular import ChunkyGaussianMixture, GaussianMixture, KMeans, datasets
from globular.algorithms.mixtures.chunky import LEAF_SIZE, POLISHED
from globular.algorithms.mixtures.em import EMOptions, start_from_means
from globular.estimators.checks import chunky_bytes
from globular.estimators.inputs import Input
from globular.model.covariances import OUTER
from globular.model.gaussian import GaussianParameters
from globular.model.given import GivenStart
from globular.passes.cpu import CpuShard
from globular.passes.tree.partition import PartitionTree
from globular.seam.mixture_passes import Expect
from globular.threads import resolve_threads

Rows = NDArray[np.float32]
SAMPLE = 50_000
"""Rows from which the common start is found."""
CLOSE = Band(high=0.5)
TREE_TIME = Band(high=4.0)


@dataclass(frozen=True, slots=True)
class Data:
    """Rows, and weights where they have any."""

    rows: Rows
    weights: NDArray[np.float64] | None = None

    def halves(self, seed: int) -> tuple[Data, Data]:
        """Nine tenths to learn from, and the rest."""
        order = np.random.default_rng(seed).permutation(len(self.rows))
        cut = len(order) // 10
        return self._pick(order[cut:]), self._pick(order[:cut])

    def _pick(self, which: NDArray[np.integer]) -> Data:
        return Data(self.rows[which], None if self.weights is None else self.weights[which])


@dataclass(frozen=True, slots=True)
class Problem:
    """A fit to time, and what is asked of it."""

    name: str
    load: Callable[[], Data]
    n_components: int
    least_speedup: float


def generated(n_rows: int, n_components: int, separation: float) -> Callable[[], Data]:
    """A random mixture in 8 columns; a tenth more rows than asked for, to test on."""

    def load() -> Data:
        n = n_rows * 10 // 9
        made = datasets.separated_mixture(n, n_components, 8, separation=separation, random_state=0, dtype=np.float32)
        return Data(np.asarray(made.X))

    return load


def hipparcos() -> Data:
    """Stars, columns scaled to unit variance."""
    X = real_rows("hipparcos/hipparcos.npz")
    return Data(((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32))


def geonames() -> Data:
    """Places by longitude and latitude, each counting as its population."""
    X, population = (real_array("geonames500/geonames500.npz", key) for key in ("X", "population"))
    return Data(X.astype(np.float32), population.astype(np.float64))


def drawn_places() -> Data:
    """As many places as there are, drawn in proportion to their population."""
    places = geonames()
    assert places.weights is not None
    random = np.random.default_rng(0)
    chosen = random.choice(len(places.rows), len(places.rows), p=places.weights / places.weights.sum())
    return Data(places.rows[chosen])


PROBLEMS = (
    Problem("million", generated(1_000_000, 50, 1.0), 50, 20.0),
    Problem("hipparcos", hipparcos, 50, 5.0),
    Problem("geonames, weighted", geonames, 50, 5.0),
    Problem("geonames, drawn", drawn_places, 50, 5.0),
)
QUICK = (Problem("small", generated(20_000, 8, 1.0), 8, 0.0),)
TREE_ROWS, MANY_ROWS = 1_000_000, 10_000_000


class BegunMixture(ChunkyGaussianMixture):
    """Chunky EM from a mixture."""

    start: GaussianParameters

    def _given(self, data: Input) -> GivenStart:
        return replace(GivenStart.of(self.start), continues=True)


def start_of(data: Data, n_components: int) -> GaussianParameters:
    """k-means on a sample, as a mixture."""
    rows = data.rows[:SAMPLE]
    centers = KMeans(n_components, algorithm="lloyd", max_iter=20, random_state=0).fit(rows).cluster_centers_
    return start_from_means(CpuShard(rows), np.asarray(centers, dtype=np.float64), "full", EMOptions())


def _timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a hundred steps are scikit-learn's default
        model = fit()
    return model, time.perf_counter() - began


def measure(problem: Problem) -> dict[str, Any]:
    """Both fits from one start, ours before and after the peer's."""
    train, test = problem.load().halves(0)
    k = problem.n_components
    start = start_of(train, k)
    given: dict[str, Any] = {
        "weights_init": start.weights, "means_init": start.means, "precisions_init": start.precisions,
    }  # fmt: skip
    chunky = BegunMixture(k, random_state=0)
    chunky.start = start
    chunky.fit(train.rows[:5000])  # compiled before the clock runs

    def fit_ours() -> ChunkyGaussianMixture:
        return chunky.fit(train.rows, sample_weight=train.weights)

    def fit_peer() -> PeerMixture | GaussianMixture:
        if train.weights is None:
            return PeerMixture(k, **given).fit(train.rows)
        return GaussianMixture(k, algorithm="em", **given).fit(train.rows, sample_weight=train.weights)

    before = [_timed(fit_ours)[1] for _ in range(2)]
    peer, peer_seconds = _timed(fit_peer)
    ours, seconds = _timed(fit_ours)
    return {
        "rows": len(train.rows),
        "columns": train.rows.shape[1],
        "components": k,
        "peer": "scikit-learn" if train.weights is None else "exact EM, ours",
        "peer_seconds": peer_seconds,
        "seconds": float(np.median([*before, seconds])),
        "peer_iterations": int(peer.n_iter_),
        "iterations": int(ours.n_iter_),
        "cells": int(ours.n_cells_),
        "stopped": ours.stopped_,
        "peer_loss": loss_of(peer, test),
        "loss": loss_of(ours, test),
        "least": problem.least_speedup,
    }


def loss_of(model: PeerMixture | GaussianMixture | ChunkyGaussianMixture, test: Data) -> float:
    """Mean negative log-likelihood of held-out rows, by one and the same code for all."""
    mixture = GaussianParameters(model.weights_ / model.weights_.sum(), model.means_, model.covariances_, "full")
    statistics = CpuShard(test.rows, test.weights).run(Expect(mixture))
    return -statistics.log_likelihood / statistics.total_weight


def measure_tree(n_rows: int) -> dict[str, float]:
    """Seconds for the tree over `n_rows` rows of 8 columns, full scatter; the best of three."""
    X = generated(n_rows, 50, 1.0)().rows[:n_rows]
    PartitionTree.build(X[:10_000], np.empty(0), OUTER, 16)  # compiled before the clock runs
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        PartitionTree.build(X, np.empty(0), OUTER, 16, n_threads=resolve_threads(None))
        seconds.append(time.perf_counter() - began)
    return {"rows": n_rows, "seconds": min(seconds)}


def measure_memory(n_rows: int) -> dict[str, float]:
    """A fit on `n_rows` rows: seconds, and the memory it took beyond the rows against what was foretold."""
    random = np.random.default_rng(0)
    X = np.empty((n_rows, 8), dtype=np.float32)
    centers = 6.0 * random.normal(size=(20, 8))
    for begin in range(0, n_rows, 100_000):
        part = X[begin : begin + 100_000]
        part[:] = centers[random.integers(20, size=len(part))] + random.normal(size=part.shape)
    ChunkyGaussianMixture(20, random_state=0).fit(X[:5000])  # compiled before the clock runs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    model = ChunkyGaussianMixture(20, random_state=0).fit(X)
    seconds = time.perf_counter() - began
    taken = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    foretold = chunky_bytes(n_rows, 8, LEAF_SIZE, OUTER)
    return {"rows": n_rows, "seconds": seconds, "taken": taken, "foretold": foretold, "cells": model.n_cells_}


def section(found: dict[str, Any]) -> str:
    """All that was measured so far."""
    parts = [
        "## Beyond the paper: speed and memory",
        "**Set-up.** *Command:* `python -m experiments.verbeek2003.speed` (`--only NAME …` for some of the data). "
        "Defaults throughout, also of the peers; machines below.",
    ]
    fits = [entry for entry in found.values() if "peer" in entry]
    if fits:
        rows = []
        for name, entry in found.items():
            if "peer" not in entry:
                continue
            speedup = entry["peer_seconds"] / entry["seconds"]
            short = 100.0 * (entry["loss"] - entry["peer_loss"]) / abs(entry["peer_loss"])
            least = Band(low=entry["least"])
            rows.append(
                [
                    name, f"{entry['rows']:,} × {entry['columns']}", str(entry["components"]), entry["peer"],
                    f"{entry['peer_seconds']:.1f} s ({entry['peer_iterations']})",
                    f"{entry['seconds']:.2f} s ({entry['iterations']})", _cells(entry), f"{speedup:.0f} ×",
                    f"{least.text('{:g} ×')}: {least.verdict(speedup)}", percent(short), CLOSE.verdict(short),
                ]
            )  # fmt: skip
        head = (
            "data", "rows", "components", "peer", "its time (steps)", "chunky", "cells", "faster", "asked for",
            "held-out loss", CLOSE.text(),
        )  # fmt: skip
        parts.append(
            "Full covariances, the same starting mixture (k-means on a sample) for both, all threads, defaults; the "
            "tree is included in our time, the median of two runs before and one after the peer's. The last columns: "
            "how much higher the loss of held-out rows is. scikit-learn takes no weights: places are compared twice, "
            "weighted by population with exact EM of this library, and drawn in proportion to it with scikit-learn. "
            "An earlier version was 10 times as fast on weighted places, with 1,509 cells and a loss of −0.3 %."
        )
        parts.append(markdown_table(head, rows).rstrip())
    if "tree" in found:
        tree = found["tree"]
        parts.append(
            f"The tree over {tree['rows']:,} × 8 rows with full scatter: {tree['seconds']:.2f} s "
            f"({TREE_TIME.text('{:g} s')}: {TREE_TIME.verdict(tree['seconds'])})."
        )
    if "memory" in found:
        memory = found["memory"]
        parts.append(
            f"A fit of 20 components to {memory['rows']:,} × 8 rows: {memory['seconds']:.1f} s and {memory['cells']:,} "
            f"cells; {memory['taken'] / 2**30:.2f} GiB beyond the rows, foretold {memory['foretold'] / 2**30:.2f} GiB "
            f"(kept: {Band(high=memory['foretold']).verdict(memory['taken'])})."
        )
    measured: dict[str, list[str]] = {}
    for name, entry in found.items():
        measured.setdefault(entry["provenance"], []).append(name)
    return "\n\n".join([*parts, *(f"*{'; '.join(names)}: {where}*" for where, names in measured.items())])


def _cells(entry: dict[str, Any]) -> str:
    return "at the end single rows" if entry["stopped"] == POLISHED else f"{entry['cells']:,}"


def report(names: Sequence[str], folder: Path, *, quick: bool = False) -> dict[str, Any]:
    """Run what is named and write the section."""
    name = "speed-quick" if quick else "speed"
    results = folder / f"{name}.json"
    found = read_results(results)
    for problem in QUICK if quick else PROBLEMS:
        if not names or problem.name in names:
            found[problem.name] = measure(problem) | {"provenance": provenance()}
            write_results(results, found)
    if not names or "tree" in names:
        found["tree"] = measure_tree(TREE_ROWS // (50 if quick else 1)) | {"provenance": provenance()}
    if not names or "memory" in names:
        found["memory"] = measure_memory(MANY_ROWS // (200 if quick else 1)) | {"provenance": provenance()}
    write_results(results, found)
    update_report(folder / "report.md", HEADING, name, section(found))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    made = parser("Chunky EM against its peers", REPORT)
    known = [*(problem.name for problem in PROBLEMS), "tree", "memory"]
    made.add_argument("--only", nargs="+", choices=known, default=[], help="some of the measurements")
    chosen = made.parse_args(arguments)
    report(chosen.only, chosen.output, quick=chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
