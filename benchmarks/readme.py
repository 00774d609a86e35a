"""Write the README's table and the time–quality picture from the results that are kept; nothing is measured.

    python benchmarks/readme.py                              # from the newest file in benchmarks/results
    python benchmarks/readme.py A/results.csv B/results.csv  # keep these results first, put together

`python benchmarks/full.py --readme` measures, keeps and does this. Where files have runs of the same adapter on the
same problem, the later measurement counts, whatever its figures are.
"""

from __future__ import annotations

import argparse
import hashlib
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from globular.io import write_whole
from harness.adapters import ADAPTERS, title
from harness.data import PROBLEMS
from harness.plots import plot_curve
from harness.results import Row, best_runs, excess_percent, read_rows, write_rows, yardstick

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "images" / "benchmark.png"
KEPT = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- benchmark:begin -->\n", "<!-- benchmark:end -->\n"
DEFAULT = "globular-balanced"


def newest() -> Path:
    """The kept results of the latest date."""
    return max(KEPT.glob("20*.csv"))


def keep(files: Iterable[Path]) -> Path:
    """Put results together into one file of benchmarks/results, named after its last day."""
    rows = [row for file in files for row in read_rows(file) if row.status == "ok"]
    if not rows:
        raise SystemExit("none of the files has a finished run")
    if len({(row.machine, row.threads) for row in rows}) > 1:
        raise SystemExit("the files come from several machines or numbers of threads; keep those of one")
    latest: dict[tuple[str, str], str] = {}
    for row in rows:
        key = row.problem, row.adapter
        latest[key] = max(row.date, latest.get(key, ""))
    rows = [row for row in rows if row.date == latest[row.problem, row.adapter]]
    problems, adapters = list(PROBLEMS), list(ADAPTERS)
    rows.sort(key=lambda row: (problems.index(row.problem), adapters.index(row.adapter), row.n_iter, row.repeat))
    path = KEPT / f"{max(row.date for row in rows)[:10]}.csv"
    write_rows(path, rows)
    return path


def block(path: Path) -> str:
    """The part of the README between its two marks."""
    rows = read_rows(path)
    best = _longest_runs(rows)
    with_yardstick = {row.problem for row in best if row.exact}
    measured = [row for row in best if row.problem in with_yardstick]
    others = [row for row in best if row.problem not in with_yardstick]
    parts = [_table(measured, "E*")] if measured else []
    parts.append(_notes(rows, measured, path))
    if others:
        parts += ["More clusters, without E*; errors against the default's:", _table(others, "the default")]
    return "\n\n".join(parts) + "\n"


def _longest_runs(rows: Sequence[Row]) -> list[Row]:
    """Of each adapter on each problem the run with the most iterations, the fastest of its repeats."""
    chosen: dict[tuple[str, str], Row] = {}
    for row in best_runs(rows):
        known = chosen.get((row.problem, row.adapter))
        if row.status == "ok" and (known is None or row.n_iter > known.n_iter):
            chosen[row.problem, row.adapter] = row
    return list(chosen.values())


def _table(rows: list[Row], against: str) -> str:
    """A line per adapter, a column per problem, and what the same errors cost elsewhere."""
    problems = list(dict.fromkeys(row.problem for row in rows))
    adapters = sorted({row.adapter for row in rows}, key=list(ADAPTERS).index)
    found = {(row.adapter, row.problem): row for row in rows}
    lines = [[f"seconds (error against {against})", *problems], ["---", *("---:" for _ in problems)]]
    for adapter in adapters:
        cells = [_cell(found.get((adapter, name)), _reference(rows, name, against)) for name in problems]
        name = title(adapter)
        lines.append([f"**{name}**" if ADAPTERS[adapter].ours else name, *cells])
    if against == "E*":
        by_problem = [[row for row in rows if row.problem == name] for name in problems]
        at_yardstick = [_rival(there, there, yardstick(there)) for there in by_problem]
        lines.append(["*to reach E\\*: fastest other ÷ fastest globular*", *at_yardstick])
        defaults = [[row for row in there if row.adapter == DEFAULT] for there in by_problem]
        pairs = zip(by_problem, defaults, strict=True)
        at_default = [_rival(there, default, default[0].error) if default else "–" for there, default in pairs]
        lines.append(["*to reach the default's error: fastest other ÷ default*", *at_default])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _reference(rows: list[Row], problem: str, against: str) -> float:
    there = [row for row in rows if row.problem == problem]
    if against == "E*":
        return yardstick(there)
    return next((row.error for row in there if row.adapter == DEFAULT), float("nan"))


def _cell(row: Row | None, reference: float) -> str:
    if row is None:
        return "–"
    percent = f"{excess_percent(row, reference):+.1f}".replace("-", "−")
    return f"{row.seconds:.1f} ({'0.0' if percent[1:] == '0.0' else percent} %)"


def _rival(rows: list[Row], ours: list[Row], error: float) -> str:
    """How many times our seconds the fastest other library takes to end at that error or below."""
    theirs = [row.seconds for row in rows if not row.ours and row.error <= error]
    mine = [row.seconds for row in ours if row.ours and row.error <= error]
    if not mine:
        return "*we do not*"
    return f"*{min(theirs) / min(mine):.1f}*" if theirs else "*nobody does*"


def _notes(rows: list[Row], measured: list[Row], path: Path) -> str:
    """When, where and how it was measured, in the words of the results themselves."""
    first, days = rows[0], sorted({row.date[:10] for row in rows})
    repeats = max(row.repeat for row in rows) + 1
    runs = "one run each" if repeats == 1 else f"the fastest of up to {repeats} runs, with its own error"
    commits = sorted({row.commit[:7] for row in rows if row.ours and row.commit})
    ours = f"globular {first.globular_version}" + (f" ({', '.join(commits)})" if commits else "")
    exact = dict.fromkeys(f"{title(row.adapter)}, {row.n_iter} iterations" for row in measured if row.exact)
    shapes = dict.fromkeys(f"{row.problem.rpartition('-')[0]} {row.n_samples:,} × {row.n_features}" for row in rows)
    machine = first.machine.replace("(R)", "")
    return textwrap.fill(
        f"{first.threads} threads on {machine}; {' to '.join(days[:: len(days) - 1 or 1])}; {ours}; {runs}. All rows "
        f"unless it says otherwise, seeding included; others with {max(row.n_iter for row in rows)} iterations where "
        f"they let one choose. E* is the lowest error of exact Lloyd iterations ({'; '.join(exact)}). "
        f"Rows × columns: {', '.join(shapes)}; the number in a name is that of the clusters. "
        "`python benchmarks/full.py --readme` measures it anew, "
        f"[the figures](benchmarks/results/{path.name}) are kept, "
        "[a picture](benchmarks/README.md#results) shows them.",
        width=120, break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def source(path: Path) -> str:
    """What the picture says about where it comes from."""
    return f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"


def write(path: Path) -> None:
    """Put the block into the README and draw the picture."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    text = f"{before}{BEGIN}{block(path)}{END}{after}"
    write_whole(README, lambda file: file.write(text.encode()))
    rows = read_rows(path)
    with_yardstick = {row.problem for row in rows if row.exact}
    plot_curve([row for row in rows if row.problem in with_yardstick], PICTURE, source=source(path))


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help="results.csv of measurements to keep")
    files = parser.parse_args().results
    path = keep(files) if files else newest()
    write(path)
    print(f"{README.name} and {PICTURE.relative_to(ROOT)} written from {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
