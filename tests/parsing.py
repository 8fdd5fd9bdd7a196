"""Settings of any class from a command line, without a paper."""

from collections.abc import Sequence
from typing import Any, TypeVar

from coterie.core.settings.configuration import read_config, split
from coterie.core.settings.schema import build

Settings = TypeVar("Settings")


def parse(settings: type[Settings], argv: Sequence[str]) -> Settings:
    """Read settings from ``--config`` files and flags, starting from the defaults."""
    given = split(settings, argv)
    values: dict[str, Any] = {}
    for file in given.configs:
        values |= read_config(file, settings, "").values
    return build(settings, {**values, **given.flags})
