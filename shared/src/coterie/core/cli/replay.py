"""``coterie replay RUN --round R --client C``: what a client received, did, kept and sent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from coterie.core.cli.command import (
    JSON_HELP,
    Arguments,
    aside,
    positive,
    print_json,
    print_rows,
    say,
    tell,
)
from coterie.core.registry.papers import heavy
from coterie.core.run.runfolder import paper_of

if TYPE_CHECKING:
    from coterie.core.run.leaf_facts import Fact
    from coterie.core.run.recording import Turn
    from coterie.core.run.replay import Replay

_ABOUT = (
    "Run a round of a run again, and show what one client received, did, kept and sent in it. It "
    "is compared with what the run wrote down when it was trained, message by message where it has "
    "a transcript (--logger.transcript true), and refused if it differs."
)
_SHOWN = 8
"""Changed rows that are named."""


def run_replay(argv: Sequence[str]) -> None:
    """Run the command; raise `UserError` for what the user can mend."""
    parser = Arguments("replay", _ABOUT)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--round", required=True, type=positive, metavar="R", help="over all blocks, from 1"
    )
    parser.add_argument("--client", required=True, type=int, metavar="C", help="number of a client")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parser.add_argument(
        "--save", type=Path, metavar="DIR", help="write the tensors there, as safetensors"
    )
    given = parser.parse_args(argv)
    paper_of(given.run)
    with aside(given.json):
        found: Replay = heavy("coterie.core.run.replay").replay(
            given.run, given.round, given.client, _progress
        )
    saved = [] if given.save is None else found.save(given.save)
    if given.json:
        print_json({**found.document(), "files": [str(path) for path in saved]})
        return
    _show(found)
    if saved:
        tell(f"Written to {given.save}: {', '.join(path.name for path in saved)}")


def _progress(done: int, of: int) -> None:
    """Say on a terminal how far the rounds before are; elsewhere once, at the end."""
    if sys.stderr.isatty():
        end = "\n" if done == of else ""
        sys.stderr.write(f"\rcoterie: runs rounds before it again, {done} of {of}{end}")
        sys.stderr.flush()
    elif done == of:
        sys.stderr.write(f"coterie: ran {of} round{'s' * (of != 1)} before it again\n")


def _show(found: Replay) -> None:
    who = f"Client {found.client}" + (f" (user {found.user})" if found.user else "")
    tell(f"{who} in round {found.round}, block {found.block}, of {found.run}")
    tell(_proof(found))
    for name, turn in found.by_step():
        _show_turn(found, name, turn)
    rows = [_of_state(row) for row in found.kept()]
    say("")
    if rows:
        title = "Kept: private state before and after the round; of tensors their norms"
        print_rows(rows, title, first=("before", "after"))
    else:
        tell("Kept: nothing; this method's clients have no private state")
    if found.measured:
        measured = [{"measured": name, "value": value} for name, value in found.measured.items()]
        say("")
        print_rows(measured, "Measured of this client in the round")
    if steps := found.numbers.get("cost/local_steps"):
        tell(f"All clients together made {steps:,.0f} local steps in the round.")


def _proof(found: Replay) -> str:
    start = f"the checkpoint of round {found.began}" if found.began else "the start of the run"
    if found.proof == "transcript":
        what = f"Matches the transcript: yes, all {found.compared} crossings, by their hashes."
    else:
        what = (
            f"Matches metrics.csv: yes, all {found.compared} numbers of the round. The run has no "
            "transcript (--logger.transcript true), which would prove every message."
        )
    return f"Run again from {start}. {what}"


def _show_turn(found: Replay, name: str, turn: Turn) -> None:
    say("")
    opens = " (as the block opened)" if turn.when[1] == 0 else ""
    if turn.received is None:
        tell(f"{name}: asked without a message{opens}")
    else:
        rows = [_of_field(one) for one in found.facts(turn.received)]
        print_rows(rows, f"{name}: received{opens}")
    if turn.refused:
        tell(f"{name}: the answer was refused: {turn.refused}")
    if turn.sent is None:
        tell(f"{name}: sent nothing" * (not turn.refused))
        return
    sent, made = found.facts(turn.sent), {one.field: one for one in found.facts(turn.made)}
    print_rows([_of_upload(one, made[one.field]) for one in sent], f"{name}: sent")
    for one in sent:
        if one.rows is not None:
            tell(_touched(one))


def _of_field(fact: Fact) -> dict[str, Any]:
    return {
        "field": fact.field,
        "shape": _shape(fact),
        "size": decimal(fact.bytes) if fact.bytes else None,
        "norm": fact.norm,
        "begins with": _values(fact),
    }


def _of_upload(fact: Fact, made: Fact) -> dict[str, Any]:
    """A field as it left, and what clipping and noise made of its norm where they did."""
    row = _of_field(fact)
    if (fact.norm, fact.values, fact.rows) == (made.norm, made.values, made.rows):
        return row
    return {"field": row.pop("field"), "norm before noise": made.norm, **row}


def _of_state(row: dict[str, Any]) -> dict[str, Any]:
    """A tensor of the private state: its norm, or the one value that it holds."""
    return {
        "field": row["field"],
        "before": row.get("value_before", row.get("norm_before")),
        "after": row.get("value", row.get("norm")),
        "changed": row["changed"],
        "entries changed": row.get("rows"),
        "shape": " x ".join(map(str, row["shape"])) if row.get("shape") else None,
        "size": decimal(row["bytes"]) if row.get("bytes") else None,
    }


def _shape(fact: Fact) -> str | None:
    if fact.rows is not None and fact.shape is not None:
        return f"{len(fact.rows)} of {fact.shape[0]} rows x {fact.shape[1]}"
    return " x ".join(map(str, fact.shape)) if fact.shape else None


def _values(fact: Fact) -> str:
    if not isinstance(fact.values, list):
        return str(fact.values)
    return " ".join(f"{one:.3g}" if isinstance(one, float) else str(one) for one in fact.values)


def _touched(fact: Fact) -> str:
    rows = fact.rows or []
    names = fact.items or [str(row) for row in rows]
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    kind = "items" if fact.items else "rows"
    return f"{fact.field} changes {len(rows)} {kind}: {', '.join(names[:_SHOWN])}{more}"
