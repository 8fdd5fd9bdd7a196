"""Clients' folders that are written where they will be, each whole or not at all."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.core.errors import UserError
from coterie.core.files import writing

Cut = Callable[[str, Path], None]
"""Writes the clients' folder of a name into a path, on the machine where it will be."""


def cut_those_missing(folders: Sequence[Path], cut: Cut) -> None:
    """Write the folders that are not there.

    Raises:
        UserError: as ``cut``, or this machine cannot write there.
    """
    for folder in folders:
        if folder.exists():
            continue
        if not folder.parent.is_dir():
            raise UserError(
                f"{socket.gethostname()} has no {folder.parent}: choose a place that all machines "
                "share, by run.out"
            )
        partial = folder.with_name(f".{folder.name}-partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            cut(folder.name, partial)
            with writing(folder.parent):
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
