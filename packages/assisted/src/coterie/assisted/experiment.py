"""One run of assisted learning: its data, its two halves, its description, its scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.assisted.algorithm import Relay
from coterie.assisted.apart import Independent
from coterie.assisted.by_trainer import standalone
from coterie.assisted.client import Organisation
from coterie.assisted.data import Organisations, OwnDomain, share_out
from coterie.assisted.learner import objective_of
from coterie.assisted.paper import CLIENT_COLUMNS
from coterie.assisted.protection import check_sum
from coterie.assisted.published import reference
from coterie.assisted.rating_privacy import rating_span, remark
from coterie.assisted.readings import idle, resolve
from coterie.assisted.routes import check_common
from coterie.assisted.settings import EXCHANGING, OF_SAMPLES, UNTRAINED, Settings, covers
from coterie.assisted.sums import check_alike
from coterie.assisted.sums_client import digest
from coterie.assisted.view import places_of
from coterie.core.data.interactions.cells import Cells, rated
from coterie.core.data.interactions.column_partitions import Alignment
from coterie.core.data.interactions.interactions import Interactions
from coterie.core.data.sources.catalogue import load_filtered
from coterie.core.errors import UserError, nearest
from coterie.core.run.driver import FederatedRun
from coterie.core.run.experiment import Need, RecommendsToUsers
from coterie.core.run.exported import Asked, Exported
from coterie.core.run.scoring import Scored
from coterie.core.standalone import Standalone

_CELLS = 1 << 18  # that organisations are asked for at once


def score_users(
    module: FederatedRun, organisations: Organisations, align: Alignment, users: Tensor
) -> Iterator[Scored]:
    """Score all items for users; -inf where no organisation can.

    Organisations of MTAL ask each other about the cells of the users, as they do about those of the
    test, and add up what the models of the best round's federation answer (prediction stage). Users
    are asked about together if the same organisations know them.

    Args:
        module: a run.
        organisations: its data.
        align: "user": each organisation scores the items that it has; "item": that of the user
            scores all items.
        users: ``(U,)`` int64, numbers.

    Yields:
        Places in ``users`` and the scores of those, ``(B, n_items)``; or why they have none.
    """
    n_items = _n_items(organisations, align)
    known = torch.stack([torch.isin(users, _users(one, align)) for one in organisations.each])
    for group in known.unique(dim=1).T:
        alike = (known == group[:, None]).all(0).nonzero().flatten()
        for places in alike.split(max(1, _CELLS // n_items)):
            try:
                yield places, _scores(module, organisations, align, users[places], n_items)
            except UserError as error:
                yield places, error


def _scores(
    module: FederatedRun,
    organisations: Organisations,
    align: Alignment,
    users: Tensor,
    n_items: int,
) -> Tensor:
    """Scores ``(B, n_items)`` of users whom the same organisations know."""
    asked = {one.id: cells for one in organisations.each if len(cells := _cells(one, align, users))}
    states: dict[int, Any] = {k: module.store.take(torch.tensor([k])) for k in asked}
    found = torch.full((len(users), n_items), -torch.inf)
    row = torch.full((int(users.max()) + 1,), -1)
    row[users] = torch.arange(len(users))
    for k, scores in _predicted(module, organisations, asked, states).items():
        domain, cells = organisations.each[k].domain, asked[k]
        rows, columns = domain.rows[cells.rows], domain.columns[cells.columns.values]
        user, item = (rows, columns) if align == "user" else (columns, rows)
        found[row[user], item] = scores.float()
    return found


def _predicted(
    module: FederatedRun,
    organisations: Organisations,
    asked: dict[int, Cells],
    states: dict[int, Any],
) -> dict[int, Tensor]:
    """Scores of the cells that organisations are asked for, ``(n,)`` each."""
    server, client = module.federation.server, module.federation.client
    each = {k: (states[k], organisations.each[k], cells) for k, cells in asked.items()}
    if isinstance(client, Independent):
        return {k: client.predicted(*given) for k, given in each.items()}
    assert isinstance(server, Relay)
    assert isinstance(client, Organisation)
    places = {k: places_of(states[k], cells) for k, cells in asked.items()}
    with client.matrices.for_once():
        predictions = server.answered(module.server_state, module.newest_cohort(), places)
        if not predictions.keys() >= asked.keys():
            raise UserError(
                "organisations give sums of three or more only (protect.sum), and fewer ask for "
                "this user: train without protect.sum to recommend"
            )
        return {k: client.predicted(predictions[k], *given) for k, given in each.items()}


def _cells(one: OwnDomain, align: Alignment, users: Tensor) -> Cells:
    """All cells of users in an organisation's matrix; none of users whom it does not know."""
    n_rows, n_columns = one.train.n_rows, one.train.n_columns
    mine = torch.isin(_users(one, align), users).nonzero().flatten()
    other = torch.arange(n_columns if align == "user" else n_rows)
    mine, other = mine.repeat_interleave(len(other)), other.repeat(len(mine))
    rows, columns = (mine, other) if align == "user" else (other, mine)
    return Cells.from_pairs(rows, columns, torch.zeros(len(rows)), n_rows, n_columns)


