"""Numbers of a run that are kept on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from coterie.core.files import write_json


@dataclass
class Result:
    """What a table needs of a run; a subclass is a dataclass of numbers, lists and dicts.

    Attributes:
        with_none: names of the fields in which a missing number is None; NaN in all others.
    """

    with_none: ClassVar[tuple[str, ...]] = ()

    def write(self, path: Path) -> None:
        """Write JSON in one step.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        write_json(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            **{
                name: value if name in cls.with_none else with_nan(value)
                for name, value in content.items()
            }
        )


def with_nan(content: Any) -> Any:
    """Turn None, which stands for NaN in JSON, back into it.

    Example:
        >>> with_nan({"a": [1.5, None]})
        {'a': [1.5, nan]}
    """
    if isinstance(content, dict):
        return {name: with_nan(value) for name, value in content.items()}
    if isinstance(content, list):
        return [with_nan(value) for value in content]
    return float("nan") if content is None else content
