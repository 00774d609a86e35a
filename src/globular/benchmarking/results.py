"""The row of a results file: its columns, how it is written and read back."""

from __future__ import annotations

import csv
import io
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from globular._version import __version__
from globular.errors import DataError
from globular.io.files import write_whole


@dataclass(frozen=True)
class Machine:
    """Where and when a benchmark ran."""

    date: str
    machine: str
    python: str
    globular_version: str
    commit: str


@dataclass(frozen=True)
class Row(Machine):
    """One run, or the reason why there was none; the field names are the columns of the CSV file."""

    problem: str
    n_samples: int
    n_features: int
    n_clusters: int
    adapter: str
    settings: str
    distribution: str
    version: str
    exact: bool
    ours: bool
    all_rows: bool
    start: str
    threads: int
    n_iter: int
    seed: int
    repeat: int
    status: str
    seconds: float
    error: float
    peak_mib: float
    data_mib: float
    message: str


COLUMNS = tuple(field.name for field in fields(Row))


def describe_machine() -> Machine:
    """Date, processor, versions, and the commit when the library runs out of a repository."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    machine = f"{_processor()}, {os.cpu_count()} CPUs, {platform.system()}"
    return Machine(now, machine, platform.python_version(), __version__, commit_id(Path(__file__).resolve().parents[3]))


def commit_id(root: Path) -> str:
    """The commit that HEAD points to, read from the repository's files; empty where there is none."""
    folder = root / ".git"
    try:
        if folder.is_file():  # a linked work tree
            folder = (root / folder.read_text().split("gitdir:")[1].strip()).resolve()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        reference = head.removeprefix("ref: ")
        common = folder / "commondir"
        shared = (folder / common.read_text().strip()).resolve() if common.is_file() else folder
        if (shared / reference).is_file():
            return (shared / reference).read_text().strip()
        packed = (shared / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), "")
    except (OSError, IndexError):
        return ""


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write the file whole or not at all."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_whole(path, lambda file: file.write(text.getvalue().encode()))


def read_rows(path: Path) -> list[Row]:
    """Read what `write_rows` wrote."""
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise DataError(f"{path} is not a results file of this version; run the benchmark again")
            return [_typed(record) for record in reader]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _typed(record: dict[str, str]) -> Row:
    """Strings of one line turned into the types of the fields."""
    converters: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": "True".__eq__}
    return Row(**{field.name: converters[str(field.type)](record[field.name]) for field in fields(Row)})


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or sys.platform
