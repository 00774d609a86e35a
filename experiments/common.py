"""What the experiments of all papers share: real data, the k-means baseline, bands, kept results, the report.

An experiment measures, keeps its numbers in a JSON file and renders a section of the paper's report from that file.
So a long table can be run row by row, and a report always shows all that has been measured so far.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from benchmarks.harness.data import real_array
from benchmarks.harness.machine import describe_machine
from benchmarks.harness.quantization import TREE_FEATURES, quantization_error
from globular import KMeans
from globular.errors import DataError
from globular.passes.cpu import CpuShard
from globular.seam.passes import Assign
from globular.threads import resolve_threads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = NDArray[np.float32]
Centers = NDArray[np.float64]


# ---------------------------------------------------------------------------------------------------- data


def real_rows(file: str) -> Rows:
    """The array X of a real data set as float32; `file` is relative to the data folder."""
    return np.ascontiguousarray(real_array(file), dtype=np.float32)


def exact_error(X: Rows, centers: NDArray[Any]) -> float:
    """Mean over all rows of the squared distance to the closest of all centres."""
    return quantization_error(X, centers, threads=resolve_threads(None))


def n_empty_clusters(X: Rows, centers: Centers) -> int:
    """How many of the centres no row is closest to."""
    shard = CpuShard(X, n_threads=resolve_threads(None))
    return int((shard.run(Assign(np.ascontiguousarray(centers))).counts == 0).sum())


# ------------------------------------------------------------------------------------------------ baseline


@dataclass(frozen=True, slots=True)
class LloydRun:
    """Converged k-means from given seeds."""

    error: float
    """Mean squared distance to the closest centre, over all rows."""
    n_iter: int
    centers: Centers


def lloyd_run(X: Rows, seeds: NDArray[Any], max_iter: int) -> LloydRun:
    """Lloyd's algorithm until no label changes, or `max_iter`.

    With many columns it is `KMeans(algorithm="lloyd")`. With few the same exact iterations find closest centres in a
    k-d tree, several times sooner; a test holds the two to each other.
    """
    if X.shape[1] <= TREE_FEATURES:
        return _lloyd_by_tree(X, seeds, max_iter)
    model = KMeans(len(seeds), algorithm="lloyd", init=seeds, max_iter=max_iter, tol=0.0, random_state=0).fit(X)
    centers = model.cluster_centers_.astype(np.float64)
    return LloydRun(exact_error(X, centers), model.n_iter_, centers)


def _lloyd_by_tree(X: Rows, seeds: NDArray[Any], max_iter: int) -> LloydRun:
    C, D = seeds.shape
    rows, centers = X.astype(np.float64), np.array(seeds, dtype=np.float64)
    labels: NDArray[Any] = np.full(len(X), -1)
    n_iter = 0
    for n_iter in range(1, max_iter + 1):  # noqa: B007
        found = np.asarray(cKDTree(centers).query(rows, workers=resolve_threads(None))[1])
        if np.array_equal(found, labels):
            break
        labels = found
        counts = np.bincount(labels, minlength=C)
        sums = np.column_stack([np.bincount(labels, rows[:, j], C) for j in range(D)])
        centers[counts > 0] = sums[counts > 0] / counts[counts > 0, None]
    return LloydRun(exact_error(X, centers), n_iter, centers)


# --------------------------------------------------------------------------------------------------- bands


@dataclass(frozen=True, slots=True)
class Band:
    """Where a measured number is expected."""

    low: float = -math.inf
    high: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether the value lies in the band, both ends included."""
        return self.low <= value <= self.high

    def text(self, form: str = "{:+g} %") -> str:
        """The band in words, its ends printed by `form`."""
        if math.isinf(self.low):
            return "at most " + form.format(self.high)
        if math.isinf(self.high):
            return "at least " + form.format(self.low)
        return f"{form.format(self.low)} … {form.format(self.high)}"

    def verdict(self, value: float) -> str:
        """For a table: whether the value is where it should be."""
        return "yes" if self.holds(value) else "**no**"


