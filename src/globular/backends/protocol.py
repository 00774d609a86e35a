"""The seam: one pass over the data.

A *shard* holds rows and their per-point state (labels, distances to seeds, bounds) wherever they live: in memory, on
disk, on another machine. A pass takes small parameters (C-sized, float64), does everything N-sized, updates the
per-point state in place and returns additive statistics with a distance count. Algorithms see this protocol and
nothing else, so the same loop runs on one array (`cpu`), on many shards (`split`: map and add) and on data larger
than memory (`stream`: shards loaded one after the other).

Shards list the passes they offer in `passes`; `require` turns a missing one into an error with the shard's reason.
"Rows as the passes see them" are the user's rows in float64, scaled to unit length if the metric is the cosine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from globular.errors import UnsupportedPassError
from globular.model.cells import CellTree, CenterCells
from globular.model.chunks import BoundGap, ChunkGains, Chunks, NodeValue, ShareRule, Within
from globular.model.columns import ColumnMeans
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph
from globular.model.groups import CenterGroups
from globular.model.nested import Batch, NestedSearch, NestedStatistics
from globular.model.search import Search
from globular.model.statistics import (
    F64,
    CellStatistics,
    Claim,
    FarRows,
    HardStatistics,
    PotentialStatistics,
    ProbedStatistics,
    SoftStatistics,
    TruncatedStatistics,
)
from globular.model.subspace import Subspace

Index = NDArray[np.intp]
Labels = NDArray[np.int32]
Route = Literal["top", "down", "stay"]


@runtime_checkable
class Shard(Protocol):
    """Rows with their per-point state, and the passes over them."""

    @property
    def n_rows(self) -> int: ...

    @property
    def n_columns(self) -> int: ...

    @property
    def total_weight(self) -> float:
        """Σ w; the number of rows when there are no weights."""
        ...

    @property
    def passes(self) -> Mapping[str, str]:
        """Every pass of this protocol → "" if offered, else the reason why not."""
        ...

    @property
    def casts_ballots(self) -> bool:
        """Whether nested passes take centres that are kept column by column: rows are sparse, and here in memory."""
        ...

    @property
    def labels(self) -> Labels:
        """Per-point state of the hard passes: the closest centre; −1 before the first pass."""
        ...

    def hard_pass(self, centers: F64, *, accumulate: bool = True) -> HardStatistics:
        """Label every row with its exactly closest centre (lowest index on ties) and sum per cluster. N·C distances."""
        ...

    def bounded_pass(self, centers: F64, groups: CenterGroups, shifts: F64 | None) -> HardStatistics:
        """The same result as `hard_pass`, skipping what the yinyang bounds rule out.

        `shifts` are the distances the centres moved since the last pass; None starts the bounds afresh.
        """
        ...

    def soft_pass(self, mixture: GaussianParameters) -> SoftStatistics:
        """Exact E-step of a Gaussian mixture: sums weighted by the responsibilities. N·C distances."""
        ...

    def kept_pass(self, mixture: GaussianParameters, *, renew: bool) -> SoftStatistics:
        """E-step over the pairs of rows and components that mattered when all were looked at last; `renew` does so.

        N·C distances for that, else one a pair. The log-likelihood is a bound of it from below.
        """
        ...

    def claim_pass(
        self, mixture: GaussianParameters, components: Index, rates: F64, seed: int, *, kept: bool = False
    ) -> list[Claim]:
        """Copies of the rows that these components are responsible for, weighted by w·q. N·C distances.

        A component gives the share `rates` of its rows, drawn at random, at so much more weight. `kept` looks only at
        the pairs that the last `kept_pass` has left.
        """
        ...

    def truncated_pass(
        self, centers: F64, graph: Graph, search: Search, *, moved_only: bool = False
    ) -> TruncatedStatistics[HardStatistics]:
        """Truncated E-step of k-means: every row looks at the neighbourhoods of its K(n), only the closest votes.

        Starts from `labels`, whoever set them. With `moved_only` sums and counts hold what changed against the labels
        before the pass. About N·C′·G distances, whatever the number of clusters.
        """
        ...

    def truncated_soft_pass(
        self, mixture: GaussianParameters, graph: Graph, search: Search
    ) -> TruncatedStatistics[SoftStatistics]:
        """Truncated E-step of a mixture with diagonal covariances; `log_likelihood` is the free energy of Eq. 10."""
        ...

    def probing_pass(
        self, centers: F64, cells: CenterCells, n_probes: int, *, accumulate: bool = True
    ) -> HardStatistics:
        """Every row searches its `n_probes` closest cells of centres and keeps its label if nothing there is closer.

        About N·(cells + n_probes · C / cells) distances. Squared distances to the own centre replace those of
        `d2_pass`, as in `routed_pass`.
        """
        ...

    def probing_soft_pass(
        self, mixture: GaussianParameters, cells: CenterCells | None, n_probes: int, n_candidates: int
    ) -> ProbedStatistics:
        """Truncated E-step of a mixture with diagonal covariances: K(n) = the C′ best of K(n) and of the closest cells.

        Without cells K(n) stays and only its costs are renewed.
        Rows whose K(n) does not begin with their label start from the label alone. `log_likelihood` is the free energy
        of Eq. 10; about N·(C′ + cells + n_probes · C / cells) distances.
        """
        ...

    def nested_pass(
        self, centers: F64 | ColumnMeans, origin: F64, batch: Batch, search: NestedSearch
    ) -> NestedStatistics:
        """Label the rows of a batch, and say how the votes changed; those of other rows stay as they are.

        Centres by column (see `casts_ballots`) are answered by ballots about zero, all others by sums.
        Sums and squares are taken about `origin`. Exactly the closest centre unless the search has candidates. At most
        b·C distances for b rows in the batch; with bounds fewer, with candidates about b·√C.
        """
        ...

    def pick(self, indices: Index) -> Shard:
        """These rows (ascending) as a shard of their own, with their weights but without labels or other state."""
        ...

    def scatter_labels(self, n_clusters: int, seed: int) -> None:
        """Put every row into a random cluster: the paper's start."""
        ...

    def label_by_seeds(self) -> None:
        """Give every row the number of its closest seed, as left by `d2_pass`, for a label."""
        ...

    def label_sums(self, n_clusters: int) -> HardStatistics:
        """Sums of the rows as they are labelled; no distance is looked at, and the objective is 0."""
        ...

    def within(self, subspace: Subspace) -> Shard:
        """The rows' coordinates in a subspace, held in memory; labels and all other per-point state are shared."""
        ...

    def relabel(self, names: NDArray[np.int32]) -> None:
        """Rename the clusters: a row of label c gets the label names[c]."""
        ...

    def d2_pass(self, centers: F64, *, restart: bool = False) -> PotentialStatistics:
        """Lower each row's squared distance to its closest seed by the new seeds `centers`; N·len(centers) distances.

        `restart` forgets all earlier seeds. The per-point state is the pair (squared distance, index of the seed,
        counted since the restart).
        """
        ...

    def locate(self, masses: F64) -> Index:
        """Rows at which the running sum of w·d² (of the last `d2_pass`) first exceeds each mass."""
        ...

    def locate_weight(self, masses: F64) -> Index:
        """Rows at which the running sum of w first exceeds each mass."""
        ...

    def trial_pass(self, centers: F64) -> F64:
        """Σ w min(d², ‖x − m‖²) for each of the trial seeds alone, (len(centers),); the state stays. Adds up."""
        ...

    def seed_weights(self, n_seeds: int) -> F64:
        """Σ w of the rows closest to each of the seeds given since the restart of the d2 state, (n_seeds,)."""
        ...

    def label_errors(self, n_clusters: int) -> F64:
        """Σ w d² per label, with d² as left by the last `d2_pass`, routed or probing pass, (n_clusters,)."""
        ...

    def plant_tree(self, scatter: ScatterKind, leaf_size: int, *, largest: float = np.inf, depth: int = 0) -> int:
        """Lay a partition tree over the rows and open it to a frontier of cells; returns their number.

        The frontier are the highest nodes of a weight of at most `largest` that are at least `depth` deep. The tree
        stays while `scatter` and `leaf_size` do: planting again only resets the frontier.
        """
        ...

    def cell_pass(
        self, mixture: GaussianParameters, *, rule: ShareRule = "optimal", within: Within | None = None
    ) -> SoftStatistics:
        """E-step over the cells of the frontier, all rows of a cell sharing responsibilities; cells × C densities.

        The same statistics as those of `soft_pass`, with the bound F for the log-likelihood. Weights of the mixture
        need not add up to one. `within` lets every cell count with the share that a component holds of it.
        """
        ...

    def truncated_cell_pass(
        self, mixture: GaussianParameters, graph: Graph, search: Search
    ) -> TruncatedStatistics[SoftStatistics]:
        """The same with few components K(A) per cell, found by neighbourhoods: about cells · C′ · G densities."""
        ...

    def gain_pass(self, mixture: GaussianParameters, n: int, *, truncated: bool = False) -> ChunkGains:
        """What replacing each cell with its children would raise the bound by, per cell added; the n largest.

        Gains stay with the shard, for `expand_chunks`. `truncated` looks only at K(A), which a truncated pass has left.
        """
        ...

    def gap_pass(self, mixture: GaussianParameters, *, truncated: bool = False) -> BoundGap:
        """By how much single rows for cells would raise the bound, estimated from a few rows of every cell."""
        ...

    def expand_chunks(self, smallest: float) -> int:
        """Open every cell that gains at least so much (and anything at all) per cell added; the number of cells now."""
        ...

    def open_rows(self) -> int:
        """Open every cell down to single rows, for truncated passes; their number. Memory for all rows in float64."""
        ...

    def claim_chunks(self, mixture: GaussianParameters, components: NDArray[np.integer]) -> list[Chunks]:
        """The cells that these components are responsible for, weighted by w·q; cells × C densities."""
        ...

    def open_claimed(self, mixture: GaussianParameters, components: NDArray[np.integer], least: int) -> int:
        """Open the cells that these components hold most of until each has about `least`, if it has so many rows.

        Returns the number of cells now. cells × C densities, or none where cells remember their components.
        """
        ...

    def best_nodes(self, value: NodeValue, gain: float) -> Chunks:
        """The nodes of the tree, no row in two of them and all rows in one, that are worth most together.

        To take two nodes instead of their parent has to gain so much per unit of weight.
        """
        ...

    def open_best(self) -> int:
        """Open cells down to what `best_nodes` has found; the number of cells now."""
        ...

    def forget_members(self) -> None:
        """Let the next `truncated_cell_pass` find K(A) anew among all components, because they are other ones."""
        ...

    def take_chunks(self) -> Chunks:
        """The cells of the frontier."""
        ...

    def take(self, indices: Index) -> F64:
        """Those rows as the passes see them, (len(indices), D)."""
        ...

    def take_potential(self, indices: Index) -> F64:
        """w·d² of those rows, as left by the last `d2_pass`."""
        ...

    def take_weights(self, indices: Index) -> F64:
        """w of those rows."""
        ...

    def routed_pass(self, tree: CellTree, *, route: Route = "top", accumulate: bool = True) -> CellStatistics:
        """Label every row with the exactly closest centre of its own cell, and sum per centre.

        `route` says how a row comes to its cell on the last level but one: "top", down the whole tree; "down", the
        cell is its present label (the tree has grown by one level since the last pass); "stay", the same cell as in
        the last pass (per-point state). Squared distances to the own centre replace those of `d2_pass`, so that
        `locate` draws rows in proportion to w·d²; the next `d2_pass` must restart.
        """
        ...

    def local(self, rows: F64, weights: F64 | None = None) -> LocalShard:
        """A C-sized shard of these rows (as `take` returns them) in memory beside the algorithm, on the same threads.

        It sees the rows as they are given: they are not scaled again.
        """
        ...

    def column_moments(self) -> tuple[F64, F64]:
        """Weighted mean and variance of every column."""
        ...

    def farthest(self, n: int, centers: F64) -> FarRows:
        """The n rows farthest from the centre of their own label; rows of weight zero do not count."""
        ...


