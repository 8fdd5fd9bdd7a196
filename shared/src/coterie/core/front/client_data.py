"""Data of clients, in any form, as the samples that the methods take."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples, divide, share_counts
from coterie.core.errors import UserError
from coterie.core.front.given import of_numpy
from coterie.core.front.partition import BatchForm, Partition
from coterie.core.front.sources import (
    ITEMS,
    Collate,
    Fields,
    column_of,
    is_columns,
    kind_of,
    read,
    read_together,
)
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.tensors.keys import Key

Given = Mapping[Any, Any] | Sequence[Any] | Any
"""Data sets of clients, or one that is shared out."""


@dataclass(frozen=True)
class ClientData:
    """What a federation is trained and measured on.

    Attributes:
        ids: of the clients, as the caller names them; client k of the core is ``ids[k]``.
        split: their samples.
        server: samples of the server.
        form: of a batch.
    """

    ids: tuple[Hashable, ...]
    split: SplitSamples
    server: ServerSamples
    form: BatchForm


@dataclass(frozen=True)
class Reader:
    """Reads what `coterie.core.front.federate.federate` is given.

    Attributes:
        client_column: of one data set, says whose a sample is.
        partition: deals one data set out.
        collate: makes a batch of a list of samples; None = torch's own.
        seed: of what is drawn.
    """

    client_column: str | None = None
    partition: Partition | None = None
    collate: Collate | None = None
    seed: int = 0

    def read(
        self, clients: Given, valid: Given, test: Given, server_valid: Any, server_test: Any
    ) -> ClientData:
        """Read all that is given; arguments as of `federate`.

        Raises:
            UserError: something is no data, or does not fit the rest.
        """
        valid, test = of_numpy(valid), of_numpy(test)
        _check_shares(valid, test)
        ids, parts, form = self._clients(clients)
        train = _stacked(parts, [_called(one) for one in ids], None)
        if not int(train.offsets[-1]):
            raise UserError("no client has a sample: there is nothing to train on")
        key = Key.from_seed(self.seed).fold("front")
        whole = train.lengths
        found: dict[str, SampleData] = {}
        for name, given in (("test", test), ("valid", valid)):
            if isinstance(given, float):
                most = (train.lengths - 1).clamp(min=0)  # one sample stays to train on
                counts = share_counts(whole, given).minimum(most)
                found[name], train = divide(train, counts, key.fold(name).fold(train.ids))
            elif given is not None:
                found[name] = self._others(given, name, ids, train, form)
        server = {
            name: self._server(given, f"server_{name}", train, form)
            for name, given in (("valid", server_valid), ("test", server_test))
            if given is not None
        }
        for name, data in (("clients", train), *found.items()):
            _check_numbers(data, name, ids)
        split = SplitSamples.of(train, found.get("valid"), found.get("test"))
        return ClientData(ids, split, ServerSamples(**server), form)

    def _clients(self, clients: Given) -> tuple[tuple[Hashable, ...], list[Fields], BatchForm]:
        if self.client_column is not None and self.partition is not None:
            raise UserError("client_column= and partition= both say who holds what: give one")
        if _is_many(clients):
            if self.client_column is not None or self.partition is not None:
                name = "client_column" if self.partition is None else "partition"
                raise UserError(
                    f"{name}= shares one data set out, and a list or mapping has one a client: "
                    "leave it out, or give one Dataset, dict of tensors or DataFrame"
                )
            named = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
            parts, form = self._read_all(list(named.values()), [_called(one) for one in named])
            ids = tuple(named)
        else:
            ids, parts, form = self._shared_out(clients)
        if form is None:
            raise UserError("no client has a sample: there is nothing to train on")
        return ids, parts, form

    def _shared_out(
        self, source: Any
    ) -> tuple[tuple[Hashable, ...], list[Fields], BatchForm | None]:
        """One data set, by its column or by the partition."""
        kind_of(source, "clients")
        if self.client_column is not None:
            found, form = self._by_column(source, "clients")
            return tuple(found), list(found.values()), form
        if self.partition is None:
            raise UserError(
                "clients is one data set: say who holds what, by client_column= or partition=, or "
                "give a list with one data set a client"
            )
        if not isinstance(self.partition, Partition):
            raise UserError(
                f"partition is a {type(self.partition).__name__}: give one such as "
                "coterie.partition.dirichlet(alpha=0.3)"
            )
        parts, form = self._read_all([source], ["clients"])
        if form is None:
            return (), [], None
        fields = parts[0]
        key = Key.from_seed(self.seed).fold("front", "partition")
        rows = [
            torch.tensor(r, dtype=torch.int64)
            for r in self.partition.deal(fields, form, key).tolists()
        ]
        return tuple(range(len(rows))), [_rows(fields, row) for row in rows], form

    def _by_column(
        self, source: Any, whose: str
    ) -> tuple[dict[Hashable, Fields], BatchForm | None]:
        assert self.client_column is not None
        owners, rest = column_of(source, self.client_column, whose)
        (fields,), form = self._read_all([rest], [whose])
        if any(map(_missing, owners)):
            raise UserError(
                f"'{self.client_column}' of {whose} names no client in some rows: fill it"
            )
        rows: dict[Hashable, list[int]] = {}
        for place, owner in enumerate(owners):
            if not isinstance(owner, Hashable):
                raise UserError(
                    f"'{self.client_column}' of {whose} holds {type(owner).__name__}s: name a "
                    "column with one id a sample"
                )
            rows.setdefault(owner, []).append(place)
        try:
            order = sorted(rows)  # type: ignore[type-var]
        except TypeError:
            order = list(rows)
        return {one: _rows(fields, torch.tensor(rows[one])) for one in order}, form

    def _others(
        self, given: Given, name: str, ids: Sequence[Hashable], like: SampleData, form: BatchForm
    ) -> SampleData:
        """Validation or test samples of the same clients."""
        if _is_many(given):
            named: Any = given
            if not isinstance(given, Mapping):
                if len(given) != len(ids):
                    raise UserError(
                        f"{name} has {len(given)} data sets for {len(ids)} clients: give one each, "
                        "a mapping by client, or a share such as 0.2"
                    )
                named = dict(zip(ids, given, strict=True))
            parts, other = self._read_all(
                list(named.values()), [f"{name} of {_called(o)}" for o in named]
            )
            found = dict(zip(named, parts, strict=True))
        elif self.client_column is not None:
            found, other = self._by_column(given, name)
        else:
            raise UserError(
                f"{name} is one data set: give a list or mapping with one a client, a share "
                f"such as 0.2, or server_{name}= for samples that the server holds"
            )
        _same_form(other, form, name)
        if strangers := [one for one in found if one not in set(ids)]:
            raise UserError(
                f"{name} has {_called(strangers[0])}, who has nothing to train on: leave them out"
            )
        parts = [found.get(one, {}) for one in ids]
        return _stacked(parts, [f"{name} of {_called(one)}" for one in ids], like.samples)

    def _server(self, given: Any, name: str, like: SampleData, form: BatchForm) -> Fields:
        """Samples that the server holds."""
        if self.client_column is not None:
            try:
                given = column_of(given, self.client_column, name)[1]
            except UserError:
                kind_of(given, name)
        (fields,), other = self._read_all([given], [name])
        _same_form(other, form, name)
        data = _stacked([fields], [name], like.samples)
        _check_numbers(data, name, ())
        return data.samples

    def _read_all(
        self, sources: Sequence[Any], names: Sequence[str]
    ) -> tuple[list[Fields], BatchForm | None]:
        """Read data sets of one kind and one form."""
        kinds = [kind_of(source, whose) for source, whose in zip(sources, names, strict=True)]
        for kind, whose in zip(kinds, names, strict=True):
            if kind != kinds[0]:
                raise UserError(
                    f"{whose} is a {kind}, and {names[0]} a {kinds[0]}: give all clients one kind"
                )
        if self.collate is not None:
            if kinds[0] != ITEMS:
                raise UserError(
                    f"collate_fn= makes batches of samples of Datasets, not of a {kinds[0]}: "
                    "leave it out"
                )
            return read_together(sources, names, self.collate)
        parts, form = [], None
        for source, whose in zip(sources, names, strict=True):
            fields, own = read(source, whose)
            if own is not None:
                form = own if form is None else form
                _same_form(own, form, whose)
            parts.append(fields)
        return parts, form


def _is_many(clients: Given) -> bool:
    """Whether data sets are given, and not one that is shared out.

    Raises:
        UserError: there is none.
    """
    if isinstance(clients, Mapping) and not hasattr(clients, "with_format"):
        if not clients:
            raise UserError("there are no clients: give one data set at least")
        return not is_columns(clients)
    if isinstance(clients, list | tuple):
        if not clients:
            raise UserError("there are no clients: give one data set at least")
        return True
    return False


def _missing(owner: Any) -> bool:
    """Whether a client has no name: None, NaN, or pandas' NA, which cannot be compared."""
    try:
        return owner is None or bool(owner != owner)
    except TypeError:
        return True
    except ValueError:  # an array, which is told as such
        return False


