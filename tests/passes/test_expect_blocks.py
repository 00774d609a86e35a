"""E-steps of mixtures as one call per thread: products inside kernels, spans, and the paths that sizes decide."""

from typing import Any

import numpy as np
import pytest

from globular.jit import kernel
from globular.jit.blas import add_product, add_symmetric, multiply_by_triangle
from globular.model.gaussian import GaussianParameters
from globular.passes.cpu import CpuShard
from globular.passes.cpu import shard as cpu_shard
from globular.passes.cpu.engine.densities import FEW_COLUMNS
from globular.passes.cpu.expect import blocks as expect_blocks
from globular.passes.cpu.expect.blocks import ChunkBlocks
from globular.passes.cpu.expect.remembered import look_at_all
from globular.passes.tree import expect as tree_expect
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect
from globular.seam.tree_passes import Gains, OpenGaining, Plant
from globular.threads import single_threaded_blas
from reference.expect import SUMS, assert_alike


@kernel
def multiply(factors: Any, rows: Any, m: int, out: Any, y: Any, total: Any) -> None:
    add_product(y, rows, 1, m, total)
    add_symmetric(rows, m, out, 1)
    multiply_by_triangle(factors, 1, rows, m)


@pytest.mark.parametrize("D", [1, 3, 17])
def test_products_inside_kernels(D: int) -> None:
    """As NumPy has them; other rows and matrices stay as they are."""
    random = np.random.default_rng(D)
    factors, rows = random.normal(size=(2, D * D)), random.normal(size=(9, D))
    out, y, total = random.normal(size=(3, D * D)), random.normal(size=(4, 8)), random.normal(size=(4, D))
    new_rows, new_out, new_total = rows.copy(), out.copy(), total.copy()
    call = single_threaded_blas(multiply)
    call(factors, new_rows, 6, new_out, y, new_total)
    np.testing.assert_allclose(new_total, total + y[:, :6] @ rows[1:7], atol=1e-12)
    np.testing.assert_allclose(new_rows[:6], rows[:6] @ np.triu(factors[1].reshape(D, D)), atol=1e-12)
    np.testing.assert_array_equal(new_rows[6:], rows[6:])
    added = (new_out - out).reshape(3, D, D)
    np.testing.assert_allclose(added[1], np.triu(rows[:6].T @ rows[:6]), atol=1e-12)
    assert not added[[0, 2]].any()


def some_mixture(rows: Any, kind: str, C: int = 5) -> GaussianParameters:
    random, D = np.random.default_rng(0), rows.shape[1]
    matrices = np.eye(D) + 0.1 * random.normal(size=(C, D, D))
    covariances = matrices @ matrices.transpose(0, 2, 1)
    if kind == "diag":
        covariances = np.einsum("cdd->cd", covariances).copy()
    return GaussianParameters(np.full(C, 1 / C), rows[:C].astype(np.float64), covariances, kind)


@pytest.mark.parametrize(("kind", "D"), [("diag", 4), ("full", 4), ("full", 39), ("full", 40)])
def test_rows_that_have_to_be_converted_give_the_same_bits(kind: str, D: int) -> None:
    rows = np.random.default_rng(1).normal(size=(3_000, D)).astype(np.float32)
    weights = np.random.default_rng(2).uniform(size=len(rows))
    mixture = some_mixture(rows, kind)
    shards = [CpuShard(rows, weights), CpuShard(np.asfortranarray(rows), weights, n_threads=2)]
    one, two = (shard.run(Expect(mixture)) for shard in shards)
    for name in SUMS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    for want in ("components", "log_densities", "probabilities"):
        np.testing.assert_array_equal(*(shard.run(Answer(mixture, want))[0] for shard in shards))


