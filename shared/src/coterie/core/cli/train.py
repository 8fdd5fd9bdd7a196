"""``coterie train PAPER``: train a paper on a data set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.core.cli.arguments import paper_first, wants_help
from coterie.core.cli.output import JSON_HELP, aside, print_json, say, tell
from coterie.core.registry.importing import heavy
from coterie.core.registry.papers import Paper, load, papers
from coterie.core.run.runfolder import resumable, stored_settings
from coterie.core.settings.configuration import Configuration, configure, print_help, to_yaml
from coterie.core.settings.sections import DataSettings


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
    folder: Path = heavy("coterie.core.training.train").train(paper, configuration.settings)
    return folder


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
        from coterie.core.data.sources.columns import check_columns  # pyarrow is heavy

        check_columns(data.name, data.columns)
    if not configuration.settings.run.resume:
        return configuration

    def again(path: Path) -> Configuration:
        return configure(paper, argv, stored_settings(path))

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
