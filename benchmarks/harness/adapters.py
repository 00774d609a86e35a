"""One adapter per library and setting, all with the same contract: a `Task` in, centres out, seeding included.

The calls themselves are in `fits`. A library is imported by its call only, so a missing one costs nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from . import fits
from .fits import Task

_DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "sklearnex": "scikit-learn-intelex",
    "faiss": "faiss-cpu",
    "lance": "pylance",
}
"""What to install for a module of another name."""


@dataclass(frozen=True)
class Adapter:
    """A library with its settings.

    `title` is its name in words, for pictures and short tables;
    `exact` marks Lloyd's iterations over all rows (their best error is the yardstick of the tables);
    `all_rows` that no subsample is taken; from `max_clusters` on its seeding alone would take hours.
    The centres come back as they are, their number and type are checked by the caller.
    """

    name: str
    title: str
    module: str
    fit: Callable[[Task], NDArray[Any]]
    settings: str
    accepts_start: bool = False
    all_rows: bool = True
    exact: bool = False
    min_features: int = 1
    max_features: int | None = None
    max_clusters: int | None = None
    accepts_weights: bool = False
    accepts_sparse: bool = False

    @property
    def distribution(self) -> str:
        """What to install."""
        return _DISTRIBUTIONS.get(self.module, self.module)

    @property
    def ours(self) -> bool:
        """Whether this is globular."""
        return self.module == "globular"

    @property
    def warm_up_rows(self) -> int:
        """Rows of the untimed first fit; ours needs enough clusters to bring in the kernels of the timed fit."""
        return 8_192 if self.ours else 512

    def is_installed(self) -> bool:
        """Whether the library can be imported here (it is not imported)."""
        return importlib.util.find_spec(self.module) is not None

    def version(self) -> str:
        """Version of the installed distribution, or an empty string."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return ""

    def refusal(self, n_features: int, n_clusters: int, *, weighted: bool = False, sparse: bool = False) -> str | None:
        """Why this adapter does not take such a task, or None."""
        if n_features < self.min_features:
            return f"needs at least {self.min_features} features"
        if self.max_features is not None and n_features > self.max_features:
            return f"meant for at most {self.max_features} features"
        if self.max_clusters is not None and n_clusters > self.max_clusters:
            return f"meant for at most {self.max_clusters} clusters"
        if weighted and not self.accepts_weights:
            return "takes no weights"
        return "takes no sparse rows" if sparse and not self.accepts_sparse else None


def title(name: str) -> str:
    """An adapter's name in words; results that were kept may know adapters that there are no longer."""
    return ADAPTERS[name].title if name in ADAPTERS else name


def _ours(name: str, title: str, algorithm: str, seeding: str, settings: str = "random rows") -> Adapter:
    fit = partial(fits.globular, algorithm=algorithm, seeding=seeding)
    return Adapter(name, f"globular, {title}", "globular", fit, settings, accepts_start=True, exact=True)


def _quality(quality: str, title: str = "") -> Adapter:
    fit = partial(fits.globular_quality, quality=quality)
    settings = f'quality="{quality}", its own iterations'
    title = title or f'globular, quality="{quality}"'
    return Adapter(f"globular-{quality}", title, "globular", fit, settings, accepts_weights=True, accepts_sparse=True)


def _lloyd(name: str, title: str, module: str, algorithm: str) -> Adapter:
    fit = partial(fits.sklearn_like, module=f"{module}.cluster", algorithm=algorithm)
    return Adapter(name, title, module, fit, "random rows", accepts_start=True, exact=True)


def _defaults(title: str, module: str) -> Adapter:
    fit, settings = partial(fits.sklearn_defaults, module=f"{module}.cluster"), "n_init=1, its own iterations"
    return Adapter(
        f"{module}-defaults", f"{title}, KMeans(n_init=1)", module, fit, settings,
        max_clusters=1_000, accepts_weights=True, accepts_sparse=True,
    )  # fmt: skip


def _superkmeans(mode: str, title: str, settings: str) -> Adapter:
    fit, all_rows = partial(fits.superkmeans, mode=mode), mode != "defaults"
    return Adapter(f"superkmeans-{mode}", f"superkmeans{title}", "superkmeans", fit, settings, all_rows=all_rows)


_faiss_afk = partial(fits.faiss, seeding="ClusteringInitMethod_AFK_MC2")
_faiss_super = partial(fits.faiss, cls="SuperKmeans")
_ADAPTERS = (
    _quality("fast"),
    _quality("balanced", "globular (default)"),
    _quality("best"),
    Adapter(
        "globular-nested", "globular, NestedMiniBatchKMeans", "globular", fits.globular_nested,
        "its own iterations", accepts_weights=True, accepts_sparse=True,
    ),
    _ours("globular-afkmc2", "Lloyd from AFK-MC² seeds", "lloyd", "afk-mc2", "AFK-MC² seeds, chain 200"),
    _ours("globular-lloyd", "Lloyd from random rows", "lloyd", "random"),
    _defaults("scikit-learn", "sklearn"),
    _lloyd("sklearn-lloyd", "scikit-learn, Lloyd", "sklearn", "lloyd"),
    _lloyd("sklearn-elkan", "scikit-learn, Elkan", "sklearn", "elkan"),
    Adapter(
        "sklearn-minibatch", "scikit-learn, MiniBatchKMeans", "sklearn", fits.sklearn_minibatch,
        "random rows, batches of 10,000", accepts_start=True,
    ),
    _defaults("scikit-learn-intelex", "sklearnex"),
    _lloyd("sklearnex-lloyd", "scikit-learn-intelex, Lloyd", "sklearnex", "lloyd"),
    Adapter(
        "faiss-kmeans", "faiss, random rows", "faiss", fits.faiss,
        "random rows", accepts_start=True, exact=True, accepts_weights=True,
    ),
    Adapter("faiss-afkmc2", "faiss, AFK-MC² seeds", "faiss", _faiss_afk, "AFK-MC² seeds, chain 50", exact=True),
    Adapter("faiss-superkmeans", "faiss, SuperKmeans", "faiss", _faiss_super, "random rows", min_features=32),
    _superkmeans("flat", ", flat", "all rows, no early stop"),
    _superkmeans("hierarchical", ", hierarchical", "all rows, 2 : 2 : 1 iterations, no early stop"),
    _superkmeans("defaults", " as shipped (subsamples)", "as shipped; its own iterations and subsample"),
    Adapter("lance", "lance (subsamples)", "lance", fits.lance, "512 random rows a cluster", all_rows=False),
    Adapter("clostera-dense", "clostera, dense", "clostera", fits.clostera_dense, "random rows", exact=True),
    Adapter("clostera-auto", "clostera, its own choice", "clostera", fits.clostera_auto, "its own choice of algorithm"),
    Adapter(
        "mlpack-dualtree", "mlpack, dual tree", "mlpack", fits.mlpack, "random rows, float64",
        accepts_start=True, exact=True, max_features=8,
    ),
)  # fmt: skip
ADAPTERS: Mapping[str, Adapter] = MappingProxyType({adapter.name: adapter for adapter in _ADAPTERS})
