"""C-sized arrays that stay on the card: what algorithms see of the results of passes there.

Algorithms do their C-sized arithmetic by NumPy. A `DeviceArray` is an array by NumPy's own protocols for arrays that
live elsewhere (NEP 13 and NEP 18): `np.sqrt(a + b)`, `np.where`, indexing and so on are carried out by torch beside the
rows. What is not in the tables here comes to the host and is done there; results mix with NumPy's arrays freely. So no
algorithm knows about cards, and nothing is computed otherwise than on the CPU but for the order of some sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

_DTYPES = {
    np.dtype(name): getattr(torch, name)
    for name in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_NAMES = {of: name for name, of in _DTYPES.items()}


def tensor_dtype(dtype: Any) -> Any:
    """The type of torch that holds values of a type of NumPy: the same, or one that is wide enough."""
    found = _DTYPES.get(np.dtype(dtype))
    return torch.float64 if found is None else found


class DeviceArray(NDArrayOperatorsMixin):
    """A tensor that NumPy's functions take for an array."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array: np.ndarray = self.tensor.cpu().numpy()
        wanted = array.dtype if dtype is None else np.dtype(dtype)
        # on a torch CPU device the array would share its memory
        return array.astype(wanted, copy=copy is not False and self.tensor.device.type == "cpu")

    def __reduce__(self) -> Any:
        return np.asarray, (np.asarray(self),)  # on another machine there may be no card

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if method == "at":
            raise TypeError(f"np.{ufunc.__name__}.at would change a copy: this array lies on a card")
        function = _UFUNCS.get(ufunc.__name__) if method == "__call__" else None
        where, into = options.pop("where", True), None if out is None else out[0]
        if function is None or options or (into is not None and not isinstance(into, DeviceArray)):
            options = options if where is True else {**options, "where": _host(where)}
            into = None if into is None else (_host(into),)
            return getattr(ufunc, method)(*map(_host, inputs), **({} if into is None else {"out": into}), **options)
        device = _device_of([*inputs, *(out or ())])
        result = function(*(_operand(value, device) for value in inputs))
        if where is not True:
            before = torch.zeros_like(result) if into is None else into.tensor
            result = torch.where(_operand(where, device), result, before)
        if into is None:
            return DeviceArray(result)
        into.tensor.copy_(result)
        return into

    def __array_function__(self, function: Any, types: Any, given: Any, options: Any) -> Any:
        if function in _IN_PLACE:
            raise TypeError(f"np.{function.__name__} would change a copy: this array lies on a card")
        carried_out = _FUNCTIONS.get(function)
        if carried_out is not None:
            found = carried_out(*given, **options)
            if found is not NotImplemented:
                return found
        return function(*map(_host, given), **{name: _host(value) for name, value in options.items()})

    # --- what arrays have ---

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return int(self.tensor.ndim)

    @property
    def size(self) -> int:
        return int(self.tensor.numel())

    @property
    def dtype(self) -> np.dtype:
        return _NAMES[self.tensor.dtype]

    @property
    def T(self) -> DeviceArray:
        return DeviceArray(self.tensor.T)

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __index__(self) -> int:
        if self.ndim or self.dtype.kind not in "iu":  # NumPy would take an array of one element for a number
            raise TypeError("only a single whole number can be an index")
        return int(self.tensor)

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(self.tensor[_index(key, self)])

    def __setitem__(self, key: Any, value: Any) -> None:
        value = _operand(value, self.tensor.device)
        self.tensor[_index(key, self)] = value.to(self.tensor.dtype) if isinstance(value, torch.Tensor) else value

    def __repr__(self) -> str:
        return f"DeviceArray({self.tensor!r})"

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        return DeviceArray(self.tensor.to(_DTYPES[np.dtype(dtype)], copy=copy))

    def copy(self) -> DeviceArray:
        return DeviceArray(self.tensor.clone())

    def tolist(self) -> Any:
        return self.tensor.tolist()

    def tobytes(self) -> bytes:
        return np.asarray(self).tobytes()

    def transpose(self, *axes: int) -> DeviceArray:
        return DeviceArray(self.tensor.permute(*axes))

    def reshape(self, *shape: int) -> DeviceArray:
        return DeviceArray(self.tensor.reshape(*shape))

    def sum(self, axis: int | None = None, keepdims: bool = False) -> DeviceArray:
        of = self.tensor.to(torch.int64) if self.tensor.dtype == torch.bool else self.tensor
        return DeviceArray(of.sum() if axis is None else of.sum(dim=axis, keepdim=keepdims))

    def mean(self, axis: int | None = None, keepdims: bool = False) -> DeviceArray:
        of = self.tensor if self.tensor.dtype.is_floating_point else self.tensor.to(torch.float64)
        return DeviceArray(of.mean() if axis is None else of.mean(dim=axis, keepdim=keepdims))

    def max(self, axis: int | None = None, initial: float | None = None) -> Any:
        if axis is not None:
            return DeviceArray(self.tensor.amax(dim=axis))
        found = [] if initial is None else [initial]
        return max([*found, self.tensor.max().item()] if self.size else found)

    def min(self, axis: int | None = None) -> Any:
        return self.tensor.min().item() if axis is None else DeviceArray(self.tensor.amin(dim=axis))

    def argmin(self, axis: int | None = None) -> DeviceArray:
        return DeviceArray(self.tensor.argmin(dim=axis))

    def argmax(self, axis: int | None = None) -> DeviceArray:
        return DeviceArray(self.tensor.argmax(dim=axis))

    def any(self) -> DeviceArray:
        return DeviceArray(self.tensor.any())

    def all(self) -> DeviceArray:
        return DeviceArray(self.tensor.all())


