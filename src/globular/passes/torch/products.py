"""Rows against centres on the card: nominate by products, decide by differences.

*Exactly the closest.* A product in half precision knows a squared distance up to a slack that follows from how centres
were rounded (see the end of `nominating.nominate`). Rows whose second closest centre lies within it are looked at again
with what rounding has left added to the product; those that even then have too many candidates are measured against all
centres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from globular.passes.torch import plain
from globular.passes.torch.plain import Grouping, group
from globular.passes.torch.shard import TorchShard, engine

PRODUCT_TYPES = {torch.float16: torch.float16, torch.uint8: torch.float16, torch.bfloat16: torch.bfloat16}
"""In what type rows are multiplied; those of float32 in tf32, three times where it has to be precise."""
PARTS = {torch.float16: 2, torch.bfloat16: 3, torch.float32: 1, torch.float64: 1}
"""Numbers of a product's type that make up one of float32."""
PRECISE_NOMINEES = 4
ROOM = 8
"""One row in `ROOM` may be unsure of its closest centre before the host has to know how many are."""
BRUTE_NUMBERS = 1 << 26
"""Differences at once where rows are measured against all centres."""


@dataclass
class Prepared:
    """Centres as products and differences take them."""

    exact: Any
    """(C, D), by the numbers of the centres."""
    parts: Any
    """(parts, C, width): centres in the order of their cells times −2, rounded, and what rounding has left, rounded;
    in plain torch the centres themselves."""
    norms: Any
    extent: Any = None
    """(2,): the largest of the norms, and of the squared lengths of what the parts miss."""


