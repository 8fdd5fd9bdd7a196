"""The colours of every picture and page: one colour for the method shown, grey for its rivals.

Those with names are Okabe and Ito's, which people who confuse red and green tell apart
(https://jfly.uni-koeln.de/color). Torch-free, and without any library of pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OURS = "#D55E00"
"""Vermilion: the paper's own method, or the run that is shown."""
BEST = "#0072B2"
"""Blue: the best of the rivals, where one is worth a colour."""
RIVALS = "#888888"
"""Grey: everything else; a label says which is which."""
SERIES = (OURS, BEST, "#009E73", "#CC79A7", "#E69F00")
"""For the few pictures that compare equals; more than five lines are told apart by nobody."""


@dataclass(frozen=True)
class Surface:
    """What a picture is drawn on.

    Attributes:
        ground: colour of the page.
        ink: of words.
        faint: of axes, ticks and lines that help the eye.
    """

    ground: str
    ink: str
    faint: str


LIGHT = Surface(ground="#ffffff", ink="#1f2328", faint="#d0d7de")
DARK = Surface(ground="#0d1117", ink="#e6edf3", faint="#3d444d")
SURFACES: Mapping[str, Surface] = {"light": LIGHT, "dark": DARK}

# What can be read on what: the contrast of WCAG 2.1, https://www.w3.org/TR/WCAG21/#contrast-minimum.

READABLE = 4.5
"""The least contrast of words against their ground (level AA)."""


def luminance(colour: str) -> float:
    """Give the relative luminance of a colour, 0 for black to 1 for white.

    Example:
        >>> luminance("#000000"), luminance("#ffffff")
        (0.0, 1.0)
    """
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in _parts(colour))
    ]
    return sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(colour: str, ground: str) -> float:
    """Give the contrast of two colours, 1 for the same to 21 for black on white.

    Example:
        >>> contrast("#000000", "#ffffff")
        21.0
    """
    dark, light = sorted((luminance(colour), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def mixed(colour: str, other: str, share: float) -> str:
    """Mix two colours.

    Args:
        colour: the one.
        other: the other one.
        share: of the other one, 0 to 1.

    Example:
        >>> mixed("#000000", "#ffffff", 0.2)
        '#333333'
    """
    pairs = zip(_parts(colour), _parts(other), strict=True)
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def readable(colour: str, surface: Surface) -> str:
    """Give a colour for words: the same, nearer to the ink until it can be read on the ground.

    Example:
        >>> readable(OURS, LIGHT) != OURS, contrast(readable(OURS, LIGHT), LIGHT.ground) >= READABLE
        (True, True)
    """
    shades = (mixed(colour, surface.ink, step / 20) for step in range(21))
    return next(one for one in shades if contrast(one, surface.ground) >= READABLE)


def _parts(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
