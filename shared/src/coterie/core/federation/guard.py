"""The guard: which answers of clients are accepted. Both ends of a wire use the same rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from coterie.core.protocol.messages import AnyStep, Leaving, Report, Up, declared, relayed
from coterie.core.protocol.uploads import Bounds, Fold, Like
from coterie.core.tensors import tree
from coterie.core.tensors.appended import Appended, Entry
from coterie.core.tensors.stacked import Stacked

Versions = dict[int, tuple[Tensor | Entry[Any], int]]
Verdict = tuple[Tensor, dict[int, str]]
"""Which clients are accepted, ``(C,)`` bool, and why the others are not."""


def versions(mine: Any) -> Versions:
    """Remember the parts of a private state as they are handed out: identity -> version.

    Of what only grows that is its newest entry: the others are looked at when they are used, and
    before they are saved.
    """
    return {id(part): (part, part._version) for part in _parts(mine)}


def written(before: Versions) -> bool:
    """Whether a tensor was written into since."""
    return any(part._version != version for part, version in before.values())


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a server knows of an answer before it comes.

    Attributes:
        step: what was asked for.
        down: the message that was sent.
        ids: ``(C,)`` the clients.
        one_each: whether the message is stacked over the clients, as each received its own.
    """

    step: AnyStep[Any, Any]
    down: Any
    ids: Tensor
    one_each: bool = False


def guard(asked: Asked, up: Any, bounds: Bounds) -> Verdict:
    """Judge the uploads of some clients by the form that was asked for.

    Class, names, shapes and dtypes must be those of the step's message, all numbers finite (in a
    `Report` NaN says "not measured"), norms and counts within bounds.

    Args:
        asked: what was asked.
        up: the uploads, stacked, or of one client in the list form; or None.
        bounds: what no client can plausibly exceed.
    """
    n_clients = asked.ids.numel()
    verdict = _Verdict(asked.ids)
    if why := _wrong_form(asked, up):
        verdict.refuse(torch.ones(n_clients, dtype=torch.bool), why)
    elif up is not None and not _all(_judged(up, bounds, n_clients)):
        for field in declared(type(up)):
            _blame(verdict, field, up, bounds)
    return verdict.ok, verdict.reasons


def guard_total(asked: Asked, fold: Fold, total: Any, bounds: Bounds) -> str | None:
    """Judge what was folded of the uploads of some clients; say what is wrong, if anything is.

    Below a fold no single client can be judged: it is accepted or refused as a whole, and its
    bounds are those of one client times their weights.
    """
    sums, weight = fold.sums(total, asked.ids.numel(), bounds)
    if sums is None:
        return "the fold's weight is out of bounds"
    for field in declared(type(sums)):
        name, expected, value = field.name, field.expected, getattr(sums, field.name)
        if isinstance(expected, Like) and value is not None:
            if why := expected.form(value, asked.down, asked.one_each, None):
                return f"folded '{name}' {why}"
            most = Bounds(bounds.norm * weight, bounds.count)
            within = expected.within(tree.as_stack(value), most, 1)
            if within is not None and not bool(within[0].all()):
                return f"folded '{name}' {within[1]}"
        for path, good in tree.finite(tree.values({name: value}), 1):
            if not bool(good.all()):
                return f"NaN or infinity in folded '{path}'"
    return None


def guard_state(new: Any, ids: Tensor, before: Versions) -> Verdict:
    """Judge new private states: their numbers must be finite.

    Args:
        new: stacked, or of one client in the list form; or None.
        ids: ``(C,)`` the clients.
        before: what `versions` gave of the state before; what did not change since is finite.
    """
    verdict, found = _Verdict(ids), list(tree.totals(_fresh(new, before), ids.numel()))
    if not _all(total for _, total in found):
        for path, total in found:
            verdict.refuse(~total.isfinite(), f"NaN or infinity in private state '{path}'")
    return verdict.ok, verdict.reasons


