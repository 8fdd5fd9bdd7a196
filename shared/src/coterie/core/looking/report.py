"""Runs as one HTML file, which opens without a network and in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from coterie.core.extras import require
from coterie.core.looking.comparison import compared
from coterie.core.looking.facts import RunFacts
from coterie.core.palette import BEST, DARK, LIGHT, OURS


def report(runs: Sequence[RunFacts], *, listed: bool = False) -> str:
    """Write a page about one run, or about several beside each other.

    Args:
        runs: at least one. Where one trained the clients of the first alone, and there are no more
            than these two, the page is still the comparison.
        listed: whether the page is opened from the list of `coterie ui`, and leads back to it.

    Raises:
        UserError: an extra is not installed, a folder is damaged, or runs are of several papers.
    """
    check_installed("coterie report")
    if len(runs) == 1:
        from coterie.core.looking.single import sections, state

        run = runs[0]
        title = f"{titled(run)} on {run.data}, seed {run.seed}"
        badge, parts = (state(run), run.state), sections(run)
        return rendered("report.html.j2", title=title, state=badge, parts=parts, listed=listed)
    from coterie.core.looking import several

    found = compared(runs)
    labels = ", ".join(group.label for group in found.groups)
    title = f"{found.groups[0].first.paper.written}: {labels}"
    badge = (f"{len(found.runs)} runs, {len(found.groups)} groups", "finished")
    parts = several.sections(found)
    return rendered("report.html.j2", title=title, state=badge, parts=parts, listed=listed)


def titled(run: RunFacts) -> str:
    """Say what was trained: the paper, and the method where it is not the paper's own."""
    paper = run.paper
    return paper.written if run.method == paper.name else f"{paper.written}: {run.method}"


def check_installed(what: str) -> None:
    """Refuse where the extra is missing.

    Raises:
        UserError: it is.
    """
    require("report", what, "jinja2", "vl_convert")


def rendered(template: str, **values: Any) -> str:
    """Fill in a template of this folder; what is filled in is text, never markup."""
    return str(_environment().get_template(template).render(**values))


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("coterie.core.looking"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "light": LIGHT,
        "dark": DARK,
        "ours": OURS,
        "best": BEST,
        "drawn": Markup,  # of charts alone, whose texts vl-convert has escaped
    }
    return environment
