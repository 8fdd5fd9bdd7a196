"""The table of ``--variant best``: the method ``ensemble`` beside what it has to beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.errors import UserError
from coterie.core.settings.schema import changed
from coterie.core.settings.sections import PrivacySettings
from coterie.core.style import Roles
from coterie.core.tables.dots import Differences
from coterie.core.tables.paired import Comparison, Contrast, compare, holm
from coterie.core.tables.report import Report
from coterie.core.tables.result import RunResult, at_best
from coterie.core.tables.sheet import Sheet, cell
from coterie.msmt.settings import Settings
from coterie.msmt.tables.layout import AUC, NOTE, add_rows, at_own_rounds, measured
from coterie.msmt.tables.rows import ENSEMBLE, FEDAVG, LOCAL, OWN, ROWS, TUNED
from coterie.msmt.tables.study import Study, judged_by

ONE, EACH = "one", "own"
CONTROL, MIXED = "control", "mixed"
_QUIET = {"privacy": PrivacySettings()}
_ABOUT = (
    "template: the network of the paper; chosen: that of the variant ({networks}). rounds: one for "
    "all scenarios, the best for their mean on validation samples, or each scenario's own. Local: "
    "each scenario alone. Mixed: logits of Local and of FedAvg's best round, fine-tuned by each "
    "scenario; control: the same with a second network of its own in place of FedAvg's, which "
    "shows what the mix gives without a federation."
)


@dataclass(frozen=True)
class Entry:
    """A row of the table.

    Attributes:
        label: for people.
        run: name of the run that it is a measure of.
        whose: by whose models it is judged.
        rounds: by which rounds it is measured.
        is_rival: whether the mix has to beat it.
    """

    label: str
    run: tuple[str, str]
    whose: str = "personal"
    rounds: Sequence[str] = (ONE, EACH)
    is_rival: bool = True


TEMPLATE, CHOSEN = "template", "chosen"
_SAME: Mapping[str, tuple[str, str, Sequence[str]]] = {
    LOCAL: (LOCAL, "personal", (ONE, EACH)),
    FEDAVG: (FEDAVG, "global", (ONE,)),
    "fedavg-own": (FEDAVG, "personal", (ONE, EACH)),
}
"""Rows on both networks: the run, whose models, and by which rounds."""
_LABELS = {LOCAL: "Local", FEDAVG: "FedAvg", "fedavg-own": "FedAvg, own epoch"}
ENTRIES: Mapping[tuple[str, str], Entry] = {
    **{
        (network, name): Entry(_LABELS[name], (network, run), whose, rounds)
        for network in (TEMPLATE, CHOSEN)
        for name, (run, whose, rounds) in _SAME.items()
    },
    (TEMPLATE, OWN): Entry(ROWS[OWN].label, (TEMPLATE, OWN)),
    (CHOSEN, CONTROL): Entry("control: two networks of its own, mixed", (CHOSEN, CONTROL)),
    (CHOSEN, TUNED): Entry("fine-tuned alone", (CHOSEN, MIXED), "tuned", (ONE,), False),
    (CHOSEN, MIXED): Entry("Mixed", (CHOSEN, MIXED), rounds=(ONE,), is_rival=False),
}
_VALUES: Mapping[str, Mapping[str, Any]] = {
    LOCAL: {"method": "local", **_QUIET},
    FEDAVG: {"method": "fedavg"},
    OWN: {"method": "pf-msmtrec"},
    CONTROL: {"method": "ensemble", "ensemble.partner": "local", **_QUIET},
    MIXED: {"method": "ensemble"},
}


@dataclass
class _Made:
    """What the table is filled from: runs by world and row, and numbers of those."""

    runs: dict[str, dict[tuple[str, str], list[RunResult]]]
    values: dict[str, dict[tuple[str, str, str], list[float]]] = field(default_factory=dict)

    def mixed(self, world: str) -> list[float]:
        """What the variant has, a number a seed."""
        return self.values[world][(CHOSEN, MIXED, ONE)]

    def control(self, world: str) -> tuple[str, list[float]]:
        """The better measure of the control."""
        return self._best(world, lambda key: key[:2] == (CHOSEN, CONTROL))

    def rival(self, world: str) -> tuple[str, list[float]]:
        """The row with the highest mean of all that the variant has to beat."""
        return self._best(world, lambda key: ENTRIES[key[:2]].is_rival)

    def _best(
        self, world: str, wanted: Callable[[tuple[str, str, str]], bool]
    ) -> tuple[str, list[float]]:
        found = {key: values for key, values in self.values[world].items() if wanted(key)}
        best = max(found, key=lambda key: sum(found[key]))
        return _name(best), found[best]


def best_table(study: Study) -> Report:
    """Lay out the variant ``best`` beside Local, FedAvg, its own epoch, PF-MSMTrec and a control.

    Raises:
        UserError: the settings are of another method.
    """
    if study.configuration.settings.method != ENSEMBLE:
        raise UserError(
            f"this table is of the method {ENSEMBLE}, which configs/pf-msmtrec/best.yaml names: "
            "leave out what sets another one"
        )
    networks = {world: chosen_network(study, world) for world in study.worlds}
    wanted = {
        (world, run): settings_of(settings, run, networks[world])
        for world, settings in study.worlds.items()
        for run in {entry.run for entry in ENTRIES.values()}
    }
    runs = study.run_all("Variant best", wanted)
    made = _Made({world: {} for world in study.worlds})
    sheet = Sheet(study, study.setup, NOTE, _ABOUT.format(networks=_listed(networks)))
    for key, entry in ENTRIES.items():
        of_entry = {
            world: [judged_by(run, entry.whose) for run in runs[world, entry.run]]
            for world in study.worlds
        }
        _add(sheet, made, key, of_entry)
    sheet.notes += _notes(made, runs)
    return sheet.report("Variant best", "test AUC, mean of tasks", _panels(made), columns=3)


def chosen_network(study: Study, world: str) -> str:
    """The network that the variant names for a world."""
    own = study.worlds[world].data.name
    named = study.configuration.settings if own == study.data else study.tuned(own)
    return str(named.model.name)


def settings_of(settings: Settings, run: tuple[str, str], chosen: str) -> Settings:
    """Settings of a run; those that fine-tune nothing have no last round for it."""
    network, name = run
    values = {**_VALUES[name], "model.name": "template" if network == TEMPLATE else chosen}
    if name not in (CONTROL, MIXED):
        values["rounds"] = settings.rounds - 1
    return changed(settings, values)


def _add(
    sheet: Sheet[Study],
    made: _Made,
    key: tuple[str, str],
    worlds: Mapping[str, Sequence[RunResult]],
) -> None:
    """Add a row, a line for each choice of rounds."""
    network, name = key
    entry = ENTRIES[key]
    for rounds in entry.rounds:
        line = sheet.line(method=entry.label, network=network, rounds=rounds)
        for world, results in worlds.items():
            found = measured(results, AUC) if rounds == ONE else at_own_rounds(results)
            line[world] = cell(found)
            made.values.setdefault(world, {})[(*key, rounds)] = found
            if rounds == ONE:
                add_rows(sheet, name, world, results, {}, {"network": network})
            else:
                sheet.row(name, f"test/{AUC}_own_rounds", found, world=world, network=network)
        if rounds == ONE:
            costs = [[run.total("cost/cpu_seconds") for run in one] for one in worlds.values()]
            line["CPU s"] = cell([sum(of_seed) for of_seed in zip(*costs, strict=True)], digits=1)


def _notes(made: _Made, runs: Mapping[Any, Sequence[RunResult]]) -> list[str]:
    """Test the variant, in each world, against the best other row and against the control."""
    weights = [
        f"{world} {cell(at_best(runs[world, (CHOSEN, MIXED)], 'msmt/own_weight'), digits=2)}"
        for world in made.runs
    ]
    return [
        _tested(made, made.rival, "the best of all other rows but fine-tuned alone"),
        _tested(made, made.control, "the control: what the federation adds"),
        f"Mean weight of Local in the mix: {'; '.join(weights)}.",
    ]


def _tested(made: _Made, other: Callable[[str], tuple[str, list[float]]], what: str) -> str:
    found = {world: (other(world)[0], _against(made, other, world)) for world in made.runs}
    adjusted = holm([one.p for _, one in found.values()])
    said = [
        Contrast(f"{world} ({label})", one, p).text(digits=2, scale=100)
        for (world, (label, one)), p in zip(found.items(), adjusted, strict=True)
    ]
    return f"Mixed minus {what}, in points of mean AUC, Holm over the worlds: {'; '.join(said)}."


def _against(
    made: _Made, other: Callable[[str], tuple[str, list[float]]], world: str
) -> Comparison:
    return compare(made.mixed(world), other(world)[1])


def _panels(made: _Made) -> list[Differences]:
    """Draw what the variant has over each other row, a plot for each world."""
    found = []
    for world, values in made.values.items():
        others = {key: of for key, of in values.items() if key != (CHOSEN, MIXED, ONE)}
        drawn = {_name(key): compare(made.mixed(world), of) for key, of in others.items()}
        roles = Roles(better="higher")
        found.append(Differences("Mixed minus it, test AUC", {world: drawn}, roles=roles))
    return found


def _name(key: tuple[str, str, str]) -> str:
    network, name, rounds = key
    label = ENTRIES[network, name].label.partition(":")[0]
    return f"{label}, {network}" + (", own rounds" if rounds == EACH else "")


def _listed(networks: Mapping[str, str]) -> str:
    if len(set(networks.values())) == 1:
        return next(iter(networks.values()))
    return ", ".join(f"{world}: {name}" for world, name in networks.items())
