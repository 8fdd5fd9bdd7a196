"""``coterie privacy PAPER``: show what leaves a client, or attack the uploads of a run."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.core.cli.arguments import Arguments
from coterie.core.cli.output import (
    JSON_HELP,
    aside,
    print_json,
    print_rows,
    say,
    tell,
    tell_facts,
)
from coterie.core.errors import UserError
from coterie.core.registry.importing import heavy
from coterie.core.registry.papers import Paper, find_paper, load, papers
from coterie.core.run.runfolder import paper_of
from coterie.core.tables.report import markdown_table

_TITLE = ("direction", "step", "message", "field")
"""What names a field that crosses, as in ``up update: items of ItemUpdate``."""


def run_privacy(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("privacy", "Show every field that crosses the boundary of a client.")
    parser.add_argument("paper", nargs="?", metavar="PAPER", help="of one paper; default: of all")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parser.add_argument("--markdown", action="store_true", help="print a markdown table")
    parser.add_argument(
        "--privacy.steps",
        dest="steps",
        type=_words,
        default=[],
        metavar="[STEP,STEP]",
        help="tell what is covered with this setting of coterie train",
    )
    parser.add_argument("--attack", type=Path, metavar="RUN", help="attack one upload of a run")
    parser.add_argument(
        "--scales",
        type=float,
        nargs="+",
        default=[0.0, 0.1, 0.3, 0.5],
        metavar="S",
        help="with --attack: of Laplace noise, as privacy.scale (default: 0 0.1 0.3 0.5)",
    )
    parser.add_argument(  # its old name; the setting privacy.noise is a kind of noise
        "--noise", dest="scales", type=float, nargs="+", default=SUPPRESS, help=SUPPRESS
    )
    given = parser.parse_args(argv)
    chosen = [find_paper(given.paper)] if given.paper else papers().values()
    if given.attack is not None:
        paper_of(given.attack)
        with aside(given.json):
            rows, figure = heavy("coterie.core.run.serving").attack(given.attack, given.scales)
        print_rows(rows, "How well one upload tells a user's positive items", given.json)
        if not given.json and figure is not None:
            tell(f"Drawn in {figure}")
        return
    tables = {paper.name: _rows(paper, given.steps) for paper in chosen}
    if given.json:
        print_json([{"paper": name} | row for name, rows in tables.items() for row in rows])
        return
    for name, rows in tables.items():
        _show(name, rows, given.markdown)


def _rows(paper: Paper, steps: Sequence[str]) -> list[dict[str, str]]:
    if paper.client is None:
        raise UserError(f"{paper.name} names no client class, so its protocol is not known")
    table, client = heavy("coterie.core.privacy.table"), load(paper.client)
    heavy("coterie.core.privacy.build").check_steps(steps, client.steps())
    rows: list[dict[str, str]] = table.protocol_table(client, steps)
    return rows


def _show(name: str, rows: Sequence[Mapping[str, str]], as_markdown: bool) -> None:
    if as_markdown:
        say("\n".join(markdown_table(rows)))
        return
    tell(f"What crosses the boundary in {name}")
    for row in rows:
        title = f"{row['direction']} {row['step']}: {row['field']} of {row['message']}"
        more = {column: text for column, text in row.items() if column not in _TITLE}
        tell_facts(title, more, style="bold" if row["direction"] == "up" else "dim")
    tell(heavy("coterie.core.privacy.table").UNITS)


def _words(text: str) -> list[str]:
    """Read names as the setting is given: ``[update, evaluate]``, or without brackets."""
    return text.strip("[] ").replace(",", " ").split()
