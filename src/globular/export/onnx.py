"""ONNX models of k-means models and Gaussian mixtures.

Distances are ‖x‖² − 2 x·μ + ‖μ‖² about the mean of the centres, so that a common offset of the data does not cancel.
The operators are from operator set 17, which runtimes since 2022 know.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from globular.errors import MemoryBudgetError, import_extra
from globular.estimators.mixtures import MixtureEstimator
from globular.export.tables import centers_from
from globular.io import check_file, write_whole
from globular.model.cells import median_center
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64

OPERATORS, IR_VERSION = 17, 8
"""Operator set, and the version of the file format that belongs to it."""
_LARGEST_ONNX = 2**31 - 1
"""Largest size of a protocol buffer, in bytes."""


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
    import_extra("onnx", "onnx", "export", "writing .onnx")
    check_is_fitted(model)
    if hasattr(model, "posterior_"):
        raise TypeError(
            f"model: a {type(model).__name__} averages over its posterior, which has no ONNX form here; fit a "
            "GaussianMixture from its means (means_init=model.means_) and export that"
        )
    if isinstance(model, MixtureEstimator):
        model = model.to_full() if hasattr(model, "to_full") else model
        model._check_state()
        parameters = model._mixture()
        if parameters.noise is not None:
            raise TypeError("model: a mixture with noise has no ONNX form here; fit it with noise=False")
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


def _onnx(module: str) -> Any:
    """Import a module of the onnx package on first use."""
    return import_module(f"onnx.{module}")


class Graph:
    """Nodes and constants of a model. `add` returns the name of a node's result, so calls can be nested."""

    def __init__(self, n_features: int, dtype: str) -> None:
        self.n_features = n_features
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(
        self,
        operator: str,
        *inputs: str,
        name: str = "",
        axis: int | None = None,
        axes: list[int] | None = None,
        keepdims: int | None = None,
        to: int | None = None,
    ) -> str:
        """Add a node; the keywords are attributes of the operator, by their ONNX names."""
        result = name or f"t{len(self.nodes)}"
        given = {"axis": axis, "axes": axes, "keepdims": keepdims, "to": to}
        attributes = {key: value for key, value in given.items() if value is not None}
        self.nodes.append(_onnx("helper").make_node(operator, list(inputs), [result], **attributes))
        return result

    def constant(self, values: Any) -> str:
        """An array inside the model."""
        name = f"c{len(self.constants)}"
        self.constants.append(_onnx("numpy_helper").from_array(np.ascontiguousarray(values), name))
        return name

    def finish(self, outputs: Sequence[tuple[str, str, tuple[str | int, ...]]]) -> Any:
        """Make the model, with outputs given by name, type and shape."""
        helper, kinds = _onnx("helper"), _onnx("onnx_ml_pb2").TensorProto
        types = {"float32": kinds.FLOAT, "float64": kinds.DOUBLE, "int64": kinds.INT64}
        given = helper.make_tensor_value_info("X", types[self.dtype], ["n", self.n_features])
        results = [helper.make_tensor_value_info(name, types[kind], list(shape)) for name, kind, shape in outputs]
        graph = helper.make_graph(self.nodes, "globular", [given], results, self.constants)
        model = helper.make_model(
            graph, producer_name="globular", opset_imports=[helper.make_opsetid("", OPERATORS)], ir_version=IR_VERSION
        )
        _onnx("checker").check_model(model)
        return model


