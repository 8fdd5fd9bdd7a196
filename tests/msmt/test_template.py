"""The parameter template's network: beside plain torch, and beside MMoE where it is neutral."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.msmt.naive_network import drawn, shaken
from tests.msmt.plain_experts import assert_same, generated, scenario
from tests.msmt.test_mmoe import FORMS, SIZES, each_way, way

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.msmt.models.base import cross_entropy
from coterie.msmt.models.fast import hidden
from coterie.msmt.models.mmoe import MMoE
from coterie.msmt.models.template import Dense, Factored, Generator, TemplateMMoE, direction_name
from coterie.msmt.settings import ModelSettings

__all__ = ["way"]  # a fixture
BOTH = FORMS["both"]
each_generator = pytest.mark.parametrize("generator", ["factored", "full", "leaf"])
# A generator knows nothing of a form but how wide the input is; forms are measured as MMoE's are.
each_pair_trained = pytest.mark.parametrize(
    ("form", "generator", "training"),
    [
        *((form, "factored", True) for form in FORMS.values()),
        *((BOTH, "full", True), (BOTH, "leaf", True)),
        *((BOTH, generator, False) for generator in ("factored", "full", "leaf")),
    ],
    ids=[*FORMS, "full", "leaf", "measured", "full, measured", "leaf, measured"],
)


WITHOUT_NORM = replace(SIZES, mlp_norm=False)
ONE_EXPERT = replace(SIZES, experts=1)
ONE_LAYER = replace(SIZES, expert_layers=(4,), tower_layers=(1,))
DEEP = replace(SIZES, experts=3, expert_layers=(2, 3, 4), tower_layers=(6, 5, 4))


def made(schema=BOTH, sizes=SIZES, **options) -> TemplateMMoE:
    """All parameters and buffers drawn, so that nothing is neutral."""
    network = fresh(schema, sizes, **options)
    return shaken(network)


def fresh(schema=BOTH, sizes=SIZES, **options) -> TemplateMMoE:
    with Key.from_seed(3).torch_rng():
        return TemplateMMoE(schema, sizes, **options)


@each_way
@each_pair_trained
def test_it_is_the_plain_network(form, generator: str, training: bool) -> None:
    assert_same(made(form, generator=generator).train(training), drawn(form, 11))


@each_way
@pytest.mark.parametrize(
    ("generator", "sizes"),
    [
        *(("factored", sizes) for sizes in (WITHOUT_NORM, ONE_EXPERT, ONE_LAYER, DEEP)),
        *((generator, sizes) for generator in ("full", "leaf") for sizes in (ONE_EXPERT, DEEP)),
    ],
)
def test_of_any_sizes(generator: str, sizes: ModelSettings) -> None:
    assert_same(made(sizes=sizes, generator=generator), drawn(BOTH, 9))


@each_way
@each_pair_trained
def test_neutral_it_is_mmoe_with_normalised_input(form, generator: str, training: bool) -> None:
    mmoe = shaken(MMoE(form, SIZES, input_norm=True)).train(training)
    network = fresh(form, generator=generator).double().train(training)
    _take(network, mmoe)
    batch = drawn(form, 10)
    parameters = mmoe.weight, mmoe.input_norm.weight, mmoe.gates.weight, mmoe.towers.weight
    same = network.weight, network.input_norm.weight, network.gates.weight, network.towers.weight
    for each in (mmoe, network):
        each.loss(batch).backward()
    assert torch.allclose(network.logits(batch), mmoe.logits(batch), rtol=0, atol=1e-12)
    for mine, other in zip(same, parameters, strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(shaken(network).logits(batch), mmoe.logits(batch), atol=1e-3)


def _take(network: TemplateMMoE, mmoe: MMoE) -> None:
    """Take all that MMoE has; tasks share its biases and normalisation."""
    state = network.state_dict()
    for name, value in mmoe.state_dict().items():
        state[name] = value.expand_as(state[name]).clone()
    network.load_state_dict(state)


@each_generator
def test_everything_generated_is_1_at_first(generator: str) -> None:
    network = fresh(generator=generator)
    ones = torch.ones_like(network.weight)
    assert torch.equal(network.scenario_generated(), ones)
    assert torch.equal(network.scenario_weight(), ones)
    assert torch.equal(network.task_generator.weights(), ones.expand(2, *ones.shape))
    assert network.psi.tolist() == [0, 0]
    assert network.psi_tower.tolist() == [0, 0]
    assert not any(value.any() for name, value in network.named_buffers() if "direction" in name)


def test_what_is_made_of_parameters() -> None:
    network = made(generator="factored")
    for n in range(SIZES.experts):
        assert torch.allclose(network.scenario_weight()[n], scenario(network, n), atol=1e-12)
    base = network.scenario_weight() - network.psi[:, None, None] * network.scenario_direction
    expected = network.scenario_generated() + network.scenario_residual
    assert torch.allclose(base, expected, atol=1e-12)


def test_generators_are_an_experts_own() -> None:
    with Key.from_seed(1).torch_rng():
        generator = shaken(Generator(3, 2, 5))
    found = generator()
    assert found.shape == (3, 2, 5)
    for which in range(3):
        for n in range(2):
            assert torch.allclose(found[which, n], generated(generator, which, n), atol=1e-13)


def test_factored_and_full_agree() -> None:
    shape = (4, 3)
    factored, full = shaken(Factored(2, 2, shape)), shaken(Dense(2, 2, shape))
    for name in ("embedding", "weight", "bias"):
        getattr(full, name).data = getattr(factored, name).data.clone()
    for name in ("head", "head_bias"):
        rows, columns = getattr(factored, name).data.split(shape, dim=-1)
        dense = rows[..., :, None] + columns[..., None, :]
        getattr(full, name).data = dense.flatten(-2)
    assert torch.allclose(full.weights(), factored.weights(), atol=1e-12)
    rows, columns = factored.factors()
    assert rows.shape == (2, 2, 4)
    assert columns.shape == (2, 2, 3)


def test_full_is_refused_for_large_networks() -> None:
    large = replace(SIZES, embedding=128, expert_layers=(512,))
    with pytest.raises(UserError, match=r"'full' would have .* parameters.*'factored'"):
        fresh(sizes=large, generator="full")
    assert isinstance(fresh(sizes=large).task_generator, Factored)


@each_generator
def test_gradient_of_psi_is_the_inner_product(generator: str) -> None:
    network, batch = made(generator=generator), drawn(BOTH, 10)
    network.has_anchor.fill_(1.0)

    def slope(parameter: torch.Tensor, place: int, step: float = 1e-6) -> float:
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[place] += sign * step
                values.append(network.loss(batch).item())
                parameter[place] -= sign * step
        return (values[0] - values[1]) / (2 * step)

    network.loss(batch).backward()
    residual = network.scenario_residual.clone().requires_grad_()
    network.scenario_residual = residual
    # The residual is added as ψ U is: its gradient is that of W_s.
    base = network.scenario_generated() + residual
    weight = torch.addcmul(base, network.psi[:, None, None], network.scenario_direction)
    network.scenario_residual = residual.detach()
    logits = network._logits(batch, weight)
    apart = (weight - network.anchor).square().mean((1, 2)).sum()
    loss = cross_entropy(logits, batch["labels"].double()) + network.lam * apart
    (gradient,) = torch.autograd.grad(loss, residual)
    inner = (gradient * network.scenario_direction).sum((1, 2))
    assert torch.allclose(network.psi.grad, inner, rtol=1e-9, atol=1e-12)
    for n in range(2):
        assert slope(network.psi, n) == pytest.approx(network.psi.grad[n].item(), rel=1e-5)
        assert slope(network.psi_tower, n) == pytest.approx(
            network.psi_tower.grad[n].item(), rel=1e-5, abs=1e-8
        )


def test_towers_follow_their_directions() -> None:
    network = made()
    found = network.tower_parameters()
    assert set(found) == {name for name, _ in network.towers.named_parameters()}
    for name, value in found.items():
        own, sent = network.towers.get_parameter(name), network.get_buffer(direction_name(name))
        assert value.shape[0] == 2
        for task in range(2):
            expected = own[task] + network.psi_tower[task] * sent[task]
            assert torch.allclose(value[task], expected, atol=1e-13)


def test_directions_have_names_of_their_own() -> None:
    names = [direction_name(name) for name, _ in made().towers.named_parameters()]
    assert len(set(names)) == len(names)
    assert direction_name("towers.hidden.0.weight") == direction_name("hidden.0.weight")


@each_generator
def test_alignment(generator: str) -> None:
    network, batch = made(generator=generator, lam=0.3), drawn(BOTH, 10)
    entropy = cross_entropy(network.logits(batch), batch["labels"].double())
    weight = network.scenario_weight()
    pull = sum(((weight[n] - network.anchor[n]) ** 2).mean() for n in range(2))
    assert torch.allclose(network.alignment(network.anchor), pull, rtol=1e-12)
    common = network.anchor[0]
    expected = sum(((weight[n] - common) ** 2).mean() for n in range(2))
    assert torch.allclose(network.alignment(common), expected, rtol=1e-12)
    for has, value in ((0.0, entropy), (1.0, entropy + 0.3 * pull)):
        network.has_anchor.fill_(has)
        assert torch.allclose(network.loss(batch), value, rtol=1e-12)


@pytest.mark.parametrize("what", ["loss", "alignment", "weight", "both"])
@pytest.mark.parametrize("bytes_", [1 << 20, 80])  # all rows of 40 bytes at once, two
def test_gradients_of_the_weight_and_the_alignment(what: str, bytes_: int, monkeypatch) -> None:
    monkeypatch.setattr(hidden, "BYTES", bytes_)
    network = made(lam=0.3)
    network.has_anchor.fill_(1.0)
    batch = drawn(BOTH, 10)
    some = torch.linspace(-1, 1, network.weight.numel()).double().view_as(network.weight)

    def value(weight: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
        values = {
            "loss": lambda: (
                cross_entropy(network._logits(batch, weight), batch["labels"].double())
                + 0.3 * apart
            ),
            "alignment": lambda: 2 * apart,
            "weight": lambda: (some * weight).sum(),
            "both": lambda: (some * weight).sum() * apart,
        }
        found: Callable[[], torch.Tensor] = values[what]
        return found()

    plain = torch.stack([scenario(network, n) for n in range(2)])
    apart = (plain - network.anchor).square().mean((1, 2)).sum()
    parameters = [*network.scenario_generator.parameters(), network.psi]
    expected = torch.autograd.grad(value(plain, apart), parameters)
    found = torch.autograd.grad(value(*network._aligned(network.anchor)), parameters)
    for mine, other in zip(found, expected, strict=True):
        assert torch.allclose(mine, other, rtol=1e-10, atol=1e-12)


def test_gradients_reach_every_parameter() -> None:
    network = made()
    network.loss(drawn(BOTH, 20)).backward()
    idle = {n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()}
    # What is added to all samples alike changes nothing before normalisation.
    towers = {f"towers.hidden.{n}.bias" for n in range(2)}
    assert idle == {"inputs.numbers.bias", "first.bias", "rest.0.bias"} | towers


def test_buffers_are_told_from_statistics() -> None:
    names = {name for name, _ in made().named_buffers()}
    constants = {"scenario_residual", "scenario_direction", "anchor", "has_anchor"}
    statistics = {name for name in names if "running" in name or "tracked" in name}
    directions = {name for name in names if name.startswith("tower_")}
    assert names == constants | statistics | directions
    assert constants | directions <= set(made().state_dict())
