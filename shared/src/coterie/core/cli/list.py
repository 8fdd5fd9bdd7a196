"""``coterie list``: papers, methods, data sets, presets and tuned configurations. Torch-free."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from coterie.core.cli.arguments import Arguments
from coterie.core.cli.output import cell, console, print_json, print_rows, say
from coterie.core.registry.data_sets import data_sets
from coterie.core.registry.papers import papers
from coterie.core.settings.packed import presets, variants


def run(argv: Sequence[str]) -> None:
    """Run the command."""
    parser = Arguments("list", "Show papers, methods, data sets, presets, tuned configurations.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(argv)
    known = [
        {
            "paper": paper.name,
            "package": f"coterie.{paper.package}",
            "title": paper.title,
            "reference": paper.reference,
            "methods": list(paper.methods),
            "variants": variants(paper),
        }
        for paper in papers().values()
    ]
    sets = [{"data set": entry.name, "about": entry.about} for entry in data_sets().values()]
    if given.json:
        print_json({"papers": known, "data": sets, "presets": presets()})
        return
    for paper in known:
        say(_folded(f"{paper['paper']}: ", cell(paper["title"])))
        for name in ("reference", "package", "methods", "variants"):
            say(_wrapped(name, cell(paper[name])))
    if not known:
        say("No paper is installed, say: pip install ./packages/continual")
    print_rows(sets, title="Data sets (coterie data shows which are here)")
    say(f"Presets: {', '.join(presets()) or 'none'}")


def _wrapped(name: str, text: str) -> str:
    """A value below its name."""
    return _folded(f"  {name:<10} ", text)


def _folded(head: str, text: str) -> str:
    """Fold a text to the width of the terminal, between words, behind a head."""
    indents: Any = {"initial_indent": head, "subsequent_indent": " " * len(head)}
    width = min(console().width, 100)
    return textwrap.fill(text, width, **indents, break_long_words=False, break_on_hyphens=False)
