"""Models on disk: a folder with ``model.safetensors`` (arrays) and ``model.json`` (the rest), no pickle.

Stored are the constructor parameters (``get_params``), except ``callbacks`` and ``verbose``, and every fitted
attribute (its name ends in an underscore). A parameter that is not data, such as ``init=my_function`` or a
``numpy.random.Generator``, is stored as its name only: the loaded estimator has the constructor's default
there, and :func:`load` says so in a warning. A model is written whole or not at all, and what does not hold together
is refused, by :func:`save` and by :func:`load` alike.

Single values become JSON: plain where JSON has a form, tagged where it has none. A tagged value is a dictionary with
one key that starts with ``$``; arrays are put aside and named there.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from globular._version import __version__
from globular.errors import DataError
from globular.model.history import History
from globular.persistence.folder import (
    FORMAT,
    FORMAT_VERSION,
    Arrays,
    check_destination,
    existing_folder,
    is_model,
    read_document,
    read_model,
    write_folder,
)

__all__ = ["ModelInfo", "check_destination", "is_model", "load", "read_info", "save"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model folder says about itself without reading its arrays."""

    class_name: str
    library_version: str
    parameters: dict[str, Any]
    n_clusters: int | None
    n_features: int | None
    history: History
    """Empty where the fit kept none."""
    created: str
    attributes: dict[str, Any]
    omitted: dict[str, str]


def save(estimator: Any, path: str | Path, *, overwrite: bool = True, include_labels: bool = True) -> Path:
    """Write a fitted estimator to a model folder, whole or not at all.

    Parameters
    ----------
    estimator : estimator of globular
        Fitted; :func:`load` rebuilds it from the folder.
    path : path
        The folder. An existing model there is replaced (other files in the folder stay); a folder without a
        model, but with something else in it, is refused.
    overwrite : bool, default=True
        ``False`` refuses to replace an existing model.
    include_labels : bool, default=True
        ``False`` leaves out ``labels_`` and ``codes_``, one integer per training row.

    Returns
    -------
    Path
        The folder.

    Examples
    --------
    >>> import globular, tempfile
    >>> model = globular.KMeans(n_clusters=2, random_state=0).fit([[0.0], [1.0], [9.0], [10.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     restored = globular.load(globular.save(model, folder + "/model"))
    >>> bool((restored.cluster_centers_ == model.cluster_centers_).all())
    True
    """
    target = check_destination(path, overwrite=overwrite)
    class_name, skip = type(estimator).__name__, () if include_labels else ("labels_", "component_labels_", "codes_")
    if getattr(importlib.import_module("globular"), class_name, None) is not type(estimator):
        raise TypeError(f"save stores globular's own estimators; {type(estimator).__module__}.{class_name} is not one")
    fitted = {
        name: value for name, value in sorted(vars(estimator).items()) if _is_fitted_name(name) and name not in skip
    }
    check_is_fitted(estimator)
    _check(estimator)
    arrays: Arrays = {}
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "class": class_name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "parameters": {
            name: encode_parameter(f"parameter.{name}", value, arrays)
            for name, value in estimator.get_params(deep=False).items()
            if name not in ("callbacks", "verbose")
        },
        "attributes": {name: encode_fitted(name, value, arrays) for name, value in fitted.items()},
    }
    write_folder(document, arrays, target)
    return target


def load(path: str | Path) -> Any:
    """Read an estimator back from a model folder.

    Examples
    --------
    >>> import globular, tempfile
    >>> model = globular.KMeans(n_clusters=1).fit([[0.0], [1.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     globular.load(globular.save(model, folder + "/model")).n_clusters
    1
    """
    folder = existing_folder(path)
    document, arrays = read_model(folder)
    name, estimator_class = document["class"], getattr(importlib.import_module("globular"), document["class"], None)
    if not (isinstance(estimator_class, type) and hasattr(estimator_class, "get_params")):
        raise DataError(f"{folder}: globular {__version__} has no estimator {name!r}; a newer version may have")
    parameters, omitted = _split_omitted(document["parameters"])
    with _damage_reported(folder):
        decoded = {name: decode_value(value, arrays) for name, value in parameters.items()}
        estimator = estimator_class(**renewed(name, decoded))
        for name, value in document["attributes"].items():
            if not _is_fitted_name(name):
                raise ValueError(f"{name!r} is not the name of a fitted attribute")
            if not isinstance(getattr(estimator_class, name, None), property):  # older versions stored precisions_
                vars(estimator)[name] = decode_value(value, arrays)  # setattr refuses what follows from others
        _check(estimator)
    if omitted:
        listed = ", ".join(f"{name}={what}" for name, what in omitted.items())
        warnings.warn(
            f"{folder}: saved without {listed} (not data); the loaded model has the default there, "
            "set it by set_params before fitting again",
            UserWarning,
            stacklevel=2,
        )
    return estimator


