"""`VariationalGaussianMixture`: mixtures whose iterations do not cost more with more components."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import sparse as scipy_sparse
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.em import EMOptions, cold_mixture, covariance_limits, variance_within
from globular.algorithms.mixtures.probing import begin_truncated, with_members
from globular.algorithms.mixtures.starts import settled
from globular.algorithms.mixtures.variational import SoftModel
from globular.algorithms.seeding.named import STARTS, Start
from globular.algorithms.steps import Finding, Run, Step
from globular.errors import DeviceError
from globular.estimators.certificates import Certificate, of_mixture
from globular.estimators.checks import check_indices, fit_bytes, mixture_bytes, neighbor_bytes
from globular.estimators.conditional import ConditionalMixture
from globular.estimators.elsewhere import lazily, where_x_is
from globular.estimators.inputs import EXACT_BELOW, Input
from globular.estimators.mixtures import N_CANDIDATES
from globular.estimators.parameters import FROM_ZERO, Constraints, Number, one_of
from globular.estimators.priors import PRIOR, forget_prior, is_told, with_prior
from globular.estimators.starts import choose_centers
from globular.model.covariances import FAMILIES, SEPARABLE
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.given import GivenStart
from globular.model.graph import Graph
from globular.model.history import History
from globular.model.statistics import F64, I64, TruncatedPosterior
from globular.seam.among import Need
from globular.seam.answers import Answer, Truncated
from globular.seam.passes import Labels
from globular.seam.shard import Shard, answer
from globular.threads import resolve_threads

EXHAUSTIVE = "exhaustive neighbors"
N_NEIGHBORS = 5
"""G where it is not given."""
NEIGHBORS_UP_TO = 25
"""Number of components up to which "auto" searches by neighbourhoods: those of K(n) hold most components then."""


def begin_with_few(
    model: Any, data: Input, given: GivenStart, chosen: Start, options: VariationalOptions, rng: np.random.Generator,
    *, probes: bool,
) -> tuple[Run, Graph]:  # fmt: skip
    """Begin a run of an estimator in which rows look at few components, from chosen means."""
    shard, kind, learned = data.shard, model.covariance_type, model._learns_weights
    how = EMOptions(reg_covar=model.reg_covar, learned_weights=learned)

    def cold() -> GaussianParameters:
        within = variance_within(shard, chosen.centers)
        return cold_mixture(chosen.centers, within, kind, covariance_limits(shard, how))

    how = with_prior(model, shard, how, cold, options.C_prime if model.n_components >= EXACT_BELOW else None)
    return begin_truncated(
        shard, given.replace(isotropic_mixture(chosen.centers, 1.0, kind)), chosen, options, rng,
        limits=covariance_limits(shard, how), probes=probes, keep_covariances=given.covariances is not None,
        learned_weights=learned,
    )  # fmt: skip


@dataclass(eq=False, repr=False)
class VariationalGaussianMixture(ConditionalMixture):
    """Gaussian mixture by truncated variational EM: each row looks at few components, whatever their number.

    Every row keeps `n_candidates` components. Posteriors are exact on the components a row keeps and zero elsewhere,
    which makes the objective a lower bound of the log-likelihood. With ``reg_covar=0`` it never falls. Better
    components are looked for in one of two ways (`search`). "probing" clusters the means into about √C cells, drawn
    anew each time, and lets a row look at all components of its closest cells, by matrix products; iterations in which
    this would not pay do without. "neighbors" is the paper's: every component has a neighbourhood of `n_neighbors`,
    and an iteration evaluates at most ``n_candidates * n_neighbors + 1`` densities per row, one of them at random;
    ``n_candidates = n_neighbors`` with one variance and equal weights is its var-GMM-S (``search="neighbors"``) and
    var-GMM-X ("exhaustive neighbors"). See
    Forster & Lücke, *Can clustering scale sublinearly with its clusters?*, AISTATS 2018.

    Parameters
    ----------
    n_components : int, default=8
    {n_candidates}
    search : {"auto", "probing", "neighbors", "exhaustive neighbors"}, default="auto"
        Where a row finds better components. "neighbors" estimates neighbourhoods from distances that rows had anyway
        (Eq. 8); "exhaustive neighbors" takes them from all distances between means, which costs O(C²D) per iteration.
        "auto" takes "probing", but "neighbors" for up to 25 components, and where `n_neighbors` is given, which is a
        parameter of neighbourhoods. Covariances with correlations are probed. `search_` tells.
    n_neighbors : int or None, default=None
        G, the size of a component's neighbourhood, itself included; None is 5. (With "probing" only the width of
        `neighbors_`.)
    n_random : int, default=1
        With neighbourhoods: components drawn at random for each row in each iteration, beside them.
    start : {"closest", "printed"}, default="closest"
        With neighbourhoods: where rows and neighbourhoods begin, at the closest means, as cells of means find them, or
        at random, as the paper's Alg. 1 and Alg. 2 are printed.
    n_warmup : int, default=0
        With neighbourhoods: passes over the rows before the first iteration in which means stay and neighbourhoods
        form, one at least; the paper's experiments take 5.
    covariance_type : {"diag", "spherical", "tied_spherical", "full", "tied"}, default="diag"
        One variance per component and column, one per component, or one for everything; a covariance matrix per
        component, or one for all, by probing on CPUs alone. (In hundreds of columns matrices are many numbers:
        :class:`LowRankGaussianMixture`.)
    weights : {"learned", "equal"}, default="learned"
        Whether components have mixing weights of their own. (The paper's model, which is little more than k-means as a
        density, is ``covariance_type="tied_spherical", weights="equal"``.)
    {tol_of_bound, reg_covar}
    max_iter : int, default=200
        Most iterations of one run; 0 leaves the mixture where it starts.
    init : {"auto", "k-means++", "plain k-means++", "afk-mc2", "k-means||", "hierarchical", "random"}, array or \
