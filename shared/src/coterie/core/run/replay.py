"""A round of a run once more, to see what one client received, did, kept and sent in it.

All randomness follows from coordinates (`coterie.core.tensors.keys`), so a round that begins from
the same state is the same round, bit for bit. Where no checkpoint of the round before is kept, the
rounds between are run again, too. What comes out is held against what the run wrote down when it
was trained, and refused if it differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from coterie.core.errors import UserError
from coterie.core.federation.ledger import Transcript, read_transcript
from coterie.core.files import writing
from coterie.core.registry.keys import KEYS, MetricKey, documented
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.checkpoint import (
    BEST,
    LAST,
    check_bound,
    check_data_there,
    check_settings,
    naming,
    read_checkpoint,
)
from coterie.core.run.driver import FederatedRun, computing_as
from coterie.core.run.experiment import Experiment, RecommendsToUsers
from coterie.core.run.leaf_facts import Fact, changes_of, facts_of
from coterie.core.run.metrics_file import number, read_metrics
from coterie.core.run.recording import Recording, Turn
from coterie.core.run.runfolder import RunFolder
from coterie.core.tensors import tree
from coterie.core.wire.codec import tensors_of

Told = Callable[[int, int], None]
"""Is told how many rounds of how many have been run again."""


@dataclass(frozen=True)
class Replay:
    """What a client received, did, kept and sent in a round.

    Attributes:
        run: folder of the run.
        round: over all blocks, from 1.
        block: of the round.
        client: its number.
        user: its name in the data, where clients are users; else empty.
        turns: what it was asked, in order, and what it answered.
        before: private state before the round; None for a newcomer.
        after: private state after it.
        measured: the client's numbers that the round noted, by name.
        numbers: those of the whole round.
        began: round from whose end the run was run again; 0 is its start.
        proof: what the round was compared with, ``transcript`` or ``metrics``.
        compared: how many crossings of the transcript, or numbers of ``metrics.csv``, are the same.
        titles: id and title of each item, by its number, where the run recommends.
    """

    run: Path
    round: int
    block: int
    client: int
    user: str
    turns: tuple[Turn, ...]
    before: Any
    after: Any
    measured: Mapping[str, float]
    numbers: Mapping[str, float]
    began: int
    proof: str
    compared: int
    titles: Sequence[str] = ()

    @property
    def received(self) -> dict[str, Any]:
        """Messages to the client by step, as the paper's own dataclasses.

        Of steps that are asked for several times in a round, ``update``, ``update 2`` and so on.
        """
        return {name: turn.received for name, turn in self.by_step() if turn.received is not None}

    @property
    def sent(self) -> dict[str, Any]:
        """Messages from the client by step, clipped and noised as they left."""
        return {name: turn.sent for name, turn in self.by_step() if turn.sent is not None}

    def by_step(self) -> Iterator[tuple[str, Turn]]:
        """The asks with a name of their own each."""
        for place, turn in enumerate(self.turns):
            times = 1 + sum(turn.step == earlier.step for earlier in self.turns[:place])
            yield turn.step if times == 1 else f"{turn.step} {times}", turn

    def kept(self) -> list[dict[str, Any]]:
        """Facts of the private state: of each tensor, what it was and what became of it."""
        return changes_of(self.before, self.after)

    def document(self) -> dict[str, Any]:
        """All facts, as JSON has them."""
        return {
            "run": str(self.run),
            "round": self.round,
            "block": self.block,
            "client": self.client,
            "user": self.user or None,
            "began_after_round": self.began,
            "compared_with": self.proof,
            "compared": self.compared,
            "matches": True,
            "steps": [self._of_turn(name, turn) for name, turn in self.by_step()],
            "kept": self.kept(),
            "measured": dict(self.measured),
            "round_numbers": dict(self.numbers),
        }

    def facts(self, message: Any) -> list[Fact]:
        """Facts of a message's tensors, and of the rows that it changes."""
        return facts_of(message, self.titles)

    def _of_turn(self, name: str, turn: Turn) -> dict[str, Any]:
        return {
            "step": name,
            "round_in_block": turn.when[1],
            "refused": turn.refused or None,
            "received": [one.plain() for one in self.facts(turn.received)],
            "made": [one.plain() for one in self.facts(turn.made)],
            "sent": [one.plain() for one in self.facts(turn.sent)],
        }

    def save(self, folder: Path) -> list[Path]:
        """Write the tensors as safetensors for a debugger.

        ``received.safetensors`` and ``sent.safetensors`` have them as ``step/field``,
        ``before.safetensors`` and ``after.safetensors`` as ``field``, each as it travels.

        Raises:
            UserError: the folder cannot be written.
        """
        parts: dict[str, Any] = {
            "received": _under_steps(self.received),
            "before": {} if self.before is None else tensors_of(_fields(self.before)),
            "after": {} if self.after is None else tensors_of(_fields(self.after)),
            "sent": _under_steps(self.sent),
        }
        written = []
        for name, tensors in parts.items():
            path = folder / f"{name}.safetensors"
            with writing(path, elsewhere="choose another folder by --save DIR"):
                folder.mkdir(parents=True, exist_ok=True)
                save_file(
                    {n: t.detach().cpu().clone().contiguous() for n, t in tensors.items()}, path
                )
            written.append(path)
        return written


