"""The certificate of a run: candidates on a grid, progress, files in the run's folder."""

from __future__ import annotations

from pathlib import Path

from coterie.core.run.driver import FederatedRun
from coterie.core.tables.progress import Counting
from coterie.core.tables.report import Report
from coterie.core.tensors.keys import Key
from coterie.page.certificate.certificate import Certificate
from coterie.page.certificate.certify import certify, plays_needed
from coterie.page.certificate.decoupled import DecoupledGame
from coterie.page.certificate.federation import FederationGame
from coterie.page.certificate.report import certificate_report, conclusion, plot_regrets
from coterie.page.decoupled.client import DecoupledClient
from coterie.page.settings.certificate import CertificateSettings

NAME = "certificate"
BEFORE = "certificate-before"
"""Names of the files, without their endings: of the run as it stands, of it before learning."""


def certify_run(
    module: FederatedRun, settings: CertificateSettings, progress: bool = True
) -> Certificate:
    """Test how near the play of a run is to an equilibrium, from where it stands.

    Raises:
        UserError: the run plays no game.
    """
    with module.on_device():
        game = game_of(module)
        candidates = game.candidates(settings.grid)
        needed = plays_needed(game.n_leaders, len(candidates), settings, others=1)
        key = Key.from_seed(module.federation.seed).fold("certificate", module.round)
    with Counting("Certificate", needed, progress) as bar, module.on_device():
        return certify(game, candidates, settings, key, bar.up_to)


def game_of(module: FederatedRun) -> FederationGame | DecoupledGame:
    """The game that a run plays, where it stands.

    Raises:
        UserError: it plays none.
    """
    decoupled = isinstance(module.federation.client, DecoupledClient)
    return DecoupledGame(module) if decoupled else FederationGame(module)


def certify_both(
    module: FederatedRun, settings: CertificateSettings, folder: Path, progress: bool = True
) -> list[str]:
    """Certify a run before its first round and as it stands, and write both; give a line on each.

    Raises:
        UserError: the run plays no game, or a file cannot be written.
    """
    before = certify_run(before_learning(module), settings, progress)
    save(before, folder, 0, BEFORE)
    after = certify_run(module, settings, progress)
    save(after, folder, module.round)
    return [f"before learning: {conclusion(before)}", f"at the end: {conclusion(after)}"]


def before_learning(module: FederatedRun) -> FederatedRun:
    """The same run before its first round: W(1), and agents that know nothing."""
    return FederatedRun(module.federation)


def forget(folder: Path) -> None:
    """Remove the certificate of a run that has gone on since."""
    for ending in ("json", "md", "png"):
        (folder / f"{NAME}.{ending}").unlink(missing_ok=True)


def save(certificate: Certificate, folder: Path, rounds: int, name: str = NAME) -> Report:
    """Write ``<name>.json``, ``.md`` and ``.png`` on a run after so many rounds, give the report.

    Raises:
        UserError: a file cannot be written.
    """
    figure = plot_regrets(certificate, folder / f"{name}.png")
    certificate.save(folder / f"{name}.json", rounds)
    when = f"after {rounds} rounds" if rounds else "before learning"
    report = certificate_report(certificate, name, figure, when)
    report.save(folder)
    return report