def kmeans_graph(centers: F64, dtype: str, *, cosine: bool) -> Any:
    """`label` of the closest centre, and the `distance` to it."""
    graph = Graph(centers.shape[1], dtype)
    if cosine:
        # Not ReduceL2, which onnxruntime 1.19 has for float32 alone.
        lengths = graph.add("Sqrt", graph.add("ReduceSumSquare", "X", axes=[1], keepdims=1))
        tiny = graph.constant(np.array(np.finfo(dtype).tiny, dtype=dtype))
        rows = graph.add("Div", "X", graph.add("Max", lengths, tiny))
        similarity = graph.add("MatMul", rows, graph.constant(centers.T.astype(dtype)))
        graph.add("ArgMax", similarity, axis=1, keepdims=0, name="label")
        closest = graph.add("ReduceMax", similarity, axes=[1], keepdims=0)
        graph.add("Sub", graph.constant(np.array(1.0, dtype=dtype)), closest, name="distance")
    else:
        offset = median_center(centers)
        shifted = centers - offset
        rows = graph.add("Sub", "X", graph.constant(offset.astype(dtype)))
        scores = _affine(graph, rows, -2.0 * shifted.T, np.square(shifted).sum(axis=1), dtype)
        graph.add("ArgMin", scores, axis=1, keepdims=0, name="label")
        squared = graph.add(
            "Add",
            graph.add("ReduceSumSquare", rows, axes=[1], keepdims=0),
            graph.add("ReduceMin", scores, axes=[1], keepdims=0),
        )
        zero = graph.constant(np.array(0.0, dtype=dtype))
        graph.add("Sqrt", graph.add("Max", squared, zero), name="distance")
    return graph.finish([("label", "int64", ("n",)), ("distance", dtype, ("n",))])


def mixture_graph(mixture: GaussianParameters, dtype: str) -> Any:
    """The most likely `label`, the `probabilities` of all components, and the `log_likelihood` of a row."""
    C, D = mixture.means.shape
    graph = Graph(D, dtype)
    rows = "X" if dtype == "float64" else graph.add("Cast", "X", to=_onnx("onnx_ml_pb2").TensorProto.DOUBLE)
    rows = graph.add("Sub", rows, graph.constant(mixture.offset))
    mahalanobis = _mahalanobis(graph, rows, mixture)
    halved = graph.add("Mul", mahalanobis, graph.constant(np.array(-0.5)))
    joint = graph.add("Add", halved, graph.constant(mixture.log_constants))
    graph.add("ArgMax", joint, axis=1, keepdims=0, name="label")
    graph.add("Softmax", joint, axis=1, name="probabilities")
    graph.add("ReduceLogSumExp", joint, axes=[1], keepdims=0, name="log_likelihood")
    return graph.finish(
        [("label", "int64", ("n",)), ("probabilities", "float64", ("n", C)), ("log_likelihood", "float64", ("n",))]
    )


def _mahalanobis(graph: Graph, rows: str, mixture: GaussianParameters) -> str:
    """Squared Mahalanobis distances (n, C), with rows and means about the offset."""
    C, D = mixture.means.shape
    means, factors = mixture.means - mixture.offset, mixture.factors
    family = mixture.family
    if not family.scatter.separable and not family.tied:  # ‖x U_c − μ_c U_c‖², all components in one product
        stacked = np.transpose(factors, (1, 0, 2)).reshape(D, C * D)
        moved = np.einsum("cd,cde->ce", means, factors).reshape(-1)
        whitened = _affine(graph, rows, stacked, -moved, "float64")
        apart = graph.add("Reshape", whitened, graph.constant(np.array([-1, C, D], dtype=np.int64)))
        return graph.add("ReduceSumSquare", apart, axes=[2], keepdims=0)
    precisions = np.ones((C, D))
    if family.scatter.separable:
        precisions = np.broadcast_to(mixture.each(mixture.precisions), (C, D))
    else:  # coordinates in which all components are unit spheres
        rows, means = graph.add("MatMul", rows, graph.constant(factors)), means @ factors
    squares = graph.add("MatMul", graph.add("Mul", rows, rows), graph.constant(precisions.T))
    crossed = _affine(graph, rows, -2.0 * (precisions * means).T, (precisions * means**2).sum(axis=1), "float64")
    return graph.add("Add", squares, crossed)


def _affine(graph: Graph, rows: str, factors: NDArray[Any], constants: NDArray[Any], dtype: str) -> str:
    """rows · factors + constants."""
    product = graph.add("MatMul", rows, graph.constant(factors.astype(dtype)))
    return graph.add("Add", product, graph.constant(constants.astype(dtype)))
