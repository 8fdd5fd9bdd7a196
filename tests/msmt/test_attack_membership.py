"""Members told from others by what was uploaded, against loops and on networks that overfit."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from tests.msmt.one_upload import behind_noise, losses, membership
from torch import nn

from coterie.core.tensors.keys import Key
from coterie.msmt.attack import uploads as attack
from coterie.msmt.attack.uploads import judged, with_upload
from coterie.msmt.data.task import Schema
from coterie.msmt.models.base import MultiTask
from coterie.msmt.models.make import SingleTask
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.models.star import Star
from coterie.msmt.models.template import TemplateMMoE
from coterie.msmt.settings import ModelSettings

SCHEMA = Schema(("ctr", "ctcvr"), ("NL", "ES"), (12, 5), 4)
SIZES = ModelSettings(
    embedding=6, experts=2, expert_layers=(24, 12), tower_layers=(12,), dropout=0.0
)
KEY = Key.from_seed(0)


def rows_of(seed: int, n: int) -> dict[str, torch.Tensor]:
    """Rows whose labels are chance: all that can be learned of them is themselves."""
    key = Key.from_seed(seed)
    ids = [(key.fold("ids", f).uniform(n) * size).int() for f, size in enumerate((12, 5))]
    return {
        "ids": torch.stack(ids, 1),
        "numbers": key.fold("numbers").normal(n, 4),
        "scenario": (torch.arange(n) % 2).long(),
        "labels": (key.fold("labels").uniform(n, 2) < 0.4).byte(),
    }


def made(kind=MMoE, settings: ModelSettings = SIZES) -> MultiTask:
    with KEY.fold("network").torch_rng():
        return kind(SCHEMA, settings)


def values_of(network: MultiTask) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def trained(network: MultiTask, rows: dict[str, torch.Tensor], steps: int = 50):
    """Increments of the parameters in training on rows, by torch's own Adam."""
    before = values_of(network)
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    network.train()
    for _ in range(steps):
        optimizer.zero_grad()
        network.loss(rows).backward()
        optimizer.step()
    change = {name: value - before[name] for name, value in values_of(network).items()}
    network.load_state_dict(before, strict=False)
    return before, change


@pytest.fixture(scope="module")
def overfitted():
    members, others = rows_of(1, 60), rows_of(2, 60)
    network = made()
    before, change = trained(network, members)
    return made(), before, change, members, others


def test_members_are_told_if_all_is_uploaded(overfitted):
    network, before, change, members, others = overfitted
    found = membership(network, before, with_upload(before, change), members, others, KEY)
    assert found.auc > 0.85
    assert found.auc_loss > 0.75
    assert found.caught > 0.05
    assert found.fall_members > 0.3
    assert found.fall_others < 0
    swapped = membership(network, before, with_upload(before, change), others, members, KEY)
    assert swapped.auc == pytest.approx(1 - found.auc, abs=1e-3)


def test_members_and_others_may_be_of_any_number(overfitted):
    network, before, change, members, others = overfitted
    few = {name: value[:20] for name, value in members.items()}
    after = with_upload(before, change)
    found = membership(network, before, after, few, others, KEY)
    rows = {name: torch.cat([few[name], others[name]]) for name in few}
    fall = losses(network, before, rows, KEY) - losses(network, after, rows, KEY)
    truth = [1] * 20 + [0] * 60
    assert found.auc == pytest.approx(roc_auc_score(truth, fall), abs=1e-6)
    assert found.auc > 0.8


def test_of_no_upload_nothing_is_told(overfitted):
    network, before, _, members, others = overfitted
    found = membership(network, before, with_upload(before, {}), members, others, KEY)
    assert (found.auc, found.caught) == (0.5, 0.0)
    assert found.fall_members == found.fall_others == 0.0


def test_the_statistics_of_the_rows_tell_more_than_the_first_ones(overfitted):
    network, before, change, members, others = overfitted
    after = with_upload(before, change)
    first = membership(network, before, after, members, others, KEY, "initial")
    assert first.auc < membership(network, before, after, members, others, KEY).auc - 0.2


