"""The decorator of compiled inner loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Callable[..., Any]:
    """numba's nogil machine code of a function, compiled at its first call; options: of numba.njit.

    numba caches in NUMBA_CACHE_DIR, else beside the module, else (read-only site-packages) in the user's cache folder.
    Where none of them can be written it raises at decoration; then every process compiles afresh (seconds). No fast-math
    unless asked: the order of additions is the source's, so equal inputs give equal bytes in every process of one machine.
    """
    if function is None:
        return lambda given: compiled(given, **options)
    try:
        return numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        return numba.njit(nogil=True, **options)(function)
