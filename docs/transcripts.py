"""Run the transcripts of the tutorial and of the command's page, and write what comes out of them into the pages.

    python docs/transcripts.py [PAGE]     # a minute or two, best on a machine without other work

A block that begins with `$` is a transcript; Python blocks and sessions run between them, in order, in an empty folder.
A line `…` stands for lines left out: before, between and after such lines as many lines are shown as there were. The
tests run most of it again (`replayed`), and hold the pages to it but for what a machine's speed decides (`same`).
"""

from __future__ import annotations

import contextlib
import doctest
import io
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import globular
from globular.cli.main import run
from globular.datasets import many_blobs, separated_mixture

DOCS = Path(__file__).resolve().parent
PAGES = ("tutorial.md", "command.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
KEPT = ("python3", "pip")
"""Commands that are not run: their transcripts stay."""
SLOW = ("globular demo", "globular fit big.npy")
"""Commands that only this script runs."""
INTERRUPTED_AFTER = 2.0
"""Seconds until Ctrl-C, where the transcript tells of one."""
VERSION = "0.1.0.dev0"


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has switched it off
    for name in sys.argv[1:] or PAGES:
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        for before, after in replayed(name):
            text = text.replace(before, after, 1)
        page.write_text(text, encoding="utf-8")
        print(page)


def replayed(name: str, *, slow: bool = True) -> Iterator[tuple[str, str]]:
    """Every transcript of a page as it is there, and as it comes out now."""
    text = (DOCS / name).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), _wide_terminal():
        if name == "command.md":
            make_data()
        for language, code in BLOCK.findall(text):
            if language == "python":
                exec(compile(code, name, "exec"), names)
            elif language == "pycon":
                yield code, _session(code, names)
            elif code.startswith("$ "):
                commands = re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]
                left_out = KEPT if slow else KEPT + SLOW
                if not any(command.startswith(left_out) for command in commands):
                    yield code, "".join(_transcript(command) for command in commands)


def make_data() -> None:
    """The files that the command's page speaks of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    X = many_blobs(50_000, 1500, 32, center_std=1.0, unevenness=0.5, random_state=0).X
    rows = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 32)
    pq.write_table(pa.table({"embedding": rows}), "embeddings.parquet")
    named = {"id": [f"d{i}" for i in range(2000)], "text": [f"text {i}" for i in range(2000)], "embedding": rows[:2000]}
    pq.write_table(pa.table(named), "documents.parquet")
    random = np.random.default_rng(0)
    places = np.column_stack([random.normal(size=(3000, 2)), random.integers(1, 9, 3000)])
    np.savetxt("cities.csv", places, "%.4f", ",", header="lon,lat,people", comments="")
    np.save("cells.npy", separated_mixture(20_000, 12, 4, random_state=0).X)
    np.save("big.npy", random.normal(size=(100_000, 16)).astype(np.float32))
    Path("notes.txt").write_text("no table\n", encoding="utf-8")


def _transcript(written: str) -> str:
    """A command and what it says now, shortened as what it said before."""
    command, _, before = written.partition("\n")
    now = _output(command, interrupt="globular: interrupted" in before)
    return "\n".join(["$ " + command, *_shortened(before.splitlines(), now), ""])


def _output(command: str, *, interrupt: bool) -> list[str]:
    words, out = shlex.split(command), io.StringIO()
    if words[0] != "globular":
        return subprocess.run(command, shell=True, capture_output=True, text=True).stdout.splitlines()
    press = threading.Timer(INTERRUPTED_AFTER, os.kill, (os.getpid(), signal.SIGINT))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        if interrupt:
            press.start()
        with contextlib.suppress(SystemExit):
            run(words[1:])
    press.cancel()
    said = out.getvalue().replace(globular.__version__, VERSION)
    lines = [line.rstrip() for line in said.splitlines() if not re.match(r" ?compiling ", line)]
    progress = [i for i, line in enumerate(lines) if PROGRESS.match(line)]
    return [line for i, line in enumerate(lines) if i not in progress[1:-1]]


def _shortened(before: list[str], now: list[str]) -> list[str]:
    """Leave out of `now` what `before` leaves out."""
    if "…" not in before:
        return now
    gaps = [-1, *(i for i, line in enumerate(before) if line == "…"), len(before)]
    parts = [before[a + 1 : b] for a, b in itertools.pairwise(gaps)]
    last = len(parts) - 1
    for i, part in enumerate(parts):
        if not part:
            continue
        start = 0 if i == 0 else len(now) - len(part) if i == last else now.index(part[0])
        parts[i] = now[start : start + len(part)]
    return [line for i, part in enumerate(parts) for line in (part if i == last else [*part, "…"])]


def _session(code: str, names: dict[str, Any]) -> str:
    """A session of Python with the answers that it gives now."""
    lines = []
    for example in doctest.DocTestParser().get_examples(code):
        first, *others = example.source.rstrip("\n").split("\n")
        lines += [f">>> {first}", *(f"... {line}" for line in others)]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(example.source, "session", "single"), names)
        lines += out.getvalue().splitlines()
    return "\n".join([*lines, ""])


@contextlib.contextmanager
def _wide_terminal() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
PROGRESS = re.compile(r"\w+ .*objective .*\d s\b")
OF_THE_MACHINE = re.compile(
    r" (seconds|iterations|distances|saved|label_recall_|stopped_|n_iter_|\d+ )|last |array\(|\("
)
"""Lines whose numbers depend on the machine: its speed, or the last bits of its sums."""
CLOSE = 0.05


def same(before: str, now: str) -> bool:
    """Whether two transcripts say the same: words to the letter, numbers nearly where machines agree on them."""
    return _comparable(before) == _comparable(now) and all(
        abs(a - b) <= CLOSE * max(abs(a), abs(b))
        for old, new in zip(_lines(before), _lines(now), strict=True)
        if not OF_THE_MACHINE.search(old)
        for a, b in zip(_numbers(old), _numbers(new), strict=True)
    )


def _comparable(text: str) -> list[str]:
    return [re.sub(r"\s+", "", NUMBER.sub("#", line)).replace("-#", "#") for line in _lines(text)]


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not PROGRESS.match(line)]


def _numbers(line: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(line)]


if __name__ == "__main__":
    sys.exit(main())
