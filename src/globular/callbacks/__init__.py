"""Callbacks: watch a fit, save it as it goes, or end it.

An estimator calls them at the start of a fit, after every iteration and at the end; its fitted attributes are then
current. Steps before the first iteration over all rows count too, from the first centres on: see the record's stage.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from globular.callbacks.progress import Callback, Progress
from globular.errors import CheckpointWarning
from globular.model.history import Record
from globular.persistence import check_destination, save

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "Progress", "TimeBudget", "as_callbacks"]

_HOOKS = ("on_fit_start", "on_iteration", "on_fit_end")


class Checkpoint(Callback):
    """Save the model to a folder as the fit goes, and when it ends.

    To resume after a crash, ``globular.load(path)`` the last saved state, ``set_params(warm_start=True)`` and ``fit``.
    A checkpoint that cannot be written, on a full disk for example, does not end the fit: it gives a
    :class:`~globular.errors.CheckpointWarning`, and later checkpoints are tried.

    Parameters
    ----------
    path : path
        The model folder, see :func:`globular.save`.
    every_iterations : int, optional
        Iterations between two saves.
    every_seconds : float, optional
        Seconds between two saves. If neither argument is given, the model is saved every 300 seconds.
    include_labels : bool, default=True
        ``False`` leaves out ``labels_``, which resuming does not need.

    Examples
    --------
    >>> import globular
    >>> from globular.callbacks import Checkpoint
    >>> model = globular.KMeans(n_clusters=1000, callbacks=[Checkpoint("run-7", every_seconds=60)])
    """

    def __init__(
        self,
        path: str | Path,
        every_iterations: int | None = None,
        every_seconds: float | None = None,
        *,
        include_labels: bool = True,
    ) -> None:
        _check_positive("every_iterations", every_iterations)
        _check_positive("every_seconds", every_seconds)
        self.path = Path(path)
        self.every_iterations = every_iterations
        self.every_seconds = every_seconds
        self.include_labels = include_labels
        self._n_iterations = 0
        self._n_unsaved = 0
        self._last_time = 0.0
        self._failing = False

    def on_fit_start(self, estimator: Any, n_rows: int, max_iter: int | None, max_time: float | None) -> None:
        """Check at the start that the folder can be used."""
        check_destination(self.path)
        self._failing = False
        self._n_iterations = 0
        self._n_unsaved = 0
        self._last_time = time.perf_counter()

    def on_iteration(self, estimator: Any, record: Record) -> None:
        """Save if a checkpoint is due."""
        self._n_iterations += 1
        self._n_unsaved += 1
        seconds = 300.0 if self.every_seconds is None and self.every_iterations is None else self.every_seconds
        if (self.every_iterations is not None and self._n_unsaved >= self.every_iterations) or (
            seconds is not None and time.perf_counter() - self._last_time >= seconds
        ):
            self._save(estimator)

    def on_fit_end(self, estimator: Any, reason: str) -> None:
        """Save the final state; a fit without an iteration saves nothing."""
        if self._n_iterations:
            self._save(estimator)

    def _save(self, estimator: Any) -> None:
        try:
            save(estimator, self.path, include_labels=self.include_labels)
            self._failing = False
        except (OSError, ValueError) as error:
            if not self._failing:  # once is enough, until one has been written again
                message = f"checkpoint {self.path} could not be written, the fit goes on: {error}"
                warnings.warn(message, CheckpointWarning, stacklevel=2)
            self._failing = True
        self._n_unsaved = 0
        self._last_time = time.perf_counter()


class EarlyStopping(Callback):
    """End the fit when the objective stops improving.

    Parameters
    ----------
    min_relative_improvement : float, default=1e-4
        An iteration counts as better if it improves the best objective by more than this share of it.
    patience : int, default=3
        The fit ends after this number of iterations in a row without improvement.
    direction : {"auto", "min", "max"}, default="auto"
        Whether a smaller or a larger objective is better; ``"auto"`` takes ``"max"`` for a mixture (an
        estimator with ``lower_bound_``) and ``"min"`` otherwise.

    Examples
    --------
    >>> import globular
    >>> from globular.callbacks import EarlyStopping
    >>> model = globular.KMeans(n_clusters=100, callbacks=[EarlyStopping(1e-3, patience=2)])
    """

    def __init__(self, min_relative_improvement: float = 1e-4, patience: int = 3, *, direction: str = "auto") -> None:
        if not min_relative_improvement >= 0:
            raise ValueError(f"min_relative_improvement must be 0 or more, got {min_relative_improvement!r}")
        _check_positive("patience", patience)
        if direction not in ("auto", "min", "max"):
            raise ValueError(f"direction must be 'auto', 'min' or 'max', got {direction!r}")
        self.min_relative_improvement = min_relative_improvement
        self.patience = patience
        self.direction = direction
        self._best = math.nan
        self._stage = ""
        self._n_without = 0

    def on_fit_start(self, estimator: Any, n_rows: int, max_iter: int | None, max_time: float | None) -> None:
        """Forget the last fit."""
        self._best = math.nan
        self._n_without = 0

    def on_iteration(self, estimator: Any, record: Record) -> bool:
        """Compare with the best objective of the stage; steps before the first iteration are ignored."""
        if not record.iteration:
            return False
        if math.isnan(self._best) or record.stage != self._stage:
            self._best, self._stage, self._n_without = record.objective, record.stage, 0
            return False
        rising = self.direction == "max" or (self.direction == "auto" and hasattr(estimator, "lower_bound_"))
        gain = (record.objective - self._best) * (1 if rising else -1)
        if gain > self.min_relative_improvement * abs(self._best):
            self._best = record.objective
            self._n_without = 0
        else:
            self._n_without += 1
        return self._n_without >= self.patience


class TimeBudget(Callback):
    """End the fit after the first iteration that finishes past the budget.

    Parameters
    ----------
    seconds : float
        Wall time from the start of the fit.

    Examples
    --------
    >>> import globular
    >>> from globular.callbacks import TimeBudget
    >>> model = globular.KMeans(n_clusters=100, callbacks=[TimeBudget(30)])
    """

    def __init__(self, seconds: float) -> None:
        _check_positive("seconds", seconds)
        self.seconds = seconds

    def on_iteration(self, estimator: Any, record: Record) -> bool:
        """End the fit if the record's wall time has passed the budget."""
        return bool(record.wall_seconds >= self.seconds)


