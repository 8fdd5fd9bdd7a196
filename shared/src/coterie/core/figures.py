"""Figures as PNG files. One that cannot be drawn costs the figure and a line, never a run."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.core.files import replacing
from coterie.core.registry.papers import heavy

logger = logging.getLogger(__name__)


def draw_png(path: Path, draw: Callable[[Any], Any], dpi: int = 150) -> bool:
    """Draw a figure and write it in one step.

    Whatever matplotlib meets (a backend of a notebook, a broken settings file, no folder for its
    fonts, no matplotlib at all) is warned of in one line, and no older file is left to be taken for
    the new figure. An error of the disk below ``path`` is the caller's, as of any other file.

    Args:
        path: file to write.
        draw: makes the figure; it is given matplotlib's class ``Figure``, which needs neither a
            display nor pyplot.
        dpi: dots per inch.

    Returns:
        Whether it was drawn.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        image = io.BytesIO()
        draw(_figure()).savefig(image, format="png", dpi=dpi)
    except Exception as error:
        path.unlink(missing_ok=True)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        logger.warning("%s is not drawn: %s", path, reason)
        return False
    with replacing(path) as temporary:
        temporary.write_bytes(image.getvalue())
    return True


def shown_figure() -> Any:
    """Make a class of matplotlib's figures that a notebook shows by itself, without pyplot."""

    def picture(figure: Any) -> bytes:
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=80)
        return image.getvalue()

    return type("Shown", (_figure(),), {"_repr_png_": picture})


def _figure() -> Any:
    """Import the class alone: a backend that the environment names need not be installed here."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        return heavy("matplotlib.figure").Figure
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
