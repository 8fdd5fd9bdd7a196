"""MMoE on projected tables, beside the same network in plain torch."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.msmt.naive_network import drawn, shaken
from tests.msmt.plain_experts import PlainExperts, assert_same
from torch import nn
from torch.func import functional_call

from coterie.core.local_training.alone import statistics_of, trained_alone
from coterie.core.tensors.keys import Key
from coterie.msmt.data.task import Schema
from coterie.msmt.models.fast import projection
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.settings import ModelSettings

SIZES = ModelSettings(embedding=3, experts=2, expert_layers=(5, 4), tower_layers=(3, 2), dropout=0)
TWO = ("click", "buy")
FORMS = {
    "all projected": Schema(TWO, ("NL",), (3, 2), 2),
    "all looked up": Schema(TWO, ("NL",), (7, 4), 9),
    "both": Schema(TWO, ("NL",), (7, 2, 4, 3), 2),
    "a vocabulary of one": Schema(TWO, ("NL",), (1, 2), 1),
    "numbers alone": Schema(TWO, ("NL",), (), 2),
    "many numbers alone": Schema(TWO, ("NL",), (), 5),
    "no numbers": Schema(TWO, ("NL",), (2, 6), 0),
    "one task": Schema(("click",), ("NL",), (3, 9), 2),
    "three tasks": Schema(("click", "like", "buy"), ("NL",), (3, 9), 2),
}


@pytest.fixture(params=["at once", "in blocks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Products with the first weights: one with all tables, or one a block."""
    if request.param == "in blocks":
        monkeypatch.setattr(projection, "SMALL", 0)
    return str(request.param)


each_way = pytest.mark.usefixtures("way")


def made(schema: Schema, sizes: ModelSettings = SIZES, **options: bool) -> MMoE:
    with Key.from_seed(3).torch_rng():
        return shaken(MMoE(schema, sizes, **options))


@each_way
@pytest.mark.parametrize(
    ("form", "input_norm", "training"),
    [
        *((form, *how) for form in FORMS for how in ((False, True), (True, True), (True, False))),
        ("both", False, False),  # without normalisation a form is measured as it is trained
    ],
)
def test_it_is_the_plain_network(form: str, input_norm: bool, training: bool) -> None:
    network = made(FORMS[form], input_norm=input_norm).train(training)
    # What is the same in all samples is divided by √ε of the normalisation, and so is its rounding.
    within = 1e-12 / math.sqrt(1e-5) if input_norm else 1e-12
    assert_same(network, drawn(FORMS[form], 11), within)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [
        replace(SIZES, mlp_norm=False),
        replace(SIZES, experts=1),
        replace(SIZES, expert_layers=(4,), tower_layers=(1,)),
        replace(SIZES, expert_layers=(2, 3, 4, 5), tower_layers=(6, 5, 4)),
    ],
)
def test_of_any_sizes(sizes: ModelSettings, training: bool) -> None:
    network = made(FORMS["both"], sizes, input_norm=True).train(training)
    assert_same(network, drawn(FORMS["both"], 9))


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 6), max_size=3),
    st.integers(1, 5),  # else all samples may be the same, and noise is what is normalised
    st.integers(1, 4),
    st.integers(2, 9),
    st.booleans(),
)
def test_of_any_form(sizes: list[int], numbers: int, width: int, batch: int, norm: bool) -> None:
    form = Schema(TWO, ("NL",), tuple(sizes), numbers)
    network = made(form, replace(SIZES, embedding=width), input_norm=norm)
    assert_same(network, drawn(form, batch, seed=batch), within=1e-9)


def test_several_batches_move_statistics_as_torchs() -> None:
    network = made(FORMS["both"], input_norm=True)
    for seed in range(3):
        assert_same(network, drawn(FORMS["both"], 8, seed))
    assert network.first.norm.num_batches_tracked == 3
    assert set(statistics_of(network)) == {
        f"{name}.{kept}"
        for name, part in network.named_modules()
        if name.endswith("norm")
        for kept in ("running_mean", "running_var", "num_batches_tracked")
        if part is not None
    }


