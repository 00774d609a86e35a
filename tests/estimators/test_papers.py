"""Parameters by which estimators run the papers' own algorithms: they reach the algorithm, and do what they say."""

from typing import Any

import numpy as np
import pytest
from sklearn.utils import check_random_state

from globular.algorithms.kmeans.nested import NestedOptions, nested_kmeans
from globular.algorithms.kmeans.variational import VariationalOptions, variational_kmeans
from globular.datasets import birch_grid, many_blobs
from globular.passes.cpu import CpuShard

from globular import (  # isort: skip
    ChunkyGaussianMixture, InfiniteGaussianMixture, NestedMiniBatchKMeans, VariationalGaussianMixture,
    VariationalKMeans,
)  # fmt: skip

X = birch_grid(6, 50, random_state=0).X.astype(np.float64)
START = X[:: len(X) // 36][:36].copy()


def numbers(seed: int) -> np.random.Generator:
    """The numbers that an estimator with this seed hands to its algorithm."""
    return np.random.default_rng(check_random_state(seed).randint(2**31, size=4))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("neighborhoods", ["estimated", "exhaustive"])
def test_k_means_begins_as_printed(neighborhoods: Any) -> None:
    letters: dict[str, Any] = {"n_random": 2, "n_warmup": 3, "max_iter": 9, "tol": 0.0, "neighborhoods": neighborhoods}
    far = np.append(START[:-1], [[1e6, 1e6]], axis=0)  # no row is closest to this one: it stays
    options = VariationalOptions(1, 4, printed=True, **letters)
    *_, expected = variational_kmeans(CpuShard(X), far, options, numbers(5))
    model = VariationalKMeans(
        36, n_candidates=1, n_neighbors=4, start="printed", init=far, n_init=1, random_state=5, **letters
    )
    model.fit(X)
    assert model.cluster_centers_.max() == 1e6
    assert np.allclose(model.cluster_centers_, expected.model.centers, rtol=1e-9)
    assert (model.neighbors_ == expected.model.graph).all()


def test_mixtures_begin_as_printed() -> None:
    def fit(**options: Any) -> VariationalGaussianMixture:
        model = VariationalGaussianMixture(
            36, n_candidates=4, n_neighbors=4, init=START, random_state=5, reg_covar=0, **options
        )
        return model.fit(X)

    closest, printed, warm = fit(), fit(start="printed"), fit(start="printed", n_warmup=6)
    assert closest.lower_bounds_[0] > printed.lower_bounds_[0]
    assert warm.lower_bounds_[0] > printed.lower_bounds_[0]
    assert fit(n_random=0).n_distances_ / fit(n_random=0).n_iter_ < closest.n_distances_ / closest.n_iter_
    assert all((np.diff(model.lower_bounds_) > -1e-9).all() for model in (printed, warm))


@pytest.mark.parametrize("option", [{"n_random": 2}, {"start": "printed"}, {"n_warmup": 1}], ids=str)
def test_what_neighborhoods_alone_have_is_refused_with_cells(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set search='neighbors'"):
        VariationalGaussianMixture(36, search="probing", **option).fit(X)


@pytest.mark.parametrize(
    ("parameters", "options"),
    [
        ({"growth_threshold": 100.0}, {"rho": 100.0}),
        ({"growth_threshold": np.inf, "algorithm": "nmbatch.deact"}, {"rho": np.inf, "bounds": None}),
        ({"algorithm": "mbatch"}, {"nested": False, "remove_old": False, "bounds": None}),
        ({"algorithm": "mbatch.remove"}, {"nested": False, "bounds": None}),
    ],
    ids=["nmbatch", "nmbatch.deact", "mbatch", "mbatch.remove"],
)
def test_batches_are_those_of_the_paper(parameters: dict[str, Any], options: dict[str, Any]) -> None:
    options = options if "rho" in options else {"rho": 5.0, "together": True, **options}
    *_, expected = nested_kmeans(CpuShard(X), START, NestedOptions(150, max_epochs=8, **options), numbers(5))
    model = NestedMiniBatchKMeans(
        36, batch_size=150, init=START, n_init=1, init_size=len(X), max_iter=8, max_no_improvement=None,
        random_state=5, **parameters,
    )  # fmt: skip
    model.fit(X)
    assert np.allclose(model.cluster_centers_, expected.model.centers, rtol=1e-9)
    assert (model.n_steps_, model.batch_size_) == (expected.iteration, expected.model.batch_size)


def test_a_batch_grows_when_nothing_moves_whatever_is_asked() -> None:
    apart = many_blobs(2000, 4, 2, center_std=50.0, random_state=0).X
    model = NestedMiniBatchKMeans(4, batch_size=100, growth_threshold=np.inf, max_no_improvement=None, random_state=0)
    assert model.fit(apart).batch_size_ == len(apart)


@pytest.mark.parametrize("algorithm", ["mbatch", "mbatch.remove", "nmbatch.deact"])
def test_only_nmbatch_has_bounds(algorithm: str) -> None:
    with pytest.raises(ValueError, match=f"algorithm='{algorithm}' takes search='exact'"):
        NestedMiniBatchKMeans(4, algorithm=algorithm, search="elkan").fit(X)
    assert NestedMiniBatchKMeans(4, algorithm=algorithm, random_state=0).fit(X).search_ == "exact"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_cells_are_opened_one_by_one() -> None:
    def numbers_of_cells(refinement: str) -> list[int]:
        model = ChunkyGaussianMixture(
            4, refinement=refinement, refine_tol=1e-6, max_cells=400, polish=False, max_iter=60, random_state=0
        )
        cells = [model.n_cells_ for _ in model.fit_iter(many_blobs(20_000, 9, 2, random_state=0).X)]
        assert (np.diff(model.lower_bounds_) > -1e-9).all()
        return cells

    best_first, batch = numbers_of_cells("best_first"), numbers_of_cells("batch")
    assert max(np.diff(best_first)) == 1 < max(np.diff(batch))


@pytest.mark.parametrize("depth", [2, 5])
def test_chunky_em_is_refined_as_printed(depth: int) -> None:
    rows, tol = many_blobs(20_000, 9, 2, random_state=0).X, 1e-4
    model = ChunkyGaussianMixture(6, refinement="printed", depth=depth, tol=tol, random_state=0)
    steps = [(model.n_cells_, model.lower_bounds_[-1]) for _ in model.fit_iter(rows)]
    cells, bounds = map(np.array, zip(*steps, strict=True))
    last = np.flatnonzero(np.diff(cells, append=0))  # the last step at each partition
    first = np.append(0, last[:-1] + 1)
    assert cells[0] == 2**depth and (np.diff(cells[last]) == 1).all()  # one node at a time
    assert (np.diff(bounds) > -1e-9).all()
    gains = np.diff(bounds) / np.abs(bounds[1:])
    for begin, end in zip(first, last, strict=True):  # EM until the bound has settled, and no longer
        assert gains[end - 1] <= tol and (gains[begin : end - 1] > tol).all() and end > begin
    between = np.diff(bounds[last]) / np.abs(bounds[last][1:])
    assert (between[:-1] > tol).all() and between[-1] <= tol
    assert model.converged_ and model.stopped_ == "other cells raised the bound by less than tol of itself"


def test_chunky_em_as_printed_looks_at_all_components() -> None:
    for wrong in ({"polish": True}, {"n_candidates": 3}):
        with pytest.raises(ValueError, match="refinement='printed' takes neither"):
            ChunkyGaussianMixture(4, refinement="printed", **wrong).fit(X)
    rows = many_blobs(5000, 9, 2, random_state=0).X
    few = ChunkyGaussianMixture(4, refinement="printed", max_cells=7, tol=1e-6, random_state=0).fit(rows)
    assert few.n_cells_ == 7 and few.stopped_ == "max_cells"


def test_one_split_a_round() -> None:
    rows = many_blobs(3000, 9, 2, center_std=20.0, random_state=0).X

    def fit(accept: str) -> InfiniteGaussianMixture:
        return InfiniteGaussianMixture(accelerate=False, accept_splits=accept, random_state=0).fit(rows)

    best, every = fit("best"), fit("all")
    assert best.n_components_ == every.n_components_ == 9
    assert best.n_iter_ > every.n_iter_  # a split has two to four children, and a round has one split
