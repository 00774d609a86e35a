"""Adding in a fixed tree: parts 0 and 1, parts 2 and 3, then those two, and so on.

The order in which numbers are added decides their last digits. A tree over the part numbers is an order that does not
depend on who holds which part: a worker adds up what it can of its own parts, others go on from there, and the total
has the same bits for any number of workers, and in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
Node = tuple[int, int]
"""(level, number): the parts number · 2^level up to, and not including, (number + 1) · 2^level."""


class TreeSum(Generic[Value]):
    """Values at nodes of the tree over `n_parts` parts; two children become their parent as soon as both are there."""

    def __init__(self, n_parts: int, merge: Callable[[Value, Value], Value]) -> None:
        self.n_parts = n_parts
        self.merge = merge
        self.nodes: dict[Node, Value] = {}

    def insert(self, level: int, number: int, value: Value) -> None:
        """Put in the sum of a node, and climb as far as siblings are there."""
        while 1 << level < self.n_parts:
            sibling = (level, number ^ 1)
            if number % 2 and sibling in self.nodes:
                value = self.merge(self.nodes.pop(sibling), value)
            elif sibling in self.nodes:
                value = self.merge(value, self.nodes.pop(sibling))
            elif number % 2 or (number + 1) << level < self.n_parts:
                break  # the sibling will come; without one (past the last part) the value climbs alone
            level, number = level + 1, number // 2
        self.nodes[level, number] = value


def tree_total(n_parts: int, merge: Callable[[Any, Any], Any], values: Iterable[Value]) -> Value:
    """The sum of the values of all parts, given in order."""
    tree = TreeSum[Value](n_parts, merge)
    for number, value in enumerate(values):
        tree.insert(0, number, value)
    (total,) = tree.nodes.values()
    return total
