"""The checks catch clients that leak, and pass honest ones."""

import dataclasses

import pytest
import torch
from torch import Tensor

from coterie.core.privacy.check import (
    assert_no_shared_storage,
    assert_non_interference,
    perturbed,
)
from coterie.core.protocol.client import Client
from coterie.core.protocol.messages import Down, Private, Reveals, Step, Up, carries, leaves
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import FactoredRows, Rows
from coterie.core.tensors.stacked import Ragged

C, N, D = 3, 5, 2


@dataclasses.dataclass(frozen=True)
class Table(Down):
    items: Tensor = carries("items")


@dataclasses.dataclass(frozen=True)
class Taste(Private):
    vector: Tensor
    age: Tensor
    member: Tensor
    notes: dict[str, Tensor]
    history: Ragged


@dataclasses.dataclass(frozen=True)
class Update(Up):
    items: Rows = leaves("rows", reveals=Reveals.ITEMS_TOUCHED, depends_on={"vector"})
    loss: Tensor = leaves("loss", reveals=Reveals.MEASUREMENT, depends_on={"vector"})


UPDATE = Step("update", Table, Update)


class Honest(Client[Taste, None]):
    @UPDATE
    def update(self, down: Table, mine: Taste, data, key: Key) -> tuple[Update, Taste]:
        noise = key.uniform(D)
        score = mine.vector @ down.items.T
        rows = FactoredRows(torch.arange(C), score, mine.vector + noise, C)
        mine.vector.mul_(2)  # a step may write into its own copy
        return Update(rows, score.new_full((C,), float("nan"))), mine


class Leaking(Honest):
    def __init__(self, where: str) -> None:
        self.where = where

    @UPDATE
    def update(self, down: Table, mine: Taste, data, key: Key) -> tuple[Update, Taste]:
        up, _ = super().update(down, mine, data, key)
        loss = torch.zeros(C)
        match self.where:
            case "age":
                loss = loss + 1e-6 * mine.age
            case "member":
                loss = torch.where(mine.member, 1.0, 0.0)
            case "notes":
                loss = mine.notes["pin"][:, 0].clone()
            case "history":
                loss = mine.history.values[mine.history.offsets[:-1]].float()
            case "rows":
                left = up.items.left * (1 + mine.age[:, None])
                return dataclasses.replace(up, items=dataclasses.replace(up.items, left=left)), mine
        return dataclasses.replace(up, loss=loss), mine


def arguments() -> tuple[Table, Taste, None, Key]:
    draw = torch.Generator().manual_seed(0)
    mine = Taste(
        torch.randn(C, D, generator=draw),
        torch.tensor([1, 2, 3]),
        torch.tensor([True, False, True]),
        {"pin": torch.randn(C, 4, generator=draw)},
        Ragged.from_lists([[4, 1], [0], [2]]),
    )
    keys = Key.from_seed(0).fold(torch.arange(C))
    return Table(torch.randn(N, D, generator=draw)), mine, None, keys


def test_an_honest_client_passes_and_its_state_is_not_touched() -> None:
    given = arguments()
    before = given[1].vector.clone()
    assert_non_interference(Honest(), "update", *given)
    assert torch.equal(given[1].vector, before)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("age", "Update.loss changes with private 'age'"),
        ("member", "Update.loss changes with private 'member'"),
        ("notes", "Update.loss changes with private 'notes'"),
        ("history", "Update.loss changes with private 'history'"),
        ("rows", "Update.items changes with private 'age'"),
    ],
)
def test_a_leak_is_named(where: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_non_interference(Leaking(where), "update", *arguments())


def test_a_misspelt_dependence_is_named() -> None:
    @dataclasses.dataclass(frozen=True)
    class Wrong(Up):
        loss: Tensor = leaves("loss", reveals=Reveals.MEASUREMENT, depends_on={"vectr"})

    class Misspelt(Client[Taste, None]):
        def update(self, down, mine, data, key):
            return Wrong(torch.zeros(C)), None

    with pytest.raises(AssertionError, match="vectr"):
        assert_non_interference(Misspelt(), "update", *arguments())


def test_a_step_that_uploads_nothing_is_no_test() -> None:
    class Silent(Client[Taste, None]):
        def update(self, down, mine, data, key):
            return None, mine

    with pytest.raises(AssertionError, match="uploads nothing"):
        assert_non_interference(Silent(), "update", *arguments())


def test_own_perturbation() -> None:
    # Ages outside of a table of 4 would fail: the caller says what a valid age is.
    class Indexing(Honest):
        def update(self, down, mine, data, key):
            up, _ = super().update(down, mine, data, key)
            return dataclasses.replace(up, loss=torch.arange(4.0)[mine.age]), None

    with pytest.raises(IndexError):
        assert_non_interference(Indexing(), "update", *arguments())
    with pytest.raises(AssertionError, match="'age'"):
        assert_non_interference(
            Indexing(), "update", *arguments(), perturb={"age": lambda age: age.flip(0)}
        )


def test_perturbation_changes_every_leaf() -> None:
    mine = arguments()[1]
    new = perturbed(mine)
    assert (new.vector != mine.vector).all()
    assert (new.age != mine.age).all()
    assert (new.member != mine.member).all()
    assert (new.notes["pin"] != mine.notes["pin"]).all()
    assert new.history.tolists() == [[2, 0], [1], [4]]
    assert (perturbed(torch.zeros(3)) != 0).all()


def test_shared_memory_is_found_through_views_and_rows() -> None:
    _, mine, _, _ = arguments()
    rows = FactoredRows(torch.arange(C), torch.ones(C, N), mine.vector, C)
    with pytest.raises(AssertionError, match=r"'items.right' shares memory with private 'vector'"):
        assert_no_shared_storage(Update(rows, torch.ones(C)), mine)
    copied = dataclasses.replace(rows, right=mine.vector.clone())
    with pytest.raises(AssertionError, match=r"'loss' .* private 'notes.pin'"):
        assert_no_shared_storage(Update(copied, mine.notes["pin"][:, 2]), mine)
    assert_no_shared_storage(Update(copied, torch.ones(C)), mine)
    empty = Taste(*[torch.empty(0)] * 3, {}, Ragged.from_lists([]))
    assert_no_shared_storage(Update(copied, torch.empty(0)), empty)