def _under_steps(messages: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{step}/{name}": tensor
        for step, message in messages.items()
        for name, tensor in tensors_of(_fields(message)).items()
    }


def _fields(message: Any) -> Any:
    """A message as what `tensors_of` walks: fields without a value left out."""
    return {name: value for name, value in tree.children(message) if value is not None}


# Running the rounds again.


def replay(run: Path, round_: int, client: int, told: Told = lambda done, of: None) -> Replay:
    """Run a round of a run again, and look at one of its clients.

    Args:
        run: folder of the run.
        round_: over all blocks, from 1.
        client: its number.
        told: hears how many of the rounds before have been run again.

    Raises:
        UserError: there is no such run, round or client, it took no part in the round, its settings
            or data are others by now, or what was run is not what the run wrote down.
    """
    folder = RunFolder.open(run)
    settings = folder.settings
    rows = read_metrics(folder.path)[1]
    _check_asked(folder, round_, len(rows))
    check_data_there(folder)
    experiment: Experiment[Any] = load(find_paper(folder.paper).experiment)(settings)
    if why := experiment.elsewhere():
        raise UserError(f"{run} cannot be run again on this machine alone: {why}")
    with computing_as(settings.engine), naming(folder.path):
        again = _Again(folder, FederatedRun(experiment.federation()), rows, client)
        began = again.begin(round_)
        for number_ in range(began + 1, round_):
            again.advance(number_)
            told(number_ - began, round_ - 1 - began)
        before, lines = again.record(round_)
        proof, compared = _compared(folder, again.run, lines, rows[round_ - 1])
        return again.seen(experiment, before, began, proof, compared)


def _check_asked(folder: RunFolder, round_: int, done: int) -> None:
    """Refuse what cannot be run again, before anything is built."""
    engine = folder.settings.engine.name
    if engine != "in-process":
        raise UserError(
            f"{folder.path} was trained with engine.name {engine}, and only a run whose clients "
            "were in one process can be run again to the same bits"
        )
    if not 1 <= round_ <= done:
        have = f"1 to {done}" if done else "none yet"
        raise UserError(f"{folder.path} has no round {round_}: its rounds are {have}")


