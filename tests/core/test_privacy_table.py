"""The protocol as a table."""

import dataclasses

import pytest
from torch import Tensor

from coterie.core.cli.command import tell_facts
from coterie.core.privacy.releases import COLUMNS, protocol_table
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Down, Private, Report, Reveals, Step, Up, carries, leaves
from coterie.core.tables.report import markdown_table


@dataclasses.dataclass(frozen=True)
class Table(Down):
    items: Tensor = carries("public rows")
    round: int = carries("r, from 0", default=0)


@dataclasses.dataclass(frozen=True)
class Update(Up):
    items: Tensor = leaves("a | b", reveals=Reveals.ITEMS_TOUCHED, depends_on={"vector", "age"})
    loss: Tensor = leaves("loss", reveals=Reveals.MEASUREMENT)


@dataclasses.dataclass(frozen=True)
class Metrics(Report):
    ndcg: Tensor = leaves("NDCG", reveals=Reveals.MEASUREMENT, depends_on={"vector"})


class Toy(Client[Private, None]):
    @Step("evaluate", Table, Metrics)
    def evaluate(self, down: Table, mine, data, key) -> tuple[Metrics, None]: ...

    @Step("forget", None, None)
    def forget(self, down: None, mine, data, key) -> tuple[None, Private]: ...

    @Step("update", Table, Update)
    def update(self, down: Table, mine, data, key) -> tuple[Update, Private | None]: ...


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
    assert rows[0]["content"] == "public rows"
    assert all(tuple(row) == COLUMNS and all(row.values()) for row in rows)


@pytest.mark.parametrize(
    ("base", "how", "hint"),
    [(Up, "leaves", int), (Down, "carries", int), (Report, "leaves", float)],
)
def test_a_field_without_words_is_refused_when_the_class_is_made(base, how, hint) -> None:
    with pytest.raises(TypeError, match=rf"Bare.loss must be declared with {how}"):
        type("Bare", (base,), {"__annotations__": {"loss": hint}, "loss": 0})


def test_renderings(capsys: pytest.CaptureFixture[str]) -> None:
    rows = protocol_table(Toy)
    lines = markdown_table(rows)
    assert len(lines) == len(rows) + 2
    # An escaped bar in a cell must not make a column.
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(COLUMNS) + 1}
    for row in rows:
        tell_facts("toy [protocol]", row)
    text = capsys.readouterr().out
    assert "toy [protocol]" in text
    assert "a | b" in text
    assert "covered" in text
