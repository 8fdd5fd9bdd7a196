"""Settings dataclasses as a flat list of dotted keys, and back. Torch-free."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse_from_object

from coterie.core.errors import UserError

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
    def section(self) -> str:
        """The key without its last part; empty at the top."""
        return self.key.rpartition(".")[0]

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


@functools.cache
def leaves(settings: type) -> Mapping[str, Leaf]:
    """List all settings below a dataclass by dotted key, in the order of its fields.

    Example:
        >>> from coterie.core.settings.sections import PrivacySettings
        >>> found = leaves(PrivacySettings)
        >>> list(found)[:2]
        ['clip', 'noise']
        >>> found["noise"].expected, found["clip"].expected
        ('one of none, laplace, gaussian', 'a number, or null')
    """
    return MappingProxyType({leaf.key: leaf for leaf in _walk(settings, "")})


def sections(settings: type) -> dict[str, str]:
    """List the sections of a settings dataclass with the first line of their docstrings.

    Sections are nested dataclasses; a section of a section has a dotted key.
    """
    found = {}
    for name, hint in get_type_hints(settings).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            found[name] = (hint.__doc__ or "").splitlines()[0]
            found |= {f"{name}.{below}": text for below, text in sections(hint).items()}
    return found


def build(
    settings: type[Settings], values: Mapping[str, Any], start: Settings | None = None
) -> Settings:
    """Make the dataclass from values by dotted key; what is not given keeps its default.

    Args:
        settings: the class.
        values: by dotted key.
        start: has the defaults; None = those of the class.

    Raises:
        UserError: a value is out of range; the setting is named by its whole key.

    Example:
        >>> from coterie.core.settings.sections import EngineSettings
        >>> build(EngineSettings, {"chunk": 64}).chunk
        64
    """
    given: dict[str, Any] = {}
    defaults = _defaults(settings, start)
    for name, hint in get_type_hints(settings).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            below = {k[len(name) + 1 :]: v for k, v in values.items() if k.startswith(f"{name}.")}
            try:
                given[name] = build(hint, below, defaults[name])
            except UserError as error:
                raise UserError(within(name, hint, str(error))) from None
        elif name in values:
            given[name] = values[name]
    return settings(**(given if start is None else defaults | given))


def within(section: str, settings: type, message: str) -> str:
    """Name the settings of a section by their whole keys in a message that quotes them.

    Args:
        section: where the settings stand.
        settings: their class.
        message: of a check of the class.

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


def to_tree(settings: Any) -> dict[str, Any]:
    """Nest settings as plain values, the form of a configuration file.

    Example:
        >>> from coterie.core.settings.sections import EngineSettings
        >>> to_tree(EngineSettings(threads=2))["threads"]
        2
    """
    tree: dict[str, Any] = {}
    for key, value in values_of(settings).items():
        *path, name = key.split(".")
        below = tree
        for part in path:
            below = below.setdefault(part, {})
        below[name] = value
    return tree


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


def _walk(settings: type, prefix: str, start: Any = None) -> Iterator[Leaf]:
    texts = {param.arg_name: param.description or "" for param in _documented(settings)}
    defaults = _defaults(settings, start)
    for name, hint in get_type_hints(settings).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _walk(hint, f"{prefix}{name}.", defaults[name])
        else:
            text = " ".join(texts.get(name, "").split())
            yield Leaf(prefix + name, hint, defaults[name], text)


def _documented(settings: type) -> list[Any]:
    """Attribute docstrings of a dataclass and, before them, of its bases."""
    bases = [base for base in reversed(settings.__mro__) if dataclasses.is_dataclass(base)]
    return [param for base in bases for param in parse_from_object(base).params]


def _defaults(settings: type, start: Any) -> dict[str, Any]:
    """Give the default of every field: what ``start`` has, or the class."""
    if start is not None:
        return {field.name: getattr(start, field.name) for field in dataclasses.fields(start)}
    return {field.name: _default(field) for field in dataclasses.fields(settings)}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    parts = get_args(hint)
    if get_origin(hint) is tuple and Ellipsis not in parts:
        return f"a list of {len(parts)}, as {list(range(1, len(parts) + 1))}"
    if get_origin(hint) in (tuple, list):
        return "a list, as [1, 2]"
    if get_origin(hint) is dict:
        return "pairs, as user=u,item=i"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return "null" if hint is type(None) else names.get(hint, str(hint))
