"""What all mixture estimators share: the course of a fit. What a fitted one answers is in `mixture_answers`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from globular.algorithms.infinite import infinite
from globular.algorithms.kmeans import variational
from globular.algorithms.mixtures import chunky, em, nested
from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.steps import Step, in_units, mapped, result_of
from globular.estimators.inputs import Input, mean_variance
from globular.estimators.memory import check_allocation, mixture_bytes
from globular.estimators.mixture_answers import MixtureAnswers
from globular.estimators.mixture_starts import GivenStart
from globular.estimators.parameters import AUTO, FROM_ONE, FROM_ZERO, NOT_NEGATIVE, Constraints
from globular.estimators.running import Fit, warn_user
from globular.estimators.starts import continues, filled_up, spare_centers
from globular.model.clock import Clock
from globular.model.covariances import CovarianceLimits
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.history import KMEANS, SEEDS, History, Record
from globular.model.statistics import F64
from globular.seam.passes import Labels
from globular.seam.shard import Shard, answer
from globular.threads import resolve_threads

CONVERGED = frozenset(
    {em.CONVERGED, em.ROUNDED, variational.CONVERGED, *chunky.ENDINGS, infinite.GROWN, infinite.CONVERGED}
) | {nested.ENOUGH}
"""Reasons to stop that make `converged_` true."""
N_CANDIDATES = 5
"""C′ where it is not given."""
_BEYOND = "X: a mean or a covariance overflows float64; scale the columns of X to similar sizes, about 1"
"""What a fit says that has ended in nothing."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an algorithm."""

    steps: Iterator[Step[Any]]
    start: Any = None
    """The mixture it starts with, for a fit that may end before the first step."""


