"""Centres of models of any library as arrays, and written as tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.open import as_source
from globular.errors import import_extra
from globular.io import check_file, write_array, write_whole

Floats = NDArray[np.floating[Any]]


def centers_from(source: Any) -> Floats:
    """Return the centres of a fitted model of any library, for ``init=`` or as a plain array.

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
        return (
            found if hasattr(found, "shape") else np.asarray(load_faiss().vector_to_array(found)).reshape(source.k, -1)
        )
    if hasattr(source, "reconstruct_n"):
        index = load_faiss().downcast_index(source.quantizer) if hasattr(source, "quantizer") else source
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

    Columns of tables have the names of the fit, if it had names.

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
    write_array(path, centers_from(model), names=getattr(model, "feature_names_in_", None))
    return Path(path)


def to_tree_table(model: Any, path: str | os.PathLike[str]) -> Path:
    """Write the tree of a :class:`globular.HierarchicalKMeans` as a table of (id, parent, vector), whole or not at all.

    One line per cluster, lowest level first; `id` is the position, and clusters at the top have no parent. VectorChord
    takes such a table for an external build. A ``.parquet`` file has lists for
    vectors; a ``.csv`` file has them as PostgreSQL reads vectors, ``[0.5,1.0]``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import globular
    >>> from globular.export import to_tree_table
    >>> model = globular.HierarchicalKMeans((2, 1), random_state=0).fit([[0.0], [1.0], [9.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lines = to_tree_table(model, pathlib.Path(folder, "tree.csv")).read_text().split()
    >>> lines[0], len(lines)
    ('id,parent,vector', 4)
    """
    target = check_file(path, (".csv", ".parquet"), "a tree")
    if not hasattr(model, "tree_"):
        raise TypeError(f"model must be a fitted HierarchicalKMeans, got a {type(model).__name__}")
    parents = model.tree_["parent"]
    vectors = np.concatenate([model.cluster_centers_, *model.upper_centers_])
    if target.suffix.lower() == ".csv":
        lines = ["id,parent,vector"]
        for number, (parent, vector) in enumerate(zip(parents.tolist(), vectors, strict=True)):
            values = ",".join(map(str, vector.tolist()))
            lines.append(f'{number},{"" if parent < 0 else parent},"[{values}]"')
        return write_whole(target, lambda file: file.write("\n".join([*lines, ""]).encode()))
    arrow = import_extra("pyarrow", "pyarrow", "io", "a .parquet file")
    parquet = import_extra("pyarrow.parquet", "pyarrow", "io", "a .parquet file")
    columns = {
        "id": arrow.array(np.arange(len(parents))),
        "parent": arrow.array(parents, mask=parents < 0),
        "vector": arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), vectors.shape[1]),
    }
    return write_whole(target, lambda file: parquet.write_table(arrow.table(columns), file))


def load_faiss() -> Any:
    """Import faiss, or raise an error that names the extra."""
    return import_extra("faiss", "faiss-cpu", "export", "a faiss index")
