"""What is drawn, read back from the axes."""

import math

import pytest

from coterie.core.tables import plots
from coterie.core.tables.paired import compare, spread
from coterie.core.tables.plots import (
    Bars,
    Curve,
    Curves,
    Differences,
    Heat,
    Histogram,
    Lines,
    plot_panels,
)

pytestmark = pytest.mark.usefixtures("drawn_anew")
DIFFERENCES = {
    "test": {"FT": compare([0.3, 0.4, 0.6], [0.1, 0.1, 0.2]), "KD": compare([0.3], [0.4])},
    "validation": {"FT": compare([0.3, 0.4, 0.6], [0.4, 0.4, 0.8])},
}


def test_differences_are_drawn_with_their_intervals(tmp_path, monkeypatch):
    figures = []
    laid_out = plots._laid_out
    monkeypatch.setattr(plots, "_laid_out", lambda *a: figures.append(laid_out(*a)) or figures[-1])
    panel = Differences("a minus b", DIFFERENCES)
    path = plot_panels([panel], "title", tmp_path / "new/folder/a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in path.parent.iterdir()] == ["a.png"]
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["FT", "KD"]
    for drawn, group in zip(axes.containers, DIFFERENCES.values(), strict=True):
        line, _, (bars,) = drawn
        assert line.get_xdata() == pytest.approx([found.difference for found in group.values()])
        for (start, end), found in zip(bars.get_segments(), group.values(), strict=True):
            low, high = (found.low, found.high) if found.n > 1 else (found.difference,) * 2
            assert (start[0], end[0]) == pytest.approx((low, high))
    test, validation = (drawn[0].get_ydata() for drawn in axes.containers)
    assert test[0] < 0 < validation[0] < test[1]  # beside one another, nearest to their own label


def test_panels_of_every_kind_are_drawn(tmp_path, monkeypatch):
    figures = []
    laid_out = plots._laid_out
    monkeypatch.setattr(plots, "_laid_out", lambda *a: figures.append(laid_out(*a)) or figures[-1])
    bars = Bars("height", {"g": {"a": spread([1.0, 3.0]), "b": spread([5.0])}})
    lines = Lines("n", (5, 100), {"a": [spread([1.0, 2.0]), spread([3.0])]}, log=True, y_label="y")
    heat = Heat("z", "α", (0.5, 0.7), "β", (1.0, 5.0), [[1.0, 2.0], [3.0, math.inf]], (0.7, 5.0))
    path = plot_panels([bars, lines, heat], "title", tmp_path / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    of_bars, of_lines, of_heat, _ = figures[0].axes
    assert [patch.get_height() for patch in of_bars.patches] == [2.0, 5.0]
    (segment,) = of_bars.collections[0].get_segments()
    assert (segment[0][1], segment[1][1]) == pytest.approx((2 - 2**0.5, 2 + 2**0.5))
    assert [label.get_text() for label in of_lines.get_xticklabels()] == ["5", "100"]
    cells = of_heat.images[0].get_array()
    assert cells[0].tolist() == [1.0, 2.0]  # the first row is the lowest
    assert of_heat.images[0].origin == "lower"
    assert cells.mask.tolist() == [[False, False], [False, True]]
    assert of_heat.patches[0].get_xy() == (0.5, 0.5)


@pytest.mark.parametrize("values", [[1.0, 2.0, 2.0, math.nan, math.inf], []])
def test_a_histogram_counts_what_is_finite(tmp_path, monkeypatch, values):
    figures = []
    laid_out = plots._laid_out
    monkeypatch.setattr(plots, "_laid_out", lambda *a: figures.append(laid_out(*a)) or figures[-1])
    plot_panels([Histogram("x", values, "users", {"limit": 3.0})], "title", tmp_path / "a.png")
    (axes,) = figures[0].axes
    assert sum(patch.get_height() for patch in axes.patches) == (3 if values else 0)
    assert list(axes.lines[0].get_xdata()) == [3.0, 3.0]
    assert axes.get_xlabel() == "x"


def test_curves_have_x_values_of_their_own_and_a_band_where_there_are_seeds(tmp_path, monkeypatch):
    figures = []
    laid_out = plots._laid_out
    monkeypatch.setattr(plots, "_laid_out", lambda *a: figures.append(laid_out(*a)) or figures[-1])
    several = Curve([1, 2, 3], [spread([0.1 * n, 0.3 * n]) for n in (1, 2, 3)])
    alone = Curve([10, 20], [spread([0.5]), spread([0.6])])
    curves = Curves("steps", "accuracy", {"several": several, "alone": alone})
    names = {f"m{n}": alone for n in range(12)}
    plot_panels([curves, Curves("x", "y", names, legend=False)], "t", tmp_path / "a.png")
    axes, many = figures[0].axes
    lines = axes.get_lines()
    assert [line.get_xdata().tolist() for line in lines] == [[1, 2, 3], [10, 20]]
    assert lines[0].get_ydata().tolist() == pytest.approx([0.2, 0.4, 0.6])
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    sd = math.sqrt(0.02) * 3  # of 0.3 and 0.9
    assert (heights.min(), heights.max()) == pytest.approx((0.2 - sd / 3, 0.6 + sd))
    assert axes.get_legend() is not None
    assert many.get_legend() is None
    styles = {(line.get_color(), line.get_linestyle()) for line in many.get_lines()}
    assert len(styles) == 12  # each can be told from the others


@pytest.mark.parametrize(("columns", "rows"), [(None, 1), (3, 1), (2, 2), (1, 3), (9, 1)])
def test_panels_stand_in_rows(tmp_path, monkeypatch, columns, rows):
    figures = []
    laid_out = plots._laid_out
    monkeypatch.setattr(plots, "_laid_out", lambda *a: figures.append(laid_out(*a)) or figures[-1])
    panels = [Histogram(label, [0.1, 0.2], "n") for label in "abc"]
    plot_panels(panels, "t", tmp_path / "a.png", columns)
    axes = figures[0].axes
    assert [one.get_xlabel() for one in axes] == ["a", "b", "c"]
    assert len({round(one.get_position().y0, 2) for one in axes}) == rows
    assert figures[0].get_figheight() == pytest.approx(3.4 * rows)
