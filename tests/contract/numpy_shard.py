"""A backend in plain NumPy: all that is N-sized is one array, and every source of candidates is answered by all."""

from typing import Any

import numpy as np

from globular.model import statistics
from globular.model.chunks import Chunks, Claims
from globular.model.dirichlet import InfiniteMixture
from globular.model.exponential import ExponentialMixture, Surveyed
from globular.model.low_rank import LowRankParameters
from globular.model.nested import NestedStatistics
from globular.passes.cpu.shard import BlockShard
from globular.seam import answers, mixture_passes, passes
from globular.seam.among import All, Down, Need, Neighbors, Probe, Within
from reference import assign as hard
from reference import expect as soft
from reference import linear, low_rank
from reference import neighbors as truncated
from reference import seeds as d2


class NumpyShard(BlockShard):
    """Dense rows as one array of float64."""

    lacks = dict.fromkeys((Need.SPARSE, Need.ONE_PLACE, Need.CARD), "nobody has written it")

    def __init__(self, matrix: Any, weights: Any = None, *, unit_rows: bool = False, **place: int) -> None:
        super().__init__(matrix.shape, weights, **place)
        self.x, self.w = hard.as_seen(matrix, unit_rows=unit_rows), np.ones(self.n_rows) if weights is None else weights

    def take_rows(self, indices: passes.Index) -> statistics.F64:
        return self.x[indices]

    def subset(self, indices: passes.Index) -> "NumpyShard":  # type: ignore[override]
        return NumpyShard(self.x[indices], self.w[indices] if len(self.weights) else None, n_threads=self.n_threads)

    def parts(self) -> Any:
        raise AssertionError("this backend carries out its passes itself")


def sums_by(x: statistics.F64, w: statistics.F64, labels: Any, n: int) -> tuple[statistics.F64, statistics.F64]:
    member = w[:, None] * (labels[:, None] == np.arange(n))
    return member.T @ x, member.sum(axis=0)


@NumpyShard.implements(passes.Assign)
def assign(shard: NumpyShard, work: passes.Assign) -> statistics.HardStatistics:
    former, C = shard.labels.copy(), len(work.centers)
    shard.labels[:], found = hard.hard_pass(shard.x, shard.w, work.centers, former)
    errors = ((shard.x - work.centers[shard.labels]) ** 2).sum(axis=1)
    if "d2" in work.effect.writes:
        shard.squared_distances[:] = errors
    if isinstance(work.among, Down):
        found.errors = np.bincount(shard.labels, shard.w * errors, minlength=C)
    if work.want == "labels":
        found.sums, found.counts = np.empty((0, shard.n_columns)), np.empty(0)
    return found


@NumpyShard.implements(passes.Spare)
def spare(shard: NumpyShard, work: passes.Spare) -> statistics.SpareCenters:
    shard.labels[:] = hard.closest_centers(shard.x, work.centers)
    shard.squared_distances[:] = ((shard.x - work.centers[shard.labels]) ** 2).sum(axis=1)
    return hard.spare(shard.x, shard.w, work.centers)


@NumpyShard.implements(passes.AssignBatch)
def assign_batch(shard: NumpyShard, work: passes.AssignBatch) -> NestedStatistics:
    if work.search.restart:
        shard.labels[:] = -1
    rows = work.rows.seen_from(shard.first_row).rows(shard.n_rows)
    former, labels = shard.labels[rows], hard.closest_centers(shard.x[rows], work.centers)
    shard.labels[rows] = labels
    moved = labels != former
    joining = moved if work.search.remove_old else np.ones(len(rows), dtype=bool)
    leaving = moved & (former >= 0) & work.search.remove_old
    found = NestedStatistics.none(*work.centers.shape)
    for sign, who, chosen in ((1, labels[joining], rows[joining]), (-1, former[leaving], rows[leaving])):
        x, w = shard.x[chosen] - work.origin, shard.w[chosen]
        np.add.at(found.sums, who, sign * w[:, None] * x)
        np.add.at(found.counts, who, sign * w)
        np.add.at(found.squares, who, sign * w * (x**2).sum(axis=1))
        np.add.at(found.sizes, who, sign * (w > 0))
    found.n_rows, found.n_changed, found.n_distances = len(rows), int(moved.sum()), len(rows) * len(work.centers)
    return found


