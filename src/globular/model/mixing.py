"""What mixtures have in common, whatever their components are: a size, and how rows are drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from globular.model.statistics import F64, I64


class Components:
    """Base of mixtures, whose components have means, (C, D)."""

    means: F64

    @property
    def n_components(self) -> int:
        return int(self.means.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.means.shape[1])


def draw_by_component(
    shares: F64, n_samples: int, random: np.random.RandomState, draw: Callable[[int, int], F64]
) -> tuple[F64, I64]:
    """Rows grouped by component, `draw(c, n)` of each, and their components.

    Shares may be off one by what float32 rounds.
    """
    counts = random.multinomial(n_samples, shares / shares.sum())
    rows = [draw(c, count) for c, count in enumerate(counts) if count]
    return np.vstack(rows), np.repeat(np.arange(len(counts), dtype=np.int64), counts)
