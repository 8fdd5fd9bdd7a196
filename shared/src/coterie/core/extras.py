"""Packages that only some commands need, installed as an extra of coterie-core. Torch-free."""

from __future__ import annotations

from importlib.util import find_spec

from coterie.core.errors import UserError


def require(extra: str, what: str, *modules: str) -> None:
    """Refuse in one line, with the remedy, what needs a package that is not installed.

    Nothing is imported.

    Args:
        extra: of coterie-core, that brings the packages.
        what: needs them, as ``coterie serve``.
        modules: names under which they are imported.

    Raises:
        UserError: one of them is missing.

    Example:
        >>> require("serve", "coterie serve", "no_such_module")
        Traceback (most recent call last):
        ...
        coterie.core.errors.UserError: coterie serve needs no_such_module, which is not installed: \
say pip install 'coterie-core[serve]' with coterie's constraints.txt
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise UserError(
            f"{what} needs {' and '.join(missing)}, which is not installed: say pip install "
            f"'coterie-core[{extra}]' with coterie's constraints.txt"
        )