def _users(one: OwnDomain, align: Alignment) -> Tensor:
    """Numbers of the users whom an organisation knows, in the order of its matrix."""
    return one.domain.rows if align == "user" else one.domain.columns


def _n_items(organisations: Organisations, align: Alignment) -> int:
    items = [
        one.domain.columns if align == "user" else one.domain.rows for one in organisations.each
    ]
    return int(torch.cat(items).max()) + 1


def check_names(key: str, given: Mapping[str, str] | None, names: Sequence[str]) -> None:
    """Refuse what is said of an organisation that there is not.

    Raises:
        UserError: one is not among the names; the nearest is given.
    """
    for name in given or {}:
        if name not in names:
            raise UserError(f"'{key}' names '{name}', which is no domain: {nearest(name, names)}")


def _needs_of_samples(settings: Settings, rows: int, columns: int) -> list[Need]:
    """Estimate models of samples: of one organisation, as those with the same train together."""
    return [
        need
        for are_columns in settings.samples_are_columns.values()
        for need in _needs_of(settings, *((rows, columns) if are_columns else (columns, rows)))
    ]


def _needs_of(settings: Settings, size: int, samples: int) -> list[Need]:
    """Estimate the models of so many samples of a size."""
    how, model, found = settings.train, settings.model, []
    if model.name != "gaussian":
        sizes = "model.hidden", "model.code", "model.members"
        parameters = 2 * model.members * model.hidden * (size + model.code)
        batches = 1 if settings.method == "sums" else how.epochs * -(-samples // how.batch_rows)
        steps = model.members * batches
        found += [
            Need("the autoencoders", sizes, memory=4 * parameters),
            Need("local training", ("train.epochs", "model.members"), steps=steps),
        ]
    if model.name != "autorec":
        directions = size * min(model.rank, size)
        found.append(Need("the distribution", ("model.rank",), memory=4 * directions))
    return found


class Experiment(RecommendsToUsers[Settings]):
    """Build everything that `coterie train mtal` runs.

    Args:
        settings: as the user gave them; the reading's choices are filled in.
    """

    paper = "mtal"

    def __init__(self, settings: Settings) -> None:
        super().__init__(resolve(settings))
        self._compared: list[str] = []  # what `finish` found, for `notes`

    @cached_property
    def interactions(self) -> Interactions:
        """The ratings, which are what is predicted: those of 0 or less count too."""
        data = self.settings.data
        return rated(load_filtered(data, targets=True), data.scale)

    @cached_property
    def organisations(self) -> Organisations:
        """What organisations hold."""
        how, settings = self.settings.data, self.settings
        partition = "whole" if settings.method == "joint" else how.domains
        dtype = getattr(torch, settings.engine.dtype)
        released = settings.reading == "released"
        found = share_out(
            self.interactions,
            how,
            settings.seed,
            partition,
            is_binary=lambda name: not objective_of(settings, name).is_rating,
            released=released,
            dtype=dtype,
        )
        names = [one.domain.name for one in found.each]
        check_names("model.sizes", settings.model.sizes, names)
        check_names("objectives", settings.objectives, names)
        if settings.method in EXCHANGING:
            rows = {one.id: one.rows for one in found.each}
            check_common(rows)
            if settings.protect.sum:
                check_sum(rows)
            if settings.method == "sums":
                check_alike({k: digest(names) for k, names in rows.items()})
        return found

    @property
    def blocks(self) -> list[Organisations]:
        """The organisations' data: there is one block."""
        return [self.organisations]

    def describe_data(self) -> list[dict[str, Any]]:
        """Count the ratings of every organisation."""
        return [
            {
                "organisation": one.domain.name,
                "columns": one.train.n_columns,
                "train": len(one.train),
                "valid": len(one.valid),
                "test": len(one.test),
            }
            for one in self.organisations.each
        ]

    def standalone(self, client: int | None, network: str | None) -> Standalone[Any, Any, Any]:
        """Give the model of one organisation, or of the one that holds all data."""
        each = {one.id: one for one in self.organisations.each}
        return standalone(self.settings, each[0 if client is None else client])

    def client_columns(self) -> tuple[str, ...]:
        """Name what is shown of every organisation."""
        return CLIENT_COLUMNS

    def notes(self, module: FederatedRun) -> list[str]:
        """Say what was compared, how many rounds had no outputs, which settings were in vain."""
        found = list(self._compared)
        lost = sum(row.get("mtal/dropped", 0.0) > 0 for row in module.history)
        if lost:
            found.append(
                f"in {lost} of {len(module.history)} rounds nobody had its peers' outputs: an "
                "organisation did not answer, and masks cancel in the sum of all only"
            )
        if covers(self.settings.privacy) and (about := remark(self.settings, self._span)):
            found.append(about)
        method, model = self.settings.method, self.settings.model.name
        return found + [
            f"{name} has no effect on the method {method} with the model {model}"
            for name in idle(self.settings)
        ]

    @property
    def _span(self) -> float:
        """Of the scale of ratings: highest less lowest, those that are there if nobody says."""
        low, high = self.settings.data.scale or rating_span(self.organisations.each)
        return high - low

    def client_table(self, module: FederatedRun) -> list[dict[str, Any]]:
        """Give the test of every organisation."""
        rows = [{"client": one.id, "domain": one.domain.name} for one in self.organisations.each]
        for name, (ids, values) in module.client_results.items():
            for client, value in zip(ids.tolist(), values.tolist(), strict=True):
                rows[client][name.removeprefix("test/")] = value
        return rows

    def finish(self, module: FederatedRun, folder: Path) -> None:
        """Draw a run of MTAL beside joint and separate models, where asked to."""
        from coterie.assisted.comparison import compare  # matplotlib is heavy

        settings = self.settings
        if settings.method == "mtal" and settings.compares:
            make = type(self)
            found = compare(module, settings, lambda other: make(other).federation(), folder)
            self._compared = [found]

    def reference(self) -> dict[str, float]:
        """The number of the authors' slides, where data, partition and training are theirs."""
        return reference(self.settings)

    def needs(self) -> list[Need]:
        """Estimate the models of a round, and its steps; nothing is built."""
        how, model, data = self.settings.train, self.settings.model, self.interactions
        if model.name in UNTRAINED:
            return []
        rows, columns = data.n_users, data.n_items
        if self.settings.data.align == "item":
            rows, columns = columns, rows
        if model.name in OF_SAMPLES:
            return _needs_of_samples(self.settings, rows, columns)
        organisations = 1 if self.settings.method == "joint" else 2  # at least
        steps = organisations * how.epochs * -(-rows // how.batch_rows)
        width, parameters = "hidden", organisations * model.hidden * (columns + 1)
        if model.name != "aae":
            width, parameters = "code", model.code * (rows + columns)
        return [
            Need("the models of a round", (f"model.{width}",), memory=4 * parameters),
            Need("local training", ("train.epochs", "train.batch_rows"), steps=steps),
        ]

    def exported(self, module: FederatedRun, asked: Asked) -> Exported:
        """Give what an organisation has learned.

        Raises:
            UserError: no organisation is asked for, or there is no such one.
        """
        from coterie.assisted.exported import exported_organisation

        return exported_organisation(module, self.organisations, self.interactions, asked)

    def score_users(self, module: FederatedRun, users: Tensor) -> Iterator[Scored]:
        """Score all items for users: every organisation those that it has.

        Where organisations share out users, that of the user scores all items.
        """
        return score_users(module, self.organisations, self.settings.data.align, users)

    def scores_alike(self, module: FederatedRun) -> bool:
        """They are not: sums of more cells at once round differently."""
        return False

    def scores_for_newcomer(self, module: FederatedRun, items: Tensor) -> Tensor:
        """Refuse: nobody new can be scored without the peers' own ratings of them.

        Raises:
            UserError: always.
        """
        raise UserError(
            "organisations score the users that they knew when they met: give --user, or train "
            "again with the new one"
        )
