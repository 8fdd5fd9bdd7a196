"""By which version of the code a card was written: nobody trains beside another one unawares."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args, get_origin

from coterie.core.errors import UserError
from coterie.core.protocol.card import Card
from coterie.core.protocol.messages import AnyStep, Up, declared
from coterie.core.registry.papers import papers
from coterie.core.wire.annotations import choices, fields_of

PROTOCOL = 1
"""What parcels and replies look like (`coterie.core.engines.envelope`)."""


class Misfit(UserError):
    """A card was written by other versions than those that are installed.

    The line names no path, as the server is told it.
    """


def with_edition(card: Card, steps: Mapping[str, AnyStep[Any, Any]]) -> Card:
    """Write down which code makes a card's halves.

    Args:
        card: of a run.
        steps: of its client half.
    """
    messages = {name: message_form(step) for name, step in steps.items()}
    versions = _versions(card.paper)
    return dataclasses.replace(card, protocol=PROTOCOL, versions=versions, messages=messages)


def check_edition(card: Card) -> None:
    """Check that the packages that are installed here are those that wrote a card.

    A card that says nothing of them was written by hand, and fits.

    Raises:
        Misfit: they are not; names what differs.
    """
    if card.protocol not in (0, PROTOCOL):
        raise Misfit(
            f"the card is of protocol {card.protocol}, and this client speaks {PROTOCOL}: install "
            "the server's version of coterie"
        )
    here = _versions(card.paper)
    for name, wanted in card.versions.items():
        if here.get(name) != wanted:
            found = here.get(name, "is not installed")
            raise Misfit(
                f"the card is of {name} {wanted}, and this client has {found}: install the same "
                "version on both sides"
            )


def check_messages(card: Card, steps: Mapping[str, AnyStep[Any, Any]]) -> None:
    """Check that a client half has the steps of a card, with the same messages.

    Raises:
        Misfit: it has not; names the step.
    """
    if not card.messages:
        return
    for name in dict.fromkeys([*card.messages, *steps]):
        form = message_form(steps[name]) if name in steps else None
        if form != card.messages.get(name):
            raise Misfit(
                f"the messages of step '{name}' are not those of the card, in name, fields or "
                "form: install the same version of coterie and of the paper on both sides"
            )


def message_form(step: AnyStep[Any, Any]) -> str:
    """Digest of what a step's messages look like: names, fields, types and expected forms."""
    both = ", ".join(_described(way) for way in (step.down, step.up))
    text = f"{step.form} {step.name}({both}) {step.diverged}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _versions(paper: str) -> dict[str, str]:
    """Of the core and of the paper's package, where they are installed."""
    packages = ["coterie-core"]
    packages += [f"coterie-{one.package}" for one in papers().values() if one.name == paper]
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _described(hint: Any) -> str:
    """A type, with the fields of dataclasses in it."""
    found = get_origin(hint) or hint
    if isinstance(found, type) and dataclasses.is_dataclass(found):
        forms = _forms(found)
        fields = (f"{n}: {_described(h)}{forms.get(n, '')}" for n, h in fields_of(found).items())
        return f"{found.__name__}{_parts(get_args(hint))}({'; '.join(fields)})"
    parts = choices(hint)
    if len(parts) > 1:
        return " | ".join(map(_described, parts))
    name = getattr(found, "__name__", str(found))
    return f"{name}{_parts(get_args(hint))}"


def _parts(parts: Iterable[Any]) -> str:
    inner = ", ".join(map(_described, parts))
    return f"[{inner}]" if inner else ""


def _forms(message: type) -> dict[str, str]:
    """The expected forms of an upload's fields."""
    if not issubclass(message, Up):
        return {}
    expected = {field.name: field.expected for field in declared(message)}
    return {
        name: f" as {type(form).__name__}{dataclasses.asdict(form)}"  # type: ignore[call-overload]
        for name, form in expected.items()
        if form is not None
    }