def _called(client: Hashable) -> str:
    return f"client {client!r}"


def _check_shares(valid: Any, test: Any) -> None:
    total = 0.0
    for name, share in (("valid", valid), ("test", test)):
        if isinstance(share, bool | int):
            raise UserError(
                f"{name}={share}: give a share above 0 and below 1, such as 0.2, or data"
            )
        if isinstance(share, float):
            if not 0 < share < 1:
                raise UserError(
                    f"{name}={share:g}: a share of each client's samples is above 0 and below 1"
                )
            total += share
    if total >= 1:
        raise UserError(
            f"valid and test together take {total:g} of the samples: leave some to train on"
        )


def _same_form(one: BatchForm | None, other: BatchForm, whose: str) -> None:
    if one is None or one == other:
        return
    mine, theirs = sorted(one.names), sorted(other.names)
    if mine != theirs:
        raise UserError(
            f"{whose} has the fields {', '.join(mine)}, the first one has {', '.join(theirs)}: "
            "give all of them the same"
        )
    if not (one.is_dict and other.is_dict):  # the order of columns does not matter
        raise UserError(f"{whose} has its samples in another form: give all of them the same")


def _rows(fields: Fields, rows: Tensor) -> Fields:
    return {name: values[rows] for name, values in fields.items()}