Starting = Generator[Step[Any], None, Run]
"""What finds the start of a run: it shows the means that k-means has so far, or a mixture already."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """Means while a start is found, fewer than there shall be or all of them, with one variance for all."""

    means: F64
    variance: float


class MixtureEstimator(MixtureAnswers):
    """Base of the mixtures: subclasses say how a run begins (`_start`), and may take more than the mixture from it."""

    _parameter_constraints: ClassVar[Constraints] = {
        **MixtureAnswers._parameter_constraints,
        "n_components": [FROM_ONE],
        "reg_covar": [NOT_NEGATIVE, AUTO],
        "max_iter": [FROM_ZERO],
        "n_init": [FROM_ONE],
        "warm_start": ["boolean"],
    }
    _on_cards = "GaussianMixture"

    @property
    def _card_bytes_per_row(self) -> int:
        # K(n), its shares and their order, and nominees from a few cells
        n_candidates = getattr(self, "n_candidates", N_CANDIDATES)
        return super()._card_bytes_per_row + 64 * (n_candidates if isinstance(n_candidates, int) else N_CANDIDATES)

    @abstractmethod
    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Starting:
        """Find a start, as far as it is not given, and begin one run of the algorithm."""

    def _take_over(self, model: Any) -> GaussianParameters:
        """The mixture of a step's model; may set attributes that are not part of it."""
        return model if isinstance(model, GaussianParameters) else cast(GaussianParameters, model.mixture)

    def _isotropic(self, means: F64, variance: float) -> Any:
        """The mixture that a start stands for while it is found: equal weights and one variance."""
        return isotropic_mixture(means, variance, self.covariance_type)

    def _check_fit(self, data: Input) -> None:
        """Refuse parameters that do not go with the data or with each other."""

    def _check_rows(self, data: Input) -> None:
        """Refuse too few rows."""
        if data.n_rows < self.n_components:
            raise ValueError(
                f"n_samples={data.n_rows} should be >= n_components={self.n_components}; ask for fewer components"
            )

    def _given(self, data: Input) -> GivenStart:
        """The parts of a start that the parameters hold."""
        return GivenStart(self.covariance_type)

    def _begin(self, X: Any, sample_weight: Any, *, watched: bool) -> Iterator[Record]:
        self._validate_params()
        return self._begin_with(self._open(X, sample_weight, reset=True), Clock(), watched)

    def _begin_with(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        """Check what is left, and start."""
        self._check_rows(data)
        return self._run(data, clock, watched)

    def _checked_start(self, data: Input) -> GivenStart:
        """What is known of the start, after the checks that look at rows."""
        mean_variance(data)  # for its check
        self._check_fit(data)
        given = self._given(data)
        if continues(self, "means_"):
            given = self._last_fit(data)
        n_bytes = self._most_bytes(data)
        if n_bytes is not None:
            check_allocation(0, "the fit, beside X", "take fewer components", at_most=n_bytes)
        return given

    def _last_fit(self, data: Input) -> GivenStart:
        """Where the last fit ended."""
        mixture = self._mixture()
        if mixture.means.shape != (self.n_components, data.n_columns):
            raise ValueError(
                f"warm_start: the last fit had means of shape {mixture.means.shape}, this one needs "
                f"{(self.n_components, data.n_columns)}; set warm_start=False to begin anew"
            )
        return GivenStart.last_fit(mixture, self.lower_bound_)

    def _most_bytes(self, data: Input) -> int | None:
        """The most memory that a fit takes beside X; None where it is said later."""
        return mixture_bytes(
            data.n_rows, data.n_columns, self.n_components, self.covariance_type,
            n_threads=resolve_threads(self.n_threads),
        )  # fmt: skip

    def _run(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        """All runs of a fit, the best of which is kept."""
        random_state = check_random_state(self.random_state)
        limits = cache(lambda: covariance_limits(data.shard, EMOptions(reg_covar=self.reg_covar)))
        fit = Fit(self, data.n_rows, max_iter=self.max_iter, max_time=self.max_time, clock=clock, watched=watched)

        def begin(given: GivenStart) -> Iterator[Step[Any]]:
            self.__dict__.pop("labels_", None)  # those of the last fit
            starting = self._start(data, given, random_state)
            if self.max_iter == 0:
                run = result_of(starting)
            else:
                run = yield from mapped(starting, partial(self._preparing, data, limits))
            if run.start is not None:
                self._publish_mixture(run.start, data.dtype)
                self._publish_course(data, History(), "")
            yield from run.steps

        def finish(reason: str) -> float:
            self.stopped_ = reason or "max_iter"
            self._check_finite()
            self._finish(data)
            return self.lower_bound_

        try:
            given = self._checked_start(data)
            yield from fit.best_of(
                1 if given.continues else self.n_init,
                lambda: in_units(begin(given), data.unit),
                partial(self._publish, data, cache(lambda: spare_centers(data, self.n_components))),
                finish,
                lambda step: None,
            )
        except np.linalg.LinAlgError as error:
            raise ValueError(f"{_BEYOND} ({error})") from error
        if self.stopped_ == "max_iter" and self.max_iter > 0:
            warn_user(
                "Best performing initialization did not converge. Try different init parameters, or increase max_iter, "
                f"tol, or check for degenerate data. It took max_iter={self.max_iter} iterations.",
                ConvergenceWarning,
            )

    def _finish(self, data: Input) -> None:
        """Set what a run ends with."""
        self.labels_ = data.answers(self._label)

    def _label(self, shard: Shard) -> Labels:
        """The most likely component of every row."""
        return np.asarray(answer(shard, self._mixture(), "components"), dtype=np.int32)

    def _check_finite(self) -> None:
        """Refuse to hand out what is not a mixture."""
        found = [self.weights_, self.means_, getattr(self, "covariances_", 0.0)]
        if not all(np.isfinite(values).all() for values in found) or np.isnan(self.lower_bound_):
            raise ValueError(_BEYOND)

    def _preparing(self, data: Input, limits: Callable[[], CovarianceLimits], step: Step[Any]) -> Step[Any]:
        """A step of the k-means that finds a start, as one of the mixture; steps of a mixture stay as they are.

        Its objective is a lower bound of the log-likelihood of equal weights and one variance σ² = E / (W D), E the sum
        of squared distances: of each row's density the part of its own component,
        −W (log C + D/2 log 2πσ²) − E / 2σ².
        """
        if isinstance(step.model, GaussianParameters):
            return step
        W, C, D, E = data.shard.total_weight, self.n_components, data.n_columns, step.objective
        variance = max(E / (W * D), float(np.mean(limits().reg_covar)), float(limits().smallest.mean()))
        bound = -W * (math.log(C) + 0.5 * D * math.log(2 * math.pi * variance)) - 0.5 * E / variance
        stage = SEEDS if step.stage == SEEDS else KMEANS
        return Step(0, bound, step.n_distances, None, Preparation(step.model, variance), stage=stage)

    def _publish(self, data: Input, spare: Callable[[], F64], step: Step[Any], history: History) -> None:
        if isinstance(step.model, Preparation):
            means = filled_up(step.model.means, self.n_components, spare)
            mixture: Any = self._isotropic(means, step.model.variance)
        else:
            mixture = self._take_over(step.model)
        self._publish_mixture(mixture, data.dtype)
        self._publish_course(data, history, step.stopped)

    def _publish_mixture(self, mixture: GaussianParameters, dtype: np.dtype[Any]) -> None:
        """The parameters in the type of the rows; covariances too close to singular for float32 stay in float64."""
        mixture = mixture.as_numpy()
        self.weights_ = mixture.weights.astype(dtype)
        self.means_ = mixture.means.astype(dtype)
        if dtype == np.float32 and not mixture.family.survives(mixture.covariances, dtype):
            dtype = np.dtype(np.float64)
        self.covariances_ = mixture.covariances.astype(dtype)
        self._last_mixture = mixture

    def _publish_course(self, data: Input, history: History, stopped: str) -> None:
        self.converged_ = stopped in CONVERGED
        self.n_iter_ = history[-1].iteration if history else 0
        self.history_ = history
        bounds = [record.objective / data.unit / data.shard.total_weight for record in history]
        self.lower_bounds_ = [bound for bound, record in zip(bounds, history, strict=True) if record.iteration]
        self.lower_bound_ = bounds[-1] if history else -np.inf
        self.n_distances_ = sum(record.n_distances for record in history)
