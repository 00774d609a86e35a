"""What rows make of K(n), the few clusters that they keep: a label."""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, kernel, take_number
from globular.passes.cpu.engine.rows import squared_distance


@kernel
def settle_hard(
    queue: Queue,  # IN/OUT runs
    length: int,  # IN  rows of a run
    rows: Any,  # IN
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,)
    members: Any,  # IN/OUT (N, C′)
    labels: Any,  # IN/OUT (N,) the closest cluster
    n_moved: Any,  # OUT (runs,) rows whose label changes
    objectives: Any,  # OUT (runs,) Σ w d²
) -> None:
    """Only the closest member votes; the former one stays if float64 finds it as close. O(N · D)."""
    C_prime = members.shape[1]
    run = take_number(queue)
    while run < objectives.shape[0]:
        begin, end = run * length, min((run + 1) * length, labels.shape[0])
        objective, n = 0.0, 0
        for i in range(begin, end):
            scale = scales[i] if scales.shape[0] else 1.0
            closest = squared_distance(rows, i, scale, centers, members[i, 0], norms)
            if members[i, 0] != labels[i]:
                stay = squared_distance(rows, i, scale, centers, labels[i], norms)
                if stay <= closest:
                    closest = stay
                    place = C_prime - 1  # rounding may have put the former one out of K(n) altogether
                    for a in range(1, C_prime):
                        if members[i, a] == labels[i]:
                            place = a
                    members[i, place] = members[i, 0]
                    members[i, 0] = labels[i]
                else:
                    n += 1
                    labels[i] = members[i, 0]
            objective += closest * (weights[i] if weights.shape[0] else 1.0)
        objectives[run], n_moved[run] = objective, n
        run = take_number(queue)
