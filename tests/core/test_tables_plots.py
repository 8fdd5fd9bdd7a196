"""What is drawn, read back from the axes."""

import pytest

from coterie.core.tables import plots
from coterie.core.tables.paired import compare
from coterie.core.tables.plots import plot_differences

DIFFERENCES = {
    "test": {"FT": compare([0.3, 0.4, 0.6], [0.1, 0.1, 0.2]), "KD": compare([0.3], [0.4])},
    "validation": {"FT": compare([0.3, 0.4, 0.6], [0.4, 0.4, 0.8])},
}


def test_differences_are_drawn_with_their_intervals(tmp_path, monkeypatch):
    figures = []
    saved = plots._save
    monkeypatch.setattr(plots, "_save", lambda f, *rest: (figures.append(f), saved(f, *rest))[1])
    path = plot_differences(DIFFERENCES, "a minus b", "title", tmp_path / "new/folder/a.png")
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
