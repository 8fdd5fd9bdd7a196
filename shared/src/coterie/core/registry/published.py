"""Data files of packages, such as the numbers that a paper printed. Torch-free."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml


def packaged(package: str, name: str) -> dict[str, Any]:
    """Read a YAML file that stands in a package."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


@cache
def published(package: str) -> dict[str, Any]:
    """Read ``published.yaml`` of a paper's package: its tables, each as its comment says.

    Args:
        package: as it is imported.

    Example:
        >>> published("coterie.page")["table1"]["synthetic"]["page"]
        [92.67, 0.13, 96.24, 0.33]
    """
    return packaged(package, "published.yaml")
