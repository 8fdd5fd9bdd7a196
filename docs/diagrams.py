"""Draw the pictures of the concepts: python docs/diagrams.py writes docs/pictures/*.svg.

One file serves light and dark pages: its colours, those of `coterie.core.palette`, follow the
reader's preference. Texts are texts, so they can be searched and read aloud.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from coterie.core.palette import BEST, DARK, LIGHT, OURS, Surface

PICTURES = Path(__file__).parent / "pictures"
_LINE = 21  # between lines of text


@dataclass
class Picture:
    """A picture of boxes and arrows.

    Attributes:
        width: in pixels, at the size it is meant for.
        height: likewise.
        title: what it shows, in a sentence; what a screen reader says.
        parts: elements of SVG, in the order in which they are painted.
    """

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        head: str,
        *lines: str,
        kind: str = "",
    ) -> None:
        """Paint a box with a head and lines of text below it; ``kind`` is "private" or empty."""
        self.parts.append(
            f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        )
        top = y + height / 2 - _LINE * len(lines) / 2 + 6
        self.text(x + width / 2, top, head, "head")
        for row, line in enumerate(lines, 1):
            self.text(x + width / 2, top + _LINE * row, line)

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> None:
        """Write a line of text, its middle (or start) at ``x``."""
        self.parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        words: str = "",
        kind: str = "",
        above: float = 8,
    ) -> None:
        """Paint an arrow with words over its middle."""
        (x1, y1), (x2, y2) = start, end
        self.parts.append(
            f'<line class="arrow {kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
            f'marker-end="url(#{kind or "plain"})"/>'
        )
        if words:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - above, words, f"label {kind}")

    def svg(self) -> str:
        """Give the file."""
        room = f'width="{self.width}" height="{self.height}"'
        view = f'viewBox="0 0 {self.width} {self.height}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {room} {view} role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{_style(LIGHT)}",
            f"@media (prefers-color-scheme: dark) {{{_style(DARK)}}}</style>",
            f"<defs>{''.join(_tip(kind) for kind in ('plain', 'up', 'down'))}</defs>",
            f'<rect class="ground" {room}/>',
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def _tip(kind: str) -> str:
    size = 'viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8"'
    path = f'<path class="tip {kind}" d="M0 0L10 5L0 10z"/>'
    return f'<marker id="{kind}" {size} orient="auto-start-reverse">{path}</marker>'


def _style(on: Surface) -> str:
    up, down = (OURS, BEST) if on is LIGHT else ("#ff8a3d", "#56b4e9")
    return f"""
