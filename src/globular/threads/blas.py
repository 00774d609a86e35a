"""BLAS held to one thread: our own threads call it, and sums must not depend on how many it takes itself."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _SingleThreadedBlas:
    """A decorator: BLAS has one thread while anybody is inside; whoever leaves last restores what was there at first.

    Ctrl-C may come between any two instructions of the main thread, those of entering and leaving included. So numbers
    of threads are noted before they change and forgotten after they are restored, leaving twice does no harm, and
    whoever an exception takes out leaves until it is done. (A `with` would not do: its exit may be interrupted at its
    beginning.)
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin as if nobody were inside."""
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._before: list[int] | None = None
        self._held = False

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def held(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            return self.run(function, *args, **kwargs)

        return held

    def run(self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call a function once: to decorate it would take longer than a small pass."""
        stay = object()
        try:
            self._enter(stay)
            result = function(*args, **kwargs)
            self._leave(stay)
        except BaseException:
            inside = True
            while inside:
                try:
                    self._leave(stay)
                    inside = False
                except KeyboardInterrupt:  # one is on its way already
                    pass
            raise
        return result

    def _enter(self, stay: object) -> None:
        with self._lock:
            self._inside.add(stay)
            if self._before is None:
                self._before = [get_threads() for get_threads, _ in _blas()]
            if not self._held:
                for _, set_threads in _blas():
                    set_threads(1)
                self._held = True

    def _leave(self, stay: object) -> None:
        with self._lock:
            self._inside.discard(stay)
            if not self._inside:
                self.restore()

    def restore(self) -> None:
        """Give BLAS the threads that it had before anybody came in."""
        if self._before is not None:
            self._held = False
            for (_, set_threads), n_threads in zip(_blas(), self._before, strict=True):
                set_threads(n_threads)
            self._before = None


@cache
def _blas() -> list[tuple[Callable[[], int], Callable[[int], object]]]:
    """What tells and what sets the number of threads of each loaded BLAS library.

    `ThreadpoolController.limit` looks all libraries over each time, which takes half a short pass. The number of
    threads is one for the whole process. Newer versions of threadpoolctl let only the thread that was the
    first change it; we see to the order ourselves, and whoever leaves last must be able to.
    """
    import numpy.linalg  # noqa: F401
    import scipy.linalg.cython_blas  # noqa: F401  (of NumPy, and of kernels: found once they are loaded)

    return [_direct(each) for each in ThreadpoolController().select(user_api="blas").lib_controllers]


def _direct(library: Any) -> tuple[Callable[[], int], Callable[[int], object]]:
    """The same of one library; of OpenBLAS its own functions, called with the interpreter's lock held.

    Whoever gives the lock away between two passes, as calls by `ctypes` do, waits until all other threads that have
    just ended had it.
    """
    find = getattr(library, "_get_symbol", None)
    if library.internal_api == "openblas" and find is not None:
        there = find("openblas_get_num_threads"), find("openblas_set_num_threads")
        if None not in there:
            tell, change = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in there)
            return ctypes.PYFUNCTYPE(ctypes.c_int)(tell), ctypes.PYFUNCTYPE(None, ctypes.c_int)(change)
    return library.get_num_threads, getattr(library, "_real_set_num_threads", library.set_num_threads)


single_threaded_blas = _SingleThreadedBlas()
