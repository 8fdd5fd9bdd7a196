"""In which line of a YAML file a setting stands. Torch-free."""

from __future__ import annotations

import re

import yaml


def with_line(message: str, name: str, text: str) -> str:
    r"""Add to a message that quotes a key ``in`` a file the line of that key.

    Args:
        message: what is wrong; without a quoted key of the file it stays as it is.
        name: of the file, as the message has it.
        text: of the file.

    Example:
        >>> with_line("unknown 'kd.lm' in my.yaml: no", "my.yaml", "rounds: 3\nkd: {lm: 1}")
        "unknown 'kd.lm' in my.yaml, line 2: no"
    """
    place = re.search(rf"'([^']+)' in {re.escape(name)}", message)
    line = place and line_of(yaml.compose(text, Loader=yaml.SafeLoader), place[1])
    if not place or line is None:
        return message
    after = message[place.end() :]
    return f"{message[: place.end()]}, line {line}{',' if after.startswith(' ') else ''}{after}"


def line_of(node: yaml.Node | None, key: str) -> int | None:
    r"""Find the line, from 1, of a dotted key; None where it is not written in this file's keys.

    Sections may be nested or dotted.

    Example:
        >>> line_of(yaml.compose("seed: 1\nmodel:\n  dim: 8\nkd.lr: 1"), "model.dim")
        3
    """
    if not isinstance(node, yaml.MappingNode):
        return None
    for name, below in node.value:
        if name.value == key:
            return int(name.start_mark.line) + 1
        if key.startswith(f"{name.value}."):
            line = line_of(below, key.removeprefix(f"{name.value}."))
            if line is not None:
                return line
    return None