class _Again:
    """A run that is run again, with one client watched."""

    def __init__(
        self, folder: RunFolder, run: FederatedRun, rows: Sequence[Mapping[str, str]], client: int
    ) -> None:
        self.folder, self.run, self.rows, self.client = folder, run, rows, client
        known = {int(one) for data in run.federation.blocks for one in data.ids.tolist()}
        if client not in known:
            raise UserError(f"there is no client {client}: they are {min(known)} to {max(known)}")
        self.ended_by = 0  # the round after which somebody else than the server ended the run
        self.recorded = Recording.of(run.clients, client)
        run.exchange = self.recorded
        self.took_part: list[int] = []

    def begin(self, round_: int) -> int:
        """Load the newest checkpoint of before the round; give its round, 0 for the start."""
        found: dict[int, Any] = {}
        for name in (LAST, BEST):
            path = self.folder.checkpoints / name
            if not path.is_file():
                continue
            saved = read_checkpoint(path)["federation"]
            check_settings(saved, self.run.federation)
            check_bound(saved, self.run.bound, self.run.federation)
            found[int(saved["round"])] = saved
            if saved.get("closed"):
                self.ended_by = max(self.ended_by, int(saved["round"]))
        nearest = max((one for one in found if one < round_), default=0)
        if nearest:
            self.run.load_plain(found[nearest])
            self.run.reopen()
        return nearest

    def advance(self, round_: int) -> None:
        """Run a round, and end its block where somebody else than the server did."""
        self.recorded.turns.clear()
        self.recorded.answered.clear()
        if self.run.finished:
            raise UserError(
                f"it ends in round {self.run.round} when it is run again: its "
                "settings are not those it was trained with"
            )
        self.run.advance()
        row = self.rows[round_ - 1]
        if self.run.block != int(row["block"]):
            raise UserError(
                f"round {round_} is of block {self.run.block} when it is run again, and was of "
                f"block {row['block']}: its settings are not those it was trained with"
            )
        following = self.rows[round_]["block"] if round_ < len(self.rows) else None
        ended = following not in (None, row["block"]) or self.ended_by == round_
        if ended and self.run.block_open:
            self.run.close_block()
        if self.recorded.turns:
            self.took_part.append(round_)

    def record(self, round_: int) -> tuple[Any, list[dict[str, Any]]]:
        """Run the round; give the client's private state before it, and what crossed."""
        lines: list[str] = []
        self.run.ledger.transcript = Transcript(lines.append)
        before = self.recorded.mine()
        self.advance(round_)
        if not self.recorded.turns:
            raise UserError(self._absent(round_))
        return before, [json.loads(line) for line in "".join(lines).splitlines()]

    def seen(
        self, experiment: Experiment[Any], before: Any, began: int, proof: str, compared: int
    ) -> Replay:
        """Put together what was seen."""
        user, titles = "", list[str]()
        if isinstance(experiment, RecommendsToUsers):
            data = experiment.interactions
            user = "" if self.recorded.is_list else data.user_names[self.client]
            names = data.titles or [""] * data.n_items
            both = zip(data.item_names, names, strict=True)
            titles = [f"{one} {name}".strip() for one, name in both]
        return Replay(
            run=self.folder.path,
            round=self.run.round,
            block=self.run.block,
            client=self.client,
            user=user,
            turns=tuple(self.recorded.turns),
            before=before,
            after=self.recorded.mine(),
            measured=self._measured(),
            numbers=dict(self.run.journal.scalars),
            began=began,
            proof=proof,
            compared=compared,
            titles=titles,
        )

    def _measured(self) -> dict[str, float]:
        found = {}
        for name, (ids, values) in self.run.journal.clients.items():
            place = (ids == self.client).nonzero().flatten()
            if place.numel():
                found[name] = float(values[int(place[0])])
        return found

    def _absent(self, round_: int) -> str:
        others = sorted(self.recorded.answered)
        some = ", ".join(map(str, others[:5])) + ("…" if len(others) > 5 else "")
        where = f"it did in round {self.took_part[-1]}" if self.took_part else f"{some} did"
        return f"client {self.client} took no part in round {round_}: {where}"


def _compared(
    folder: RunFolder,
    run: FederatedRun,
    lines: Sequence[Mapping[str, Any]],
    row: Mapping[str, str],
) -> tuple[str, int]:
    """Hold what was run against what the run wrote down; say against what, and how many agree."""
    path = folder.path / "transcript.jsonl"
    if not path.is_file():
        return "metrics", _same_numbers(run, row, find_paper(folder.paper).keys)
    opens = (run.block, 0), (run.block, run.block_round)
    rounds = opens if run.block_round == 1 else opens[1:]
    then = [line for line in _read(path) if (line.get("block"), line.get("round")) in rounds]
    for place, line in enumerate(lines):
        if place >= len(then) or then[place] != line:
            raise UserError(_differs(path, run, line, then[place : place + 1]))
    if len(then) > len(lines):
        raise UserError(_differs(path, run, {}, then[len(lines) :]))
    return "transcript", len(lines)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        return read_transcript(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def _differs(
    path: Path, run: FederatedRun, line: Mapping[str, Any], then: Sequence[Mapping[str, Any]]
) -> str:
    """Say where a round that was run again is not the one that was written down."""
    known = line or then[0]
    where = f"{known.get('step')}, {known.get('direction')}, field {known.get('field')}"
    if not then:
        what = f"has no line for {where}"
    elif not line:
        what = f"has a line more, for {where}"
    else:
        names = [name for name in line if then[0].get(name) != line[name]]
        what = f"has another {' and another '.join(names)} at {where}"
    return (
        f"round {run.round} cannot be shown: run again, it is not the round that was trained, as "
        f"{path.name} {what}; the file was changed, or this machine or version rounds otherwise"
    )


def _same_numbers(run: FederatedRun, row: Mapping[str, str], keys: Sequence[MetricKey]) -> int:
    """Compare what the round noted with its line of ``metrics.csv``; say how many are the same."""
    same = 0
    for name, value in run.journal.scalars.items():
        key = documented(name, (*keys, *KEYS))
        if key is not None and key.unit == "s":  # a time is never the same
            continue
        then = row.get(name, "")
        if then != number(value):
            raise UserError(
                f"round {run.round} cannot be shown: run again, it is not the round that was "
                f"trained, as {name} is {number(value)} and was {then or 'not noted'}; this "
                "machine or version rounds otherwise, or metrics.csv was changed"
            )
        same += 1
    return same
