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