def test_evaluation_changes_nothing() -> None:
    network = made(FORMS["both"], input_norm=True).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    first, second = (network.logits(drawn(FORMS["both"], 5)) for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    alone = torch.cat([network.logits(cut(drawn(FORMS["both"], 5), row)) for row in range(5)])
    assert torch.allclose(alone, first, atol=1e-13)


def test_statistics_are_written_into_what_is_given() -> None:
    network, batch = made(FORMS["both"], input_norm=True), drawn(FORMS["both"], 6)
    own = {name: value.clone() for name, value in statistics_of(network).items()}
    given = {name: value.clone() for name, value in own.items()}

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self) -> torch.Tensor:
            return self.network.logits(batch)

    functional_call(Logits(), {f"network.{name}": value for name, value in given.items()}, ())
    plain = PlainExperts(network)
    plain.logits(batch)
    for name, value in statistics_of(network).items():
        assert torch.equal(value, own[name])
        assert torch.allclose(given[name].double(), plain.statistics[name].double(), atol=1e-12)


def test_ids_and_numbers_of_any_type() -> None:
    network, batch = made(FORMS["both"]).float().eval(), drawn(FORMS["both"], 6)
    expected = network.logits(batch)
    for dtype in (torch.uint16, torch.int32, torch.int64):
        for number in (torch.float32, torch.float64):
            other = {"ids": batch["ids"].to(dtype), "numbers": batch["numbers"].to(number)}
            assert torch.equal(network.logits(batch | other), expected)


def test_an_unknown_id_is_refused() -> None:
    # It must not pass as an id of the next field.
    network, batch = made(FORMS["both"]), drawn(FORMS["both"], 6)
    for field, size in enumerate(FORMS["both"].vocabularies):
        for wrong in (size, -1):
            ids = batch["ids"].clone()
            ids[2, field] = wrong
            with pytest.raises((RuntimeError, IndexError), match="index"):
                network.logits(batch | {"ids": ids})


@pytest.mark.parametrize("norms", [(True, False), (False, True)])
def test_a_batch_of_one_has_no_variance(norms: tuple[bool, bool]) -> None:
    mlp, given = norms
    network = made(FORMS["both"], replace(SIZES, mlp_norm=mlp), input_norm=given)
    one = drawn(FORMS["both"], 1)
    with pytest.raises(ValueError, match="2 samples or more"):
        network.logits(one)
    assert network.eval().logits(one).isfinite().all()


def test_dropout_draws_from_torchs_generator() -> None:
    network, batch = made(FORMS["both"], replace(SIZES, dropout=0.5)), drawn(FORMS["both"], 6)

    def under(seed: int) -> torch.Tensor:
        with Key.from_seed(seed).torch_rng():
            return network.logits(batch)

    assert torch.equal(under(1), under(1))
    assert not torch.equal(under(1), under(2))
    network.eval()
    assert torch.equal(under(1), under(2))


def test_the_core_sees_that_it_draws() -> None:
    bare = replace(SIZES, mlp_norm=False, dropout=0.5)
    assert not statistics_of(made(FORMS["both"], bare))
    assert trained_alone(made(FORMS["both"], bare))


def test_it_learns() -> None:
    form = FORMS["both"]
    with Key.from_seed(0).torch_rng():
        network = MMoE(form, replace(SIZES, embedding=8, expert_layers=(16, 8), dropout=0.1))
        batch = drawn(form, 200)
        label = (batch["ids"][:, 0] % 2 == 0) & (batch["numbers"][:, 0] > 0)
        batch["labels"] = torch.stack([label, ~label], 1).to(torch.uint8)
        adam = torch.optim.Adam(network.parameters(), 0.02)
        for _ in range(75):
            adam.zero_grad()
            network.loss(batch).backward()
            adam.step()
    network.eval()
    assert network.measures(network.predictions(batch))["auc"] > 0.95


def cut(batch: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    return {name: value[row : row + 1] for name, value in batch.items()}