def test_towers_alone_tell_less(overfitted):
    network, before, change, members, others = overfitted
    towers = {name: value for name, value in change.items() if name.startswith("towers.")}
    assert 0 < len(towers) < len(change)
    part = membership(network, before, with_upload(before, towers), members, others, KEY)
    whole = membership(network, before, with_upload(before, change), members, others, KEY)
    assert part.auc < whole.auc - 0.2


def test_noise_hides_members(overfitted):
    network, before, change, members, others = overfitted
    aucs = {
        name: membership(network, before, with_upload(before, up), members, others, KEY).auc
        for name, up in behind_noise(change, 1.0, [1e-4, 1.0], KEY).items()
    }
    assert list(aucs) == ["plain", "clipped", "noise 0.0001", "noise 1"]
    assert aucs["noise 0.0001"] == pytest.approx(aucs["clipped"], abs=0.02)
    assert abs(aucs["noise 1"] - 0.5) < 0.15


class Scored(MultiTask):
    """Logits of the normalised numbers, with what rows have in common easy to follow."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(SCHEMA)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(4, 2)

    def logits(self, batch):
        return self.out(self.norm(self.drop(batch["numbers"])))


def by_hand(network: Scored, rows, mean: torch.Tensor, variance: torch.Tensor) -> list[float]:
    """Row by row in float64: normalise, multiply, sum the cross-entropies of both tasks."""
    weight, bias = (value.detach().double() for value in (network.out.weight, network.out.bias))
    found = []
    for numbers, labels in zip(rows["numbers"].double(), rows["labels"], strict=True):
        x = (numbers - mean) / (variance + 1e-5).sqrt()
        logits = [float(weight[t] @ x + bias[t]) for t in range(2)]
        chances = [1 / (1 + math.exp(-logit)) for logit in logits]
        found.append(
            -sum(math.log(p if y else 1 - p) for p, y in zip(chances, labels.tolist(), strict=True))
        )
    return found


@pytest.mark.parametrize("chunk", [4096, 7])
def test_losses_are_those_of_single_rows(monkeypatch, chunk):
    monkeypatch.setattr(attack, "_ROWS", chunk)
    with KEY.torch_rng():
        network = Scored()
    rows = rows_of(3, 40)
    initial = losses(network, {}, rows, KEY, "initial")
    hand = by_hand(network, rows, torch.zeros(4), torch.ones(4))
    np.testing.assert_allclose(initial.numpy(), hand, rtol=1e-5)
    seen = rows["numbers"].double()[:: 1 if chunk > 40 else 6]  # at most 7, evenly from all
    found = losses(network, {}, rows, KEY)
    hand = by_hand(network, rows, seen.mean(0), seen.var(0))
    np.testing.assert_allclose(found.numpy(), hand, rtol=1e-5)


def test_values_that_are_given_take_the_place_of_the_networks():
    with KEY.torch_rng():
        network = Scored()
    rows = rows_of(4, 20)
    zeros = {"out.weight": torch.zeros(2, 4), "out.bias": torch.zeros(2)}
    torch.testing.assert_close(
        losses(network, zeros, rows, KEY), torch.full((20,), 2 * math.log(2), dtype=torch.float64)
    )
    given = {"norm.running_mean": torch.ones(4), "norm.running_var": torch.full((4,), 9.0)}
    hand = by_hand(network, rows, torch.ones(4), torch.full((4,), 9.0))
    np.testing.assert_allclose(losses(network, given, rows, KEY, "initial"), hand, rtol=1e-5)


def test_statistics_do_not_look_at_labels_and_draw_by_the_key():
    with KEY.torch_rng():
        network = Scored(dropout=0.5)
    rows = rows_of(5, 30)
    other = rows | {"labels": 1 - rows["labels"]}
    one, same, keyed = (
        attack.RowStatistics(network)({}, batch, key)["norm.running_mean"]
        for batch, key in ((rows, KEY), (other, KEY), (rows, KEY.fold("else")))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, keyed)


@pytest.mark.parametrize("kind", [MMoE, SingleTask, Star, TemplateMMoE])
def test_networks_of_all_kinds_are_attacked_and_stay_as_they_are(kind):
    network = made(
        kind, ModelSettings(embedding=4, experts=2, expert_layers=(8,), tower_layers=(4,))
    )
    state = {name: value.clone() for name, value in network.state_dict().items()}
    before = values_of(network)
    after = {name: value + 0.1 for name, value in before.items()}
    for normalise in ("candidates", "initial"):
        found = membership(network, before, after, rows_of(6, 20), rows_of(7, 30), KEY, normalise)
        assert 0 <= found.auc <= 1
        assert math.isfinite(found.fall_members + found.fall_others)
        again = membership(network, before, after, rows_of(6, 20), rows_of(7, 30), KEY, normalise)
        assert again == found
    assert network.training
    for name, value in network.state_dict().items():
        assert torch.equal(value, state[name])
    momenta = {part.momentum for part in network.modules() if hasattr(part, "momentum")}
    assert 1.0 not in momenta


def test_buffers_are_uploaded_too():
    """PF-MSMTrec's W_s stands in a buffer of its network."""
    network = made(TemplateMMoE)
    known = {"scenario_residual": network.scenario_residual.clone()}
    change = KEY.fold("w_s").normal(*network.scenario_residual.shape)
    sent = with_upload(known, {"scenario_residual": change})
    rows = rows_of(8, 20)
    first, then = (losses(network, values, rows, KEY) for values in (known, sent))
    assert float((first - then).abs().max()) > 1e-3


