"""What the experiments share: data of a given separation, one prior for all algorithms, and timed fits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from experiments.kurihara2006.one_by_one import one_by_one
from experiments.verdicts import Setup
from globular import InfiniteGaussianMixture, datasets
from globular.algorithms.infinite.data import CellData, CellOptions, RowData
from globular.algorithms.infinite.infinite import GROWN, InfiniteOptions, Mixture, infinite, one_component
from globular.algorithms.infinite.run import VariationalRun
from globular.algorithms.steps import Finding, Run, Step
from globular.estimators.inputs import Input
from globular.model.chunks import Chunks, NodeValue
from globular.model.covariances import FAMILIES
from globular.model.given import GivenStart
from globular.model.observations import ObservedMoments, Prior
from globular.model.wishart import GaussianPrior
from globular.seam.shard import Shard

Rows = NDArray[np.floating[Any]]
Model = TypeVar("Model")
TOL = 1e-5
"""Cycles end when F falls by less per row: a hundred times less than the default."""
PRIOR_SCALE = 0.1
"""Expected covariance of a component, relative to the variance of the columns; the same for every algorithm."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A random mixture as in the paper: N rows of D columns from ten Gaussians that are c-separated."""

    N: int = 10_000
    D: int = 16
    c: float = 2.0
    k: int = 10

    def draw(self, seed: int) -> Rows:
        """One data set."""
        return datasets.separated_mixture(
            self.N, self.k, self.D, separation=self.c, definition="kurihara", random_state=seed
        ).X


@dataclass(frozen=True, slots=True)
class Fit:
    """What a fit came to."""

    seconds: float
    """Processor time until the last cycle is done; finding the labels of the rows is not counted."""
    start_seconds: float
    """Of these, until the first cycle is done: checking the rows, their moments, the tree."""
    free_energy: float
    n_components: int
    n_iter: int
    n_distances: int
    ending: str
    """"rows", or so many cells."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def priors(rows: Rows) -> dict[str, Any]:
    """One prior for all algorithms on these rows, so that their free energies compare."""
    D = rows.shape[1]
    nu = D + 2.0
    scale = np.diag(PRIOR_SCALE * nu * rows.var(axis=0, dtype=np.float64))
    return {"prior": {"mean_precision": 0.01, "degrees_of_freedom": nu, "covariance": scale}}


class PrintedCells(CellData):
    """Cells of a tree that has no opinion of its own about the components."""

    def parts(self, value: NodeValue, gain: float) -> Chunks | None:
        return None


class PaperMixture(InfiniteGaussianMixture):
    """The estimator with other options than it takes by itself."""

    changes: dict[str, Any]
    cells_alone: bool
    """Whether rows never take over from the cells."""
    forced_to: int | None
    """Splits are kept whatever F says, T − 1 of them; None for those that lower it."""
    starts_by_row: bool
    """Whether a fixed truncation begins as in Blei and Jordan's paper, with rows that come one by one."""

    def _options(self, data: Input) -> InfiniteOptions:
        return replace(super()._options(data), **self.changes)

    def _data(self, shard: Shard, prior: Prior, options: InfiniteOptions, rng: np.random.Generator) -> RowData:
        if self.cells_alone:
            scatter = FAMILIES[prior.covariance_type].scatter.by_column
            cells = CellOptions(n_cells=1, leaf_size=1, most_cells=np.inf)  # level four
            found: RowData = PrintedCells(shard, scatter, cells, options.max_trial_rows, rng)
        else:
            found = super()._data(shard, prior, options, rng)
        if shard.n_rows >= self.seen_.shard.n_rows if hasattr(self, "seen_") else True:  # not those of a part
            self.seen_, self.asked_ = found, (shard, prior, options)
        return found

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        if not (self.cells_alone or self.starts_by_row) and self.forced_to is None:
            return (yield from super()._start(data, given, random_state))
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        prior, options = self._prior(data), self._options(data)
        seen = self._data(data.shard, prior, options, rng)
        if self.starts_by_row:
            rows = data.shard.take(np.arange(data.n_rows)).astype(np.float64)
            came = one_by_one(rows, options.T_max, options.alpha.second, cast("GaussianPrior", prior), rng)
            return Run(infinite(seen, prior, came, options, rng))
        start = one_component(seen, prior)
        if self.forced_to is None:
            return Run(infinite(seen, prior, start, options, rng))
        return Run(grown_to(self.forced_to, seen, prior, start, options, rng))

    @property
    def ending(self) -> str:
        """What the last cycles were on."""
        by_rows = not isinstance(self.seen_, CellData) or self.seen_.by_rows
        return "rows" if by_rows else f"{self.seen_.n_cells:,} cells"


def on_rows(model: PaperMixture) -> float:
    """F after cycles on rows, without splits, from where a fit has ended."""
    shard, prior, options = model.asked_
    rows, seen = RowData(shard, np.inf, np.random.default_rng(0)), model._seen()
    run = VariationalRun(rows, prior, options)
    state = run.arrange(ObservedMoments.from_pass(seen, rows.e_step(seen)), 0.0, np.zeros((seen.n_components, 2)))
    *_, last = run.cycle(state, None, options.tol, GROWN)
    return -float(last.objective)


class _KeepsAll(VariationalRun):
    """A run whose splits are kept whatever F says."""

    def __init__(self, data: RowData, prior: Prior, options: InfiniteOptions) -> None:
        super().__init__(data, prior, options)
        self._rules = replace(self._rules, epsilon=-np.inf, gain=-np.inf, smallest=0.0)


