"""Shakespeare by speaking role: each role of each play is a client.

The task of McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, in the form of LEAF (Caldas et al., LEAF: A Benchmark for Federated Settings,
arXiv 1812.01097).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.registry.data_sets import find_file
from coterie.page.data.archive import files_in
from coterie.page.tasks import TASKS

SYMBOLS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's symbols in LEAF's order; a symbol's place is its class."""

WINDOW = 80
"""Length of a sequence."""

_UNKNOWN = SYMBOLS.index(" ")
_CODES = np.full(257, _UNKNOWN, dtype=np.uint8)
_CODES[[ord(symbol) for symbol in SYMBOLS]] = np.arange(len(SYMBOLS))


def encode(text: str) -> Tensor:
    """Number the characters, ``(n,)`` uint8; one that is no symbol counts as a space.

    Example:
        >>> encode("A~}").tolist()
        [25, 1, 79]
    """
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return torch.from_numpy(_CODES[np.minimum(points, 256)])


def windows(text: str) -> tuple[Tensor, Tensor]:
    """Cut a text into all runs of `WINDOW` characters and the characters that follow them.

    White space shrinks to single spaces.

    Returns:
        ``(n, WINDOW)`` uint8, a view that costs no memory, and ``(n,)`` uint8; n is 0 for a text
        that is too short.

    Example:
        >>> x, y = windows("a" * 80 + "bc")
        >>> x.shape, y.tolist() == encode("bc").tolist()
        (torch.Size([2, 80]), True)
    """
    codes = encode(re.sub(r"\s+", " ", text).strip())
    n = max(len(codes) - WINDOW, 0)
    if not n:
        return codes.new_empty(0, WINDOW), codes.new_empty(0)
    return codes.unfold(0, WINDOW, 1)[:n], codes[WINDOW:]


# Who says what in plays of which each line of a speech is ``SPEAKER<TAB>text`` or ``<TAB>text``.
#
# A speaker's name may go over two lines, stage directions stand in square brackets, and what
# precedes the first act or scene is the list of persons.

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


N_CLASSES = len(SYMBOLS)

_FILES = next(entry.files for entry in TASKS if entry.name == "shakespeare")
_COUNTED = (8000, 2000, 1)
Samples = tuple[list[str], list[str]]
"""Texts x and labels y of a user."""


@dataclass(frozen=True)
class Role:
    """What a speaker of a play says.

    Attributes:
        name: play and speaker.
        x: ``(n, 80)`` uint8 numbers of symbols, in the order of the play; rows may share memory.
        y: ``(n,)`` uint8, the symbol after each.
    """

    name: str
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


def read_roles(folder: Path, min_samples: int = 8000) -> list[Role]:
    """Read the roles with enough samples; PAGE takes those with 8000.

    Args:
        folder: has LEAF's ``all_data*.json`` or ``train/*.json`` (joined with ``test/*.json``
            where that is there), as it is or below ``data``; or plays, ``shakespeare/*.txt`` or
            a ``.tar.gz`` of ``.txt`` files.
        min_samples: fewest samples of a role, at least 1.

    Returns:
        Roles by ascending name.

    Raises:
        UserError: files are missing or malformed, or no role has enough.
    """
    source = find_file(folder, *_FILES)
    if source is None:
        raise UserError(
            f"there is no Shakespeare in {folder}: put all_data*.json of LEAF there, or a .tar.gz "
            "of plays with lines SPEAKER<TAB>text"
        )
    roles = sorted(
        _leaf_roles(source) if source.suffix == ".json" else _play_roles(source),
        key=lambda role: role.name,
    )
    enough = [role for role in roles if len(role) >= max(min_samples, 1)]
    if not enough:
        most = max(map(len, roles), default=0)
        raise UserError(
            f"{source}: no role has {min_samples} samples (the largest has {most}): lower the "
            "fewest samples of a role"
        )
    return enough


def counts(folder: Path) -> list[dict[str, Any]]:
    """Count roles and samples, for ``coterie data shakespeare``."""
    roles = read_roles(folder, 1)
    rows = []
    for least in _COUNTED:
        sizes = [len(role) for role in roles if len(role) >= least]
        part = f"roles with {least} samples or more"
        rows.append({"part": part, "roles": len(sizes), "samples": sum(sizes)})
    return rows


def _play_roles(source: Path) -> Iterator[Role]:
    place = source.parent if source.suffix == ".txt" else source
    for path, content in files_in(place, lambda path: path.suffix == ".txt"):
        for speaker, text in speeches(content.decode("utf-8", "replace")).items():
            x, y = windows(text)
            yield Role(f"{path.stem}: {speaker}", x, y)


def _leaf_roles(source: Path) -> Iterator[Role]:
    paths = sorted(source.parent.glob("*.json"))
    if source.parent.name == "train":
        paths += sorted((source.parent.parent / "test").glob("*.json"))
    for name, samples in _read_users(paths).items():
        x, y = _encoded(name, samples)
        yield Role(name, x, y)


def _encoded(name: str, samples: Samples) -> tuple[Tensor, Tensor]:
    for values, length in zip(samples, (WINDOW, 1), strict=True):
        if not all(isinstance(value, str) and len(value) == length for value in values):
            raise UserError(f"user '{name}': a sample is not {WINDOW} characters and the next one")
    x, y = (encode("".join(values)) for values in samples)
    return x.reshape(-1, WINDOW), y


def _read_users(paths: Iterable[Path]) -> dict[str, Samples]:
    """Read LEAF's ``users``, ``num_samples`` and ``user_data``, each user's ``x`` and ``y``.

    Those of a user who is in several files are joined in the order of the files.
    """
    found: dict[str, Samples] = {}
    for path in paths:
        content = _load(path)
        for user, number in zip(content["users"], content["num_samples"], strict=True):
            x, y = _samples(content["user_data"].get(user), number, f"{path}: user '{user}'")
            mine = found.setdefault(user, ([], []))
            mine[0].extend(x)
            mine[1].extend(y)
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} is no JSON ({error}): make it anew by LEAF") from None
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    for name, kind in kinds.items():
        if not (isinstance(content, dict) and isinstance(content.get(name), kind)):
            raise UserError(f"{path} has no {kind.__name__} '{name}', as LEAF's files do")
    if len(content["users"]) != len(content["num_samples"]):
        raise UserError(f"{path}: users and num_samples differ in length")
    if not all(isinstance(user, str) for user in content["users"]):
        raise UserError(f"{path}: users are not all named by strings")
    return content


def _samples(data: Any, number: Any, where: str) -> Samples:
    x, y = (data.get("x"), data.get("y")) if isinstance(data, dict) else (None, None)
    if not (isinstance(x, list) and isinstance(y, list)):
        raise UserError(f"{where} has no lists x and y")
    if not len(x) == len(y) == number:
        raise UserError(f"{where} has {len(x)} x and {len(y)} y, where num_samples says {number}")
    return x, y
