"""Models on disk: a folder with ``model.safetensors`` (arrays) and ``model.json`` (the rest), no pickle.

Stored are the constructor parameters (``get_params``), except ``callbacks`` and ``verbose``, and every fitted
attribute (its name ends in an underscore). A parameter that is not data, such as ``init=my_function`` or a
``numpy.random.Generator``, is stored as its name only: the loaded estimator has the constructor's default
there, and :func:`load` says so in a warning. A model is written whole or not at all, and what does not hold together
is refused, by :func:`save` and by :func:`load` alike.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
from globular.persistence.values import decode_value, encode_fitted, encode_parameter, omitted_name, renewed

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
        ``False`` leaves out ``labels_``, one integer per training row.

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
    class_name, skip = type(estimator).__name__, () if include_labels else ("labels_", "component_labels_")
    if getattr(importlib.import_module("globular"), class_name, None) is not type(estimator):
        raise TypeError(f"save stores globular's own estimators; {type(estimator).__module__}.{class_name} is not one")
    fitted = {
        name: value for name, value in sorted(vars(estimator).items()) if _is_fitted_name(name) and name not in skip
    }
    if not fitted:
        raise ValueError(f"this {class_name} is not fitted yet; call fit before saving it")
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
        of_clusters = [attributes.get(name) for name in ("cluster_centers_", "means_", "weights_")]
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
    """Separate the stored parameters from those of which only the name was stored."""
    omitted = {name: what for name, value in parameters.items() if (what := omitted_name(value)) is not None}
    return {name: value for name, value in parameters.items() if name not in omitted}, omitted