def _host(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return np.asarray(value)
    return type(value)(map(_host, value)) if isinstance(value, list | tuple) else value


def _device_of(values: Any) -> Any:
    return next(value.tensor.device for value in values if isinstance(value, DeviceArray))


def _operand(value: Any, device: Any) -> Any:
    """A number as it is, everything else as a tensor there."""
    if isinstance(value, DeviceArray):
        return value.tensor.to(device)
    if isinstance(value, np.ndarray) and value.ndim:
        return torch.as_tensor(value if value.flags.writeable else value.copy()).to(device)
    return value.item() if isinstance(value, np.generic | np.ndarray) else value


def _tensors(values: Any, device: Any) -> list[Any]:
    return [torch.as_tensor(_operand(value, device), device=device) for value in values]


def _index(key: Any, of: DeviceArray) -> Any:
    if isinstance(key, tuple):
        return tuple(_index(each, of) for each in key)
    if isinstance(key, list):
        key = np.asarray(key, dtype=np.intp) if not key else np.asarray(key)
    if isinstance(key, slice):
        bounds = (None if each is None else int(each) for each in (key.start, key.stop, key.step))
        return slice(*bounds)
    found = _operand(key, of.tensor.device)
    is_whole = isinstance(found, torch.Tensor) and found.dtype not in (torch.bool, torch.int64)
    return found.to(torch.int64) if is_whole else found


def _both(function: Callable[..., Any], bound: str) -> Callable[..., Any]:
    """A function of torch that takes tensors alone, for numbers too; a number of type float needs no message."""

    def call(a: Any, b: Any) -> Any:
        if isinstance(b, float) and a.dtype.is_floating_point:
            return torch.clamp(a, **{bound: b})
        device = (a if isinstance(a, torch.Tensor) else b).device
        return function(torch.as_tensor(a, device=device), torch.as_tensor(b, device=device))

    return call


def _matmul(a: Any, b: Any) -> Any:
    wide = torch.promote_types(a.dtype, b.dtype)
    return a.to(wide) @ b.to(wide)


_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b, "power": lambda a, b: a**b, "negative": torch.neg, "absolute": torch.abs,
    "sqrt": torch.sqrt, "square": torch.square, "log": torch.log, "exp": torch.exp, "isfinite": torch.isfinite,
    "minimum": _both(torch.minimum, "max"), "maximum": _both(torch.maximum, "min"), "matmul": _matmul,
    "less": lambda a, b: a < b, "less_equal": lambda a, b: a <= b, "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b, "equal": lambda a, b: a == b, "not_equal": lambda a, b: a != b,
    "logical_not": torch.logical_not, "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b,
    "invert": torch.bitwise_not,
}  # fmt: skip


def _einsum(subscripts: str, *operands: Any) -> Any:
    device = _device_of(operands)
    if len(operands) != 2:
        return NotImplemented
    a, b = _tensors(operands, device)
    (one, other), kept = subscripts.split("->")[0].split(","), subscripts.split("->")[1]
    if one != other:
        return DeviceArray(torch.einsum(subscripts, a, b))
    left = [axis for axis, name in enumerate(one) if name not in kept]
    return DeviceArray((a * b).sum(left))


def _concatenate(arrays: Any, axis: int = 0) -> Any:
    if len({each.tensor.device for each in arrays if isinstance(each, DeviceArray)}) > 1:
        return NotImplemented  # what lies on several cards may be too large for one: joined on the host
    parts = _tensors(arrays, _device_of(arrays))
    wide = parts[0].dtype
    for part in parts:
        wide = torch.promote_types(wide, part.dtype)
    return DeviceArray(torch.cat([part.to(wide) for part in parts], dim=axis))