def read_info(path: str | Path) -> ModelInfo:
    """Read what a model folder says about itself; fast whatever the size of the model.

    Examples
    --------
    >>> import globular, tempfile
    >>> from globular.persistence import read_info
    >>> model = globular.KMeans(n_clusters=1).fit([[0.0], [1.0]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_info(globular.save(model, folder + "/model")).class_name
    'KMeans'
    """
    folder = existing_folder(path)
    document = read_document(folder)
    parameters, omitted = _split_omitted(document["parameters"])
    with _damage_reported(folder):
        attributes = {name: decode_value(value) for name, value in document["attributes"].items()}
        history = attributes.pop("history_", None)
        of_clusters = [attributes.get(name) for name in ("cluster_centers_", "sparse_centers_", "means_", "weights_")]
        shapes = [getattr(array, "shape", ()) for array in of_clusters]
        return ModelInfo(
            class_name=document["class"],
            library_version=str(document.get("library_version", "unknown")),
            parameters={name: decode_value(value) for name, value in parameters.items()},
            n_clusters=next((int(shape[0]) for shape in shapes if shape), None),
            n_features=attributes.get("n_features_in_"),
            history=history if isinstance(history, History) else History(),
            created=str(document.get("created", "unknown")),
            attributes=attributes,
            omitted=omitted,
        )


def _check(estimator: Any) -> None:
    """Refuse parameters that the estimator refuses, and fitted attributes that do not go together."""
    estimator._validate_params()
    estimator._check_state()


def _is_fitted_name(name: str) -> bool:
    return name.isidentifier() and name.endswith("_") and not name.startswith("_")


@contextmanager
def _damage_reported(folder: Path) -> Iterator[None]:
    """Turn what a wrong document makes of the decoding into one error that names the folder."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
        message = f"{folder}: the model is damaged or does not fit globular {__version__} ({error})"
        raise DataError(message) from error


def _split_omitted(parameters: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Separate the stored parameters from those of which `encode_parameter` stored the name only."""
    noted = {name: value for name, value in parameters.items() if isinstance(value, dict) and "$omitted" in value}
    kept = {name: value for name, value in parameters.items() if name not in noted}
    return kept, {name: str(value["$omitted"]) for name, value in noted.items()}


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Stands for an array whose values have not been read."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"array {' × '.join(map(str, self.shape))} {self.dtype}"


DEEPEST_NESTING = 100
"""Levels of lists in lists that a value may have: a fitted attribute has a few."""
_SAID: dict[tuple[str, str], dict[Any, dict[str, Any]]] = {
    ("GaussianMixture", "weights"): {"equal": {"weights_init": "equal"}},
    ("VariationalGaussianMixture", "neighborhoods"): {
        "estimated": {"search": "neighbors"},
        "exhaustive": {"search": "exhaustive neighbors"},
    },
    ("VariationalKMeans", "patience"): {},
}
"""For a class and a parameter that is gone: what its values, stored by older versions, are called today; all others are
the default."""


