"""Configuration files: where the packed ones are, and how any is read. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from coterie.core.errors import UserError, nearest
from coterie.core.registry.papers import Paper
from coterie.core.settings.schema import leaves, sections, suggest


@dataclass(frozen=True)
class Source:
    """Settings that come from one place.

    Attributes:
        name: the place, as a message names it.
        values: by dotted key, as written.
    """

    name: str
    values: dict[str, Any]


def presets() -> list[str]:
    """List the presets, which shorten or lengthen a run of any paper."""
    return _names(files("coterie.core").joinpath("configs", "presets"))


def variants(paper: Paper) -> list[str]:
    """List the tuned configurations of a paper."""
    return _names(_packed(paper).joinpath(paper.name))


def preset_file(name: str) -> Traversable:
    """Find a preset.

    Raises:
        UserError: there is no such preset.
    """
    if name not in presets():
        raise UserError(f"preset '{name}' is unknown: {nearest(name, presets())}")
    return files("coterie.core").joinpath("configs", "presets", f"{name}.yaml")


def variant_file(paper: Paper, name: str) -> Traversable:
    """Find a tuned configuration of a paper.

    Raises:
        UserError: there is no such variant.
    """
    known = variants(paper)
    if name not in known:
        hint = nearest(name, known) if known else "it has none"
        raise UserError(f"variant '{name}' of {paper.name} is unknown: {hint}")
    return _packed(paper).joinpath(paper.name, f"{name}.yaml")


def paper_file(paper: Paper) -> Traversable | None:
    """Find the paper's general configuration, if it has one."""
    found = _packed(paper).joinpath(f"{paper.name}.yaml")
    return found if found.is_file() else None


def sweep_file(paper: Paper) -> Traversable:
    """Find the paper's sweep.

    Raises:
        UserError: the paper has none.
    """
    found = _packed(paper).joinpath("sweeps", f"{paper.name}.yaml")
    if not found.is_file():
        raise UserError(f"{paper.name} has no sweep: write one and give it by --file SWEEP.yaml")
    return found


def read_packed(file: Traversable, settings: type, paper: str) -> Source:
    """Read one of the files that come with coterie, as `read_config` does."""
    where = str(file).replace(os.sep, "/").rpartition("/configs/")[2]
    return _source(f"configs/{where}", file.read_text("utf-8"), settings, paper)


def read_config(file: str | Path, settings: type, paper: str) -> Source:
    """Read a configuration file and check its keys against the settings.

    Raises:
        UserError: the file is missing or no YAML, belongs to another paper, or has an unknown key.
    """
    return _source(str(file), read_text(Path(file)), settings, paper)


def read_yaml(name: str, text: str) -> dict[str, Any]:
    """Read YAML that must be a mapping.

    Args:
        name: of the file, for messages.
        text: its content.

    Raises:
        UserError: it is no YAML, or no mapping.
    """
    try:
        tree = yaml.load(text, _UniqueKeys)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not readable"
        raise UserError(f"{name}{where}: not valid YAML, {problem}") from None
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


def _source(name: str, text: str, settings: type, paper: str) -> Source:
    tree = read_yaml(name, text)
    owner = tree.pop("paper", paper)
    if owner != paper:
        raise UserError(f"{name} is a configuration of {owner}, not of {paper}")
    known, groups = leaves(settings), sections(settings)
    return Source(name, dict(_flatten(name, tree, "", known, groups)))


def _flatten(
    name: str,
    tree: Mapping[str, Any],
    prefix: str,
    known: Mapping[str, Any],
    groups: dict[str, str],
) -> Iterator[tuple[str, Any]]:
    for word, value in tree.items():
        key = f"{prefix}{word}"
        if key in known:
            yield key, value
        elif key not in groups:
            meant = groups if isinstance(value, Mapping) else known
            raise UserError(f"unknown setting '{key}' in {name}: {suggest(key, meant)}")
        elif isinstance(value, Mapping):
            yield from _flatten(name, value, f"{key}.", known, groups)
        elif value is not None:
            below = ", ".join(k for k in known if k.rpartition(".")[0] == key)
            raise UserError(f"'{key}' in {name} is a section, not one value: it has {below}")


def _packed(paper: Paper) -> Traversable:
    return files(f"coterie.{paper.package}").joinpath("configs")


def _names(folder: Traversable) -> list[str]:
    if not folder.is_dir():
        return []
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"'{value}'"