class LocalShard(Shard, Protocol):
    """A C-sized shard made by `local`; its rows are sorted by cell where a method takes `starts`."""

    def chunk_pass(self, chunks: Chunks, mixture: GaussianParameters) -> SoftStatistics:
        """The `cell_pass` of these cells, few enough for one thread; the rows of the shard have no part in it.

        The same cells are often asked for again: what can be made of them beforehand is kept.
        """
        ...

    def cell_seeds(self, starts: Index, quotas: Index, uniforms: F64) -> Index:
        """Draw quotas[g] rows by k-means++ inside each cell g, the rows starts[g] … starts[g + 1] − 1.

        `uniforms` holds one number in [0, 1) for each row to draw. Returns Σ quotas row numbers in the order of the
        cells; −1 where a cell had no further distinct row of positive weight.
        """
        ...

    def cell_neighbors(self, starts: Index, adjacent: Index, n_neighbors: int) -> Labels:
        """For each row the n closest rows (itself first) among its own cell and the adjacent ones.

        `adjacent` (n_cells, A) names cells, the own one among them. Cells that together hold too few rows count as
        adjacent to all.
        """
        ...


def require(shard: Shard, *names: str) -> None:
    """Raise with the shard's own reason unless it offers all the passes named."""
    for name in names:
        reason = shard.passes.get(name, "this kind of shard does not know it")
        if reason:
            raise UnsupportedPassError(f"{name} is not available here: {reason}")


Statistics = TypeVar(
    "Statistics",
    HardStatistics,
    SoftStatistics,
    PotentialStatistics,
    CellStatistics,
    FarRows,
    TruncatedStatistics[HardStatistics],
    TruncatedStatistics[SoftStatistics],
    ProbedStatistics,
    Chunks,
    NestedStatistics,
)


def add_up(parts: Iterable[Statistics]) -> Statistics:
    """Statistics of all parts together, added in order."""
    remaining = iter(parts)
    total = next(remaining)
    for part in remaining:
        total = total + part
    return total
