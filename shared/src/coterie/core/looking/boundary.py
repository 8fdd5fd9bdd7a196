"""The section of a page about what crosses the boundary of clients: by field, and by party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from rich.filesize import decimal

from coterie.core.errors import UserError
from coterie.core.looking.clients import NAMED
from coterie.core.looking.costs import Sent, cost, crossed
from coterie.core.looking.facts import RunFacts
from coterie.core.looking.privacy import declared
from coterie.core.looking.sections import Section, Sheet

CLIENTS = "clients"
"""The party that stands for all of them."""
_TITLES = {"up": ("leaves", "What leaves a client"), "down": ("received", "What clients receive")}


def crossing(run: RunFacts) -> Section:
    """What left the clients: as the code declares it, and as it was counted."""
    try:
        rows = declared(run)
    except UserError as error:
        return Section("privacy", "What leaves a client", [str(error)])
    found, counted = crossed(run.ledger, rows), bool(run.ledger)
    sheets = []
    for way, (name, title) in _TITLES.items():
        fields = [one for one in found if one.direction == way]
        several = len({one.parties for one in fields}) > 1
        sheets.append(Sheet(name, title, [_row(one, counted, several) for one in fields]))
    if not counted:
        words = ["The bytes of fields are written down at the end of a run."]
        return Section("privacy", "What crosses the boundary", words, sheets=sheets)
    words = [
        "Bytes are of the tensors of every message; - : no tensor of it crossed in this run (plain "
        "numbers, as that of a round, have no bytes here)."
    ]
    roles: dict[str, int] = {}
    for one in found:
        roles[one.parties] = roles.get(one.parties, 0) + one.bytes
    facts = {who: decimal(size) for who, size in roles.items()}
    if run.parties:
        sheets += by_party(run.parties)
    else:
        each = cost(run).up_each
        mean = f": {decimal(round(each))} by one in a round, on average" if each == each else ""
        words.append(f"Clients are counted together{mean}.")
    return Section("privacy", "What crosses the boundary", words, facts, sheets=sheets)


def _row(one: Sent, counted: bool, several: bool) -> dict[str, str]:
    """A field as a row; between whom it crossed is said where that is not the same for all."""
    row = {"field": one.field, "step": one.step}
    if counted:
        row |= {"bytes": decimal(one.bytes) if one.bytes else "-"}
        row |= {"messages": f"{one.messages:,}" if one.messages else "-"}
    row |= {"content": one.declared.get("content", "counted beside messages")}
    if one.direction == "up":
        row |= {"reveals": one.declared.get("reveals", "not declared")}
        row |= {"depends on": one.declared.get("depends on", "-")}
        row |= {"noise": one.declared.get("noise", "-")}
    return row | ({"parties": one.parties} if several else {})


def by_party(rows: Sequence[Mapping[str, object]]) -> list[Sheet]:
    """Lay out what each organisation sent and received; of many, only the spread.

    Args:
        rows: of ``parties.json``.

    Example:
        >>> row = {"direction": "up", "field": "change", "messages": 1}
        >>> sheets = by_party([row | {"party": "0", "bytes": 6}, row | {"party": "7", "bytes": 9}])
        >>> [sheet.name for sheet in sheets], sheets[0].rows[1]
        (['parties', 'fields-by-party'], {'client': '7', 'sent': '9 bytes', 'received': '0 bytes'})
        >>> sheets[1].rows[0]["most"]
        '9 bytes (client 7)'
    """
    beside = sum(int(str(row["bytes"])) for row in rows if row["party"] == CLIENTS)
    rows = [row for row in rows if row["party"] != CLIENTS]
    names = sorted({str(row["party"]) for row in rows}, key=lambda name: (len(name), name))
    sums: dict[str, dict[str, int]] = {"up": {}, "down": {}}
    fields: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        way, name, size = str(row["direction"]), str(row["party"]), int(str(row["bytes"]))
        sums[way][name] = sums[way].get(name, 0) + size
        fields.setdefault((way, str(row["field"])), {})[name] = size
    named = len(names) <= NAMED
    each = [
        {
            "client": name,
            "sent": decimal(sums["up"].get(name, 0)),
            "received": decimal(sums["down"].get(name, 0)),
        }
        for name in names
    ]
    largest = sorted(fields.items(), key=lambda one: (one[0][0] != "up", -sum(one[1].values())))
    spread = [_spread(*key, sizes, names, named) for key, sizes in largest if any(sizes.values())]
    sheets = [Sheet("parties", "Bytes by client", each)] if named else []
    notes = [f"{decimal(beside)} more are counted for all clients together."] if beside else []
    title = f"Bytes by field, over {len(names)} clients"
    return [*sheets, Sheet("fields-by-party", title, spread, notes)]


def _spread(
    way: str, field: str, sizes: Mapping[str, int], names: Sequence[str], named: bool
) -> dict[str, str]:
    """The least, the middle and the most that clients sent or received of a field."""
    known = {name: sizes.get(name, 0) for name in names}
    least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    differ = named and known[least] != known[most]
    return {
        "field": field,
        "way": "sent" if way == "up" else "received",
        "all": decimal(sum(known.values())),
        "least": decimal(known[least]) + f" (client {least})" * differ,
        "median": decimal(round(median(known.values()))),
        "most": decimal(known[most]) + f" (client {most})" * differ,
    }
