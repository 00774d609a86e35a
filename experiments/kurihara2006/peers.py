"""Beyond the paper: against scikit-learn's BayesianGaussianMixture, and how many clusters are found.

    python -m experiments.kurihara2006.peers [--quick] [--only NAME ...] [--patience TIMES] [-o DIR]

The peer has to be told a number of components; it is given a generous one, and cut off after thirty times our own time.
Our own first fit in a process also waits for kernels to be loaded, or compiled if they are not on disk; a short one is
timed again, since the peer comes compiled. Likelihoods are of held-out rows: ours by the predictive density, the peer's
by its own `score`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture

from benchmarks.harness.data import real_array
from experiments.common import (
    Band,
    markdown_table,
    parser,
    provenance,
    read_results,
    real_rows,
    update_report,
    write_results,
)
from experiments.kurihara2006 import HEADING, REPORT
from experiments.kurihara2006.figure3 import Projection
from experiments.kurihara2006.fits import timed, warm_up
from globular import InfiniteGaussianMixture

FASTER = Band(low=10.0)
AS_GOOD = Band(low=0.0)
WITHIN = Band(-1.0, 1.0)
PATIENCE = 30.0
"""The peer is cut off after so many times our own seconds, if it has not converged by then."""
SHORT = 20.0
"""Seconds below which compiling has a part in a fit that is worth telling apart."""
FRANTI = ("s1", "a1", "unbalance", "dim064")


@dataclass(frozen=True, slots=True)
class Rival:
    """A data set, and what the peer is told."""

    name: str
    load: Callable[[], NDArray[Any]]
    n_components: int
    max_iter: int = 500


def mnist() -> NDArray[Any]:
    """Digits in 50 principal components."""
    return Projection.of(real_rows("mnist/mnist.npz")[:60_000], 50).rows


RIVALS = (Rival("flowsom_ff", lambda: real_rows("flowsom_ff/flowsom_ff.npz"), 30), Rival("mnist", mnist, 100))
QUICK = (Rival("flowsom_ff", lambda: real_rows("flowsom_ff/flowsom_ff.npz")[::10], 10, 50),)


def measure(rival: Rival, patience: float) -> dict[str, Any]:
    """Both on nine tenths of the rows, scored on the rest."""
    rows = rival.load().astype(np.float64)
    order = np.random.default_rng(0).permutation(len(rows))
    cut = len(rows) // 10
    train, test = rows[order[cut:]], rows[order[:cut]]
    ours, first_seconds = timed(lambda: InfiniteGaussianMixture(random_state=0).fit(train))
    seconds = first_seconds
    if first_seconds < SHORT:
        ours, seconds = timed(lambda: InfiniteGaussianMixture(random_state=0).fit(train))
    peer, peer_seconds = timed(lambda: fit_peer(rival, train, patience * seconds))
    return {
        "rows": len(train),
        "columns": train.shape[1],
        "seconds": seconds,
        "first_seconds": first_seconds,
        "components": ours.n_components_,
        "score": ours.score(test),
        "peer_seconds": peer_seconds,
        "peer_components": rival.n_components,
        "peer_used": int((peer.weights_ > 1.0 / len(train)).sum()),
        "peer_iterations": peer.n_done,
        "peer_converged": peer.finished,
        "peer_score": float(peer.score(test)),
    }


class OutOfTimeError(Exception):
    """The peer's seconds are over."""


class TimedPeer(BayesianGaussianMixture):
    """The peer as it is, but for a look at the clock after every iteration."""

    def set_deadline(self, deadline: float) -> None:
        """The clock's time after which to stop."""
        self.deadline, self.n_done, self.finished = deadline, 0, True

    def _compute_lower_bound(self, log_resp: NDArray[Any], log_prob_norm: float) -> float:
        self.n_done += 1
        if time.perf_counter() > self.deadline:
            self.finished = False
            self._set_parameters(self._get_parameters())
            raise OutOfTimeError
        return float(super()._compute_lower_bound(log_resp, log_prob_norm))


def fit_peer(rival: Rival, rows: NDArray[Any], limit: float) -> TimedPeer:
    """Until it has converged by its own account or the seconds are over."""
    peer = TimedPeer(
        n_components=rival.n_components,
        weight_concentration_prior_type="dirichlet_process",
        max_iter=rival.max_iter,
        random_state=0,
    )
    peer.set_deadline(time.perf_counter() + limit)
    try:
        peer.fit(rows)
    except OutOfTimeError:
        return peer
    peer.finished = bool(peer.converged_)
    return peer