# -------------------------------------------------------------------------------------------- kept results


def read_results(path: Path) -> dict[str, Any]:
    """What an experiment measured so far; nothing if there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not a results file ({error}); delete it and run the experiment again") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} is not a results file; delete it and run the experiment again")
    return found


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Keep measurements as JSON, written whole."""
    write_text(path, json.dumps(results, indent=1) + "\n")


def provenance() -> str:
    """One line: when, on which processor, with how many threads and of which commit, or else version."""
    machine = describe_machine()
    code = f"at commit {machine.commit[:7]}" if machine.commit else machine.globular_version
    return f"{machine.date[:10]}, {machine.machine}, {resolve_threads(None)} threads, globular {code}"


# -------------------------------------------------------------------------------------------------- report


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    figure.savefig(temporary, format="png", dpi=90)
    temporary.replace(path)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns after the first are set to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


ABSENT = {
    "Forster & Lücke 2018, measured again": "Figs. 1, B.1 and B.2 are illustrations. Table 1 lists complexities; ours "
    "are in `docs/variational.md`. SONG (nine rows of Table 2) is not to be had here: stand-ins in its place.",
    "Verbeek, Vlassis & Nunnink 2003, measured again": "The paper has no other figures or tables.",
    "Kurihara, Welling & Vlassis 2006, measured again": "The paper has no other figures or tables. Its Citeseer "
    "documents are not to be had here: not run, 20 Newsgroups in their place.",
    "Newling & Fleuret 2016, measured again": "Fig. 1 is an illustration. None of the paper's data are to be had here: "
    "all sections are of stand-ins.",
}
"""What of a paper has no section, by the title of its report."""


def update_report(path: Path, heading: str, section: str, body: str) -> None:
    """Put a section into the report in place of its former self; the others stay as they are."""
    begin, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->\n"
    text = path.read_text(encoding="utf-8") if path.is_file() else f"# {heading}\n"
    block = begin + body.strip() + "\n" + end
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(text):
        text = pattern.sub(lambda _: block, text)
    else:
        text = f"{text.rstrip()}\n\n{block}"
    write_text(path, with_contents(text, ABSENT.get(heading, "")))


def with_contents(text: str, absent: str) -> str:
    """The report with a table of what is in it under its title: every section, and what its claims came to."""
    title, _, rest = re.sub(r"<!-- contents -->.*?<!-- end of contents -->\n+", "", text, flags=re.DOTALL).partition(
        "\n"
    )
    rows = []
    for body in re.findall(r"<!-- (?!end of).*? -->\n(.*?)<!-- end of", rest, re.DOTALL):
        heading = re.search(r"^## (.*)$", body, re.MULTILINE)
        tallies = re.findall(r"^Of \d+ claims .*$", body, re.MULTILINE)
        if heading:
            rows.append([heading[1], " ".join(tallies) or ("not run" if "Not run." in body else "beyond the paper")])
    table = markdown_table(("section", "what came out"), sorted(rows))
    return f"{title}\n\n<!-- contents -->\n{table}\n{absent}\n<!-- end of contents -->\n\n{rest.lstrip()}"


def percent(value: float) -> str:
    """A signed percentage with one decimal and a true minus."""
    return f"{value:+.1f} %".replace("-", "−")


# ------------------------------------------------------------------------------------------------- command


def parser(description: str, output: Path) -> argparse.ArgumentParser:
    """The options that every experiment has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="a small version that takes seconds")
    made.add_argument("-o", "--output", type=Path, default=output, metavar="DIR", help="where the report goes")
    made.add_argument(
        "--runs", type=_positive, default=None, metavar="N", help="independent runs, instead of the paper's"
    )
    return made


def quick_folder(chosen: argparse.Namespace) -> Path:
    """Where a report goes: a small version apart from the full one."""
    output: Path = chosen.output
    return output / "quick" if chosen.quick else output


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
