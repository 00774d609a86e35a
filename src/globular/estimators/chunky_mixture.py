"""`ChunkyGaussianMixture`: EM on cells of the data, refined where it pays."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from globular.algorithms.mixtures.chunky import LEAF_SIZE, ChunkyModel, ChunkyOptions, Polishing, begin_chunky
from globular.algorithms.mixtures.chunky_printed import begin_printed
from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.mixtures.starts import MIXTURE_STARTS
from globular.algorithms.steps import Finding, Run
from globular.estimators.checks import check_allocation, chunky_bytes
from globular.estimators.conditional import ConditionalMixture
from globular.estimators.inputs import Input
from globular.estimators.mixtures import N_CANDIDATES
from globular.estimators.parameters import AUTO, FROM_ONE, FROM_ZERO, NOT_NEGATIVE, Constraints, one_of
from globular.estimators.starts import checked_shape
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.given import GivenStart

CHUNKY_STARTS = (*MIXTURE_STARTS, "greedy")
ROWS_PER_CELL = 10
"""Where `max_cells` is not given there is one cell for this many rows: with more of them cells save too little."""
MOST_CELLS_PER_COMPONENT = 40
"""Cells for every component, where that is more."""
FEWEST_CELLS = 1000
"""Cells where both are fewer."""
TRUNCATED_FROM = 400
"""Number of components from which cells look at few of them."""


@dataclass(eq=False, repr=False)
class ChunkyGaussianMixture(ConditionalMixture):
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
    refine_tol : float, default=0.03
        Stop when the bound of a row is closer than this to its log-likelihood, in nats, as some rows of every cell have
        it, both for the mixture found and where EM on a sample of the rows goes from there. No more is lost against EM
        continued on the rows, as far as the sample tells, and mostly much less is. (With `n_candidates` only the
        mixture found is looked at.)
    refinement : {"batch", "best_first", "printed"}, default="batch"
        Open a quarter of the cells at once, those that raise the bound most; or one cell after the other, the best
        first. "printed" is all of the paper's experiments: from the cells at `depth` on, EM until the bound increases
        by less than `tol` of itself, then the cell opened that raises it most, until EM on other cells increases it by
        less than that, too. `refine_tol` has no part in it, all components are looked at, and no step is on rows.
    depth : int, default=2
        "printed": depth of the first cells in the tree, 4 cells for 2. From 64 cells on (6) little is lost against EM.
    max_cells : int or None, default=None
        Stop when there are about this many cells; None is a tenth of the rows, 40 for every component or 1,000,
        whichever is most ("printed": no limit).
    polish : {"auto", True, False}, default="auto"
        Whether to finish on single rows: exact EM, begun where the cells ended, which costs passes over all rows and
        ends where EM would. "auto" does so if the cells of ``max_cells=None`` are not enough to reach `refine_tol`:
        more than a few columns, much overlap, very uneven clusters.
    n_candidates : int, "auto" or None, default="auto"
        Components that each cell looks at, found by way of their neighbours; None is all of them, "auto" 5 from 400
        components on.
    {weights}
    tol : float, default=1e-3
        EM on given cells has settled when the mean bound of a row changes by less; on the last cells by less than a
        tenth of it. With "printed" a share of the bound, for which the paper has no number; 1e-5 serves.
    {reg_covar}
    max_iter : int, default=1000
        Most EM steps of one run; 0 leaves the mixture where it starts.
    {n_runs}
    init : {"kmeans", "k-means++", "random", "random_from_data", "greedy"} or array, default="kmeans"
        How to find the starting means, all on the first cells: k-means centres of the cells, k-means++ seeds, near the
        mean of all rows, random cells (the best of up to four draws after some steps); or grow the mixture from one
        component by splitting. An array of shape
        (n_components, n_features) holds them. (:class:`GaussianMixture` with ``algorithm="chunky"`` takes weights and
        precisions to start from as well.)
    {max_time, random_state, warm_start, verbose, callbacks, n_threads}

    Attributes
    ----------
    weights_, means_, covariances_, precisions_, precisions_cholesky_, labels_, n_iter_, stopped_
        As in :class:`GaussianMixture`.
    converged_ : bool
        Whether EM had settled when refining ended.
    n_cells_ : int
        Cells of the last iteration; all rows if it was polished.
    lower_bound_ : float
        Mean bound of a row (weighted) at the parameters the last iteration began with.
    {lower_bounds_, history_}
    n_distances_ : int
        Densities of a cell under a component evaluated in the whole fit, the starting point apart.

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

    n_components: int = 1
    _: KW_ONLY
    covariance_type: Literal["full", "tied", "diag", "spherical", "tied_spherical"] = "full"
    refine_tol: float = 0.03
    refinement: Literal["batch", "best_first", "printed"] = "batch"
    depth: int = 2
    max_cells: int | None = None
    polish: bool | str = "auto"
    n_candidates: int | str | None = "auto"
    weights: str = "learned"
    tol: float = 1e-3
    reg_covar: float | str = "auto"
    max_iter: int = 1000
    max_time: float | None = None
    n_init: int = 1
    init: Any = "kmeans"
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None

    _constraints: ClassVar[Constraints] = {
        "refine_tol": [NOT_NEGATIVE],
        "depth": [FROM_ZERO],
        "polish": ["boolean", AUTO],
        "n_candidates": [AUTO, None, FROM_ONE],
        "init": [one_of(*CHUNKY_STARTS), "array-like"],
    }

    def _check_fit(self, data: Input) -> None:
        if self.polish is True and data.matrix is None and self._C_prime is not None:
            raise ValueError("polish=True with n_candidates needs the rows in memory, X is streamed; set polish=False")
        if self._is_printed and (self.polish is True or isinstance(self.n_candidates, int)):
            raise ValueError("refinement='printed' takes neither polish=True nor n_candidates; 'best_first' does")

    def _most_bytes(self, data: Input) -> None:
        check_tree(data, self.covariance_type)

    def _given(self, data: Input) -> GivenStart:
        if isinstance(self.init, str):
            return super()._given(data)
        means = checked_shape(self.init, (self.n_components, data.n_columns), "init")
        return GivenStart(self.covariance_type, means=means)

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        yield from ()  # a start on the cells takes little time
        options = self._options(data, given.bound)
        limits = covariance_limits(data.shard, EMOptions(reg_covar=self.reg_covar))
        begin = partial(begin_printed, depth=self.depth) if self._is_printed else begin_chunky
        run, self.n_cells_ = begin(
            data.shard, self.n_components, self.init, given, options, random_state, limits=limits
        )
        return run

    @property
    def _C_prime(self) -> int | None:
        """Components per cell, None for all of them."""
        return None if self._is_printed else resolved_candidates(self.n_candidates, self.n_components)

    @property
    def _is_printed(self) -> bool:
        return self.refinement == "printed"

    def _options(self, data: Input, previous_bound: float) -> ChunkyOptions:
        polish: Polishing = "always" if self.polish else "never"
        if self.polish == "auto":
            # a limit that the user set is meant; rows with few components each need memory
            may = self.max_cells is None and (self._C_prime is None or data.matrix is not None)
            polish = "needed" if may else "never"
        most = data.n_rows if self._is_printed else most_cells(data.n_rows, self.n_components)
        return ChunkyOptions(
            max_iter=self.max_iter, tol=self.tol, refine_tol=self.refine_tol,
            max_cells=self.max_cells or most,
            refine="best_first" if self.refinement == "best_first" else "batch", polish=polish,
            C_prime=self._C_prime, learned_weights=self._learns_weights, previous_bound=previous_bound,
        )  # fmt: skip

    def _take_over(self, model: ChunkyModel) -> GaussianParameters:
        self.n_cells_ = model.n_cells
        return model.mixture


def check_tree(data: Input, covariance_type: str) -> None:
    """Say how much memory the tree over the rows takes, and refuse one that cannot fit."""
    check_allocation(
        chunky_bytes(data.n_rows, data.n_columns, LEAF_SIZE, FAMILIES[covariance_type].scatter),
        f"a tree with leaves of {LEAF_SIZE} rows, twice while it is built",
        "take covariance_type='diag' or pass X as a file",
    )


def most_cells(n_rows: int, n_components: int) -> int:
    """Most cells, unless the user says so."""
    return max(n_rows // ROWS_PER_CELL, MOST_CELLS_PER_COMPONENT * n_components, FEWEST_CELLS)


def resolved_candidates(n_candidates: int | str | None, n_components: int) -> int | None:
    """Components per cell, None for all of them."""
    if n_candidates == "auto":
        return N_CANDIDATES if n_components >= TRUNCATED_FROM else None
    if n_candidates is None or isinstance(n_candidates, str) or n_candidates >= n_components:
        return None
    return int(n_candidates)
