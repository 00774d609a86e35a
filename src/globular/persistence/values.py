"""How single values of an estimator become JSON: plain where JSON has a form, tagged where it has none.

A tagged value is a dictionary with one key that starts with ``$``; arrays are put aside and named there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.model.history import History


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


def omitted_name(value: Any) -> str | None:
    """Return the name under which :func:`encode_parameter` noted a parameter that it did not store."""
    return str(value["$omitted"]) if isinstance(value, dict) and "$omitted" in value else None


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
