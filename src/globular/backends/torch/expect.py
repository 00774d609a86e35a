"""Exact E-steps of Gaussian mixtures on the card, and what a mixture says of every row there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from globular.backends.torch.densities import Densities
from globular.backends.torch.shard import TorchShard
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import SoftStatistics
from globular.seam.among import All
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect, ExpectTied, LabelByDensity


@TorchShard.implements(Expect, All)
def expect_all(shard: TorchShard, work: Expect) -> SoftStatistics:
    """Sums weighted by the responsibilities. N·C densities; memory: a block of rows."""
    densities = Densities(shard, work.mixture)
    return densities.blocks.statistics(densities.moments(), shard.n_rows)


@TorchShard.implements(ExpectTied)
def expect_tied(shard: TorchShard, work: ExpectTied) -> SoftStatistics:
    """The same as products with the rows alone."""
    densities = Densities(shard, work.mixture, linear_about=np.asarray(work.offset))
    return densities.blocks.linear_statistics(densities.moments(), shard.n_rows)


@TorchShard.implements(LabelByDensity)
def label_by_density(shard: TorchShard, work: LabelByDensity) -> None:
    for block in Densities(shard, work.mixture):
        shard.label_tensor[block.rows] = block.joint.argmax(dim=1).to(torch.int32)


@TorchShard.implements(Answer, GaussianParameters)
def answer(shard: TorchShard, work: Answer) -> list[Any]:
    """What a mixture says of every row; see `backends.cpu.expect.all.answer`."""
    densities = Densities(shard, work.model)
    n_shares = densities.n_components + (work.model.noise is not None)
    shape = (shard.n_rows, n_shares) if work.want == "probabilities" else (shard.n_rows,)
    is_whole = work.want == "components"
    found = torch.empty(shape, dtype=torch.int64 if is_whole else torch.float64, device=shard.device)
    for block in densities:
        if is_whole:
            found[block.rows] = block.components()
            continue
        shares, log_densities = block.shares()
        if work.want != "probabilities":
            found[block.rows] = log_densities
        else:
            found[block.rows, : densities.n_components] = shares
            if n_shares > densities.n_components:
                found[block.rows, -1] = (work.model.background - log_densities).exp_()
    if work.want == "total":
        return [float((found if shard.w is None else found * shard.w).sum())]
    return [shard.give(found)]
