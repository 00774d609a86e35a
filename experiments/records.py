"""What stands behind every section of the reports, as data: runs, commits, machines, and whether they still come out.

    python -m experiments.records [--again] [SECTION …]

Writes `report/records.json` of every paper from the kept results. With `--again` one cell of each section is computed
anew, in seconds, and compared with what is kept: a section whose cell does not come out is marked as stale, one whose
cell does loses its mark. Whether a table or figure is complete follows from these records alone (`Record.complete`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common import exact_error, read_results, write_results
from experiments.forster2018 import figure3 as forster3
from experiments.forster2018 import figure_c1, table2, table2_rows, traces
from experiments.forster2018.fits import CHAIN_LENGTH, run
from experiments.kurihara2006 import figure1 as kurihara1
from experiments.kurihara2006 import figure2 as kurihara2
from experiments.kurihara2006 import fits
from experiments.newling2016 import curves, figure3, figure6, problems, table1
from experiments.verbeek2003 import figure1 as verbeek1
from experiments.verbeek2003 import figure2 as verbeek2
from experiments.verbeek2003 import fits as verbeek_fits
from experiments.verbeek2003 import printed
from globular import seeding
from globular.errors import DataError

HERE = Path(__file__).parent
TOLERANCE = 1e-6
"""Relative difference of a repeated number from the kept one; larger = changes of results go unnoticed. Kept numbers of
another processor come out to 1e-8."""
UNKNOWN = "not in the paper"
Kept = Mapping[str, Any]
Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a section."""

    runs: Mapping[str, int]
    """Runs that were made, by row or curve of the paper."""
    paper_runs: Mapping[str, int] | str
    """Those of the paper, in words where it does not say."""
    missing: tuple[str, ...]
    """What the paper shows and is not here."""
    algorithm: str
    """How an estimator runs it."""
    commits: tuple[str, ...]
    machines: tuple[str, ...]
    cell: str
    """Where in the kept results the number lies that `--again` computes anew."""
    stale: str = ""
    """Why the numbers are not those of today's code; empty where they are, as far as the cell tells."""

    @property
    def complete(self) -> bool:
        """Whether everything of the paper is here, with as many runs at least, and of today's code."""
        wanted = self.paper_runs
        enough = all(n >= (1 if isinstance(wanted, str) else wanted[name]) for name, n in self.runs.items())
        return bool(self.runs) and enough and not self.missing and not self.stale

    @property
    def lacks(self) -> str:
        """Why it is not complete."""
        wanted = self.paper_runs
        short = [] if isinstance(wanted, str) else [(n, wanted[name]) for name, n in self.runs.items()]
        short = [(n, of) for n, of in short if n < of]
        fewest = f"{min(short)[0]} of {min(short)[1]} runs" if short else ""
        return "; ".join(filter(None, [self.stale and "stale numbers", fewest, *self.missing]))


@dataclass(frozen=True, slots=True)
class Section:
    """A table or figure: where its numbers are kept, and how one of them is computed anew."""

    paper: str
    name: str
    file: str
    algorithm: str
    runs: Callable[[Kept], dict[str, int]]
    paper_runs: Callable[[str], int] | None
    """Of a row or curve; None where the paper does not say."""
    cell: Path_
    again: Callable[[], float]
    missing: Callable[[Kept], Sequence[str]] = lambda kept: ()
    beyond: bool = False
    """Whether the paper has no such numbers."""

    @property
    def key(self) -> str:
        return f"{self.paper}/{self.name}"

    def kept(self) -> dict[str, Any]:
        """Its results."""
        return read_results(HERE / self.paper / "report" / f"{self.file}.json")

    def number(self) -> float | None:
        """The kept number of its cell."""
        found: Any = self.kept()
        for key in self.cell:
            found = found[key] if isinstance(found, list) or key in found else None
            if found is None:
                return None
        return float(found)

    def differs(self) -> str:
        """Compute the cell anew; why it does not come out, or nothing."""
        before = self.number()
        if before is None:
            return f"kept before {' / '.join(map(str, self.cell))} was, so that nothing shows that it still comes out"
        now = self.again()
        if abs(now - before) <= TOLERANCE * abs(before):
            return ""
        return f"{' / '.join(map(str, self.cell))} was {before:.10g} and is {now:.10g} now"

    def record(self, stale: str) -> Record:
        """What its results say."""
        kept = self.kept()
        runs, when = self.runs(kept), sorted(_said(kept))
        wanted: Mapping[str, int] | str = UNKNOWN
        if self.paper_runs is not None:
            wanted = {name: self.paper_runs(name) for name in runs}
        commits = {match[1] if (match := re.search(r"(?:commit |\+g)([0-9a-f]{7})", one)) else "?" for one in when}
        machines = {", ".join(one.split(", ")[1:4]) for one in when}
        return Record(
            runs, wanted, tuple(self.missing(kept)), self.algorithm, tuple(sorted(commits)), tuple(sorted(machines)),
            " / ".join(map(str, self.cell)), stale,
        )  # fmt: skip


