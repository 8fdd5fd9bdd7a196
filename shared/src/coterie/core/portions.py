"""The folders that hold a part of the package ``coterie``. Imports the standard library alone.

The core has ``coterie/__init__.py``, the papers' wheels and folders have none. Python stops at the
first folder with one, so the others are looked for here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload


class Portions(Sequence[str]):
    """A ``__path__`` that leads to all folders of a package, as that of a namespace does.

    The package's own come first, so that what stands beside its ``__init__`` belongs to it. Then
    come those that the entries of ``sys.path`` know, asked through their finders (folders, zip
    files, what editable installs put there), in their order. It is asked anew whenever somebody
    looks, which is when a child of the package is imported first: entries may come and go.

    Args:
        name: of the package, on the top level.
        own: folders of the package itself.

    Example:
        >>> import coterie
        >>> coterie.__path__[0] in set(coterie.__path__)
        True
    """

    def __init__(self, name: str, own: Iterable[str]) -> None:
        self._name = name
        self._own = list(own)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: Any) -> Any:
        return self._found()[place]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._found()!r})"

    def append(self, folder: str) -> None:
        """Add a folder for good, as tools do that freeze or patch packages."""
        self._own.append(folder)

    def _found(self) -> list[str]:
        from pkgutil import get_importer  # a hundredth of a second

        found = dict.fromkeys(self._own)
        for entry in filter(None, map(_folder, list(sys.path))):
            finder: Any = get_importer(entry)
            spec = finder.find_spec(self._name) if hasattr(finder, "find_spec") else None
            if spec is not None:
                found |= dict.fromkeys(spec.submodule_search_locations or ())
        return list(found)


def _folder(entry: Any) -> str | None:
    """What an entry of ``sys.path`` stands for; None for what stands for nothing."""
    if entry != "":
        return entry if isinstance(entry, str) else None
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return None
