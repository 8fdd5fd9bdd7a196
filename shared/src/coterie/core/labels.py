"""Names at the ends of lines, moved apart where they would overlap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

_END = "name at the end of a line"
_BESIDE = 1.02  # of the width of a plot


def name_end(
    axes: Any,
    name: str,
    end: tuple[float, float],
    colour: str,
    thread: str,
    size: float,
    bold: bool = False,
) -> None:
    """Write a name to the right of a plot at the height of a line's end; see `settle`.

    Args:
        axes: of the plot.
        name: of the line.
        end: of the line.
        colour: of the name.
        thread: colour of the thin line from the end to the name.
        size: of the letters, in points.
        bold: whether the letters are.
    """
    axes.annotate(
        name,
        end,
        xytext=(_BESIDE, 0.5),
        textcoords="axes fraction",
        annotation_clip=False,
        va="center",
        ha="left",
        fontsize=size,
        fontweight="bold" if bold else "normal",
        color=colour,
        gid=_END,
        parse_math=False,
        arrowprops={
            "arrowstyle": "-",
            "color": thread,
            "linewidth": 0.6,
            "relpos": (0.0, 0.5),
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )


def settle(figure: Any) -> None:
    """Lay a figure out for good, and move the names at the ends of lines apart."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")
    for axes in figure.axes:
        labels = [text for text in axes.texts if text.get_gid() == _END]
        if labels:
            _move_apart(axes, labels, renderer)


def _move_apart(axes: Any, labels: Sequence[Any], renderer: Any) -> None:
    axes.get_xlim(), axes.get_ylim()  # what was drawn since is taken into account
    box = axes.get_window_extent(renderer)
    ends = [float(axes.transData.transform(one.xy)[1]) for one in labels]
    order = sorted(range(len(labels)), key=lambda place: ends[place])
    heights = [_height(labels[place], renderer) for place in order]
    wanted = [min(max(ends[place], box.y0), box.y1) for place in order]
    for place, y in zip(order, apart(wanted, heights, box.y0, box.y1), strict=True):
        labels[place].set_position((_BESIDE, (y - box.y0) / box.height))


def _height(label: Any, renderer: Any) -> float:
    from matplotlib.text import Text

    return float(Text.get_window_extent(label, renderer).height) + 2.0


def apart(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Move labels apart by as little as may be (least squares, pool adjacent violators).

    Args:
        wanted: ascending middles.
        heights: of the labels.
        low: the lowest that a middle may be.
        high: the highest, where there is room for all.

    Returns:
        Middles of labels that do not overlap.

    Example:
        >>> apart([0.0, 1.0, 50.0], [10.0, 10.0, 10.0], -100.0, 100.0)
        [-4.5, 5.5, 50.0]
    """
    steps = [0.0]
    for below, above in pairwise(heights):
        steps.append(steps[-1] + (below + above) / 2)
    pools: list[list[float]] = []  # of neighbours that touch: sum and number of what they want
    for want, step in zip(wanted, steps, strict=True):
        pools.append([want - step, 1.0])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1] = [pools[-1][0] + total, pools[-1][1] + count]
    flat = [total / count for total, count in pools for _ in range(int(count))]
    top = max(low, high - steps[-1])
    return [min(max(z, low), top) + step for z, step in zip(flat, steps, strict=True)]