def _said(kept: Any) -> set[str]:
    """All that `provenance` has said in these results."""
    if isinstance(kept, str):
        return {kept} if re.match(r"20\d\d-\d\d-\d\d, ", kept) else set()
    within = kept.values() if isinstance(kept, Mapping) else kept if isinstance(kept, list) else ()
    return {one for part in within for one in _said(part)}


# ------------------------------------------------------------------------------------------------- sections


def _table2_runs(kept: Kept) -> dict[str, int]:
    return {
        f"{problem.name} {entry.name}": len(table2.compared(kept.get(problem.name), entry.name))
        for problem in table2_rows.FULL.problems
        for entry in problem.entries
    }


def _trace_runs(config: figure_c1.Config) -> Callable[[Kept], dict[str, int]]:
    return lambda kept: {name: len(traces.Runs(kept.get(name))) for name in config.variants()}


def _trace_wanted(config: figure_c1.Config) -> Callable[[str], int]:
    return lambda name: config.variants()[name][1]


def _trace(config: figure_c1.Config, name: str) -> float:
    X, (variant, _) = config.load(), config.variants()[name]
    seeds = seeding.afk_mc2(X, config.n_clusters, chain_length=CHAIN_LENGTH, random_state=0)
    return exact_error(X, run(X, seeds, variant, 0).centers)


def _passing(C: int, name: str) -> float:
    config, side = forster3.FULL, round(C**0.5)
    target = float(np.mean([forster3.measure_lloyd(config, side, number).error for number in range(config.n_runs)]))
    (variant,) = (one for one in config.variants(C) if f"{one.algorithm} {one.size}" == name)
    return float(forster3.measure_variant(config, side, variant, target) or np.nan)


def _on_cells(N: int) -> float:
    rows = fits.Problem(N=N).draw(0)
    return fits.run(rows, fits.algorithms(100, 1)[fits.CELLS] | fits.priors(rows), 0)[1].free_energy


def _forced(N: int) -> float:
    rows = fits.Problem(N=N).draw(0)
    return fits.run(rows, fits.to_T(20, 1)[fits.CELLS] | fits.priors(rows), 0)[1].free_energy


def _sweep_runs(kept: Kept) -> dict[str, int]:
    return {
        f"{name} = {value:g}": len(kept.get(name, {}).get(f"{value:g}", []))
        for name, values in kurihara2.FULL.sweeps.items()
        for value in values
    }


def _curve_runs(names: Sequence[str]) -> Callable[[Kept], dict[str, int]]:
    return lambda kept: {
        f"{problem} {name}": len(kept.get(problem, {}).get("curves", {}).get(name, []))
        for problem in problems.PAPERS
        for name in names
    }


@cache
def _newsgroups(algorithm: str, rho: float | None = None) -> float:
    split = problems.PROBLEMS["newsgroups"].load()
    return curves.trace(split, curves.Setup(seconds=np.inf), algorithm, 0, rho).energies[-1]


def _printed_runs(kept: Kept) -> dict[str, int]:
    return {
        f"{letter} = {value:g}": len(kept.get("sweeps", {}).get(letter, {}).get(f"{value:g}", []))
        for letter, values in verbeek2.FULL.sweeps.items()
        for value in values
    }


