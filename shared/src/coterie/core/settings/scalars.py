"""Plain words of a YAML file or a flag, read as the setting that they are for. Torch-free.

YAML 1.1, which PyYAML reads, takes ``off`` for false, ``012`` for 10, ``1:30`` for 90, ``1e-3`` for
text and ``2024-01-01`` for a date. What is meant is known here: every setting has a type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from coterie.core.settings.schema import alternatives

_WORDS = {False: ("off", "no", "false", "n"), True: ("on", "yes", "true", "y")}
_WHOLE = re.compile(r"[-+]?(0x[0-9a-f_]+|0o[0-7_]+|0b[01_]+|[0-9][0-9_]*)", re.IGNORECASE)
_NUMBER = re.compile(
    r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?|[-+]?\.?(inf|nan)", re.IGNORECASE
)


class Plain(str):
    """A word that stands in a file without quotes, as it stands there."""

    __slots__ = ()


def as_meant(value: Any, hint: Any) -> Any:
    """Read a value of a file, plain words in lists and pairs included, as its type says.

    Args:
        value: of YAML's types, with `Plain` for what has no quotes.
        hint: the type of the setting.

    Raises:
        ValueError: a plain word is nothing of that type.

    Example:
        >>> as_meant(Plain("off"), Literal["offline", "off"]), as_meant(Plain("off"), bool)
        ('off', False)
        >>> as_meant(Plain("012"), int), as_meant(Plain("012"), str), as_meant(Plain("1e-3"), float)
        (12, '012', 0.001)
        >>> as_meant([Plain("1_000"), Plain("0x10")], tuple[int, ...])
        [1000, 16]
    """
    parts = alternatives(hint)
    if isinstance(value, Plain):
        return _read(value, parts)
    if isinstance(value, list):
        inside = [get_args(part) for part in parts if get_origin(part) in (list, tuple)]
        kinds = inside[0] if inside else ()
        return [as_meant(item, _of_place(kinds, place)) for place, item in enumerate(value)]
    if isinstance(value, Mapping):
        inside = [get_args(part) for part in parts if get_origin(part) is dict]
        kind = inside[0][1] if inside else Any
        return {_plain_text(key): as_meant(item, kind) for key, item in value.items()}
    return value


def number(text: str) -> int | float:
    """Read a number as people write it.

    Raises:
        ValueError: it is none.

    Example:
        >>> number("012"), number("1_000"), number("1e-3"), number("0x10")
        (12, 1000, 0.001, 16)
    """
    if _WHOLE.fullmatch(text):
        digits = text.replace("_", "")
        return int(digits, 0 if re.match("[-+]?0[xob]", digits, re.IGNORECASE) else 10)
    if _NUMBER.fullmatch(text):
        return float(re.sub(r"\.(inf|nan)", r"\1", text.replace("_", ""), flags=re.IGNORECASE))
    raise ValueError(text)


def anything(text: str) -> Any:
    """Read a plain word whose type nobody knows: a number, true or false, or text.

    Example:
        >>> anything("012"), anything("1e-3"), anything("True"), anything("off"), anything("1:30")
        (12, 0.001, True, 'off', '1:30')
    """
    try:
        return number(text)
    except ValueError:
        return {"true": True, "false": False}.get(text.lower(), str(text))


def _read(text: Plain, parts: tuple[Any, ...]) -> Any:
    choices = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    if (chosen := _choice(text, choices)) is not None:
        return chosen
    if bool in parts:
        for meaning, words in _WORDS.items():
            if text.lower() in words:
                return meaning
    for kind in (int, float):
        if kind in parts and (found := _number(text)) is not None:
            whole = isinstance(found, int) or (kind is int and found.is_integer() and "e" in text)
            if kind is float:
                return float(found)
            if whole:
                return int(found)
    if Any in parts:
        return anything(text)
    if str not in parts and not {bool, int, float}.isdisjoint(parts):
        raise ValueError(text)
    return str(text)


def _choice(text: str, choices: list[Any]) -> Any:
    """Find the choice that is meant; what tools that rewrite YAML make of ``off`` is ``false``."""
    exact = [choice for choice in choices if str(choice) == text]
    for words in _WORDS.values():
        if text.lower() in words:
            exact += [choice for choice in choices if choice in words]
    return exact[0] if exact else None


def _number(text: str) -> int | float | None:
    try:
        return number(text)
    except ValueError:
        return None


def _of_place(kinds: tuple[Any, ...], place: int) -> Any:
    if not kinds:
        return Any
    return kinds[0] if Ellipsis in kinds or place >= len(kinds) else kinds[place]


def _plain_text(key: Any) -> Any:
    return str(key) if isinstance(key, str) else key
