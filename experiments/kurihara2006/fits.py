"""What the experiments share: data of a given separation, one prior for all algorithms, and timed fits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from globular import InfiniteGaussianMixture, datasets
from globular.algorithms.infinite.infinite import InfiniteOptions
from globular.estimators.inputs import Input

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
    start_seconds: float
    """Of these, until the first cycle is done: checking the rows, their moments, the tree."""
    free_energy: float
    n_components: int
    n_iter: int
    n_distances: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def priors(rows: Rows) -> dict[str, Any]:
    """One prior for all algorithms on these rows, so that their free energies compare."""
    D = rows.shape[1]
    nu = D + 2.0
    scale = np.diag(PRIOR_SCALE * nu * rows.var(axis=0, dtype=np.float64))
    return {"prior": {"mean_precision": 0.01, "degrees_of_freedom": nu, "covariance": scale}}


class PaperMixture(InfiniteGaussianMixture):
    """The estimator with other options than it takes by itself."""

    changes: dict[str, Any]

    def _options(self, data: Input) -> InfiniteOptions:
        return replace(super()._options(data), **self.changes)


def algorithms(T: int, n_trials: int, accept: str = "best") -> dict[str, dict[str, Any]]:
    """The three algorithms as parameters of the estimator and "options", run to convergence.

    As in the paper a round keeps one split, and VIM tries splits on all rows of a component.
    """
    found = {
        "BJ": {"truncation": "fixed", "accelerate": False, "max_components": T, "n_init": n_trials,
               "init_params": "random_from_data"},
        "VIM": {"accelerate": False, "max_components": T, "options": {"accept": accept, "max_trial_rows": np.inf}},
        "Fast-VIM": {"accelerate": True, "max_components": T, "options": {"accept": accept}},
    }  # fmt: skip
    return {name: {"tol": TOL, **parameters} for name, parameters in found.items()}


def timed(fit: Callable[[], Model]) -> tuple[Model, float]:
    """What it returns, and the seconds it took."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = fit()
    return found, time.perf_counter() - began


def run(rows: Rows, parameters: dict[str, Any], seed: int) -> tuple[InfiniteGaussianMixture, Fit]:
    """One fit."""
    model = PaperMixture(random_state=seed, **{name: parameters[name] for name in parameters if name != "options"})
    model.changes = parameters.get("options", {})
    _, seconds = timed(lambda: model.fit(rows))
    started = model.history_[0].seconds
    return model, Fit(seconds, started, model.free_energy_, model.n_components_, model.n_iter_, model.n_distances_)


def warm_up() -> None:
    """Compile what the fits use, before a clock runs."""
    rows = Problem(N=600, D=4).draw(0)
    for parameters in algorithms(4, 1).values():
        run(rows, parameters, 0)


def energy_ratio(a: float, b: float) -> float:
    """1 + (F_A − F_B) / |F_B|, as the paper defines it."""
    return 1.0 + (a - b) / abs(b)
