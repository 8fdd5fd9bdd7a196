"""What is drawn, read back from the axes."""

import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.figures import FIGURES
from benchmarks.figures import main as redraw_all
from coterie.core import figures
from coterie.core.errors import UserError
from coterie.core.palette import BEST, LIGHT, OURS, RIVALS
from coterie.core.style import WIDTH, Roles
from coterie.core.tables.dots import Differences, Dots
from coterie.core.tables.grids import Heat, Histogram
from coterie.core.tables.paired import compare, spread
from coterie.core.tables.pictures import _read, laid_out, plot_panels, redraw
from coterie.core.tables.plots import SHARE, Curve, Curves, Lines

pytestmark = pytest.mark.usefixtures("drawn_anew")
DIFFERENCES = {
    "test": {"FT": compare([0.3, 0.4, 0.6], [0.1, 0.1, 0.2]), "KD": compare([0.3], [0.4])},
    "validation": {"FT": compare([0.3, 0.4, 0.6], [0.4, 0.4, 0.8])},
}
HEAT = Heat("z", "α", (0.5, 0.7), "β", (1.0, 5.0), [[1.0, 2.0], [3.0, math.inf]], (0.7, 5.0))
FILES = ["a-dark.svg", "a.panels.json", "a.png", "a.svg"]


@pytest.fixture
def drawn():
    """Draw panels; give the figure on light ground, laid out."""

    def draw(*panels, columns=None):
        return figures._made(
            Figure,
            lambda figure, surface: laid_out(figure, panels, "title", columns, surface),
            LIGHT,
        )

    return draw


def dots_of(axes):
    """Where dots are, and whether they are full."""
    found = [line for line in axes.get_lines() if line.get_marker() not in ("None", "", None)]
    return [
        (*line.get_xdata(), *line.get_ydata(), line.get_markerfacecolor() == line.get_color())
        for line in found
    ]


def lines_of(axes):
    """Lines through dots, by their height."""
    return {
        line.get_ydata()[0]: tuple(line.get_xdata())
        for line in axes.get_lines()
        if len(line.get_xdata()) == 2 and len(set(line.get_ydata())) == 1
    }


def test_differences_are_drawn_with_their_intervals(drawn):
    (axes,) = drawn(Differences("a minus b", DIFFERENCES)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["FT", "KD"]
    (x_ft, y_ft, full), (x_kd, y_kd, kd_full), (x_v, y_v, v_full) = dots_of(axes)
    test, validation = DIFFERENCES.values()
    assert (x_ft, x_kd, x_v) == pytest.approx(
        (test["FT"].difference, test["KD"].difference, validation["FT"].difference)
    )
    assert y_ft < 0 < y_v < y_kd < 1  # beside one another, nearest to their own label
    intervals = lines_of(axes)
    assert intervals[y_ft] == pytest.approx((test["FT"].low, test["FT"].high))
    assert intervals[y_v] == pytest.approx((validation["FT"].low, validation["FT"].high))
    assert y_kd not in intervals  # a single pair has none
    assert full == (test["FT"].low > 0 or test["FT"].high < 0)
    assert not kd_full
    assert not v_full  # its interval touches zero


@pytest.mark.parametrize(
    ("first", "better", "colour"),
    [
        ([0.31, 0.41, 0.52], "higher", OURS),
        ([0.31, 0.41, 0.52], "lower", BEST),
        ([0.0, 0.1, 0.21], "higher", BEST),
        ([0.0, 0.5, 0.1], "higher", RIVALS),
    ],
)
def test_what_is_surely_better_has_the_own_colour(drawn, first, better, colour):
    panel = Differences("x", {"": {"FT": compare(first, [0.1, 0.2, 0.3])}})
    panel = Differences("x", panel.series, roles=Roles(better=better))
    (axes,) = drawn(panel).axes
    assert axes.get_lines()[-1].get_color() == colour


def test_spreads_end_at_the_bounds(drawn):
    groups = {"g": {"a": spread([0.0, 1.0]), "b": spread([0.4, 0.5]), "c": spread([0.2])}}
    curve = Curve([1, 2], [spread([0.0, 1.0]), spread([0.4, 0.5])])
    of_dots, of_curve = drawn(
        Dots("height", groups, bounds=SHARE), Curves("x", "y", {"a": curve}, bounds=SHARE)
    ).axes
    ends = lines_of(of_dots)
    assert ends[0] == (0.0, 1.0)
    assert ends[1] == pytest.approx((0.45 - math.sqrt(0.005), 0.45 + math.sqrt(0.005)))
    assert 2 not in ends  # a single repetition has no spread
    (band,) = of_curve.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.0, 1.0)


