"""Categories told from uploaded tables, against networks that were trained by torch alone."""

import math

import pytest
import torch
from tests.msmt.one_upload import behind_noise, distances, occurrence

from coterie.core.local_training.row_adam import RowAdam
from coterie.core.tensors.keys import Key
from coterie.msmt.attack.uploads import LocalSteps, occurring, untouched
from coterie.msmt.data.task import Schema
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.settings import ModelSettings

CATEGORIES, STEPS, LR, DECAY = 40, 12, 1e-3, 1e-4
SCHEMA = Schema(("ctr", "ctcvr"), ("NL",), (CATEGORIES, 3), 2)
KEY = Key.from_seed(0)
TABLE = "inputs.tables.0.weight"


def rows_of(seed: int, n: int, occurring_ids: int) -> dict[str, torch.Tensor]:
    key = Key.from_seed(seed)
    used = key.fold("which").uniform(CATEGORIES).argsort()[:occurring_ids]
    ids = used[(key.fold("ids").uniform(n) * occurring_ids).long()]
    return {
        "ids": torch.stack([ids, torch.zeros_like(ids)], 1),
        "numbers": key.fold("numbers").normal(n, 2),
        "scenario": torch.zeros(n, dtype=torch.int64),
        "labels": (key.fold("labels").uniform(n, 2) < 0.4).byte(),
    }


def made() -> MMoE:
    settings = ModelSettings(
        embedding=6, experts=2, expert_layers=(8,), tower_layers=(4,), dropout=0.0
    )
    with KEY.torch_rng():
        return MMoE(SCHEMA, settings)


def optimizer_of(network, local: LocalSteps) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.SGD
    return kind(network.parameters(), local.lr, weight_decay=local.weight_decay)


def trained(network, optimizer, rows, local: LocalSteps):
    """Table before a round of training and its increments, FedProx's pull included."""
    start = {name: value.detach().clone() for name, value in network.named_parameters()}
    for _ in range(local.steps):
        optimizer.zero_grad()
        loss = network.loss(rows)
        for name, value in network.named_parameters():
            loss = loss + local.mu / 2 * (value - start[name]).square().sum()
        loss.backward()
        optimizer.step()
    return start[TABLE], dict(network.named_parameters())[TABLE].detach() - start[TABLE]


ADAM = LocalSteps(STEPS, LR, DECAY)
EACH = {
    "adam": ADAM,
    "adam without decay": LocalSteps(STEPS, LR),
    "adam, FedProx": LocalSteps(STEPS, LR, DECAY, mu=0.1),
    "sgd": LocalSteps(STEPS, 0.1, 1e-2, "sgd"),
    "sgd, FedProx": LocalSteps(STEPS, 0.1, 1e-2, "sgd", mu=0.1),
}


@pytest.mark.parametrize("local", EACH.values(), ids=EACH)
def test_categories_that_occur_are_all_found(local):
    rows = rows_of(1, 64, 15)
    network = made()
    before, change = trained(network, optimizer_of(network, local), rows, local)
    occurs = occurring(rows["ids"][:, 0], CATEGORIES)
    found = occurrence(before, change, occurs, local)
    assert (found.precision, found.recall) == (1.0, 1.0)
    assert found.auc == pytest.approx(1.0, abs=1e-6)
    assert found.chance == pytest.approx(int(occurs.sum()) / CATEGORIES)
    assert 0 < found.chance < 1


def test_who_forgets_the_decay_finds_all_rows():
    """Adam moves rows without a gradient as far as others."""
    rows = rows_of(1, 64, 15)
    network = made()
    before, change = trained(network, optimizer_of(network, ADAM), rows, ADAM)
    moved = change.norm(dim=1)
    assert float(moved.min()) > 0.5 * float(moved.median())
    occurs = occurring(rows["ids"][:, 0], CATEGORIES)
    found = occurrence(before, change, occurs, LocalSteps(STEPS, LR))
    assert found.precision == found.chance
    assert found.recall == 1.0


def test_later_rounds_need_the_memory_of_the_optimizer():
    """Who occurs in neither of two rounds is where two rounds of decay lead."""
    network = made()
    optimizer, memory = optimizer_of(network, ADAM), None
    for seed in (2, 3):
        rows = rows_of(2, 64, 15)
        rows["labels"] = rows_of(seed, 64, 15)["labels"]
        before, change = trained(network, optimizer, rows, ADAM)
        occurs = occurring(rows["ids"][:, 0], CATEGORIES)
        found = occurrence(before, change, occurs, ADAM, memory)
        assert (found.precision, found.recall) == (1.0, 1.0)
        assert found.auc == pytest.approx(1.0, abs=1e-6)
        previous, memory = memory, untouched(before, ADAM, memory)[1]
    forgotten = distances(before, change, ADAM)[~occurs]
    known = distances(before, change, ADAM, previous)[~occurs]
    assert float(known.max()) < 1e-3 * float(forgotten.min())


def test_rows_without_a_gradient_move_as_in_local_training():
    """The core's optimizer, which runs use."""
    table = KEY.fold("table").normal(7, 5)
    optimizer = RowAdam(weight_decay=DECAY)
    params = {"t": table[None].clone()}
    state = optimizer.begin(params)
    for _ in range(STEPS):
        params, state = optimizer.step(params, {"t": torch.zeros(1, 7, 5)}, state, LR)
    # Each step rounds a number of the table anew.
    rounded = STEPS * torch.finfo(table.dtype).eps
    torch.testing.assert_close(untouched(table, ADAM)[0], params["t"][0], rtol=rounded, atol=1e-9)


def test_decay_of_sgd_has_a_closed_form():
    table = KEY.fold("table").normal(7, 5, dtype=torch.float64)
    local = LocalSteps(9, 0.1, 0.02, "sgd")
    torch.testing.assert_close(untouched(table, local)[0], table * (1 - 0.1 * 0.02) ** 9)
    # FedProx: the distance x to the start follows x ← (1 - η(λ + μ)) x - ηλ w.
    pulled = untouched(table, LocalSteps(9, 0.1, 0.02, "sgd", mu=0.5))[0]
    share = 0.0
    for _ in range(9):
        share = (1 - 0.1 * 0.52) * share - 0.1 * 0.02
    torch.testing.assert_close(pulled, table * (1 + share))


def test_noise_hides_what_occurs():
    rows = rows_of(1, 64, 15)
    network = made()
    before, change = trained(network, optimizer_of(network, ADAM), rows, ADAM)
    occurs = occurring(rows["ids"][:, 0], CATEGORIES)
    found = {
        name: occurrence(before, up["t"], occurs, ADAM)
        for name, up in behind_noise({"t": change}, 10.0, [1e-6, 1e-4, 1.0], KEY).items()
    }
    for name in ("plain", "clipped", "noise 1e-06"):
        assert found[name].auc == pytest.approx(1.0, abs=1e-6)
    assert abs(found["noise 1"].auc - 0.5) < 0.25
    assert found["noise 1"].precision == found["noise 1"].chance
    assert found["noise 0.0001"].auc > found["noise 1"].auc


def test_where_all_or_nothing_occurs_there_is_no_question():
    table = torch.ones(3, 2)
    found = occurrence(table, torch.zeros(3, 2), torch.zeros(3).bool(), LocalSteps(1, 0.1))
    assert math.isnan(found.auc)
    assert math.isnan(found.precision)
    assert math.isnan(found.recall)
    assert found.chance == 0.0


def test_ids_of_any_kind_are_counted():
    assert occurring(torch.tensor([3, 3, 0], dtype=torch.int32), 5).tolist() == [1, 0, 0, 1, 0]
