"""Strict double quotes in CSV text: what Arrow, pandas and the csv module would let pass.

A field that begins with a quote ends with one; within it a quote is written twice. After the
closing one comes a separator or a line end. Otherwise the rows up to the next quote would vanish
into the field. A quote inside a field that does not begin with one is a character like others.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from coterie.core.data.sources.text_files import Layout, for_parser, located

_CHUNK = 4 << 20  # bytes that are looked at together
_LONGEST = 64 << 20  # bytes of a quoted field
_BOM = b"\xef\xbb\xbf"
_QUOTED = re.compile(rb'"[^"]*+(?:""[^"]*+)*+"')
_QUOTE, _ENDS = ord('"'), b"\r\n"


def check_quotes(path: Path, layout: Layout) -> None:
    """Read a file that `check_text` accepted once more, to see whether all quotes are strict.

    Raises:
        UserError: naming the line where the quote that is at fault opens.
    """
    whole = _rows_of(layout.mark)
    rest, line, last = b"", 1, False
    with for_parser(path, layout) as stream:
        while not last:
            part = stream.read(_CHUNK)
            last = not part
            text = (rest + part).removeprefix(_BOM) if line == 1 else rest + part
            end = len(text) if last else text.rfind(b"\n") + 1
            if last or not _is_strict(text[:end], layout.mark):
                match = whole.match(text, 0, end)
                end = match.end() if match else 0
                if fault := _fault(text, end, line, layout, last or len(text) > _LONGEST):
                    raise located(path, *fault, layout.remedy)
            line, rest = line + _lines(text[:end]), text[end:]


def _is_strict(text: bytes, mark: str) -> bool:
    """Tell quickly whether whole rows begin and end here and all quotes are strict.

    The first quote opens, the second closes, and so on: a doubled one closes and opens again.
    """
    if b'"' not in text:
        return True
    data = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(data == _QUOTE)
    if len(places) % 2:
        return False
    bounds = np.zeros(256, bool)
    bounds[[ord(mark), *_ENDS]] = True
    opens, closes = places[::2], places[1::2]
    before = np.where(opens > 0, data[opens - 1], _ENDS[0])
    after = np.where(closes + 1 < len(data), data[np.minimum(closes + 1, len(data) - 1)], _ENDS[0])
    again = np.append(False, closes[:-1] + 1 == opens[1:])
    open_again = np.append(again[1:], False)
    return bool((bounds[before] | again).all() and (bounds[after] | open_again).all())


def _rows_of(mark: str) -> re.Pattern[bytes]:
    """Match as many whole strict rows as there are."""
    sep = re.escape(mark.encode())
    blank = b" " if mark == "\t" else b"[ \t]"
    bare = rb"(?!%b*+\")[^%b\r\n]*+" % (blank, sep)
    field = rb"(?:%b|%b)" % (_QUOTED.pattern, bare)
    end = rb"(?:\r\n?|\n)"
    # The last row may have no line end.
    row = rb"%b(?:%b%b)*+" % (field, sep, field)
    return re.compile(rb"(?:%b%b)*+(?:%b\Z)?" % (row, end, row))


def _fault(text: bytes, at: int, line: int, layout: Layout, last: bool) -> tuple[int, str] | None:
    """Line and name of what is wrong from a row on; None if more text must come first.

    The text begins on ``line``, the row at place ``at``; no more comes if it is the ``last``.
    """
    sep = layout.mark.encode()
    blank = rb" *+" if sep == b"\t" else rb"[ \t]*+"
    opens, bare = re.compile(blank + rb'"'), re.compile(rb"[^%b\r\n]*+" % re.escape(sep))
    while at < len(text):
        here = line + _lines(text[:at])
        if not opens.match(text, at):
            at = _end(bare.match(text, at)) + 1
            continue
        if not text.startswith(b'"', at):
            return here, "blanks stand before the quote that opens a field"
        if (closed := _QUOTED.match(text, at)) is None:
            return (here, "a quote is not closed") if last else None
        after = text[closed.end() : closed.end() + 20].splitlines()
        if after and after[0] and not after[0].startswith(sep):
            word, lines = after[0].decode("utf-8", "replace"), _lines(closed.group())
            where = f" in line {here + lines}" if lines else ""
            return here, (
                f"the quote that opens here closes{where} before '{word}', where a separator or a "
                "line end must be: write a quote within quotes twice"
            )
        if not after and not last:
            return None
        at = closed.end() + 1
    return None


def _end(match: re.Match[bytes] | None) -> int:
    assert match is not None  # the pattern matches nothing at all too
    return match.end()


def _lines(text: bytes) -> int:
    """Count line ends of any kind."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")
