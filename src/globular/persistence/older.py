"""Parameters that older versions had, by the names and values that they have now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAID: dict[tuple[str, str], dict[Any, dict[str, Any]]] = {
    ("GaussianMixture", "weights"): {"equal": {"weights_init": "equal"}},
    ("VariationalGaussianMixture", "neighborhoods"): {
        "estimated": {"search": "neighbors"},
        "exhaustive": {"search": "exhaustive neighbors"},
    },
    ("VariationalKMeans", "patience"): {},
}
"""For a class and a parameter that is gone: what values of it are called today; all others are the default."""


def renewed(class_name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a saved model as its class takes them today."""
    gone = {name: value for name, value in parameters.items() if (class_name, name) in _SAID}
    found = {name: value for name, value in parameters.items() if name not in gone}
    for name, value in gone.items():
        found |= _SAID[class_name, name].get(value, {})
    return found
