"""`ChunkyGaussianMixture`: EM on cells of the data, refined where it pays."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from globular.algorithms.chunky import SETTLED, ChunkyModel, ChunkyOptions, Polishing, chunky
from globular.algorithms.em import EMOptions, covariance_limits
from globular.algorithms.steps import Step
from globular.estimators.chunky_starts import (
    CHUNKY_STARTS,
    LEAF_SIZE,
    plant,
    resolved_candidates,
    resolved_max_cells,
    starting_chunky,
)
from globular.estimators.inputs import Input
from globular.estimators.mixture_starts import GivenStart
from globular.estimators.mixtures import MixtureEstimator
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.history import History
from globular.threads import resolve_threads


class ChunkyGaussianMixture(MixtureEstimator):
    """Gaussian mixture fitted on cells of the data: EM whose iterations do not cost the number of rows.

    A tree is laid over the rows and holds the weight, mean and scatter of every node. All rows of a node share their
    responsibilities, which are those of the largest bound on the log-likelihood; nodes are opened where that raises the
    bound most. Where rows are many and columns few this reaches the likelihood of EM at a small part of its cost. The
    bound (`lower_bound_`) never falls, and never exceeds the mean log-likelihood.

    Parameters
    ----------
    n_components : int, default=1
    covariance_type : {"full", "tied", "diag", "spherical", "tied_spherical"}, default="full"
        See :class:`GaussianMixture`.
    refine : {"batch", "best_first"}, default="batch"
        How cells are opened whenever EM has settled: the best part of them at once, or the single best as in the
        paper. "batch" also opens cells for the starting mixture, before the first EM step.
    refine_tol : float, default=0.03
        Stop when the bound of a row is closer than this to its log-likelihood, in nats, as some rows of every cell have
        it. No more can be lost against EM, and mostly much less is.
    max_cells : int or None, default=None
        Stop when there are about so many cells; None is a tenth of the rows, 40 for every component or 1,000, whichever
        is most.
    polish : {"auto", True, False}, default="auto"
        Whether to finish on single rows: exact EM, begun where the cells ended, which costs passes over all rows and
        ends where EM would. "auto" does so if the cells of ``max_cells=None`` are not enough to reach `refine_tol`:
        more than a few columns, much overlap, very uneven clusters.
    responsibilities : {"optimal", "centroid"}, default="optimal"
        Those of the largest bound, or the posterior at the mean of the cell (Moore 1999), for comparison: with them
        the bound may fall.
    leaf_size : int, default=16
        Nodes of so many rows are not split further in the tree; opened, they fall into single rows. Smaller leaves take
        more memory, about 2.8 / leaf_size nodes per row.
    initial_depth : int or None, default=None
        Begin with the nodes of this depth; the paper begins with 2. None begins with about ten cells of even weight for
        every component (a hundred with ``init="greedy"``).
    n_candidates : int, "auto" or None, default="auto"
        Components that each cell looks at, found by way of their neighbours; None is all of them, "auto" 5 from 400
        components on.
    n_neighbors : int, default=5
        Size of the neighbourhoods of components, with `n_candidates`.
    weights : {"learned", "equal"}, default="learned"
        Whether components have mixing weights of their own.
    tol : float, default=1e-3
        EM on given cells has settled when the mean bound of a row changes by less; on the last cells by less than a
        tenth of it.
    reg_covar : float, default=1e-6
        Added to the variances; see :class:`GaussianMixture`.
    max_iter : int, default=1000
        Most EM steps of one run; 0 leaves the mixture where it starts.
    max_time : float or None, default=None
        Seconds after which to stop at the end of the running iteration.
    n_init : int, default=1
        Number of runs from different starts, of which the best is kept.
    init : {"kmeans", "k-means++", "random", "random_from_data", "greedy"}, default="kmeans"
        How to find the starting means, all on the first cells: k-means centres of the cells, k-means++ seeds, near the
        mean of all rows, random cells; or grow the mixture from one component by splitting.
    weights_init, means_init, precisions_init : array-like or None, default=None
        Starting parameters, in the shapes of `weights_`, `means_` and `precisions_`.
    random_state : int, RandomState or None, default=None
        Seed of the start and of `sample`.
    warm_start : bool, default=False
        Begin where the last fit ended; `n_init` is then ignored.
    verbose : int, default=0
        1 shows a progress bar with the bound and the time left.
    callbacks : callback, callable or list of them, default=None
        See :mod:`globular.callbacks`.
    n_threads : int or None, default=None
        Threads; None is GLOBULAR_NUM_THREADS or all cores. The result does not depend on it.

    Attributes
    ----------
    weights_ : array of shape (n_components,)
    means_ : array of shape (n_components, n_features)
    covariances_, precisions_, precisions_cholesky_ : array
        In the shapes of :class:`GaussianMixture`.
    converged_ : bool
        Whether EM had settled when refining ended.
    n_iter_ : int
    n_cells_ : int
        Cells of the last iteration; all rows if it was polished.
    lower_bound_ : float
        Mean bound of a row (weighted) at the parameters the last iteration began with.
    lower_bounds_ : list of float
        The same for every iteration of the best run.
    history_ : :class:`globular.model.history.History`
        One record per iteration of the best run; objectives are bounds of all rows.
    n_distances_ : int
        Densities of a cell under a component evaluated in the whole fit, the starting point apart.
    stopped_ : str
        Why the best run ended.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import ChunkyGaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(20_000, 2)) + np.repeat([[0, 0], [9, 9]], 10_000, axis=0)
    >>> model = ChunkyGaussianMixture(n_components=2, random_state=0).fit(X)
    >>> np.abs(sorted(model.means_.tolist()) - np.array([[0, 0], [9, 9]])).max() < 0.1
    np.True_
    >>> model.n_cells_ < 1000
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any] | str]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "covariance_type": [StrOptions(set(FAMILIES))],
        "refine": [StrOptions({"batch", "best_first"})],
        "refine_tol": [Interval(Real, 0, None, closed="left")],
        "max_cells": [None, Interval(Integral, 1, None, closed="left")],
        "polish": ["boolean", StrOptions({"auto"})],
        "responsibilities": [StrOptions({"optimal", "centroid"})],
        "leaf_size": [Interval(Integral, 1, None, closed="left")],
        "initial_depth": [None, Interval(Integral, 0, 60, closed="both")],
        "n_candidates": [StrOptions({"auto"}), None, Interval(Integral, 1, None, closed="left")],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "weights": [StrOptions({"learned", "equal"})],
        "tol": [Interval(Real, 0, None, closed="left")],
        "reg_covar": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "max_time": [None, Interval(Real, 0, None, closed="neither")],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "init": [StrOptions(set(CHUNKY_STARTS))],
        "weights_init": ["array-like", None],
        "means_init": ["array-like", None],
        "precisions_init": ["array-like", Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "callbacks": "no_validation",
        "n_threads": [None, Integral],
    }

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: str = "full",
        refine: str = "batch",
        refine_tol: float = 0.03,
        max_cells: int | None = None,
        polish: bool | str = "auto",
        responsibilities: str = "optimal",
        leaf_size: int = LEAF_SIZE,
        initial_depth: int | None = None,
        n_candidates: int | str | None = "auto",
        n_neighbors: int = 5,
        weights: str = "learned",
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        max_iter: int = 1000,
        max_time: float | None = None,
        n_init: int = 1,
        init: str = "kmeans",
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        callbacks: Any = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.refine = refine
        self.refine_tol = refine_tol
        self.max_cells = max_cells
        self.polish = polish
        self.responsibilities = responsibilities
        self.leaf_size = leaf_size
        self.initial_depth = initial_depth
        self.n_candidates = n_candidates
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.max_time = max_time
        self.n_init = n_init
        self.init = init
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks
        self.n_threads = n_threads

    def _check_fit(self, data: Input) -> None:
        if self.weights == "equal" and self.weights_init is not None:
            raise ValueError("weights_init has no place with weights='equal'; leave one of them out")
        if self.responsibilities == "centroid" and self.n_candidates not in (None, "auto"):
            raise ValueError("responsibilities='centroid' looks at all components; set n_candidates=None")
        truncated = resolved_candidates(self.n_candidates, self.n_components) is not None
        if self.polish is True and truncated and data.matrix is None:
            raise ValueError("polish=True with n_candidates needs the rows in memory, X is streamed; set polish=False")
        self._given_start(data)

    def _most_bytes(self, data: Input) -> None:
        """The tree says it (`plant`)."""

    def _given_start(self, data: Input) -> GivenStart:
        return GivenStart.check(
            self.weights_init,
            self.means_init,
            self.precisions_init,
            self.n_components,
            data.n_columns,
            self.covariance_type,
        )

    def _steps(
        self, data: Input, continued: GaussianParameters | None, random_state: np.random.RandomState
    ) -> Iterator[Step[ChunkyModel]]:
        options = self._options(data, continued)
        limits = covariance_limits(data.shard, EMOptions(reg_covar=self.reg_covar))
        self.n_cells_ = plant(
            data,
            self.n_components,
            self.covariance_type,
            self.init,
            options.max_cells,
            leaf_size=self.leaf_size,
            depth=self.initial_depth,
        )
        start = continued or starting_chunky(
            data.shard,
            self.n_components,
            self.covariance_type,
            self.init,
            self._given_start(data),
            options,
            limits,
            random_state,
        )
        self._publish_mixture(start, data, History(), "")
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        return chunky(data.shard, start, options, rng, limits=limits)

    def _options(self, data: Input, continued: GaussianParameters | None) -> ChunkyOptions:
        all_components = self.responsibilities == "centroid"
        C_prime = None if all_components else resolved_candidates(self.n_candidates, self.n_components)
        return ChunkyOptions(
            max_iter=self.max_iter,
            tol=self.tol,
            refine_tol=self.refine_tol,
            max_cells=resolved_max_cells(self.max_cells, data.n_rows, self.n_components),
            refine="best_first" if self.refine == "best_first" else "batch",
            polish=self._polishing(data, C_prime),
            rule="centroid" if self.responsibilities == "centroid" else "optimal",
            C_prime=C_prime,
            G=self.n_neighbors,
            learned_weights=self.weights == "learned",
            previous_bound=self.lower_bound_ if continued else -np.inf,
            n_threads=resolve_threads(self.n_threads),
        )

    def _polishing(self, data: Input, C_prime: int | None) -> Polishing:
        if self.polish != "auto":
            return "always" if self.polish else "never"
        # a limit that the user set is meant; rows with few components each need memory
        return "needed" if self.max_cells is None and (C_prime is None or data.matrix is not None) else "never"

    def _take_over(self, step: Step[ChunkyModel]) -> GaussianParameters:
        self.n_cells_ = step.model.n_cells
        return step.model.mixture

    def _publish_mixture(self, mixture: GaussianParameters, data: Input, history: History, stopped: str) -> None:
        super()._publish_mixture(mixture, data, history, stopped)
        self.converged_ = stopped in SETTLED
