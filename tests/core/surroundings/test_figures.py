"""A figure that cannot be drawn costs the figure and a line."""

import logging
import os
import subprocess
import sys

import matplotlib
import pytest
from matplotlib.image import imread

from coterie.core.figures import draw_files
from coterie.core.palette import DARK, LIGHT

pytestmark = pytest.mark.usefixtures("drawn_anew")


def bars(figure_class, surface):
    figure = figure_class(figsize=(2, 1))
    figure.subplots().bar([0, 1], [1, 2])
    return figure


@pytest.mark.parametrize(
    "backend", ["module://matplotlib_inline.backend_inline", "nonsense", "TkAgg"]
)
def test_no_backend_of_the_environment_is_needed(backend, tmp_path):
    """In a process of its own: matplotlib reads the variable when it is first imported."""
    code = (
        "import os, sys; from pathlib import Path; from coterie.core.figures import draw_files;"
        "done = draw_files(Path(sys.argv[1]), lambda figure, surface: figure(figsize=(2, 1)));"
        "assert os.environ['MPLBACKEND'] == sys.argv[2]; sys.exit(not done)"
    )
    path = tmp_path / "a.png"
    subprocess.run(
        [sys.executable, "-c", code, str(path), backend],
        env=os.environ | {"MPLBACKEND": backend},
        check=True,
    )
    assert imread(path).shape == (192, 384, 4)  # two pixels for each of a usual screen


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no font"),
        ImportError("No module named 'matplotlib'"),
        OSError(2, "no cache"),
        RuntimeError("latex\ncould not be found"),
    ],
)
def test_whatever_goes_wrong_is_one_line(error, tmp_path, caplog):
    path = tmp_path / "a.png"
    for name in ("a.png", "a.svg", "a-dark.svg"):
        (tmp_path / name).write_bytes(b"of an earlier run")

    def broken(figure_class, surface):
        raise error

    with caplog.at_level(logging.WARNING):
        assert not draw_files(path, broken)
    [line] = caplog.messages
    assert line.startswith(f"{path} is not drawn: {type(error).__name__}: ")
    assert "\n" not in line
    assert list(tmp_path.iterdir()) == []


def test_a_picture_is_png_and_svg_and_the_same_each_time(tmp_path):
    names = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        names.append([file.name for file in draw_files(folder / "a.png", bars, dark=True)])
    assert names == [["a.png", "a.svg", "a-dark.svg"]] * 2
    for name in names[0]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    light, dark = ((tmp_path / "one" / name).read_text().lower() for name in names[0][1:])
    assert LIGHT.ground in light
    assert DARK.ground in dark
    assert LIGHT.ground not in dark
    assert [file.name for file in draw_files(tmp_path / "b.png", bars)] == ["b.png", "b.svg"]


def test_settings_of_matplotlib_are_neither_read_nor_changed(tmp_path):
    draw_files(tmp_path / "a.png", bars)
    with matplotlib.rc_context({"axes.facecolor": "red", "axes.grid": True, "savefig.dpi": 10}):
        before = dict(matplotlib.rcParams)
        draw_files(tmp_path / "b.png", bars)
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_an_interruption_is_none_of_these(tmp_path):
    def interrupted(figure_class, surface):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_files(tmp_path / "a.png", interrupted)


def test_a_full_disk_is_an_error_of_the_disk(tmp_path):
    with pytest.raises(FileNotFoundError):
        draw_files(tmp_path / "nowhere" / "a.png", bars)
