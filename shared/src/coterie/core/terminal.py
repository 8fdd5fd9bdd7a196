"""What is printed for people: data, never markup; tables as wide as there is room. Torch-free."""

from __future__ import annotations

import logging
import re
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


_silent: ContextVar[bool] = ContextVar("silent", default=False)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def console(**options: Any) -> Console:
    """Make a console of rich that prints what it is given as it stands.

    By itself rich takes ``[/old]`` in a path for a mistake in its markup, leaves ``[old]`` out, and
    draws a picture for ``:heart:``.

    Args:
        options: of rich's ``Console``.
    """
    from rich.console import Console  # nothing that `coterie --help` needs

    plain = {"markup": False, "emoji": False, "highlight": False, "quiet": _silent.get()}
    return Console(**plain | options)


@contextmanager
def silenced(active: bool = True) -> Iterator[None]:
    """Let the consoles of this thread print nothing meanwhile; other threads print as ever.

    Args:
        active: whether to; false changes nothing.

    Example:
        >>> with silenced():
        ...     console().print("nobody hears this")
        >>> console().print("this one is heard")
        this one is heard
    """
    token = _silent.set(active or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


def one_line(text: str) -> str:
    r"""Escape what would move the cursor: a path may hold a newline, a title an escape.

    Example:
        >>> print(one_line("runs/a\nb[/c]"))
        runs/a\nb[/c]
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


# Tables and facts for people, as wide as there is room for; no word is cut. Torch-free.
#
# A table that is too wide has fewer columns, not narrower ones: the least important go, and a line
# says which. What is left has the width of its content; only prose is folded, between words. The
# one thing that may be wider than the room is a single word that is, such as a path: it has a line
# of its own.

UNKNOWN = 80  # columns where nobody tells how many there are, as in a pipe
_PROSE = 28  # columns that a text gets at least, before it is folded further
_GAP = "  "


def width() -> int:
    """Give the columns there are: what COLUMNS says, else the terminal, else `UNKNOWN`."""
    return shutil.get_terminal_size((UNKNOWN, 24)).columns


def folded(text: str, room: int, head: str = "") -> list[str]:
    r"""Fold a text behind a head between words.

    Args:
        text: one line; what moves the cursor is escaped.
        room: columns of a line.
        head: what stands before the first line; the others are indented by as much.

    Example:
        >>> print("\n".join(folded("a path /of/its/own ends", 12, "  on ")))
          on a path
         /of/its/own
             ends
    """
    text, head = one_line(text), one_line(head)
    if _columns(head) > room // 2:  # the text would have no room behind it
        text, head = f"{head.strip()} {text}", head[: len(head) - len(head.lstrip())]
    indent = _columns(head)
    lines, line = [], ""
    for gap, word in re.findall(r"( *)([^ ]+)", text.strip()):
        if line and indent + _columns(line + gap + word) <= room:
            line += gap + word
            continue
        lines += [line] * bool(line)
        line = word
    lines += [line] * (bool(line) or not lines)
    starts = [head, *[" " * indent] * (len(lines) - 1)]
    return [part for pair in zip(starts, lines, strict=True) for part in _fitting(*pair, room)]


def table(
    rows: Sequence[Mapping[str, str]],
    room: int,
    right: Collection[str] = (),
    first: Sequence[str] = (),
    more: str = "where the terminal is wider",
) -> list[str]:
    """Lay out rows as a table: names, a rule, and the rows.

    Args:
        rows: texts by column; a column matters more than those behind it.
        room: columns of a line.
        right: columns of numbers, which stand to the right.
        first: columns that matter most, beside the one that stands first.
        more: where the columns are to be seen that had no room.

    Returns:
        The lines; the last ones name the columns that were left out. Where not even two columns
        have room, the rows follow each other, a line for each of their facts.

    Example:
        >>> row = {"name": "ml-100k", "users": "943", "about": "films"}
        >>> for line in table([row], 16, right={"users"}, more="by --json"): print(line)
        name     users
        -------  -----
        ml-100k    943
        Left out at 16
        columns: about.
        Shown by --json.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        return []
    cells = {name: [one_line(row.get(name, "-")) for row in rows] for name in columns}
    least = {name: _least(name, cells[name], name in right) for name in columns}
    ranks = list(dict.fromkeys((columns[0], *(n for n in first if n in least), *columns)))
    while len(ranks) > 1 and _wide(least[name] for name in ranks) > room:
        ranks.pop()
    shown = [name for name in columns if name in ranks]
    alone = len(shown) == 1 and len(columns) > 1
    if alone or _wide(least[name] for name in shown) > room:
        return [line for row in rows for line in [*facts("", row, room), ""]][:-1]
    widths, spare = {}, room - _wide(least[name] for name in shown)
    for name in shown:
        wanted = max(map(_columns, (one_line(name), *cells[name])))
        widths[name] = min(wanted, least[name] + spare)
        spare -= widths[name] - least[name]
    lines = _row({name: one_line(name) for name in shown}, widths, right)
    lines += _row({name: "-" * widths[name] for name in shown}, widths, right)
    for number in range(len(rows)):
        lines += _row({name: cells[name][number] for name in shown}, widths, right)
    if left := [name for name in columns if name not in shown]:
        lines += folded(f"Left out at {room} columns: {', '.join(left)}. Shown {more}.", room)
    return lines


def facts(title: str, values: Mapping[str, str], room: int) -> list[str]:
    r"""Lay out one thing: its title, and below it a line for each fact, longer ones folded.

    Args:
        title: what the facts are of; none for ``""``.
        values: texts by the names of the facts.
        room: columns of a line.

    Example:
        >>> print("\n".join(facts("ml-100k", {"users": "943", "here": "yes"}, 80)))
        ml-100k
          users  943
          here   yes
    """
    names = {name: one_line(name) for name in values}
    longest = max(map(_columns, names.values()), default=0)
    lines = folded(title, room) if title else []
    for name, value in values.items():
        blanks = " " * (longest - _columns(names[name]))
        lines += folded(value, room, f"  {names[name]}{blanks}{_GAP}")
    return lines


def _fitting(start: str, line: str, room: int) -> list[str]:
    """Move a word that is too long behind its start into a line of its own."""
    over = _columns(start + line) - room
    if over <= 0 or not start:
        return [start + line]
    if start.strip():
        return [start.rstrip(), *_fitting(" " * _columns(start), line, room)]
    return [start[: max(len(start) - over, 0)] + line]


def _least(name: str, cells: Sequence[str], numbers: bool) -> int:
    """Count the columns that a column needs: for its numbers whole, or for every word of prose."""
    heading = max(map(_columns, one_line(name).split(" ")))
    whole = max(map(_columns, cells), default=0)
    if numbers or whole <= _PROSE:
        return max(heading, whole)
    words = max(_columns(word) for text in cells for word in text.split(" "))
    return max(heading, words + _most_indented(cells), _PROSE)


def _most_indented(cells: Iterable[str]) -> int:
    return max(len(text) - len(text.lstrip(" ")) for text in cells)


def _wide(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + len(_GAP) * (len(found) - 1)


def _row(texts: Mapping[str, str], widths: Mapping[str, int], right: Collection[str]) -> list[str]:
    """Lay out one row; it has as many lines as its highest cell."""
    cells = [_cell(text, widths[name], name in right) for name, text in texts.items()]
    blank = [" " * width for width in widths.values()]
    height = max(map(len, cells))
    lines = (
        [cell[at] if at < len(cell) else none for cell, none in zip(cells, blank, strict=True)]
        for at in range(height)
    )
    return [_GAP.join(line).rstrip() for line in lines]


def _cell(text: str, width: int, right: bool) -> list[str]:
    indent = text[: len(text) - len(text.lstrip(" "))]
    lines = folded(text, width, indent)
    blanks = [" " * (width - _columns(line)) for line in lines]
    return [
        blank + line if right else line + blank for line, blank in zip(lines, blanks, strict=True)
    ]


def _columns(text: str) -> int:
    """Columns that a text takes on a terminal."""
    from rich.cells import cell_len  # nothing that `coterie --help` needs

    return cell_len(text)


# Lightning without its notes on the terminal.


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Lightning's advice about hardware, workers and its other products out of the output."""
    said = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in said]
    for logger in said:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        for logger, level in zip(said, levels, strict=True):
            logger.setLevel(level)
