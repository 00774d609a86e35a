"""The door to compiled code: kernels, and the little that kernels are written with. Nobody else imports numba.

A kernel is a Python function that runs as machine code, without the interpreter's lock. `library` has most kernels
ready, compiled when the package was built; numba compiles the others when they are first called, and is imported for
that alone. What numba does is written twice: `stock` uses its public interface, `linked` its private one, which halves
the time that compiling takes, for the versions of numba that were tried. GLOBULAR_JIT chooses:

- auto, the default: the library, and beside it `linked` for versions of numba that were tried, else `stock`;
- fast: `linked`, whatever the version, and no library;
- stock: `stock`, and no library.

`blas`, `tiles`, `vectors` and `memory` have instructions that kernels call and numba does not offer.
"""

from globular.jit.functions import compile_seconds, inline, kernel, kernel_apart, twin
from globular.jit.sharing import Queue, Scratch, Zeros, new_queue, share_kernel, take_number

__all__ = [
    "Queue",
    "Scratch",
    "Zeros",
    "compile_seconds",
    "inline",
    "kernel",
    "kernel_apart",
    "new_queue",
    "share_kernel",
    "take_number",
    "twin",
]
