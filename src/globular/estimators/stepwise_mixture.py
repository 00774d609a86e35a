"""Mixtures that learn from batches of rows, which are not kept."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state

from globular.algorithms.mixtures.em import EMOptions
from globular.algorithms.mixtures.stepwise import BatchCandidates, Learned, StepwiseResult, one_batch
from globular.estimators.checks import checked_floats
from globular.estimators.conditional import ConditionalMixture
from globular.estimators.inputs import Input, mean_variance
from globular.estimators.mixtures import N_CANDIDATES, MixtureEstimator
from globular.estimators.running import Clock
from globular.model.statistics import F64

EARLY_ROWS, EARLY_NUMBERS, N_REFITS = 256, 1 << 22, 3
"""Rows for each component, and numbers in all, up to which the first rows of a stream are kept, and how often they are
fitted: when they are a quarter, a half and all of that. Larger = fewer components in the wrong place, from more work.
With 128 rows 20 components of flow cytometry in 18 columns, in batches of 1,000, end 0.1 nats lower."""


class StepwiseMixture(MixtureEstimator):
    """Base of the mixtures with `partial_fit`."""

    decay: float
    counts_: F64

    @abstractmethod
    def _learn(self, data: Input, before: Learned) -> StepwiseResult:
        """The mixture after a batch."""

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """One batch of rows that are not kept: a density of rows that arrive one after the other, in one reading.

        The first call is a fit to its rows. Where they are fewer than 256 for each Gaussian they are kept
        (`early_rows_`), with those of the next calls, and fitted again until they reach that number. Each further call
        makes one E-step on its rows, and an M-step from these and all rows before, which count for less as time goes by
        (stepwise EM), or at the rate `decay`. Components do not appear or move across gaps then. From 500 Gaussians
        without correlations on a row looks at five of them, unless `algorithm` is "em". After `fit` it goes on from
        there; a mixture that was made from given parameters is a start without weight. There are no `labels_`;
        `lower_bound_` is the mean log-likelihood of the rows of the last call under the mixture before it, so that it
        tells of rows that are new to the mixture.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`; at least `n_components` rows in the first call, of any number afterwards.

        Examples
        --------
        >>> import numpy as np
        >>> from globular import GaussianMixture
        >>> random = np.random.default_rng(0)
        >>> model = GaussianMixture(n_components=2, random_state=0)
        >>> for _ in range(20):
        ...     rows = np.concatenate([random.normal(0, 1, (500, 1)), random.normal(9, 2, (500, 1))])
        ...     model = model.partial_fit(rows)
        >>> sorted(model.means_.ravel().round().tolist()), float(model.counts_.sum().round())
        ([0.0, 9.0], 20000.0)
        """
        self._validate_params()
        if getattr(self, "noise", False):
            raise ValueError("partial_fit does not go with noise=True; set noise=False, or call fit with all rows")
        if getattr(self, "prior", None) not in (None, "thin"):
            raise ValueError("partial_fit does not go with prior; set prior=None, or call fit with all rows")
        first = not hasattr(self, "means_")
        data = self._open(X, sample_weight, reset=first)
        if not first and len(self._mixture().means) != self.n_components:
            raise ValueError(
                f"n_components={self.n_components}: partial_fit goes on with {len(self.means_)} components; "
                "fit again for another number"
            )
        self._take_in(data, begins=first)
        self.__dict__.pop("labels_", None)  # of other rows than those seen
        return self

    def _take_in(self, data: Input, *, begins: bool) -> None:
        """Fit to the rows if that `begins` the stream, else add them."""
        if begins:
            deque(self._begin_with(data, Clock(), False), maxlen=0)
            return
        mixture = self._mixture()
        mean_variance(data)  # for its check
        before = Learned(mixture, self._checked_counts() / data.unit).faded(self.decay)
        found = self._learn(data, before)
        self._publish_mixture(found.learned.mixture, self.means_.dtype)
        self.counts_ = found.learned.counts * data.unit
        self.lower_bound_ = found.log_likelihood
        self.lower_bounds_ = [*getattr(self, "lower_bounds_", []), self.lower_bound_]
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        self.n_distances_ = getattr(self, "n_distances_", 0) + found.n_distances
        self.converged_ = False
        self._check_finite()

    def _checked_counts(self) -> F64:
        """What rows have left behind; nothing of a mixture that was made from parameters."""
        if not hasattr(self, "counts_"):
            return np.zeros(len(self.means_))
        counts = checked_floats(self.counts_, "counts_", (len(self.means_),))
        if counts.min() < 0:
            raise ValueError("counts_ must be at least 0; fit again")
        return counts

    def _check_state(self) -> None:
        super()._check_state()
        self._checked_counts()

    def _check_fit(self, data: Input) -> None:
        for name in ("counts_", "early_rows_", "early_weights_"):
            self.__dict__.pop(name, None)  # those of the last fit

    def _finish(self, data: Input) -> None:
        self.counts_ = self.weights_.astype(np.float64) * (data.shard.total_weight * data.unit)
        super()._finish(data)


class StepwiseGaussians(StepwiseMixture, ConditionalMixture):
    """Base of the mixtures of Gaussians with `partial_fit`."""

    @property
    @abstractmethod
    def _truncates(self) -> bool:
        """Whether a row of a batch looks at few components."""

    def _take_in(self, data: Input, *, begins: bool) -> None:
        """Rows are kept, and fitted again each time they have doubled, until they are enough to find components on."""
        early = self._with_early(data) if "early_rows_" in vars(self) else data
        n, enough = early.n_rows, min(EARLY_ROWS * self.n_components, EARLY_NUMBERS // data.n_columns)
        keeps = (begins or early is not data) and n < enough
        begins |= any(n - data.n_rows < enough / 2**halved <= n for halved in range(N_REFITS)) and early is not data
        super()._take_in(early if begins else data, begins=begins)
        if keeps:
            rows, weights = (np.asarray(early.shard.take(np.arange(n), what)) for what in ("rows", "weights"))
            self.early_rows_, self.early_weights_ = rows.astype(data.dtype), weights * data.unit

    def _with_early(self, data: Input) -> Input:
        """The rows of all calls so far."""
        rows = checked_floats(self.early_rows_, "early_rows_", (None, data.n_columns))
        weights = checked_floats(self.early_weights_, "early_weights_", rows.shape[:1], positive=True) / data.unit
        new = np.arange(data.n_rows)
        rows = np.concatenate([rows, np.asarray(data.shard.take(new))])
        weights = np.concatenate([weights, np.asarray(data.shard.take(new, "weights"))])
        return Input(data.shard.local(rows, weights), data.dtype, len(rows), data.n_columns, rows, unit=data.unit)

    def _learn(self, data: Input, before: Learned) -> StepwiseResult:
        options = EMOptions(reg_covar=self.reg_covar, learned_weights=self._learns_weights)
        return one_batch(data.shard, before, options, self._among() if self._truncates else None)

    def _among(self) -> BatchCandidates:
        """Candidates of a batch, drawn anew for each: by its number, which is kept with the model, and by the seed."""
        seed = check_random_state(self.random_state).randint(2**31, size=4)
        rng = np.random.default_rng([*seed, getattr(self, "n_iter_", 0)])
        return BatchCandidates(min(N_CANDIDATES, self.n_components), rng)
