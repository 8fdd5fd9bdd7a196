"""DP-FedAvg: clients clip, the server adds noise once to the sum; what that guarantees."""

import hashlib
import time
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from tests.core.methods.labelled_clients import KEY, SECRET, Net, Softmax, built, split
from tests.in_process import cohort_in_process
from tests.page.small_games import game
from tests.page.small_games import settings as page_settings

from coterie.core.errors import UserError
from coterie.core.federation.aggregation import Aggregation
from coterie.core.federation.federation import Federation
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.methods.fedavg import FedAvgServer
from coterie.core.methods.kit.model_messages import UPDATE, GlobalModel, ModelUpdate
from coterie.core.methods.kit.uploads import Weighted
from coterie.core.methods.registry import METHODS
from coterie.core.privacy.accountant import epsilon, epsilon_of_sums
from coterie.core.privacy.budget import Budget
from coterie.core.privacy.build import middleware, remarks
from coterie.core.privacy.noise import Clip, normal
from coterie.core.privacy.sum_noise import Summed, SumNoise, simulated_secret, sum_noise
from coterie.core.protocol.journal import Journal, Release
from coterie.core.protocol.uploads import Sum
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.aggregate import AggregateSettings
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.schema import build
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key
from coterie.core.tensors.rows import DenseRows

CLIP, SIGMA = 0.1, 0.4
PRIVACY = PrivacySettings(clip=CLIP, noise="gaussian", scale=SIGMA, at="server")
LENGTHS = [5, 1, 0, 6, 4, 4, 3, 2, 3]
IDS = torch.arange(9)


def noise(secret: int = 5, **more) -> SumNoise:
    return SumNoise(replace(PRIVACY, **more), bytes([secret]) * 32)


def summed(**more) -> Summed:
    return replace(Summed("update", (0, 1), 0, False, IDS), **more)


def halves(name: str, **options):
    method = METHODS[name]
    general = {"epochs": 2, "batch_size": 3, "lr": 0.5, "rounds": 3, "weighting": "equal"}
    chosen = method.settings(**general | options)
    return method.server(lambda: built(Net), chosen), method.client(built(Net), chosen)


def trained(name: str, given: SumNoise | None, chunk=None, **options) -> FederatedRun:
    server, client = halves(name, **options)
    layers = middleware(PRIVACY, client.steps())
    made = FederatedRun(
        Federation(server, client, [split(LENGTHS)], chunk=chunk, middleware=layers, noise=given)
    )
    while not made.finished:
        made.advance()
    return made


def flat(params) -> np.ndarray:
    return torch.cat([value.flatten() for value in params.values()]).numpy()


def test_clients_clip_and_add_nothing():
    (layer,) = middleware(PRIVACY, halves("fedavg")[1].steps())
    assert isinstance(layer, Clip)
    assert layer.norm == CLIP


@pytest.mark.long
def test_a_round_is_the_mean_of_what_was_clipped_and_noise_once():
    """The noise of a round is that of one draw, divided by those with data; in three rounds."""
    data, gone = split(LENGTHS), []
    for number in range(40):
        server, client = halves("fedavg")
        state, found = server.begin(KEY), []
        for given in (None, noise(number)):
            cohort = replace(
                cohort_in_process(
                    client, data, PrivateStore(), SECRET, (0, 1), Ledger(), Journal(),
                    middleware=middleware(PRIVACY, client.steps()),
                ),
                noise=given,
            )  # fmt: skip
            cohort.enrol()
            found.append(flat(server.round(state, cohort, KEY).weights))
        plain, noisy = found
        assert np.linalg.norm(plain - flat(state.weights)) <= CLIP * (1 + 1e-9)
        gone.append((noisy - plain) * 8)  # eight clients have data
    drawn = np.concatenate(gone)
    assert stats.kstest(drawn / SIGMA, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(gone[0], gone[1])[0, 1]) < 0.5


@pytest.mark.parametrize("fold", [Sum(), Weighted("equal")])
def test_every_number_of_a_release_gets_noise_and_nothing_else_does(fold):
    up = ModelUpdate({"w": torch.zeros(2, 5000)}, torch.tensor([3, 4]), torch.tensor([0.5, 1.0]))
    found = noise()(fold, fold.of(up), summed())
    sums, _ = fold.sums(found, 2, None) if isinstance(fold, Sum) else (found.sums, None)
    assert stats.kstest(sums.change["w"].numpy() / SIGMA, "norm").pvalue > 1e-4
    assert sums.samples == 7
    assert sums.loss == 1.5


