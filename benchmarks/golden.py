"""Golden bits: does a change leave every fitted number as it was, to the last bit? Nothing is stored.

    python benchmarks/golden.py BEFORE/src AFTER/src                  # both in processes of their own, compared
    python benchmarks/golden.py BEFORE/src AFTER/src --only KMeans    # the cases whose name contains this
    python benchmarks/golden.py --src AFTER/src > after.json          # SHA-256 of every number of one checkout

Every estimator is fitted with its algorithms, searches, starts and covariances, for two seeds, to small generated rows
as float32, float64, CSR, a streamed file and a Dask collection. Compared are all public fitted attributes, the
iterations of `history_` without their seconds, and what the methods answer for a few rows. A fit that fails counts by
its error. A case whose parameters one of the two versions does not know is left out, with a line on stderr.
The exit status is 1 if anything differs. About a minute for each checkout once its kernels are compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import inspect
import json
import logging
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

THREADS = 2
SEEDS = (0, 1)
DENSE = ("float32", "float64")
ONE = ("float32",)
ALL = (*DENSE, "csr")
OUT_OF_CORE = ("file", "files", "dask")
ASKED_ROWS = 50
"""Rows whose predictions and densities are compared."""
CLOCKS = ("seconds", "compile_seconds")
STREAMED = {"MEMORY_SHARE": 0.0, "PART_BYTES": 1 << 14}
"""Constants of the library that make it stream small files, in several parts."""

Answers = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """One model on one kind of rows; `how` is a way to fit, `n` × `D` the size of X."""

    model: str
    parameters: Mapping[str, Any]
    n: int = 1500
    D: int = 4
    form: str = "float64"
    how: str = "fit"
    seed: int = 0

    @property
    def name(self) -> str:
        """The model and its parameters first: what a difference is sorted by."""
        given = ", ".join(f"{key}={value!r}" for key, value in self.parameters.items())
        return f"{self.model}({given}) {self.how} {self.n}×{self.D} {self.form} seed {self.seed}"


# --- what is fitted ------------------------------------------------------------------------------------------------


def grid(model: str, /, *, forms: Iterable[str] = DENSE, how: str = "fit", n: int = 1500, D: int = 4, **given: Any):
    """Cases for both seeds, all forms and all combinations of the parameters that are lists."""
    lists = [value if isinstance(value, list) else [value] for value in given.values()]
    for values, form, seed in product(product(*lists), forms, SEEDS):
        if form in OUT_OF_CORE and seed:
            continue  # they are slow, and their seeds do the same as those of other forms
        yield Case(model, dict(zip(given, values, strict=True)), n, D, form, how, seed)


def kmeans_cases() -> Iterator[Case]:
    """Few, many and very many clusters; thin, short and long rows; every algorithm, quality and start."""
    yield from grid("KMeans", n_clusters=[8, 300], D=10, forms=ALL)
    yield from grid("KMeans", n_clusters=2100, n=5000, D=10, forms=ALL)
    yield from grid("KMeans", n_clusters=[12, 600], D=24, quality=["fast", "best"], forms=("float32", "csr"))
    yield from grid("KMeans", n_clusters=60, algorithm=["lloyd", "probing"], D=2, forms=ALL)
    yield from grid("KMeans", n_clusters=60, algorithm=["lloyd", "probing"], D=17, how="weighted", forms=ALL)
    yield from grid("KMeans", n_clusters=[12, 300], metric="cosine", D=10, forms=ALL)
    yield from grid("KMeans", n_clusters=12, metric="cosine", algorithm="lloyd", how="weighted", forms=ALL)
    yield from grid("KMeans", n_clusters=1300, algorithm="lloyd", max_iter=4, init="random", n=3000)
    yield from grid("KMeans", n_clusters=24, algorithm="probing", n=16_000, D=6, forms=("float32", "csr"))
    inits = ["random", "plain k-means++", "k-means++", "afk-mc2", "k-means||", "hierarchical", "given"]
    yield from grid("KMeans", n_clusters=70, init=inits, max_iter=4, forms=ALL)
    yield from grid("KMeans", n_clusters=20, n_init=3)
    yield from grid("KMeans", n_clusters=600, exact_labels=True, D=10, forms=ONE)
    yield from grid("KMeans", n_clusters=[12, 600], warm_start=True, max_iter=4, how="twice", forms=ONE)
    yield from grid("KMeans", n_clusters=40, D=3, algorithm=["lloyd", "probing"], forms=("uint8", "float16", "fortran"))
    yield from grid("KMeans", n_clusters=[20, 600], algorithm=["lloyd", "probing"], D=6, forms=OUT_OF_CORE)
    yield from grid("KMeans", n_clusters=20, algorithm=["lloyd", "probing"], how="weighted", forms=OUT_OF_CORE)
    yield from grid("KMeans", n_clusters=20, metric="cosine", forms=OUT_OF_CORE)


def variational_kmeans_cases() -> Iterator[Case]:
    """Neighbourhoods of all kinds, with few columns and with many."""
    name = "VariationalKMeans"
    yield from grid(name, n_clusters=[8, 300], D=10, forms=ALL)
    yield from grid(name, n_clusters=2100, n=5000, D=6, forms=ALL)
    yield from grid(
        name, n_clusters=60, n_candidates=[1, 4], n_neighbors=5, n_random=[0, 2], D=20, max_iter=25, forms=ONE
    )
    yield from grid(name, n_clusters=60, start="random", n_warmup=3, max_iter=12, D=3, forms=ALL)
    yield from grid(name, n_clusters=40, neighborhoods="exhaustive", D=14, forms=ALL)
    yield from grid(name, n_clusters=60, diverse=True)
    yield from grid(name, n_clusters=300, relocate_empty=False, exact_labels=True)
    yield from grid(name, n_clusters=60, metric="cosine", D=10, how="weighted", forms=ALL)
    yield from grid(name, n_clusters=60, warm_start=True, max_iter=4, how="twice")
    yield from grid(name, n_clusters=[30, 300], D=6, forms=OUT_OF_CORE)
    yield from grid(name, n_clusters=30, how="weighted", forms=OUT_OF_CORE)


def nested_cases() -> Iterator[Case]:
    """Every kind of bounds and search, batches that grow, batches that do not, and rows that come piece by piece."""
    name = "NestedMiniBatchKMeans"
    yield from grid(name, n_clusters=[8, 300], D=10, forms=ALL)
    yield from grid(name, n_clusters=1100, n=5000, D=6, forms=ALL)
    yield from grid(name, n_clusters=40, bounds=[None, "elkan", "yinyang"], batch_size=200, n=3000, forms=ALL)
    yield from grid(name, n_clusters=[40, 300], search=["exact", "cells"], batch_size=500, n=3000, D=6)
    yield from grid(name, n_clusters=30, nested=False, remove_old=[False, True], batch_size=200, max_iter=12)
    yield from grid(name, n_clusters=30, nested=False, reassignment_ratio=0.05, batch_size=200, max_iter=12)
    yield from grid(name, n_clusters=30, growth_threshold=[0.5, 100.0], batch_size=200)
    yield from grid(name, n_clusters=30, metric="cosine", batch_size=200, D=10, forms=ALL)
    yield from grid(name, n_clusters=30, batch_size=200, how="weighted", forms=ALL)
    yield from grid(name, n_clusters=[30, 120], how="partial_fit", forms=ALL)
    yield from grid(name, n_clusters=30, how="partial_fit weighted", metric="cosine")
    yield from grid(name, n_clusters=[20, 300], batch_size=300, D=6, forms=OUT_OF_CORE)
    yield from grid(name, n_clusters=20, batch_size=300, how="weighted", forms=OUT_OF_CORE)


def mixture_cases() -> Iterator[Case]:
    """Exact EM and the two faster algorithms behind the same face, in all five covariances."""
    name = "GaussianMixture"
    types = ["full", "tied", "diag", "spherical", "tied_spherical"]
    yield from grid(name, n_components=[5, 40], covariance_type=types, max_iter=10)
    yield from grid(name, n_components=5, covariance_type=types, D=13, how="weighted", max_iter=15)
    yield from grid(name, n_components=[40, 600], covariance_type=types[2:], algorithm="variational", max_iter=5)
    yield from grid(name, n_components=[5, 40], covariance_type=types, algorithm="chunky", how="weighted", max_iter=30)
    yield from grid(name, n_components=2001, covariance_type="spherical", n=3000, D=3, max_iter=3, forms=ONE)
    starts = ["k-means++", "random", "random_from_data"]
    yield from grid(name, n_components=6, init_params=starts, algorithm=["em", "chunky"], n_init=2, max_iter=10)
    yield from grid(name, n_components=6, weights_init="equal", means_init="given", covariance_type=["full", "diag"])
    yield from grid(name, n_components=6, warm_start=True, max_iter=4, how="twice")
    yield from grid(name, n_components=6, covariance_type=["full", "diag"], max_iter=8, forms=OUT_OF_CORE)
    yield from grid(name, n_components=6, covariance_type="tied", max_iter=8, how="weighted", forms=OUT_OF_CORE)


def variational_mixture_cases() -> Iterator[Case]:
    """Truncated mixtures: candidates by neighbourhoods and by probing."""
    name = "VariationalGaussianMixture"
    types = ["tied_spherical", "spherical", "diag"]
    searches = ["neighbors", "probing"]
    yield from grid(name, n_components=[5, 40], search=searches, covariance_type=types, max_iter=8)
    yield from grid(name, n_components=40, search=searches, weights="learned", covariance_type=types, max_iter=8)
    yield from grid(
        name, n_components=2001, search=searches, covariance_type=types[1:], n=3000, D=3, max_iter=3, forms=ONE
    )
    yield from grid(
        name, n_components=300, search=searches, D=20, n_candidates=[2, 8], how="weighted", max_iter=8, forms=ONE
    )
    yield from grid(name, n_components=40, search="exhaustive neighbors", max_iter=10)
    yield from grid(name, n_components=40, init=["given", "hierarchical", "k-means||"], n_init=2, max_iter=6, forms=ONE)
    yield from grid(name, n_components=40, search=searches, warm_start=True, max_iter=3, how="twice", forms=ONE)
    yield from grid(name, n_components=40, search=searches, covariance_type="diag", forms=OUT_OF_CORE, max_iter=8)
    yield from grid(name, n_components=40, search=searches, how="weighted", forms=OUT_OF_CORE, max_iter=8)


def chunky_cases() -> Iterator[Case]:
    """Mixtures on the cells of a tree, with all components and with candidates."""
    name = "ChunkyGaussianMixture"
    types = ["full", "tied", "diag", "spherical", "tied_spherical"]
    yield from grid(name, n_components=[5, 40], covariance_type=types, n=3000)
    yield from grid(name, n_components=450, covariance_type=types[2:], n=3000, D=3, max_iter=12)
    yield from grid(name, n_components=2001, covariance_type="spherical", n=4000, D=3, max_iter=4)
    yield from grid(name, n_components=40, covariance_type="diag", n_candidates=[3, None], n=3000, max_iter=20)
    yield from grid(name, n_components=5, refine="best_first", max_iter=40)
    yield from grid(name, n_components=5, responsibilities="centroid", covariance_type=["full", "diag"], max_iter=40)
    yield from grid(name, n_components=5, initial_depth=3, leaf_size=4, polish=True, weights="equal")
    yield from grid(name, n_components=5, polish=False, max_cells=100, refine_tol=0.2, D=7)
    yield from grid(name, n_components=6, init=["greedy", "k-means++", "random", "random_from_data"], max_iter=20)
    yield from grid(name, n_components=6, covariance_type=["full", "diag"], how="weighted")
    yield from grid(name, n_components=6, warm_start=True, max_iter=4, how="twice")
    yield from grid(name, n_components=6, covariance_type=["full", "diag"], forms=OUT_OF_CORE, max_iter=12)
    yield from grid(name, n_components=6, how="weighted", forms=OUT_OF_CORE, max_iter=12)


def infinite_cases() -> Iterator[Case]:
    """Mixtures that find their number of components, of rows and of counts."""
    for name, given in (("InfiniteGaussianMixture", {"covariance_type": ["full", "diag"]}), ("counts", {})):
        yield from grid(name, accelerate=[True, False], **given, n=1000, max_iter=8)
        yield from grid(name, truncation="fixed", max_components=[12, 70], **given, n=1000, max_iter=6)
        yield from grid(name, accelerate=[True, False], **given, how="weighted", n=1000, max_iter=8)
        yield from grid(name, splits="best", n_split_candidates=4, max_trial_rows=300, max_iter=6, forms=ONE)
        yield from grid(name, n_candidates=3, **given, max_iter=8, forms=ONE)
        yield from grid(name, min_component_weight=2.0, concentration=(2.0, 1.0), max_iter=6, forms=ONE)
        yield from grid(
            name, truncation="fixed", max_components=8, init_params="random_from_data", n_init=2, max_iter=9, forms=ONE
        )
        yield from grid(name, accelerate=[True, False], forms=OUT_OF_CORE, max_iter=6)
    yield from grid(
        "InfiniteGaussianMixture", truncation="fixed", max_components=2001, n=2100, D=2, max_iter=1, forms=ONE
    )
    yield from grid("counts", smoothing=0.3, forms=ONE, max_iter=8)


def function_cases() -> Iterator[Case]:
    """Seeding and the choice of a number of clusters, which are functions."""
    methods = ["random", "kmeans_plus_plus", "afk_mc2", "kmeans_parallel", "hierarchical"]
    for method, how in product(methods, ("fit", "weighted")):
        yield from grid(f"seeding.{method}", n_clusters=[9, 300], D=6, how=how, forms=ALL)
        yield from grid(f"seeding.{method}", n_clusters=30, metric="cosine", how=how, forms=("float32", "file"))
    yield from grid("seeding.kmeans_plus_plus", n_clusters=30, n_local_trials="greedy")
    yield from grid("select", model=["kmeans", "gmm"], n_clusters=(2, 5, 9))


def all_cases() -> list[Case]:
    """Every case, in an order that does not matter: each makes its own model and rows."""
    families = (
        kmeans_cases, variational_kmeans_cases, nested_cases, mixture_cases, variational_mixture_cases, chunky_cases,
        infinite_cases, function_cases,
    )  # fmt: skip
    return [case for family in families for case in family()]


# --- the rows ------------------------------------------------------------------------------------------------------


def make_rows(case: Case) -> np.ndarray:
    """Clusters of uneven size with columns of falling variance, duplicates among them; or counts of words."""
    random = np.random.default_rng(case.n + case.D)
    C = 20
    labels = np.minimum(random.geometric(0.12, size=case.n) - 1, C - 1)
    if case.model == "counts":
        topics = random.dirichlet(np.full(3 * case.D, 0.3), size=C)
        return np.array([random.multinomial(30, topics[label]) for label in labels], dtype=np.float64)
    rows = 5.0 * random.normal(size=(C, case.D))[labels] + random.normal(size=(case.n, case.D))
    rows *= (1.0 + np.arange(case.D)) ** -0.7
    rows[::97] = rows[0]
    return rows


def in_form(rows: np.ndarray, form: str, folder: Path) -> Any:
    """The rows as a user may hand them over."""
    if form == "csr":
        return sparse.csr_matrix(np.where(np.abs(rows) > 0.5, rows, 0.0).astype(np.float32))
    if form == "uint8":
        return np.clip(np.round(8.0 * rows) + 100, 0, 255).astype(np.uint8)
    if form == "fortran":
        return np.asfortranarray(rows)
    if form == "file":
        return save(folder / "rows.npy", rows.astype(np.float32))
    if form == "files":
        cut = len(rows) // 3
        return [save(folder / "first.npy", rows[:cut]), save(folder / "second.npy", rows[cut:])]
    if form == "dask":
        return as_dask(rows.astype(np.float32))
    return rows.astype(form)


def as_dask(rows: np.ndarray) -> Any:
    """A collection of four uneven partitions."""
    import dask.array as da

    n = len(rows)
    sizes = (n // 2, n // 8, n // 4)
    return da.from_array(rows, chunks=((*sizes, n - sum(sizes)), *((size,) for size in rows.shape[1:])))


def save(path: Path, rows: np.ndarray) -> str:
    """Write the rows, and give the path."""
    np.save(path, rows)
    return str(path)


def weights_for(n: int) -> np.ndarray:
    """Weights between 0.1 and 3; every seventh row does not count at all."""
    weights = np.random.default_rng(n).uniform(0.1, 3.0, size=n)
    weights[::7] = 0.0
    return weights


# --- one fit and its numbers ---------------------------------------------------------------------------------------


class LeftOutError(Exception):
    """This version cannot run the case, and it says why."""


def answers(case: Case, folder: Path) -> Answers:
    """Everything that the case leaves behind, by name; an error of the fit is its only answer."""
    rows = make_rows(case)
    X = in_form(rows, case.form, folder)
    weights = weights_for(case.n) if case.how.endswith("weighted") else None
    if weights is not None and case.form == "dask":
        weights = as_dask(np.maximum(weights, 0.5))
    parameters = dict(case.parameters) | {"random_state": case.seed, "n_threads": THREADS}
    for key in ("init", "means_init"):
        if parameters.get(key) == "given":
            k = parameters.get("n_clusters", parameters.get("n_components"))
            parameters[key] = rows[np.random.default_rng(case.seed).choice(case.n, k, replace=False)]
    call = public(case.model)
    known = inspect.signature(call).parameters
    unknown = [key for key in parameters if key not in known]
    if unknown:
        raise LeftOutError(f"no parameter {', '.join(unknown)}")
    try:
        if not inspect.isclass(call):
            return dict(flat("result", call(X, sample_weight=weights, **parameters)))
        model = fitted(call(**parameters), X, weights, case.how)
    except Exception as error:
        if type(error).__name__ == "InvalidParameterError":
            raise LeftOutError(" ".join(str(error).split())) from None
        return {"error": np.array(f"{type(error).__name__}: {error}")}
    few = X[:ASKED_ROWS] if sparse.issparse(X) else rows[:ASKED_ROWS].astype(np.float32)
    whole = X if case.form in ("file", "files") else few
    return dict(fitted_attributes(model)) | dict(method_answers(model, few, whole))


def public(name: str) -> Callable[..., Any]:
    """The class or function of that name in globular."""
    import globular

    found: Any = globular
    for part in ("InfiniteMultinomialMixture" if name == "counts" else name).split("."):
        found = getattr(found, part)
    return found


def fitted(model: Any, X: Any, weights: Any, how: str) -> Any:
    """The model after one fit, two fits, or three pieces of the rows."""
    if how.startswith("partial_fit"):
        n = X.shape[0]
        for piece in (slice(0, n // 2), slice(n // 2, n // 2 + n // 4), slice(n // 2 + n // 4, n)):
            model.partial_fit(X[piece], sample_weight=None if weights is None else weights[piece])
        return model
    for _ in range(2 if how == "twice" else 1):
        model.fit(X, sample_weight=weights)
    return model


def fitted_attributes(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """All public attributes that end with an underscore."""
    for name in dir(model):
        if name.endswith("_") and not name.startswith("_"):
            with contextlib.suppress(AttributeError):  # known for other parameters or other rows only
                yield from flat(name, getattr(model, name))


def method_answers(model: Any, few: Any, whole: Any) -> Iterator[tuple[str, np.ndarray]]:
    """What the methods say about a few rows, and the labels of a whole file."""
    asked = [(name, few, {}) for name in ("transform", "predict_proba", "score_samples", "score", "bic", "aic")]
    asked += [("predict", whole, {}), ("predict", few, {"exact": False}), ("predict_proba", few, {"exact": False})]
    for name, rows, options in asked:
        method = getattr(model, name, None)
        if method is None or not set(options) <= set(inspect.signature(method).parameters):
            continue
        label = f"{name}({', '.join(f'{key}={value}' for key, value in options.items())})"
        try:
            found = method(rows, **options)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        yield from flat(label, found)
    if hasattr(model, "sample"):
        yield from flat("sample()", model.sample(20))


def flat(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """A value as named arrays: records by field, sequences of records by field and place; no clocks."""
    if sparse.issparse(value):
        value = {"data": value.data, "indices": value.indices, "indptr": value.indptr}
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in CLOCKS:
                yield from flat(f"{name}.{key}", part)
        return
    if isinstance(value, (str, bool, int, float, np.ndarray, np.generic)):
        yield name, np.asarray(value)
    elif value is None:
        yield name, np.asarray("None")
    elif isinstance(value, Iterable):
        yield from flat_sequence(name, list(value))
    else:
        raise TypeError(f"{name}: what are the numbers of a {type(value).__name__}?")


def flat_sequence(name: str, parts: list[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Columns of a list of records (None is NaN there), one array of a list of numbers, or part by part."""
    if parts and all(dataclasses.is_dataclass(part) for part in parts):
        for field in dataclasses.fields(parts[0]):
            if field.name not in CLOCKS:
                column = [getattr(part, field.name) for part in parts]
                yield f"{name}.{field.name}", np.array([np.nan if v is None else v for v in column])
    elif all(isinstance(part, (bool, int, float, np.number)) for part in parts):
        yield name, np.array(parts)
    else:
        for number, part in enumerate(parts):
            yield from flat(f"{name}[{number}]", part)


