"""What leaves Python for kernels: rejection, chains, swaps, and sums and draws over per-row state."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from globular.algorithms.kmeans.swaps import matched_swaps
from globular.passes import host
from globular.passes.cpu import CpuShard
from globular.seam.center_passes import AcceptSeeds, RunChains
from globular.seam.passes import Relabel, Total
from reference import draws as reference
from reference.seeds import locate

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(2, 30))
def test_rejection(seed: int, n: int) -> None:
    random = np.random.default_rng(seed)
    proposals = random.integers(4, size=(n, 2)).astype(float)  # some of them alike
    before, tests = random.uniform(0.5, 4, size=n), random.random(n)
    expected = reference.accepted_proposals(proposals, before, tests)
    assert CpuShard(proposals).run(AcceptSeeds(before, tests)).tolist() == expected


@given(SEEDS, st.integers(1, 6), st.integers(1, 8))
def test_chains(seed: int, n: int, m: int) -> None:
    random = np.random.default_rng(seed)
    proposals = random.integers(5, size=(n * m, 2)).astype(float)
    q, tests, squared = random.uniform(0.1, 1, n * m), random.random((n, m)), random.uniform(0.5, 9, n * m)
    shard = CpuShard(proposals)
    shard.squared_distances[:] = squared
    expected = reference.ends_of_chains(proposals, q, tests, squared)
    assert shard.run(RunChains(q, tests)).tolist() == expected
    np.testing.assert_array_equal(shard.squared_distances, squared)


@given(SEEDS, st.integers(3, 30))
@settings(max_examples=100, deadline=None)
def test_swaps_are_matched_greedily(seed: int, C: int) -> None:
    random = np.random.default_rng(seed)
    nearest = ((np.arange(C) + random.integers(1, C, size=C)) % C).astype(np.int32)
    owners = np.flatnonzero(random.random(C) < 0.6).astype(np.int32)
    losses, gains = random.integers(5, size=C).astype(float), 3.0 * random.integers(5, size=len(owners))
    names, seats = matched_swaps(losses, nearest, gains, owners, 1.2)
    assert (names.tolist(), seats.tolist()) == reference.matched_swaps(losses, nearest, gains, owners, 1.2)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1, 4095, 4096, 4097, 150_000])
def test_sums_and_draws_over_all_rows(n: int, weighted: bool) -> None:
    random = np.random.default_rng(n)
    weights = random.integers(3, size=n).astype(float) if weighted else None
    d2, labels = random.integers(4, size=n) / 4.0, random.integers(7, size=n).astype(np.int32)
    d2[-1] = 1.0  # the last row can be drawn
    if weights is not None:
        weights[-1] = 1.0
    shares = d2 if weights is None else d2 * weights
    masses = random.uniform(0, shares.sum(), size=50)
    masses[0] = 2.0 * shares.sum()  # past the end: the last row that can be drawn
    drawn, totals = [], []
    for n_threads in (1, 3):
        shard = CpuShard(np.zeros((n, 1)), weights, n_threads=n_threads)
        shard.squared_distances[:], shard.labels[:] = d2, labels
        drawn.append(shard.locate(masses, "errors"))
        totals.append(shard.run(Total("errors", "labels", 7)))
        np.testing.assert_allclose(shard.run(Total("errors")), shares.sum())
        shard.run(Relabel(np.arange(7, dtype=np.int32)[::-1].copy()))
        np.testing.assert_array_equal(shard.labels, 6 - labels)
        assert host.settle(shard, labels) == (pytest.approx(shares.sum()), np.count_nonzero(labels != 6 - labels))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], np.minimum(locate(shares, masses), n - 1))
    np.testing.assert_array_equal(totals[0], totals[1])
    np.testing.assert_allclose(totals[0], np.bincount(labels, shares, minlength=7))
