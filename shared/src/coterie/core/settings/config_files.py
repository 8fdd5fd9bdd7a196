"""Reading configuration files. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from coterie.core.errors import UserError, nearest
from coterie.core.settings.parser import SettingsParser, settings_parser
from coterie.core.settings.scalars import Plain, anything
from coterie.core.settings.schema import suggest


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
    return Source(name, parser.file(dict(flattened(name, tree, parser)), name))


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
