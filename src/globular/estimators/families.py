"""What mixtures of directions, of counts, and of zeros and ones share: one course of a fit, and its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from globular.algorithms.mixtures.exponential import (
    SEEDINGS,
    ExponentialOptions,
    em_exponential,
    pseudo_rows,
    search_start,
    start_from_means,
)
from globular.algorithms.steps import Step
from globular.estimators.fitted import check_common, check_components, check_indices, checked_floats
from globular.estimators.inputs import Input, open_input
from globular.estimators.memory import mixture_bytes
from globular.estimators.mixture_starts import GivenStart, checked_shape
from globular.estimators.mixtures import MixtureEstimator, Run, Starting
from globular.estimators.parameters import POSITIVE, Constraints, one_of
from globular.model.covariances import CovarianceLimits
from globular.model.exponential import ExponentialMixture
from globular.model.history import History
from globular.model.statistics import F64
from globular.seam.mixture_passes import Survey
from globular.threads import resolve_threads

_STANDS_FOR = "tied_spherical"
"""The Gaussians that take as much memory: they have no second moments either."""


@dataclass(eq=False, repr=False)
class FamilyMixture(MixtureEstimator):
    """Base of mixtures with one linear E-step: a subclass names its family, and what users shall know of it."""

    n_components: int = 1
    _: KW_ONLY
    smoothing: float = 1e-3
    weights: str = "learned"
    tol: float = 1e-3
    max_iter: int = 100
    max_time: float | None = None
    n_init: int = 1
    init_params: str = "kmeans"
    means_init: Any = None
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None

    _parameter_constraints: ClassVar[Constraints] = {
        **{name: rules for name, rules in MixtureEstimator._parameter_constraints.items() if name != "reg_covar"},
        "smoothing": [POSITIVE],
        "weights": [one_of("learned", "equal")],
        "init_params": [one_of(*SEEDINGS)],
        "means_init": ["array-like", None],
    }
    _family: ClassVar[type[ExponentialMixture]]
    covariance_type = _STANDS_FOR

    @property
    def _learns_weights(self) -> bool:
        return self.weights == "learned"

    def _open(self, X: Any, sample_weight: Any, *, reset: bool) -> Input:
        data = open_input(
            self, X, sample_weight, reset=reset, unit_rows=self._family.unit_rows, n_threads=self.n_threads,
            at_least=self.n_components if reset else 1,
        )  # fmt: skip
        if not reset and data.matrix is not None:
            self._check_values(data)
        return data

    def _check_values(self, data: Input) -> float:
        """Refuse rows that the family does not take; returns Σ w log h(x)."""
        found = data.shard.run(Survey(self._family))
        if found.n_invalid:
            first = found.first if data.left_out is None else data.left_out.counted[found.first]
            place = f", first in row {first} (the first row is 0)"
            raise ValueError(self._family.invalid.format(n=found.n_invalid, name=type(self).__name__, place=place))
        return found.log_base

    def _check_fit(self, data: Input) -> None:
        self._log_base = self._check_values(data)

    def _most_bytes(self, data: Input) -> int | None:
        return mixture_bytes(
            data.n_rows, data.n_columns, self.n_components, _STANDS_FOR, n_threads=resolve_threads(self.n_threads)
        )

    def _given(self, data: Input) -> GivenStart:
        if self.means_init is None:
            return GivenStart(_STANDS_FOR)
        shape = self.n_components, data.n_columns
        return GivenStart(_STANDS_FOR, means=checked_shape(self.means_init, shape, "means_init", "means"))

    def _last_fit(self, data: Input) -> GivenStart:
        found = self._mixture()
        if found.means.shape != (self.n_components, data.n_columns):
            raise ValueError(
                f"warm_start: the last fit had means of shape {found.means.shape}, this one needs "
                f"{(self.n_components, data.n_columns)}; set warm_start=False to begin anew"
            )
        return GivenStart(_STANDS_FOR, found.weights, found.means, continues=True, bound=self.lower_bound_)

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Starting:
        shard, family = data.shard, self._family
        options = ExponentialOptions(
            pseudo_rows(shard, family, self.smoothing, self.n_components), self.max_iter, self.tol,
            self._learns_weights, self._log_base, given.bound,
        )  # fmt: skip
        if given.continues:
            start = self._mixture()
        elif given.means is not None:
            start = start_from_means(shard, family, given.means, options)
        else:
            rng = np.random.default_rng(random_state.randint(2**31, size=4))
            start = yield from search_start(shard, family, self.n_components, self.init_params, options, rng)
        return Run(em_exponential(shard, start, options), start)

    def _preparing(self, data: Input, limits: Callable[[], CovarianceLimits], step: Step[Any]) -> Step[Any]:
        return step

    def _publish(self, data: Input, spare: Callable[[], F64], step: Step[Any], history: History) -> None:
        self._publish_mixture(step.model, data.dtype)
        self._publish_course(data, history, step.stopped)

    def _publish_mixture(self, mixture: Any, dtype: np.dtype[Any]) -> None:
        """The parameters in the type of the rows, or in float64 where that would make them what they may not be."""
        for name, values in mixture.arrays.items():
            setattr(self, f"{name}_", _in_type(values, dtype))

    def _check_finite(self) -> None:
        """Refuse to hand out what is not a mixture."""
        mixture = self._mixture()
        if not np.isfinite(mixture.linear.slopes).all() or np.isnan(self.lower_bound_):
            raise ValueError("X: a mean overflows float64; scale the columns of X to similar sizes")

    def _mixture(self) -> Any:
        """The fitted mixture."""
        means = checked_floats(self.means_, "means_", (None, self.n_features_in_))
        return self._family(**self._checked(means))

    def _checked(self, means: F64) -> dict[str, F64]:
        """The arrays of the family, checked."""
        return {"weights": checked_floats(self.weights_, "weights_", means.shape[:1]), "means": means}

    def _check_state(self) -> None:
        """Refuse fitted attributes that do not go together; what has been read from a file may be anything."""
        check_common(self, "lower_bound_")
        mixture = self._mixture()
        check_components(self.n_components, mixture.weights)
        with np.errstate(all="ignore"):
            linear = mixture.linear
        if not (np.isfinite(linear.slopes).all() and np.isfinite(mixture.log_normalisers).all()):
            raise ValueError(f"means_ are not those of a {type(self).__name__}; fit again")
        if hasattr(self, "labels_"):
            check_indices(self.labels_, "labels_", (None,), self.n_components)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _in_type(values: F64, dtype: np.dtype[Any]) -> F64:
    """In a type of rows, unless a number between zero and one would become one of them."""
    found = values.astype(dtype)
    edges = (0.0, 1.0)
    changed = any(((found == edge) != (values == edge)).any() for edge in edges)
    return values if changed and dtype != values.dtype else found