@NumpyShard.implements(passes.AddSeeds)
def add_seeds(shard: NumpyShard, work: passes.AddSeeds) -> statistics.PotentialStatistics:
    if work.n_before == 0:
        shard.squared_distances[:] = np.inf
    found = d2.seed_distances(shard.x, shard.w, work.seeds)
    closer = found.d2 < shard.squared_distances
    shard.squared_distances[closer] = found.d2[closer]
    shard.closest_seeds[closer] = work.n_before + found.seeds[closer]
    return statistics.PotentialStatistics(float(shard.w @ shard.squared_distances), shard.n_rows * len(work.seeds))


def log_joint(shard: NumpyShard, mixture: Any) -> statistics.F64:
    with np.errstate(divide="ignore"):
        return soft.log_joint(shard.x, mixture) + getattr(mixture, "log_scale", 0.0)


@NumpyShard.implements(mixture_passes.Expect)
def expect(shard: NumpyShard, work: mixture_passes.Expect) -> statistics.SoftStatistics:
    if isinstance(work.among, Neighbors | Probe):
        return expect_few(shard, work.mixture, getattr(work.among, "search", work.among).n_candidates)
    if work.offset is not None:
        return soft.tied_pass(shard.x, shard.w, work.mixture, work.offset)
    with np.errstate(divide="ignore"):
        found = soft.soft_pass(shard.x, shard.w, work.mixture)
    found.log_likelihood += shard.total_weight * getattr(work.mixture, "log_scale", 0.0)
    return found


def expect_few(shard: NumpyShard, mixture: Any, n_candidates: int) -> statistics.SoftStatistics:
    members = shard.state.get("members", np.int32, -1, n_candidates)
    members[:] = np.argsort(-log_joint(shard, mixture), axis=1, kind="stable")[:, :n_candidates]
    shard.labels[:] = members[:, 0]
    return truncated.kept_statistics(shard.x, shard.w, mixture, members, shard.n_rows * mixture.n_components)[1]


@NumpyShard.implements(mixture_passes.ExpectLowRank)
def expect_low_rank(shard: NumpyShard, work: mixture_passes.ExpectLowRank) -> Any:
    joint = log_joint(shard, low_rank.in_columns(work.mixture))
    members = np.argsort(-joint, axis=1, kind="stable").astype(np.int32)
    if isinstance(work.among, Probe):
        kept = shard.state.get("members", np.int32, -1, work.among.n_candidates)
        kept[:] = members = members[:, : work.among.n_candidates]
    if isinstance(work.among, Within):
        members = (shard.labels[:, None] * work.among.n_parts + np.arange(work.among.n_parts)).astype(np.int32)
    if isinstance(work.among, All | Probe):
        shard.labels[:] = members[:, 0]
    q = low_rank.responsibilities(joint, members)
    n_distances = members.size if isinstance(work.among, Within) else joint.size
    return low_rank.statistics(shard.x, shard.w, work.mixture, q, n_distances)


@NumpyShard.implements(mixture_passes.ScatterWithin)
def scatter_within(shard: NumpyShard, work: mixture_passes.ScatterWithin) -> Any:
    return low_rank.scatter_within(shard.x, shard.w, shard.labels, work.centers, work.scales)


@NumpyShard.implements(mixture_passes.RowsOf)
def rows_of(shard: NumpyShard, work: mixture_passes.RowsOf) -> Claims:
    joint = log_joint(shard, work.mixture)
    q = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))[:, work.components]
    drawn = np.random.Generator(np.random.PCG64([work.seed, 0]).advance(shard.first_row)).random(shard.n_rows)
    chosen = (q > 1e-4) & (shard.w > 0)[:, None] & (drawn[:, None] < work.rates)
    which, rows = np.nonzero(chosen.T)
    weights = (shard.w[:, None] * q / work.rates)[rows, which]
    held = Chunks.of_rows(shard.x[rows], weights, work.mixture.family.scatter)
    return Claims(held, np.append(0, np.cumsum(chosen.sum(axis=0))))


@NumpyShard.implements(mixture_passes.LabelByDensity)
def label_by_density(shard: NumpyShard, work: mixture_passes.LabelByDensity) -> None:
    shard.labels[:] = log_joint(shard, work.mixture).argmax(axis=1)


@NumpyShard.implements(mixture_passes.Survey)
def survey(shard: NumpyShard, work: mixture_passes.Survey) -> Surveyed:
    unit, base = work.family.unit_rows, work.family.log_base(shard.x)
    invalid = (shard.x == 0).all(axis=1)[:, None] if unit else work.family.are_invalid(shard.x)
    rows = np.flatnonzero(invalid.any(axis=1))
    first = {"first": shard.first_row + int(rows[0])} if len(rows) else {}
    return Surveyed(int(invalid.sum()), 0.0 if unit or base is None else float(shard.w @ base.sum(1)), **first)


