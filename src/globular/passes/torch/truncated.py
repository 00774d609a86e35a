"""Truncated E-steps of mixtures with diagonal covariances on the card: K(n) among the components of a few cells.

Components of a cell are compared by products, which nominate as many as K(n) has places; costs in float64 decide
whether a nominee takes the place of the worst in K(n), so the free energy never falls. Sums are taken in the order of
components, large ones in blocks that are added in order.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from globular.errors import UnsupportedPassError
from globular.model.cells import CenterCells
from globular.model.covariances import SEPARABLE
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import SoftStatistics, TruncatedPosterior
from globular.passes.torch.assign import closest_small_cells
from globular.passes.torch.card import NOT_WRITTEN, engine
from globular.passes.torch.grouping import group
from globular.passes.torch.products import Aim
from globular.passes.torch.shard import TorchShard
from globular.seam.among import Probe
from globular.seam.answers import Answer, Truncated
from globular.seam.mixture_passes import Expect


def members_of(shard: TorchShard, n_candidates: int) -> Any:
    """Per-row state: K(n), (N, C′) int32, the best first; −1 where there is none."""
    return shard.state.get("members", torch.int32, -1, width=n_candidates)


class Costs:
    """−2 log p(c, x) = Σ_j precision_cj (x_j − μ_cj)² + bias_c for the families with diagonal covariances."""

    def __init__(self, shard: TorchShard, mixture: GaussianParameters) -> None:
        if mixture.covariance_type not in SEPARABLE:
            raise UnsupportedPassError(
                f"components with covariance_type={mixture.covariance_type!r} are not searched here: {NOT_WRITTEN}"
            )
        self.shard, self.D = shard, mixture.means.shape[1]
        self.means = shard.tensor(mixture.means).contiguous()
        log_weights, variances = torch.log(shard.tensor(mixture.weights)), shard.tensor(mixture.variances())
        self.precisions = (1.0 / variances).contiguous()
        log_determinants = torch.log(variances).sum(dim=1) * (self.D if variances.shape[1] == 1 else 1)
        self.biases = log_determinants + self.D * math.log(2 * math.pi) - 2.0 * log_weights
        self.engine = engine(shard.device)

    @property
    def parameters(self) -> tuple[Any, Any, Any]:
        """As kernels take them."""
        return self.means, self.precisions, self.biases

    def nominate(self, cells: CenterCells, visits: Any, kept: int) -> tuple[Any, Any]:
        """The best components of the cells that every row visits: numbers and costs, (N, visits · kept)."""
        shard = self.shard
        members, starts = shard.tensor(cells.order, torch.int64), shard.tensor(cells.starts, torch.int64)
        grouping = group(visits.reshape(-1), len(starts) - 1, starts=False)
        given = shard.tensor(cells.middles).contiguous(), kept, grouping, starts, members, visits.shape[1]
        scores, found = self.engine.nominate_components(shard.x, *self.parameters, *given)
        return found.view(shard.n_rows, -1), scores.view(shard.n_rows, -1)

    def weigh(self, labels: Any, members: Any, candidates: Any = None, scores: Any = None) -> tuple[Any, Any, Any]:
        """K(n) becomes the best of itself and the candidates: shares, bounds, and bounds before, of every row."""
        found = self.engine.weigh(self.shard.x, *self.parameters, labels, members, candidates, scores)
        return tuple(found)


def statistics(
    shard: TorchShard, mixture: GaussianParameters, costs: Costs, members: Any, shares: Any
) -> tuple[Any, Any, Any]:
    """Counts, sums and scatter of the truncated M-step."""
    if shard.w is not None:
        shares = shares * shard.w[:, None]
    raw = costs.engine.sum_entries(shard.x, shares, costs.means, members)
    counts, sums, squares = torch.split(raw, [1, costs.D, costs.D], dim=1)
    if mixture.family.scatter.width(costs.D) < costs.D:
        squares = squares.sum(dim=1, keepdim=True)
    return shard.give(counts[:, 0].contiguous()), shard.give(sums.contiguous()), shard.give(squares.contiguous())


@TorchShard.implements(Expect, Probe)
def expect_probe(shard: TorchShard, work: Expect) -> SoftStatistics:
    """Truncated E-step among K(n) and the components of the closest cells."""
    assert isinstance(work.among, Probe)
    cells, kept = work.among.cells, work.among.n_candidates
    members, labels, costs = members_of(shard, kept), shard.label_tensor, Costs(shard, work.mixture)
    looks = _n_members(labels, members)
    n_distances, found = 0, (None, None)
    if cells is not None:
        visits, n_distances, routing = _visited(shard, cells, work.among.n_probes)
        found = costs.nominate(cells, visits, kept)
        looks = looks + routing + shard.tensor(cells.starts, torch.int64).diff()[visits.long()].sum()
    shares, bounds, before = costs.weigh(labels, members, *found)
    sums = statistics(shard, work.mixture, costs, members, shares)
    totals = torch.stack([shard.weighted(bounds).sum(), shard.weighted(before).sum(), looks.to(torch.float64)])
    bound, former, n_looks = totals.tolist()
    gain = 0.0 if cells is None else bound - former
    return SoftStatistics(*sums, bound, shard.total_weight, n_distances + int(n_looks), gain=gain)


def _visited(shard: TorchShard, cells: CenterCells, n_probes: int) -> tuple[Any, int, Any]:
    """The cells that every row visits, (N, p), the number of distances to find them, and more of these to be added."""
    n_visits = cells.n_visits(n_probes)
    if cells.above is None:
        return Aim(shard, cells.middles).nominate(n_visits)[1], shard.n_rows * len(cells.middles), 0
    visits, looks = closest_small_cells(shard, cells, n_visits)
    return visits, shard.n_rows * len(cells.above.middles), looks.sum()


def _n_members(labels: Any, members: Any) -> Any:
    """How many components all K(n) have; one where K(n) is to start from the label."""
    is_known = members[:, 0] == labels
    return torch.where(is_known, (members >= 0).sum(dim=1), 1).sum()


@TorchShard.implements(Answer, Truncated)
def truncated_posterior(shard: TorchShard, work: Answer) -> list[Any]:
    """The "posterior" of the K(n) that the last pass has left, or its "log_densities" alone."""
    members = members_of(shard, work.model.n_candidates).clone()
    probabilities, bounds, _ = Costs(shard, work.model.mixture).weigh(members[:, 0].contiguous(), members)
    if work.want == "log_densities":
        return [shard.give(bounds)]
    return [TruncatedPosterior(*(each.cpu().numpy() for each in (members, probabilities, bounds)))]
