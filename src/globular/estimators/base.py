"""What all estimators share: `fit`, and the same as a generator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

from sklearn.base import BaseEstimator

from globular.estimators.parameters import SharedParameters
from globular.estimators.running import exhaust
from globular.model.history import Record


class Estimator(SharedParameters, BaseEstimator):
    """Base of all estimators: a family checks its input and says how a fit runs (`_begin`)."""

    @abstractmethod
    def _begin(self, X: Any, sample_weight: Any, *, watched: bool) -> Iterator[Record]:
        """Check everything, and start; watched: somebody looks at the attributes after every iteration."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the clusters or components.

        Parameters
        ----------
        X : array, CSR matrix, data frame, source (see :mod:`globular.io`) or path, of shape (n_samples, n_features)
            Dense rows of any real type, or sparse ones where the model takes them. A path or source may be larger than
            memory.
        y : ignored
        sample_weight : array of shape (n_samples,), default=None
            Weight of every row; a row of weight 2 counts as two rows, one of weight 0 as none.

        Returns
        -------
        self
        """
        exhaust(self._begin(X, sample_weight, watched=False))
        return self

    def fit_iter(self, X: Any, y: Any = None, sample_weight: Any = None) -> Iterator[Record]:
        """Fit as a generator: one record per iteration, the fitted attributes current at every yield.

        Leave the loop whenever you like; the attributes stay as they are.

        Examples
        --------
        >>> import numpy as np
        >>> from globular import KMeans
        >>> X = np.random.default_rng(0).normal(size=(500, 2))
        >>> model = KMeans(n_clusters=20, random_state=0)
        >>> for record in model.fit_iter(X):
        ...     if record.iteration == 3:
        ...         break
        >>> model.n_iter_
        3
        """
        return self._begin(X, sample_weight, watched=True)
