"""Attributes that are computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Result = TypeVar("Result")


class cached_property(Generic[Result]):  # noqa: N801
    """`functools.cached_property` without the lock that it has before Python 3.12.

    One thread that computes the property of any object holds that lock, and a child forked meanwhile waits for ever.
    """

    def __init__(self, function: Callable[[Any], Result]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Result: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Result:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value