class Aim:
    """Centres, prepared for products with the rows of a shard; `members` lists them in the order of their cells.

    What is `added` to the squared norms puts centres out of reach that only fill up a tensor.
    """

    def __init__(
        self, shard: TorchShard, centers: Any, members: Any = None, starts: Any = None, added: Any = None
    ) -> None:
        self.shard, self._starts, self._members, self._added = shard, starts, members, added
        self._whole = shard.tensor(centers)
        self.n = len(self._whole)
        self._engine = engine(shard.device, shard.exact)
        self.by_kernels = self._engine is not plain
        self._product = PRODUCT_TYPES.get(shard.x.dtype, torch.float32) if self.by_kernels else shard.exact
        self._made: dict[int, Prepared] = {}
        self.looks: Any = None
        """Distances of the last nomination in cells, to be added."""

    def _prepared(self, precise: bool = False) -> Prepared:
        """The centres, in as many parts as make up float32 where it has to be precise."""
        n_parts = PARTS[self._product] if precise else 1
        if n_parts not in self._made:
            made = Prepared(*self._engine.prepare(self._whole, self._members, self._product, n_parts))
            if self._added is not None:
                made.norms = made.norms + self._added
            self._made[n_parts] = made
        return self._made[n_parts]

    def _rounding(self, precise: bool) -> float:
        """What two scores may be wrong by against each other, as a share of (‖x‖ + max ‖m‖)².

        Sums of D products in float32, and of tf32 what it leaves out of both factors: once, or thrice less.
        """
        if not self.by_kernels:
            return 4.0 * (self.shard.n_columns + 16) * float(torch.finfo(self.shard.exact).eps)
        tf32 = 0.0 if self._product != torch.float32 else 2.0**-18 if precise else 2.0**-9
        return (self.shard.n_columns + 16) * 2.0**-23 + tf32

    def nominate(
        self, kept: int, *, cells: Any = None, per_row: int = 1, rows: Any = None, limit: Any = None,
        precise: bool = False, doubts: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The `kept` closest centres of every item up to rounding, closest first: squared distances and numbers.

        With `cells` every item looks at the centres of one cell, and item i is of row i // per_row; else items are
        all rows, or these, or the first of these up to a `limit` on the card, and what is said of the others means
        nothing. With `doubts` a second centre is named only if it may be the closest.
        """
        shard, made, grouping = self.shard, self._prepared(precise), cells
        if cells is not None and not isinstance(cells, Grouping):
            grouping = group(cells, len(self._starts) - 1, starts=False)
        scores, found, self.looks = self._engine.nominate(
            shard.x, shard.scales, made, self._members, grouping, self._starts, limit, kept, per_row, rows,
            self._rounding(precise), "tf32x3" if precise else "tf32", doubts,
        )  # fmt: skip
        return scores, found

    def _near(self, scores: Any, rows: Any) -> Any:
        """Which nominees of a precise product may be the closest.

        x·m is known up to ‖x‖ δ, where δ is what rounding has left of m, up to the rounding of D additions in float32,
        and up to the seven bits of a score that hold the column.
        """
        lengths, made = self.shard.lengths[rows], self._prepared(precise=True)
        reach = lengths + torch.sqrt(made.norms.max())
        slack = 2.0 * lengths * torch.sqrt(made.extent[1]) + self._rounding(True) * reach**2 + 3.1e-5 * scores[:, 0]
        return scores - scores[:, :1] <= slack[:, None]

    def closest(self, labels: Any) -> tuple[Any, Any]:
        """Exactly the closest centre of every row, the lowest number of several, to `labels`; see `decide`."""
        n_kept = min(PRECISE_NOMINEES, self.n)
        if not self.by_kernels:
            return self.decide(self._looked_at_again(slice(None), None, n_kept), labels)
        _, candidates = self.nominate(min(2, self.n), precise=not self._is_half, doubts=True)
        unsure = torch.nonzero(candidates[:, 1] >= 0)[:, 0] if self.n > 1 else []
        if not len(unsure):
            return self.decide(candidates[:, :1], labels)
        candidates = torch.nn.functional.pad(candidates[:, :1], (0, n_kept - 1), value=-1)
        candidates[unsure] = self._looked_at_again(unsure, unsure, n_kept)
        return self.decide(candidates, labels)

    @property
    def _is_half(self) -> bool:
        return self.by_kernels and self.shard.x.dtype in PRODUCT_TYPES

    def _looked_at_again(self, numbers: Any, rows: Any, n_kept: int) -> Any:
        """Candidates of these rows, or of all, by precise products; where those are too many, the closest of all."""
        scores, found = self.nominate(n_kept, rows=rows, precise=True)
        near = self._near(scores, numbers)
        found = torch.where(near, found, -1)
        if n_kept < self.n and bool(near.all(dim=1).any()):
            still = torch.nonzero(near.all(dim=1))[:, 0]
            found[still] = -1
            found[still, 0] = self._closest_of_all(still if rows is None else rows[still])
        return found

    def closest_at_once(self, labels: Any) -> tuple[Any, Any]:
        """`closest` without a look at how many rows need one: what the host does not wait for can be recorded.

        The tally has a third number: rows that are still unsure, or for which there was no room. If it is not zero,
        the labels mean nothing.
        """
        n, n_kept, room = self.shard.n_rows, min(PRECISE_NOMINEES, self.n), self.shard.n_rows // ROOM + 64
        _, candidates = self.nominate(2, precise=not self._is_half, doubts=True)
        is_unsure = candidates[:, 1] >= 0
        n_unsure = is_unsure.sum()
        unsure = torch.nonzero_static(is_unsure, size=room, fill_value=n)[:, 0]
        rows = unsure.clamp_max(n - 1)
        scores, found = self.nominate(n_kept, rows=rows, limit=n_unsure.clamp_max(room), precise=True)
        near = self._near(scores, rows)
        left = (n_unsure - room).clamp_min(0)
        if n_kept < self.n:
            left = left + (near.all(dim=1) & (unsure < n)).sum()
        # a row more than there are, for those that nobody needs
        both = torch.full((n + 1, n_kept), -1, dtype=torch.int32, device=labels.device)
        both[:n, 0] = candidates[:, 0]
        both[unsure] = torch.where(near, found, -1)
        d2, tally = self.decide(both[:n], labels)
        return d2, torch.cat([tally, left.to(torch.float64)[None]])

    def _closest_of_all(self, rows: Any) -> Any:
        """The closest of all centres by differences, for these rows."""
        shard, names = self.shard, []
        at_once = max(1, BRUTE_NUMBERS // shard.n_columns // 256)
        for some in torch.split(rows, at_once):
            points = plain.seen(shard.x, shard.scales, shard.exact, some)
            best = torch.full((len(some),), float("inf"), dtype=shard.exact, device=shard.device)
            name = torch.zeros(len(some), dtype=torch.int64, device=shard.device)
            for first in range(0, self.n, 256):
                squared = ((points[:, None] - self._prepared().exact[first : first + 256]) ** 2).sum(2)
                lowest, at = squared.min(dim=1)
                closer = lowest < best
                best, name = torch.where(closer, lowest, best), torch.where(closer, at + first, name)
            names.append(name)
        return torch.cat(names).to(torch.int32)

    def decide(self, candidates: Any, labels: Any, scores: Any = None, *, keep: bool = False) -> tuple[Any, Any]:
        """The closest of a few candidates of every row by differences, to `labels`, which with `keep` is one of them.

        Returns squared distances, and (2,) Σ w d² and how many labels changed. With scores, candidates that cannot
        be the closest are left out.
        """
        shard, made = self.shard, self._prepared()
        given = (candidates, scores, labels, self._rounding(False), keep)
        d2, tally = self._engine.decide(shard.x, shard.scales, shard.w, made, *given)
        return d2, tally