def grown_to(
    T: int, data: RowData, prior: Prior, start: ObservedMoments, options: InfiniteOptions, rng: np.random.Generator
) -> Iterator[Step[Mixture]]:
    """The best split of ten candidates drawn by size, one a round, T − 1 times; what vanishes again is dropped."""
    run = _KeepsAll(data, prior, options)
    state = run.arrange(start, 0.0, np.zeros((len(start), 2)))
    state = yield from run.cycle(state, None, options.tol)
    for _ in range(T - 1):
        counts = state.moments.counts
        n = min(options.n_candidates, int((counts > 0).sum()))
        candidates = rng.choice(len(counts), size=n, replace=False, p=counts / counts.sum())
        trials = [trial for trial in run.trials(state, candidates) if len(trial.children) > 1]
        if not trials or run.ended:
            break
        state = yield from run.cycle(run.split(state, trials[:1]), None, options.tol)
    yield from run.cycle(state, None, options.tol, GROWN)


PRINTED = {"n_sown": 0, "n_polishing": 0, "accept": "best", "max_trial_rows": np.inf}
"""As in the paper: no other start, no steps by predictive densities, one split a round, tried on all rows."""
CELLS = "Fast-VIM on cells"
BY_ROW = "BJ, rows one by one"


def algorithms(T: int, n_trials: int, accept: str = "best") -> dict[str, dict[str, Any]]:
    """The algorithms as parameters of the estimator and "options", run to convergence.

    As in the paper a round keeps one split, and VIM tries splits on all rows of a component. "Fast-VIM" may go over to
    rows, "Fast-VIM on cells" never does.
    """
    found = {
        "BJ": {"truncation": "fixed", "accelerate": False, "max_components": T, "n_init": n_trials,
               "init_params": "random_from_data"},
        "VIM": {"accelerate": False, "max_components": T, "options": {"accept": accept, "max_trial_rows": np.inf}},
        "Fast-VIM": {"accelerate": True, "max_components": T, "options": {"accept": accept}},
        CELLS: {"accelerate": True, "max_components": T, "options": PRINTED | {"accept": accept}, "cells_alone": True},
    }  # fmt: skip
    return {name: {"tol": TOL, **parameters} for name, parameters in found.items()}


def to_T(T: int, n_trials: int) -> dict[str, dict[str, Any]]:
    """Fig. 1 as printed: everybody has T components at the end."""
    found = algorithms(T, n_trials)
    forced = {"options": PRINTED, "to_T": T}
    by_row = found["BJ"] | {"starts_by_row": True}
    return {"BJ": found["BJ"], BY_ROW: by_row, "VIM": found["VIM"] | forced, CELLS: found[CELLS] | forced}


def timed(fit: Callable[[], Model]) -> tuple[Model, float]:
    """What it returns, and the processor time that it took."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fit()
    return found, time.process_time() - began


def run(rows: Rows, parameters: dict[str, Any], seed: int) -> tuple[PaperMixture, Fit]:
    """One fit."""
    own = ("options", "cells_alone", "to_T", "starts_by_row")
    model = PaperMixture(random_state=seed, **{name: parameters[name] for name in parameters if name not in own})
    model.changes, model.cells_alone = parameters.get("options", {}), parameters.get("cells_alone", False)
    model.forced_to, model.starts_by_row = parameters.get("to_T"), parameters.get("starts_by_row", False)
    marks = [time.process_time()]
    model.set_params(callbacks=[lambda *_: marks.append(time.process_time())])
    timed(lambda: model.fit(rows))
    numbers = model.free_energy_, model.n_components_, model.n_iter_, model.n_distances_
    return model, Fit(marks[-1] - marks[0], marks[1] - marks[0], *numbers, model.ending)


def fingerprint() -> float:
    """F of VIM and Fast-VIM on a small set, kept beside fits of hours: another number is of another algorithm."""
    rows = Problem(N=3000, D=8).draw(0)
    chosen = algorithms(50, 1, accept="all")
    return sum(run(rows, chosen[name] | priors(rows), 0)[1].free_energy for name in ("VIM", "Fast-VIM", CELLS))


@cache
def warm_up() -> None:
    """Compile what the fits use, before a clock runs; once a process."""
    rows = Problem(N=600, D=4).draw(0)
    for parameters in (algorithms(4, 1) | to_T(4, 1)).values():
        run(rows, parameters, 0)


SETUP = Setup(
    command="",
    data="",
    stopping="",
    runs="",
    start="VIM and Fast-VIM from one component; BJ from random rows for means, every row to the closest, and the best "
    "of its starts",
    priors=f"the same for all algorithms: normal-Wishart with ν₀ = D + 2, S₀ = {PRIOR_SCALE:g} ν₀ times the variances "
    "of the columns, β₀ = 0.01, mean that of the data; sticks Beta(1, 1). The paper prints none",
    splits="the best of ten candidates drawn by size, one a round; a split has to lower F by 0.02 nats per row of its "
    "component, and each child to hold 10 rows (the paper: any fall of F). Where T is forced, T − 1 splits are kept "
    "whatever F says; components that vanish again are dropped",
    ending="“Fast-VIM” goes over to rows where cells would cost as much, “Fast-VIM on cells” never does",
    deviations="“Fast-VIM” has about 1,000 even cells at first (the paper, and “on cells”: level four); those "
    "of a candidate are opened where it has fewer than 16 (one level); children are updated six times at most (to "
    "convergence); the tree is expanded by the fall of F; components that splits made superfluous are merged; "
    "“Fast-VIM” also listens to the best partition of the tree and to another start with more components: see "
    "`docs/infinite.md`",
)
"""What all figures have in common."""


def energy_ratio(a: float, b: float) -> float:
    """1 + (F_A − F_B) / |F_B|, as the paper defines it."""
    return 1.0 + (a - b) / abs(b)
