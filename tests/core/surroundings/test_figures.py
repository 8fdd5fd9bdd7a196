"""A figure that cannot be drawn costs the figure and a line."""

import logging
import os
import subprocess
import sys

import pytest
from matplotlib.image import imread

from coterie.core.figures import draw_png

pytestmark = pytest.mark.usefixtures("drawn_anew")


def bars(figure_class):
    figure = figure_class(figsize=(2, 1))
    figure.subplots().bar([0, 1], [1, 2])
    return figure


@pytest.mark.parametrize(
    "backend", ["module://matplotlib_inline.backend_inline", "nonsense", "TkAgg"]
)
def test_no_backend_of_the_environment_is_needed(backend, tmp_path):
    """In a process of its own: matplotlib reads the variable when it is first imported."""
    code = (
        "import os, sys; from pathlib import Path; from coterie.core.figures import draw_png;"
        "done = draw_png(Path(sys.argv[1]), lambda figure: figure(figsize=(2, 1)));"
        "assert os.environ['MPLBACKEND'] == sys.argv[2]; sys.exit(not done)"
    )
    path = tmp_path / "a.png"
    subprocess.run(
        [sys.executable, "-c", code, str(path), backend],
        env=os.environ | {"MPLBACKEND": backend},
        check=True,
    )
    assert imread(path).shape == (150, 300, 4)


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
    path.write_bytes(b"of an earlier run")

    def broken(figure_class):
        raise error

    with caplog.at_level(logging.WARNING):
        assert not draw_png(path, broken)
    [line] = caplog.messages
    assert line.startswith(f"{path} is not drawn: {type(error).__name__}: ")
    assert "\n" not in line
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_is_none_of_these(tmp_path):
    def interrupted(figure_class):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        draw_png(tmp_path / "a.png", interrupted)


def test_a_full_disk_is_an_error_of_the_disk(tmp_path):
    with pytest.raises(FileNotFoundError):
        draw_png(tmp_path / "nowhere" / "a.png", bars)