@NumpyShard.implements(answers.Answer, ExponentialMixture)
def answer_linear(shard: NumpyShard, work: answers.Answer) -> list[Any]:
    q, densities = linear.posterior(shard.x, work.model.linear)
    base = work.model.log_base(shard.x)
    densities = densities if base is None else densities + base.sum(axis=1)
    found = {"probabilities": q, "components": q.argmax(axis=1), "total": float(shard.w @ densities)}
    return [found.get(work.want, densities)]


@NumpyShard.implements(answers.Answer)
def answer(shard: NumpyShard, work: answers.Answer) -> list[Any]:
    if isinstance(work.model, answers.Centers):
        by_angle = work.model.metric == "cosine"
        x, centers = (hard.as_seen(rows, unit_rows=by_angle) for rows in (shard.x, work.model.centers))
        return [1.0 - x @ centers.T if by_angle else np.sqrt(hard.squared_distances(x, centers))]
    if isinstance(work.model, answers.Nearest | answers.Own):
        squares = hard.squared_distances(shard.x, work.model.centers)
        own = squares[np.arange(shard.n_rows), shard.labels]
        return [own if work.want == "squares" else hard.nearest(squares, work.model.n)]
    if isinstance(work.model, answers.LowRank):
        mixture = work.model.mixture
        if work.want != "factors":
            return answer(shard, answers.Answer(low_rank.in_columns(mixture), work.want))
        labels, rows = log_joint(shard, low_rank.in_columns(mixture)).argmax(axis=1), low_rank.seen(shard.x, mixture)
        return [np.stack([low_rank.factor_means(rows[[i]], mixture, c)[0] for i, c in enumerate(labels)])]
    if isinstance(work.model, LowRankParameters):
        return answer(shard, answers.Answer(low_rank.in_columns(work.model), work.want))
    if isinstance(work.model, answers.Truncated):
        members = shard.state.get("members", np.int32, -1, work.model.n_candidates)
        joint = np.take_along_axis(log_joint(shard, work.model.mixture), members.astype(np.intp), axis=1)
        found = np.logaddexp.reduce(joint, axis=1)
        q = np.exp(joint - found[:, None])
        return [found if work.want == "log_densities" else statistics.TruncatedPosterior(members, q, found)]
    joint = None if isinstance(work.model, InfiniteMixture) else log_joint(shard, work.model)
    if getattr(work.model, "noise", None) is not None:
        joint = np.column_stack([joint, np.full(shard.n_rows, work.model.noise.log_joint)])
    found = work.model.log_predictive(shard.x) if joint is None else np.logaddexp.reduce(joint, axis=1)
    if joint is not None and work.want in ("components", "probabilities"):
        best = joint.argmax(axis=1)
        best = np.where(best < work.model.n_components, best, -1)  # noise comes last
        return [best if work.want == "components" else np.exp(joint - found[:, None])]
    return [float(shard.w @ found) if work.want == "total" else found]


@NumpyShard.implements(passes.Halve)
def halve(shard: NumpyShard, work: passes.Halve) -> statistics.HardStatistics:
    found = hard.halve(shard.x, shard.w, shard.labels, work.firsts, work.seconds)
    squared = hard.distances_in_halves(shard.x, shard.labels, work.firsts, work.seconds)
    shard.squared_distances[:] = squared.min(axis=0)
    if work.names is not None:
        shard.labels[:] = np.where(squared[1] < squared[0], work.names[shard.labels], shard.labels)
    return found


def simple(kind: Any, function: Any) -> None:
    NumpyShard.implements(kind)(lambda shard, work: function(shard.x, shard.w, shard, work))


simple(passes.SumByLabel, lambda x, w, s, p: statistics.HardStatistics(*sums_by(x, w, s.labels, p.n_clusters), 0, 0, 0))
simple(passes.Farthest, lambda x, w, s, p: hard.farthest(x, w, p.centers, s.labels, p.n))
simple(mixture_passes.ExpectWithin, lambda x, w, s, p: soft.within_pass(x, w, p.mixture, s.labels, p.n_parts))
simple(passes.TrySeeds, lambda x, w, s, p: d2.trial_potentials(x, w, s.squared_distances, p.seeds))
simple(passes.Moments, lambda x, w, s, p: statistics.ColumnMoments(((s.total_weight, *hard.column_moments(x, w)),)))
simple(passes.Extremes, lambda x, w, s, p: np.stack([x.min(axis=0), x.max(axis=0)]))
simple(mixture_passes.ExpectLinear, lambda x, w, s, p: linear.linear_pass(x, w, p.mixture))