def _where(condition: Any, *values: Any) -> Any:
    if not values:
        return NotImplemented
    device = _device_of([condition, *values])
    return DeviceArray(torch.where(_tensors([condition], device)[0], *(_operand(value, device) for value in values)))


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    if weights is not None or not isinstance(x, DeviceArray):
        return NotImplemented
    return DeviceArray(torch.bincount(x.tensor, minlength=minlength))


def _cumsum(a: Any) -> Any:
    is_whole = not a.tensor.dtype.is_floating_point  # torch's running sums of floats are not always the same
    return DeviceArray(torch.cumsum(a.tensor, dim=0)) if is_whole else NotImplemented


def _unique(ar: Any, return_index: bool = False, return_counts: bool = False) -> Any:
    if return_index:
        if return_counts:
            return NotImplemented
        ordered, order = torch.sort(ar.tensor, stable=True)
        is_first = torch.ones_like(ordered, dtype=torch.bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        return DeviceArray(ordered[is_first]), DeviceArray(order[is_first])
    found = torch.unique(ar.tensor, return_counts=return_counts)
    return tuple(map(DeviceArray, found)) if return_counts else DeviceArray(found)


def _vdot(a: Any, b: Any) -> Any:
    one, two = _tensors([a, b], _device_of([a, b]))
    return float((one * two).sum())


def _repeat(a: Any, repeats: Any, axis: int | None = None) -> Any:
    if not isinstance(a, DeviceArray) or axis is not None:
        return NotImplemented
    return DeviceArray(torch.repeat_interleave(a.tensor, _operand(repeats, a.tensor.device)))


def _norm(x: Any, ord: Any = None, axis: int | None = None, keepdims: bool = False) -> Any:
    if ord is not None or axis is None:
        return NotImplemented
    return DeviceArray(torch.sqrt((x.tensor * x.tensor).sum(dim=axis, keepdim=keepdims)))


def _solve(a: Any, b: Any) -> Any:
    return DeviceArray(torch.linalg.solve(*_tensors([a, b], _device_of([a, b]))))


def _as_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition of one matrix, or of many."""

    def call(a: Any) -> Any:
        found = function(a.tensor)
        return DeviceArray(found) if isinstance(found, torch.Tensor) else tuple(map(DeviceArray, found))

    return call


def _take_along_axis(arr: Any, indices: Any, axis: int) -> Any:
    values, places = _tensors([arr, indices], _device_of([arr, indices]))
    return DeviceArray(torch.take_along_dim(values, places.long(), dim=axis))


_IN_PLACE = {np.copyto, np.put, np.place, np.putmask, np.put_along_axis}
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.einsum: _einsum,
    np.concatenate: _concatenate,
    np.where: _where,
    np.bincount: _bincount,
    np.argsort: lambda a, axis=-1, kind=None: DeviceArray(torch.argsort(a.tensor, dim=axis, stable=True)),
    np.cumsum: _cumsum,
    np.unique: _unique,
    np.vdot: _vdot,
    np.repeat: _repeat,
    np.linalg.norm: _norm,
    np.linalg.solve: _solve,
    np.linalg.cholesky: _as_arrays(torch.linalg.cholesky),
    np.linalg.inv: _as_arrays(torch.linalg.inv),
    np.linalg.qr: _as_arrays(torch.linalg.qr),
    np.linalg.eigh: _as_arrays(torch.linalg.eigh),
    np.diagonal: lambda a, offset=0, axis1=0, axis2=1: DeviceArray(torch.diagonal(a.tensor, offset, axis1, axis2)),
    np.broadcast_to: lambda array, shape: DeviceArray(array.tensor.expand(shape)),
    np.fill_diagonal: lambda a, value: a.tensor.fill_diagonal_(value),
    np.sort: lambda a: DeviceArray(torch.sort(a.tensor).values),
    np.diff: lambda a: DeviceArray(torch.diff(a.tensor)),
    np.flatnonzero: lambda a: DeviceArray(torch.nonzero(a.tensor.reshape(-1))[:, 0]),
    np.zeros_like: lambda a: DeviceArray(torch.zeros_like(a.tensor)),
    np.empty_like: lambda a: DeviceArray(torch.empty_like(a.tensor)),
    np.take_along_axis: _take_along_axis,
    np.sum: lambda a, axis=None: a.sum(axis),
    np.mean: lambda a, axis=None: a.mean(axis),
}