def encode_fitted(name: str, value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the JSON form of a fitted attribute; its arrays are added to `arrays`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, np.generic):
        return encode_fitted(name, value.item(), arrays)
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):  # labels may still be on workers
        return _encode_array(name, np.asarray(value), arrays)
    if isinstance(value, sparse.csr_array):
        parts = {part: getattr(value, part) for part in ("data", "indices", "indptr")}
        return {"$csr": encode_fitted(name, parts, arrays), "shape": list(value.shape)}
    if isinstance(value, History):
        rows = value.to_json_rows()
        return {"$history": [{key: encode_fitted(key, item, arrays) for key, item in row.items()} for row in rows]}
    if isinstance(value, list | tuple):
        items = [encode_fitted(f"{name}.{i}", item, arrays) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"$dict": {key: encode_fitted(f"{name}.{key}", item, arrays) for key, item in value.items()}}
    raise TypeError(f"cannot save {name}: a {type(value).__name__} has no data form")


def encode_parameter(name: str, value: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    """Return the JSON form of a parameter; of what is not data (a function, a generator) the name only."""
    own_arrays: dict[str, NDArray[Any]] = {}
    try:
        encoded = encode_fitted(name, value, own_arrays)
    except TypeError:
        return {"$omitted": getattr(value, "__qualname__", type(value).__name__)}
    arrays.update(own_arrays)
    return encoded


def decode_value(value: Any, arrays: Mapping[str, NDArray[Any]] | None = None, depth: int = 0) -> Any:
    """Undo the encoding; without `arrays`, an array becomes its shape and dtype."""
    if depth > DEEPEST_NESTING:
        raise ValueError(f"values nested more than {DEEPEST_NESTING} deep")
    inside = partial(decode_value, arrays=arrays, depth=depth + 1)
    if isinstance(value, list):
        return [inside(item) for item in value]
    if not isinstance(value, dict):
        return value
    tags = [key for key in value if key.startswith("$")]
    if len(tags) != 1:
        raise ValueError(f"unknown form of value with keys {sorted(value)}")
    tag, content = tags[0], value[tags[0]]
    if tag == "$float":
        return float(content)
    if tag == "$history":
        rows = ({key: decode_value(item) for key, item in row.items()} for row in content)
        return History.from_json_rows(rows)
    if tag == "$tuple":
        return tuple(map(inside, content))
    if tag == "$dict":
        return {key: inside(item) for key, item in content.items()}
    if tag == "$text":
        return _decode_texts(content)
    if tag == "$csr":
        (n_rows, n_columns), parts = value["shape"], inside(content)
        size = index(n_rows), index(n_columns)
        if arrays is None:
            return ArrayShape(size, parts["data"].dtype)
        matrix = sparse.csr_array((parts["data"], parts["indices"], parts["indptr"]), size)
        matrix.check_format(full_check=True)
        return matrix
    if tag == "$array":
        shape, dtype = tuple(index(n) for n in value["shape"]), str(value["dtype"])
        if arrays is None:
            return ArrayShape(shape, dtype)
        if content not in arrays:
            raise ValueError(f"array {content} is missing")
        array = arrays[content]
        if array.shape != shape or array.dtype.name != dtype:
            raise ValueError(f"array {content} has shape {array.shape} of {array.dtype}, expected {shape} of {dtype}")
        return array
    raise ValueError(f"unknown form of value {tag}")


def _encode_array(name: str, value: NDArray[Any], arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    if value.dtype.kind in "OSU":
        texts = value.tolist()
        if value.ndim != 1 or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"cannot save {name}: an array of {value.dtype} that is not one row of texts")
        return {"$text": texts}
    if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        raise TypeError(f"cannot save {name}: arrays of {value.dtype} are not supported")
    # C order and the machine's byte order, because the file holds the bytes as they lie
    arrays[name] = np.array(value, dtype=value.dtype.newbyteorder("="), order="C", copy=None, subok=False)
    return {"$array": name, "shape": list(value.shape), "dtype": value.dtype.name}


def _decode_texts(texts: Any) -> NDArray[Any]:
    """One row of texts, as objects: as an array of one width a single long text would make all of them long."""
    if not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        raise ValueError("an array of texts holds something else")
    return np.array(texts, dtype=object)


def renewed(class_name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a saved model as its class takes them today."""
    gone = {name: value for name, value in parameters.items() if (class_name, name) in _SAID}
    found = {name: value for name, value in parameters.items() if name not in gone}
    for name, value in gone.items():
        found |= _SAID[class_name, name].get(value, {})
    return found