def test_judgement_is_that_of_sklearn_and_of_counting():
    key = Key.from_seed(9)
    before = key.normal(500, dtype=torch.float64).mul(4).round() / 4  # with ties
    after = key.fold("after").normal(500, dtype=torch.float64).mul(4).round() / 4
    is_member = key.fold("member").uniform(500) < 0.3
    after = torch.where(is_member, after - 0.5, after)
    found, fall = judged(before, after, is_member), (before - after)
    assert found.auc == pytest.approx(roc_auc_score(is_member, fall), abs=1e-6)
    assert found.auc_loss == pytest.approx(roc_auc_score(is_member, -after), abs=1e-6)
    assert found.fall_members == pytest.approx(float(fall[is_member].mean()))
    assert found.fall_others == pytest.approx(float(fall[~is_member].mean()))
    others = fall[~is_member]
    allowed = [t for t in others.tolist() if int((others > t).sum()) <= 0.01 * len(others)]
    assert found.caught == pytest.approx(float((fall[is_member] > min(allowed)).double().mean()))
    assert found.caught > 0


def test_an_upload_of_something_else_is_refused():
    with pytest.raises(ValueError, match="called b"):
        with_upload({"a": torch.ones(1)}, {"b": torch.ones(1)})


def test_uploads_are_clipped_together_and_noised_by_the_clip():
    increments = {"a": torch.ones(40, 50), "b": 3 * torch.ones(1000)}
    found = behind_noise(increments, 2.0, [0.5, 1.0], KEY)
    assert found["plain"]["a"] is increments["a"]

    def norm(up):
        return math.sqrt(sum(float(value.square().sum()) for value in up.values()))

    assert norm(found["clipped"]) == pytest.approx(2.0)
    ratio = found["clipped"]["b"][0] / found["clipped"]["a"][0, 0]
    assert float(ratio) == pytest.approx(3.0)
    half, whole = (
        {n: up[n] - found["clipped"][n] for n in up}
        for up in (found["noise 0.5"], found["noise 1"])
    )
    assert float(half["a"].std()) == pytest.approx(1.0, rel=0.05)
    torch.testing.assert_close(whole["b"], 2 * half["b"], rtol=1e-4, atol=1e-5)
    short = behind_noise({"a": torch.full((2,), 0.1)}, 2.0, [], KEY)
    assert torch.equal(short["clipped"]["a"], short["plain"]["a"])
