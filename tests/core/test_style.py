"""The house style: names that do not overlap, colours that everybody tells apart, one place."""

import re
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from coterie.core import figures
from coterie.core.labels import apart
from coterie.core.palette import (
    BEST,
    DARK,
    LIGHT,
    OURS,
    RIVALS,
    SERIES,
    SURFACES,
    contrast,
    readable,
)
from coterie.core.style import DPI, SMALL, WIDTH, Roles, looks, towards
from coterie.core.tables.dots import Differences
from coterie.core.tables.paired import compare, spread
from coterie.core.tables.pictures import laid_out
from coterie.core.tables.plots import Curve, Curves

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    *(ROOT / "shared" / "src").rglob("*.py"),
    *(ROOT / "packages").glob("*/src/**/*.py"),
    *(ROOT / "benchmarks").rglob("*.py"),
]


def wcag(colour):
    """Relative luminance after WCAG 2.1, written anew with numpy."""
    part = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def ratio(one, other):
    high, low = sorted((wcag(one), wcag(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("surface", SURFACES.values(), ids=SURFACES)
@pytest.mark.parametrize("colour", sorted({OURS, BEST, RIVALS, *SERIES}))
def test_words_can_be_read_and_lines_be_seen(surface, colour):
    assert ratio(surface.ink, surface.ground) >= 7
    assert ratio(readable(colour, surface), surface.ground) >= 4.5
    assert contrast(colour, surface.ground) == pytest.approx(ratio(colour, surface.ground))
    least = 2.0 if colour == "#E69F00" else 2.9  # the fifth of five equals, and a fat line
    assert ratio(colour, surface.ground) >= least


# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
BLIND = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
}  # fmt: skip


def seen(colour, matrix):
    """CIE L*a*b* of a colour as somebody sees it."""
    part = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(matrix) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    f = np.cbrt(xyz @ linear / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", BLIND)
@pytest.mark.parametrize("pair", [*combinations(SERIES, 2), (OURS, RIVALS), (BEST, RIVALS)])
def test_colours_are_told_apart_by_the_colour_blind(kind, pair):
    one, other = (seen(colour, BLIND[kind]) for colour in pair)
    assert np.linalg.norm(one - other) > 10  # 2 can just be seen side by side


@given(
    st.lists(st.tuples(st.floats(0, 200), st.floats(8, 30)), min_size=1, max_size=7),
)
def test_labels_are_moved_apart_and_stay_in_order(places):
    wanted = sorted(want for want, _ in places)
    heights = [height for _, height in places]
    found = apart(wanted, heights, 0.0, 300.0)
    for at, (low, high) in enumerate(pairwise(found)):
        assert high - low >= (heights[at] + heights[at + 1]) / 2 - 1e-6
    free = all(
        b - a >= (heights[at] + heights[at + 1]) / 2 for at, (a, b) in enumerate(pairwise(wanted))
    )
    if free:
        assert found == pytest.approx(wanted)


def drawn(*panels, surface=LIGHT):
    return figures._made(
        Figure, lambda made, on: laid_out(made, panels, "a title", None, on), surface
    )


def boxes(figure):
    """Bounding boxes of the names at the ends of lines, by plot."""
    renderer = figure.canvas.get_renderer()
    return [
        [
            super(Annotation, text).get_window_extent(renderer)
            for text in axes.texts
            if isinstance(text, Annotation)
        ]
        for axes in figure.axes
    ]


@pytest.mark.parametrize("ends", [(0.5,) * 5, (0.1, 0.11, 0.5, 0.51, 0.52), (0.9, 0.9, 0.1, 0.1)])
@pytest.mark.parametrize("surface", [LIGHT, DARK], ids=["light", "dark"])
def test_names_at_the_ends_of_lines_do_not_overlap(ends, surface):
    lines = {
        f"method {n}, with a long name": Curve(
            [1, 5, 9], [spread([0.0]), spread([0.3]), spread([y])]
        )
        for n, y in enumerate(ends)
    }
    panel = Curves("round", "accuracy", lines, roles=Roles("method 0, with a long name"))
    figure = drawn(panel, panel, surface=surface)
    of_all = boxes(figure)
    assert [len(group) for group in of_all] == [len(ends)] * 2
    width = figure.get_size_inches()[0] * figure.dpi
    for group, axes in zip(of_all, figure.axes, strict=True):
        for one, other in combinations(group, 2):
            assert not one.overlaps(other)
        plot = axes.get_window_extent()
        assert all(plot.x1 < box.x0 and box.x1 <= width for box in group)
    assert of_all[0][0].x1 < figure.axes[1].get_tightbbox().x0  # nor run into the next plot


def test_no_more_than_five_lines_are_named_and_the_own_one_is_strong():
    ends = {f"m{n}": float(n) for n in range(9)} | {"own": 5.0, "popularity": -1.0}
    found = looks(ends, Roles("own", ("popularity",), "higher"))
    assert list(found) == list(ends)
    named = {name for name, look in found.items() if look.named}
    assert named == {"own", "popularity", "m8", "m7", "m6"}
    assert (found["own"].colour, found["own"].width) == (OURS, 2.0)
    assert found["m8"].colour == BEST
    assert found["popularity"].dashes == ":"
    assert {found[f"m{n}"].colour for n in range(8)} == {RIVALS}
    assert {name for name, look in found.items() if look.band} == {"own", "m8"}
    assert looks(ends, Roles("own", better="lower"))["popularity"].colour == BEST
    equals = looks(dict.fromkeys("abcdefg", 1.0), Roles())
    assert [look.colour for look in equals.values()] == [*SERIES, RIVALS, RIVALS]


def test_pictures_are_as_wide_as_a_page_and_no_letter_is_small():
    ends = {f"m{n}": Curve([1, 2], [spread([0.1]), spread([n])]) for n in range(7)}
    names = {name: compare([0.1, 0.2], [0.0, 0.3]) for name in ("a", "b")}
    figure = drawn(Curves("round", "y", ends), Differences("x", {"s": names, "t": names}))
    assert figure.get_size_inches()[0] * 72 == pytest.approx(640, abs=1)
    assert DPI == 192
    assert figure.get_figwidth() == WIDTH
    letters = [text for text in figure.findobj(lambda one: hasattr(one, "get_fontsize"))]
    assert min(text.get_fontsize() for text in letters if text.get_text().strip()) >= SMALL == 9
    assert any("m5, m6" in text.get_text() for text in letters if hasattr(text, "get_text"))
    for axes in figure.axes:
        assert not axes.spines["top"].get_visible()
        assert not axes.spines["right"].get_visible()


def test_the_better_way_is_that_of_the_axis():
    assert towards("AUC", "higher").endswith("→")
    assert towards("RMSE", "lower").startswith("←")


def test_no_other_module_chooses_colours_or_legends():
    """A name of a colour, of matplotlib's own cycle, or a legend, outside the style."""
    style = {"palette.py", "style.py"}
    literal = re.compile(
        r"""legend\(|["']C[0-9]["']|["']tab:\w|["']\#[0-9a-fA-F]{3,8}["']"""
        r"""|colou?r\s*=\s*f?["'](?!none)[a-z0-9.]+["']|cmap\s*=\s*["']"""
        r"""|(?:import|matplotlib)[ .]pyplot"""
    )
    drawing = [path for path in SOURCES if "matplotlib" in path.read_text() or "axes." in path.name]
    drawing += [path for path in SOURCES if path.parent.name in ("tables", "attack")]
    assert len(drawing) > 20
    for path in {*drawing} - {path for path in drawing if path.name in style}:
        assert literal.findall(path.read_text()) == [], path
