"""Errors that a user can act on: each names the argument, file or package and the remedy."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class GlobularError(Exception):
    """Base of the library's own errors."""


class DataError(GlobularError, ValueError):
    """A file or data source cannot be used as it is."""


class MissingExtraError(GlobularError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs the package {package}; install it with: pip install "globular[{extra}]"')


def import_extra(module: str, package: str, extra: str, purpose: str) -> Any:
    """A module of an optional package, or an error that names the extra."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, extra, purpose) from error


class DeviceError(GlobularError, RuntimeError):
    """The device that was asked for is not there, or the model does not run on it."""


class MemoryBudgetError(GlobularError, MemoryError):
    """An allocation that is known beforehand not to fit; the message says its size and the alternative."""


class UnsupportedPassError(GlobularError, NotImplementedError):
    """A shard does not offer a pass that an algorithm asked for; the message gives the reason."""


class FitInterruptedWarning(UserWarning):
    """A fit was ended by Ctrl-C; the best state so far was kept."""


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the fit goes on."""


class OverfitWarning(UserWarning):
    """Many components of a mixture hold too few rows for their parameters."""