def _optimal() -> float:
    return float(verbeek1.measure(replace(verbeek1.FULL, n_runs=1, depths=verbeek1.FULL.depths[:5]))[0, 4])


ALL_DOCUMENTS, PAPER_TOPICS = 18_800, 200
_VARIATIONAL = 'VariationalKMeans(n_candidates=1, start="printed"), VariationalGaussianMixture(start="printed", …)'
_NESTED = 'NestedMiniBatchKMeans(algorithm="nmbatch" | "mbatch" | "mbatch.remove", growth_threshold=100)'
_INFINITE = 'InfiniteGaussianMixture(accept_splits="best"), without its other starts, parts and polishing'
_COMPARED = ("lloyd", "yinyang", "mbatch", "nmbatch")
_THRESHOLDS = [
    figure3.label(algorithm, rho)
    for algorithm in ("nmbatch", "nmbatch.deact")
    for rho in figure3.THRESHOLDS
    if rho != 5.0  # ours
]
SECTIONS = (
    Section(
        "forster2018", "table2", "table2", _VARIATIONAL, _table2_runs, lambda _: 5,
        ("birch-2025", "entries", "var-k-means-S G=5 + 1", "runs", "0", "error"),
        lambda: table2.measure_entry(table2_rows.BIRCH_2025, table2_rows.BIRCH_2025.entries[1], 0)["error"],
    ),
    Section(
        "forster2018", "figure2", "traces-birch", _VARIATIONAL, _trace_runs(figure_c1.BIRCH), lambda _: 100,
        ("var-GMM-S G=3", "finals", 0), lambda: _trace(figure_c1.BIRCH, "var-GMM-S G=3"),
    ),
    Section(
        "forster2018", "figure3", "figure3", _VARIATIONAL,
        lambda kept: {
            f"C = {side**2}": kept[str(side**2)]["n_runs"] if str(side**2) in kept else 0
            for side in forster3.FULL.sides
        },
        lambda _: 5, ("100", "iterations", "var-GMM-S 2 + 1"), lambda: _passing(100, "var-GMM-S 2 + 1"),
    ),
    Section(
        "forster2018", "figure-c1-birch", "traces-birch", _VARIATIONAL, _trace_runs(figure_c1.BIRCH), lambda _: 100,
        ("var-k-means-X G=3", "finals", 0), lambda: _trace(figure_c1.BIRCH, "var-k-means-X G=3"),
    ),
    Section(
        "forster2018", "figure-c1-kdd", "traces-kdd", _VARIATIONAL, _trace_runs(figure_c1.KDD),
        _trace_wanted(figure_c1.KDD), ("var-k-means-S G=2", "finals", 0),
        lambda: _trace(figure_c1.KDD, "var-k-means-S G=2"),
    ),
    Section(
        "kurihara2006", "figure 1", "figure1-forced", _INFINITE,
        lambda kept: {f"N = {N:,}": len(kept.get(str(N), [])) for N in kurihara1.FULL.sizes}, None,
        ("5000", 0, fits.CELLS, "free_energy"), lambda: _forced(5000),
    ),
    Section(
        "kurihara2006", "figure 2", "figure2-cells", _INFINITE, _sweep_runs, None,
        ("N", "10000", 0, fits.CELLS, "free_energy"), lambda: _on_cells(10_000),
    ),
    Section(
        "kurihara2006", "figure 3", "figure3", _INFINITE,
        lambda kept: {name: int(name in kept) for name in ("VIM", "Fast-VIM")}, lambda _: 1,
        ("fingerprint",), fits.fingerprint,
        lambda kept: () if "VIM" in kept.get("pictures", ()) else ("mean images of VIM",),
    ),
    Section(
        "kurihara2006", "text", "text", _INFINITE,
        lambda kept: {name: int(name in kept.get("LDA", {}).get("fits", {})) for name in ("VIM", "Fast-VIM")},
        lambda _: 1, ("LDA", "fingerprint"), fits.fingerprint,
        lambda kept: [
            f"{n:,} of {of:,} {what}"
            for what, n, of in (
                ("documents", kept["LDA"]["n_documents"], ALL_DOCUMENTS),
                ("topics", kept["LDA"]["n_topics"], PAPER_TOPICS),
            )
            if n < of
        ],
    ),
    Section(
        "newling2016", "figure2", "figure2", _NESTED, _curve_runs(_COMPARED), lambda _: 20,
        ("newsgroups", "curves", "nmbatch", 0, "energies", -1), lambda: _newsgroups("nmbatch"),
    ),
    Section(
        "newling2016", "figure3", "figure3", _NESTED, _curve_runs(_THRESHOLDS), lambda _: 20,
        ("newsgroups", "curves", "nmbatch ρ=1", 0, "energies", -1), lambda: _newsgroups("nmbatch", 1.0),
    ),
    Section(
        "newling2016", "figure6", "figure6", _NESTED, _curve_runs(figure6.ALGORITHMS), lambda _: 20,
        ("newsgroups", "curves", "nmbatch.deact", 0, "energies", -1), lambda: _newsgroups("nmbatch.deact"),
    ),
    Section(
        "newling2016", "table1", "table1", _NESTED,
        lambda kept: {name: kept.get(name, {}).get("runs", 0) for name in table1.PUBLISHED}, None,
        ("newsgroups", "energy"), table1.fingerprint, lambda kept: ("sofia",),
    ),
    Section(
        "verbeek2003", "figure1", "figure1", "responsibilities of given mixtures, without a fit",
        lambda kept: {"difference": len(kept.get("differences", []))}, lambda _: 20, ("differences", 0, 4), _optimal,
    ),
    Section(
        "verbeek2003", "figure2-printed", "figure2-printed",
        'ChunkyGaussianMixture(refinement="printed", tol=1e-5)', _printed_runs, lambda _: 20,
        ("sweeps", "N", "10000", 0, "chunky_loss"),
        lambda: round(printed.compare(verbeek2.PAPER, 0).chunky_loss, 6),
    ),
    Section(
        "verbeek2003", "figure2", "figure2", "ChunkyGaussianMixture()",
        lambda kept: {
            f"{letter} = {value:g}": len(kept.get(letter, {}).get(str(float(value)), []))
            for letter, values in verbeek2.FULL.sweeps.items()
            for value in values
        },
        lambda _: 20, ("N", "10000.0", 0, "chunky_loss"),
        lambda: round(verbeek_fits.compare(verbeek2.PAPER, 0).chunky_loss, 6), beyond=True,
    ),
)  # fmt: skip