def digest(array: np.ndarray) -> str:
    """SHA-256 of type, shape and bytes."""
    array = np.ascontiguousarray(array)
    data = array.tobytes() if array.dtype.kind != "O" else repr(array.tolist()).encode()
    return hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode() + data).hexdigest()


# --- all the fits of one checkout ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """The forms of rows that cannot be had here, and the client of a Dask cluster."""

    unable: frozenset[str]
    client: Any

    def around(self, case: Case) -> contextlib.AbstractContextManager[Any]:
        """A context in which this case finds its cluster, and no other case does."""
        if case.form in self.unable:
            raise LeftOutError(f"rows as {case.form} cannot be had here")
        return self.client.as_current() if case.form == "dask" else contextlib.nullcontext()


@contextlib.contextmanager
def surroundings(cases: list[Case]) -> Iterator[Surroundings]:
    """A Dask cluster in this process, where one is wanted, and constants that make small files streamed."""
    import globular.estimators.kmeans
    import globular.io  # noqa: F401

    unable: set[str] = set()
    client: Any = None
    wanted = {case.form for case in cases}
    with contextlib.ExitStack() as stack:
        if wanted & {"file", "files"} and not make_files_streamed():
            unable |= {"file", "files"}
        if "dask" in wanted:
            try:
                from distributed import Client, LocalCluster
            except ImportError:
                unable.add("dask")
            else:
                cluster = LocalCluster(
                    n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )  # fmt: skip
                client = stack.enter_context(Client(stack.enter_context(cluster), set_as_default=False))
        yield Surroundings(frozenset(unable), client)


