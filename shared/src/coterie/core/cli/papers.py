"""Commands on a paper: train it, reproduce tables, measure its speed, show what leaves a client."""

from __future__ import annotations

import json
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    aside,
    paper_first,
    positive,
    print_json,
    print_report,
    print_rows,
    say,
    seeds,
    tell,
    tell_facts,
    wants_help,
)
from coterie.core.errors import UserError
from coterie.core.looking.privacy import releases
from coterie.core.registry.papers import Paper, find_paper, heavy, load, papers
from coterie.core.run.runfolder import RunFolder, further, paper_of, resumable, stored_settings
from coterie.core.settings.configuration import Configuration, configure, print_help, to_yaml
from coterie.core.settings.sections import DataSettings
from coterie.core.tables.latex import latex_table
from coterie.core.tables.report import Report, markdown_table


def run_train(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    if wants_help(argv):
        _help(argv)
        return
    as_json = "--json" in argv
    paper, rest = paper_first([word for word in argv if word != "--json"], "train")
    configuration = configure_run(paper, rest)
    if configuration.given.print_config:
        say(to_yaml(configuration.settings, paper.name).rstrip())
        return
    if as_json and configuration.settings.trainer.fast_dev_run:
        raise UserError(
            "'trainer.fast_dev_run' keeps nothing that --json could print: leave one of them out"
        )
    with aside(as_json):
        folder = _trained(paper, configuration)
    if as_json:
        print_json(_document(folder))


def _trained(paper: Paper, configuration: Configuration) -> Path:
    general = f"configs/{paper.name}.yaml"
    if general not in configuration.sources and not configuration.settings.run.resume:
        tell(f"Settings: there is no {general}, packed or in the checkout: its defaults are used")
    if configuration.variants:
        files = ", ".join(f"configs/{paper.name}/{name}.yaml" for name in configuration.variants)
        tell(f"Settings: {files} (--variant none for the general ones)")
    _tell_of_rows(paper, configuration)
    folder: Path = heavy("coterie.core.training.train").train(paper, configuration.settings)
    return folder


def _tell_of_rows(paper: Paper, configuration: Configuration) -> None:
    """Say that a run has the rows of a file already, which otherwise would look as if added now."""
    run, name = configuration.settings.run, configuration.given.flags.get("data.name")
    if name is None or not run.resume:
        return
    had = getattr(RunFolder.open(run.folder / paper.name / run.name).settings.data, "more", ())
    if str(Path(name).expanduser().absolute()) in had:
        tell(f"Data: the run has the rows of {name} already")


def _document(folder: Path) -> dict[str, Any]:
    """The summary of a run, its notes among it, and where the run is."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {"run": str(folder), "finished": bool(summary), **summary}


def configure_run(paper: Paper, argv: Sequence[str]) -> Configuration:
    """Read the settings of a run; one that is resumed starts from its own stored settings.

    Raises:
        UserError: for bad settings, or if there is nothing to resume.
    """
    configuration = configure(paper, argv)
    data = configuration.settings.data
    if isinstance(data, DataSettings) and data.columns:
        from coterie.core.data.sources.file_forms import check_columns  # pyarrow is heavy

        check_columns(data.name, data.columns)
    if not configuration.settings.run.resume:
        return configuration

    def again(path: Path) -> Configuration:
        found = configure(paper, argv, stored_settings(path))
        return replace(found, settings=further(path, found.settings))

    settings = configuration.settings
    if not settings.run.name:
        # Folders are named by what the reading fills in, which only the experiment knows.
        settings = load(paper.experiment)(settings).settings
    return again(resumable(paper, settings, lambda path: again(path).settings))


def _help(argv: Sequence[str]) -> None:
    if argv[0].startswith("-"):
        say("usage: coterie train PAPER [--config FILE] [--preset NAME] [--json]")
        say("                           [--KEY VALUE ...]\n")
        say("Train a paper on a data set. Settings of a paper: coterie train PAPER --help\n")
        tell(f"{JSON_HELP}: the run's folder, its metrics and notes", "--json  ")
        say("")
        say("papers:")
        for paper in papers().values():
            tell(f"{paper.title} ({paper.reference})", f"  {paper.name:<12} ")
    else:
        print_help(paper_first(argv, "train")[0], "train")


# ``coterie table PAPER --table 2``: reproduce a table or a figure of a paper.

_ABOUT_TABLE = (
    "Reproduce a table or a figure of a paper beside its own numbers. Every setting of "
    "`coterie train PAPER` may be given too, as --data NAME."
)


def run_table(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("table PAPER", _ABOUT_TABLE)
    which = parser.add_mutually_exclusive_group()  # a variant may have a table without a number
    which.add_argument("--table", type=positive, metavar="N", help="number of the paper's table")
    which.add_argument("--figure", type=positive, metavar="N", help="number of the paper's figure")
    parser.add_argument("--seeds", type=seeds, help="how many, or which: 5, or '0 1 2'")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    paper, given, flags = parser.of_paper(argv)
    if paper.tables is None:
        raise UserError(f"{paper.name} reproduces no tables")
    chosen = configure(paper, flags)
    with aside(given.json):
        report = load(paper.tables)(
            chosen, table=given.table, figure=given.figure, seeds=given.seeds
        )
    saved = report.save(chosen.settings.run.folder / paper.name / "tables")
    if given.json:
        print_json(report.rows)
    else:
        print_report(report, saved)


# ``coterie bench PAPER``: measure speed against a reference loop.

_ABOUT_BENCH = (
    "Measure speed and memory against a reference loop that is part of the benchmark. This needs a "
    "clone of coterie: benchmarks are in the repository alone. Every setting of `coterie train "
    "PAPER` may be given too."
)
_CORE = Path(__file__).resolve().parents[1]


def run_bench(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("bench PAPER", _ABOUT_BENCH)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    paper, given, flags = parser.of_paper(argv)
    if paper.bench is None:
        raise UserError(f"{paper.name} has no benchmark")
    reach(paper)
    settings = configure(paper, flags).settings
    with aside(given.json):
        rows = list(load(paper.bench)(settings))
    report = Report("bench", f"Speed of {paper.name}", rows)
    saved = report.save(settings.run.folder / paper.name / "bench")
    if given.json:
        print_json(rows)
    else:
        print_report(report, saved)


def reach(paper: Paper) -> None:
    """Let ``benchmarks``, which a clone has on its top level, be imported.

    A paper whose benchmark is in a package of its own is imported from there, clone or not.

    Raises:
        UserError: the benchmark is in the repository, and this coterie is none of its clones.
    """
    clone = clone_of(_CORE)
    if clone is not None:
        sys.path.insert(0, str(clone))
    elif str(paper.bench).startswith("benchmarks."):
        raise UserError(
            "benchmarks are in coterie's repository, not in what is installed: git clone it, and "
            f"in the clone say make bench PAPER={paper.name}"
        )


def clone_of(core: Path) -> Path | None:
    """Find the clone that the folder of the core is a part of; None for that of a wheel."""
    if core.parts[-4:] != ("shared", "src", "coterie", "core"):
        return None
    clone = core.parents[3]
    return clone if (clone / "benchmarks" / "__init__.py").is_file() else None


# ``coterie privacy PAPER``: show what leaves a client, or attack the uploads of a run.

_TITLE = ("direction", "step", "message", "field")
"""What names a field that crosses, as in ``up update: items of ItemUpdate``."""


def run_privacy(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("privacy", "Show every field that crosses the boundary of a client.")
    parser.add_argument("paper", nargs="?", metavar="PAPER", help="of one paper; default: of all")
    parser.add_argument("--method", help="of the paper; default: the one that it is about")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help=JSON_HELP)
    form.add_argument("--markdown", action="store_true", help="print a markdown table")
    form.add_argument("--latex", action="store_true", help="print a LaTeX table")
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
    if given.method is not None and not given.paper:
        raise UserError("'--method' is of one paper: name it, as in coterie privacy mtal")
    tables = {paper.name: releases(paper, given.steps, given.method) for paper in chosen}
    if given.json:
        print_json([{"paper": name} | row for name, rows in tables.items() for row in rows])
        return
    for name, rows in tables.items():
        _show(name, rows, given)


def _show(name: str, rows: Sequence[Mapping[str, str]], given: Namespace) -> None:
    title = f"What crosses the boundary in {name}"
    if given.markdown:
        say("\n".join(markdown_table(rows)))
        return
    if given.latex:
        say(latex_table(rows, title, f"privacy-{name}").rstrip())
        return
    tell(title)
    for row in rows:
        title = f"{row['direction']} {row['step']}: {row['field']} of {row['message']}"
        more = {column: text for column, text in row.items() if column not in _TITLE}
        tell_facts(title, more, style="bold" if row["direction"] == "up" else "dim")
    tell(heavy("coterie.core.privacy.releases").UNITS)


def _words(text: str) -> list[str]:
    """Read names as the setting is given: ``[update, evaluate]``, or without brackets."""
    return text.strip("[] ").replace(",", " ").split()
