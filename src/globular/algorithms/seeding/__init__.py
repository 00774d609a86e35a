"""Seeding: starting centres, one method per file.

Each method is a generator `(shard, n_clusters, rng, …)` that shows the seeds it has so far, after every pass that says
what they are worth, and returns the centres in float64. Random numbers are drawn here and nowhere else; a shard only
answers which row a mass falls on. So the seeds are the same for any number of threads and any split of the rows.
Distinct rows are given while there are any (of positive weight), then rows repeat.
"""

from globular.algorithms.seeding.afk_mc2 import afk_mc2
from globular.algorithms.seeding.hierarchical import HierarchicalSeeds, hierarchical
from globular.algorithms.seeding.parallel import parallel
from globular.algorithms.seeding.plus_plus import plus_plus
from globular.algorithms.seeding.random import random

__all__ = ["HierarchicalSeeds", "afk_mc2", "hierarchical", "parallel", "plus_plus", "random"]
