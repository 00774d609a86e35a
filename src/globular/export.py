"""Centres and models for other programs, and centres from them.

>>> import numpy as np
>>> import globular
>>> from globular.export import centers_from
>>> from sklearn.cluster import MiniBatchKMeans
>>> X = np.random.default_rng(0).normal(size=(500, 4))
>>> found = MiniBatchKMeans(20, n_init=1, random_state=0).fit(X)
>>> model = globular.KMeans(20, init=centers_from(found)).fit(X)  # goes on from there
>>> bool(model.inertia_ < found.inertia_)
True
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from globular._files import check_file, write_whole
from globular._onnx_graphs import kmeans_graph, mixture_graph
from globular.data.open import as_source
from globular.errors import DataError, MemoryBudgetError, MissingExtraError
from globular.estimators.mixtures import MixtureEstimator
from globular.io import write_array

__all__ = ["centers_from", "to_faiss_ivf", "to_npy", "to_onnx", "write_faiss"]

Floats = NDArray[np.floating[Any]]
FAISS_SUFFIXES = (".faiss", ".index")
_ROWS_AT_ONCE = 1 << 16
_LARGEST_ONNX = 2**31 - 1
"""Bytes of a protocol buffer."""


def centers_from(source: Any) -> Floats:
    """Centres of a fitted clusterer of any library, for ``init=`` or as a plain array.

    Parameters
    ----------
    source : object
        A fitted model with ``cluster_centers_`` or ``means_`` (scikit-learn, cuML, globular), a ``faiss.Kmeans`` or
        ``faiss.Clustering``, a faiss index (of an IVF index the coarse centres, of another one its vectors), an array,
        or the path of a table or of a model of globular.

    Returns
    -------
    ndarray of shape (n_clusters, n_features)
        float32 or float64, a copy.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> from globular.export import centers_from
    >>> centers_from(KMeans(2, n_init=1).fit([[0.0], [1.0], [9.0]])).shape
    (2, 1)
    """
    found = _find_centers(source)
    if hasattr(found, "get") and not isinstance(found, np.ndarray):  # on a GPU, by way of CuPy
        found = found.get()
    centers = np.array(found, order="C")
    if centers.dtype.kind not in "fiu" or centers.ndim != 2 or 0 in centers.shape:
        raise TypeError(
            f"source: no table of centres in {type(source).__name__}, found shape {centers.shape} of {centers.dtype}"
        )
    if centers.dtype not in (np.float32, np.float64):
        centers = centers.astype(np.float64)
    if not np.isfinite(centers).all():
        raise ValueError("source: the centres contain NaN or infinity")
    return centers


def _find_centers(source: Any) -> Any:
    if isinstance(source, str | os.PathLike):
        from globular.persistence import is_model, load

        path = Path(source)
        return _find_centers(load(path)) if is_model(path) else as_source(path).whole()
    for name in ("cluster_centers_", "means_"):
        if getattr(source, name, None) is not None:
            return getattr(source, name)
    if hasattr(source, "centroids"):  # faiss.Kmeans has an array, faiss.Clustering a flat vector
        found = source.centroids
        return found if hasattr(found, "shape") else np.asarray(_faiss().vector_to_array(found)).reshape(source.k, -1)
    if hasattr(source, "reconstruct_n"):
        index = _faiss().downcast_index(source.quantizer) if hasattr(source, "quantizer") else source
        return index.reconstruct_n(0, index.ntotal)
    if hasattr(source, "get_params"):
        raise TypeError(f"source: this {type(source).__name__} has no centres yet; call fit first")
    try:
        return as_source(source).whole()
    except TypeError as error:
        raise TypeError(
            f"source: no centres in {type(source).__name__}; give a fitted model, a faiss index, an array or a path"
        ) from error


def to_npy(model: Any, path: str | os.PathLike[str]) -> Path:
    """Write the centres of a model to a ``.npy`` file (or ``.csv``, ``.parquet``), whole or not at all.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> import globular
    >>> from globular.export import to_npy
    >>> model = globular.KMeans(2, random_state=0).fit([[0.0], [1.0], [9.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(sorted(np.load(to_npy(model, pathlib.Path(folder, "centers.npy"))).ravel().tolist()))
    [0.5, 9.0]
    """
    write_array(path, centers_from(model))
    return Path(path)


def to_faiss_ivf(
    model: Any,
    X: Any = None,
    *,
    n_probes: int = 1,
    metric: Literal["auto", "euclidean", "cosine"] = "auto",
) -> Any:
    """A ``faiss.IndexIVFFlat`` whose lists are the clusters; faiss trains nothing.

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

    Returns
    -------
    faiss.IndexIVFFlat

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
    faiss = _faiss()
    centers = np.ascontiguousarray(centers_from(model), dtype=np.float32)
    cosine = (getattr(model, "metric", "euclidean") if metric == "auto" else metric) == "cosine"
    C, D = centers.shape
    kind = faiss.METRIC_INNER_PRODUCT if cosine else faiss.METRIC_L2
    quantizer = faiss.IndexFlat(D, kind)
    quantizer.add(centers)
    index = faiss.IndexIVFFlat(quantizer, D, C, kind)
    index.own_fields = True
    quantizer.this.disown()  # the index outlives this function, and so must its quantizer
    index.train(centers)  # sees that the quantizer is complete, and does nothing
    index.nprobe = min(n_probes, C)
    if X is not None:
        _add_rows(index, X, D, cosine)
    return index


def _add_rows(index: Any, X: Any, D: int, cosine: bool) -> None:
    source = as_source(X)
    if source.n_columns != D:
        raise DataError(f"{source.name} has {source.n_columns} columns, the centres have {D}")
    for block in source.blocks(_ROWS_AT_ONCE):
        rows: Any = block.rows
        dense = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
        part = np.ascontiguousarray(dense, dtype=np.float32)
        if cosine:
            lengths = np.linalg.norm(part, axis=1, keepdims=True)
            part = np.divide(part, lengths, out=np.zeros_like(part), where=lengths > 0)
        index.add(part)


def write_faiss(index: Any, path: str | os.PathLike[str]) -> Path:
    """Write a faiss index to a file that ``faiss.read_index`` reads, whole or not at all.

    Examples
    --------
    >>> from globular.export import to_faiss_ivf, write_faiss
    >>> write_faiss(to_faiss_ivf([[0.0, 0.0], [1.0, 1.0]]), "lists.faiss")  # doctest: +SKIP
    PosixPath('lists.faiss')
    """
    target = check_file(path, FAISS_SUFFIXES, "a faiss index")
    content = _faiss().serialize_index(index).tobytes()
    return write_whole(target, lambda file: file.write(content))


def to_onnx(model: Any, path: str | os.PathLike[str], *, dtype: Literal["float32", "float64"] = "float32") -> Path:
    """Write a fitted k-means model or Gaussian mixture as an ONNX model.

    The input is called ``X``, of shape (n, n_features). A k-means model gives ``label`` (n,) and ``distance`` (n,), the
    distance to the centre of that label (the cosine distance if the metric is the cosine). A mixture gives ``label``,
    ``probabilities`` (n, n_components) and ``log_likelihood`` (n,).

    Parameters
    ----------
    model : fitted k-means model or Gaussian mixture of globular
    path : path
        Ends in ``.onnx``. Written whole or not at all.
    dtype : {"float32", "float64"}, default="float32"
        Type of the input. K-means computes in it; mixtures always compute in float64.

    Returns
    -------
    Path

    Examples
    --------
    >>> import globular
    >>> from globular.export import to_onnx
    >>> model = globular.KMeans(2, random_state=0).fit([[0.0], [1.0], [9.0]])
    >>> to_onnx(model, "model.onnx")  # doctest: +SKIP
    PosixPath('model.onnx')
    """
    target = check_file(path, (".onnx",), "an ONNX model")
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
    try:
        import_module("onnx")
    except ImportError as error:
        raise MissingExtraError("onnx", "export", "writing .onnx") from error
    check_is_fitted(model)
    if hasattr(model, "posterior_"):
        raise TypeError(
            f"model: a {type(model).__name__} averages over its posterior, which has no ONNX form here; fit a "
            "GaussianMixture from its means (means_init=model.means_) and export that"
        )
    if isinstance(model, MixtureEstimator):
        model._check_state()
        parameters = model._mixture()
        _check_onnx_size(parameters.covariances.nbytes + 3 * parameters.means.nbytes)
        graph = mixture_graph(parameters, dtype)
    elif hasattr(model, "cluster_centers_"):
        centers = centers_from(model).astype(np.float64)
        _check_onnx_size(centers.size * np.dtype(dtype).itemsize)
        graph = kmeans_graph(centers, dtype, cosine=getattr(model, "metric", "euclidean") == "cosine")
    else:
        raise TypeError(f"model: a {type(model).__name__} has no ONNX form here; pass a k-means model or a mixture")
    return write_whole(target, lambda file: file.write(graph.SerializeToString()))


def _check_onnx_size(n_bytes: int) -> None:
    if n_bytes > _LARGEST_ONNX:
        raise MemoryBudgetError(
            f"the model would take {n_bytes / 2**30:,.1f} GiB, an ONNX file holds 2; export the centres by to_npy"
        )


def _faiss() -> Any:
    try:
        return import_module("faiss")
    except ImportError as error:
        raise MissingExtraError("faiss-cpu", "export", "a faiss index") from error
