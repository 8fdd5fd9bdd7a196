"""The certificate of a run: candidates on a grid, report, files in the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.core.errors import UserError
from coterie.core.run.driver import FederatedRun
from coterie.core.tables.grids import Histogram
from coterie.core.tables.jobs import Counting
from coterie.core.tables.pictures import plot_panels
from coterie.core.tables.report import Report
from coterie.core.tensors.keys import Key
from coterie.page.certificate.certificate import (
    Certificate,
    FollowerGain,
    Gain,
    LeaderGain,
    in_words,
    mean_known,
    ratio,
)
from coterie.page.certificate.certify import certify, plays_needed
from coterie.page.certificate.decoupled import DecoupledGame
from coterie.page.certificate.federation import FederationGame
from coterie.page.client import DecoupledClient
from coterie.page.settings import CertificateSettings


def certificate_report(
    certificate: Certificate, name: str = "certificate", figure: Path | None = None, when: str = ""
) -> Report:
    """Lay a certificate out.

    Args:
        certificate: the numbers.
        name: of the report's file.
        figure: PNG of `plot_regrets`, in the same folder.
        when: what part of the run it is of; empty = its end.
    """
    verdict = "certified" if certificate.holds else "refused"
    return Report(
        name=name,
        title=f"Feedback Stackelberg equilibrium{when and f', {when}'}: {verdict}",
        rows=[*map(_leader_row, certificate.leaders), *_follower_rows(certificate)],
        view=_view(certificate),
        notes=[
            f"Verdict: {conclusion(certificate)}.",
            *(f"- {why}" for why in certificate.reasons),
            *_worst(certificate),
            *_limits(certificate),
        ],
        figure=figure,
    )


def conclusion(certificate: Certificate) -> str:
    """Give the verdict in one line."""
    epsilon = (
        f"ε = {certificate.epsilon:.4g} ({certificate.relative_epsilon:.2%} of a stage's payoff)"
    )
    if not certificate.holds:
        return f"not an equilibrium, certificate refused at {epsilon}"
    said = f"equilibrium certified at {epsilon}, for the present condition and stage"
    if certificate.screened:
        said += ", of actions screened by what they pay in the present stage alone"
    return said


def plot_regrets(certificate: Certificate, path: Path) -> Path | None:
    """Draw how the leaders' regrets are spread, with the tolerance.

    Raises:
        UserError: the file cannot be written.
    """
    shares = [100.0 * one.gain.relative for one in certificate.leaders]
    marks = {"tolerance": 100.0 * certificate.settings.tolerance}
    if certificate.follower.gain.known:
        marks["follower"] = 100.0 * certificate.follower.gain.relative
    panel = Histogram("regret (% of what the player gets in a stage)", shares, "leaders", marks)
    said = "certified" if certificate.holds else "refused"
    title = f"Equilibrium {said}: what leaders would gain by another move"
    return plot_panels([panel], title, path)


def _view(certificate: Certificate) -> list[dict[str, Any]]:
    leaders = {
        "players": f"{len(certificate.leaders)} of {certificate.n_leaders} leaders",
        "ε (largest regret)": certificate.epsilon,
        "% of a stage's payoff": 100.0 * certificate.relative_epsilon,
        "95 % bound, all at once (%)": 100.0 * certificate.relative_upper,
        "mean regret": certificate.mean_regret,
        "beyond 2 s.e.": f"{certificate.share_significant:.1%}",
        "by chance": f"{certificate.share_by_chance:.1%}",
        "one-stage regret (mean)": mean_known(one.stage.regret for one in certificate.leaders),
    }
    found = certificate.follower
    follower = {
        "players": "follower",
        "ε (largest regret)": found.gain.regret,
        "% of a stage's payoff": 100.0 * found.gain.relative,
        "one-stage regret (mean)": found.stage.regret,
    }
    off_path = [one.gain.relative for one in certificate.off_path if one.gain.known]
    worst = {
        "players": f"follower, after {len(off_path)} deviations (worst)",
        "% of a stage's payoff": 100.0 * max(off_path, default=0.0),
    }
    return [leaders, follower, *([worst] if off_path else [])]


def _worst(certificate: Certificate) -> list[str]:
    """Say what the leader with the largest regret plays, and what it should."""
    one = certificate.worst
    if one is None or not one.gain.regret:
        return []
    return [
        f"The largest regret is that of leader {one.leader}, which plays {in_words(one.learned)}; "
        f"the best deviation found is {in_words(one.action)}."
    ]


def _limits(certificate: Certificate) -> list[str]:
    """Say what the certificate does not cover."""
    settings = certificate.settings
    rest = settings.gamma**settings.horizon
    lines = [
        f"Deviations: one of {certificate.n_candidates} actions of a leader in the present stage, "
        f"learned policies in the other {settings.horizon - 1} of {settings.horizon} stages at "
        f"γ = {settings.gamma:g} (later stages have {rest:.0%} of the weight of an endless game); "
        f"{settings.seeds} fresh seeds, {certificate.plays} plays. One-stage regret is for "
        "information: it certifies nothing."
    ]
    if certificate.screened:
        lines.append(
            f"Only the {settings.shortlist} actions that pay a leader most in the present stage "
            "were played on: one that costs something now and pays later is not seen."
        )
    else:
        lines.append("Every action was played over all these stages to choose the best.")
    lines.append(
        "The verdict is of the condition that the run stands at, and of deviations in its present "
        "stage: play on and certify again for a later one (Definition 4 asks for all)."
    )
    if len(certificate.leaders) < certificate.n_leaders:
        lines.append("The leaders not drawn are not certified.")
    return [*lines, _of_follower(certificate.follower)]


def _of_follower(found: FollowerGain) -> str:
    if found.stage_bound is None:
        return "The follower's gap is the best found, without a bound (its problem is not convex)."
    share = ratio(found.stage_bound, found.stage.payoff)
    return (
        f"No answer of the follower gains more than {found.stage_bound:.4g} ({share:.2%}) in the "
        "present stage (Frank-Wolfe bound); over several stages its gap is the best found."
    )


def _leader_row(one: LeaderGain) -> dict[str, Any]:
    learned = {f"learned_{name}": value for name, value in one.learned.items()}
    tried = {f"tried_{name}": value for name, value in one.action.items()}
    return {"player": f"leader {one.leader}", **learned, **tried, **_numbers(one.gain, one.stage)}


def _follower_rows(certificate: Certificate) -> list[dict[str, Any]]:
    return [
        {
            "player": "follower" if one.after is None else f"follower after leader {one.after}",
            **{f"tried_{name}": value for name, value in one.action.items()},
            **_numbers(one.gain, one.stage),
            "stage_bound": one.stage_bound,
        }
        for one in (certificate.follower, *certificate.off_path)
    ]


def _numbers(gain: Gain, stage: Gain) -> dict[str, Any]:
    return {
        "payoff": gain.payoff,
        "gain": gain.mean,
        "standard_error": gain.error,
        "regret": gain.regret,
        "relative": gain.relative,
        "stage_regret": stage.regret,
    }


# The certificate of a run: candidates on a grid, progress, files in the run's folder.

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
    if module.federation.aggregation is not None:
        raise UserError(
            "the certificate is of the game in which the server averages what leaders send, and "
            "this run has a rule in place of that: leave aggregate.* out"
        )
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
    for path in [*folder.glob(f"{NAME}.*"), *folder.glob(f"{NAME}-dark.*")]:
        path.unlink(missing_ok=True)


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