def make_files_streamed() -> bool:
    """Set the constants wherever they are defined; whether all of them were found."""
    found = set()
    for name, module in list(sys.modules.items()):
        for constant in STREAMED.keys() & (vars(module).keys() if name.startswith("globular.") else ()):
            setattr(module, constant, STREAMED[constant])
            found.add(constant)
    return found == set(STREAMED)


def compute(src: Path, only: str) -> tuple[dict[str, Answers], dict[str, str]]:
    """The answers of every case, and why others were left out; globular is imported from `src`."""
    sys.path.insert(0, str(src))
    import globular

    if src.resolve() not in Path(globular.__file__).resolve().parents:
        raise SystemExit(f"globular was imported from {globular.__file__}, not from {src}")
    warnings.simplefilter("ignore")
    logging.getLogger("globular").setLevel(logging.ERROR)
    cases = [case for case in all_cases() if only in case.name]
    found: dict[str, Answers] = {}
    left_out: dict[str, str] = {}
    began = time.perf_counter()
    with surroundings(cases) as around, tempfile.TemporaryDirectory() as folder:
        for case in cases:
            try:
                with around.around(case):
                    found[case.name] = answers(case, Path(folder))
            except LeftOutError as reason:
                left_out[case.name] = str(reason)
                print(f"left out: {case.name}: {reason}", file=sys.stderr)
    print(f"{src}: {len(found)} fits in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return found, left_out


# --- two checkouts -------------------------------------------------------------------------------------------------


def in_process(src: Path, only: str, folder: Path) -> tuple[dict[str, Answers], dict[str, str]]:
    """`compute` in a process of its own, with the numba cache of that checkout."""
    output = folder / "answers.pickle"
    command = [sys.executable, __file__, "--src", str(src), "--only", only, "--keep", str(output)]
    subprocess.run(command, env=environment(src), check=True, stdout=subprocess.DEVNULL)
    with output.open("rb") as stream:
        return pickle.load(stream)


def environment(src: Path) -> dict[str, str]:
    """The variables of a process that shall use this checkout, its kernels' cache included.

    A cached kernel does not notice that a helper of another file has changed. Where one was compiled before the newest
    source of a kernel was written, all are compiled anew, into a folder named after the sources.
    """
    variables = os.environ | {"PYTHONPATH": str(src)}
    sources = sorted((src / "globular" / "kernels").glob("*.py"))
    compiled = [path.stat().st_mtime for path in src.rglob("*.nbc")]
    if compiled and sources and min(compiled) < max(path.stat().st_mtime for path in sources):
        name = hashlib.sha256(b"".join([str(src).encode(), *(path.read_bytes() for path in sources)])).hexdigest()
        variables["NUMBA_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"globular-golden-{name[:16]}")
        print(f"{src}: kernels are older than their sources: compiled anew, minutes the first time", file=sys.stderr)
    return variables


def compare(before: dict[str, Answers], after: dict[str, Answers]) -> list[str]:
    """One line for each number that differs, of the cases that both have."""
    lines = []
    for case in before.keys() & after.keys():
        old, new = before[case], after[case]
        if ("error" in old) != ("error" in new):
            when, failed = ("before", old) if "error" in old else ("after", new)
            lines.append(f"{case}: fails {when}: {failed['error']}")
            continue
        for name in old.keys() | new.keys():
            if name not in old or name not in new:
                lines.append(f"{case}: {name}: only {'before' if name in old else 'after'}")
            elif digest(old[name]) != digest(new[name]):
                lines.append(f"{case}: {name}: {difference(old[name], new[name])}")
    return sorted(lines)


def difference(old: np.ndarray, new: np.ndarray) -> str:
    """In words: type, shape, and by how much the values differ, against the largest of the array."""
    if old.shape != new.shape:
        return f"shape {old.shape}, then {new.shape}"
    if old.dtype.kind not in "biuf" or new.dtype.kind not in "biuf":
        return f"{str(old)[:200]!r}, then {str(new)[:200]!r}"
    told = f"{old.dtype}, then {new.dtype}; " if old.dtype != new.dtype else ""
    wide = old.astype(np.longdouble), new.astype(np.longdouble)
    with np.errstate(all="ignore"):
        apart = np.abs(wide[0] - wide[1])
        relative = apart / np.maximum(np.abs(wide[0]), np.abs(wide[1]))
    n_apart = int((~((wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1])))).sum())
    if n_apart == 0:
        return f"{told}the same values in other bits"
    largest = np.nanmax(np.where(apart > 0, relative, 0.0))
    return f"{told}{n_apart} of {old.size} differ, by up to {float(largest):.1e} of the value"


