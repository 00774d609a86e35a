"""What a fit has done so far: one small record per iteration, and the stages that iterations belong to.

A fit that prepares its iterations gives records from the first centres on. There are always as many centres as there
shall be in the end. The stages:

- "seeds": centres are drawn; those not yet drawn are filled up with rows;
- "k-means": steps of the k-means that a mixture starts with. The objective is the lower bound that the mixture of its
  centres has with equal weights and one variance for all;
- "part": swaps, or moves of components, and iterations on a part of the rows. The objective is that of the part, which
  estimates that of all. Few rows are their own part, and a record stands for many iterations;
- "swaps": iterations over all rows, after each of which centres move across gaps. A swap that was bad is undone in the
  next one, so the objective may rise for a while;
- "iterations": iterations over all rows, as the algorithm is known by. What needs no preparation has these alone.

Iterations over all rows, the last two, are counted from 1 on and label all rows; the records of the others have
iteration 0. Objectives may be compared within a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

SEEDS, KMEANS, PART, SWAPS, ITERATIONS = STAGES = "seeds", "k-means", "part", "swaps", "iterations"

_REPR_EDGE = 3


@dataclass(frozen=True, slots=True)
class Record:
    """One iteration of a fit.

    Attributes
    ----------
    iteration : int
        1 for the first iteration over all rows, 0 in the stages before.
    seconds : float
        Wall time since the start of the fit, without that spent compiling kernels.
    objective : float
        What the algorithm optimises, over all rows: the sum of squared distances for k-means
        (falling), the log-likelihood or its lower bound for mixtures (rising). An estimate in the stage "part".
    n_distances : int
        Distances evaluated in this iteration.
    n_changed : int or None
        Rows whose label changed in this iteration, where the algorithm knows.
    quantization_error : float or None
        Mean squared distance of a row to its closest centre, where the algorithm knows.
    stage : {"seeds", "k-means", "part", "swaps", "iterations"}
        What the iteration belongs to; see :mod:`globular.model.history`.
    compile_seconds : float
        Time spent compiling kernels since the start of the fit.
    """

    iteration: int
    seconds: float
    objective: float
    n_distances: int
    n_changed: int | None = None
    quantization_error: float | None = None
    stage: str = ITERATIONS
    compile_seconds: float = 0.0

    @property
    def wall_seconds(self) -> float:
        """All the time since the start of the fit."""
        return self.seconds + self.compile_seconds

    @property
    def labels_all_rows(self) -> bool:
        """Whether the iteration has labelled all rows, or was one of the preparations that do not."""
        return self.iteration > 0


_FIELD_NAMES = tuple(field.name for field in fields(Record))


class History(Sequence[Record]):
    """The records of a fit in order; a read-only sequence for everyone but the fit itself.

    Examples
    --------
    >>> from globular.model.history import History, Record
    >>> history = History()
    >>> history.append(Record(iteration=1, seconds=0.1, objective=20.0, n_distances=300))
    >>> history.append(Record(iteration=2, seconds=0.2, objective=10.0, n_distances=600))
    >>> history[-1].objective
    10.0
    >>> history.column("n_distances")
    array([300, 600])
    """

    __slots__ = ("_records",)

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._records: list[Record] = []
        for record in records:
            self.append(record)

    def append(self, record: Record) -> None:
        """Add the record of the iteration that has just ended."""
        if not isinstance(record, Record):
            raise TypeError(f"record must be a globular Record, got {type(record).__name__}")
        self._records.append(record)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    def __getitem__(self, index: int | slice) -> Record | History:
        if isinstance(index, slice):
            return History(self._records[index])
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __eq__(self, other: object) -> bool:
        return self._records == other._records if isinstance(other, History) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        if not self._records:
            return "History(no records)"
        lines = [_repr_line(record) for record in self]
        if len(lines) > 2 * _REPR_EDGE + 1:
            lines[_REPR_EDGE:-_REPR_EDGE] = [f"{'…':>20}"]
        return "\n".join([f"History({len(self)} records)", _REPR_HEAD, *lines])

    @property
    def iterations(self) -> History:
        """The records of iterations over all rows, without those of what came before."""
        return History(record for record in self._records if record.labels_all_rows)

    @property
    def stage_seconds(self) -> dict[str, float]:
        """Time of every stage without compiling, in the order they began."""
        seconds: dict[str, float] = {}
        before = 0.0
        for record in self._records:
            seconds[record.stage] = seconds.get(record.stage, 0.0) + record.seconds - before
            before = record.seconds
        return seconds

    def column(self, name: str) -> NDArray[np.generic]:
        """Return one field of all records as an array; a value that is not known becomes NaN."""
        if name not in _FIELD_NAMES:
            raise ValueError(f"name must be one of {', '.join(_FIELD_NAMES)}; got {name!r}")
        values = [getattr(record, name) for record in self._records]
        if name == "stage":
            return np.array(values, dtype=np.str_)
        if any(value is None for value in values):
            return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        whole_numbers = name in ("iteration", "n_distances", "n_changed")
        return np.array(values, dtype=np.int64 if whole_numbers else np.float64)

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with one row per iteration (needs pandas)."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("History.to_pandas needs pandas; install it with: pip install pandas") from error
        return pandas.DataFrame({name: self.column(name) for name in _FIELD_NAMES})

    def to_json_rows(self) -> list[dict[str, int | float | str | None]]:
        """Return plain dictionaries of plain Python values, one per record."""
        return [
            {name: value.item() if isinstance(value, np.generic) else value for name, value in asdict(record).items()}
            for record in self._records
        ]

    @classmethod
    def from_json_rows(cls, rows: Iterable[Mapping[str, int | float | str | None]]) -> History:
        """Build a history from what :meth:`to_json_rows` returned; unknown keys are an error."""
        history = cls(Record(**row) for row in rows)  # type: ignore[arg-type]  # the JSON decides the types
        for name in _FIELD_NAMES:
            values = [getattr(record, name) for record in history]
            if name == "stage":
                if strange := [value for value in values if value not in STAGES]:
                    raise ValueError(f"history: stage must be one of {', '.join(STAGES)}; got {strange[0]!r}")
                continue
            unknown = (None,) if name in ("n_changed", "quantization_error") else ()
            if not all(value in unknown or type(value) in (int, float) for value in values):
                raise TypeError(f"history: {name} must be a number")
            history.column(name)  # an error where a number does not fit
        return history


_REPR_HEAD = f"{'stage':<10} {'iteration':>9} {'seconds':>10} {'objective':>14} {'n_distances':>14} {'n_changed':>10}"


def _repr_line(record: Record) -> str:
    changed = "" if record.n_changed is None else f"{record.n_changed:,}"
    return (
        f"{record.stage:<10} {record.iteration:>9} {record.seconds:>10.3f} {record.objective:>14.7g} "
        f"{record.n_distances:>14,} {changed:>10}"
    )
