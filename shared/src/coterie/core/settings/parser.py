"""One parser for the settings of a paper; plain words are read as each is meant. Torch-free.

YAML 1.1, which PyYAML reads, takes ``off`` for false, ``012`` for 10, ``1:30`` for 90, ``1e-3`` for
text and ``2024-01-01`` for a date. What is meant is known here: every setting has a type.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings

from coterie.core.errors import UserError, nearest
from coterie.core.settings.schema import Leaf, alternatives, hints, suggest

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


# One parser for the settings of a paper, from flags and files. Torch-free.

SHORT_FORMS = {
    "data.name": "--data",
    "data.root": "--data_root",
    "run.out": "--out",
    "run.resume": "--resume",
}
_ABOUT_SETTINGS = {
    "config": ("FILE", "Read settings from a YAML file; may be repeated, the last one wins."),
    "preset": ("NAME", "Use a preset, as smoke for a run of seconds."),
    "variant": (
        "NAME",
        "Use a tuned configuration, 'none', 'best', which does better than the paper, or 'tuned', "
        "where the methods beside it are tuned; default fits the data set.",
    ),
}
_SHOWN = 200  # characters of a wrong value that a message repeats
set_parsing_settings(
    docstring_parse_attribute_docstrings=True,
    subclasses_disabled=[dataclasses.is_dataclass],  # a section is its class, whatever it inherits
)


class SettingsParser(ArgumentParser):
    """jsonargparse's parser of a settings class, whose mistakes are one line.

    Types, defaults and help are those of the class and its attribute docstrings; beside them it
    knows short forms, bare true flags, pairs as ``user=u,item=i``, and where settings come from.
    """

    def __init__(self, settings: type) -> None:
        super().__init__(prog="coterie", exit_on_error=False, add_help=False, print_config=None)
        self.add_argument("--help", action="store_true", help="Show this help.")
        for name, (metavar, text) in _ABOUT_SETTINGS.items():
            kind = "append" if name == "config" else "store"
            self.add_argument(f"--{name}", metavar=metavar, action=kind, help=text)
        text = "Print the resulting settings and end."
        self.add_argument("--print_config", action="store_true", help=text)
        self._own = {action.dest for action in self._actions}
        self.add_class_arguments(settings)
        self.leaves: dict[str, Leaf] = {}
        self._typed = ("", "")  # flag and text that argparse reads just now
        known = hints(settings)
        for action in [action for action in self._actions if action.dest not in self._own]:
            if action.dest in known:
                self._add_leaf(action, known[action.dest])
            else:  # a whole section as one flag, which jsonargparse adds
                action.help = argparse.SUPPRESS
                del self._option_string_actions[f"--{action.dest}"]

    @property
    def sections(self) -> set[str]:
        """Dotted keys of all sections."""
        above = (key.split(".")[:-1] for key in self.leaves)
        return {".".join(parts[: i + 1]) for parts in above for i in range(len(parts))}

    def flags(self, argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a command line.

        Returns:
            settings by dotted key, and the values of ``--config`` and its like by name.

        Raises:
            UserError: a flag is unknown, lacks its value, or has one of the wrong type.
        """
        try:
            found = dict(self.parse_args(list(argv), defaults=False).items())
        except ArgumentError as error:
            raise self._wrong_flag(str(error), argv) from None
        except (RecursionError, ValueError):
            raise self._wrong_value() from None
        for key, value in found.items():
            if not _finite(value):
                raise _wrong(self.leaves[key], value, f"--{key}")
        return {k: v for k, v in found.items() if k in self.leaves}, {
            k: v for k, v in found.items() if k in self._own
        }

    def file(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Check values as they stand in the file ``name``, by dotted key.

        Raises:
            UserError: a value has the wrong type; the key, the file and what is expected are named.
        """
        read: dict[str, Any] = {}
        for key, written in values.items():
            leaf, where = self.leaves[key], f"'{key}' in {name}"
            try:
                value = read[key] = as_meant(written, leaf.hint)
            except ValueError:
                raise _wrong(leaf, written, where) from None
            null = value is None and type(None) not in alternatives(leaf.hint)
            if null or not _finite(value):  # jsonargparse takes null as not given
                raise _wrong(leaf, value, where)
        try:
            return dict(self.parse_object(read, defaults=False).items())
        except ArgumentError as error:
            key = _key(str(error))
            raise _wrong(self.leaves[key], read[key], f"'{key}' in {name}") from None

    def _add_leaf(self, action: argparse.Action, hint: Any) -> None:
        key = action.dest
        text = " ".join((action.help or "").split())
        leaf = self.leaves[key] = Leaf(key, hint, action.default, text)
        short = SHORT_FORMS.get(key)
        if short is not None and short not in self._option_string_actions:
            # Of argparse alone: jsonargparse would take --data for the section of --data.columns.
            self._option_string_actions[short] = action
            action.help = f"{text} Short form: {short}."
        if leaf.is_flag:
            action.nargs, action.const = "?", True

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Read one text, which argparse asks for; keep it for the message, and read pairs."""
        self._typed = (action.dest, arg_string)
        leaf = self.leaves.get(action.dest)
        plain = arg_string.lstrip().startswith("{") or arg_string == "null"
        if leaf is not None and leaf.is_mapping and not plain:
            pairs = [pair.split("=", 1) for pair in arg_string.split(",")]
            if any(len(pair) != 2 or not all(pair) for pair in pairs):
                raise _wrong(leaf, arg_string, f"--{leaf.key}")
            return json.dumps(dict(pairs))
        return super()._get_value(action, self._meant(leaf, arg_string))

    def _meant(self, leaf: Leaf | None, text: str) -> str:
        """Write a number, a word or true and false as jsonargparse, which reads YAML, takes it."""
        if leaf is None or text == "null" or text.lstrip()[:1] in ("[", "{"):
            return text
        try:
            value = as_meant(Plain(text), leaf.hint)
        except ValueError:
            raise _wrong(leaf, text, f"--{leaf.key}") from None
        return text if value == text or not _finite(value) else _as_flag(value)

    def _wrong_flag(self, message: str, argv: Sequence[str]) -> UserError:
        """Say what jsonargparse says, in one line that names the flag and the remedy."""
        unknown = re.match("unrecognized arguments: (.*)", message, re.DOTALL)
        if unknown:
            word = next((word for word in argv if unknown[1].startswith(word)), unknown[1])
            if not word.startswith("--"):
                return UserError(f"unexpected '{word}': settings are given as --key value")
            key = word[2:].partition("=")[0]
            names = [name[2:] for name in self._option_string_actions if name != "--help"]
            hint = suggest(key, names).replace("mean '", "mean '--")
            return UserError(f"unknown setting '--{key}': {hint}")
        lacking = re.match("argument (--[^:/]+).*: expected", message)
        if lacking:
            leaf = self.leaves.get(lacking[1][2:])
            return UserError(
                f"{lacking[1]}: expected {leaf.expected if leaf else 'a value'} after it"
            )
        return self._wrong_value()

    def _wrong_value(self) -> UserError:
        key, text = self._typed
        return _wrong(self.leaves[key], text, f"--{key}")


@functools.cache
def settings_parser(settings: type) -> SettingsParser:
    """Make the parser of a settings class, once."""
    return SettingsParser(settings)


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
    return settings_parser(settings).leaves


def _as_flag(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _key(message: str) -> str:
    found = re.match('Parser key "([^"]+)"', message)
    return found[1] if found else message


def _finite(value: Any) -> bool:
    numbers = value if isinstance(value, list | tuple) else (value,)
    return all(math.isfinite(number) for number in numbers if isinstance(number, float))


def _wrong(leaf: Leaf, value: Any, where: str) -> UserError:
    hint = ""
    if leaf.choices and str(value) not in leaf.choices:
        close = nearest(str(value), leaf.choices)
        hint = f"; {close}" if close.startswith("did") else ""
    shown = "null" if value is None else f"'{value}'"
    if len(shown) > _SHOWN:
        shown = f"a text of {len(shown) - 2} characters"
    return UserError(f"{where}: expected {leaf.expected}, not {shown}{hint}")
