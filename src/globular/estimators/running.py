"""How every estimator runs an algorithm: clock, history, callbacks, time budget, Ctrl-C.

An algorithm is a generator of steps and knows nothing of these. A `Fit` follows it, turns steps into records, keeps the
estimator's fitted attributes current and decides when to close the generator.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from globular.algorithms.steps import Step
from globular.callbacks import as_callbacks
from globular.errors import FitInterruptedWarning
from globular.model.history import History, Record

Model = TypeVar("Model")


class Fit:
    """One call of `fit`, begun at `started` on the performance counter, ended by `end`."""

    def __init__(
        self,
        estimator: Any,
        n_rows: int,
        *,
        max_iter: int | None,
        max_time: float | None,
        started: float,
        watched: bool = True,
    ) -> None:
        self.estimator = estimator
        self.n_rows = n_rows
        self.max_time = max_time
        self.n_distances = 0
        self.interrupted = False
        self._start = started
        self._callbacks = as_callbacks(estimator.callbacks, estimator.verbose)
        self._watched = watched or len(self._callbacks) > 0
        for callback in self._callbacks:
            callback.on_fit_start(estimator, n_rows, max_iter, max_time)

    @property
    def seconds(self) -> float:
        """Wall time since the fit began."""
        return time.perf_counter() - self._start

    def best_of(
        self,
        n_runs: int,
        begin: Callable[[], Iterator[Step[Model]]],
        publish: Callable[[Step[Model], History], None],
        finish: Callable[[str], float],
        error_per_row: Callable[[Step[Model]], float | None],
    ) -> Generator[Record, None, None]:
        """Follow several runs and leave the estimator with the attributes of the best one.

        `begin` seeds and starts a run, `finish` completes its attributes and returns its score, the higher the better.
        Whatever happens, the callbacks hear of the end. Ctrl-C keeps what is finished: the last iteration of the first
        run, or the best run before; if there is nothing yet to keep it is raised again.
        """
        best: tuple[float, dict[str, Any]] | None = None
        reason = "failed"
        try:
            for _ in range(n_runs):
                try:
                    reason = yield from self.follow(begin(), publish, error_per_row)
                    score = finish(reason)
                except KeyboardInterrupt:
                    reason = "interrupted"
                    if best is None:
                        raise
                    self.interrupted = True
                    break
                if best is None or score > best[0]:
                    best = score, {name: value for name, value in vars(self.estimator).items() if name.endswith("_")}
                if reason in ("interrupted", "max_time", "callback"):
                    break
            for name, value in best[1].items() if best else ():
                setattr(self.estimator, name, value)
            self.estimator.n_distances_ = self.n_distances
        except GeneratorExit:  # the user has left the loop over `fit_iter`
            reason = "left"
            raise
        finally:
            self.end(reason)

    def follow(
        self,
        steps: Iterator[Step[Model]],
        publish: Callable[[Step[Model], History], None],
        error_per_row: Callable[[Step[Model]], float | None],
    ) -> Generator[Record, None, str]:
        """Yield a record for every step, the attributes set by `publish` before; returns why it ended.

        Where nobody watches, only those of the last step are set: copying centres may cost more than a small batch.
        """
        history = History()
        reason, unseen = "", None
        while not reason:
            try:
                step = next(steps, None)
                if step is None:
                    break
                record = self._record(step, error_per_row(step))
                history.append(record)
                unseen = step
                if self._watched:
                    publish(step, history)
                    unseen = None
                asked = self._asked_to_stop(record)
                reason = step.stopped or asked
            except KeyboardInterrupt:
                if not history:
                    raise
                self.interrupted = True
                reason = "interrupted"
                break
            yield record
        if unseen is not None:
            publish(unseen, history)
        return reason

    def _record(self, step: Step[Any], quantization_error: float | None) -> Record:
        self.n_distances += step.n_distances
        return Record(
            step.iteration, self.seconds, step.objective, step.n_distances, step.n_changed, quantization_error
        )

    def _asked_to_stop(self, record: Record) -> str:
        # every callback sees every record, also when an earlier one asks to stop
        answers = [callback.on_iteration(self.estimator, record) for callback in self._callbacks]
        if any(isinstance(answer, (bool, np.bool_)) and answer for answer in answers):
            return "callback"
        if self.max_time is not None and self.seconds >= self.max_time:
            return "max_time"
        return ""

    def end(self, reason: str) -> None:
        """Tell the callbacks, and the user if the fit was cut short by Ctrl-C."""
        for callback in self._callbacks:
            callback.on_fit_end(self.estimator, reason)
        if self.interrupted:
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


def exhaust(records: Iterator[Record]) -> None:
    """Run a fit to its end."""
    for _ in records:
        pass
