"""One adapter per library and setting, all with the same contract.

The contract is `fit(X, n_clusters, n_iter, threads, seed, init_centers=None) -> centers`, from nothing to
centres, seeding included; the calls themselves are in `fits`. Libraries are imported by those calls only, so a
missing one costs nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from numpy.typing import NDArray

from globular.benchmarking import fits
from globular.benchmarking.fits import Matrix


class FitFunction(Protocol):
    """The contract; centres come back as they are, their number and type are checked by the caller."""

    def __call__(
        self,
        X: Matrix,
        n_clusters: int,
        n_iter: int,
        threads: int,
        seed: int,
        init_centers: Matrix | None = None,
    ) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Adapter:
    """A library with its settings.

    `title` is its name in words, for pictures and short tables;
    `exact` marks Lloyd's iterations over all rows (their best error is the yardstick of the tables);
    `all_rows` that no subsample is taken; `warm_up_rows` how many rows the untimed first fit gets.
    """

    name: str
    title: str
    distribution: str
    module: str
    fit: FitFunction
    settings: str
    accepts_start: bool = False
    all_rows: bool = True
    exact: bool = False
    ours: bool = False
    min_features: int = 1
    max_features: int | None = None
    warm_up_rows: int = 512
    tune_openblas: bool = False

    def is_installed(self) -> bool:
        """Whether the library can be imported here (it is not imported)."""
        return importlib.util.find_spec(self.module) is not None

    def version(self) -> str:
        """Version of the installed distribution, or an empty string."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return ""

    def refusal(self, n_features: int) -> str | None:
        """Why this adapter does not take data of that width, or None."""
        if n_features < self.min_features:
            return f"needs at least {self.min_features} features"
        if self.max_features is not None and n_features > self.max_features:
            return f"meant for at most {self.max_features} features"
        return None


def find_adapter(name: str) -> Adapter:
    """The adapter of that name; an unknown one gets an error that lists the known ones."""
    if name not in ADAPTERS:
        raise ValueError(f"unknown adapter {name!r}; known adapters: {', '.join(ADAPTERS)}")
    return ADAPTERS[name]


def title(name: str) -> str:
    """An adapter's name in words; results that were kept may know adapters that there are no longer."""
    return ADAPTERS[name].title if name in ADAPTERS else name


def _ours(name: str, title: str, algorithm: str, seeding: str, settings: str) -> Adapter:
    return Adapter(
        name=name,
        title=title,
        distribution="globular",
        module="globular",
        fit=partial(fits.globular, algorithm=algorithm, seeding=seeding),
        settings=settings,
        accepts_start=True,
        exact=True,
        ours=True,
        # Enough rows for as many clusters as bring the same kernels into play as the timed fit.
        warm_up_rows=8_192,
    )


def _ours_quality(quality: str, title: str) -> Adapter:
    return Adapter(
        name=f"globular-{quality}",
        title=title,
        distribution="globular",
        module="globular",
        fit=partial(fits.globular_quality, quality=quality),
        settings=f'quality="{quality}", its own iterations',
        ours=True,
        warm_up_rows=8_192,
    )


def _peer_lloyd(name: str, title: str, distribution: str, module: str, algorithm: str) -> Adapter:
    fit = partial(fits.sklearn_like, module=module, algorithm=algorithm)
    root = module.split(".")[0]
    return Adapter(name, title, distribution, root, fit, "random rows", accepts_start=True, exact=True)


def _peer_faiss(
    name: str, title: str, fit: FitFunction, settings: str, *, start: bool, exact: bool = True, min_features: int = 1
) -> Adapter:
    return Adapter(
        name=name,
        title=title,
        distribution="faiss-cpu",
        module="faiss",
        fit=fit,
        settings=settings,
        accepts_start=start,
        exact=exact,
        min_features=min_features,
        tune_openblas=True,
    )


def _peer_superkmeans(mode: str, title: str, settings: str) -> Adapter:
    name, fit = f"superkmeans-{mode}", partial(fits.superkmeans, mode=mode)
    all_rows = mode != "defaults"
    return Adapter(name, title, "superkmeans", "superkmeans", fit, settings, all_rows=all_rows)


_AFK = "ClusteringInitMethod_AFK_MC2"

ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {
        adapter.name: adapter
        for adapter in (
            _ours_quality("fast", 'globular, quality="fast"'),
            _ours_quality("balanced", "globular (default)"),
            _ours_quality("best", 'globular, quality="best"'),
            _ours(
                "globular-afkmc2",
                "globular, Lloyd from AFK-MC² seeds",
                "lloyd",
                "afk-mc2",
                "AFK-MC² seeds, chain 200",
            ),
            _ours("globular-lloyd", "globular, Lloyd from random rows", "lloyd", "random", "random rows"),
            _ours("globular-yinyang", "globular, yinyang from random rows", "yinyang", "random", "random rows"),
            _peer_lloyd("sklearn-lloyd", "scikit-learn, Lloyd", "scikit-learn", "sklearn.cluster", "lloyd"),
            _peer_lloyd("sklearn-elkan", "scikit-learn, Elkan", "scikit-learn", "sklearn.cluster", "elkan"),
            Adapter(
                "sklearn-minibatch",
                "scikit-learn, MiniBatchKMeans",
                "scikit-learn",
                "sklearn",
                fits.sklearn_minibatch,
                "random rows, batches of 10,000",
                accepts_start=True,
            ),
            _peer_lloyd(
                "sklearnex-lloyd",
                "scikit-learn-intelex, Lloyd",
                "scikit-learn-intelex",
                "sklearnex.cluster",
                "lloyd",
            ),
            _peer_faiss("faiss-kmeans", "faiss, random rows", fits.faiss, "random rows", start=True),
            _peer_faiss(
                "faiss-afkmc2",
                "faiss, AFK-MC² seeds",
                partial(fits.faiss, seeding=_AFK),
                "AFK-MC² seeds, chain 50",
                start=False,
            ),
            _peer_faiss(
                "faiss-superkmeans",
                "faiss, SuperKmeans",
                partial(fits.faiss, cls="SuperKmeans"),
                "random rows",
                start=False,
                exact=False,
                min_features=32,
            ),
            _peer_superkmeans("flat", "superkmeans, flat", "all rows, no early stop"),
            _peer_superkmeans(
                "hierarchical", "superkmeans, hierarchical", "all rows, 2 : 2 : 1 iterations, no early stop"
            ),
            _peer_superkmeans(
                "defaults", "superkmeans as shipped (subsamples)", "as shipped; its own iterations and subsample"
            ),
            Adapter("lance", "lance", "pylance", "lance", fits.lance, "as shipped; cannot be seeded"),
            Adapter(
                "clostera-dense",
                "clostera, dense",
                "clostera",
                "clostera",
                fits.clostera_dense,
                "random rows",
                exact=True,
            ),
            Adapter(
                "clostera-auto",
                "clostera, its own choice",
                "clostera",
                "clostera",
                fits.clostera_auto,
                "its own choice of algorithm",
            ),
            Adapter(
                "mlpack-dualtree",
                "mlpack, dual tree",
                "mlpack",
                "mlpack",
                fits.mlpack,
                "random rows, float64",
                accepts_start=True,
                exact=True,
                max_features=8,
            ),
        )
    }
)
