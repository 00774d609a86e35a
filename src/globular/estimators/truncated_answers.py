"""What a mixture says of rows that look at few of its components, those of a few cells of means."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse as scipy_sparse
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.mixtures.probing import find_members
from globular.estimators.certificates import Certificate, of_mixture
from globular.estimators.conditional import ConditionalMixture
from globular.estimators.devices import where_x_is
from globular.estimators.distributed import lazily
from globular.estimators.weights import EXACT_BELOW
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, TruncatedPosterior
from globular.seam.answers import Answer, Truncated
from globular.seam.passes import Labels
from globular.seam.shard import Shard, answer


class TruncatedAnswers(ConditionalMixture):
    """Base of `VariationalGaussianMixture`, which says how it is fitted."""

    n_candidates: int

    @lazily
    def predict(
        self, X: Any, exact: bool = True, *, min_log_density: float | None = None, missing: bool = False
    ) -> I64:
        """The most likely component of every row, (n_samples,).

        Parameters
        ----------
        X : array, data frame, source or path
        exact : bool, default=True
            False looks only at the components of a few of about √C cells of means: far fewer densities, and now and
            then the second most likely component. Cells are drawn with a fixed seed, whatever `random_state`: the same
            rows get the same answer.
        min_log_density : float, optional
            Rows whose log-density (`score_samples`) is below are noise, and get −1.
        missing : bool, default=False
            With `exact`, whether NaN is a value that is not known; see :class:`GaussianMixture`.
        """
        if exact:
            return super().predict(X, min_log_density=min_log_density, missing=missing)
        posteriors = self._posterior(X, "posterior")
        labels = np.concatenate([posterior.members[:, 0] for posterior in posteriors]).astype(np.int64)
        return self._without_noise(X, where_x_is(X, labels), min_log_density)

    @lazily
    def predict_proba(self, X: Any, truncated: bool = False, sparse: bool = False, *, missing: bool = False) -> Any:
        """The probability of every component given the row, (n_samples, n_components).

        Parameters
        ----------
        X : array, data frame, source or path
        truncated : bool, default=False
            Only the `n_candidates` most likely components that are found by way of cells of means have a probability,
            renormalised to a sum of one; the others have zero.
        sparse : bool, default=False
            With `truncated`, a CSR matrix of at most `n_candidates` entries per row instead of an array.
        missing : bool, default=False
            Unless `truncated`, whether NaN is a value that is not known; see :class:`GaussianMixture`.
        """
        if not truncated:
            if sparse:
                raise ValueError("sparse=True needs truncated=True: exact probabilities are nowhere zero")
            return super().predict_proba(X, missing=missing)
        parts = [_as_csr(posterior, len(self.means_)) for posterior in self._posterior(X, "posterior")]
        matrix = parts[0] if len(parts) == 1 else scipy_sparse.vstack(parts, format="csr")
        return matrix if sparse else where_x_is(X, matrix.toarray())

    @lazily
    def score_samples(self, X: Any, exact: bool = True, *, missing: bool = False) -> F64:
        """The log-likelihood of every row, (n_samples,).

        Parameters
        ----------
        X : array, data frame, source or path
        exact : bool, default=True
            False gives the lower bound of Eq. 10 from the `n_candidates` components that are found by way of cells.
        missing : bool, default=False
            With `exact`, whether NaN is a value that is not known; see :class:`GaussianMixture`.
        """
        if exact:
            return super().score_samples(X, missing=missing)
        return where_x_is(X, np.concatenate(self._posterior(X, "log_densities")))

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
        return of_mixture(shard, mixture, min(self.n_candidates, mixture.n_components), n_samples)

    def _posterior(self, X: Any, want: str) -> list[Any]:
        """What the components that are found by way of cells say of all rows."""
        check_is_fitted(self)
        mixture, shard = self._mixture(), self._open(X, None, reset=False).shard
        n_candidates = min(self.n_candidates, mixture.n_components)
        find_members(shard, mixture, n_candidates, np.random.default_rng(0))
        return shard.run(Answer(Truncated(mixture, n_candidates), want))


def likely_components(shard: Shard, mixture: GaussianParameters, n_candidates: int) -> Labels:
    """The most likely component of every row, of many components by way of cells."""
    if mixture.n_components < EXACT_BELOW:
        return np.asarray(answer(shard, mixture, "components"), dtype=np.int32)
    find_members(shard, mixture, n_candidates, np.random.default_rng(0))
    posteriors = shard.run(Answer(Truncated(mixture, n_candidates), "posterior"))
    return np.concatenate([posterior.members[:, 0] for posterior in posteriors])


def _as_csr(posterior: TruncatedPosterior, n_components: int) -> scipy_sparse.csr_matrix:
    """Entries sorted by component; components whose probability underflows are left out."""
    rows, places = np.nonzero(posterior.probabilities > 0)
    entries = posterior.probabilities[rows, places], (rows, posterior.members[rows, places])
    matrix = scipy_sparse.csr_matrix(entries, shape=(len(posterior.members), n_components))
    matrix.sort_indices()
    return matrix
