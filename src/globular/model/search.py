"""How a truncated E-step searches: the sizes of Forster & Lücke (2018) and the seed of its random candidates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Search:
    """One E-step's search; G is the width of the graph that goes with it."""

    n_candidates: int
    """C′, the clusters that each row keeps."""
    n_random: int
    """Clusters drawn at random per row, beside the neighbourhoods: the "+1" of the paper's tables."""
    seed: int
    """Seed of the random clusters, below 2⁶³; a new one for every E-step."""
    estimate: bool
    """Whether to collect the pair statistics of Eq. 8."""
