"""What a result that is kept on disk depends on: settings with an effect, the data, the code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.core.settings.schema import values_of

# Settings of speed, files and screens.
_OF_NO_EFFECT = (
    "run.",
    "logger.",
    "engine.chunk",
    "engine.threads",
    "engine.workers",
    "engine.kernels",
    "data.root",
)
# Code of screens, files and tables; all else may change a number.
_APART = {"cli", "callbacks", "tables", "engines", "commands", "bench"}
# Of the code of tables, what makes and keeps results.
_KEPT = {"result.py", "runs.py", "references.py"}


def fingerprint(settings: Any, data: str, *more: str) -> str:
    """Hash the settings with effect, the data and the code into 16 hexadecimal digits.

    The code is that of core and of the package that has the settings' class.

    Args:
        settings: of a run, with what its method does not read set to one value.
        data: from `coterie.core.data.interactions.digest.data_digest`.
        more: what else the result depends on.
    """
    package = ".".join(type(settings).__module__.split(".")[:2])
    code = code_version("coterie.core", package)
    values = {
        key: value
        for key, value in values_of(settings).items()
        if not key.startswith(_OF_NO_EFFECT)
    }
    text = json.dumps([values, code, data, *more], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_version(*packages: str) -> str:
    """Hash the source of everything that may change a number.

    Args:
        packages: as they are imported, ``coterie.core`` for example.
    """
    found = hashlib.sha256()
    for file in _sources(packages):
        found.update(file.read_bytes())
    return found.hexdigest()


def _sources(packages: Sequence[str]) -> Iterator[Path]:
    for name in packages:
        folder = Path(str(import_module(name).__file__)).parent
        for file in sorted(folder.rglob("*.py")):
            if file.name in _KEPT or not _APART & set(file.relative_to(folder).parts):
                yield file
