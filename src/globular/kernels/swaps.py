"""Who moves where in a round of swaps."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import kernel


@kernel
def match_swaps(
    losses: Any,  # IN  (C,) what giving each centre up costs
    nearest: Any,  # IN  (C,) who takes over its rows
    spares: Any,  # IN  (C,) centres by their losses, least first
    gains: Any,  # IN  (S,) what each split gains
    best: Any,  # IN  (S,) splits by their gains, most first
    owners: Any,  # IN  (S,) the cluster of each split
    safety: float,  # IN  a gain must exceed the loss by this factor
    settled: Any,  # scratch (C,) bool, False
    names: Any,  # IN/OUT (C,) 0, 1, …; out: who has the rows of each cluster
    seats: Any,  # IN/OUT (S,) −1; out: the centre that each split gets
) -> None:
    """The best splits get the centres that are least missed. O(C + S)."""
    at = 0
    for k in best:
        # settled: has moved, has taken over the rows of one that moved, or has been split
        while at < spares.shape[0] and (settled[spares[at]] or names[nearest[spares[at]]] != nearest[spares[at]]):
            at += 1
        if at == spares.shape[0]:
            return
        spare, owner = spares[at], owners[k]
        if spare == owner or names[owner] != owner or gains[k] <= safety * losses[spare]:
            continue
        names[spare], seats[k] = nearest[spare], spare
        settled[spare] = settled[nearest[spare]] = settled[owner] = True
