"""A round of the server against the paper's equations, written out client by client."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.msmt.papers_norm import federated_batch_norm, unwhitened, whitened

from coterie.core.tensors.keys import Key
from coterie.msmt.aggregation.coordination import coordinate, gram_of
from coterie.msmt.aggregation.fedbn import Affine, statistics
from coterie.msmt.aggregation.personalised import (
    LITERAL,
    RECOMMENDED,
    Rule,
    applied,
    average,
    federated_average,
    personalised,
)

S, N, D_IN, H = 3, 4, 6, 5
PLAIN = replace(RECOMMENDED, fedbn="off")
RULES = {
    "recommended": RECOMMENDED,
    "plain": PLAIN,
    "separate": replace(RECOMMENDED, grouping="separate"),
    "own": replace(RECOMMENDED, centre="own"),
    "own, separate": replace(RECOMMENDED, centre="own", grouping="separate"),
    "not coordinated": replace(RECOMMENDED, coordinate=False),
    "own, not coordinated": replace(RECOMMENDED, centre="own", coordinate=False),
    "anchor literal": replace(RECOMMENDED, fedbn="literal"),
    "towers": RECOMMENDED.for_towers(),
}
each_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def uploads(seed: int, clients: int = S, parts: int = N, step: float = 0.1):
    """Parameters that clients held and what they sent: a matrix and a vector of each part."""
    key = Key.from_seed(seed)
    shapes = {"matrix": (clients, parts, D_IN, H), "vector": (clients, parts, 7)}
    held = {n: key.fold(n).normal(*shape, dtype=torch.float64) for n, shape in shapes.items()}
    sent = {
        n: value + step * key.fold(n, "step").normal(*shapes[n], dtype=torch.float64) + step / 3
        for n, value in held.items()
    }
    return sent, held


def aggregated(sent, held, rule: Rule, **more):
    """A round by what the clients sent, and what the parameters are after it, without ψ."""
    increments = {name: value - held[name] for name, value in sent.items()}
    found = personalised(increments, held, rule, **more)
    base = {name: value + found.mean[name] for name, value in held.items()}
    return SimpleNamespace(base=base, **vars(found))


def affine_of(seed: int, clients: int = S) -> Affine:
    key = Key.from_seed(seed).fold("affine")
    gamma = key.fold("gamma").normal(clients, D_IN, dtype=torch.float64)
    return Affine(gamma, key.fold("beta").normal(clients, D_IN, dtype=torch.float64))


def problems_of(rule: Rule, clients: int, parts: int) -> list[list[tuple[int, int]]]:
    """Places (client, part) of the increments that are coordinated together."""
    if rule.grouping == "separate":
        return [[(j, n) for j in range(clients)] for n in range(parts)]
    return [[(j, n) for j in range(clients) for n in range(parts)]]


def by_hand(sent, held, rule: Rule):
    """ΔW̄ and U* of every (client, part), flattened, by whitening vectors and undoing it."""
    names = list(sent)
    clients, parts = sent[names[0]].shape[:2]
    everyone = [torch.cat([sent[m][j, n].flatten() for m in names])
                for j in range(clients) for n in range(parts)]  # fmt: skip
    variance = statistics(torch.stack(everyone)).variance
    eps = rule.eps * float(variance.mean())
    means, directions = {}, {}
    for places in problems_of(rule, clients, parts):
        deltas = torch.stack(
            [torch.cat([(sent[m][j, n] - held[m][j, n]).flatten() for m in names])
             for j, n in places]
        )  # fmt: skip
        mean = deltas.mean(0)
        white = whitened(deltas, variance, eps) if rule.fedbn == "increment" else deltas
        if not rule.coordinate:
            found = mean.expand(len(places), -1)
        else:
            solved = coordinate(gram_of([white]), rule.c, centre=rule.centre)
            found = solved.direction(white).expand(len(places), -1)
            if rule.fedbn == "increment":
                found = unwhitened(found, variance, eps)
        for place, u in zip(places, found, strict=True):
            means[place], directions[place] = mean, u
    return means, directions


def flat(values, j: int, n: int) -> torch.Tensor:
    return torch.cat([value[j, n].flatten() for value in values.values()])


@each_rule
@pytest.mark.parametrize("seed", range(2))
def test_a_round_is_the_papers_equations(rule, seed):
    sent, held = uploads(seed)
    found = aggregated(sent, held, rule, affine=affine_of(seed))
    means, directions = by_hand(sent, held, rule)
    psi = Key.from_seed(seed).fold("psi").normal(S, N, dtype=torch.float64)
    new = applied(found.base, found.direction, psi)
    for j in range(S):
        for n in range(N):
            base = flat(held, j, n) + means[j, n]
            torch.testing.assert_close(flat(found.base, j, n), base)
            torch.testing.assert_close(flat(found.direction, j, n), directions[j, n])
            expected = base + psi[j, n] * directions[j, n]
            torch.testing.assert_close(flat(new, j, n), expected)
            alone = applied(
                {m: value[j] for m, value in found.base.items()},
                {m: value[j] for m, value in found.direction.items()},
                psi[j],
            )
            assert all(torch.equal(alone[m], new[m][j]) for m in new)


@each_rule
def test_problems_have_certificates(rule):
    sent, held = uploads(5)
    found = aggregated(sent, held, rule, affine=affine_of(5)).found
    assert len(found) == (N if rule.grouping == "separate" else 1)
    for one in found:
        assert float(one.gap.max()) <= 1e-8
        assert one.weights.shape[-1] == (S if rule.grouping == "separate" else S * N)


def test_whitening_makes_a_difference_and_depends_on_epsilon():
    sent, held = uploads(1)
    sent["matrix"][..., 0] *= 50  # parameters that differ much
    plain, white = (aggregated(sent, held, rule).direction for rule in (PLAIN, RECOMMENDED))
    assert float((plain["matrix"] - white["matrix"]).norm()) > 1e-2 * float(plain["matrix"].norm())
    rough = aggregated(sent, held, replace(RECOMMENDED, eps=1e9)).direction
    torch.testing.assert_close(rough, plain, rtol=1e-4, atol=1e-6)


@each_rule
def test_without_psi_equal_clients_do_as_fedavg_does(rule):
    """Test group 9: the same start and the same training."""
    sent, held = uploads(2, clients=1, parts=1)
    sent = {name: value.repeat(S, N, *[1] * (value.dim() - 2)) for name, value in sent.items()}
    held = {name: value.repeat(S, N, *[1] * (value.dim() - 2)) for name, value in held.items()}
    found = aggregated(sent, held, rule, affine=affine_of(2))
    averaged = federated_average(sent, torch.tensor([1, 2, 7]))
    nothing = torch.zeros(S, N, dtype=torch.float64)
    torch.testing.assert_close(applied(found.base, found.direction, nothing), sent)
    torch.testing.assert_close(averaged, sent)
    scale = 1.4 if rule.coordinate else 1.0
    for name, direction in found.direction.items():
        torch.testing.assert_close(direction, scale * (sent[name] - held[name]))


@each_rule
def test_without_psi_clients_of_one_start_get_the_average(rule):
    sent, held = uploads(3)
    held = {name: value[:1, :1].expand_as(value) for name, value in held.items()}
    base = aggregated(sent, held, rule, affine=affine_of(3)).base
    axes = 0 if rule.grouping == "separate" else (0, 1)
    for name, value in sent.items():
        mean = value.mean(axes, keepdim=True).expand_as(value)
        torch.testing.assert_close(base[name], mean)


def test_the_average_is_of_what_was_uploaded():
    sent, held = uploads(4)
    assert set(average(sent, PLAIN)) == set(sent)
    for name, value in sent.items():
        together, separate = (average(sent, rule)[name] for rule in (PLAIN, RULES["separate"]))
        torch.testing.assert_close(together, value.mean((0, 1)).expand_as(value[0]))
        torch.testing.assert_close(separate, value.mean(0))
        found = aggregated(sent, held, PLAIN)
        torch.testing.assert_close(found.average[name], together)
        torch.testing.assert_close(found.base[name].mean((0, 1)), together[0])


def test_the_literal_average_is_that_of_the_normalised_parameters():
    sent, affine = uploads(6)[0], affine_of(6)
    found = average(sent, LITERAL, affine=affine)
    stack, everyone = sent["matrix"].flatten(0, 1), affine.average()
    averaged = federated_batch_norm(stack, everyone).mean(0)
    torch.testing.assert_close(found["matrix"], averaged.expand(N, D_IN, H))
    scalar = federated_batch_norm(sent["vector"].flatten(0, 1), everyone.scalar()).mean(0)
    torch.testing.assert_close(found["vector"], scalar.expand(N, 7))


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.4, 0.9]), st.sampled_from(["global", "own"]))
@settings(max_examples=15, deadline=None)
def test_read_literally_the_direction_tells_nothing_of_the_clients(seed, c, centre):
    """F1: U* = (1 + c) ΔW̄ with ΔW̄ = β_g^r - β_g^{r-1}, and all are moved by it."""
    rule = replace(LITERAL, c=c, centre=centre)
    (sent, held), affine, earlier = uploads(seed), affine_of(seed), affine_of(seed + 1)
    before = average(held, rule, affine=earlier)
    found = aggregated(sent, held, rule, affine=affine, before=before)
    change = (affine.average().beta - earlier.average().beta)[:, None].expand(S, N, D_IN, H)
    torch.testing.assert_close(found.base["matrix"], held["matrix"] + change)
    torch.testing.assert_close(found.direction["matrix"], (1 + c) * change)
    torch.testing.assert_close(
        found.average["matrix"], affine.average().beta[:, None].expand(N, D_IN, H)
    )
    other = aggregated(uploads(seed + 9)[0], held, rule, affine=affine, before=before)
    torch.testing.assert_close(other.direction, found.direction)


def test_literal_towers_move_by_the_change_of_their_average():
    sent, held = uploads(7)
    rule = LITERAL.for_towers()
    before = average(uploads(8)[0], rule)
    found = aggregated(sent, held, rule, before=before)
    for name, value in sent.items():
        change = value.mean(0) - before[name]
        torch.testing.assert_close(found.base[name], held[name] + change)
        torch.testing.assert_close(found.direction[name], (1.4 * change).expand_as(value))


@each_rule
def test_an_upload_that_is_not_sound_changes_nothing_for_others(rule):
    sent, held = uploads(9)
    affine, sound = affine_of(9), torch.tensor([True, False, True])
    others = aggregated(
        {name: value[sound] for name, value in sent.items()},
        {name: value[sound] for name, value in held.items()},
        rule,
        affine=Affine(affine.gamma[sound], affine.beta[sound]),
    )
    sent["matrix"][1, 2] = torch.nan
    affine.gamma[1] = affine.beta[1] = torch.nan
    found = aggregated(sent, held, rule, affine=affine, sound=sound)
    torch.testing.assert_close(found.average, others.average)
    for ours, theirs in ((found.base, others.base), (found.direction, others.direction)):
        torch.testing.assert_close({n: value[sound] for n, value in ours.items()}, theirs)
        assert all(value.isfinite().all() for value in ours.values())
    mean = {n: others.base[n][:1] - held[n][:1] for n in held}
    for name in held:
        torch.testing.assert_close(found.base[name][1:2], held[name][1:2] + mean[name])
    with pytest.raises(ValueError, match="not finite"):
        aggregated(sent, held, rule, affine=affine_of(9))
    with pytest.raises(ValueError, match="no upload is sound"):
        aggregated(sent, held, rule, affine=affine, sound=sound & False)


def test_what_a_rule_needs_must_be_given():
    sent, held = uploads(1)
    with pytest.raises(ValueError, match="γ and β"):
        aggregated(sent, held, LITERAL)
    with pytest.raises(ValueError, match="averages of the round before"):
        aggregated(sent, held, LITERAL, affine=affine_of(1))


@pytest.mark.parametrize("broken", [False, True])
def test_fedavg_averages_part_by_part(broken):
    sent = uploads(10)[0]
    shares, sound = torch.tensor([1, 2, 5]), torch.tensor([True, not broken, True])
    expected = {
        name: sum(
            int(shares[j]) * value[j] for j in range(S) if sound[j]
        ) / int(shares[sound].sum())
        for name, value in sent.items()
    }  # fmt: skip
    if broken:
        sent["vector"][1] = torch.nan
    found = federated_average(sent, shares, sound=sound)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.expand(S, *value.shape))
    with pytest.raises(ValueError, match="no upload has a weight"):
        federated_average(sent, 0 * shares, sound=sound)


def test_psi_learns_from_the_inner_product_with_the_direction():
    """R11: ∂L/∂ψ_n = ⟨∂L/∂W^n, U*⟩, and by finite differences."""
    sent, held = uploads(11)
    found = aggregated(sent, held, RECOMMENDED)
    base, direction = ({n: v[0] for n, v in part.items()} for part in (found.base, found.direction))
    target = {n: torch.full_like(value, 0.3) for n, value in base.items()}

    def loss(psi):
        new = applied(base, direction, psi)
        return sum((new[name] - target[name]).pow(3).sum() for name in new)

    psi = torch.tensor([0.1, -0.4, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(psi), psi)
    new = applied(base, direction, psi.detach())
    for n in range(N):
        inner = sum((3 * (new[m][n] - target[m][n]) ** 2 * direction[m][n]).sum() for m in new)
        assert float(slope[n]) == pytest.approx(float(inner))
        step = torch.zeros(N, dtype=torch.float64)
        step[n] = 1e-6
        change = (loss(psi + step) - loss(psi - step)).detach() / 2e-6
        assert float(slope[n]) == pytest.approx(float(change), rel=1e-6)


def test_one_client_with_one_part_keeps_what_it_trained():
    """Test group 8: nothing is shared, so that ψ = 0 leaves local training as it is."""
    sent, held = uploads(12, clients=1, parts=1)
    found = aggregated(sent, held, RECOMMENDED)
    nothing = torch.zeros(1, 1, dtype=torch.float64)
    torch.testing.assert_close(applied(found.base, found.direction, nothing), sent)


def test_float32_is_as_float64():
    sent, held = uploads(13)
    exact = aggregated(sent, held, RECOMMENDED)
    found = aggregated(
        {n: value.float() for n, value in sent.items()},
        {n: value.float() for n, value in held.items()},
        RECOMMENDED,
    )
    for name, value in exact.direction.items():
        assert found.direction[name].dtype == torch.float32
        torch.testing.assert_close(found.direction[name].double(), value, rtol=1e-4, atol=1e-5)