def main() -> int:
    """Parse the command line; hash one checkout, or compare two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, metavar="SRC", help="the src folders before and after")
    parser.add_argument("--src", type=Path, help="hash this checkout alone, in this process")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--keep", type=Path, help="with --src: also write the numbers themselves into this file")
    options = parser.parse_args()
    if options.src is not None:
        found, left_out = compute(options.src, options.only)
        if options.keep is not None:
            options.keep.write_bytes(pickle.dumps((found, left_out)))
        hashes = {case: {name: digest(array) for name, array in numbers.items()} for case, numbers in found.items()}
        print(json.dumps(hashes, indent=1, sort_keys=True, ensure_ascii=False))
        return 0
    if len(options.sources) != 2:
        parser.error("give two src folders, or one by --src")
    with tempfile.TemporaryDirectory() as folder:
        (before, _), (after, _) = (in_process(src.resolve(), options.only, Path(folder)) for src in options.sources)
    lines = compare(before, after)
    print("\n".join(lines) or "no difference", flush=True)
    n_common, n_either = len(before.keys() & after.keys()), len(before.keys() | after.keys())
    n_differing = len({line.split(": ")[0] for line in lines})
    print(f"{n_common} cases compared, {n_differing} differ, {n_either - n_common} on one side only")
    return 1 if lines or not n_common else 0


if __name__ == "__main__":
    sys.exit(main())
