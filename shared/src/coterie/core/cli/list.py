"""``coterie list``: papers, methods, data sets, presets and tuned configurations. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.core.cli.command import JSON_HELP, Arguments, cell, print_json, say, tell
from coterie.core.registry.data_sets import data_sets
from coterie.core.registry.papers import papers, presets, variants


def run_list(argv: Sequence[str]) -> None:
    """Run the command."""
    parser = Arguments("list", "Show papers, methods, data sets, presets, tuned configurations.")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
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
        tell(cell(paper["title"]), f"{paper['paper']}: ")
        for name in ("reference", "package", "methods", "variants"):
            tell(cell(paper[name]), f"  {name:<10} ")
    if not known:
        say("No paper is installed, say: pip install ./packages/continual")
    say("Data sets (coterie data shows which are here)")
    longest = max(len(entry["data set"]) for entry in sets)
    for entry in sets:
        tell(entry["about"], f"  {entry['data set']:<{longest}}  ")
    tell(f"Presets: {', '.join(presets()) or 'none'}")