@pytest.mark.parametrize(("kind", "D"), [("diag", 4), ("full", 4), ("full", 40)])
@pytest.mark.parametrize(
    "sizes", [{"SPAN_SUMS": 1, "FEWEST_SPANS": 1}, {"SPAN_SUMS": 1}, {"SPAN_WORK": 1, "LEAST_ROWS": 1},
              {"SPAN_WORK": 1, "LEAST_ROWS": 1, "SUMMED_AT_ONCE": 1}, {"TINY_WORK": 0}, {"BLOCK_ENTRIES": 1}],
)  # fmt: skip
def test_how_rows_are_cut_changes_rounding_alone(kind, D, sizes, monkeypatch):
    rows = np.random.default_rng(1).normal(size=(2_500, D))
    mixture = some_mixture(rows, kind)
    wanted = CpuShard(rows).run(Expect(mixture))
    for name, value in sizes.items():
        monkeypatch.setattr(expect_blocks, name, value)
    found = [CpuShard(rows, n_threads=n).run(Expect(mixture)) for n in (1, 2)]
    assert_alike(found[0], wanted, 1e-11)
    for name in SUMS:
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))


@pytest.mark.parametrize("kind", ["full", "diag"])
@pytest.mark.parametrize("D", [1, FEW_COLUMNS, FEW_COLUMNS + 1])
def test_pairs_of_all_components_give_the_sums_of_all_components(kind: str, D: int) -> None:
    """Few columns go by lines, more of them by products; with any number of threads and spans, the same bits."""
    rows = np.random.default_rng(1).normal(size=(60_000, D)).astype(np.float32)
    weights = np.random.default_rng(2).uniform(size=len(rows))
    mixture = some_mixture(rows, kind)
    shards = [CpuShard(rows, weights, n_threads=n) for n in (1, 3)]
    pairs = look_at_all(shards[0], mixture, 1e300, 1.0)
    assert pairs is not None
    assert len(pairs.components) == len(rows) * mixture.n_components
    one, two = (pairs.e_step(shard, mixture) for shard in shards)
    assert_alike(one, shards[0].run(Expect(mixture)), 1e-10)
    for name in SUMS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("kind", ["full", "diag"])
@pytest.mark.parametrize("D", [1, FEW_COLUMNS, FEW_COLUMNS + 1])
def test_differences_say_what_products_of_features_say(kind: str, D: int) -> None:
    """Lengths and moments about the means, with more rows than a tile."""
    rows = np.random.default_rng(1).normal(size=(700, D))
    mixture = some_mixture(rows, kind)
    blocks = [ChunkBlocks(mixture, np.zeros(D), by_differences=each) for each in (True, False)]
    assert [len(each.tight) for each in blocks] == [5, 0]
    observed = [each.rows(rows, np.empty(0)) for each in blocks]
    np.testing.assert_allclose(*(each.log_joint(seen) for each, seen in zip(blocks, observed, strict=True)), rtol=1e-9)
    one, two = (
        each.statistics(each.moments(seen, np.empty(0)), len(rows)) for each, seen in zip(blocks, observed, strict=True)
    )
    assert_alike(one, two, 1e-9)


def test_pieces_of_a_frontier_and_of_rows_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gains of few cells at once, and rows taken by several threads."""
    rows = np.random.default_rng(1).normal(size=(3_000, 3))
    mixture = some_mixture(rows, "full")

    def gains(n_threads: int) -> Any:
        shard = CpuShard(rows, n_threads=n_threads)
        shard.run(Plant(mixture.family.scatter, 8, 50.0))
        shard.run(Gains(mixture, n=10_000))
        shard.run(OpenGaining(0.0))
        return shard.run(Gains(mixture, n=10_000))

    wanted = gains(1)
    monkeypatch.setattr(tree_expect, "MOMENTS_AT_ONCE", 500)
    monkeypatch.setattr(cpu_shard, "ROWS_AT_ONCE", 16)
    found = gains(2)
    np.testing.assert_allclose(np.sort(found.gains), np.sort(wanted.gains), rtol=1e-9, atol=1e-9)
    assert found.total == pytest.approx(wanted.total, rel=1e-9)
