"""Settings dataclasses as a flat list of dotted keys, and back. Torch-free."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from coterie.core.errors import UserError
from coterie.core.settings.base import ELSEWHERE

Settings = TypeVar("Settings")


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One setting.

    Attributes:
        key: dotted, as ``data.name``.
        hint: its type.
        default: its default value.
        help: the docstring below the field.
    """

    key: str
    hint: Any
    default: Any
    help: str

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return bool in alternatives(self.hint)

    @property
    def is_mapping(self) -> bool:
        """Whether it takes pairs."""
        return any(get_origin(part) is dict for part in alternatives(self.hint))

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        return ", or ".join(_words(part) for part in alternatives(self.hint))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it may be, if only certain words are allowed."""
        parts = [get_args(p) for p in alternatives(self.hint) if get_origin(p) is Literal]
        return tuple(str(choice) for part in parts for choice in part)


def hints(settings: type) -> dict[str, Any]:
    """List the types of all settings below a dataclass by dotted key.

    Example:
        >>> from coterie.core.settings.sections import EngineSettings
        >>> hints(EngineSettings)["threads"]
        <class 'int'>
    """
    found: dict[str, Any] = {}
    for name, hint in _types(settings).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found |= {f"{name}.{key}": below for key, below in hints(hint).items()}
        else:
            found[name] = hint
    return found


_types: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
"""Types of the fields, resolved once: that is most of what reading settings takes."""


def build(settings: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Make the dataclass from values by dotted key; what is not given keeps its default.

    Raises:
        UserError: a value is out of range; the setting is named by its whole key.

    Example:
        >>> from coterie.core.settings.sections import EngineSettings
        >>> build(EngineSettings, {"chunk": 64}).chunk
        64
    """
    try:
        return changed(settings(), values)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from None


def _is_tuple(settings: Any, name: str) -> bool:
    parts = alternatives(_types(type(settings))[name])
    return any(get_origin(part) is tuple for part in parts)


def changed(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Change settings by dotted key.

    Example:
        >>> from coterie.core.settings.base import BaseSettings
        >>> changed(BaseSettings(seed=1), {"rounds": 5, "engine.chunk": 64}).engine.chunk
        64
    """
    start: Any = settings
    given: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(start)):
        old = getattr(start, name)
        if name in values:
            value = values[name]  # JSON and YAML have no tuples
            given[name] = tuple(value) if type(value) is list and _is_tuple(start, name) else value
        elif dataclasses.is_dataclass(old):
            prefix = f"{name}."
            below = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
            try:
                given[name] = changed(old, below) if below else old
            except UserError as error:
                raise UserError(within(name, type(old), str(error))) from None
    found: Settings = dataclasses.replace(start, **given)
    return found


def filled(settings: Settings, choices: Mapping[str, Any]) -> Settings:
    """Set what is open (None) to a choice; what was set stays.

    Args:
        settings: a dataclass.
        choices: by name; a mapping is of the section of that name.

    Example:
        >>> from coterie.core.settings.sections import EngineSettings
        >>> found = filled(EngineSettings(), {"chunk": 64, "threads": 9})
        >>> found.chunk, found.threads
        (64, 1)
    """
    found: dict[str, Any] = {}
    for name, choice in choices.items():
        old = getattr(settings, name)
        if isinstance(choice, Mapping):
            found[name] = filled(old, choice)
        elif old is None:
            found[name] = choice
    return changed(settings, found)


def within(section: str, settings: type, message: str) -> str:
    """Name the settings of a section by their whole keys in a message that quotes them.

    Example:
        >>> from coterie.core.settings.sections import EngineSettings
        >>> within("engine", EngineSettings, "'chunk' must be at least 1")
        "'engine.chunk' must be at least 1"
    """
    names = "|".join(re.escape(field.name) for field in dataclasses.fields(settings))
    return re.sub(rf"'({names})(?=[.'])", rf"'{section}.\1", message)


def values_of(settings: Any) -> dict[str, Any]:
    """Flatten settings into plain values by dotted key.

    Example:
        >>> from coterie.core.settings.sections import EngineSettings
        >>> values_of(EngineSettings(chunk=64))["chunk"]
        64
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            found |= {f"{field.name}.{key}": below for key, below in values_of(value).items()}
        else:
            found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def suggest(key: str, known: Iterable[str]) -> str:
    """Name the known key nearest to a misspelt one, as the end of an error message.

    A right section is kept; without a right section, the right last word is enough.

    Example:
        >>> known = ["seed", "model.dim", "model.lr", "temporal_mean.beta"]
        >>> suggest("model.dmi", known), suggest("bta", known)
        ("did you mean 'model.dim'?", "did you mean 'temporal_mean.beta'?")
        >>> suggest("zzz", known)
        'known: model, seed, temporal_mean'
        >>> suggest("model.zzz", known)
        'known: model.dim, model.lr'
    """
    known = list(known)
    section, _, word = key.rpartition(".")
    if section == "trainer" and word in ELSEWHERE:
        return ELSEWHERE[word]
    inside = {_last(other): other for other in known if other.rpartition(".")[0] == section}
    if section and inside:
        return _closest(word, inside, 0.5) or _known(inside.values())
    tops = {other.partition(".")[0]: other.partition(".")[0] for other in known}
    return (
        _closest(key, {other: other for other in known if _last(other) == word}, 0.0)
        or _closest(key, {other: other for other in known}, 0.6)
        or _closest(word, {_last(other): other for other in reversed(known)}, 0.75)
        or _closest(key, tops, 0.6)
        or _known(tops.values())
    )


def _closest(word: str, meant: Mapping[str, str], cutoff: float) -> str:
    """Suggest what the closest of the words means; empty if none is similar enough."""
    close = difflib.get_close_matches(word, meant, n=1, cutoff=cutoff)
    return f"did you mean '{meant[close[0]]}'?" if close else ""


def _known(keys: Iterable[str]) -> str:
    return "known: " + ", ".join(sorted(keys))


def alternatives(hint: Any) -> tuple[Any, ...]:
    """List the types of a union; a single type is its only one."""
    return get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    parts = get_args(hint)
    if get_origin(hint) is tuple and Ellipsis not in parts:
        return f"a list of {len(parts)}, as {list(range(1, len(parts) + 1))}"
    if get_origin(hint) in (tuple, list):
        if get_origin(parts[0]) is Literal:
            choices = get_args(parts[0])
            return f"a list of {', '.join(map(str, choices))}, as [{choices[0]}]"
        return "a list, as [1, 2]"
    if get_origin(hint) is dict:
        return "pairs, as user=u,item=i"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return "null" if hint is type(None) else names.get(hint, str(hint))
