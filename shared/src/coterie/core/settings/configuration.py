"""Settings of a run from configuration files and flags. Torch-free.

Later sources win: the paper's own file, its tuned variants, a preset, what the environment says of
W&B, the files given by ``--config`` from left to right, and last the flags.

Two variants are more than one file: ``best`` is no reading of a paper, but what was found to do
better, and ``tuned`` gives the methods that a paper is compared with their chance. Their files,
``best.yaml`` and those that fit as ``best-ml-100k.yaml`` does, lie over the tuned ones of the data.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from coterie.core.errors import UserError
from coterie.core.registry.papers import Paper, load
from coterie.core.settings.config_files import Source, read_config, read_packed
from coterie.core.settings.environment import wandb_mode
from coterie.core.settings.packed import paper_file, preset_file, variant_file, variants
from coterie.core.settings.parser import leaves, settings_parser
from coterie.core.settings.schema import build

LAYERS = ("best", "tuned")
"""Variants that lie over what was tuned for the data; another one takes its place."""


@dataclass(frozen=True)
class Given:
    """What a command line gives: its words, names of files, and settings by dotted key.

    The variant may be "none", for no variant at all, or one of `LAYERS`.
    """

    argv: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    preset: str | None = None
    variant: str | None = None
    print_config: bool = False
    flags: Mapping[str, Any] = field(default_factory=dict)


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


def configure(paper: Paper, argv: Sequence[str], base: Source | None = None) -> Configuration:
    """Read the settings of a paper's run.

    Args:
        paper: whose settings.
        argv: the command line after the name of the paper.
        base: takes the place of the paper's own file and variants, for a run that is resumed.

    Raises:
        UserError: for anything that does not fit, in one line.
    """
    return arranged(paper, split(load(paper.settings), argv), base)


def arranged(paper: Paper, given: Given, base: Source | None = None) -> Configuration:
    """Lay the sources of a run's settings over each other, as a command line or a call names them.

    Args:
        paper: whose settings.
        given: what the caller gives; its flags win.
        base: as for `configure`.

    Raises:
        UserError: as `configure`.
    """
    settings = load(paper.settings)
    above = [read_config(file, settings, paper.name) for file in given.configs]
    said = {key for source in above for key in source.values} | set(given.flags)
    if "logger.wandb" in leaves(settings) and "logger.wandb" not in said:
        above = [*wandb_mode(os.environ), *above]
    if given.preset is not None:
        above.insert(0, read_packed(preset_file(given.preset), settings, paper.name))
    if base is not None:
        below, tuned = [base], []
    else:
        general = paper_file(paper)
        below = [read_packed(general, settings, paper.name)] if general else []

        def read(name: str) -> Source:
            return read_packed(variant_file(paper, name), settings, paper.name)

        known = variants(paper)
        layer = [read(name) for name in LAYERS if name == given.variant and name in known]
        tuned = _tuned(paper, given, _merged([*below, *layer, *above], given), settings)
        below += [read(name) for name in tuned]
    sources = [*below, *above]
    names = tuple(source.name for source in sources)
    return Configuration(build(settings, _merged(sources, given)), names, tuple(tuned), given)


def split(settings: type, argv: Sequence[str]) -> Given:
    """Read the words of a command line: settings, and where more of them come from.

    Raises:
        UserError: a flag is unknown, lacks its value, or has one that does not fit.
    """
    flags, own = settings_parser(settings).flags(argv)
    configs = tuple(own.get("config") or ())
    shown = bool(own.get("print_config"))
    return Given(tuple(argv), configs, own.get("preset"), own.get("variant"), shown, flags)


def to_yaml(settings: Any, paper: str) -> str:
    """Write settings as a configuration file that `configure` reads back."""
    tree = {"paper": paper, **asdict(settings)}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=None)


def print_help(paper: Paper, command: str) -> None:
    """Print all settings of a paper with their docstrings, no line wider than there is room."""
    parser = settings_parser(load(paper.settings))
    own = f"coterie {command} {paper.name} [--config FILE] [--preset NAME] [--json]"
    short = "[--data NAME] [--data_root DIR] [--out DIR] [--resume] [--KEY VALUE ...]"
    parser.usage = f"{own}\n       {short}"
    most = shutil.get_terminal_size((80, 24)).columns
    for line in parser.format_help().splitlines():
        sys.stdout.write("\n".join(_folded(line, most)) + "\n")


def _folded(line: str, most: int) -> list[str]:
    """Fold a line of help between words, and a list of values after a comma.

    Example:
        >>> _folded("  --method {fedavg,fedprox,ditto}", 20)
        ['  --method {fedavg,', '      fedprox,ditto}']
    """
    found: list[str] = []
    indent = " " * (6 if line.startswith(" ") else 0)
    while len(line) > most:
        place = max(line.rfind(mark, len(indent) + 1, most + (mark == " ")) for mark in " ,")
        if place < 0:  # one word
            break
        found.append(line[: place + 1].rstrip())
        line = indent + line[place + 1 :].lstrip()
    return [*found, line]


def _merged(sources: Sequence[Source], given: Given) -> dict[str, Any]:
    """Lay the values of all sources over each other; flags win."""
    merged: dict[str, Any] = {}
    for source in sources:
        merged |= source.values
    return merged | dict(given.flags)


def _tuned(paper: Paper, given: Given, values: dict[str, Any], settings: type) -> list[str]:
    """Name the tuned configurations: what the user names, or all that fit, the special one last."""
    layer = given.variant
    if layer is not None and layer not in LAYERS:
        return [] if layer == "none" else [layer]
    known = leaves(settings)
    chosen = [str(values.get(key, known[key].default)) for key in paper.variant_keys]
    fitting = list(dict.fromkeys([*chosen, "-".join(chosen)]))
    over = [] if layer is None else _layer(paper, layer, fitting)
    return [*(name for name in fitting if name in variants(paper)), *over]


def _layer(paper: Paper, layer: str, fitting: Sequence[str]) -> list[str]:
    """Name a layer's own file and those of it that fit, the special one last."""
    known = variants(paper)
    found = [name for name in (layer, *(f"{layer}-{name}" for name in fitting)) if name in known]
    others = [name for name in known if name.startswith(f"{layer}-")]
    if others and not found:
        raise UserError(
            f"variant '{layer}' of {paper.name} has nothing for {fitting[0]}, only "
            f"{', '.join(others)}: leave out --variant {layer}"
        )
    return found or [layer]  # which is refused as unknown