def _stacked(parts: Sequence[Fields], names: Sequence[str], like: Fields | None) -> SampleData:
    """Put samples end to end; what has none is filled in, and all must be of one shape and type."""
    first = like if like is not None else next((part for part in parts if part), None)
    if first is None:
        raise UserError("no client has a sample: there is nothing to train on")
    whole = []
    for part, whose in zip(parts, names, strict=True):
        own = part or {name: values[:0] for name, values in first.items()}
        empty = not len(next(iter(own.values())))
        for name, values in first.items():
            if empty:
                own = {**own, name: values[:0]}
                continue
            mine = own[name]
            if mine.dtype != values.dtype or mine.shape[1:] != values.shape[1:]:
                raise UserError(
                    f"'{name}' of {whose} is {_described(mine)} a sample, of the first one "
                    f"{_described(values)}: give all clients one shape and type"
                )
        whole.append({name: own[name].detach() for name in first})
    return SampleData.from_clients(whole)


def _described(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape[1:])}"


def _check_numbers(data: SampleData, name: str, ids: Sequence[Hashable]) -> None:
    """Refuse NaN, by which training would diverge or leave clients out one by one."""
    for field, values in data.samples.items():
        if not values.is_floating_point():
            continue
        bad = values.isnan().flatten(1).any(1) if values.dim() > 1 else values.isnan()
        if not bool(bad.any()):
            continue
        place = int(bad.nonzero()[0])
        owner = int(torch.searchsorted(data.offsets, place, right=True)) - 1
        whose = _called(ids[owner]) if ids else name
        part = "" if name == "clients" or not ids else f" of {name}"
        raise UserError(
            f"'{field}'{part} of {whose} holds NaN: fill it by a number and, if it is to count for "
            "nothing, mask it in the loss"
        )
