"""What the infinite mixtures share: the course of a fit, and what a fitted one answers."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.fields import CellOptions, Cells, Field, Rows
from globular.algorithms.infinite import (
    GROWN,
    SETTLED,
    InfiniteOptions,
    Mixture,
    components_at,
    infinite,
    one_component,
)
from globular.algorithms.steps import Step
from globular.backends.cpu import CpuShard, soft
from globular.backends.cpu.memory import mixture_bytes
from globular.backends.mapped import on_arrays
from globular.estimators.chunky_starts import chunky_bytes
from globular.estimators.distributed import lazily
from globular.estimators.fitted import check_common, checked_floats
from globular.estimators.infinite_priors import stick_prior
from globular.estimators.inputs import Input, mean_variance
from globular.estimators.mixture_starts import MEANS_METHODS
from globular.estimators.mixtures import MixtureEstimator, say_most, weighted_sum
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.history import History, Record
from globular.model.observations import Prior
from globular.model.statistics import F64, I64
from globular.model.sticks import Sticks
from globular.threads import even_ranges, resolve_threads, run_all

NESTED_COMPONENTS, FIXED_COMPONENTS = 1000, 20
"""What `max_components=None` comes to."""
MOST_ROWS = 2.0**53
"""Beyond, one row more is no longer another number."""
SMALLEST_LEAF, LARGEST_LEAF, MOST_LEAVES = 16, 512, 2048
_ROWS_AT_ONCE = 4096


class InfiniteEstimator(MixtureEstimator):
    """Base of the infinite mixtures: subclasses make the prior, publish a mixture and rebuild it from attributes."""

    accelerate: bool
    truncation: str
    max_components: int | None
    n_candidates: int | None
    n_split_candidates: int
    max_trial_rows: int | None
    splits: str
    min_split_gain: float
    min_component_weight: float
    concentration: Any
    tol: float
    init_params: str
    means_init: Any
    posterior_: dict[str, F64]
    prior_: dict[str, Any]

    weights = "learned"
    _weights_are_counts = True

    @abstractmethod
    def _prior(self, data: Input) -> Prior:
        """The prior that the parameters ask for."""

    @abstractmethod
    def _publish_posterior(self, mixture: Mixture) -> None:
        """Set the attributes of the components and the sticks."""

    @abstractmethod
    def _infinite(self) -> Mixture:
        """The mixture that the attributes hold."""

    def _begin(self, X: Any, sample_weight: Any, *, watched: bool) -> Iterator[Record]:
        self._validate_params()
        started = time.perf_counter()
        data = self._open(X, sample_weight, reset=True)
        mean_variance(data)  # for its check
        self._check_weights(data)
        self._check_fit(data)
        say_most(self._most_bytes(data))
        return self._run(data, None, started, watched)

    def _check_weights(self, data: Input) -> None:
        """Refuse weights that cannot be numbers of rows, which a Dirichlet process takes them for."""
        total = data.shard.total_weight
        if total > MOST_ROWS:
            raise ValueError(
                f"sample_weight adds up to {total:.3g}, and {type(self).__name__} takes weights for numbers of rows: "
                "beyond 2**53 these overflow what float64 can count; scale them, e.g. sample_weight / "
                "sample_weight.mean()"
            )

    def _most_bytes(self, data: Input) -> int:
        family = self._prior(data).covariance_type
        most = mixture_bytes(
            data.n_rows, data.n_columns, self._largest(data), family, n_threads=resolve_threads(self.n_threads)
        )
        kind = FAMILIES[family].scatter.by_column
        return most + chunky_bytes(data.n_rows, data.n_columns, leaf_size(data), kind) * self.accelerate

    def _check_fit(self, data: Input) -> None:
        stick_prior(self.concentration)
        self._prior(data)
        if self.n_candidates is not None and not self.accelerate:
            raise ValueError("n_candidates has a place with accelerate=True only; rows look at all components")
        if self.means_init is None:
            return
        if self.truncation != "fixed":
            raise ValueError("means_init has a place with truncation='fixed' only; a nested mixture begins with one")
        shape = np.shape(self.means_init)
        if shape != (self._largest(data), data.n_columns):
            raise ValueError(
                f"means_init has shape {shape}, expected {(self._largest(data), data.n_columns)}: "
                "one row for each of max_components"
            )

    def _largest(self, data: Input) -> int:
        if self.max_components is not None:
            return self.max_components
        return NESTED_COMPONENTS if self.truncation == "nested" else min(FIXED_COMPONENTS, data.n_rows)

    def _n_rows_wanted(self) -> int:
        return self.max_components or 1 if self.truncation == "fixed" else 1

    def _steps(
        self, data: Input, continued: GaussianParameters | None, random_state: np.random.RandomState
    ) -> Iterator[Step[Mixture]]:
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        prior = self._prior(data)
        closed = self.truncation == "fixed"
        options = InfiniteOptions(
            alpha=stick_prior(self.concentration),
            T_max=self._largest(data),
            n_candidates=self.n_split_candidates,
            accept="best" if self.splits == "best" else "all",
            gain=self.min_split_gain,
            smallest=self.min_component_weight,
            tol=self.tol,
            max_iter=self.max_iter,
            closed=closed,
        )
        field = self._field(data, prior, rng)
        start = components_at(field, self._means(data, rng), prior) if closed else one_component(field, prior)
        return infinite(field, prior, start, options, rng)

    def _field(self, data: Input, prior: Prior, rng: np.random.Generator) -> Field:
        max_rows = data.n_rows if self.max_trial_rows is None else self.max_trial_rows
        if not self.accelerate:
            return Rows(data.shard, max_rows, rng)
        options = CellOptions(
            leaf_size=leaf_size(data), C_prime=self.n_candidates, n_threads=resolve_threads(self.n_threads)
        )
        # families without second moments of columns take them from the cells when a component is split
        scatter = FAMILIES[prior.covariance_type].scatter.by_column
        return Cells(data.shard, scatter, options, max_rows, rng)

    def _means(self, data: Input, rng: np.random.Generator) -> F64:
        if self.means_init is not None:
            return np.asarray(self.means_init, dtype=np.float64)
        n = self._largest(data)
        if n > data.n_rows:
            raise ValueError(f"n_samples={data.n_rows} should be >= max_components={n} with truncation='fixed'.")
        return MEANS_METHODS[self.init_params](data.shard, n, rng)

    def _take_over(self, step: Step[Mixture]) -> GaussianParameters:
        return step.model.local

    def _publish(self, data: Input, step: Step[Mixture], history: History) -> None:
        self._publish_posterior(step.model)
        sticks = step.model.sticks
        self.weights_ = sticks.weights
        self.remaining_weight_ = sticks.remainder
        held = sticks.first - sticks.alpha[0]
        self.n_components_ = int((held >= 1.0).sum()) if sticks.closed else step.model.T
        self.converged_ = step.stopped in (GROWN, SETTLED)
        self.n_iter_ = len(history)
        self.history_ = history
        self.lower_bounds_ = [record.objective / data.shard.total_weight for record in history]
        self.lower_bound_ = self.lower_bounds_[-1]
        self.free_energy_ = -history[-1].objective
        self.n_distances_ = sum(record.n_distances for record in history)

    @lazily
    def predict(self, X: Any) -> I64:
        """The most likely component of every row, (n_samples,).

        A row that is most likely of a component not seen yet gets the closest of those that were.
        """
        check_is_fitted(self)
        infinite_mixture = self._infinite()
        seen = infinite_mixture.posterior.expected_mixture(infinite_mixture.sticks.log_weights)
        return self._per_row(X, lambda part, _: soft.most_likely(part, seen))

    @lazily
    def predict_proba(self, X: Any) -> F64:
        """The probability of every component given the row (Eq. 6), (n_samples, T).

        What a row lacks to one is the probability that it is of a component not seen yet.
        """
        check_is_fitted(self)
        found = self._per_row(X, soft.responsibilities, n_results=self._T + 1)
        return found[:, : self._T]

    @lazily
    def score_samples(self, X: Any) -> F64:
        """The log predictive density of every row (Eq. 10), (n_samples,)."""
        check_is_fitted(self)
        infinite_mixture = self._infinite()
        return self._per_row(X, lambda part, _: _predictive(part, infinite_mixture))

    def _check_state(self) -> None:
        D = check_common(self, "lower_bound_", "free_energy_", "n_components_", "remaining_weight_")
        mixture = self._infinite()
        try:
            regular = bool(np.isfinite(mixture.local.log_constants).all())
        except np.linalg.LinAlgError:
            regular = False
        if not regular:
            raise ValueError("posterior_ and prior_ are not those of a mixture: a scale is not positive; fit again")
        if not 0 <= self.n_components_ <= mixture.T:
            raise ValueError(f"n_components_={self.n_components_}, posterior_ holds {mixture.T}; fit again")
        weights = checked_floats(self.weights_, "weights_", (mixture.T,))
        sticks = mixture.sticks
        if not np.allclose([*weights, self.remaining_weight_], [*sticks.weights, sticks.remainder]):
            raise ValueError("weights_ and remaining_weight_ do not follow from posterior_; fit again")
        checked_floats(self.means_, "means_", (mixture.T, D))

    def _sticks(self) -> Sticks:
        """The sticks that the attributes hold."""
        alpha = checked_floats(self.prior_["sticks"], "prior_['sticks']", (2,), positive=True)
        both = checked_floats(self.posterior_["sticks"], "posterior_['sticks']", (None, 2), positive=True)
        return Sticks((float(alpha[0]), float(alpha[1])), both[:, 0], both[:, 1], closed=self.truncation == "fixed")

    @property
    def _T(self) -> int:
        return len(self.weights_)

    def _mixture(self) -> GaussianParameters:
        return self._infinite().local

    def _log_likelihood(self, data: Input) -> float:
        return sum(on_arrays(data.shard, weighted_sum, _predictive, self._infinite()))


def leaf_size(data: Input) -> int:
    """The deep end of a large tree is never reached: larger leaves save building it."""
    return min(max(SMALLEST_LEAF, data.n_rows // MOST_LEAVES), LARGEST_LEAF)


def _predictive(part: CpuShard, mixture: Mixture) -> F64:
    """log p(x | X) of every row."""
    scores = np.empty(part.n_rows)

    def score(block: tuple[int, int]) -> None:
        scores[slice(*block)] = mixture.log_predictive(part.take(np.arange(*block)))

    run_all(score, even_ranges(part.n_rows, _ROWS_AT_ONCE), part.n_threads)
    return scores
