"""Settings of a run from configuration files and flags. Torch-free.

Later sources win: the paper's own file, its tuned variants, a preset, the files given by
``--config`` from left to right, and last the flags.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml

from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, load
from coterie.core.settings.config_files import (
    Source,
    paper_file,
    preset_file,
    read_config,
    read_packed,
    variant_file,
    variants,
)
from coterie.core.settings.schema import Leaf, build, leaves, suggest, to_tree
from coterie.core.settings.typed_values import TypedValues, settings_parser, short_forms

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Given:
    """What a command line gives, not yet typed.

    Attributes:
        configs: files, in order.
        preset: its name.
        variant: its name; "none" for no variant at all.
        print_config: whether only to print.
        flags: text by dotted key.
    """

    configs: tuple[str, ...] = ()
    preset: str | None = None
    variant: str | None = None
    print_config: bool = False
    flags: dict[str, str] = field(default_factory=dict)

    def argv(self) -> list[str]:
        """Write the settings as a command line again.

        Example:
            >>> Given(preset="smoke", flags={"seed": "1"}).argv()
            ['--preset', 'smoke', '--seed=1']
        """
        words = [word for file in self.configs for word in ("--config", file)]
        if self.preset:
            words += ["--preset", self.preset]
        if self.variant:
            words += ["--variant", self.variant]
        return words + [f"--{key}={text}" for key, text in self.flags.items()]


@dataclass(frozen=True)
class Configuration:
    """The settings of a run and where they come from.

    Attributes:
        settings: of the paper's own class.
        sources: names of the files that took part, the later ones win.
        variants: the tuned configurations in use, the later ones win.
        given: the command line.
    """

    settings: Any
    sources: tuple[str, ...]
    variants: tuple[str, ...]
    given: Given


def parse(settings: type[Settings], argv: Sequence[str], paper: str = "") -> Settings:
    """Read settings from ``--config`` files and flags, starting from the defaults.

    Raises:
        UserError: for anything that does not fit, in one line.

    Example:
        >>> from coterie.core.settings.sections import EngineSettings
        >>> parse(EngineSettings, ["--chunk", "64"]).chunk
        64
        >>> parse(EngineSettings, ["--chnk", "64"])
        Traceback (most recent call last):
        ...
        coterie.core.errors.UserError: unknown setting '--chnk': did you mean '--chunk'?
    """
    given = split(settings, argv)
    typed = TypedValues(settings)
    sources = [read_config(file, settings, paper) for file in given.configs]
    return build_settings(settings, merge(typed, sources, given))


def configure(paper: Paper, argv: Sequence[str], base: Source | None = None) -> Configuration:
    """Read the settings of a paper's run.

    Args:
        paper: whose settings.
        argv: the command line after the name of the paper.
        base: takes the place of the paper's own file and variants, for a run that is resumed.

    Raises:
        UserError: for anything that does not fit, in one line.
    """
    settings = load(paper.settings)
    given = split(settings, argv)
    typed = TypedValues(settings)
    above = [read_config(file, settings, paper.name) for file in given.configs]
    if given.preset:
        above.insert(0, read_packed(preset_file(given.preset), settings, paper.name))
    if base is not None:
        below, tuned = [base], []
    else:
        general = paper_file(paper)
        below = [read_packed(general, settings, paper.name)] if general else []
        tuned = _tuned(paper, given, merge(typed, [*below, *above], given), settings)
        below += [read_packed(variant_file(paper, name), settings, paper.name) for name in tuned]
    sources = [*below, *above]
    return Configuration(
        build_settings(settings, merge(typed, sources, given)),
        tuple(source.name for source in sources),
        tuple(tuned),
        given,
    )


def split(settings: type, argv: Sequence[str]) -> Given:
    """Split a command line into files, flags and the rest.

    Raises:
        UserError: a flag is unknown or lacks its value.
    """
    known = leaves(settings)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--preset")
    parser.add_argument("--variant")
    parser.add_argument("--print_config", action="store_true")
    own = {"config", "preset", "variant", "print_config"}
    short = {key: name for name, key in short_forms(settings).items()}
    for key, leaf in known.items():
        names = [f"--{key}", *([f"--{short[key]}"] if key in short else [])]
        extra: dict[str, Any] = {"nargs": "?", "const": "true"} if leaf.is_flag else {}
        parser.add_argument(*names, dest=key, default=argparse.SUPPRESS, **extra)
    try:
        found, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise _lacking(error, known) from None
    if rest:
        raise _unknown(rest[0], [*known, *sorted(own), *short.values()])
    flags = {key: text for key, text in vars(found).items() if key not in own}
    return Given(tuple(found.config), found.preset, found.variant, found.print_config, flags)


def merge(typed: TypedValues, sources: Sequence[Source], given: Given) -> dict[str, Any]:
    """Check the values of all sources and lay them over each other; flags win."""
    merged: dict[str, Any] = {}
    for source in sources:
        merged |= typed.from_file(source.values, source.name)
    return merged | typed.from_flags(given.flags)


def build_settings(settings: type[Settings], values: dict[str, Any]) -> Settings:
    """Make the settings; what their own checks refuse is the user's mistake.

    Raises:
        UserError: a value is out of range.
    """
    try:
        return build(settings, values)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from None


def to_yaml(settings: Any, paper: str) -> str:
    """Write settings as a configuration file that `configure` reads back."""
    tree = {"paper": paper, **to_tree(settings)}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=None)


def print_help(paper: Paper, command: str) -> None:
    """Print all settings of a paper with their docstrings."""
    usage = f"coterie {command} {paper.name} [--config FILE] [--preset NAME] [--KEY VALUE ...]"
    settings_parser(load(paper.settings), usage).print_help(sys.stdout)


def _tuned(paper: Paper, given: Given, values: dict[str, Any], settings: type) -> list[str]:
    """Name the tuned configurations: what the user names, or all that fit, the special one last."""
    if given.variant:
        return [] if given.variant == "none" else [given.variant]
    known = leaves(settings)
    chosen = [str(values.get(key, known[key].default)) for key in paper.variant_keys]
    fitting = dict.fromkeys([*chosen, "-".join(chosen)])
    return [name for name in fitting if name in variants(paper)]


def _lacking(error: argparse.ArgumentError, known: Mapping[str, Leaf]) -> UserError:
    flag = (error.argument_name or "").split("/")[0]
    leaf = known.get(flag.removeprefix("--"))
    expected = leaf.expected if leaf else "a value"
    return UserError(f"{flag}: expected {expected} after it")


def _unknown(word: str, known: Sequence[str]) -> UserError:
    if not word.startswith("--"):
        return UserError(f"unexpected '{word}': settings are given as --key value")
    key = word[2:].partition("=")[0]
    hint = suggest(key, known).replace("mean '", "mean '--")
    return UserError(f"unknown setting '--{key}': {hint}")
