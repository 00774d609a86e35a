"""Gaussian mixtures on sparse rows, for components that all have one variance: infinite mixtures of counts.

    log p(c, x) = x · m_c / σ² + constant_c − ‖x‖² / 2σ²

The last term is the same for all components, so the E-step is the linear one. Second moments about the means follow
from sums of squares, which the rows get as further columns: one for ‖x‖², or one for the square of each column.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from globular.errors import UnsupportedPassError
from globular.model.covariances import ScatterKind
from globular.model.exponential import LinearMixture
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import SoftStatistics, WithinStatistics, joined
from globular.passes.cpu.engine.moments import Answers
from globular.passes.cpu.expect.all import answer, answered, check_columns
from globular.passes.cpu.expect.linear import SparseBlocks
from globular.passes.cpu.rows import CSRRows
from globular.passes.cpu.shard import SPARSE, CpuShard
from globular.seam.answers import Answer
from globular.seam.mixture_passes import ExpectShares, ExpectSparse

EVERYONE = slice(None)
"""All components of a mixture."""


class Squared(NamedTuple):
    """Rows with their squares as further columns."""

    rows: CSRRows
    kind: ScatterKind


def _squared(shard: CpuShard, kind: ScatterKind) -> CSRRows:
    """The rows with what second moments of this kind are sums of; kept for the next pass."""
    kept = shard.recall(Squared)
    if kept is None or kept.kind is not kind:
        X: Any = shard.rows.block(0, shard.n_rows).astype(np.float64)
        squares = X.power(2)
        if kind.width(shard.n_columns) == 1:
            squares = sparse.csr_array(squares.sum(axis=1)[:, None])
        kept = Squared(CSRRows(sparse.hstack([X, squares], format="csr")), kind)
        shard.keep(kept)
    return kept.rows


def _linear(mixture: GaussianParameters, some: slice = EVERYONE) -> tuple[LinearMixture, float]:
    """Some components as linear functions, without −‖x‖² / 2σ², and their σ²."""
    variances = mixture.each(mixture.covariances)[some]
    variance = float(variances.flat[0])
    if not mixture.family.scatter.separable or not (variances == variance).all():
        raise UnsupportedPassError(f"{SPARSE}, for covariances like these")
    means = mixture.means[some]
    constants = mixture.log_constants[some] - 0.5 / variance * (means**2).sum(axis=1)
    return LinearMixture(means / variance, constants), variance


def soft_statistics(shard: CpuShard, mixture: GaussianParameters, some: slice = EVERYONE) -> SoftStatistics:
    """What an E-step with some of the components says about their means."""
    kind, means = mixture.family.scatter, mixture.means[some]
    check_columns(shard, mixture.n_features)
    linear, variance = _linear(mixture, some)
    rows, (C, D) = _squared(shard, kind), means.shape
    slopes = np.hstack([linear.slopes, np.zeros((C, rows.shape[1] - D))])
    blocks = SparseBlocks(LinearMixture(slopes, linear.constants), rows)
    found = blocks.moments(shard, shard.weights, shard.n_threads)
    sums, squares, counts = found.raw[:, :D], found.raw[:, D:-1], found.raw[:, -1].copy()
    moved = counts[:, None] * means
    scatter = np.maximum(squares - kind.from_squares(means * (2.0 * sums - moved)), 0.0)
    log_likelihood = found.bound - 0.5 / variance * float(squares.sum())
    return SoftStatistics(counts, sums - moved, scatter, log_likelihood, found.weight, shard.n_rows * C)


@CpuShard.implements(ExpectSparse)
def expect_sparse(shard: CpuShard, work: ExpectSparse) -> SoftStatistics:
    """Sums weighted by the responsibilities. O(nnz·C)."""
    return soft_statistics(shard, work.mixture)


@CpuShard.implements(Answer, GaussianParameters)
def answer_rows(shard: CpuShard, work: Answer) -> list[Any]:
    """`answer` on dense rows, the same on sparse ones."""
    if not isinstance(rows := shard.rows, CSRRows):
        return answer(shard, work)
    check_columns(shard, work.model.n_features)
    linear, variance = _linear(work.model)

    def write(answers: Answers) -> None:
        SparseBlocks(linear, rows).answer(shard, shard.n_threads, answers)
        if len(answers.densities):
            answers.densities[:] -= 0.5 / variance * rows.block(0, shard.n_rows).astype(np.float64).power(2).sum(axis=1)

    return answered(shard, work.want, len(linear.constants), write)


def expect_sparse_shares(shard: CpuShard, work: ExpectShares) -> WithinStatistics:
    """Every mixture on the sparse rows of its shares."""
    rows, weights, starts = work.chunks.means, work.chunks.weights, work.starts

    def of(seen: Any, components: slice) -> SoftStatistics:
        index = np.concatenate([np.arange(starts[s], starts[s + 1]) for s in seen])
        part = CpuShard(rows.picked(index), weights[index], n_threads=shard.n_threads)
        return soft_statistics(part, work.mixture, components)

    spans = pairwise(work.bounds.tolist())
    found = [of(seen, slice(*span)) for seen, span in zip(work.seen, spans, strict=True)]
    likelihoods = np.array([each.log_likelihood for each in found])
    parts = replace(
        joined(found), log_likelihood=float(likelihoods.sum()), n_distances=sum(each.n_distances for each in found)
    )
    return WithinStatistics(parts, likelihoods)
