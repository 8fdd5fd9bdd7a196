"""The attack on a run: its first rounds once more, what is read of them, in a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coterie.core.data.samples.samples import batch_counts
from coterie.core.errors import UserError
from coterie.core.local_training.alone import mixes_samples
from coterie.core.privacy.accountant import epsilon, price
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tables.paired import Spread, spread
from coterie.core.tables.pictures import plot_panels
from coterie.core.tables.plots import SHARE, Lines, Panel
from coterie.core.tables.report import Report
from coterie.core.tables.result import known
from coterie.core.tensors.keys import Key
from coterie.msmt.attack.known import Ear, Seen, knowledge_of
from coterie.msmt.attack.reader import (
    Candidates,
    CategoryReader,
    MemberReader,
    Members,
    candidates,
    still_tables,
)
from coterie.msmt.attack.uploads import FALSE_ALARMS, LocalSteps, Occurrence
from coterie.msmt.experiment import Experiment
from coterie.msmt.settings import Settings

_PULLING = ("fedprox", "fedamp")
"""Methods that pull all parameters towards what was received."""


@dataclass(frozen=True)
class Reading:
    """What was read after some rounds, and what the run was worth by then.

    Attributes:
        rounds: how many.
        members: by scenario.
        categories: by scenario; empty where no embeddings are shared.
        epsilon: ε of a scenario against the server; infinite where nothing is guaranteed.
        test_auc: mean over tasks and scenarios.
    """

    rounds: int
    members: dict[int, Members]
    categories: dict[int, Occurrence]
    epsilon: float
    test_auc: float


@dataclass(frozen=True)
class Played:
    """What was read in a run after the rounds asked for, and the L2 norm of the largest upload."""

    readings: list[Reading]
    largest: float


def play(
    experiment: Experiment,
    rounds: Sequence[int],
    asked: dict[int, Candidates],
    key: Key,
    told: Callable[[str], None] = lambda label: None,
) -> Played:
    """Play a run from its start, overhear it and read.

    Args:
        experiment: the run; what is heard depends on its settings and data alone.
        rounds: after which to judge, ascending.
        asked: candidates by scenario.
        key: of the reader.
        told: called after each round with its name.
    """
    settings = experiment.settings
    run = FederatedRun(experiment.federation())
    ear = Ear(run.exchange)
    run.exchange = ear
    reader = _Reader(run, settings, asked, key)
    readings, largest, releases = [], 0.0, 0
    for number in range(1, rounds[-1] + 1):
        run.advance()
        releases += price(settings.privacy, run.journal.releases)
        heard = ear.emptied()
        largest = max([largest, *(one.norm() for one in heard)])
        seen = [each for one in heard if (each := reader.knowledge.hear(one)) is not None]
        reader.read(seen)
        if number in rounds:
            spent, test_auc = epsilon(settings.privacy, releases), _test_auc(experiment, run)
            readings.append(reader.judged(number, spent, test_auc))
            ear.emptied()
        told(f"round {number}")
    return Played(readings, largest)


def protected(experiment: Experiment, privacy: PrivacySettings) -> Experiment:
    """Make the experiment of the same samples with another protection.

    It is measured when it is asked to alone, which changes nothing else and saves half of the time.
    """
    settings = experiment.settings
    train = replace(settings.train, evaluate_every=settings.rounds + 1)
    other = type(experiment)(replace(settings, privacy=privacy, train=train))
    other.task = experiment.task
    return other


class _Reader:
    """The server as a reader of all scenarios; of one without candidates there is no question."""

    def __init__(
        self, run: FederatedRun, settings: Settings, asked: dict[int, Candidates], key: Key
    ) -> None:
        server: Any = run.federation.server
        network = server.module
        self.knowledge = knowledge_of(server, run.server_state)
        self._train, self._asked = settings.train, asked
        self._least = 2 if mixes_samples(network) else 1
        local, first = _local(settings), self.knowledge.first
        still = still_tables(network, settings.method in _PULLING)
        self._members, self._categories = {}, {}
        for number, each in asked.items():
            self._members[number] = MemberReader(network, first, each, key)
            self._categories[number] = CategoryReader(
                local, settings.privacy, settings.train.keep_moments, still
            )

    def read(self, round_: Sequence[Seen]) -> None:
        """Read the uploads of a round; the order in which they came does not matter."""
        round_ = sorted(round_, key=lambda seen: seen.scenario)
        for seen in round_:
            if seen.scenario in self._asked:
                others = [each for each in round_ if each.scenario != seen.scenario]
                self._members[seen.scenario].read(seen, others)
                self._categories[seen.scenario].read(seen, self._steps(seen))

    def _steps(self, seen: Seen) -> int:
        count = torch.tensor([seen.samples])
        per_epoch = int(batch_counts(count, self._train.batch_size, self._least))
        return self._train.epochs * per_epoch

    def judged(self, rounds: int, spent: float, test_auc: float) -> Reading:
        """Judge what was read so far."""
        members = {number: each.found() for number, each in self._members.items()}
        categories = {}
        for number, each in self._categories.items():
            if (found := each.found(self._asked[number].occurs)) is not None:
                categories[number] = found
        return Reading(rounds, members, categories, spent, test_auc)


def _local(settings: Settings) -> LocalSteps:
    """How scenarios train, which everybody knows; the steps are those of an upload."""
    train = settings.train
    mu = settings.fedprox.mu if settings.method == "fedprox" else 0.0
    return LocalSteps(0, train.lr, train.weight_decay, train.optimizer, mu)


def _test_auc(experiment: Experiment, run: FederatedRun) -> float:
    who = "personal" if experiment.answer_is_own else "global"
    return run.retest().get(f"test/{who}_auc", math.nan)


# The attack on a run: what is read of it as it is, and behind noise; table, figure and notes.

NAME = "attack"
Row = Mapping[str, Any]
_MEMBERS = ("auc", "beyond", "auc_loss", "caught")
_CATEGORIES = ("auc", "precision", "recall", "chance")
_NULL = math.sqrt(1 / 6)
"""Deviation of an AUC of n against n rows alike, times √n (Mann and Whitney), for large n."""


def attack(
    experiment: Experiment,
    rounds: Sequence[int],
    scales: Sequence[float],
    clip: float | None,
    most: int,
    told: Callable[[str], None] = lambda label: None,
) -> list[dict[str, Any]]:
    """Attack a run as it is, unprotected, and behind noise; a row for each and each of the rounds.

    Args:
        experiment: the run.
        rounds: after which to judge, ascending.
        scales: σ of the noise.
        clip: norm C that uploads are clipped to before noise; None = that of the run, or else the
            smallest power of two that no upload exceeds.
        most: candidates of each kind and scenario.
        told: called after each round that was played, with its name.

    Raises:
        UserError: no scenario has rows to ask about.
    """
    key = Key.from_seed(experiment.settings.seed).fold(NAME)
    asked = candidates(experiment.task, most, key.fold("candidates"))
    if not asked:
        raise UserError("no scenario has two training and two test rows: there is nobody to attack")
    names = experiment.task.schema.scenarios
    own, rows = experiment.settings.privacy, list[dict[str, Any]]()

    def add(privacy: PrivacySettings) -> Played:
        name = described(privacy) + " *" * (privacy == own)
        found = play(protected(experiment, privacy), rounds, asked, key.fold("reader"), told)
        rows.extend(_row(name, privacy, each, names) for each in found.readings)
        return found

    plain = add(PrivacySettings(delta=own.delta))
    for privacy in protections(own, plain.largest, clip, scales):
        add(privacy)
    return rows


def protections(
    own: PrivacySettings, largest: float, clip: float | None, scales: Sequence[float]
) -> list[PrivacySettings]:
    """List the protections that are attacked beside none.

    They are the run's own, if it has one, the clip alone, if one is given, and noise of each scale.

    Args:
        own: of the run.
        largest: norm of the largest plain upload.
        clip: as of `attack`.
        scales: as of `attack`.

    Example:
        >>> found = protections(PrivacySettings(), 5.0, None, [0.1])
        >>> [described(each) for each in found]
        ['clip 8, gaussian 0.1']
    """
    given = clip or (own.clip if own.clip_by == "upload" else None)
    base = PrivacySettings(clip=given or power_of_two(largest), delta=own.delta)
    listed = [own] if own.clip is not None or own.noise != "none" else []
    listed += [base] if given else []
    listed += [replace(base, noise="gaussian", scale=scale) for scale in scales]
    return list(dict.fromkeys(listed))


def power_of_two(value: float) -> float:
    """The smallest power of two that is at least ``value``, which is above 0; of 0 it is 1.

    Example:
        >>> power_of_two(0.3), power_of_two(8.0), power_of_two(8.1)
        (0.5, 8.0, 16.0)
    """
    return 2.0 ** math.ceil(math.log2(value)) if value > 0 else 1.0


def described(privacy: PrivacySettings) -> str:
    """Name a protection.

    Example:
        >>> described(PrivacySettings()), described(PrivacySettings(clip=2.0))
        ('none', 'clip 2')
    """
    by = " by entry" if privacy.clip_by == "entry" else ""
    parts = [] if privacy.clip is None else [f"clip {privacy.clip:g}{by}"]
    parts += [f"{privacy.noise} {privacy.scale:g}"] if privacy.noise != "none" else []
    return ", ".join(parts) or "none"


def report(rows: Sequence[Row], title: str, folder: Path) -> Report:
    """Lay the rows out, and draw them into a folder.

    Raises:
        UserError: the folder cannot be written.
    """
    return Report(
        name=NAME,
        title=title,
        rows=rows,
        view=[_shown(row) for row in rows],
        first=("rounds", "membership", "ε", "test AUC"),
        notes=notes(rows),
        figure=plot_panels(_panels(rows), title, folder / f"{NAME}.png"),
    )


def notes(rows: Sequence[Row]) -> list[str]:
    """Say what the columns are, and what chance alone gives."""
    first = rows[0]
    count, scenarios = min(each["rows"] for each in first["scenarios"]), len(first["scenarios"])
    chance = _NULL / math.sqrt(count)
    found = [
        "membership: AUC of how far the uploads so far let a row's loss fall, training rows "
        "against test rows of the scenario; beyond others: of what other scenarios' uploads do "
        "not explain of that; loss alone: of the loss with the upload. Mean ± deviation over "
        f"{scenarios} scenarios.",
        f"caught: share of the training rows found, at {100 * FALSE_ALARMS:g} % false alarms.",
        f"Where nothing leaks, chance gives one scenario (of {count:,} rows of each kind, the "
        f"fewest) 0.5 ± {chance:.3f}, a mean of {scenarios} about ± "
        f"{chance / math.sqrt(scenarios):.3f}. Control: the loss by the first network, which has "
        f"seen no row, gives {first['control']:.3f}.",
        "ε: of all data of a scenario against the server, after these rounds, by the core's "
        "accountant; C is taken for fixed beforehand, whatever it was chosen by. Losses and "
        "numbers of samples leave without noise, and no ε covers them.",
        "test AUC: of the run after these rounds, mean over tasks and scenarios.",
    ]
    if "category_auc" in first:
        found.insert(
            2,
            "categories: which ones are in the training samples, told from how rows of the shared "
            f"embeddings moved; a guess has the precision {first['category_chance']:.3f}.",
        )
    if first["protection"] != "none":
        found.append("* the run itself.")
    elif any(row["protection"].endswith("*") for row in rows):
        found.append("* the run itself, as it was trained.")
    return found


def _row(
    name: str, privacy: PrivacySettings, found: Reading, names: Sequence[str]
) -> dict[str, Any]:
    each = [_scenario(number, names, found) for number in found.members]
    row: dict[str, Any] = {
        "protection": name,
        "clip": privacy.clip,
        "noise": privacy.noise,
        "scale": privacy.scale,
        "rounds": found.rounds,
    }
    shown = [*_MEMBERS, "fall_members", "fall_others", "control"]
    shown += [f"category_{key}" for key in _CATEGORIES] if found.categories else []
    for key in shown:
        of = spread(known([one[key] for one in each]))  # where a measure is defined
        row |= {key: of.mean, f"{key}_sd": of.sd}
    return row | {"epsilon": found.epsilon, "test_auc": found.test_auc, "scenarios": each}


def _scenario(number: int, names: Sequence[str], found: Reading) -> dict[str, Any]:
    members = found.members[number]
    row = {"scenario": names[number], "rows": members.count, **asdict(members.by_fall)}
    row |= {"beyond": members.beyond, "control": members.control}
    if (categories := found.categories.get(number)) is not None:
        row |= {f"category_{key}": value for key, value in asdict(categories).items()}
    return row


def _shown(row: Row) -> dict[str, str]:
    view = {
        "protection": row["protection"],
        "rounds": str(row["rounds"]),
        "membership": _text(row, "auc"),
        "beyond others": _text(row, "beyond"),
        "loss alone": _text(row, "auc_loss"),
        "caught": f"{100 * row['caught']:.1f} %",
    }
    if "category_auc" in row:
        names = {"categories": "auc", "precision": "precision", "recall": "recall"}
        view |= {shown: _text(row, f"category_{key}") for shown, key in names.items()}
    spent = row["epsilon"]
    guarantee = f"{spent:.3g}" if math.isfinite(spent) else "∞"
    return view | {"ε": guarantee, "test AUC": f"{row['test_auc']:.4f}"}


def _text(row: Row, key: str) -> str:
    mean, sd = row[key], row[f"{key}_sd"]
    if math.isnan(mean):
        return "-"
    return f"{mean:.3f}" if math.isnan(sd) else f"{mean:.3f} ± {sd:.3f}"


def _panels(rows: Sequence[Row]) -> list[Panel]:
    rounds = list(dict.fromkeys(row["rounds"] for row in rows))
    shown = {"auc": "membership AUC", "category_auc": "AUC of categories", "test_auc": "test AUC"}
    found: list[Panel] = []
    for key, label in shown.items():
        if any(not math.isnan(row.get(key, math.nan)) for row in rows):
            lines: dict[str, list[Spread]] = {}
            for row in rows:
                point = Spread(row[key], row.get(f"{key}_sd", math.nan), len(row["scenarios"]))
                lines.setdefault(row["protection"], []).append(point)
            found.append(Lines("rounds", rounds, lines, y_label=label, bounds=SHARE))
    return found
