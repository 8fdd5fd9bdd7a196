"""``coterie train PAPER``: train a paper on a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.core.cli.arguments import paper_first, wants_help
from coterie.core.cli.output import say, tell
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
    paper, rest = paper_first(argv, "train")
    configuration = configure_run(paper, rest)
    if configuration.given.print_config:
        say(to_yaml(configuration.settings, paper.name).rstrip())
        return
    general = f"configs/{paper.name}.yaml"
    if general not in configuration.sources and not configuration.settings.run.resume:
        tell(f"Settings: there is no {general}, packed or in the checkout: its defaults are used")
    if configuration.variants:
        files = ", ".join(f"configs/{paper.name}/{name}.yaml" for name in configuration.variants)
        tell(f"Settings: {files} (--variant none for the general ones)")
    heavy("coterie.core.training.train").train(paper, configuration.settings)


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
        say("usage: coterie train PAPER [--config FILE] [--preset NAME] [--KEY VALUE ...]\n")
        say("Train a paper on a data set. Settings of a paper: coterie train PAPER --help\n")
        say("papers:")
        for paper in papers().values():
            tell(f"{paper.title} ({paper.reference})", f"  {paper.name:<12} ")
    else:
        print_help(paper_first(argv, "train")[0], "train")
