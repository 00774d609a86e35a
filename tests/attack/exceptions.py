"""Constants without a line in `thresholds`: the modules with their names, under the reason why nothing begins there."""

from collections.abc import Iterator

_REASONS = {
    "compiled into kernels, which `tests/passes` hold to their oracles": """
        passes.cpu.engine.*
        passes.cpu.cells: HEAT
        passes.cpu.center_scores: SAFETY SMALLEST_NORMAL LARGEST
        passes.cpu.expect.low_rank: FACTOR_TILE CANCELLED_QUADRATIC
        passes.cpu.expect.pairs: PAIRS_AT_ONCE
        passes.cpu.expect.remembered: ROUNDING
        passes.cpu.plain: ROWS_PER_BLOCK
        passes.cpu.sparse_seeds: COMMON HALF_LOST
        passes.tree.splitting: SAMPLE LOPSIDED
        passes.host: HORIZON
    """,
    "of the door to numba, which `tests/jit` try": """
        jit.*
    """,
    "of the backend for cards, which `tests/gpu` try": """
        passes.torch.*
    """,
    "what people look at and run": """
        cli.* report.* plotting.* datasets.* export.* callbacks.*
        data.blocks: _MOST_LISTED _MOST_PROPOSED
        model.history: _REPR_EDGE
        model.selection: FAINT_SILHOUETTE CLOSE_SILHOUETTES CLOSE_CRITERIA FACTOR_APART
        selection: REFERENCE_ROWS ROWS_PER_CLUSTER REFERENCE_WORK
    """,
    "about the seconds of something: how many threads are woken, which `threads.pool.WAKING`, `WAITING` try": """
        *.SECONDS_PER_*
    """,
    "how many bytes something takes, for a message": """
        estimators.checks.*
        passes.host: NODES_PER_LEAF_SIZE
        estimators.kmeans: CARD_BYTES_PER_PROBE
    """,
    "whether time is left, which tests of `max_time` try": """
        algorithms.kmeans.probing: WIDE_SEARCH
        estimators.centroids: TIMED_ROWS
        estimators.running: GRACE SAME_PRESS_SECONDS
    """,
    "workers that come late, die or are full, which `tests/estimators/test_dask.py` kills": """
        passes.dask.*
        estimators.elsewhere: _SMALL_MODEL
    """,
    "where input is refused, which `test_bad_input.py`, `test_io.py` and `test_persistence.py` try": """
        persistence.*
        data.hdf5_files: _MOST_SLABS _MOST_LINKS
        data.streamed: _MOST_ROWS
        data.text_files: _LONGEST_LINE
        data.binary_files: _MAX_COLUMNS
        estimators.infinite_base: MOST_WEIGHT
        estimators.inputs: SMALLEST_VARIANCE ROWS_LOOKED_AT TOTALS
    """,
    "rounding, overflow and underflow, which tests of tiny, huge and far rows and weights try": """
        algorithms.calibration: ROUNDED_TO
        passes.cpu.expect.blocks: ABSENT
        passes.cpu.expect.remembered: NATS_BELOW
        passes.cpu.expect.rows_of: SMALLEST_CLAIM
        estimators.inputs: ORDINARY
        model.covariances.family: REG_COVAR RELATIVE_FLOOR LEAST_VARIANCE _ROUNDED
        model.covariances.families: _MOST_LIFTS
        model.exponential.directions: LARGEST_CONCENTRATION UNIFORM_UP_TO _TERMS _UNDERFLOW _NEWTON_STEPS
            _NEWTON_TOLERANCE
        model.exponential.family: LEAST SMALLEST_PROBABILITY LARGEST_PROBABILITY SMALLEST_RATE
        model.gaussian: _WEIGHT_FLOOR
        model.coordinates: _LARGEST_SINGLE
        model.low_rank: MOST_SIGNAL NO_WEIGHT_COST
        model.noise: _VARIANCES_OF_WIDTH _NARROW
        model.dirichlet: _TAIL_TERMS _GAMMA_TURNS _GAMMA_TOLERANCE
    """,
    "a size of memory that is filled as often as it takes, tried by tests of their own": """
        algorithms.kmeans.balance: PRICED_AT_ONCE
        algorithms.mixtures.missing: NUMBERS_PER_BLOCK
        algorithms.ward: DISTANCES_AT_ONCE
        passes.cpu.plain: ROWS_PER_BLOCK
    """,
    "either side of which is tried by `test_line.py`, `test_product.py` and `test_fit_many.py`": """
        algorithms.kmeans.line: MOST_ROWS
        passes.cpu.line: FEW FEW_PER_CLUSTER RESOLVED
        estimators.many: LARGEST
        estimators.product: ROWS_PER_BLOCK ROTATION_ROWS
    """,
    "rows at once, all sides of which `test_residual.py` tries": """
        seam.answers: CODED_AT_ONCE
        data.residuals: ROWS_AT_ONCE
        estimators.codes: ROWS_PER_BLOCK
    """,
    "what a parameter is where it is not given": """
        algorithms.kmeans.nested_choices: BATCH_ROWS BATCH_ROWS_PER_CLUSTER
        estimators.chunky_mixture: ROWS_PER_CELL MOST_CELLS_PER_COMPONENT
        algorithms.mixtures.chunky: LEAF_SIZE CELLS_PER_COMPONENT GROWTH_CELLS_PER_COMPONENT MOST_DRAWS TRIAL_STEPS
            DENSITIES_PER_ROW
        estimators.elsewhere: _CUDA
        estimators.infinite_base: NESTED_COMPONENTS FIXED_COMPONENTS POLISHING_STEPS TIMES_SOWN SMALLEST_LEAF
            LARGEST_LEAF LEAST_SCALE
        algorithms.mixtures.starts: _KMEANS_ITERATIONS
        estimators.mixtures: N_CANDIDATES
        estimators.residual: LEVELS
        estimators.running: MANY_THIN THIN_SHARE
        estimators.variational_mixture: N_NEIGHBORS
    """,
    "how far a search goes and what it must gain: any value is right, some are better": """
        algorithms.infinite.clusters: VALLEY_SHARE MISTAKEN ALIKE _ODD _SURELY _ROWS_PER_COLUMN _COUNTED
        algorithms.infinite.data: _MADE_UP _START_DEPTH
        algorithms.infinite.infinite: _STALE _COLD
        algorithms.infinite.run: VANISHED _ENOUGH _MANY_MORE _COMPONENT_ROWS_PER_COLUMN _REFINE_EVERY
        algorithms.infinite.sowing: _ROWS_PER_MEAN
        algorithms.infinite.splits: _STEADY
        algorithms.kmeans.few_rows: CANDIDATES
        algorithms.kmeans.momentum: DECAY REACH LEAD
        algorithms.kmeans.nested: RHO_TOGETHER
        algorithms.kmeans.balance: REMEMBERED ROUNDS
        algorithms.kmeans.limits: CHOICES ALL_CHOICES GRAPH FEW ALL_AMONG MOST_ROUNDS LEAST_GAIN LEAST_MOVED
        passes.cpu.transport: MOST_EDGES KEPT_SHARE KEPT ROUNDS DAMPING PATIENCE
        algorithms.kmeans.subspace: POWER_STEPS
        algorithms.ward: SOON
        algorithms.kmeans.lloyd: TOLERANCE SAMPLE_STEPS
        algorithms.kmeans.path: FRESH_UP_TO
        algorithms.kmeans.nested_choices: CELLS_GAIN
        algorithms.kmeans.pipeline: MOST_STARTS FADING SPARSE_GAIN
        algorithms.kmeans.probing: LEAST_STAKE N_PROBES
        algorithms.kmeans.residual: WORDS_PER_BRANCH WIDENING
        algorithms.kmeans.rotation: FIRST_TURNS TURNS
        algorithms.kmeans.sparse: TRIALS
        estimators.many: DRAWS_PER_SEED
        algorithms.kmeans.swaps: COST_SAFETY FIRST_TRUST SETTLED_GAIN
        algorithms.kmeans.trials: LEAST_RATIO ROUGH_GAIN STEPS_PER_TRIAL WORTH_KEEPING
        algorithms.infinite.polishing: _LAST _STRENGTHS _LEFT_OUT _USUAL
        algorithms.mixtures.ahead: _ROWS_PER_PARAMETER _SHARE _NEAR
        algorithms.mixtures.chunky: _LAST_GAIN _AHEAD _FEW_DIMENSIONS _WORTH_GOING
        algorithms.calibration: MOST_GROUPS
        algorithms.mixtures.coreset: ROWS_PER_GROUP ROWS_PER_SEED
        algorithms.mixtures.low_rank: ROUND STEPS_PER_TRIAL LAST_GAIN MOST_MOVED WORTH_MOVING
        estimators.conditional: N_TYPICAL
        estimators.stepwise_mixture: EARLY_ROWS EARLY_NUMBERS N_REFITS
        algorithms.mixtures.em: COLD STEPS_ON_PART VARIANCE_NUMBERS
        algorithms.mixtures.exponential: KMEANS_ITERATIONS SMOOTHINGS LEFT_OUT MOST_LEFT_OUT FEWEST_LEFT_OUT
        algorithms.mixtures.greedy: N_TRIED PARTIAL_STEPS SETTLING_STEPS N_DIRECTIONS
        algorithms.mixtures.missing: N_DRAWN ENOUGH_ROWS TOL_SHARE
        algorithms.mixtures.moves: CUTS N_CLOSE ROUGH_TOL
        algorithms.mixtures.nested: GROWTH AT_REST
        algorithms.mixtures.noise: DENSITY_NEIGHBORS SHARES
        algorithms.mixtures.path: STEPS_AHEAD PATIENCE N_SEARCHED
        algorithms.mixtures.pipeline: ROWS_PER_COMPONENT ROWS_PER_PARAMETER KMEANS_STEPS KMEANS_TOLERANCE
            FAILURES MOST_TRIALS STEPS_OVER_ALL_ROWS STEPS_PER_STEP STEPS_OF_MOVES
            STEPS_PER_COMPONENT ROUGH_STEPS SHORT_RUNS SHORT_STEPS SHORT_ROWS
        algorithms.mixtures.prior: STRENGTHS MOST_DENSITIES ROUNDED SURE
        estimators.priors: THIN
        algorithms.mixtures.stepwise: KAPPA
        algorithms.search: STEPS_PER_TRIAL STEPS_PER_DRAW
        algorithms.steps: CAUTION
        algorithms.seeding.named: NEIGHBORS
        passes.host: NOMINEES
        passes.tree.partition: SAMPLED
        passes.tree.splitting: SAMPLE LOPSIDED
        algorithms.mixtures.nested: TIMES_THE_PART
        estimators.variational_kmeans: SWAPS_GAIN
        model.cells: VISITS_ABOVE SMALL_CELLS
        model.low_rank: FAINT INDEPENDENT_ROWS NARROWEST
        model.subspace: MARGIN
        model.wishart: BETA_RANGE
    """,
}


def _patterns(text: str) -> Iterator[str]:
    module = ""
    for word in text.split():
        if word.endswith(":"):
            module = word[:-1]
        else:
            yield word if "*" in word else f"{module}.{word}"


EXCEPTIONS = {pattern: reason for reason, text in _REASONS.items() for pattern in _patterns(text)}
"""Name, or pattern of names: why."""
