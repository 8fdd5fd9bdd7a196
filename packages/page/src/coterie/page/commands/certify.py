"""``coterie page certify``: test how near a run is to an equilibrium (Definition 4)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coterie.core.cli.command import Arguments, aside, print_json, print_rows, say, tell, wants_help
from coterie.core.errors import UserError
from coterie.core.settings.configuration import split
from coterie.core.settings.parser import leaves
from coterie.page.settings import CertificateSettings

ABOUT = (
    "Test how much a player of a trained run would gain by one deviation from the learned play: "
    "ε of the feedback Stackelberg equilibrium. Refuses (status 1) where it is none."
)


def run(argv: Sequence[str]) -> None:
    """Run the command.

    Raises:
        UserError: there is no such run, it plays no game, its folder cannot be written, or a
            setting is bad.
        SystemExit: with status 1 where the certificate is refused.
    """
    parser = Arguments("page certify", ABOUT)
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="trained run")
    parser.add_argument("--json", action="store_true", help="print the certificate as JSON")
    if wants_help(argv):
        say(parser.format_help().rstrip())
        say("\nSettings of the test; those not given are the run's own, usually the defaults:")
        for leaf in leaves(CertificateSettings).values():
            tell(f"{leaf.help} (default: {leaf.default})", f"  --{leaf.key:<14} ")
        return
    given, rest = parser.parse_known_args(list(argv))
    typed = split(CertificateSettings, rest)
    if typed.configs or typed.preset or typed.variant or typed.print_config:  # it has no files
        raise UserError(
            "page certify takes no --config, --preset, --variant or --print_config: give its "
            "settings as flags, listed by coterie page certify --help"
        )
    # Torch only where it is needed: --help does not wait for it.
    from coterie.core.run.driver import computing_as
    from coterie.core.run.serving import open_run
    from coterie.page.certificate.of_run import certify_run, save

    with aside(given.json):
        experiment, module = open_run(given.run)
        if not os.access(given.run, os.W_OK):  # said before minutes of work, not after
            raise UserError(
                f"cannot write {given.run}, where the certificate goes: make it writable, or "
                "certify a copy of the run"
            )
        of_run = getattr(experiment.settings, "certificate", CertificateSettings())
        with computing_as(experiment.settings.engine):
            certificate = certify_run(module, replace(of_run, **typed.flags))
        report = save(certificate, given.run, module.round)
    if given.json:
        print_json(certificate.to_dict())
    else:
        print_rows(report.view, report.title, more="by --json, and in certificate.md")
        for note in report.notes:
            tell(note)
        tell(f"Written to {given.run}: certificate.json, certificate.md, certificate.png")
    if not certificate.holds:
        raise SystemExit(1)
