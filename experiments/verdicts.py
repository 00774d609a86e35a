"""What every report says beside its numbers: how they were made, and whether those of the paper came out.

Each number or sentence of a paper is a `Claim`; its table has a band for every one that was run, and says "not run"
of those that were not. A `Setup` asks for all that a reader needs to make the numbers again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from experiments.common import Band, markdown_table, parser

MARGIN = 2.0
"""Percentage points about a published number that has no spread of its own."""


MADE_AGAIN = (
    "with the version and the kind of processor named below and the same seeds, all counts, errors and free energies "
    "come out again as they stand, whatever the number of threads; on another processor sums round otherwise, and runs "
    "may part, and a later version may choose otherwise (`experiments/readers.md`). "
    "Seconds, and all that follows from seconds, are of the machine and of what else it does: the same fits took up "
    "to a quarter longer when it was busy"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How the numbers of a table or figure were made."""

    command: str
    data: str
    start: str
    stopping: str
    """Tolerances and limits."""
    runs: str
    priors: str = "none"
    splits: str = "none"
    ending: str = "rows"
    """Whether the last steps are on cells or on rows."""
    deviations: str = "none"

    def text(self, when: Iterable[str]) -> str:
        """One paragraph; `when` are the machines, as `provenance` tells them."""
        facts = {
            "Command": f"`python -m experiments.{self.command}` (`--runs N` for as many runs as a table says)",
            "Data": self.data, "Start": self.start,
            "Tolerances and stopping": self.stopping, "Priors": self.priors, "Splits": self.splits,
            "At the end": self.ending, "Where it is not the paper's": self.deviations, "Runs": self.runs,
            "Made again": MADE_AGAIN, "Machine and threads": "; ".join(sorted(set(when))) or "not run",
        }  # fmt: skip
        return "**Set-up.** " + " ".join(f"*{name}:* {fact.rstrip('.')}." for name, fact in facts.items())


@dataclass(frozen=True, slots=True)
class Claim:
    """What a paper says, and what came out here."""

    what: str
    paper: str
    ours: str = ""
    """Empty: not run."""
    band: str = ""
    met: bool | None = None
    """None where there is nothing to meet: a stand-in, or a number that the paper has not."""
    remark: str = ""

    @property
    def verdict(self) -> str:
        """For a table."""
        if not self.ours:
            return "not run"
        return "–" if self.met is None else "yes" if self.met else "**no**"


def in_band(what: str, paper: str, value: float | None, band: Band, form: str = "{:+.1f} %", remark: str = "") -> Claim:
    """A claim about a number; None or NaN: not run."""
    if value is None or math.isnan(value):
        return Claim(what, paper, band=shown(band, form), remark=remark)
    return Claim(what, paper, _minus(form.format(value)), shown(band, form), band.holds(value), remark)


def near(
    what: str, published: float, value: float | None, form: str = "{:+.1f} %", margin: float = MARGIN, remark: str = ""
) -> Claim:
    """A claim about a printed number, which shall come out within `margin`."""
    paper = _minus(form.format(published))
    return in_band(what, paper, value, Band(published - margin, published + margin), form, remark)


def said(what: str, value: str, met: bool | None, remark: str = "") -> Claim:
    """A claim in words."""
    return Claim(what, "in words", value, "", met, remark)


def shown(band: Band, form: str = "{:+.1f} %") -> str:
    """A band with true minus signs."""
    return _minus(band.text(form))


def claims_table(claims: Sequence[Claim]) -> str:
    """All claims, one a line."""
    head = ("what", "paper", "ours", "band", "inside", "remark")
    return markdown_table(
        head, [[one.what, one.paper, one.ours or "–", one.band or "–", one.verdict, one.remark] for one in claims]
    ).rstrip()


def tally(claims: Sequence[Claim]) -> str:
    """How many came out."""
    n = [sum(one.verdict == verdict for one in claims) for verdict in ("yes", "**no**", "not run", "–")]
    open_ones = f", {n[3]} without a verdict" if n[3] else ""
    return f"Of {len(claims)} claims {n[0]} inside, {n[1]} outside, {n[2]} not run{open_ones}."


def _minus(text: str) -> str:
    return text.replace("-", "−")


# ------------------------------------------------------------------------------------------- whole reports


class Experiment(Protocol):
    """A module with a table or figure."""

    def main(self, arguments: Sequence[str] | None = None) -> int: ...


def whole_report(
    description: str, output: Path, experiments: Sequence[Any], arguments: Sequence[str] | None = None
) -> int:
    """All tables and figures of a paper, one after the other: the command of its package."""
    chosen = parser(description, output).parse_args(arguments)
    given = ["-o", str(chosen.output)]
    given += ["--quick"] if chosen.quick else []
    given += ["--runs", str(chosen.runs)] if chosen.runs else []
    failed = 0
    for experiment in experiments:
        print(experiment.__name__.rpartition(".")[2], file=sys.stderr, flush=True)
        failed |= experiment.main(given)
    return failed