# --------------------------------------------------------------------------------------------------- keeping


def read_record(section: Section) -> Record:
    """Its record as it is kept."""
    found = read_results(_file(section.paper))[section.name]
    return Record(**{**found, **{name: tuple(found[name]) for name in ("missing", "commits", "machines")}})


def write_records(sections: Sequence[Section], *, again: bool) -> None:
    """Records of these sections; marks stay as they are unless cells are computed `again`."""
    for section in sections:
        kept = read_results(_file(section.paper))
        stale = kept.get(section.name, {}).get("stale", "")
        if again:
            try:
                stale = section.differs()
            except DataError as error:
                print(f"{section.key}: {error}", file=sys.stderr)
            print(f"{section.key}: {stale or 'comes out'}", flush=True)
        kept[section.name] = asdict(section.record(stale))
        write_results(_file(section.paper), dict(sorted(kept.items())))


def _file(paper: str) -> Path:
    return HERE / paper / "report" / "records.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the records."""
    options = argparse.ArgumentParser(description="records of all sections")
    options.add_argument("--again", action="store_true", help="compute one cell of each anew, and mark what is stale")
    options.add_argument("sections", nargs="*", metavar="SECTION", help="those whose name contains this")
    chosen = options.parse_args(arguments)
    named = [one for one in SECTIONS if not chosen.sections or any(part in one.key for part in chosen.sections)]
    write_records(named, again=chosen.again)
    return 0


if __name__ == "__main__":
    sys.exit(main())
