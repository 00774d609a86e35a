"""What the infinite mixtures share: their priors, the course of a fit, and what a fitted one answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.infinite.data import CellData, CellOptions, RowData
from globular.algorithms.infinite.infinite import (
    InfiniteOptions,
    Mixture,
    components_at,
    draw_part,
    infinite,
    infinite_from_part,
    one_component,
)
from globular.algorithms.mixtures.starts import MEANS_METHODS
from globular.algorithms.steps import Finding, Run, Step, result_of
from globular.estimators.checks import (
    check_common,
    check_indices,
    checked_floats,
    chunky_bytes,
    mixture_bytes,
    positive_number,
    rows_to_draw,
)
from globular.estimators.elsewhere import lazily
from globular.estimators.inputs import Input
from globular.estimators.mixtures import MixtureEstimator
from globular.estimators.parameters import FROM_ONE, NOT_NEGATIVE, POSITIVE, Constraints, Number, one_of
from globular.estimators.starts import checked_shape
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.dirichlet import StickPrior, Sticks
from globular.model.gaussian import GaussianParameters, draw_by_component
from globular.model.given import GivenStart
from globular.model.history import History
from globular.model.observations import ObservedMoments, Prior
from globular.model.statistics import F64, I64
from globular.model.wishart import KINDS, GaussianPrior
from globular.seam.among import Need
from globular.seam.shard import Shard
from globular.threads import resolve_threads

_PARTS = ("mean", "mean_precision", "degrees_of_freedom", "covariance")
LEAST_SCALE = 1e-6
"""How far the fitted scale of the covariance prior may fall below the variance of the data."""
NESTED_COMPONENTS, FIXED_COMPONENTS = 1000, 20
"""What `max_components=None` comes to."""
MOST_WEIGHT = 2.0**53
"""Beyond, one row more is no longer another number."""
POLISHING_STEPS, TIMES_SOWN = 60, 2
SMALLEST_LEAF, LARGEST_LEAF, MOST_LEAVES = 16, 512, 2048


def stick_prior(concentration: Any, discount: float) -> StickPrior:
    """The prior of the sticks from one number or two, or a Gamma prior, and a discount."""
    if isinstance(concentration, str | Mapping):
        if discount:
            raise ValueError(f"discount={discount} needs a number for concentration, not a Gamma prior of it")
        given = {} if isinstance(concentration, str) else concentration
        shape, rate = (given.get(name, 1.0) for name in ("shape", "rate"))
        positive = all(isinstance(value, Real) and 0 < float(value) < np.inf for value in (shape, rate))
        if not positive or set(given) - {"shape", "rate"}:
            raise ValueError(
                f"concentration={dict(given)!r}: a Gamma prior has a positive 'shape' and a positive 'rate'"
            )
        shape, rate = float(shape), float(rate)
        return StickPrior(1.0, shape / rate, gamma=(shape, rate))
    pair = (1.0, concentration) if isinstance(concentration, Real) else tuple(concentration)
    if len(pair) != 2 or not all(isinstance(value, Real) and 0 < float(value) < np.inf for value in pair):
        raise ValueError(f"concentration={concentration!r} must be a positive number, or two of them")
    if not discount < pair[0]:
        raise ValueError(f"discount={discount} must be less than the first number of concentration, {pair[0]}")
    return StickPrior(float(pair[0]), float(pair[1]), float(discount))


def gaussian_prior(shard: Shard, covariance_type: str, given: Mapping[str, Any]) -> GaussianPrior:
    """The Gaussian–Wishart or normal–gamma prior, by what a user gave of it."""
    unknown = sorted(set(given) - set(_PARTS))
    if unknown:
        raise ValueError(f"prior has no part {unknown[0]!r}; its parts are {', '.join(map(repr, _PARTS))}")
    column_means, variances = shard.column_moments()
    D = len(column_means)
    kind, family = KINDS[covariance_type], FAMILIES[covariance_type]
    least = kind.least_degrees(D)
    m = checked_shape(given.get("mean", column_means), (D,), "prior['mean']")
    beta = positive_number("prior['mean_precision']", given.get("mean_precision", 0.01))
    nu = positive_number("prior['degrees_of_freedom']", given.get("degrees_of_freedom", least + 3))
    if nu <= least:
        raise ValueError(f"prior['degrees_of_freedom']={nu} must be greater than n_features - 1 = {least}")
    if "covariance" not in given:
        # a constant column gets a tiny variance of its own
        floor = CovarianceLimits.for_data(0.0, column_means, variances).smallest
        S = nu * np.maximum(variances, floor)
        fits_beta = "mean_precision" not in given
        own = np.where(variances < floor, floor, 0.0) if (variances < floor).any() else None
        return GaussianPrior(kind, beta, m, nu, family.scatter.diagonal(S), LEAST_SCALE * S, fits_beta, own)
    S = checked_shape(given["covariance"], family.scatter.entry(D), "prior['covariance']")
    if not family.is_positive(S):
        raise ValueError(f"prior['covariance'] must be {family.requirement}")
    return GaussianPrior(kind, beta, m, nu, S)


class InfiniteEstimator(MixtureEstimator):
    """Base of the infinite mixtures: subclasses make the prior, publish a mixture and rebuild it from attributes."""

    _constraints: ClassVar[Constraints] = {
        "min_split_gain": [NOT_NEGATIVE],
        "min_component_weight": [NOT_NEGATIVE],
        "concentration": [POSITIVE, tuple, list, one_of("gamma"), dict],
        "discount": [Number(Real, 0, 1, closed="left")],
        "max_iter": [FROM_ONE],
        "tol": [POSITIVE],
        "init_params": [one_of(*MEANS_METHODS), "array-like"],
    }
    accelerate: bool
    truncation: str
    max_components: int | None
    n_candidates: int | None
    accept_splits: str
    min_split_gain: float
    min_component_weight: float
    concentration: Any
    discount: float
    tol: float
    init_params: Any
    posterior_: dict[str, F64]
    prior_: dict[str, Any]

    _derived: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"), "posterior_"
    )
    _polishes = False
    """Whether a nested fit ends with steps of EM by predictive densities."""
    _weights_are_counts = True

    @abstractmethod
    def _prior(self, data: Input) -> Prior:
        """The prior that the parameters ask for."""

    @abstractmethod
    def _publish_posterior(self, mixture: Mixture) -> None:
        """Set the attributes of the components."""

    @abstractmethod
    def _predictive(self) -> Mixture:
        """The mixture that the attributes hold."""

    def _check_rows(self, data: Input) -> None:
        """Refuse weights that cannot be numbers of rows, which a Dirichlet process takes them for."""
        total = data.shard.total_weight
        if total > MOST_WEIGHT:
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
        return most + chunky_bytes(data.n_rows, data.n_columns, leaf_size(data.n_rows), kind) * self.accelerate

    def _check_fit(self, data: Input) -> None:
        self._prior(data)
        if self.n_candidates is not None and not self.accelerate:
            raise ValueError("n_candidates has a place with accelerate=True only; rows look at all components")

    def _given(self, data: Input) -> GivenStart:
        if isinstance(self.init_params, str):
            return super()._given(data)
        if self.truncation != "fixed":
            raise ValueError("an array of init_params needs truncation='fixed'; a nested mixture begins with one")
        means = checked_shape(self.init_params, (self._largest(data), data.n_columns), "init_params")
        return GivenStart(self.covariance_type, means=means)

    def _last_fit(self, data: Input) -> GivenStart:
        T, most = len(self.means_), self._largest(data)
        if self.means_.shape[1] != data.n_columns or most < T or (most > T and self.truncation == "fixed"):
            raise ValueError(
                f"warm_start: the last fit had means of shape {self.means_.shape}, this has {data.n_columns} columns "
                f"and max_components={most}; set warm_start=False to begin anew"
            )
        return GivenStart(self.covariance_type, means=self.means_, continues=True)

    def _largest(self, data: Input) -> int:
        if self.max_components is not None:
            return self.max_components
        return NESTED_COMPONENTS if self.truncation == "nested" else min(FIXED_COMPONENTS, data.n_rows)

    def _n_rows_wanted(self) -> int:
        return self.max_components or 1 if self.truncation == "fixed" else 1

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        yield from ()  # means alone are not a posterior
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        prior, options = self._prior(data), self._options(data)
        rows_or_cells = self._data(data.shard, prior, options, rng)
        if given.continues:
            seen = self._seen()
            start = ObservedMoments.from_pass(seen, rows_or_cells.e_step(seen))
            n_sown = 0 if self.converged_ else options.n_sown
            return Run(infinite(rows_or_cells, prior, start, replace(options, n_sown=n_sown), rng))
        if options.closed:
            means = self._means(data, rng) if given.means is None else given.means
            return Run(infinite(rows_or_cells, prior, components_at(rows_or_cells, means, prior), options, rng))
        part = draw_part(data.shard, rng) if self.accelerate else data.shard
        if part is not data.shard:
            of_part = self._data(part, prior, options, rng)
            return Run(infinite_from_part(of_part, rows_or_cells, prior, options, rng))
        return Run(infinite(rows_or_cells, prior, one_component(rows_or_cells, prior), options, rng))

    def _options(self, data: Input) -> InfiniteOptions:
        return InfiniteOptions(
            alpha=stick_prior(self.concentration, self.discount), T_max=self._largest(data), gain=self.min_split_gain,
            smallest=self.min_component_weight, accept="best" if self.accept_splits == "best" else "all",
            tol=self.tol, max_iter=self.max_iter, closed=self.truncation == "fixed",
            n_polishing=POLISHING_STEPS * self._polishes,
            n_sown=TIMES_SOWN if self.accelerate and self.n_candidates is None else 0,
        )  # fmt: skip

    def _data(self, shard: Shard, prior: Prior, options: InfiniteOptions, rng: np.random.Generator) -> RowData:
        if not self.accelerate or Need.DENSE in shard.lacks:
            return RowData(shard, options.max_trial_rows, rng)
        cells = CellOptions(leaf_size=leaf_size(shard.n_rows), C_prime=self.n_candidates)
        # families without second moments of columns take them from the cells when a component is split
        scatter = FAMILIES[prior.covariance_type].scatter.by_column
        return CellData(shard, scatter, cells, options.max_trial_rows, rng)

    def _means(self, data: Input, rng: np.random.Generator) -> F64:
        n = self._largest(data)
        if n > data.n_rows:
            raise ValueError(f"n_samples={data.n_rows} should be >= max_components={n} with truncation='fixed'.")
        return result_of(MEANS_METHODS[self.init_params](data.shard, n, rng))

    def _publish(self, data: Input, spare: Callable[[], F64], step: Step[Mixture], history: History) -> None:
        self._publish_posterior(step.model)
        sticks = step.model.sticks
        self._publish_sticks(sticks)
        self._derive(weights_=sticks.weights)
        self.remaining_weight_ = sticks.remainder
        self.n_components_ = int((sticks.held >= 1.0).sum()) if sticks.closed else step.model.T
        self.clusters_ = np.arange(step.model.T)  # until the fit has ended
        self.n_clusters_ = step.model.T
        self._publish_course(data, history, step.stopped)
        self.free_energy_ = -history[-1].objective

    def _finish(self, data: Input) -> None:
        """The clusters of the components, and of the rows."""
        self.clusters_ = self._clusters(data, self._seen())
        self.n_clusters_ = int(self.clusters_.max()) + 1
        self.component_labels_ = data.answers(self._label)
        self.labels_ = self.clusters_[self.component_labels_].astype(np.int32)

    def _clusters(self, data: Input, seen: GaussianParameters) -> I64:
        """The cluster of every component."""
        return np.arange(seen.n_components)

    def _clusters_known(self) -> I64:
        """`clusters_`; what older versions have fitted has none, and every component is a cluster."""
        return vars(self).get("clusters_", np.arange(len(self.weights_)))

    def _seen(self) -> GaussianParameters:
        """The components that have been seen, as the E-step has them."""
        mixture = self._predictive()
        return mixture.posterior.expected_mixture(mixture.sticks.log_weights)

    @lazily
    def predict(self, X: Any, *, min_log_density: float | None = None) -> I64:
        """The cluster of the most likely component of every row, (n_samples,).

        A row that is most likely of a component not seen yet gets the closest of those that were. Rows whose
        log-density (`score_samples`) is below `min_log_density` are noise, and get −1.
        """
        components = self.predict_components(X)
        return self._without_noise(X, self._clusters_known()[components], min_log_density)

    @lazily
    def predict_components(self, X: Any) -> I64:
        """The most likely component of every row, (n_samples,); its cluster is what `predict` says."""
        return self._answer(X, "components", lambda _: self._seen())

    @lazily
    def predict_proba(self, X: Any) -> F64:
        """The probability of every component given the row (Eq. 6), (n_samples, T); see `clusters_` for their clusters.

        What a row lacks to one is the probability that it is of a component not seen yet.
        """
        check_is_fitted(self)
        T = len(self.weights_)
        return self._answer(X, "probabilities", n_results=T + 1)[:, :T]

    def _drawn(self, n_samples: int, draw: Callable[[int, int, np.random.RandomState], F64]) -> tuple[F64, I64]:
        """Rows by `draw(c, n, random)` for every component, those not seen yet last, and their components."""
        random, sticks = check_random_state(self.random_state), self._sticks()
        shares = np.append(sticks.weights, sticks.remainder)
        return draw_by_component(shares, rows_to_draw(n_samples), random, lambda c, n: draw(c, n, random))

    def _check_state(self) -> None:
        D = check_common(self, "lower_bound_", "free_energy_", "n_components_", "remaining_weight_")
        mixture = self._predictive()
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
        self.clusters_ = self._clusters_known()
        self.n_clusters_ = vars(self).get("n_clusters_", mixture.T)
        check_indices(self.clusters_, "clusters_", (mixture.T,), self.n_clusters_)

    def _publish_sticks(self, sticks: Sticks) -> None:
        """Add the sticks and their prior to what is known of the components."""
        prior = sticks.alpha
        self.posterior_ = {"sticks": np.column_stack([sticks.first, sticks.second]), **self.posterior_}
        self.prior_ = {"sticks": np.array([prior.first, prior.second]), **self.prior_}
        if prior.discount:
            self.prior_["discount"] = prior.discount
        if sticks.concentration is not None:
            self.posterior_["concentration"] = np.array(sticks.concentration)
            self.prior_["concentration"] = np.array(prior.gamma)

    def _sticks(self) -> Sticks:
        """The sticks that the attributes hold."""
        alpha = checked_floats(self.prior_["sticks"], "prior_['sticks']", (2,), positive=True)
        both = checked_floats(self.posterior_["sticks"], "posterior_['sticks']", (None, 2), positive=True)
        discount = checked_floats(self.prior_.get("discount", 0.0), "prior_['discount']", ())
        if not 0 <= discount < alpha[0]:
            raise ValueError("prior_['discount'] must be at least 0 and less than prior_['sticks'][0]; fit again")
        prior = StickPrior(float(alpha[0]), float(alpha[1]), float(discount))
        first, second = np.ascontiguousarray(both.T)
        return Sticks(prior, first, second, closed=self.truncation == "fixed")

    def _mixture(self) -> GaussianParameters:
        return self._predictive().local


def leaf_size(n_rows: int) -> int:
    """The deep end of a large tree is never reached: larger leaves save building it."""
    return min(max(SMALLEST_LEAF, n_rows // MOST_LEAVES), LARGEST_LEAF)
