"""Commands that look at runs: compare them, report on them, show them in a browser."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    print_json,
    print_rows,
    say,
    tell,
)
from coterie.core.errors import UserError
from coterie.core.extras import require
from coterie.core.files import write_text, writing
from coterie.core.looking.comparison import Comparison, compared, read_runs
from coterie.core.looking.sections import Sheet
from coterie.core.looking.tables import document, sheets
from coterie.core.registry.papers import heavy
from coterie.core.tables.report import markdown_table

_LAST_PORT = 65535


def run_compare(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments(
        "compare",
        "Put runs of a paper beside each other: settings, numbers over seeds with paired tests, "
        "what leaves a client, costs. The paper's own method, or else that of the first RUN, is "
        "tested against the others.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parser.add_argument("--markdown", action="store_true", help="print markdown tables")
    given = parser.parse_args(argv)
    if given.json and given.markdown:
        raise UserError("--json and --markdown are two forms of one answer: leave one of them out")
    found = compared(read_runs(_of_runs(given.runs)))
    if given.json:
        print_json(document(found))
        return
    for sheet in sheets(found):
        _show(sheet, given.markdown)
    _warn(found, given.markdown)


def _of_runs(paths: Sequence[Path]) -> Sequence[Path]:
    """Leave out what is beside runs, as ``runs/pplr/*`` names the folder of backbones too.

    Where no run is left, nothing is left out, and reading the first one says what is wrong.
    """
    beside = [path for path in paths if path.exists() and not (path / "config.yaml").exists()]
    if len(beside) == len(paths):
        return paths
    for path in beside:
        tell(f"{path} is left out: it is not the folder of a run", "Warning: ")
    return [path for path in paths if path not in beside]


def _show(sheet: Sheet, as_markdown: bool) -> None:
    if as_markdown:
        say(f"## {sheet.title}\n")
        say("\n".join(markdown_table(sheet.rows)))
        say("".join(f"\n{note}\n" for note in sheet.notes))
        return
    print_rows(sheet.rows, sheet.title, first=sheet.first)
    for note in sheet.notes:
        tell(note)
    say("")


def _warn(found: Comparison, as_markdown: bool) -> None:
    for line in found.warnings:
        if as_markdown:
            say(f"- Warning: {line}")
        else:
            tell(line, "Warning: ")


# ``coterie report RUN...``: runs as one HTML file.


def run_report(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments(
        "report",
        "Write runs as one HTML file, which opens without a network. Several RUNs of a paper are "
        "put beside each other, seeds of the same settings together.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE.html",
        help="default: report.html in the folder of the run, or here for several",
    )
    given = parser.parse_args(argv)
    page = heavy("coterie.core.looking.report")
    page.check_installed("coterie report")
    runs = read_runs(_of_runs(given.runs))
    out = given.out or (runs[0].path / "report.html" if len(runs) == 1 else Path("report.html"))
    if out.is_dir():
        raise UserError(f"{out} is a folder: name a file in it, as --out {out / 'report.html'}")
    html: str = page.report(runs)
    with writing(out, elsewhere="choose another file by --out FILE.html"):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, html)
    tell(f"Written to {out} ({len(html.encode()) / 1e3:,.0f} kB)")


# ``coterie ui``: the runs of a folder in a browser.


def run_ui(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments(
        "ui",
        "Show the runs of a folder in a browser, live while they train. It reads only, and answers "
        "this machine alone.",
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder (default: runs)"
    )
    parser.add_argument(
        "--port", type=_port, default=8001, help="of 127.0.0.1 (default: 8001); 0 takes a free one"
    )
    given = parser.parse_args(argv)
    require("ui", "coterie ui", "fastapi", "uvicorn", "jinja2", "vl_convert")
    if not given.runs.is_dir():
        raise UserError(f"there is no folder {given.runs}: name that of your runs by --runs DIR")
    heavy("coterie.core.looking.server").serve(given.runs, given.port, tell)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _LAST_PORT:
        raise ArgumentTypeError(f"expected a port, 0 to {_LAST_PORT}, not '{text}'")
    return int(text)
