"""Runs as one HTML file, which opens without a network and in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from coterie.core.extras import require
from coterie.core.looking.comparison import compared
from coterie.core.looking.facts import RunFacts
from coterie.core.palette import BEST, DARK, LIGHT, OURS


def report(runs: Sequence[RunFacts]) -> str:
    """Write a page about one run, or about several beside each other.

    Args:
        runs: at least one. Where one trained the clients of the first alone, and there are no more
            than these two, the page is still the comparison.

    Raises:
        UserError: an extra is not installed, a folder is damaged, or runs are of several papers.
    """
    check_installed("coterie report")
    if len(runs) == 1:
        from coterie.core.looking.single import sections, state

        run = runs[0]
        title = f"{run.paper.name}: {run.method} on {run.data}, seed {run.seed}"
        return rendered(
            "report.html.j2", title=title, state=_badge(run.state, state(run)), parts=sections(run)
        )
    from coterie.core.looking import several

    found = compared(runs)
    labels = ", ".join(group.label for group in found.groups)
    title = f"{found.groups[0].first.config['paper']}: {labels}"
    badge = (f"{len(found.runs)} runs, {len(found.groups)} groups", "finished")
    return rendered("report.html.j2", title=title, state=badge, parts=several.sections(found))


def check_installed(what: str) -> None:
    """Refuse where the extra is missing.

    Raises:
        UserError: it is.
    """
    require("report", what, "jinja2", "vl_convert")


def _badge(state: str, words: str) -> tuple[str, str]:
    return words, state


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
