"""faiss indexes whose lists are the clusters of a model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import normalize
from sklearn.utils.validation import check_is_fitted

from globular.algorithms.seeding.common import evenly_spread_rows
from globular.data.blocks import Source
from globular.data.open import as_source
from globular.errors import DataError
from globular.estimators.kmeans import KMeans
from globular.estimators.product import ProductKMeans
from globular.estimators.residual import ResidualKMeans
from globular.export.tables import centers_from, load_faiss
from globular.io import check_file, write_whole

FAISS_SUFFIXES = (".faiss", ".index")
_ROWS_AT_ONCE = 1 << 16
_LINKS = 32
"""Links of a centre in the HNSW graph of centres."""
_FAR = 1e4
"""Position of padding words that no row takes, in units of the largest number of all codebooks."""
_PROBES_ABOVE = 8
"""Number of clusters of the level above whose centres a search visits; larger = more exact, slower."""
_FEWEST_TRAINED, _MOST_TRAINED = 256, 1 << 16
"""Least and largest number of rows that codes are trained on; a code has 256 words."""


def to_faiss_ivf(
    model: Any,
    X: Any = None,
    *,
    n_probes: int = 1,
    metric: Literal["auto", "euclidean", "cosine"] = "auto",
    coarse: Literal["flat", "hnsw", "tree"] = "flat",
    code_size: int | None = None,
) -> Any:
    """Make a faiss index whose lists are the clusters: an ``IndexIVFFlat``, or with codes an ``IndexIVFPQ``.

    Parameters
    ----------
    model : fitted k-means model, or anything that :func:`centers_from` takes
    X : array, CSR matrix, data frame, source or path, optional
        Rows to add, block by block; their ids are their numbers. Without rows the index is trained and empty.
    n_probes : int, default=1
        Lists that a search looks at (``index.nprobe``).
    metric : {"auto", "euclidean", "cosine"}, default="auto"
        "cosine" makes an inner-product index and scales rows to unit length as they are added; scale queries
        yourself. "auto" takes the model's own.
    coarse : {"flat", "hnsw", "tree"}, default="flat"
        How a search finds its lists: "flat" compares all centres, "hnsw" uses a graph of centres, which pays from tens
        of thousands on, "tree" the levels of a :class:`globular.HierarchicalKMeans`.
    code_size : int, optional
        Keep rows as product codes of this number of bytes, which must divide the number of columns. faiss trains the
        codes on rows of X; without codes nothing is trained.

    Examples
    --------
    >>> import numpy as np
    >>> import globular
    >>> from globular.export import to_faiss_ivf
    >>> X = np.random.default_rng(0).normal(size=(1000, 8)).astype("float32")
    >>> model = globular.KMeans(20, random_state=0).fit(X)
    >>> index = to_faiss_ivf(model, X, n_probes=4)  # doctest: +SKIP
    >>> index.search(X[:5], 1)[1].ravel().tolist()  # doctest: +SKIP
    [0, 1, 2, 3, 4]
    """
    if metric not in ("auto", "euclidean", "cosine"):
        raise ValueError(f"metric must be auto, euclidean or cosine, got {metric!r}")
    if n_probes < 1:
        raise ValueError(f"n_probes must be at least 1, got {n_probes}")
    if coarse not in ("flat", "hnsw", "tree"):
        raise ValueError(f"coarse must be flat, hnsw or tree, got {coarse!r}")
    if coarse == "tree" and not getattr(model, "upper_centers_", None):
        raise TypeError("coarse='tree' needs a fitted HierarchicalKMeans of two levels or more; take flat or hnsw")
    faiss = load_faiss()
    centers = np.ascontiguousarray(centers_from(model), dtype=np.float32)
    cosine = (getattr(model, "metric", "euclidean") if metric == "auto" else metric) == "cosine"
    C, D = centers.shape
    kind = faiss.METRIC_INNER_PRODUCT if cosine else faiss.METRIC_L2
    if coarse == "tree":
        above: Literal["cosine", "euclidean"] = "cosine" if cosine else "euclidean"
        quantizer = to_faiss_ivf(model.upper_centers_[0], n_probes=_PROBES_ABOVE, metric=above)
    else:
        quantizer = faiss.IndexFlat(D, kind) if coarse == "flat" else faiss.IndexHNSWFlat(D, _LINKS, kind)
    quantizer.add(centers)
    if code_size is None:
        index = faiss.IndexIVFFlat(quantizer, D, C, kind)
        index.train(centers)  # sees that the quantizer is complete, and does nothing
    else:
        if X is None:
            raise ValueError("code_size: codes are trained on rows; pass X")
        if code_size < 1 or D % code_size:
            raise ValueError(f"code_size must divide the {D} columns, got {code_size}")
        index = faiss.IndexIVFPQ(quantizer, D, C, code_size, 8, kind)  # codes of eight bits
        index.train(_some_rows(X, D, cosine))
    index.own_fields = True
    quantizer.this.disown()  # the index outlives this function, and so must its quantizer
    index.nprobe = min(n_probes, C)
    if X is not None:
        for block in _checked(X, D).blocks(_ROWS_AT_ONCE):
            index.add(_dense(block.rows, cosine))
    return index


def to_faiss_residual(model: ResidualKMeans, X: Any = None) -> Any:
    """Make a faiss ``IndexResidualQuantizer`` with the codebooks of a model; its quantiser is ``index.rq``.

    Rows of X are added block by block, and encoded by faiss with the model's beam. Codebooks whose size is no power of
    two are filled up with words far from all rows.

    Examples
    --------
    >>> import numpy as np
    >>> import globular
    >>> from globular.export import to_faiss_residual
    >>> X = np.random.default_rng(0).normal(size=(1000, 8)).astype("float32")
    >>> model = globular.ResidualKMeans(16, random_state=0).fit(X)
    >>> to_faiss_residual(model, X).ntotal  # doctest: +SKIP
    1000
    """
    check_is_fitted(model, "codebooks_")
    faiss, D, cosine = load_faiss(), model.n_features_in_, model.metric == "cosine"
    bits = [max(1, (len(book) - 1).bit_length()) for book in model.codebooks_]
    far = _FAR * max(1.0, *(float(np.abs(book).max()) for book in model.codebooks_))
    spare = [((0, 2**n - len(book)), (0, 0)) for book, n in zip(model.codebooks_, bits, strict=True)]
    books = [np.pad(book, n, constant_values=far) for book, n in zip(model.codebooks_, spare, strict=True)]
    sizes = faiss.UInt64Vector()
    faiss.copy_array_to_vector(np.array(bits, dtype=np.uint64), sizes)
    index = faiss.IndexResidualQuantizer(D, sizes, faiss.METRIC_INNER_PRODUCT if cosine else faiss.METRIC_L2)
    faiss.copy_array_to_vector(np.concatenate(books).astype(np.float32).ravel(), index.rq.codebooks)
    index.rq.max_beam_size = model.beam
    index.rq.compute_codebook_tables()
    index.rq.is_trained = index.is_trained = True
    if X is not None:
        for block in _checked(X, D).blocks(_ROWS_AT_ONCE):
            index.add(_dense(block.rows, cosine))
    return index


def _some_rows(X: Any, D: int, cosine: bool) -> Any:
    """Rows drawn evenly from all of X, to train codes on."""
    source = _checked(X, D)
    if source.n_rows < _FEWEST_TRAINED:
        raise ValueError(f"code_size: codes need at least {_FEWEST_TRAINED} rows to train on, X has {source.n_rows}")
    numbers = evenly_spread_rows(source.n_rows, _MOST_TRAINED, np.random.default_rng(0))
    return _dense(source.take(numbers), cosine)


def _checked(X: Any, D: int) -> Source:
    source = as_source(X)
    if source.n_columns != D:
        raise DataError(f"{source.name} has {source.n_columns} columns, the centres have {D}")
    return source


def _dense(rows: Any, cosine: bool) -> Any:
    """Rows as a dense float32 array, as faiss takes them."""
    dense = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
    part = np.ascontiguousarray(dense, dtype=np.float32)
    return normalize(part) if cosine else part


def to_faiss_pq(model: ProductKMeans) -> Any:
    """Make an empty faiss index of product codes: an ``IndexPQ``, behind an ``OPQMatrix`` if there is a rotation.

    The number of clusters is a power of two; with 256 of them the codes are those of `model`.
    """
    check_is_fitted(model)
    M, k, width = model.codebooks_.shape
    if k & (k - 1) or k == 1:
        raise ValueError(f"n_clusters={k} is no power of two from 2 on, as faiss needs it; fit again with one")
    faiss = load_faiss()
    index = faiss.IndexPQ(M * width, M, k.bit_length() - 1)
    faiss.copy_array_to_vector(model.codebooks_.astype(np.float32).ravel(), index.pq.centroids)
    index.is_trained = True
    if model.rotation_ is None:
        return index
    matrix = faiss.OPQMatrix(M * width, M)
    faiss.copy_array_to_vector(model.rotation_.T.astype(np.float32).ravel(), matrix.A)
    matrix.is_trained = matrix.is_orthonormal = True
    whole = faiss.IndexPreTransform(matrix, index)
    whole.own_fields = True
    matrix.this.disown()  # both belong to the whole
    index.this.disown()
    return whole


def write_faiss(index: Any, path: str | os.PathLike[str]) -> Path:
    """Write a faiss index to a file that ``faiss.read_index`` reads, whole or not at all.

    Examples
    --------
    >>> from globular.export import to_faiss_ivf, write_faiss
    >>> write_faiss(to_faiss_ivf([[0.0, 0.0], [1.0, 1.0]]), "lists.faiss")  # doctest: +SKIP
    PosixPath('lists.faiss')
    """
    target = check_file(path, FAISS_SUFFIXES, "a faiss index")
    content = load_faiss().serialize_index(index).tobytes()
    return write_whole(target, lambda file: file.write(content))


F32 = NDArray[np.float32]


class Kmeans:
    """:class:`globular.KMeans` with the interface of ``faiss.Kmeans``; it uses every row and does not need faiss.

    Parameters
    ----------
    d, k : int
        Columns, and clusters.
    niter : int, default=25
        Largest number of iterations.
    nredo : int, default=1
        Runs from other starts, of which the best is kept.
    verbose : bool, default=False
    spherical : bool, default=False
        Cluster directions. Distances are then inner products of rows and centroids, the largest first.
    seed : int, default=1234
    max_points_per_centroid : int, optional
        Accepted for compatibility, without effect: nothing is subsampled.

    Attributes
    ----------
    model : KMeans
        The fitted model; `centroids`, `obj` and `index` are made of it.

    Examples
    --------
    >>> import numpy as np
    >>> from globular.export import Kmeans  # was: from faiss import Kmeans
    >>> X = np.random.default_rng(0).normal(size=(1000, 8)).astype("float32")
    >>> kmeans = Kmeans(8, 20, niter=20)
    >>> error = kmeans.train(X)
    >>> D, I = kmeans.index.search(X, 1)
    >>> bool(abs(D.sum() / error - 1) < 1e-4)
    True
    """

    def __init__(
        self,
        d: int,
        k: int,
        *,
        niter: int = 25,
        nredo: int = 1,
        verbose: bool = False,
        spherical: bool = False,
        seed: int = 1234,
        max_points_per_centroid: int | None = None,
    ) -> None:
        self.d, self.k = d, k
        self.model = KMeans(
            k, max_iter=niter, n_init=nredo, verbose=int(verbose), metric="cosine" if spherical else "euclidean",
            random_state=seed,
        )  # fmt: skip

    def train(self, x: Any, weights: Any = None, init_centroids: Any = None) -> float:
        """Find the centroids; returns the error, the sum of squared distances."""
        if np.shape(x)[1:] != (self.d,):
            raise ValueError(f"x has shape {np.shape(x)}, expected (n, {self.d})")
        if init_centroids is not None:
            self.model.set_params(init=init_centroids, n_init="auto")
        self.model.fit(x, sample_weight=weights)
        return self.model.inertia_

    @property
    def centroids(self) -> F32:
        """The centres, (k, d)."""
        return self.model.cluster_centers_.astype(np.float32)

    @property
    def obj(self) -> NDArray[np.float64]:
        """The error after every iteration."""
        return np.asarray(self.model.history_.column("objective"), dtype=np.float64)

    @property
    def index(self) -> Kmeans:
        """Object with `search`, as the index of faiss has it."""
        return self

    def search(self, x: Any, k: int) -> tuple[F32, NDArray[np.int64]]:
        """The `k` closest centroids of every row: squared distances (inner products if spherical) and numbers."""
        labels, distances = self.model.nearest_centers(x, k)
        if self.model.metric == "cosine":
            lengths = np.linalg.norm(np.asarray(x, dtype=np.float64), axis=1, keepdims=True)
            return ((1.0 - distances) * lengths).astype(np.float32), labels.astype(np.int64)
        return np.square(distances).astype(np.float32), labels.astype(np.int64)

    def assign(self, x: Any) -> tuple[F32, NDArray[np.int64]]:
        """The closest centroid of every row: squared distances (inner products if spherical) and numbers."""
        found, labels = self.search(x, 1)
        return found[:, 0], labels[:, 0]
