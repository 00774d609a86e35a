"""`GaussianMixture`: mixtures behind scikit-learn's names, by exact EM or by the estimator that is faster."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from globular.algorithms.kmeans.nested_choices import NestedSettings
from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.chunky import ChunkyOptions, begin_chunky
from globular.algorithms.mixtures.em import CONVERGED, EMOptions, covariance_limits, em
from globular.algorithms.mixtures.missing import incomplete_mixture
from globular.algorithms.mixtures.nested import BatchOptions, nested_mixture, rows_of_first_batch
from globular.algorithms.mixtures.noise import noisy_mixture
from globular.algorithms.mixtures.starts import MIXTURE_STARTS, StartOptions, starting_mixture, variational_means
from globular.algorithms.steps import Finding, Run
from globular.errors import DeviceError
from globular.estimators.checks import batch_bytes, checked_floats
from globular.estimators.chunky_mixture import check_tree, most_cells, resolved_candidates
from globular.estimators.conditional import checked_parameters, given_start
from globular.estimators.inputs import Input, open_filled, open_incomplete
from globular.estimators.mixtures import N_CANDIDATES
from globular.estimators.parameters import POSITIVE, Constraints, one_of
from globular.estimators.priors import PRIOR, forget_prior, is_told, with_prior
from globular.estimators.running import Clock
from globular.estimators.stepwise_mixture import StepwiseGaussians
from globular.estimators.variational_mixture import (
    N_NEIGHBORS,
    automatic_search,
    begin_with_few,
    likely_components,
    truncated_bytes,
)
from globular.model.covariances import FAMILIES, SEPARABLE
from globular.model.gaussian import GaussianParameters
from globular.model.given import GivenStart
from globular.model.history import Record
from globular.model.noise import Noise
from globular.model.statistics import I64
from globular.seam.passes import Labels
from globular.seam.shard import Shard
from globular.seam.tree_passes import Plant

logger = logging.getLogger("globular")

VARIATIONAL_FROM = 500
"""Number of components from which "auto" takes the variational algorithm, where it knows the covariance type."""


@dataclass(eq=False, repr=False)
class GaussianMixture(StepwiseGaussians):
    """Gaussian mixture model fitted by expectation maximisation.

    A drop-in for :class:`sklearn.mixture.GaussianMixture` that takes sample weights, never holds a table of rows by
    components, never fails on singular data, reads data larger than memory, and gives the same result for any number of
    threads. All arithmetic is in float64, whatever the type of the rows; what it finds comes in their type, float32 for
    float32.

    Parameters
    ----------
    n_components : int, default=1
    covariance_type : {"full", "tied", "diag", "spherical", "tied_spherical"}, default="full"
        A covariance matrix per component, one for all, variances per component and column, a variance per component,
        or one variance for everything.
    algorithm : {"auto", "em", "nested", "variational", "chunky"}, default="auto"
        "em" is exact. "nested" is EM on batches of rows that grow, and ends when the mean log-likelihood is expected to
        lie less than ten times `tol` below that of all rows, about what EM itself leaves; from 500 components without
        correlations on it looks at few of them per row. "variational" looks at few components per row, see
        :class:`VariationalGaussianMixture`, and knows "diag", "spherical" and "tied_spherical". "chunky" works on cells
        of rows, at a cost that hardly grows with their number, and finishes on the rows themselves (see
        :class:`ChunkyGaussianMixture`; not on GPUs). "auto" takes "variational" from 500 components on where it knows
        the covariance type, else "em", and writes its choice to `algorithm_`.
    tol : float, default=1e-3
        Stop when the mean log-likelihood of a row changes by less.
    reg_covar : float or "auto", default="auto"
        Added to the variances. A number is added as it is, as in scikit-learn. "auto" adds 1e-6, scikit-learn's
        default, or 1e-6 of the variance of the data in the same column where that is less: so tiny units do no harm.
        Also with 0 no covariance becomes singular: variances stay above 1e-12 of the variance of the data in the same
        column.
    max_iter : int, default=100
        Most iterations of one run; 0 leaves the mixture where it starts.
    n_init : int, default=1
        Number of runs from different starts, of which the best is kept.
    init_params : {"kmeans", "k-means++", "random", "random_from_data"}, default="kmeans"
        How to find a start. "kmeans" begins with k-means on a part of the rows (with up to five components the best of
        several short runs of EM), goes on with EM there, and keeps exchanges of components by which the likelihood
        rises; where nothing is given to start from. The others give starting means: k-means++ seeds, near the mean of
        all rows, or random rows. Rows are then assigned to the closest of them for the starting weights and
        covariances. (The variational algorithm starts from probing k-means, equal weights and one variance.)
    weights_init : array-like, "equal" or None, default=None
        Starting weights; "equal" keeps all of them equal from the start to the end, which with "tied_spherical" is the
        model behind k-means.
    means_init, precisions_init : array-like or None, default=None
        Starting parameters, in the shapes of `means_` and `precisions_`. Precisions without means, and weights beside
        them, go to the components found whose covariances are most like theirs.
    prior : float, "auto", "thin" or None, default="thin"
        Rows that every component counts beside its own, spread about its mean as all rows are, scaled down to a
        component of as many: the inverse-Wishart prior of its covariance (Fraley and Raftery 2007), by which many
        components of few rows do not overfit. "auto" chooses among 0.03 … 100 by the likelihood of rows left out, or
        none if none is better. "thin" does so where an average component has less than twice the rows that its
        parameters need, else there is none. With a prior `lower_bound_` has the log density of the prior in it. The
        search for a start does without. Not with tied covariances, missing values, or "nested" and "chunky".
    noise : bool, default=False
        Whether there is one more component, for rows that belong to no other: a constant density over the box of all
        rows, with a weight that is learned. Rows that are most likely noise have the label −1. By exact EM (`algorithm`
        "auto" or "em").
    missing : {"error", "allow"}, default="error"
        Whether NaN is an error, or a value that is not known. Rows with such values, which lie in memory then, count
        with the columns that are known of them, in `fit` (by exact EM to a tenth of `tol`) and in all that follows but
        `partial_fit`.
    {decay}
    {max_time, random_state, warm_start, verbose, callbacks, n_threads, device}

    Attributes
    ----------
    weights_ : array of shape (n_components,)
        They add up to one, together with `noise_weight_` where there is noise.
    means_ : array of shape (n_components, n_features)
    covariances_, precisions_, precisions_cholesky_ : array
        (n_components, n_features, n_features) for "full", (n_features, n_features) for "tied", (n_components,
        n_features) for "diag", (n_components,) for "spherical" and () for "tied_spherical".
    prior_ : float or None
        The strength of the prior.
    noise_weight_ : float
        The share of all rows that is noise; with ``noise=True``.
    noise_bounds_ : array of shape (2, n_features)
        The box of the noise: the smallest and largest values of every column, or wider in a column that is narrower
        than a component; with ``noise=True``.
    labels_ : int32 array of shape (n_samples,)
        The most likely component of every row, −1 for noise; of 500 and more "variational" looks at those of few cells.
    converged_ : bool
        Whether the best run ended because of `tol`.
    n_iter_ : int
    lower_bound_ : float
        Mean log-likelihood of a row, or a lower bound with "variational" and "chunky", before the last iteration.
    lower_bounds_ : list of float
        The same for every iteration of the best run.
    counts_ : float64 array of shape (n_components,)
        What the rows of every component weigh, over all that are remembered; what :meth:`partial_fit` goes on from.
    early_rows_, early_weights_ : arrays
        The first rows of a stream, as long as these are few.
    history_ : :class:`globular.model.history.History`
        One record per iteration of the best run; objectives are log-likelihoods (or bounds) of all rows, with "nested"
        what each batch says of them.
    n_distances_ : int
        Densities of a row under a component that EM evaluated in the whole fit, the search for a start included.
    algorithm_ : str
    stopped_ : str
        Why the best run ended.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import GaussianMixture
    >>> X = np.array([[1.0, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> model = GaussianMixture(n_components=2, random_state=0).fit(X)
    >>> sorted(model.means_.round(3).tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    >>> bool(model.predict([[0.0, 0]])[0] == model.predict([[1.0, 1]])[0])
    True
    """

    n_components: int = 1
    _: KW_ONLY
    covariance_type: Literal["full", "tied", "diag", "spherical", "tied_spherical"] = "full"
    algorithm: Literal["auto", "em", "nested", "variational", "chunky"] = "auto"
    tol: float = 1e-3
    reg_covar: float | str = "auto"
    max_iter: int = 100
    max_time: float | None = None
    n_init: int = 1
    init_params: str = "kmeans"
    weights_init: Any = None
    means_init: Any = None
    precisions_init: Any = None
    prior: float | str | None = "thin"
    noise: bool = False
    missing: Literal["error", "allow"] = "error"
    decay: float = 0.0
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None
    device: str | list[str] = "auto"

    _constraints: ClassVar[Constraints] = {
        "init_params": [one_of(*MIXTURE_STARTS)],
        "weights_init": [one_of("equal"), "array-like", None],
        "means_init": ["array-like", None],
        "precisions_init": ["array-like", POSITIVE, None],
        "prior": PRIOR,
    }

    @property
    def _learns_weights(self) -> bool:
        return not isinstance(self.weights_init, str)

    @classmethod
    def from_parameters(cls, weights: Any, means: Any, covariances: Any, covariance_type: str = "full") -> Self:
        """A mixture made from given parameters, without a fit; all that follows a fit works.

        Parameters
        ----------
        weights, means, covariances : array-like
            In the shapes of `weights_`, `means_` and `covariances_`; weights are at least 0 and add up to 1.
        covariance_type : {"full", "tied", "diag", "spherical", "tied_spherical"}, default="full"

        Examples
        --------
        >>> from globular import GaussianMixture
        >>> model = GaussianMixture.from_parameters([0.3, 0.7], [[0.0, 0.0], [5.0, 5.0]], [1.0, 2.0], "spherical")
        >>> model.predict([[1.0, 0.0], [4.0, 4.0]]).tolist()
        [0, 1]
        """
        mixture = checked_parameters(weights, means, covariances, covariance_type)
        return cls(n_components=mixture.n_components).set_params(covariance_type=covariance_type)._set(mixture)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, missing: bool = False) -> Self:
        """Find the components.

        Parameters
        ----------
        X : array, data frame, source (see :mod:`globular.io`) or path, of shape (n_samples, n_features)
            Rows of any real type. A path or source may be larger than memory.
        y : ignored
        sample_weight : array of shape (n_samples,), default=None
            Weight of every row; a row of weight 2 counts as two rows, one of weight 0 as none.
        missing : bool, default=False
            The same as ``missing="allow"`` of the constructor, for this call.

        Returns
        -------
        self
        """
        if not missing:
            return super().fit(X, y, sample_weight)
        deque(self._begin_incomplete(X, sample_weight, watched=False), maxlen=0)
        return self

    def _begin(self, X: Any, sample_weight: Any, *, watched: bool) -> Iterator[Record]:
        how = self._begin_incomplete if self.missing == "allow" else super()._begin
        return how(X, sample_weight, watched=watched)

    def _begin_incomplete(self, X: Any, sample_weight: Any, *, watched: bool) -> Iterator[Record]:
        """A fit in which NaN is a value that is not known, if there is any."""
        self._validate_params()
        rows, clock = open_incomplete(self, X, reset=True), Clock()
        if not np.isnan(rows).any():
            return super()._begin(X, sample_weight, watched=watched)
        records = self._begin_with(open_filled(self, rows, sample_weight), clock, watched)
        return self._labelled_afterwards(records, X)

    def _labelled_afterwards(self, records: Iterator[Record], X: Any) -> Iterator[Record]:
        yield from records
        self.labels_ = self.predict(X, missing=True).astype(np.int32)

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None, *, missing: bool = False) -> I64:
        """Fit, and return the most likely component of every row; `missing` as in `fit`."""
        return self.fit(X, sample_weight=sample_weight, missing=missing).predict(X, missing=missing)

    def _take_found(self, mixture: GaussianParameters, bound: float, data: Input) -> None:
        """Take over a mixture that EM has found elsewhere, and label all rows."""
        self._set(mixture)
        self._publish_mixture(mixture, data.dtype)
        self.algorithm_, self.lower_bound_, self.converged_, self.stopped_ = "em", bound, True, CONVERGED
        self._finish(data)

    def _check_fit(self, data: Input) -> None:
        if is_told(self.prior) and (FAMILIES[self.covariance_type].tied or self.algorithm in ("nested", "chunky")):
            raise ValueError("prior needs a covariance of each component, and algorithm='em' or 'variational'")
        if is_told(self.prior) and data.incomplete is not None:
            raise ValueError("missing=True does not go with prior; set prior=None, or leave out rows with NaN")
        if self.algorithm == "variational" and self.covariance_type not in SEPARABLE:
            raise ValueError(
                f"algorithm='variational' needs covariances without correlations, one of {', '.join(SEPARABLE)}; "
                f"covariance_type={self.covariance_type!r} takes algorithm='em'"
            )
        if self.algorithm == "chunky" and data.shard.why_not(Plant):
            raise DeviceError("algorithm='chunky' does not run on GPUs; take algorithm='em', or device='cpu'")
        if data.incomplete is not None and self.algorithm not in ("auto", "em"):
            raise ValueError(f"missing values need algorithm='em'; algorithm={self.algorithm!r} takes complete rows")
        if self.noise and self.algorithm not in ("auto", "em"):
            raise ValueError(f"noise=True needs algorithm='em'; algorithm={self.algorithm!r} knows no noise")
        super()._check_fit(data)
        forget_prior(self)
        self.algorithm_ = "em" if data.incomplete is not None or self.noise else self._choose_algorithm()

    def _most_bytes(self, data: Input) -> int | None:
        if self.algorithm_ == "chunky":
            check_tree(data, self.covariance_type)
            return None
        nested = self.algorithm_ == "nested"
        few = self.algorithm_ == "variational" or (nested and self._truncates)
        most = truncated_bytes(data, self, self._truncated(), probes=self._probes) if few else super()._most_bytes(data)
        more = batch_bytes(data.n_rows, data.n_columns, in_memory=data.matrix is not None)
        return most + more if nested and most is not None else most

    def _given(self, data: Input) -> GivenStart:
        weights = self.weights_init if self._learns_weights else None
        given = weights, self.means_init, self.precisions_init
        return given_start(*given, self.n_components, data.n_columns, self.covariance_type)

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        shard, C, learned = data.shard, self.n_components, self._learns_weights
        options = EMOptions(
            self.max_iter, self.tol, self.reg_covar, learned_weights=learned, previous_bound=given.bound,
        )  # fmt: skip
        how = StartOptions(C, self.init_params, given, random_state)
        if self.algorithm_ == "nested":
            return (yield from nested_mixture(shard, options, self._batches(data), how))
        if self.algorithm_ == "chunky":
            if how.searches:
                given = GivenStart.of((yield from starting_mixture(shard, options, how)))
            limits = covariance_limits(shard, EMOptions(reg_covar=self.reg_covar))
            on_cells = self._on_cells(data, given.bound)
            return begin_chunky(shard, C, self.init_params, given, on_cells, random_state, limits=limits)[0]
        if self.algorithm_ == "variational":
            rng, truncated = how.rng(), self._truncated()
            chosen = yield from variational_means(shard, how, truncated, rng, probes=self._probes)
            return begin_with_few(self, data, given, chosen, truncated, rng, probes=self._probes)[0]
        rows = data.incomplete
        begin: Callable[..., Finding[GaussianParameters]] = starting_mixture
        if self.noise:
            weight = float(self.noise_weight_) if "noise_weight_" in vars(self) else None
            begin = partial(noisy_mixture, weight=weight, extremes=None if rows is None else rows.extremes())
        if rows is not None:
            return (yield from incomplete_mixture(rows, shard, options, how, begin))
        start = yield from begin(shard, options, how)
        return Run(em(shard, start, with_prior(self, shard, options, lambda: start, None)), start)

    def _truncated(self) -> VariationalOptions:
        return VariationalOptions(
            min(N_CANDIDATES, self.n_components), N_NEIGHBORS, max_iter=self.max_iter, tol=self.tol
        )

    @property
    def _probes(self) -> bool:
        return automatic_search(self.n_components, self.covariance_type) == "probing"

    def _on_cells(self, data: Input, previous_bound: float) -> ChunkyOptions:
        # ends where EM would; only rows with few components each need memory that streamed rows have not
        few = resolved_candidates("auto", self.n_components)
        return ChunkyOptions(
            self.max_iter, self.tol, max_cells=most_cells(data.n_rows, self.n_components),
            polish="always" if data.matrix is not None or few is None else "never", C_prime=few,
            learned_weights=self._learns_weights, previous_bound=previous_bound,
        )  # fmt: skip

    def _batches(self, data: Input) -> BatchOptions:
        """How nested EM draws rows; neighbours on disk stay together."""
        first = rows_of_first_batch(data.shard, self.n_components, self.covariance_type)
        size, itemsize = (self.n_components, data.n_rows, data.n_columns), data.dtype.itemsize
        run = NestedSettings(*size, itemsize, data.matrix is not None, data.is_streamed, first).run
        return BatchOptions(first, run, min(N_CANDIDATES, self.n_components) if self._truncates else None)

    @property
    def _truncates(self) -> bool:
        many = self.n_components >= VARIATIONAL_FROM and self.covariance_type in SEPARABLE
        return many and self.algorithm != "em"

    def _label(self, shard: Shard) -> Labels:
        if self.algorithm_ == "variational" or (self.algorithm_ == "nested" and self._truncates):
            return likely_components(shard, self._mixture(), N_CANDIDATES)
        return super()._label(shard)

    def _choose_algorithm(self) -> str:
        if self.algorithm != "auto":
            return self.algorithm
        chosen = "variational" if self._truncates else "em"
        logger.info("algorithm='auto' chose %s", chosen)
        return chosen

    def _publish_mixture(self, mixture: GaussianParameters, dtype: np.dtype[Any]) -> None:
        super()._publish_mixture(mixture, dtype)
        for name in ("noise_weight_", "noise_bounds_"):
            self.__dict__.pop(name, None)  # those of the last fit
        if mixture.noise is not None:
            self.noise_weight_ = mixture.noise.weight
            self.noise_bounds_ = np.stack([mixture.noise.low, mixture.noise.high])

    @property
    def _noise(self) -> Noise | None:
        if "noise_weight_" not in vars(self):
            return None
        bounds = checked_floats(self.noise_bounds_, "noise_bounds_", (2, self.n_features_in_))
        if not (bounds[0] < bounds[1]).all():
            raise ValueError("noise_bounds_ must have smaller values in its first row; fit again")
        if not 0.0 <= self.noise_weight_ <= 1.0:
            raise ValueError(f"noise_weight_ must be between 0 and 1, got {self.noise_weight_!r}; fit again")
        return Noise(float(self.noise_weight_), *bounds)
