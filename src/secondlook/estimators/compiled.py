"""How the loops of this room are compiled; importing this loads numba, so only the kernels import it."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile on first call, keep the machine code on disk, and run without the interpreter's lock."""
    return cast(Kernel, numba.njit(cache=True, nogil=True)(function))
