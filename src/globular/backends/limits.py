"""Sizes of what passes take for themselves, for those who must foretell the memory of a fit."""

from __future__ import annotations

SORT_UP_TO = 1 << 30
"""Largest copy of the rows, in bytes. A fixed limit: the same fit takes the same steps on any machine."""
HASH_SIZE = 1 << 15
"""Least number of places in a thread's table of pairs of clusters."""
