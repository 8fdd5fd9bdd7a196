"""How far the clients of a folder are: the points that the server may still go on from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from coterie.core.engines.envelope import Parcel, RequestHeader
from coterie.core.wire.codec import ProtocolError


@dataclass(frozen=True)
class Point:
    """A point in the life of a folder's clients: after a parcel was answered.

    Attributes:
        name: of the parcel; empty before the first.
        state: number of the file with the private state; -1 for none.
        reply: number of the file with what was answered; -1 for none.
    """

    name: str = ""
    state: int = -1
    reply: int = -1


@dataclass(frozen=True)
class Position:
    """How far the clients of a folder are.

    Attributes:
        run: whose private state it is; empty before the first parcel.
        order: epoch, turn and attempt of the newest parcel.
        points: where the newest turn began, and after each parcel of it; what follows one went on
            from it.
        given: coordinates of an ask of this turn -> names of the parcels that were answered with
            them. Where there are several, a round was tried again.
    """

    run: str = ""
    order: tuple[int, int, int] = (-1, -1, -1)
    points: tuple[Point, ...] = (Point(),)
    given: dict[str, list[str]] = field(default_factory=dict)

    @property
    def newest(self) -> Point:
        """The last point."""
        return self.points[-1]

    def place(self, name: str) -> int:
        """Which point is the one after the parcel ``name``.

        Raises:
            ProtocolError: its state is not kept, or not any more.
        """
        for place, point in enumerate(self.points):
            if point.name == name:
                return place
        raise ProtocolError(
            "the server goes on from a request that these clients have not answered, or whose "
            "state they do not keep any more"
        )

    def answered(self, place: int, name: str) -> Point | None:
        """The point after a parcel that went on from the one at ``place``, if there is one."""
        after = self.points[place + 1 :][:1]
        return after[0] if after and after[0].name == name else None

    def numbers(self) -> tuple[int, int]:
        """Numbers for the next files of state and reply, which no point has."""
        return (
            1 + max(point.state for point in self.points),
            1 + max(point.reply for point in self.points),
        )

    def moved(self, parcel: Parcel, asked: RequestHeader, place: int, point: Point) -> Position:
        """Go on from the point at ``place`` to another one.

        Points before that are forgotten where the parcel is the first of its turn: what the server
        may go back to is where the turn began.
        """
        is_new = parcel.header.turn > self.order[1]
        points = (self.points[place],) if is_new else self.points[: place + 1]
        given = {} if is_new else dict(self.given)
        names = given.get(coordinates(asked), [])
        if parcel.name not in names:
            given[coordinates(asked)] = [*names, parcel.name]
        order = parcel.header.order
        return Position(parcel.header.run, order, (*points, point), given)

    def again(self, parcel: Parcel, asked: RequestHeader) -> int:
        """How many other parcels were answered in this turn with the same coordinates, before."""
        if parcel.header.turn > self.order[1]:
            return 0
        names = self.given.get(coordinates(asked), [])
        return names.index(parcel.name) if parcel.name in names else len(names)

    def seen(self, order: tuple[int, int, int]) -> Position:
        """The same, where a parcel of a later try was answered by what is kept."""
        return self if order == self.order else replace(self, order=order)

    def to_json(self) -> str:
        """Write it down."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: bytes) -> Position:
        """Read what `to_json` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            plain: dict[str, Any] = json.loads(text)
            points = tuple(Point(**point) for point in plain["points"])
            epoch, turn, attempt = plain["order"]
            if not points:
                raise ValueError("no points")
            given = {where: list(names) for where, names in plain["given"].items()}
            return Position(plain["run"], (epoch, turn, attempt), points, given)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(str(error)) from error


def coordinates(asked: RequestHeader) -> str:
    """What the clients' keys are folded with in an ask."""
    return f"{asked.step} {asked.block} {asked.round} {asked.draw}"