class _Adapter(Callback):
    """A function, or an object with some of the methods, as a callback."""

    def __init__(self, target: Any) -> None:
        if callable(target):
            self.on_iteration = target  # type: ignore[method-assign]
        for hook in _HOOKS:
            if hasattr(target, hook):
                setattr(self, hook, getattr(target, hook))


def as_callbacks(callbacks: object, verbose: int = 0) -> list[Callback]:
    """Return the estimator's `callbacks` parameter as a list; `verbose` > 0 adds :class:`Progress`.

    Examples
    --------
    >>> from globular.callbacks import TimeBudget, as_callbacks
    >>> as_callbacks(None, verbose=0)
    []
    >>> len(as_callbacks([TimeBudget(5), lambda estimator, record: record.objective < 1], verbose=1))
    3
    """
    if callbacks is None:
        given: list[object] = []
    elif isinstance(callbacks, Iterable) and not (isinstance(callbacks, str) or _is_callback(callbacks)):
        given = list(callbacks)
    else:
        given = [callbacks]
    result = [_as_callback(item) for item in given]
    if verbose > 0 and not any(isinstance(item, Progress) for item in result):
        result.append(Progress())
    return result


def _as_callback(item: object) -> Callback:
    if isinstance(item, type):
        raise TypeError(f"callbacks must be objects, got the class {item.__name__}; write {item.__name__}(...)")
    if isinstance(item, Callback):
        return item
    if _is_callback(item):
        return _Adapter(item)
    raise TypeError(
        "callbacks must be objects with on_fit_start, on_iteration or on_fit_end, or functions of "
        f"(estimator, record); got {type(item).__name__}"
    )


def _is_callback(item: object) -> bool:
    return callable(item) or any(callable(getattr(item, hook, None)) for hook in _HOOKS)


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (isinstance(value, int | float) and value > 0):
        raise ValueError(f"{name} must be a positive number, got {value!r}")