def test_rows_that_nobody_changed_get_noise_too():
    from coterie.continual.messages import ItemUpdate
    from coterie.core.tensors.rows import TouchedRows
    from coterie.core.tensors.stacked import Ragged

    rows = TouchedRows(Ragged.from_lists([[1], [2]]), torch.zeros(2, 8), 500)
    fold = Sum()
    total = fold.of(ItemUpdate(rows, None, torch.ones(2), None))
    found = noise()(fold, total, summed()).items
    assert isinstance(found, DenseRows)
    assert stats.kstest(found.values.flatten().numpy() / SIGMA, "norm").pvalue > 1e-4


def test_the_same_sum_gets_the_same_noise_and_any_other_another():
    """Else the difference of two sums would be without it, or their mean with less."""
    first = noise().key(summed()).state
    assert torch.equal(noise().key(summed(ids=IDS.flip(0))).state, first)
    for other in (
        noise(6).key(summed()),
        noise().key(summed(ids=IDS[1:])),
        noise().key(summed(when=(0, 2))),
        noise().key(summed(when=(1, 1))),
        noise().key(summed(draw=1)),
        noise().key(summed(ending=True)),
        noise().key(summed(step="other")),
    ):
        assert not torch.equal(other.state, first)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn", "dap-fl"])
def test_chunks_do_not_matter(name):
    one, other = (trained(name, noise(), chunk) for chunk in (None, 2))
    for parameter, value in one.federation.server.model(one.server_state).items():
        found = other.federation.server.model(other.server_state)[parameter]
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-11)
    without = trained(name, None)
    assert not torch.equal(flat_tensor(without), flat_tensor(one))


def flat_tensor(made: FederatedRun) -> torch.Tensor:
    return torch.as_tensor(flat(made.federation.server.model(made.server_state)))


def test_one_client_moves_the_sum_by_its_clip_at_most():
    """Scaffold's two tensors together, whatever a client has."""
    server, client = halves("scaffold", lr=50.0)
    clip = middleware(PRIVACY, client.steps())
    cohort = cohort_in_process(
        client, split(LENGTHS), PrivateStore(), SECRET, (0, 1), Ledger(), Journal(), None, clip
    )
    cohort.enrol()
    from coterie.core.methods.scaffold import UPDATE as SCAFFOLD
    from coterie.core.methods.scaffold import ControlledModel

    weights = server.begin(KEY).weights
    zeros = {name: torch.zeros_like(value) for name, value in weights.items()}
    up = cohort.ask(SCAFFOLD, ControlledModel(weights, zeros, 0)).up
    whole = torch.cat([v.flatten(1) for v in [*up.change.values(), *up.control.values()]], 1)
    assert float(whole.norm(dim=1).max()) == pytest.approx(CLIP)


def test_weights_by_samples_are_refused():
    with pytest.raises(UserError, match="set 'weighting' to equal"):
        trained("fedavg", noise(), weighting="samples")
    with pytest.raises(UserError, match="clients that count alike"):
        noise().checked("update", Weighted("samples"))
    with pytest.raises(UserError, match="set 'weighting' to equal"):  # one's size moves all by α
        trained("feddyn", noise(), weighting="samples", lr=0.01)


def test_a_server_that_looks_at_single_clients_is_refused():
    data = split([5, 3, 6, 4])
    server, client = game(page_settings(), data, Softmax)
    with pytest.raises(UserError, match="and PageServer does not with these settings"):
        Federation(server, client, [data], noise=noise())
    with pytest.raises(UserError, match="and FedAMPServer does not with these settings"):
        trained("fedamp", noise())

    class Past(FedAvgServer):
        def round(self, state, cohort, key):
            cohort.ask(UPDATE, GlobalModel(state.weights))
            return state

    server, client = halves("fedavg")
    own = Past(lambda: built(Net), server.settings)
    made = FederatedRun(Federation(own, client, [split(LENGTHS)], noise=noise()))
    with pytest.raises(UserError, match="looks at the answer of each client to 'update'"):
        made.advance()


def test_a_sum_of_nothing_that_noise_could_cover_is_refused():
    class Hidden(Sum):
        def of(self, up):
            return replace(super().of(up), change={})

    up = ModelUpdate({"w": torch.zeros(2, 3)}, torch.ones(2).long(), torch.ones(2))
    with pytest.raises(UserError, match="has nothing that noise could cover"):
        noise()(Hidden(), Hidden().of(up), summed())


def test_a_rule_beside_noise_is_refused_wherever_it_comes_from():
    server, client = halves("fedavg")
    rule = Aggregation(AggregateSettings("median"))
    with pytest.raises(UserError, match="leave one of them out"):
        Federation(server, client, [split(LENGTHS)], noise=noise(), aggregation=rule)


