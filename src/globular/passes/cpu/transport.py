"""Rows into clusters of limited size at the least cost: shortest paths in a graph of clusters.

Clusters are nodes. The edge from a to b costs what the row of a loses that loses least by moving to b. A cluster with
too many rows sends one away on the cheapest path to a cluster with room, each cluster on the path passing on a row of
its own; one with too few calls one in. Clusters have prices, so that no edge costs less than nothing once prices are
counted, and a search (Dijkstra's) stays near to where it begins. This is the successive shortest path algorithm for
flows of least cost (Ahuja, Magnanti & Orlin 1993, 9.7): with exact edges, the assignment has the least cost there is.

A cluster that is neither full nor at its least size has price 0; prices rise above 0 where the upper limit is felt, and
fall below where the lower one is. Prices of an earlier round make a good start: what they leave too full or too empty
is mended as above.

An edge keeps its few cheapest rows in order; entries of rows that have left are passed over. Where all of them have
left the cluster is read again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel, kernel_apart
from globular.passes.host import HostShard
from globular.seam.center_passes import Transport, Transported

MOST_EDGES = 96
"""Clusters that one cluster can send rows to; larger = more memory, 12 · `kept` bytes for each."""
KEPT_SHARE, KEPT = 8, (2, 64)
"""Rows that an edge keeps, as a share of the mean size of a cluster; larger = clusters are read less often."""

ROUNDS, DAMPING = 120, 1.0
"""Rounds of guesses at prices before rows are moved one by one, and the share of a step that is taken; larger = fewer
rows are left to move, until guesses begin to swing."""
PATIENCE = 8
"""Rounds without fewer rows to move, after which guesses end; larger = more guesses."""


class Flow(NamedTuple):
    """Rows, clusters and what a search needs; E edges of a cluster, each with the q rows that are cheapest to move."""

    near: Any  # (N, m) clusters that a row may be in
    costs: Any  # (N, m) what it costs there
    places: Any  # (N,) the column of the cluster that a row is in
    labels: Any  # (N,) that cluster
    links: Any  # (2, N) the row after and the one before in the same cluster, −1: none
    heads: Any  # (C,) the first row of a cluster
    sizes: Any  # (C,)
    prices: Any  # (C,)
    targets: Any  # (C, E) where edges lead to
    n_edges: Any  # (C,)
    lowest: Any  # (C, E) a lower bound of what an edge costs
    rows: Any  # (C, E, q) rows by what it costs to move them, dearest first
    losses: Any  # (C, E, q) what that is
    fill: Any  # (C, E) rows kept
    whole: Any  # (C, E) whether these are all
    into: Any  # (C, 2) the cluster and the edge of the last edge to lead to a cluster, −1: none
    earlier: Any  # (C, E, 2) the one that led to the same cluster before
    slots: Any  # (C,) scratch of `read_cluster`, −1
    reached: Any  # (C,) what it costs to get to a cluster, inf: not reached
    via: Any  # (C, 2) the edge by which
    heap: Any  # (C,) clusters that are reached, and not passed yet
    position: Any  # (C,) where in the heap, −1: not there
    passed: Any  # (C,) clusters in the order in which they were passed
    stuck: Any  # (C,) whether there is no way out of these full clusters, or none into these that lack rows


@inline
def put_in_order(flow: Flow, a: int, e: int, row: int, loss: float) -> None:
    """Keep a row of cluster a for its edge e, if it is among the cheapest. O(q)."""
    n, rows, losses = flow.fill[a, e], flow.rows[a, e], flow.losses[a, e]
    if n == rows.shape[0] or not flow.whole[a, e]:  # rows as dear as the dearest here may be missing
        flow.whole[a, e] = False
        if n == 0 or loss >= losses[0]:
            return
    if n == rows.shape[0]:
        n -= 1
        for k in range(n):
            losses[k], rows[k] = losses[k + 1], rows[k + 1]
    k = n
    while k > 0 and losses[k - 1] < loss:
        losses[k], rows[k] = losses[k - 1], rows[k - 1]
        k -= 1
    losses[k], rows[k], flow.fill[a, e] = loss, row, n + 1
    flow.lowest[a, e] = losses[n]


@inline
def new_edge(flow: Flow, a: int, b: int) -> int:
    """An edge without rows from a to b; −1 where a has too many."""
    e = flow.n_edges[a]
    if e == flow.targets.shape[1]:
        return -1
    flow.n_edges[a] = e + 1
    flow.targets[a, e], flow.fill[a, e], flow.whole[a, e], flow.lowest[a, e] = b, 0, True, np.inf
    flow.earlier[a, e, 0], flow.earlier[a, e, 1] = flow.into[b, 0], flow.into[b, 1]
    flow.into[b, 0], flow.into[b, 1] = a, e
    return e


@kernel_apart
def read_cluster(flow: Flow, a: int) -> None:
    """The cheapest rows for all edges of a cluster. O(its rows · m)."""
    for e in range(flow.n_edges[a]):
        flow.slots[flow.targets[a, e]] = e
        flow.fill[a, e], flow.whole[a, e], flow.lowest[a, e] = 0, True, np.inf
    row = flow.heads[a]
    while row >= 0:
        own = flow.costs[row, flow.places[row]]
        for k in range(flow.near.shape[1]):
            b = flow.near[row, k]
            if b == a:
                continue
            if flow.slots[b] < 0:
                flow.slots[b] = new_edge(flow, a, b)
            if flow.slots[b] >= 0:
                put_in_order(flow, a, flow.slots[b], row, flow.costs[row, k] - own)
        row = flow.links[0, row]
    for e in range(flow.n_edges[a]):
        flow.slots[flow.targets[a, e]] = -1


@inline
def cost_of_edge(flow: Flow, a: int, e: int) -> float:
    """What the cheapest row that is still in a loses by moving along an edge; infinite if there is none."""
    while True:
        n = flow.fill[a, e]
        while n > 0 and flow.labels[flow.rows[a, e, n - 1]] != a:
            n -= 1
        flow.fill[a, e] = n
        if n > 0:
            flow.lowest[a, e] = flow.losses[a, e, n - 1]
            return flow.lowest[a, e]
        if flow.whole[a, e]:
            flow.lowest[a, e] = np.inf
            return np.inf
        read_cluster(flow, a)


@inline
def move_row(flow: Flow, a: int, e: int) -> None:
    """Move the cheapest row along an edge. O(m · (E + q))."""
    row, b = flow.rows[a, e, flow.fill[a, e] - 1], flow.targets[a, e]
    after, before = flow.links[0, row], flow.links[1, row]
    if before >= 0:
        flow.links[0, before] = after
    else:
        flow.heads[a] = after
    if after >= 0:
        flow.links[1, after] = before
    enter(flow, row, b)
    flow.sizes[a] -= 1
    for k in range(flow.near.shape[1]):
        if flow.near[row, k] == b:
            flow.places[row] = k
    own = flow.costs[row, flow.places[row]]
    for k in range(flow.near.shape[1]):
        c, found = flow.near[row, k], -1
        if c == b:
            continue
        for other in range(flow.n_edges[b]):
            if flow.targets[b, other] == c:
                found = other
                break
        if found < 0:
            found = new_edge(flow, b, c)
        if found >= 0:
            put_in_order(flow, b, found, row, flow.costs[row, k] - own)


@inline
def enter(flow: Flow, row: int, b: int) -> None:
    """Put a row at the head of a cluster."""
    head = flow.heads[b]
    flow.links[0, row], flow.links[1, row], flow.heads[b], flow.labels[row] = head, -1, row, b
    if head >= 0:
        flow.links[1, head] = row
    flow.sizes[b] += 1


@inline
def reach(flow: Flow, n: int, c: int, cost: float, a: int, e: int) -> int:
    """Note a cheaper way to cluster c by the edge e of a; returns how many clusters the heap of n holds then."""
    flow.reached[c], flow.via[c, 0], flow.via[c, 1] = cost, a, e
    k = flow.position[c]
    if k < 0:
        k, n = n, n + 1
    while k > 0 and flow.reached[flow.heap[(k - 1) // 2]] > cost:
        above = flow.heap[(k - 1) // 2]
        flow.heap[k], flow.position[above] = above, k
        k = (k - 1) // 2
    flow.heap[k], flow.position[c] = c, k
    return n


@inline
def take_closest(flow: Flow, n: int) -> int:
    """Take the cluster that is cheapest to reach from a heap of n."""
    first, last = flow.heap[0], flow.heap[n - 1]
    flow.position[first] = -1
    k, cost = 0, flow.reached[last]
    while 2 * k + 1 < n - 1:
        below = 2 * k + 1
        if below + 1 < n - 1 and flow.reached[flow.heap[below + 1]] < flow.reached[flow.heap[below]]:
            below += 1
        if flow.reached[flow.heap[below]] >= cost:
            break
        flow.heap[k] = flow.heap[below]
        flow.position[flow.heap[k]] = k
        k = below
    if n > 1:
        flow.heap[k], flow.position[last] = last, k
    return first


@kernel_apart
def send_or_call(flow: Flow, start: int, least: int, most: int, sends: bool) -> None:
    """Send one row away from a cluster, or call one in, on the cheapest path; or mark the clusters that have none.

    O(clusters passed · E) and what it takes to read clusters again.
    """
    n_passed, end, best = 0, -1, np.inf
    flow.heap[0], flow.position[start], flow.reached[start], n = start, 0, 0.0, 1
    while n > 0:
        v = take_closest(flow, n)
        n -= 1
        cost, price = flow.reached[v], flow.prices[v]
        if cost >= best:
            flow.reached[v] = np.inf
            break
        flow.passed[n_passed] = v
        n_passed += 1
        # the path may end where there is room; for the first cluster alone it may be enough that prices change
        room = most - flow.sizes[v] if sends else flow.sizes[v] - least
        toll = max(0.0, -price if sends else price)
        if room + (v == start) > 0 and cost + toll < best:
            best, end = cost + toll, v
        if sends:
            for e in range(flow.n_edges[v]):
                b = flow.targets[v, e]
                ahead = cost + flow.prices[b] - price
                limit = min(best, flow.reached[b])
                if ahead + flow.lowest[v, e] < limit:
                    there = max(cost, ahead + cost_of_edge(flow, v, e))
                    if there < limit:
                        n = reach(flow, n, b, there, v, e)
        else:
            a, e = flow.into[v, 0], flow.into[v, 1]
            while a >= 0:
                ahead = cost + price - flow.prices[a]
                limit = min(best, flow.reached[a])
                if ahead + flow.lowest[a, e] < limit:
                    there = max(cost, ahead + cost_of_edge(flow, a, e))
                    if there < limit:
                        n = reach(flow, n, a, there, a, e)
                a, e = flow.earlier[a, e, 0], flow.earlier[a, e, 1]
    for k in range(n):  # clusters that were reached, and not passed
        flow.reached[flow.heap[k]], flow.position[flow.heap[k]] = np.inf, -1
    for k in range(n_passed):
        v = flow.passed[k]
        if end >= 0:
            rise = max(0.0, best - flow.reached[v])
            flow.prices[v] += rise if sends else -rise
        else:
            flow.stuck[v] = True
        flow.reached[v] = np.inf
    v = end
    while v >= 0 and v != start:
        a, e = flow.via[v, 0], flow.via[v, 1]
        if sends:
            move_row(flow, a, e)
            v = a
        else:  # the edge leads from v to the cluster that called; the first to move is the row at its end
            v = flow.targets[a, e]
            move_row(flow, a, e)


@kernel
def guess_prices(
    near: Any,  # IN  (N, m)
    costs: Any,  # IN  (N, m)
    least: int,  # IN
    most: int,  # IN
    prices: Any,  # IN/OUT (C,) the best of all rounds
    trial: Any,  # scratch (C,)
    sizes: Any,  # scratch (C,)
    regrets: Any,  # scratch (C,)
) -> None:
    """Prices at which few rows are left to move, if all go where it is cheapest. O(rounds · N · m).

    A row leaves where the price rises by more than its regret, what its second best cluster costs it more. Of n rows of
    mean regret r about n Δ / r leave for a rise of Δ.
    """
    C, fewest, in_vain = prices.shape[0], np.inf, 0
    for c in range(C):
        trial[c] = prices[c]
    for _ in range(ROUNDS + 1):
        sizes[:] = 0.0
        regrets[:] = 0.0
        for row in range(near.shape[0]):
            lowest, second, closest = np.inf, np.inf, 0
            for k in range(near.shape[1]):
                cost = costs[row, k] + trial[near[row, k]]
                if cost < second:
                    if cost < lowest:
                        lowest, second, closest = cost, lowest, near[row, k]
                    else:
                        second = cost
            sizes[closest] += 1.0
            regrets[closest] += second - lowest if second < np.inf else 0.0
        mean, missed = 0.0, 0.0
        for c in range(C):
            mean += regrets[c] / near.shape[0]
            missed += max(0.0, sizes[c] - (least if trial[c] < 0 else most))
            missed += max(0.0, (most if trial[c] > 0 else least) - sizes[c])
        in_vain += 1
        if missed < fewest:
            fewest, in_vain = missed, 0
            for c in range(C):
                prices[c] = trial[c]
        if fewest == 0.0 or in_vain == PATIENCE:
            break
        for c in range(C):
            n, before = sizes[c], trial[c]
            target = min(max(n, most if before > 0 else least), least if before < 0 else most)
            trial[c] += DAMPING * (n - target) / max(n, target) * (regrets[c] + mean) / (n + 1.0)
            if trial[c] * before < 0:
                trial[c] = 0.0


@kernel
def meet_limits(flow: Flow, least: int, most: int) -> None:
    """Move rows until every cluster has at least `least` and at most `most`, but for those that are stuck."""
    C = flow.heads.shape[0]
    for row in range(flow.places.shape[0]):
        lowest = np.inf
        for k in range(flow.near.shape[1]):
            cost = flow.costs[row, k] + flow.prices[flow.near[row, k]]
            if cost < lowest:
                lowest, flow.places[row] = cost, k
        enter(flow, row, flow.near[row, flow.places[row]])
    for a in range(C):
        read_cluster(flow, a)
    for a in range(C):
        while not flow.stuck[a]:
            if flow.sizes[a] > (least if flow.prices[a] < 0 else most):
                send_or_call(flow, a, least, most, True)
            elif flow.sizes[a] < (most if flow.prices[a] > 0 else least):
                send_or_call(flow, a, least, most, False)
            else:
                break


@HostShard.implements(Transport)
def transport(shard: HostShard, work: Transport) -> Transported:
    N, C = len(work.near), len(work.prices)
    E, q = min(C, MOST_EDGES), int(np.clip(N // (KEPT_SHARE * C), *KEPT))
    flow = Flow(
        work.near, work.costs, np.zeros(N, dtype=np.int32), np.empty(N, dtype=np.int32),
        np.empty((2, N), dtype=np.int32), np.full(C, -1, dtype=np.int32), np.zeros(C, dtype=np.int64),
        work.prices.copy(), np.empty((C, E), dtype=np.int32), np.zeros(C, dtype=np.int32), np.empty((C, E)),
        np.empty((C, E, q), dtype=np.int32), np.empty((C, E, q)), np.empty((C, E), dtype=np.int32),
        np.zeros((C, E), dtype=bool), np.full((C, 2), -1, dtype=np.int32), np.empty((C, E, 2), dtype=np.int32),
        np.full(C, -1, dtype=np.int32),
        np.full(C, np.inf), np.empty((C, 2), dtype=np.int32), np.empty(C, dtype=np.int32),
        np.full(C, -1, dtype=np.int32), np.empty(C, dtype=np.int32), np.zeros(C, dtype=bool),
    )  # fmt: skip
    guess_prices(flow.near, flow.costs, work.least, work.most, flow.prices, *np.empty((3, C)))
    meet_limits(flow, work.least, work.most)
    return Transported(flow.labels, flow.prices)
