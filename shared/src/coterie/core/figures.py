"""Figures as PNG and SVG files. One that cannot be drawn costs a line, never a run."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.core.files import replacing
from coterie.core.labels import settle
from coterie.core.palette import DARK, LIGHT, Surface
from coterie.core.registry.papers import heavy
from coterie.core.style import DPI, styled

logger = logging.getLogger(__name__)

Draw = Callable[[Any, Surface], Any]
"""Makes a figure of matplotlib's class ``Figure``, which needs neither a display nor pyplot."""


def draw_files(path: Path, draw: Draw, dark: bool = False) -> list[Path]:
    """Draw a figure and write it: ``NAME.png`` at two pixels a point of a screen, and ``NAME.svg``.

    Whatever matplotlib meets (a backend of a notebook, a broken settings file, no folder for its
    fonts, no matplotlib at all) is warned of in one line, and no older file is left to be taken for
    the new figure. An error of the disk below ``path`` is the caller's, as of any other file.

    Args:
        path: PNG to write; the others lie beside it.
        draw: makes the figure; it is given the class and what it is drawn on.
        dark: write ``NAME-dark.svg`` too, for pages with a dark ground.

    Returns:
        The files; none if it cannot be drawn.

    Raises:
        OSError: a file cannot be written.
    """
    on_dark = path.with_name(f"{path.stem}-dark.svg")
    try:
        light = _made(_figure(), draw, LIGHT)
        images = {path: _image(light, "png", LIGHT)}
        images[path.with_suffix(".svg")] = _image(light, "svg", LIGHT)
        if dark:
            images[on_dark] = _image(_made(_figure(), draw, DARK), "svg", DARK)
    except Exception as error:
        for old in (path, path.with_suffix(".svg"), on_dark):
            old.unlink(missing_ok=True)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        logger.warning("%s is not drawn: %s", path, reason)
        return []
    for file, image in images.items():
        with replacing(file) as temporary:
            temporary.write_bytes(image)
    return list(images)


def shown(draw: Draw) -> Any:
    """Draw a figure that a notebook shows by itself, without pyplot."""

    def picture(figure: Any) -> bytes:
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=96)
        return image.getvalue()

    figure = _made(type("Shown", (_figure(),), {"_repr_png_": picture}), draw, LIGHT)
    with styled(LIGHT):
        figure.draw_without_rendering()  # ticks are made now, not in the notebook's style
    return figure


def _made(figure_class: Any, draw: Draw, surface: Surface) -> Any:
    with styled(surface):
        figure = draw(figure_class, surface)
        settle(figure)
        return figure


def _image(figure: Any, form: str, surface: Surface) -> bytes:
    """Write a figure without the date and the version of matplotlib."""
    image = io.BytesIO()
    with styled(surface):
        nothing = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(image, format=form, dpi=DPI, metadata=nothing)
    return image.getvalue()


def _figure() -> Any:
    """Import the class alone: a backend that the environment names need not be installed here."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        return heavy("matplotlib.figure").Figure
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