def test_reg_of_f3crec_is_refused():
    from coterie.continual.algorithm import F3CRec
    from coterie.continual.settings import Settings, resolve

    for method, alike in (("reg", False), ("f3crec", True), ("ft", True)):
        chosen = resolve(build(Settings, {"method": method}))
        assert F3CRec(chosen, [5]).sums_alike is alike


def test_steps_that_are_left_out_get_none():
    assert noise(steps=("fit",)).covers("fit")
    assert not noise(steps=("fit",)).covers("update")


def test_a_simulation_has_a_secret_of_all_that_its_run_keeps():
    """Two runs with one seed and other settings have other noise; the same run has the same."""
    one = simulated_secret({"seed": 3, "train.lr": 0.1})
    assert one == simulated_secret({"train.lr": 0.1, "seed": 3})
    assert len({one, simulated_secret({"seed": 3, "train.lr": 0.2}), b"x"}) == 3
    assert sum_noise(replace(PRIVACY, at="client"), one) is None
    found = sum_noise(PRIVACY, one)
    assert found is not None
    assert found.secret == one


def test_who_is_drawn_is_the_server_s_secret():
    client = halves("fedavg")[1]
    cohort = cohort_in_process(
        client, split(LENGTHS), PrivateStore(), SECRET, (0, 1), Ledger(), Journal()
    )
    plain = cohort.draw(4, KEY).ids.tolist()
    drawn = [
        replace(cohort, noise=noise(number), when=when).draw(4, KEY).ids.tolist()
        for number, when in ((1, (0, 1)), (2, (0, 1)), (1, (0, 2)), (1, (0, 1)))
    ]
    assert drawn[0] == drawn[3]
    assert len({tuple(ids) for ids in (plain, *drawn[:3])}) == 4


def test_a_number_that_was_nothing_gives_no_other_away():
    """Of SHAKE-256: the bits of one number are no function of those of another, nor of the key."""
    key = Key(torch.tensor([12345]))
    expected = hashlib.shake_256((12345).to_bytes(8, "big", signed=True)).digest(16)
    bits = np.frombuffer(expected, dtype="<i8")
    radius = np.sqrt(-2 * np.log((((bits >> 24) & ((1 << 40) - 1)) + 0.5) * 2.0**-40))
    angle = (bits & ((1 << 24) - 1)) * (2 * np.pi * 2.0**-24)
    found = normal(key, 4, torch.float64)[0].numpy()
    np.testing.assert_allclose(found[:2], radius * np.cos(angle), rtol=1e-9)
    np.testing.assert_allclose(found[2:], radius * np.sin(angle), rtol=1e-9)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"privacy.noise": "laplace"}, "set 'privacy.noise' to gaussian"),
        ({"privacy.noise": "none", "privacy.scale": 0.0}, "set 'privacy.noise' to gaussian"),
        ({"privacy.clip_by": "entry"}, "set 'privacy.clip_by' to upload"),
        ({"privacy.uploads": "padded", "privacy.padded_rows": 3}, "set 'privacy.uploads' to dense"),
        ({"privacy.clip": None}, "needs a 'privacy.clip'"),
        ({"privacy.scale": 0.0}, "a positive 'privacy.scale'"),
        ({"aggregate.rule": "median"}, "leave one of them out"),
    ],
)
def test_settings_that_make_no_sense(given, why):
    fine = {
        "privacy.clip": 1.0,
        "privacy.noise": "gaussian",
        "privacy.scale": 1.0,
        "privacy.at": "server",
    }
    build(BaseSettings, fine)
    with pytest.raises(UserError, match=why):
        build(BaseSettings, fine | given)


def test_what_is_said_beside_epsilon():
    (said,) = remarks(PRIVACY, halves("fedavg")[1].steps())
    assert "not the server, which sees each upload" in said


# What it guarantees.


def exact_delta(multiplier: float, eps: float) -> float:
    """δ of one Gaussian release of sensitivity 1 (Balle and Wang, 2018, Theorem 8)."""
    a = 1 / (2 * multiplier)
    b = eps * multiplier
    return stats.norm.cdf(a - b) - np.exp(eps) * stats.norm.cdf(-a - b)


@pytest.mark.parametrize(("sigma", "rounds"), [(2.0, 1), (8.0, 20), (8.0, 300)])
def test_of_everybody_in_every_round_it_is_that_of_a_gaussian(sigma, rounds):
    given = replace(PRIVACY, clip=1.0, scale=sigma)
    got = epsilon_of_sums(given, rounds, {(50, 50, 1): rounds})
    z = sigma / 2 / np.sqrt(rounds)
    exact = optimize.brentq(lambda eps: exact_delta(z, eps) - 1e-5, 0, 500)
    assert exact <= got <= 1.25 * exact
    assert got == pytest.approx(epsilon(replace(given, at="client"), rounds))


