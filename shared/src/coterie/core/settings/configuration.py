"""Settings of a run from configuration files, flags and the environment. Torch-free."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from coterie.core.errors import UserError, nearest
from coterie.core.registry.papers import (
    Paper,
    load,
    paper_file,
    preset_file,
    variant_file,
    variants,
)
from coterie.core.settings.lines import with_line
from coterie.core.settings.parser import Plain, SettingsParser, anything, leaves, settings_parser
from coterie.core.settings.schema import build, suggest


@dataclass(frozen=True)
class Source:
    """Settings that come from one place.

    Attributes:
        name: the place, as a message names it.
        values: by dotted key, checked; never changed, as others may hold them too.
    """

    name: str
    values: dict[str, Any]


def read_packed(file: Path, settings: type, paper: str) -> Source:
    """Read one of the files that come with coterie, as `read_config` does."""
    where = file.as_posix().rpartition("/configs/")[2]
    return _source(f"configs/{where}", read_text(file), settings, paper)


def read_config(file: str | Path, settings: type, paper: str) -> Source:
    """Read a configuration file and check it against the settings.

    Raises:
        UserError: the file is missing or no YAML, belongs to another paper, or has an unknown key
            or a value that does not fit.
    """
    return _source(str(file), read_text(Path(file)), settings, paper)


def read_yaml(name: str, text: str, plain: Callable[[str], Any] = anything) -> dict[str, Any]:
    """Read YAML that must be a mapping, from the file that messages call ``name``.

    Args:
        name: of the file.
        text: its content.
        plain: reads what has no quotes and is not null.

    Raises:
        UserError: it is no YAML, or no mapping.
    """
    try:
        tree = _loader(plain)(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not readable"
        raise UserError(f"{name}{where}: not valid YAML, {problem}") from None
    except RecursionError:
        raise UserError(f"{name}: nested too deeply, settings have two levels") from None
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{name}: not valid YAML, {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{name}: expected settings, as 'rounds: 10', not {_kind(tree)}")
    return tree


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        UserError: it is missing, or cannot be read as UTF-8.
    """
    try:
        return path.expanduser().read_text("utf-8")
    except FileNotFoundError:
        beside = [p.name for p in path.expanduser().parent.glob(f"*{path.suffix}")]
        hint = nearest(path.name, beside) if beside else "check the path"
        raise UserError(f"there is no file {path}: {hint}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def _loader(plain: Callable[[str], Any]) -> type[yaml.SafeLoader]:
    """Make a loader that leaves it to ``plain`` what a word without quotes is."""

    class Loader(_UniqueKeys):
        pass

    for kind in ("bool", "int", "float", "timestamp", "str"):
        tag = f"tag:yaml.org,2002:{kind}"
        usual = yaml.SafeLoader.yaml_constructors[tag]

        def construct(loader: Any, node: Any, usual: Any = usual) -> Any:
            untyped = node.style is None and not node.value.startswith("!")
            return plain(node.value) if untyped else usual(loader, node)

        Loader.add_constructor(tag, construct)
    return Loader


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML takes the last of two equal keys; here that is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for name, _ in node.value:
            if not isinstance(name, yaml.ScalarNode):
                continue
            if name.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"'{name.value}' is there twice", problem_mark=name.start_mark
                )
            seen.add(name.value)
        return super().construct_mapping(node, deep)


@lru_cache(maxsize=64)
def _source(name: str, text: str, settings: type, paper: str) -> Source:
    """A table of a hundred runs reads the same few files a hundred times."""
    tree = read_yaml(name, text, Plain)
    owner = tree.pop("paper", paper)
    if owner != paper:
        raise UserError(f"{name} is a configuration of {owner}, not of {paper}")
    parser = settings_parser(settings)
    try:
        return Source(name, parser.file(dict(flattened(name, tree, parser)), name))
    except UserError as error:
        raise UserError(with_line(str(error), name, text)) from None


def flattened(
    name: str, tree: Mapping[Any, Any], parser: SettingsParser, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a tree by dotted key.

    Args:
        name: what messages call the place that it is from.
        tree: sections as mappings, or dotted keys.
        parser: of the settings that are known.
        prefix: the section that the tree is, with a dot.

    Raises:
        UserError: a key is unknown, or a section is one value.
    """
    for word, value in tree.items():
        key = f"{prefix}{word}"
        if key in parser.leaves:
            yield key, value
        elif key not in parser.sections:
            meant = parser.sections if isinstance(value, Mapping) else parser.leaves
            raise UserError(f"unknown setting '{key}' in {name}: {suggest(key, meant)}")
        elif isinstance(value, Mapping):
            yield from flattened(name, value, parser, f"{key}.")
        else:
            below = ", ".join(k for k in parser.leaves if k.rpartition(".")[0] == key)
            raise UserError(f"'{key}' in {name} is a section, not one value: it has {below}")


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"'{value}'"


# What W&B's own variables of the environment ask for. Torch-free.

_MODES = {
    "online": "online",
    "run": "online",  # W&B's older word
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",  # the same
    "disabled": "off",
}
_TRUE = ("true", "1", "yes", "on", "t", "y")


def wandb_mode(environment: Mapping[str, str]) -> list[Source]:
    """Read ``WANDB_MODE``, or ``WANDB_DISABLED``, as a source of settings; none if neither is set.

    Raises:
        UserError: the mode is none of W&B's.

    Example:
        >>> wandb_mode({"WANDB_MODE": "disabled"})[0].values, wandb_mode({})
        ({'logger.wandb': 'off'}, [])
    """
    if environment.get("WANDB_DISABLED", "").strip().lower() in _TRUE:
        return [Source("WANDB_DISABLED", {"logger.wandb": "off"})]
    word = environment.get("WANDB_MODE", "").strip().lower()
    if not word:
        return []
    if word not in _MODES:
        hint = nearest(word, _MODES)
        raise UserError(f"WANDB_MODE in the environment is '{word}': {hint}, or unset it")
    return [Source("WANDB_MODE", {"logger.wandb": _MODES[word]})]


# Settings of a run from configuration files and flags. Torch-free.
#
# Later sources win: the paper's own file, its tuned variants, a preset, what the environment says
# of W&B, the files given by ``--config`` from left to right, and last the flags.
#
# Two variants are more than one file: ``best`` is no reading of a paper, but what was found to do
# better, and ``tuned`` gives the methods that a paper is compared with their chance. Their files,
# ``best.yaml`` and those that fit as ``best-ml-100k.yaml`` does, lie over the tuned ones of the
# data.

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