callable, default="auto"
        Starting means: the name of a seeding (see :mod:`globular.seeding`), an array of shape (n_components,
        n_features) or a function ``(X, n_components, random_state) -> array``. With "probing" seeds are first improved
        by swaps and k-means steps, as in :class:`KMeans`; an array stays as it is.
    prior : float, "auto", "thin" or None, default="thin"
        As in :class:`GaussianMixture`.
    {n_runs, max_time, random_state, warm_start, verbose, callbacks, n_threads, device}

    Attributes
    ----------
    weights_, means_, covariances_, precisions_, precisions_cholesky_, prior_, converged_, n_iter_, stopped_
        As in :class:`GaussianMixture`.
    labels_ : int32 array of shape (n_samples,)
        The most likely component of every row; from 500 components on, of those found by way of cells, as
        ``predict(X, exact=False)`` gives it.
    lower_bound_ : float
        Mean free energy of a row (Eq. 10), a lower bound of its log-likelihood, at the parameters the last iteration
        began with.
    {lower_bounds_, history_}
    n_distances_ : int
        Densities (or distances) of a row and a component evaluated in the whole fit, seeding and first labels apart.
    neighbors_ : int32 array of shape (n_components, n_neighbors)
        The graph of components: every component itself, then its neighbours, closest first.
    init_, search_ : str
        What "auto" came to.

    Examples
    --------
    >>> import numpy as np
    >>> from globular import VariationalGaussianMixture
    >>> X = np.random.default_rng(0).normal(size=(2000, 3))
    >>> model = VariationalGaussianMixture(n_components=100, random_state=0).fit(X)
    >>> bool(model.lower_bound_ <= model.score(X) + 1e-3)
    True
    >>> model.predict_proba(X, truncated=True, sparse=True).nnz <= 5 * 2000
    True
    >>> model.search_, VariationalGaussianMixture(100, n_neighbors=8, random_state=0).fit(X).search_
    ('probing', 'neighbors')
    """

    n_components: int = 8
    _: KW_ONLY
    n_candidates: int = N_CANDIDATES
    search: str = "auto"
    n_neighbors: int | None = None
    n_random: int = 1
    start: Literal["closest", "printed"] = "closest"
    n_warmup: int = 0
    covariance_type: Literal["full", "tied", "diag", "spherical", "tied_spherical"] = "diag"
    weights: str = "learned"
    tol: float = 1e-3
    reg_covar: float | str = "auto"
    max_iter: int = 200
    max_time: float | None = None
    n_init: int = 1
    init: Any = "auto"
    prior: float | str | None = "thin"
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    callbacks: Any = None
    n_threads: int | None = None
    device: str | list[str] = "auto"

    _constraints: ClassVar[Constraints] = {
        "search": [one_of("auto", "probing", "neighbors", EXHAUSTIVE)],
        "n_random": [Number(Integral, 0, 15, closed="both")],
        "n_warmup": [FROM_ZERO],
        "init": [one_of(*STARTS), "array-like", callable],
        "prior": PRIOR,
    }

    def _check_fit(self, data: Input) -> None:
        forget_prior(self)
        if is_told(self.prior) and FAMILIES[self.covariance_type].tied:
            raise ValueError("prior is that of each component's covariance; set covariance_type='diag', or prior=None")
        if self._choose_search() == "probing":
            for name in ("n_random", "start", "n_warmup"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ValueError(f"{name} is of a search by neighbourhoods; with it, set search='neighbors'")
        if self.covariance_type in SEPARABLE:
            return
        if self._choose_search() != "probing":
            raise ValueError(
                f"search={self.search!r} compares variances of columns; covariance_type={self.covariance_type!r} takes "
                "search='probing'"
            )
        if Need.CPU in data.shard.lacks:
            raise DeviceError(
                f"covariance_type={self.covariance_type!r} does not run on GPUs here; take device='cpu', or "
                "GaussianMixture(algorithm='em')"
            )

    def _start(self, data: Input, given: GivenStart, random_state: np.random.RandomState) -> Finding[Run]:
        probes = self._choose_search() == "probing"
        if given.means is not None:
            chosen = Start(given.means, "warm start")
        else:
            chosen = yield from choose_centers(
                self.init, self.n_components, data, random_state, rough=probes, size_name="n_components"
            )
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        if probes and chosen.is_seeding:  # a start that the user has chosen stays as it is
            chosen = yield from settled(data.shard, chosen, rng)
        self.init_, self.search_ = chosen.name, self._choose_search()
        run, graph = begin_with_few(self, data, given, chosen, self._options(), rng, probes=probes)
        self.neighbors_: Graph = np.asarray(graph)
        return run

    def _most_bytes(self, data: Input) -> int:
        probes = self._choose_search() == "probing"
        return truncated_bytes(data, self, self._options(), probes=probes)

    def _choose_search(self) -> str:
        if self.search == "auto":
            return automatic_search(self.n_components, self.covariance_type, self.n_neighbors)
        return self.search

    def _options(self) -> VariationalOptions:
        return VariationalOptions(
            C_prime=min(self.n_candidates, self.n_components), G=self.n_neighbors or N_NEIGHBORS,
            n_random=self.n_random, printed=self.start == "printed", n_warmup=self.n_warmup,
            neighborhoods="exhaustive" if self.search == EXHAUSTIVE else "estimated", max_iter=self.max_iter,
            tol=self.tol,
        )  # fmt: skip

    def _label(self, shard: Shard) -> Labels:
        return likely_components(shard, self._mixture(), self.n_candidates)

    def _publish(self, data: Input, spare: Callable[[], F64], step: Step[Any], history: History) -> None:
        self.__dict__.pop("neighbors_", None)
        super()._publish(data, spare, step, history)

    def _take_over(self, model: SoftModel) -> GaussianParameters:
        self.neighbors_ = np.asarray(model.graph)
        return model.mixture

    def _check_state(self) -> None:
        super()._check_state()
        if hasattr(self, "neighbors_"):  # a fit that has ended before its first iteration has none
            check_indices(self.neighbors_, "neighbors_", (self.n_components, None), self.n_components)

    @lazily
    def predict(
        self, X: Any, exact: bool = True, *, min_log_density: float | None = None, missing: bool = False
    ) -> I64:
        """The most likely component of every row, (n_samples,).

        Parameters
        ----------
        {X, exact, min_log_density, missing}
        """
        if exact:
            return super().predict(X, min_log_density=min_log_density, missing=missing)
        labels = _most_likely(self._posteriors(X)).astype(np.int64)
        return self._without_noise(X, where_x_is(X, labels), min_log_density)

    @lazily
    def predict_proba(self, X: Any, truncated: bool = False, sparse: bool = False, *, missing: bool = False) -> Any:
        """The probability of every component given the row, (n_samples, n_components).

        Parameters
        ----------
        {X}
        truncated : bool, default=False
            Only the `n_candidates` most likely components that are found by way of cells of means have a probability,
            renormalised to a sum of one; the others have zero.
        sparse : bool, default=False
            With `truncated`, a CSR matrix of at most `n_candidates` entries per row instead of an array.
        {missing}
        """
        if not truncated:
            if sparse:
                raise ValueError("sparse=True needs truncated=True: exact probabilities are nowhere zero")
            return super().predict_proba(X, missing=missing)
        parts = [_as_csr(posterior, len(self.means_)) for posterior in self._posteriors(X)]
        matrix = parts[0] if len(parts) == 1 else scipy_sparse.vstack(parts, format="csr")
        return matrix if sparse else where_x_is(X, matrix.toarray())

    @lazily
    def score_samples(self, X: Any, exact: bool = True, *, missing: bool = False) -> F64:
        """The log-likelihood of every row, (n_samples,).

        Parameters
        ----------
        {X, bounded, missing}
        """
        if exact:
            return super().score_samples(X, missing=missing)
        return self._answer(X, "log_densities", self._asked)

    def certificate(self, X: Any, n_samples: int = 1000) -> Certificate:
        """How much the truncation to `n_candidates` components hides, by a random sample of the rows of X.

        Parameters
        ----------
        X : array, data frame, source or path
        n_samples : int, default=1000
            Rows drawn at random, each of which is held against all components.

        Returns
        -------
        certificate : Certificate
            `missed`, the share of rows whose most likely component is not among those that are found; `loss`, the mean
            of log-likelihood minus bound in nats a row; and their standard errors.
        """
        check_is_fitted(self)
        mixture, shard = self._mixture(), self._open(X, None, reset=False).shard
        return of_mixture(shard, mixture, self.n_candidates, n_samples)

    def _posteriors(self, X: Any) -> list[TruncatedPosterior]:
        """What the components that are found by way of cells say of all rows."""
        shard = self._open(X, None, reset=False).shard
        return shard.run(Answer(self._asked(shard), "posterior"))

    def _asked(self, shard: Shard) -> Truncated:
        return with_members(shard, self._mixture(), self.n_candidates)


def automatic_search(n_components: int, covariance_type: str, n_neighbors: int | None = None) -> str:
    """Where rows search for components, unless the user says so."""
    if covariance_type not in SEPARABLE:
        return "probing"
    return "neighbors" if n_neighbors is not None or n_components <= NEIGHBORS_UP_TO else "probing"


def truncated_bytes(data: Input, model: Any, options: VariationalOptions, *, probes: bool) -> int:
    """The most memory that a fit takes in which rows look at few components."""
    size, C, n_threads = (data.n_rows, data.n_columns), model.n_components, resolve_threads(model.n_threads)
    most = mixture_bytes(*size, C, model.covariance_type, C_prime=options.C_prime, n_threads=n_threads)
    if not probes:  # pairs of components, as in k-means
        searching = neighbor_bytes(data.n_rows, C, options.G, options.C_prime, options.n_random)
        most += searching + fit_bytes(*size, C * data.n_columns, 0, n_threads)
    return most


def likely_components(shard: Shard, mixture: GaussianParameters, n_candidates: int) -> Labels:
    """The most likely component of every row, of many components by way of cells."""
    if mixture.n_components < EXACT_BELOW:
        return np.asarray(answer(shard, mixture, "components"), dtype=np.int32)
    return _most_likely(shard.run(Answer(with_members(shard, mixture, n_candidates), "posterior")))


def _most_likely(posteriors: list[TruncatedPosterior]) -> Labels:
    return np.concatenate([posterior.members[:, 0] for posterior in posteriors])


def _as_csr(posterior: TruncatedPosterior, n_components: int) -> scipy_sparse.csr_matrix:
    """Entries sorted by component; components whose probability underflows are left out."""
    rows, places = np.nonzero(posterior.probabilities > 0)
    entries = posterior.probabilities[rows, places], (rows, posterior.members[rows, places])
    matrix = scipy_sparse.csr_matrix(entries, shape=(len(posterior.members), n_components))
    matrix.sort_indices()
    return matrix