def test_dots_of_several_groups_are_rows_of_coloured_dots(drawn):
    groups = {f"client {n}": {"own": spread([n]), "other": spread([2 * n])} for n in (1, 2, 3)}
    (axes,) = drawn(Dots("height", groups, roles=Roles("own"))).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(groups)
    assert sorted(x for x, _, _ in dots_of(axes)) == [1, 2, 2, 3, 4, 6]
    own = [line for line in axes.get_lines() if line.get_color() == OURS]
    assert [line.get_xdata()[0] for line in own] == [1, 2, 3]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first group is on top


def test_a_heat_map_has_its_numbers_in_the_cells(drawn):
    (axes,) = drawn(HEAT).axes
    cells = axes.images[0].get_array()
    assert cells[0].tolist() == [1.0, 2.0]  # the first row is the lowest
    assert axes.images[0].origin == "lower"
    assert cells.mask.tolist() == [[False, False], [False, True]]
    assert axes.patches[0].get_xy() == (0.5, 0.5)
    assert [text.get_text() for text in axes.texts] == ["1.00", "2.00", "3.00"]


def test_colours_do_not_range_over_noise():
    near = Heat("z", "α", (1, 2), "β", (1, 2), [[0.0335, 0.0342], [0.034, 0.034]])
    low, high = near._range(np.ma.masked_invalid(near.cells))
    assert (0.0342 - 0.0335) / (high - low) < 0.25
    noisy = Heat("z", "α", (1, 2), "β", (1, 2), near.cells, noise=0.01)
    low, high = noisy._range(np.ma.masked_invalid(near.cells))
    assert high - low == pytest.approx(0.06)
    wide = Heat("z", "α", (1, 2), "β", (1, 2), [[1.0, 4.0], [2.0, 3.0]])
    assert wide._range(np.ma.masked_invalid(wide.cells)) == (1.0, 4.0)


def test_lines_over_factors_have_their_values_at_the_ticks(drawn):
    line = [spread([1.0, 2.0]), spread([3.0])]
    panel = Lines("n", (5, 100_000), {"a": line}, log=True, chosen=5, y_label="y")
    (axes,) = drawn(panel).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["5", "100,000"]
    assert any(list(line.get_xdata()) == [5, 5] for line in axes.get_lines())


@pytest.mark.parametrize("last", [1, 2, 3, 7, 20, 999, 4000])
def test_rounds_are_whole(drawn, last):
    curve = Curve(list(range(1, last + 1)), [spread([0.5 + 1 / n]) for n in range(1, last + 1)])
    (axes,) = drawn(Curves("round", "y", {"a": curve})).axes
    ticks = axes.get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    assert min(last, 2) <= len(ticks) <= 8


@pytest.mark.parametrize("values", [[1.0, 2.0, 2.0, math.nan, math.inf], []])
def test_a_histogram_counts_what_is_finite(drawn, values):
    (axes,) = drawn(Histogram("x", values, "users", {"limit": 3.0})).axes
    assert sum(patch.get_height() for patch in axes.patches) == (3 if values else 0)
    assert list(axes.lines[0].get_xdata()) == [3.0, 3.0]
    assert axes.get_xlabel() == "x"
    assert [text.get_text() for text in axes.texts] == ["limit"]


def test_curves_have_x_values_of_their_own_and_a_band_where_there_are_seeds(drawn):
    several = Curve([1, 2, 3], [spread([0.1 * n, 0.3 * n]) for n in (1, 2, 3)])
    alone = Curve([10, 20], [spread([0.5]), spread([0.6])])
    (axes,) = drawn(Curves("steps", "accuracy", {"several": several, "alone": alone})).axes
    lines = axes.get_lines()
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3], [10, 20]]
    assert list(lines[0].get_ydata()) == pytest.approx([0.2, 0.4, 0.6])
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    sd = math.sqrt(0.02) * 3  # of 0.3 and 0.9
    assert (heights.min(), heights.max()) == pytest.approx((0.2 - sd / 3, 0.6 + sd))
    assert axes.get_legend() is None


