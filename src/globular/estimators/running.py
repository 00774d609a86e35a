"""How every estimator runs an algorithm: clock, history, callbacks, time budget, Ctrl-C.

An algorithm is a generator of steps and knows nothing of these. A `Fit` follows it, turns steps into records, keeps the
estimator's fitted attributes current and decides when to close the generator.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from globular.algorithms.kmeans.line import OPTIMUM
from globular.algorithms.steps import Step
from globular.callbacks import as_callbacks
from globular.errors import FitInterruptedWarning, OverfitWarning
from globular.jit import compile_seconds
from globular.model.gaussian import GaussianParameters
from globular.model.history import PART, History, Record

Model = TypeVar("Model")
Result = TypeVar("Result")

INTERRUPTED = "interrupted"
GRACE = (1.05, 0.1)
"""A fit may exceed its `max_time` by this factor and by this many seconds more before a step is left out."""
MANY_THIN, THIN_SHARE = 50, 0.1
"""Components, and their share, that hold too few rows before a fit warns of it; larger = fewer warnings."""
SAME_PRESS_SECONDS = 1.0
"""Ctrl-C again within this time is the same one: a launcher passes it on to a process that has had it already."""


class Clock:
    """Wall time of a fit, with the compilation of kernels counted apart: the first fit of a kind waits for them.

    Runs from when it is made. What other processes compile, such as Dask's workers, is time of the fit to it.
    """

    __slots__ = ("_compiled_before", "_start")

    def __init__(self) -> None:
        self._start, self._compiled_before = time.perf_counter(), compile_seconds()

    @property
    def wall_seconds(self) -> float:
        """All of the time."""
        return time.perf_counter() - self._start

    @property
    def compile_seconds(self) -> float:
        """The part of it that went into compiling."""
        return compile_seconds() - self._compiled_before


class Fit:
    """One call of `fit`, begun when `clock` was made, ended by `end`."""

    def __init__(
        self,
        estimator: Any,
        n_rows: int,
        *,
        max_iter: int | None,
        max_time: float | None,
        clock: Clock,
        watched: bool = True,
        foretell: Callable[[], float] = lambda: 0.0,
        first_step: float = 1.0,
    ) -> None:
        """`foretell` says how many seconds it takes to finish from the first centres; asked where time is limited.

        The first iteration over all rows after those over a part takes `first_step` times as long as that.
        """
        self.estimator = estimator
        self.n_rows = n_rows
        self.max_time = max_time
        self.n_distances = 0
        self._interrupted_at: float | None = None
        self._clock = clock
        self._callbacks = as_callbacks(estimator.callbacks, estimator.verbose)
        self._watched = watched or len(self._callbacks) > 0 or max_time is not None
        self._foretell, self._first_step = cache(foretell), first_step
        self._last: tuple[Step[Any], Record]
        """The last step of a run and its record, once there is one."""
        for callback in self._callbacks:
            callback.on_fit_start(estimator, n_rows, max_iter, max_time)

    @property
    def seconds(self) -> float:
        """Wall time since the fit began."""
        return self._clock.wall_seconds

    def best_of(
        self,
        n_runs: int,
        begin: Callable[[], Iterator[Step[Model]]],
        publish: Callable[[Step[Model], History], None],
        finish: Callable[[str], float],
        error_per_row: Callable[[Step[Model]], float | None],
    ) -> Iterator[Record]:
        """Yield a record for every step of several runs, and leave the estimator with the attributes of the best one.

        `begin` seeds and starts a run, `publish` sets the attributes of a step, `finish` completes those of the last
        step and returns their score, the higher the better; both may be called again. Where nobody watches, only the
        last step is published: copying centres may cost more than a small batch. Whatever happens, the callbacks hear
        of the end. Ctrl-C keeps what is finished: the last iteration of a run, or the best run before; if there is
        nothing yet to keep it is raised again. So is a second one, which does not wait for `finish`.
        """
        best: tuple[float, dict[str, Any]] | None = None
        reason = "failed"
        try:
            for _ in range(n_runs):
                history = History()
                try:
                    if best is not None and self.max_time is not None and self._is_late(self._foretell()):
                        reason = "max_time"
                        break
                    reason = ""
                    for step in begin():
                        reason = self._take(step, history, publish, error_per_row(step))
                        yield history[-1]
                        if reason:
                            break
                except KeyboardInterrupt:
                    reason = INTERRUPTED
                    if not history and best is None:
                        raise
                    self._note_interrupt()
                    if not history:
                        break
                    if history[-1] is not self._last[1]:
                        history.append(self._last[1])
                if history and (reason == INTERRUPTED or not self._watched):
                    self._complete(partial(publish, self._last[0], history))
                score, reason = self._complete(partial(self._finish, finish, reason))
                if best is None or score > best[0]:
                    best = score, {name: value for name, value in vars(self.estimator).items() if name.endswith("_")}
                if reason in (INTERRUPTED, "max_time", "callback", OPTIMUM):
                    break
            if best is not None:
                self._complete(partial(self._restore, best[1]))
        except GeneratorExit:  # the user has left the loop over `fit_iter`
            reason = "left"
            raise
        except KeyboardInterrupt:
            reason = INTERRUPTED
            if best is not None:
                self._restore(best[1])
            raise
        finally:
            self.end(reason)

    def _take(
        self,
        step: Step[Model],
        history: History,
        publish: Callable[[Step[Model], History], None],
        quantization_error: float | None,
    ) -> str:
        """Put the record of a step into the history and set its attributes; why the run ends with it, or nothing."""
        before, record = self._last[1] if history else None, self._record(step, quantization_error)
        self._last = step, record
        history.append(record)
        if self._watched:
            publish(step, history)
        asked = self._asked_to_stop(before, record, step.next_rows)
        return step.stopped or asked

    def _finish(self, finish: Callable[[str], float], reason: str) -> tuple[float, str]:
        reason = INTERRUPTED if self._interrupted_at is not None else reason
        return finish(reason), reason

    def _restore(self, attributes: dict[str, Any]) -> None:
        """The attributes of the best run, beside what is true of all of them."""
        vars(self.estimator).update(attributes)
        self.estimator.n_distances_ = self.n_distances
        if self._interrupted_at is not None:
            self.estimator.stopped_ = INTERRUPTED

    def _complete(self, work: Callable[[], Result]) -> Result:
        """Do what a finished iteration still needs: Ctrl-C begins it anew, the second Ctrl-C ends it."""
        while True:
            try:
                return work()
            except KeyboardInterrupt:
                if self._interrupted_at is not None and self.seconds - self._interrupted_at > SAME_PRESS_SECONDS:
                    raise
                self._note_interrupt()

    def _note_interrupt(self) -> None:
        if self._interrupted_at is None:
            self._interrupted_at = self.seconds

    def _record(self, step: Step[Any], quantization_error: float | None) -> Record:
        self.n_distances += step.n_distances
        figures = step.objective, step.n_distances, step.n_changed, quantization_error
        compiling = self._clock.compile_seconds
        return Record(step.iteration, max(self.seconds - compiling, 0.0), *figures, step.stage, compiling)

    def _asked_to_stop(self, last: Record | None, record: Record, next_rows: int | None) -> str:
        # every callback sees every record, also when an earlier one asks to stop
        answers = [callback.on_iteration(self.estimator, record) for callback in self._callbacks]
        if any(isinstance(answer, (bool, np.bool_)) and answer for answer in answers):
            return "callback"
        if self.max_time is not None:
            step = 0.0 if last is None else record.seconds - last.seconds
            # an iteration over all rows takes as long as to label them, the first one maybe longer
            finish = step if record.labels_all_rows else self._foretell()
            longer = self._first_step if record.stage == PART else 1.0
            following = finish * (longer if next_rows is None else next_rows / self.n_rows)
            if self._is_late(finish + max(step, following)):
                return "max_time"
        return ""

    @property
    def seconds_left(self) -> float:
        """Seconds until the fit exceeds `max_time` and its grace, infinite without a limit."""
        factor, more = GRACE
        return np.inf if self.max_time is None else factor * self.max_time + more - self.seconds

    def _is_late(self, seconds: float) -> bool:
        """Whether the fit would exceed its time limit if it went on for `seconds`."""
        return self.max_time is not None and (self.seconds >= self.max_time or seconds > self.seconds_left)

    def end(self, reason: str) -> None:
        """Tell the callbacks, and the user if the fit was cut short by Ctrl-C."""
        for callback in self._callbacks:
            callback.on_fit_end(self.estimator, reason)
        if self._interrupted_at is not None:
            warn_user(
                "fit was interrupted; the model holds the state of the last finished iteration", FitInterruptedWarning
            )


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the user's own line, however many calls of ours or of scikit-learn lie between."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("globular.", "sklearn.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_of_thin(mixture: GaussianParameters, n_rows: int) -> None:
    """Say so if many components hold too few rows for their parameters."""
    C, least = mixture.n_components, mixture.family.least_rows(mixture.n_features)
    n_thin = int(np.count_nonzero(mixture.weights * n_rows < least))
    if n_thin >= max(MANY_THIN, THIN_SHARE * C):
        warn_user(
            f"{n_thin} of {C} components ({n_thin / C:.0%}) hold fewer than {least:.0f} rows, too few for a mean and a "
            f"covariance of type {mixture.covariance_type!r}: other rows will be less likely than these; take fewer "
            "components, a simpler covariance_type, or prior='auto'",
            OverfitWarning,
        )