def measure_franti(name: str) -> dict[str, Any]:
    """Clusters found in a synthetic set with known ones."""
    rows, truth = (real_array(f"franti/{name}.npz", key) for key in ("X", "y"))
    found: dict[str, Any] = {"true": len(np.unique(truth))}
    for label, accelerate in (("Fast-VIM", True), ("VIM", False)):
        model, seconds = timed(lambda a=accelerate: InfiniteGaussianMixture(accelerate=a, random_state=0).fit(rows))
        agreement = float(adjusted_rand_score(truth, model.predict(rows)))
        found[label] = {"components": model.n_components_, "seconds": seconds, "agreement": agreement}
    return found


def section(found: dict[str, Any]) -> str:
    """All that was measured so far."""
    parts = [
        "## Beyond the paper: peers, and the number of clusters",
        "**Set-up.** *Command:* `python -m experiments.kurihara2006.peers` (`--only NAME …` for some of the data). "
        "`InfiniteGaussianMixture` with its defaults on all threads against scikit-learn's `BayesianGaussianMixture` "
        "with a Dirichlet process, told how many components to begin with, defaults otherwise, at most 500 iterations "
        f"and {PATIENCE:g} times our seconds; nine tenths of the rows, the rest held out. One fit each, the second of "
        "two where it is short. Machines below.",
    ]
    rivals = {name: entry for name, entry in found.items() if "peer_score" in entry}
    if rivals:
        rows = []
        for name, entry in rivals.items():
            faster = entry["peer_seconds"] / entry["seconds"]
            better = entry["score"] - entry["peer_score"]
            rows.append(
                [
                    name, f"{entry['rows']:,} × {entry['columns']}",
                    f"{entry['seconds']:.1f} s (first: {entry['first_seconds']:.1f} s)",
                    str(entry["components"]), f"{entry['score']:.3f}",
                    f"{entry['peer_seconds']:.1f} s ({entry['peer_iterations']} iterations"
                    + (")" if entry["peer_converged"] else ", not converged)"),
                    f"{entry['peer_used']} of {entry['peer_components']}", f"{entry['peer_score']:.3f}",
                    ("" if entry["peer_converged"] else "≥ ") + f"{faster:.1f} ×", FASTER.verdict(faster),
                    AS_GOOD.verdict(better),
                ]
            )  # fmt: skip
        head = (
            "data", "rows", "ours", "components", "held-out log-likelihood", "BayesianGaussianMixture",
            "components used", "held-out log-likelihood ", "faster", FASTER.text("{:g} ×"), "as good",
        )  # fmt: skip
        parts.append(markdown_table(head, rows).rstrip())
    known = {name: entry for name, entry in found.items() if "true" in entry}
    if known:
        rows = []
        for name, entry in known.items():
            cells = []
            for label in ("Fast-VIM", "VIM"):
                fit = entry[label]
                verdict = WITHIN.verdict(fit["components"] - entry["true"])
                cells += [f"{fit['components']} ({verdict})", f"{fit['agreement']:.3f}", f"{fit['seconds']:.2f} s"]
            rows.append([name, str(entry["true"]), *cells])
        head = ("data", "clusters", "Fast-VIM", "ARI", "time", "VIM", "ARI ", "time ")
        parts.append("Clusters found without being told (in brackets: within one of the truth), default parameters:")
        parts.append(markdown_table(head, rows).rstrip())
    measured: dict[str, list[str]] = {}
    for name, entry in found.items():
        measured.setdefault(entry["provenance"], []).append(name)
    return "\n\n".join([*parts, *(f"*{', '.join(names)}: {where}*" for where, names in measured.items())])


def report(names: Sequence[str], folder: Path, *, patience: float = PATIENCE, quick: bool = False) -> dict[str, Any]:
    """Run what is named, or all, and write the section."""
    results = folder / "peers.json"
    found = read_results(results)
    warm_up()
    for rival in QUICK if quick else RIVALS:
        if not names or rival.name in names:
            found[rival.name] = measure(rival, patience) | {"provenance": provenance()}
            write_results(results, found)
    for name in FRANTI[: 1 if quick else None]:
        if not names or name in names:
            found[name] = measure_franti(name) | {"provenance": provenance()}
    write_results(results, found)
    update_report(folder / "report.md", HEADING, "peers", section(found))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report."""
    made = parser("infinite mixtures against their peers", REPORT)
    known = [*(rival.name for rival in RIVALS), *FRANTI]
    made.add_argument("--only", nargs="+", choices=known, default=[], help="some of the measurements")
    made.add_argument("--patience", type=float, default=PATIENCE, help="cut the peer off after so many times our time")
    chosen = made.parse_args(arguments)
    report(chosen.only, chosen.output, patience=chosen.patience, quick=chosen.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
