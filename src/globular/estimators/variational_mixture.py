"""`VariationalGaussianMixture`: mixtures whose iterations do not cost more with more components."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from scipy import sparse as scipy_sparse
from sklearn.utils._param_validation import Interval, StrOptions

from globular.algorithms.em import EMOptions, covariance_limits
from globular.algorithms.probing_mixture import find_members, probing_mixture
from globular.algorithms.steps import Step
from globular.algorithms.variational import SoftModel, VariationalOptions, variational_mixture
from globular.backends.cpu import CpuShard
from globular.backends.cpu.memory import mixture_bytes, variational_bytes
from globular.backends.cpu.truncated import TruncatedPosterior, truncated_posterior
from globular.estimators.distributed import lazily
from globular.estimators.fitted import check_indices
from globular.estimators.inputs import Input
from globular.estimators.mixture_starts import automatic_search, neighborhood_start, probing_start
from globular.estimators.mixtures import MixtureEstimator
from globular.estimators.starts import STARTS, Start, choose_centers
from globular.estimators.variational_kmeans import RANDOM_WARMUP
from globular.model.covariances import SEPARABLE
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph
from globular.model.history import History
from globular.model.statistics import F64, I64
from globular.threads import resolve_threads

NEIGHBORHOODS = {
    "n_neighbors": 5,
    "n_random": 1,
    "neighborhoods": "estimated",
    "diverse": False,
    "start": "cells",
    "n_warmup": "auto",
}
"""Defaults of the parameters that only neighbourhood search has."""


class VariationalGaussianMixture(MixtureEstimator):
    """Gaussian mixture by truncated variational EM: each row looks at few components, whatever their number.

    Every row keeps `n_candidates` components. Posteriors are exact on the components a row keeps and zero elsewhere,
    which makes the objective a lower bound of the log-likelihood. With ``reg_covar=0`` it never falls. Better
    components are looked for in one of two ways (`search`). "probing" clusters the means into about √C cells, drawn
    anew each time, and lets a row look at all components of its closest cells, by matrix products; iterations in which
    this would not pay do without. "neighbors" is the paper's: every component has a neighbourhood of `n_neighbors`,
    and an iteration evaluates at most ``n_candidates * n_neighbors + n_random`` densities per row;
    ``n_candidates = n_neighbors`` is its var-GMM-S (``neighborhoods="estimated"``) and var-GMM-X ("exhaustive"). See
    Forster & Lücke, *Can clustering scale sublinearly with its clusters?*, AISTATS 2018.

    Parameters
    ----------
    n_components : int, default=8
    n_candidates : int, default=5
        C′, the components that each row keeps.
    search : {"auto", "probing", "neighbors"}, default="auto"
        Where a row finds better components. "auto" takes "probing", but "neighbors" for up to 25 components, and where
        one of the six parameters that follow is not at its default: they are those of "neighbors". `search_` tells.
    n_neighbors : int, default=5
        G, the size of a component's neighbourhood, itself included. (With "probing" only the width of `neighbors_`.)
    n_random : int, default=1
        Components drawn at random for each row in each iteration, beside the neighbourhoods.
    neighborhoods : {"estimated", "exhaustive"}, default="estimated"
        Where neighbourhoods come from: estimated from distances that rows had anyway (Eq. 8), or from all distances
        between means, which costs O(C²D) per iteration.
    diverse : bool, default=False
        With exhaustive neighbourhoods, skip a neighbour that is closer to a kept one than to the component itself.
    start : {"cells", "random"}, default="cells"
        First component of each row, and first neighbourhoods: by way of about √C cells of means (or of hierarchical
        seeds), or drawn at random as in the paper.
    n_warmup : int or "auto", default="auto"
        E-steps at the starting means before the first iteration; "auto" is 1, and 20 with ``start="random"``. One is
        always made: it finds the starting variance.
    covariance_type : {"tied_spherical", "spherical", "diag"}, default="tied_spherical"
        One variance for everything (the paper's model), a variance per component, or one per component and column.
    weights : {"equal", "learned"}, default="equal"
        Whether components have mixing weights of their own.
    tol : float, default=1e-3
        Stop when the mean lower bound of a row has changed by less than this …
    patience : int, default=3
        … in so many iterations running.
    reg_covar : float, default=0
        Added to the variances. Also with 0 variances stay above 1e-12 of the variance of the data.
    max_iter : int, default=200
        Most iterations of one run; 0 leaves the mixture where it starts.
    init : {"auto", "k-means++", "greedy k-means++", "afk-mc2", "k-means||", "hierarchical", "random"}, array or \
callable, default="auto"
        Starting means: the name of a seeding (see :mod:`globular.seeding`), an array of shape (n_components,
        n_features) or a function ``(X, n_components, random_state) -> array``. With "probing" seeds are first improved
        by swaps and k-means steps, as in :class:`KMeans`; an array stays as it is.
    n_init, max_time, random_state, warm_start, verbose, callbacks, n_threads
        As in :class:`GaussianMixture`.

    Attributes
    ----------
    weights_, means_, covariances_, precisions_, precisions_cholesky_, converged_, n_iter_, stopped_
        As in :class:`GaussianMixture`.
    lower_bound_ : float
        Mean free energy of a row (Eq. 10), a lower bound of its log-likelihood, at the parameters the last iteration
        began with.
    lower_bounds_ : list of float
        The same for every iteration of the best run.
    history_ : :class:`globular.model.history.History`
        One record per iteration of the best run; objectives are free energies of all rows.
    n_distances_ : int
        Densities (or distances) of a row and a component evaluated in the whole fit, seeding and first labels apart.
    neighbors_ : int32 array of shape (n_components, n_neighbors)
        The graph of components: every component itself, then its neighbours, closest first.
    init_, search_ : str
        What "auto" came to.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import VariationalGaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> model = VariationalGaussianMixture(n_components=100, random_state=0).fit(X)
    >>> bool(model.lower_bound_ <= model.score(X) + 1e-3)
    True
    >>> model.predict_proba(X, truncated=True, sparse=True).nnz <= 5 * 2000
    True
    >>> model.search_, VariationalGaussianMixture(100, n_neighbors=8, random_state=0).fit(X).search_
    ('probing', 'neighbors')
    """

    _parameter_constraints: ClassVar[dict[str, list[Any] | str]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "n_candidates": [Interval(Integral, 1, None, closed="left")],
        "search": [StrOptions({"auto", "probing", "neighbors"})],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "n_random": [Interval(Integral, 0, 15, closed="both")],
        "neighborhoods": [StrOptions({"estimated", "exhaustive"})],
        "diverse": ["boolean"],
        "start": [StrOptions({"cells", "random"})],
        "n_warmup": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "covariance_type": [StrOptions(set(SEPARABLE))],
        "weights": [StrOptions({"equal", "learned"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "reg_covar": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions(set(STARTS)), "array-like", callable],
        "random_state": ["random_state"],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "callbacks": "no_validation",
        "n_threads": [None, Integral],
    }

    def __init__(
        self,
        n_components: int = 8,
        *,
        n_candidates: int = 5,
        search: str = "auto",
        n_neighbors: int = 5,
        n_random: int = 1,
        neighborhoods: str = "estimated",
        diverse: bool = False,
        start: str = "cells",
        n_warmup: int | str = "auto",
        covariance_type: str = "tied_spherical",
        weights: str = "equal",
        tol: float = 1e-3,
        patience: int = 3,
        reg_covar: float = 0.0,
        max_iter: int = 200,
        max_time: float | None = None,
        n_init: int = 1,
        init: Any = "auto",
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        callbacks: Any = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.n_candidates = n_candidates
        self.search = search
        self.n_neighbors = n_neighbors
        self.n_random = n_random
        self.neighborhoods = neighborhoods
        self.diverse = diverse
        self.start = start
        self.n_warmup = n_warmup
        self.covariance_type = covariance_type
        self.weights = weights
        self.tol = tol
        self.patience = patience
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.max_time = max_time
        self.n_init = n_init
        self.init = init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks
        self.n_threads = n_threads

    def _steps(
        self, data: Input, continued: GaussianParameters | None, random_state: np.random.RandomState
    ) -> Iterator[Step[SoftModel]]:
        self.search_ = self._choose_search()
        options = self._options()
        limits = covariance_limits(data.shard, EMOptions(reg_covar=self.reg_covar))
        if continued is not None:
            chosen = Start(continued.means, "warm start")
        else:
            chosen = choose_centers(
                self.init, self.n_components, data, random_state,
                rough=self.search_ == "probing", size_name="n_components",
            )  # fmt: skip
        self.init_ = chosen.name
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        probes = self.search_ == "probing"
        start_of = probing_start if probes else partial(neighborhood_start, at_random=self.start == "random")
        start = start_of(data.shard, chosen, continued, self.covariance_type, options, limits, rng)
        self.neighbors_: Graph = start.graph
        self._publish_mixture(start.mixture, data, History(), "")
        iterations = probing_mixture if probes else variational_mixture
        return iterations(data.shard, start, options, rng, limits=limits, learned_weights=self.weights == "learned")

    def _most_bytes(self, data: Input) -> int:
        size, n_threads = (data.n_rows, data.n_columns, self.n_components), resolve_threads(self.n_threads)
        C_prime = min(self.n_candidates, self.n_components)
        most = mixture_bytes(*size, self.covariance_type, C_prime=C_prime, n_threads=n_threads)
        if self._choose_search() == "neighbors":  # pairs of components, as in k-means
            itemsize = data.dtype.itemsize
            most += variational_bytes(
                *size, self.n_neighbors, C_prime, self.n_random, itemsize=itemsize, n_threads=n_threads
            )
        return most

    def _choose_search(self) -> str:
        given = {name: getattr(self, name) for name in NEIGHBORHOODS}
        if self.search == "probing":
            for name, value in given.items():
                if name != "n_neighbors" and value != NEIGHBORHOODS[name]:  # which is the width of `neighbors_`
                    raise ValueError(f"{name}={value!r} needs search='neighbors': probing has none; leave one out")
        if self.search != "auto":
            return self.search
        return automatic_search(self.n_components, wants_neighborhoods=given != NEIGHBORHOODS)

    def _options(self) -> VariationalOptions:
        n_warmup = self.n_warmup
        if isinstance(n_warmup, str):
            n_warmup = RANDOM_WARMUP if self.start == "random" else 1
        return VariationalOptions(
            C_prime=min(self.n_candidates, self.n_components),
            G=self.n_neighbors,
            n_random=self.n_random,
            neighborhoods="exhaustive" if self.neighborhoods == "exhaustive" else "estimated",
            diverse=self.diverse,
            n_warmup=n_warmup,
            max_iter=self.max_iter,
            tol=self.tol,
            patience=self.patience,
            n_threads=resolve_threads(self.n_threads),
        )

    def _take_over(self, step: Step[SoftModel]) -> GaussianParameters:
        self.neighbors_ = step.model.graph
        return step.model.mixture

    def _check_state(self) -> None:
        super()._check_state()
        check_indices(self.neighbors_, "neighbors_", (self.n_components, None), self.n_components)

    @lazily
    def predict(self, X: Any, exact: bool = True) -> I64:
        """The most likely component of every row, (n_samples,).

        Parameters
        ----------
        X : array, data frame, source or path
        exact : bool, default=True
            False looks only at the components of a few of about √C cells of means: far fewer densities, and now and
            then the second most likely component.
        """
        if exact:
            return super().predict(X)
        return self._per_row(X, lambda part, mixture: self._posterior(part, mixture).members[:, 0].astype(np.int64))

    @lazily
    def predict_proba(self, X: Any, truncated: bool = False, sparse: bool = False) -> Any:
        """The probability of every component given the row, (n_samples, n_components).

        Parameters
        ----------
        X : array, data frame, source or path
        truncated : bool, default=False
            Only the `n_candidates` most likely components that are found by way of cells of means have a probability,
            renormalised to a sum of one; the others have zero.
        sparse : bool, default=False
            With `truncated`, a CSR matrix of at most `n_candidates` entries per row instead of an array.
        """
        if not truncated:
            if sparse:
                raise ValueError("sparse=True needs truncated=True: exact probabilities are nowhere zero")
            return super().predict_proba(X)
        parts = self._per_part(X, lambda part, mixture: _as_csr(self._posterior(part, mixture), mixture.n_components))
        matrix = parts[0] if len(parts) == 1 else scipy_sparse.vstack(parts, format="csr")
        return matrix if sparse else matrix.toarray()

    @lazily
    def score_samples(self, X: Any, exact: bool = True) -> F64:
        """The log-likelihood of every row, (n_samples,).

        Parameters
        ----------
        X : array, data frame, source or path
        exact : bool, default=True
            False gives the lower bound of Eq. 10 from the `n_candidates` components that are found by way of cells.
        """
        if exact:
            return super().score_samples(X)
        return self._per_row(X, lambda part, mixture: self._posterior(part, mixture).log_densities)

    def _posterior(self, part: CpuShard, mixture: GaussianParameters) -> TruncatedPosterior:
        n_candidates = min(self.n_candidates, mixture.n_components)
        find_members(part, mixture, n_candidates, np.random.default_rng(0))
        return truncated_posterior(part, mixture, n_candidates)


def _as_csr(posterior: TruncatedPosterior, n_components: int) -> scipy_sparse.csr_matrix:
    """Entries sorted by component; components whose probability underflows are left out."""
    rows, places = np.nonzero(posterior.probabilities > 0)
    entries = posterior.probabilities[rows, places], (rows, posterior.members[rows, places])
    matrix = scipy_sparse.csr_matrix(entries, shape=(len(posterior.members), n_components))
    matrix.sort_indices()
    return matrix
