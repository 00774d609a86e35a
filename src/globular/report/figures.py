"""The numbers of a fit that the page prints: key figures, imbalance, settings, timings, memory."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from globular.io.files import file_size, in_units
from globular.model.history import History
from globular.report.clusters import Clusters

Table = list[tuple[str, str]]


def key_figures(model: Any, clusters: Clusters, n_rows: int | None) -> Table:
    """The line of large numbers at the head of the page."""
    history = history_of(model)
    figures: Table = [("clusters", f"{len(clusters):,}")]
    if n_rows is not None:
        figures.append(("rows", f"{n_rows:,}"))
    figures.append(("columns", f"{clusters.centers.shape[1]:,}"))
    error = mean_squared_error(model, history)
    if error is not None:
        figures.append(("mean squared error", f"{error:.5g}"))
    elif getattr(model, "lower_bound_", None) is not None:
        figures.append(("log-likelihood per row", f"{model.lower_bound_:.5g}"))
    if history:
        figures.append(("iterations", f"{len(history.iterations):,}"))
        compiling = history[-1].compile_seconds
        after = f", after {compiling:,.2g} of compiling" if compiling else ""
        figures.append((f"seconds{after}", f"{history[-1].seconds:,.3g}"))
    if (recall := getattr(model, "label_recall_", 1.0)) < 1:
        figures.append(("of the labels of the fit miss the closest centre", percent(1 - recall)))
    return figures


def mean_squared_error(model: Any, history: History) -> float | None:
    """Inertia per unit of weight; the weight is what the last record's objective and error imply."""
    last = history[-1] if history else None
    if last is None or last.quantization_error is None or not hasattr(model, "inertia_"):
        return None
    return float(model.inertia_) * last.quantization_error / last.objective if last.objective else 0.0


def history_of(model: Any) -> History:
    """What the fit recorded; empty if it did not."""
    found = getattr(model, "history_", None)
    return found if isinstance(found, History) else History()


def size_figures(clusters: Clusters) -> Table:
    """How even the clusters are."""
    sizes, C = clusters.sizes, len(clusters)
    if not clusters.size_unit or sizes.sum() <= 0:
        return []
    share = sizes / sizes.sum()
    positive = share[share > 0]
    entropy = -float(positive @ np.log(positive))

    def shown(value: float) -> str:
        return f"{value:,.0f}" if clusters.size_unit == "rows" else percent(value)

    figures: Table = [
        ("smallest", shown(sizes.min())),
        ("median", shown(float(np.median(sizes)))),
        ("largest", shown(sizes.max())),
    ]
    if clusters.size_unit == "rows":
        figures.append(("empty", f"{int((sizes == 0).sum()):,}"))
    figures.append(("imbalance factor", f"{C * float(share @ share):.3g}"))
    figures.append(("effective clusters", f"{np.exp(entropy):,.0f}"))
    return figures


def settings(model: Any) -> tuple[Table, Table]:
    """Parameters that differ from their default, and parameters that do not."""
    changed: Table = []
    usual: Table = []
    defaults = {name: p.default for name, p in inspect.signature(type(model)).parameters.items()}
    for name, value in sorted(model.get_params(deep=False).items()):
        if name in ("callbacks", "verbose"):
            continue
        entry = (name, _shown_value(value))
        default = defaults.get(name)
        comparable = not (isinstance(value, np.ndarray | list) or isinstance(default, np.ndarray))
        (usual if comparable and value == default else changed).append(entry)
    return changed, usual


def outcome(model: Any) -> Table:
    """What the fit chose and how it ended."""
    names = ("algorithm_", "init_", "stopped_", "converged_", "n_iter_", "inertia_", "lower_bound_", "label_recall_")
    found = [(name, getattr(model, name, None)) for name in names]
    return [(name, _shown_value(value)) for name, value in found if value is not None]


def timings(model: Any, n_rows: int | None) -> Table:
    """Where the seconds went, as far as the history tells."""
    history = history_of(model)
    if not history:
        return []
    iterations = np.asarray(history.iterations.column("seconds"), dtype=np.float64)
    stages = history.stage_seconds
    table: Table = [(stage, _seconds(spent)) for stage, spent in stages.items()] if len(stages) > 1 else []
    if len(iterations):
        table.append(("until the first iteration was done", _seconds(iterations[0])))
    steps = np.diff(iterations)
    if len(steps):
        table.append(("an iteration after that (median)", _seconds(float(np.median(steps)))))
        evaluated = int(np.asarray(history.iterations.column("n_distances"))[1:].sum())
        if steps.sum() > 0:
            pace = in_units(evaluated / float(steps.sum()), "", " thousand", " million", " billion", " trillion")
            table.append(("distances per second", pace))
    table.append(("in all", _seconds(history[-1].seconds)))
    if history[-1].compile_seconds:
        table.append(("compiling kernels, beside that", _seconds(history[-1].compile_seconds)))
    table.append(("distances", f"{model.n_distances_:,}"))
    if n_rows:
        table.append(("distances of a row", f"{model.n_distances_ / n_rows:,.4g}"))
    return table


def memory(model: Any, C: int, n_rows: int | None, data_bytes: int | None) -> Table:
    """Bytes of the model's arrays, of the data, and of the table that is never made."""
    table: Table = []
    for name, value in sorted(vars(model).items()):
        if name.endswith("_") and isinstance(value, np.ndarray) and value.ndim:
            table.append((name, file_size(value.nbytes)))
    if data_bytes is not None:
        table.append(("data", file_size(data_bytes)))
    if n_rows:
        table.append(("rows × clusters, never held", file_size(4 * n_rows * C)))
    return table


def percent(share: float) -> str:
    """A share with three digits."""
    return f"{100 * share:.3g} %"


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:,.3g} s"


def _shown_value(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"array {' × '.join(map(str, value.shape))} {value.dtype}"
    if isinstance(value, float):
        return f"{value:.8g}"
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"
