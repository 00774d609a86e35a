"""E-step of Gaussian mixtures on rows in memory: blocks of rows, float64, never an N×C array.

Log-densities and statistics of a block are matrix products. For covariances without correlations they are even a
single one each way: log p(c, x) is linear in the features (x, x², 1) of a row, and the same features weighted by the
responsibilities are the moments that the M-step needs. Rows are taken about the mean of the mixture, so that an offset
of the data costs no digits; a component that is so tight, or so far out, that the expanded square (x − μ)² would still
cancel is computed from differences instead (`CANCELLATION_LIMIT`). The choice depends on the mixture alone, so every
block and shard makes the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.rows import DenseRows
from globular.backends.protocol import add_up
from globular.errors import UnsupportedPassError
from globular.kernels.soft import direct_joint, direct_moments, softmax_rows
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from globular.threads import even_ranges, ordered_map, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

CANCELLATION_LIMIT = 1e6
"""Largest μᵀ Σ⁻¹ μ (about the offset) for the expanded square: it loses as many digits, here 6 of 16."""
_BLOCK_ENTRIES = 2**18
"""Numbers in the widest array of a block: 2 MB."""
_MAX_SPANS = 64
"""Statistics are C-sized; so few of them are added up, whatever the number of blocks."""
_ABSENT = -1e300
"""Stands for the log-weight of a component of weight zero: −∞ would make NaN in a matrix product."""

Span = tuple[int, int]
Result = TypeVar("Result")


class BlockArithmetic(Protocol):
    """How one family evaluates a block of rows (about the mixture's offset) and sums its moments."""

    def __init__(self, mixture: GaussianParameters) -> None: ...

    @property
    def width(self) -> int:
        """Columns of the widest array per row."""
        ...

    def features(self, rows: F64) -> F64:
        """What the two methods below need of the rows, (B, F)."""
        ...

    def log_joint(self, rows: F64, features: F64) -> F64:
        """log p(c, x), (B, C)."""
        ...

    def moments(self, rows: F64, features: F64, responsibilities: F64, total: list[F64]) -> None:
        """Add the block's moments to `total`, which starts as `no_moments()`."""
        ...

    def no_moments(self) -> list[F64]: ...

    def statistics(self, total: list[F64]) -> tuple[F64, F64, F64]:
        """counts, sums and scatter about the means, as in `SoftStatistics`."""
        ...


class _Expanded:
    """Covariances without correlations: log p(c, x) = features(x) · coefficients_c."""

    def __init__(self, mixture: GaussianParameters) -> None:
        C, D = mixture.means.shape
        self.means = mixture.means - mixture.offset
        self.constants = np.maximum(mixture.log_constants, _ABSENT)
        self.precisions = self._precisions(mixture)
        remoteness = (self.precisions * self.means**2).sum(axis=1)
        self.coefficients = np.hstack(
            [
                self.precisions * self.means,
                -0.5 * self.precisions,
                (self.constants - 0.5 * remoteness)[:, None],
            ]
        )
        self.tight = np.flatnonzero(remoteness > CANCELLATION_LIMIT)
        self.tight_means = self.means[self.tight]
        self.tight_precisions = np.broadcast_to(self.precisions[self.tight], (len(self.tight), D)).copy()
        self.width = max(C, self.coefficients.shape[1])

    def _precisions(self, mixture: GaussianParameters) -> F64:
        """Per component and second-moment feature."""
        raise NotImplementedError

    def _collapse(self, squares: F64) -> F64:
        """From squares per column to the second-moment features."""
        raise NotImplementedError

    def features(self, rows: F64) -> F64:
        return np.hstack([rows, self._collapse(rows * rows), np.ones((len(rows), 1))])

    def log_joint(self, rows: F64, features: F64) -> F64:
        joint = features @ self.coefficients.T
        if len(self.tight):
            constants = self.constants[self.tight]
            direct_joint(rows, self.tight_means, self.tight_precisions, constants, self.tight, joint)
        return joint

    def no_moments(self) -> list[F64]:
        return [
            np.zeros_like(self.coefficients),
            np.zeros_like(self.tight_means),
            np.zeros_like(self.tight_means),
        ]

    def moments(self, rows: F64, features: F64, responsibilities: F64, total: list[F64]) -> None:
        total[0] += responsibilities.T @ features
        if len(self.tight):
            direct_moments(rows, responsibilities, self.tight_means, self.tight, total[1], total[2])

    def statistics(self, total: list[F64]) -> tuple[F64, F64, F64]:
        raw, tight_sums, tight_scatter = total
        D = self.means.shape[1]
        first, second, counts = raw[:, :D], raw[:, D:-1], raw[:, -1].copy()
        moved = counts[:, None] * self.means
        sums = first - moved
        scatter = second + self._collapse(self.means * (moved - 2 * first))
        sums[self.tight] = tight_sums
        scatter[self.tight] = self._collapse(tight_scatter)
        return counts, sums, np.maximum(scatter, 0.0)


class DiagonalBlocks(_Expanded):
    """One precision per component and column."""

    def _precisions(self, mixture: GaussianParameters) -> F64:
        return mixture.precisions

    def _collapse(self, squares: F64) -> F64:
        return squares


class SphericalBlocks(_Expanded):
    """One precision per component, or one for all."""

    def _precisions(self, mixture: GaussianParameters) -> F64:
        return np.broadcast_to(mixture.precisions, (mixture.n_components,))[:, None]

    def _collapse(self, squares: F64) -> F64:
        return squares.sum(axis=1, keepdims=True)

    def statistics(self, total: list[F64]) -> tuple[F64, F64, F64]:
        counts, sums, scatter = super().statistics(total)
        return counts, sums, scatter[:, 0]


class MatrixBlocks:
    """Covariance matrices: a triangular factor per component, applied to differences."""

    def __init__(self, mixture: GaussianParameters) -> None:
        C, D = mixture.means.shape
        self.means = mixture.means - mixture.offset
        self.constants = np.maximum(mixture.log_constants, _ABSENT)
        self.factors = np.broadcast_to(mixture.factors, (C, D, D))
        self.width = max(C, D)

    def features(self, rows: F64) -> F64:
        return rows

    def log_joint(self, rows: F64, features: F64) -> F64:
        joint = np.empty((len(rows), len(self.means)))
        for c, (mean, factor) in enumerate(zip(self.means, self.factors, strict=True)):
            whitened = (rows - mean) @ factor
            joint[:, c] = np.einsum("ij,ij->i", whitened, whitened)
        joint *= -0.5
        joint += self.constants
        return joint

    def no_moments(self) -> list[F64]:
        C, D = self.means.shape
        return [np.zeros(C), np.zeros((C, D)), np.zeros((C, D, D))]

    def moments(self, rows: F64, features: F64, responsibilities: F64, total: list[F64]) -> None:
        counts, sums, scatter = total
        counts += responsibilities.sum(axis=0)
        for c, mean in enumerate(self.means):
            q = responsibilities[:, c]
            held = np.flatnonzero(q)
            # Far components hold few rows exactly (the others underflow to zero): leave those out.
            near, q = (rows, q) if 2 * len(held) > len(rows) else (rows[held], q[held])
            differences = near - mean
            sums[c] += q @ differences
            differences *= np.sqrt(q)[:, None]
            scatter[c] += differences.T @ differences

    def statistics(self, total: list[F64]) -> tuple[F64, F64, F64]:
        counts, sums, scatter = total
        return counts, sums, scatter


BLOCKS: dict[str, Callable[[GaussianParameters], BlockArithmetic]] = {
    "norm": SphericalBlocks,
    "columns": DiagonalBlocks,
    "outer": MatrixBlocks,
}
"""Arithmetic by the second moment that a covariance family needs."""


class _Evaluator:
    """A mixture ready to be evaluated on the rows of a shard."""

    def __init__(self, shard: CpuShard, mixture: GaussianParameters) -> None:
        if not isinstance(shard.rows, DenseRows):
            raise UnsupportedPassError(f"soft_pass is not available here: {shard.passes['soft_pass']}")
        if shard.n_columns != mixture.n_features:
            raise ValueError(f"rows have {shard.n_columns} columns, the mixture {mixture.n_features}")
        self.shard, self.rows, self.mixture = shard, shard.rows, mixture
        self.arithmetic = BLOCKS[mixture.family.scatter](mixture)
        self.block_rows = min(max(_BLOCK_ENTRIES // self.arithmetic.width, 128), 8192)

    def shifted(self, block: Span) -> F64:
        """Rows of a block in float64 about the mixture's offset."""
        rows = self.rows.block(*block).astype(np.float64)
        if len(self.shard.scales):
            rows *= self.shard.scales[slice(*block), None]
        rows -= self.mixture.offset
        return rows

    def log_joint(self, block: Span) -> F64:
        rows = self.shifted(block)
        return self.arithmetic.log_joint(rows, self.arithmetic.features(rows))

    def blocks(self, span: Span) -> Iterator[Span]:
        for start, stop in even_ranges(span[1] - span[0], self.block_rows):
            yield span[0] + start, span[0] + stop

    def span_statistics(self, span: Span) -> SoftStatistics:
        """Statistics of some blocks; one copy of the C-sized sums for all of them."""
        total, log_likelihood, weight = self.arithmetic.no_moments(), 0.0, 0.0
        for block in self.blocks(span):
            rows = self.shifted(block)
            features = self.arithmetic.features(rows)
            joint = self.arithmetic.log_joint(rows, features)
            weights = self.shard.weights[slice(*block)]
            log_density = np.empty(len(rows))
            softmax_rows(joint, weights, log_density)
            self.arithmetic.moments(rows, features, joint, total)
            log_likelihood += float(weights @ log_density if len(weights) else log_density.sum())
            weight += float(weights.sum()) if len(weights) else float(len(rows))
        n_distances = (span[1] - span[0]) * self.mixture.n_components
        return SoftStatistics(*self.arithmetic.statistics(total), log_likelihood, weight, n_distances)

    def spans(self) -> list[Span]:
        """Whole blocks, several to a span; the same for any number of threads."""
        n_blocks = -(-self.shard.n_rows // self.block_rows)
        blocks_per_span = max(1, -(-n_blocks // _MAX_SPANS))
        return even_ranges(self.shard.n_rows, self.block_rows * blocks_per_span) or [(0, 0)]

    def write_rows(self, write: Callable[[Span, F64], None]) -> None:
        """Call `write` with every block and its log p(c, x)."""
        blocks = even_ranges(self.shard.n_rows, self.block_rows)
        run_all(lambda block: write(block, self.log_joint(block)), blocks, self.shard.n_threads)


def soft_pass(shard: CpuShard, mixture: GaussianParameters) -> SoftStatistics:
    """Sums weighted by the responsibilities. N·C distances; memory: the statistics and a few blocks per thread."""
    evaluator = _Evaluator(shard, mixture)
    return add_up(ordered_map(evaluator.span_statistics, evaluator.spans(), shard.n_threads))


def evaluate_blocks(
    shard: CpuShard, mixture: GaussianParameters, function: Callable[[Span, F64, F64], Result]
) -> list[Result]:
    """function(block, rows about the mixture's offset, log p(c, x)) of every block, in order."""
    evaluator = _Evaluator(shard, mixture)

    def evaluate(block: Span) -> Result:
        rows = evaluator.shifted(block)
        return function(block, rows, evaluator.arithmetic.log_joint(rows, evaluator.arithmetic.features(rows)))

    return list(ordered_map(evaluate, even_ranges(shard.n_rows, evaluator.block_rows), shard.n_threads))


def score_rows(shard: CpuShard, mixture: GaussianParameters) -> F64:
    """log p(x) of every row, (N,)."""
    scores = np.empty(shard.n_rows)

    def write(block: Span, joint: F64) -> None:
        softmax_rows(joint, np.empty(0), scores[slice(*block)])

    _Evaluator(shard, mixture).write_rows(write)
    return scores


def responsibilities(shard: CpuShard, mixture: GaussianParameters) -> F64:
    """p(c | x) of every row, (N, C)."""
    result = np.empty((shard.n_rows, mixture.n_components))

    def write(block: Span, joint: F64) -> None:
        softmax_rows(joint, np.empty(0), np.empty(len(joint)))
        result[slice(*block)] = joint

    _Evaluator(shard, mixture).write_rows(write)
    return result


def most_likely(shard: CpuShard, mixture: GaussianParameters) -> NDArray[np.int64]:
    """The component of largest p(c | x) of every row, lowest index on ties, (N,)."""
    labels = np.empty(shard.n_rows, dtype=np.int64)

    def write(block: Span, joint: F64) -> None:
        np.argmax(joint, axis=1, out=labels[slice(*block)])

    _Evaluator(shard, mixture).write_rows(write)
    return labels