class _Verdict:
    """Who is accepted, and the first reason why others are not."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids
        self.ok = torch.ones(ids.numel(), dtype=torch.bool)
        self.reasons: dict[int, str] = {}

    def refuse(self, broken: Tensor, why: str) -> None:
        """Refuse clients, ``(C,)`` bool."""
        if bool(broken.any()):
            self.reasons |= dict.fromkeys(self.ids[self.ok & broken].tolist(), why)
            self.ok &= ~broken


def _all(judged: Iterable[Tensor]) -> bool:
    """Whether all are true, or finite, ``(C,)`` each: read once, as reading takes longest."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for one in judged:
        by_dtype.setdefault(one.dtype, []).append(one)
    every = {dtype: torch.stack(parts) for dtype, parts in by_dtype.items()}
    return all(
        bool((found if dtype == torch.bool else found.isfinite()).all())
        for dtype, found in every.items()
    )


def _judged(up: Any, bounds: Bounds, n_clients: int) -> Iterator[Tensor]:
    """Which clients' parts are accepted, and what is finite where they are, field by field."""
    for field in declared(type(up)):
        value = getattr(up, field.name)
        if value is None:
            continue
        if field.expected is not None and (
            within := field.expected.within(value, bounds, n_clients)
        ):
            yield within[0]
        if not isinstance(field.expected, Like):  # what has a norm within bounds is finite
            found = tree.totals(tree.values(value), n_clients, nan=isinstance(up, Report))
            yield from (total for _, total in found)


def _blame(verdict: _Verdict, field: Leaving, up: Any, bounds: Bounds) -> None:
    """Refuse clients for one field, with the reason."""
    value, n_clients = getattr(up, field.name), verdict.ids.numel()
    if value is None:
        return
    found = tree.finite(tree.values({field.name: value}), n_clients, nan=isinstance(up, Report))
    for path, good in found:
        verdict.refuse(~good, f"NaN or infinity in upload '{path}'")
    if field.expected is not None and (within := field.expected.within(value, bounds, n_clients)):
        verdict.refuse(~within[0], f"upload '{field.name}' {within[1]}")


def _wrong_form(asked: Asked, up: Any) -> str | None:
    wanted = asked.step.up
    if not isinstance(up, type(None) if wanted is None else wanted):
        name = "nothing" if wanted is None else f"a {wanted.__name__}"
        return f"the upload is a {type(up).__name__}, not {name}"
    if not isinstance(up, Up):
        return None
    n_clients = asked.ids.numel() if asked.step.form == "stacked" else None
    for field in declared(type(up)):
        value = getattr(up, field.name)
        if field.expected is None or value is None:
            continue
        if why := field.expected.form(value, asked.down, asked.one_each, n_clients):
            return f"upload '{field.name}' {why}"
    for name in relayed(type(up)):
        value = getattr(up, name)
        if isinstance(value, dict) and not all(peer.isdecimal() for peer in value):
            return f"upload '{name}' is to be passed on to what is no client's number"
    return None


def _parts(mine: Any) -> Iterator[Tensor | Entry[Any]]:
    for _, leaf in tree.leaves(mine, whole=True):
        if isinstance(leaf, Tensor):
            yield leaf
        elif isinstance(leaf, Appended):
            if leaf.newest is not None:
                yield leaf.newest
        elif isinstance(leaf, Stacked):
            yield from (tensor for _, tensor in tree.tensors(leaf))


def _fresh(new: Any, before: Versions) -> Iterator[tuple[str, Tensor | Stacked]]:
    """Leaves that are not as they were handed out, and entries that have been appended since."""
    for path, leaf in tree.leaves(new, whole=True):
        if isinstance(leaf, Appended):
            for entry in takewhile(lambda entry: id(entry) not in before, leaf.newest_first()):
                found = tree.values({str(entry.number): entry.value})
                yield from ((f"{path}.{name}", one) for name, one in found)
        elif isinstance(leaf, (Tensor, Stacked)) and not _known(leaf, before):
            yield path, leaf


def _known(leaf: Any, before: Versions) -> bool:
    parts = [leaf] if isinstance(leaf, Tensor) else [part for _, part in tree.tensors(leaf)]
    return all(id(part) in before and before[id(part)][1] == part._version for part in parts)