.ground {{ fill: {on.ground}; }}
text {{ font: 15px system-ui, sans-serif; fill: {on.ink}; }}
.head {{ font-weight: 600; }}
.small {{ font-size: 13px; }}
.box {{ fill: none; stroke: {on.ink}; stroke-width: 1.2; }}
.private {{ stroke-dasharray: 5 4; }}
.arrow {{ stroke: {on.ink}; stroke-width: 1.6; }}
.arrow.up {{ stroke: {up}; stroke-width: 2.4; }}
.arrow.down {{ stroke: {down}; stroke-width: 2.4; }}
.tip {{ fill: {on.ink}; }}
.tip.up, .label.up {{ fill: {up}; }}
.tip.down, .label.down {{ fill: {down}; }}
"""


def overview() -> Picture:
    """Who holds what, and what crosses."""
    drawn = Picture(860, 300, "Who holds what, and what crosses between clients and coordinator")
    for row, (name, holds) in enumerate(
        [
            ("phone", "what its user watched"),
            ("shop", "what its buyers chose"),
            ("company", "what its users rated"),
        ]
    ):
        y = 22 + 90 * row
        drawn.box(20, y, 230, 72, name, f"keeps {holds}", kind="private")
        drawn.arrow((254, y + 28), (420, 118 + 22 * row), kind="up")
        drawn.arrow((420, 130 + 22 * row), (254, y + 44), kind="down")
    drawn.box(424, 92, 150, 96, "guard, ledger", "check and count", "every field")
    drawn.arrow((578, 130), (676, 130), kind="up")
    drawn.arrow((676, 150), (578, 150), kind="down")
    drawn.box(680, 92, 160, 96, "coordinator", "adds updates up,", "has no data")
    drawn.text(424, 40, "update: declared fields only", "label up", "start")
    drawn.text(424, 252, "model: what everybody may know", "label down", "start")
    return drawn


def ask() -> Picture:
    """One round as the server half writes it: sample, ask, fold, move."""
    drawn = Picture(868, 250, "One round: the server asks a cohort for a step, and gets a sum")
    drawn.box(20, 80, 170, 90, "server half", "model w", "one round = one call")
    drawn.arrow((194, 108), (330, 108), "ask(step, model)", "down")
    drawn.box(
        334, 60, 190, 130, "cohort", "each client: guard,", "step, guard", "in stacks of many"
    )
    drawn.arrow((664, 84), (528, 84), "state in")
    drawn.arrow((528, 132), (664, 132), "state kept", above=-20)
    drawn.box(
        668,
        30,
        180,
        150,
        "client store",
        "one row a client:",
        "user vector, memory,",
        "own optimiser",
        kind="private",
    )
    drawn.arrow((330, 148), (194, 148), "fold: sum, mean", "up", above=-20)
    drawn.text(
        430,
        230,
        "An answer counts whole or not at all: state is kept only where the upload was accepted.",
        "small",
    )
    return drawn


def ledger() -> Picture:
    """A message is a class whose fields say what leaves; guard and ledger read it."""
    drawn = Picture(860, 250, "Every field that crosses is declared, checked and counted")
    drawn.box(
        20, 40, 200, 120, "client's step", "gives a message", "and private state", kind="private"
    )
    drawn.arrow((224, 100), (286, 100), "", "up")
    drawn.box(290, 20, 140, 160, "guard", "declared?", "right shape?", "finite?", "within bounds?")
    drawn.arrow((434, 100), (486, 100), "", "up")
    drawn.box(490, 40, 150, 120, "noise, clipping", "if asked for")
    drawn.arrow((644, 70), (706, 70), "", "up")
    drawn.arrow((644, 140), (706, 140), "", "up")
    drawn.box(710, 30, 130, 70, "server", "folds it")
    drawn.box(710, 110, 130, 70, "ledger", "counts bytes")
    drawn.text(430, 225, "A field that no message declares cannot leave.", "small")
    return drawn


def card() -> Picture:
    """All that both halves share stands on one card."""
    drawn = Picture(860, 240, "Settings and public facts on one card make both halves")
    drawn.box(
        330,
        20,
        200,
        110,
        "card",
        "settings, public facts,",
        "digests of constants",
        "nobody's data",
    )
    drawn.arrow((326, 75), (234, 75), "", "down")
    drawn.arrow((534, 75), (626, 75), "", "down")
    drawn.box(
        20,
        20,
        210,
        110,
        "client half",
        "card + own folder",
        "compares digests",
        "of the constants",
        kind="private",
    )
    drawn.box(
        630, 20, 210, 110, "server half", "card + own folder", "knows ids,", "no interactions"
    )
    drawn.arrow((125, 190), (735, 190), "messages alone", "up")
    drawn.parts.append('<line class="arrow" x1="125" y1="134" x2="125" y2="190"/>')
    drawn.parts.append('<line class="arrow" x1="735" y1="190" x2="735" y2="134"/>')
    drawn.text(
        430,
        225,
        "A half that was built from another card is refused before the first round.",
        "small",
    )
    return drawn


def engines() -> Picture:
    """The same halves in one process, in processes, on machines."""
    drawn = Picture(
        860, 280, "One algorithm, three places: one process, processes of a machine, machines"
    )
    drawn.box(300, 16, 260, 64, "server half, client half", "one algorithm, one seed")
    places = [
        ("one process", "stacked clients,", "thousands a second"),
        ("processes, Ray", "a folder and a process", "for each party"),
        ("Flower's runtime", "a machine for each party,", "certificates, retries"),
    ]
    for column, (head, *lines) in enumerate(places):
        x = 20 + 287 * column
        drawn.arrow((430, 84), (x + 123, 136), "", "down")
        drawn.box(x, 140, 246, 90, head, *lines, kind="private" if column else "")
    drawn.text(
        430,
        262,
        "coterie certify-engines compares them: the same bits on one kind of processor.",
        "small",
    )
    return drawn


DRAWN: Iterable[Callable[[], Picture]] = (overview, ask, ledger, card, engines)


def main() -> None:
    """Write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    for draw in DRAWN:
        (PICTURES / f"{draw.__name__}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