@pytest.mark.parametrize(("asked", "sigma"), [(1, 1.0), (10, 1.0), (10, 4.0), (90, 2.0)])
def test_a_sample_is_what_integration_finds_or_more(asked, sigma):
    """One round: a client's upload is C or -C, in the sum with probability m/n."""
    given = replace(PRIVACY, clip=1.0, scale=sigma)
    eps, q = epsilon_of_sums(given, 1, {(asked, 100, 1): 1}), asked / 100

    def density(x: float, centre: float) -> float:
        here = q * stats.norm.pdf(x, centre, sigma) + (1 - q) * stats.norm.pdf(x, 0, sigma)
        return float(here)

    found, _ = integrate.quad(
        lambda x: max(density(x, 1.0) - np.exp(eps) * density(x, -1.0), 0.0),
        -10 * sigma, 10 * sigma + 2, limit=500,
    )  # fmt: skip
    assert found <= 1e-5
    assert eps <= epsilon(replace(given, at="client"), 1)
    assert (asked == 90) == (eps == epsilon(replace(given, at="client"), 1))


def test_a_tenth_of_the_clients_costs_less_and_two_sums_of_a_round_more():
    given = replace(PRIVACY, clip=1.0, scale=6.0)
    whole = epsilon_of_sums(given, 100, {(100, 100, 1): 100})
    tenth = epsilon_of_sums(given, 100, {(10, 100, 1): 100})
    assert tenth < whole / 4
    twice = epsilon_of_sums(given, 200, {(10, 100, 2): 100})
    assert tenth < twice < 3 * tenth
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        100, 10, dp_accounting.GaussianDpEvent(3.0)
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    spent = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    assert tenth == pytest.approx(spent.compose(event, 100).get_epsilon(1e-5))


def test_the_ask_of_the_highest_rate_counts_for_all_of_a_round():
    budget = Budget(replace(PRIVACY, clip=1.0, scale=6.0))
    everybody, few = release(list(range(10)), among=10), release(list(range(10)), among=1000)
    budget.add([everybody, few])
    assert budget.rounds == {(10, 10, 2): 1}
    alone = Budget(budget.settings)
    alone.add([everybody])
    assert budget.epsilon() > alone.epsilon()


def test_many_kinds_of_rounds_are_quick():
    kinds = {(10, 100 + number, 1): 1 for number in range(5)}
    epsilon_of_sums(PRIVACY, 5, kinds)
    began = time.perf_counter()
    epsilon_of_sums(PRIVACY, 5, {kind: 3 for kind in kinds})
    assert time.perf_counter() - began < 0.1


def release(asked, heard=None, among=9) -> Release:
    heard = asked if heard is None else heard
    return Release("update", 1, torch.tensor(asked), torch.tensor(heard).long(), among)


def test_a_budget_counts_who_is_in_the_sums():
    """Client 4 answers twice in three rounds in which it was asked, and nobody more often."""
    budget = Budget(PRIVACY)
    for one in (release([1, 4, 5]), release([2, 4], [2]), release([4, 7])):
        budget.add([one])
    assert dict(zip(budget.clients.tolist(), budget.spent.tolist(), strict=True)) == {
        1: 1, 2: 1, 4: 2, 5: 1, 7: 1,
    }  # fmt: skip
    assert budget.rounds == {(3, 9, 1): 1, (2, 9, 1): 2}
    assert budget.epsilon() == epsilon_of_sums(PRIVACY, 2, budget.rounds)
    later = Budget(PRIVACY)
    later.load_plain(budget.to_plain())
    later.add([release([4])])
    assert int(later.spent.max()) == 3


def test_a_round_without_an_answer_costs_nothing():
    budget = Budget(PRIVACY)
    budget.add([release([1, 2], [])])
    assert budget.epsilon() == 0.0


@pytest.mark.parametrize("fraction", [0.3, 1.0])
def test_a_run_says_of_how_many_it_drew(fraction):
    made = trained("fedavg", noise(), fraction=fraction)
    (one,) = made.journal.releases
    assert (one.asked.numel(), one.among) == (round(9 * fraction), 9)


def test_a_part_that_the_server_chose_is_no_sample():
    client = halves("fedavg")[1]
    cohort = cohort_in_process(
        client, split(LENGTHS), PrivateStore(), SECRET, (0, 1), Ledger(), Journal()
    )
    cohort.enrol()
    drawn = cohort.draw(4, KEY)
    for part, among in ((drawn, 9), (drawn.part(torch.tensor([0, 1])), 2), (drawn.draw(2, KEY), 2)):
        cohort.journal.clear()
        part.ask(UPDATE, GlobalModel(halves("fedavg")[0].begin(KEY).weights))
        assert cohort.journal.releases[0].among == among
