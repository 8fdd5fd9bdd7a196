"""How kernels are compiled. Imports numba: import it only where a kernel is about to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coterie.core.errors import UserError

try:
    import numba
except ImportError as error:
    raise UserError(
        f"numba cannot be imported: {error}; mend it, or use --engine.kernels off"
    ) from None

# Sums may be reordered, so that they use the whole width of the processor; NaN and infinity stay
# what they are, for the guard looks for them.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep that on the disk for the next process.

    Numba keeps it beside the source, else in the user's cache folder, or where ``NUMBA_CACHE_DIR``
    says. Where none of these can be written, every process compiles anew. It is compiled again when
    its file changes, and only then: a compiled function calls compiled ones of its own file alone.

    Example:
        >>> @compiled
        ... def twice(x):
        ...     return 2 * x
        >>> twice(2)
        4
    """
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no folder for it
        return numba.njit(**_OPTIONS)(function)


def cache_folder(kernel: Any) -> str | None:
    """Folder that a kernel is kept in; None where there is none."""
    return kernel.stats.cache_path
