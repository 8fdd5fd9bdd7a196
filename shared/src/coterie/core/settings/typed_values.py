"""Types of single settings, checked by jsonargparse; what does not fit is one line. Torch-free."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from coterie.core.errors import UserError, nearest
from coterie.core.settings.schema import Leaf, alternatives, leaves, sections

SHORT_FORMS = {
    "data": "data.name",
    "data_root": "data.root",
    "out": "run.out",
    "resume": "run.resume",
}


def short_forms(settings: type) -> dict[str, str]:
    """List the short forms of flags that the settings have, as ``data`` for ``data.name``."""
    known = leaves(settings)
    return {s: k for s, k in SHORT_FORMS.items() if k in known and s not in known}


def settings_parser(settings: type, usage: str) -> ArgumentParser:
    """Make a parser of all settings, with their docstrings as help and a group a section."""
    parser = ArgumentParser(prog="coterie", usage=usage, exit_on_error=False, add_help=False)
    for name, value, text in (
        ("--help", None, "Show this help."),
        ("--config", "FILE", "Read settings from a YAML file; may be repeated, the last one wins."),
        ("--preset", "NAME", "Use a preset, as smoke for a run of seconds."),
        ("--variant", "NAME", "Use a tuned configuration, or 'none'; default fits the data set."),
        ("--print_config", None, "Print the resulting settings and end."),
    ):
        extra: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
        parser.add_argument(name, help=text, **extra)
    groups: dict[str, Any] = {"": parser}
    for name, text in sections(settings).items():
        groups[name] = parser.add_argument_group(name, text)
    short = {key: name for name, key in short_forms(settings).items()}
    for leaf in leaves(settings).values():
        text = leaf.help + (f" Short form: --{short[leaf.key]}." if leaf.key in short else "")
        groups[leaf.section].add_argument(
            f"--{leaf.key}",
            type=leaf.hint,
            default=leaf.default,
            help=text,
        )
    return parser


class TypedValues:
    """Checks values against the types of the settings.

    Args:
        settings: the dataclass.
    """

    def __init__(self, settings: type) -> None:
        self._leaves = leaves(settings)
        self._parser = settings_parser(settings, "coterie")

    def from_file(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Check values as they stand in the file ``name``, by dotted key.

        Raises:
            UserError: a value has the wrong type; the key, the file and what is expected are named.
        """
        return {
            key: self._checked(key, value, f"'{key}' in {name}") for key, value in values.items()
        }

    def from_flags(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Check values as they were typed, by dotted key.

        Raises:
            UserError: a value has the wrong type; the flag and what is expected are named.
        """
        return {key: self._typed(self._leaves[key], text) for key, text in values.items()}

    def _typed(self, leaf: Leaf, text: str) -> Any:
        if leaf.is_mapping and not text.lstrip().startswith("{") and text != "null":
            pairs = [pair.split("=", 1) for pair in text.split(",")]
            if any(len(pair) != 2 or not all(pair) for pair in pairs):
                raise _wrong(leaf, text, f"--{leaf.key}")
            text = json.dumps(dict(pairs))
        try:
            found = self._parser.parse_args([f"--{leaf.key}={text}"], defaults=False)
        except ArgumentError:
            raise _wrong(leaf, text, f"--{leaf.key}") from None
        return self._finite(leaf, found[leaf.key], f"--{leaf.key}")

    def _checked(self, key: str, value: Any, where: str) -> Any:
        tree: Any = value
        for part in reversed(key.split(".")):
            tree = {part: tree}
        try:
            found = self._parser.parse_object(tree, defaults=False)
        except ArgumentError:
            raise _wrong(self._leaves[key], value, where) from None
        if value is None and type(None) not in alternatives(self._leaves[key].hint):
            raise _wrong(self._leaves[key], value, where)  # jsonargparse takes null as not given
        return self._finite(self._leaves[key], found[key], where)

    def _finite(self, leaf: Leaf, value: Any, where: str) -> Any:
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise _wrong(leaf, value, where)
        return value


def _wrong(leaf: Leaf, value: Any, where: str) -> UserError:
    hint = ""
    if leaf.choices and str(value) not in leaf.choices:
        close = nearest(str(value), leaf.choices)
        hint = f"; {close}" if close.startswith("did") else ""
    shown = "null" if value is None else f"'{value}'"
    return UserError(f"{where}: expected {leaf.expected}, not {shown}{hint}")
