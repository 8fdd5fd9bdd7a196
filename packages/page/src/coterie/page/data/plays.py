"""Who says what in plays of which each line of a speech is ``SPEAKER<TAB>text`` or ``<TAB>text``.

A speaker's name may go over two lines, stage directions stand in square brackets, and what
precedes the first act or scene is the list of persons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEADING = re.compile(r"(ACT|SCENE|PROLOGUE|INDUCTION|EPILOGUE)\b")
_DIRECTION = re.compile(r"\[[^\]]*\]")


def speeches(play: str) -> dict[str, str]:
    """Join all that each speaker says, by speaker in order of appearance.

    Example:
        >>> play = ["ACT I", "", "HAL|Now,", "|Ned.", "", "NED|My lord?", "", "|[Exit]", "HAL|Go."]
        >>> speeches("@".join(play).replace("|", chr(9)).replace("@", chr(10)))["HAL"].split()
        ['Now,', 'Ned.', 'Go.']
    """
    said: dict[str, list[str]] = {}
    for speaker, text in _lines(play.splitlines()):
        said.setdefault(speaker, []).append(text)
    joined = {speaker: _DIRECTION.sub("", "\n".join(texts)) for speaker, texts in said.items()}
    return {speaker: text.strip() for speaker, text in joined.items() if text.strip()}


def _lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the speaker and the text of each line of a speech."""
    speaker, pending = "", ""
    first = next((k for k, line in enumerate(lines) if _HEADING.match(line)), 0)
    for line in lines[first:]:
        name, tab, text = line.partition("\t")
        name = name.strip()
        if _HEADING.match(name):
            speaker, pending = "", ""
        elif not tab:
            # A blank line ends nothing: directions interrupt speeches.
            pending = name
            speaker = "" if name else speaker
        else:
            speaker = f"{pending} {name}".strip() if name else speaker
            pending = ""
            if speaker and text.strip():
                yield speaker, text.strip()
