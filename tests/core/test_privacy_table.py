"""The protocol as a table."""

import dataclasses
import io

import pytest
from rich.console import Console
from torch import Tensor

from coterie.core.privacy.table import COLUMNS, protocol_table, to_markdown, to_rich
from coterie.core.protocol.client import Client, step
from coterie.core.protocol.messages import Down, Private, Report, Reveals, Up, leaves


@dataclasses.dataclass(frozen=True)
class Table(Down):
    """The item table.

    Attributes:
        items: ``(n, d)`` public rows,
            over two lines.
        round: r, from 0.
    """

    items: Tensor
    round: int = 0


@dataclasses.dataclass(frozen=True)
class Update(Up):
    items: Tensor = leaves("a | b", reveals=Reveals.ITEMS_TOUCHED, depends_on={"vector", "age"})
    loss: Tensor = leaves("loss", reveals=Reveals.MEASUREMENT)


@dataclasses.dataclass(frozen=True)
class Metrics(Report):
    ndcg: Tensor = leaves("NDCG", reveals=Reveals.MEASUREMENT, depends_on={"vector"})


@dataclasses.dataclass(frozen=True)
class Undeclared(Up):
    loss: int = 0


class Toy(Client[Private]):
    @step
    def evaluate(self, down: Table, mine, data, key) -> tuple[Metrics, None]: ...

    @step
    def forget(self, down: None, mine, data, key) -> tuple[None, Private]: ...

    @step
    def update(self, down: Table, mine, data, key) -> tuple[Update | None, Private | None]: ...


class Careless(Client[Private]):
    @step
    def update(self, down: Table, mine, data, key) -> tuple[Undeclared, None]: ...


def test_every_field_in_both_directions() -> None:
    rows = protocol_table(Toy)
    assert [(row["step"], row["direction"], row["field"]) for row in rows[:3]] == [
        ("evaluate", "down", "items"),
        ("evaluate", "down", "round"),
        ("evaluate", "up", "ndcg"),
    ]
    update = {row["field"]: row for row in rows if row["message"] == "Update"}
    assert update["items"]["depends on"] == "age, vector"
    assert update["items"]["noise"] == "covered"
    assert update["items"]["reveals"] == Reveals.ITEMS_TOUCHED.value
    assert update["loss"]["noise"] == rows[2]["noise"] == "not covered"
    assert update["loss"]["depends on"] == "-"
    assert rows[0]["content"] == "(n, d) public rows, over two lines"
    assert all(tuple(row) == COLUMNS and all(row.values()) for row in rows)


class Silent(Client[Private]):
    @step
    def update(self, down: Table, mine, data, key): ...


class Vague(Client[Private]):
    @step
    def update(self, down: Table, mine, data, key) -> tuple[Update | Metrics, None]: ...


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (Careless, "must be declared"),
        (Silent, "step 'update' must annotate"),
        (Vague, "one message type"),
    ],
)
def test_nothing_can_be_left_out_of_the_table(client: type, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        protocol_table(client)


def test_renderings() -> None:
    rows = protocol_table(Toy)
    lines = to_markdown(rows).splitlines()
    assert len(lines) == len(rows) + 2
    # An escaped bar in a cell must not make a column.
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(COLUMNS) + 1}
    console = Console(file=io.StringIO(), width=200)
    console.print(to_rich(rows, "toy [protocol]"))
    text = console.file.getvalue()
    assert "a | b" in text
    assert "covered" in text