def test_a_rival_that_takes_long_does_not_squeeze_the_others(drawn):
    def curve(last):
        return Curve([1, last // 2, last], [spread([n]) for n in (1, 2, 3)])

    found = {"own": curve(100), "rival": curve(150), "slow": curve(10_000)}
    (axes,) = drawn(Curves("steps", "y", found, roles=Roles("own", better="higher"))).axes
    assert 150 <= axes.get_xlim()[1] < 250
    assert [list(line.get_xdata()) for line in axes.get_lines()][1] == [1, 75, 150]


def test_plots_of_the_same_measure_have_the_same_scale(drawn):
    def curves(y_label, top):
        return Curves("x", y_label, {"a": Curve([1, 2], [spread([0.0]), spread([top])])})

    one, two, other = drawn(curves("AUC", 1.0), curves("AUC", 5.0), curves("loss", 9.0)).axes
    assert one.get_ylim() == two.get_ylim()
    assert one.get_ylim()[1] > 5
    assert other.get_ylim() != one.get_ylim()


@pytest.mark.parametrize(
    ("count", "columns", "rows"),
    [(3, None, [2, 1]), (3, 3, [2, 1]), (3, 1, [1, 1, 1]), (4, 9, [2, 2]), (5, 2, [2, 2, 1])],
)
def test_rows_are_full(drawn, count, columns, rows):
    panels = [Histogram(label, [0.1, 0.2], "n") for label in "abcde"[:count]]
    figure = drawn(*panels, columns=columns)
    assert [one.get_xlabel() for one in figure.axes] == list("abcde"[:count])
    assert figure.get_figwidth() == WIDTH
    places = [axes.get_position() for axes in figure.axes]
    found = {}
    for place in places:
        found.setdefault(round(place.y0, 1), []).append(place)
    assert [len(row) for row in found.values()] == rows
    for row in found.values():
        assert row[0].x0 < 0.12
        assert row[-1].x1 > 0.95


def test_a_picture_is_drawn_again_from_its_numbers(tmp_path):
    noisy = [spread([0.1, 0.2]), spread([0.3]), spread([])]
    panels = [
        Differences("a minus b", DIFFERENCES, title="D", roles=Roles(better="lower")),
        Dots("x", {"g": {"a": spread([1.0, 3.0])}, "h": {"a": spread([2.0])}}, bounds=(0.0, None)),
        HEAT,
        Histogram("x", [1.0, math.nan, 2.0], "n", {"limit": 1.5}),
        Lines("n", range(1, 4), {"a": noisy}, chosen=2, y_label="y", log=True),
        Curves("x", "y", {"a": Curve([1, 2, 3], noisy)}, roles=Roles("a", ("b",), "higher")),
    ]
    path = plot_panels(panels, "Title with $ and ä", tmp_path / "a.png", columns=2)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert sorted(first) == FILES
    for name in FILES:
        if name != "a.panels.json":
            (tmp_path / name).unlink()
    assert redraw(tmp_path / "a.panels.json") == path
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == first


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", '{"title": "a"}', '{"title": "a", "columns": 1, "panels": [{}]}',
     '{"title": "a", "columns": null, "panels": [{"kind": "Pie"}]}',
     '{"title": "a", "columns": null, "panels": [{"kind": "Heat", "wrong": 1}]}'],
)  # fmt: skip
def test_other_files_are_refused_in_a_line(tmp_path, content):
    path = tmp_path / "a.panels.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r"a\.panels\.json is no file of numbers") as error:
        redraw(path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "a.png").exists()
    with pytest.raises(UserError, match=r"name the numbers beside a picture"):
        redraw(tmp_path / "a.json")


def test_numbers_are_plain_json(tmp_path):
    plot_panels([HEAT], "t", tmp_path / "a.png")
    text = (tmp_path / "a.panels.json").read_text()
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["panels"][0]["cells"] == [[1.0, 2.0], [3.0, None]]


def test_pictures_of_the_documentation_are_drawn_again(tmp_path, capsys):
    numbers = tmp_path / "b.panels.json"
    plot_panels([HEAT], "t", tmp_path / "b.png")
    (tmp_path / "b.png").unlink()
    assert redraw_all([str(numbers)]) == 0
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"{tmp_path / 'b.png'}\n"
    assert redraw_all([str(tmp_path / "c.panels.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("numbers", sorted(FIGURES.glob("*.panels.json")), ids=lambda one: one.stem)
def test_numbers_of_the_documentation_have_their_pictures(numbers):
    about = json.loads(numbers.read_text())
    title, stem = about["title"], numbers.name.removesuffix(".panels.json")
    assert [(FIGURES / f"{stem}{end}").is_file() for end in (".png", ".svg", "-dark.svg")] == [
        True
    ] * 3
    assert "@" not in title
    figure = figures._made(
        Figure,
        lambda made, on: laid_out(made, [_read(p) for p in about["panels"]], title, None, on),
        LIGHT,
    )
    assert figure.get_suptitle().replace("\n", " ") == title
