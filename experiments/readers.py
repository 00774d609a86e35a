"""A reader's test: numbers picked at random from the reports, each with the command that makes it again.

    python -m experiments.readers [--seed 1] [-n 10]

What came of it is in `experiments/readers.md`. Numbers are those measured: none of the paper's, of bands, or of labels.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NOT_OURS = ("paper", "band", "remark", "inside", "least", "G", "runs", "data sets", "warm-up", "tolerance", "threads")
"""Columns whose heads are, or begin with, one of these are not measured; nor is the first column."""


@dataclass(frozen=True, slots=True)
class Number:
    """A measured number of a report."""

    report: str
    section: str
    table: int
    row: str
    column: str
    value: str
    command: str

    def __str__(self) -> str:
        where = f"{self.report}, {self.section}, table {self.table}"
        return f"{where}: {self.row} / {self.column} = {self.value}\n    {self.command}"


def numbers(path: Path) -> Iterator[Number]:
    """Every measured number of a report, in order, where its section names a command."""
    text = path.read_text(encoding="utf-8")
    for section, body in re.findall(r"<!-- (?!end of)(.*?) -->\n(.*?)<!-- end of", text, re.DOTALL):
        command = re.search(r"\*Command:\* `([^`]*)`", body)
        if command is None:
            continue
        for place, table in enumerate(re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE), 1):
            head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
            for row in rows:
                for column, cell in list(zip(head, row, strict=True))[1:]:
                    if re.search(r"\d", cell) and not column.startswith(NOT_OURS):
                        yield Number(path.parent.parent.name, section, place, row[0], column, cell, command[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Pick and print."""
    made = argparse.ArgumentParser(description="numbers of the reports picked at random")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("-n", type=int, default=10, help="so many numbers")
    chosen = made.parse_args(arguments)
    found = [one for path in sorted(Path(__file__).parent.glob("*/report/report.md")) for one in numbers(path)]
    print(*random.Random(chosen.seed).sample(found, chosen.n), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
