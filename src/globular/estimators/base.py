"""What all estimators share: `fit`, and the same as a generator."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import cache
from inspect import get_annotations, isfunction
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import make_constraint

from globular.estimators.inputs import Input, open_input
from globular.estimators.parameters import (
    BY_NAME,
    BY_TYPE,
    FROM_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    Constraints,
    filled,
    words_of,
)
from globular.estimators.running import Clock
from globular.model.history import Record


class Estimator(BaseEstimator):
    """Base of all estimators: a family checks its input and says how a fit runs (`_begin`)."""

    _parameter_constraints: ClassVar[Constraints] = {}
    """Constraints of all parameters, put together when a class is made."""
    _constraints: ClassVar[Constraints] = {
        "max_iter": [FROM_ONE],
        "tol": [NOT_NEGATIVE],
        "max_time": [None, POSITIVE],
        "random_state": [SEED, np.random.RandomState, None],
        "verbose": ["verbose"],
        "callbacks": "no_validation",
        "n_threads": [None, Integral],
    }
    """Constraints of the parameters that a class has beside its bases, unless they follow from type or name."""
    max_iter: int
    max_time: float | None
    random_state: Any
    n_threads: int | None
    _on_cards: ClassVar[str] = "KMeans"
    """The estimator that runs on GPUs, to be named by those which do not."""

    _kind: ClassVar[str] = "components"
    """What `n_components` or `n_clusters` counts."""
    _takes_sparse: ClassVar[bool] = False
    _takes_negative: ClassVar[bool] = True
    _weights_are_counts: ClassVar[bool] = False
    """Whether a weight of two is two rows rather than twice as much as one."""
    _keeps_zeros: ClassVar[bool] = False
    """Whether rows of weight 0 are among those of a shard, with that weight."""
    _instead_of_setting: ClassVar[str] = "call fit"
    """The remedy for users who set attributes of a model that was never fitted."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "_parameter_constraints" not in vars(cls):
            found: Constraints = {}
            defaults = set[str]()
            for base in reversed(cls.__mro__):
                types = {name: str(kind) for name, kind in get_annotations(base).items() if name[0] != "_"}
                defaults |= types.keys() & vars(base).keys()
                found |= {name: BY_TYPE[kind] for name, kind in types.items() if kind in BY_TYPE and name not in found}
                found |= {name: [words_of(kind)] for name, kind in types.items() if kind.startswith("Literal[")}
                found |= {name: rules for name, rules in BY_NAME.items() if name in types}
                found |= vars(base).get("_constraints", {})
            cls._parameter_constraints = {name: found[name] for name in found if name in defaults or not defaults}
        for each in (cls, *filter(isfunction, vars(cls).values())):
            each.__doc__ = filled(each.__doc__) if each.__doc__ else None

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there was a fit; attributes alone, set by hand, are an error that names the remedy."""
        own = vars(self)
        if "n_features_in_" in own:  # alone it is left by a fit that was refused
            return not own.keys().isdisjoint(("cluster_centers_", "sparse_centers_", "weights_"))
        if by_hand := [name for name in own if name.endswith("_") and name != "feature_names_in_"]:
            name = type(self).__name__
            raise NotFittedError(f"{by_hand[0]} was set on a {name} that is not fitted; {self._instead_of_setting}")
        return False

    @property
    def _unit_rows(self) -> bool:
        """Whether rows count by their directions alone."""
        return False

    @property
    def _card_bytes_per_row(self) -> int:
        """What a fit holds of a card's memory for every row, beside the row itself, at most."""
        return 64

    def _centers_on_card(self, n: int) -> int:
        """Centres of k-means that take as much of a card's memory as `n` clusters or components, at most."""
        return n

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        """Those of the constructor, which scikit-learn reads anew whenever it is asked."""
        names: list[str] = super()._get_param_names()
        return names

    @classmethod
    @cache
    def _made_constraints(cls) -> dict[str, list[Any]]:
        """What each parameter must be, as objects that tell whether a value is."""
        made = {name: rules for name, rules in cls._parameter_constraints.items() if rules != "no_validation"}
        return {name: [make_constraint(rule) for rule in made[name]] for name in cls._get_param_names() if name in made}

    def _validate_params(self) -> None:
        """As scikit-learn does, which makes the constraints each time, and is asked where one of them is broken."""
        for name, rules in self._made_constraints().items():
            value = getattr(self, name)
            if not any(rule.is_satisfied_by(value) for rule in rules):
                super()._validate_params()

    @property
    def cluster_sizes_(self) -> Any:
        """The number of rows of every cluster or component, by `labels_`; rows of weight 0 count, too."""
        labels = np.asarray(self.labels_)
        n = vars(self).get("n_clusters_")  # of an infinite mixture, which may have more components
        if n is None:
            n = self._n_found if hasattr(self, "_n_found") else len(self.means_)
        return np.bincount(labels[labels >= 0], minlength=n)  # nested batches leave some without a label

    def _begin(self, X: Any, sample_weight: Any, *, watched: bool) -> Iterator[Record]:
        """Check everything, and start; watched: somebody looks at the attributes after every iteration."""
        self._validate_params()
        clock = Clock()
        return self._begin_with(self._open(X, sample_weight, reset=True), clock, watched)

    def _begin_with(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        """Check what is left, and start."""
        self._check_rows(data)
        return self._run(data, clock, watched)

    @abstractmethod
    def _run(self, data: Input, clock: Clock, watched: bool) -> Iterator[Record]:
        """All runs of a fit, the best of which is kept."""

    def _open(self, X: Any, sample_weight: Any, *, reset: bool) -> Input:
        return open_input(
            self, X, sample_weight, reset=reset, unit_rows=self._unit_rows, accept_sparse=self._takes_sparse,
            n_threads=self.n_threads, at_least=self._n_rows_wanted() if reset else 1,
            are_counts=self._weights_are_counts, keep_zeros=self._keeps_zeros,
        )  # fmt: skip

    def _n_rows_wanted(self) -> int:
        """As many rows as there are clusters or components."""
        return int(getattr(self, f"n_{self._kind}"))

    def _check_rows(self, data: Input) -> None:
        """Refuse too few rows."""
        if data.n_rows < (n := self._n_rows_wanted()):
            raise ValueError(f"n_samples={data.n_rows} should be >= n_{self._kind}={n}; ask for fewer {self._kind}")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.input_tags.positive_only = self._takes_sparse, not self._takes_negative
        return tags

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
        # no line of Python runs between two records, where Ctrl-C would not reach the fit
        deque(self._begin(X, sample_weight, watched=False), maxlen=0)
        return self

    def fit_iter(self, X: Any, y: Any = None, sample_weight: Any = None) -> Iterator[Record]:
        """Fit as a generator: one record per iteration, the fitted attributes current at every yield.

        Leave the loop whenever you like; the attributes stay as they are.

        Examples
        --------
        >>> import numpy as np
        >>> from globular import KMeans
        >>> X = np.random.default_rng(0).normal(size=(500, 2))
        >>> model = KMeans(n_clusters=20, algorithm="lloyd", random_state=0)
        >>> for record in model.fit_iter(X):
        ...     if record.iteration == 3:
        ...         break
        >>> model.n_iter_
        3
        """
        return self._begin(X, sample_weight, watched=True)
