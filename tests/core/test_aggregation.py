"""A rule in place of the mean of every method that averages; who does not, is refused."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.core.methods.labelled_clients import KEY, SECRET, Net, Softmax, built, split
from tests.in_process import cohort_in_process
from tests.page.small_games import game, settings

from coterie.core.errors import UserError
from coterie.core.federation import collected
from coterie.core.federation.aggregation import Aggregation, Cast, aggregation_of
from coterie.core.federation.federation import Federation, check_averages
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.rules import TrimmedMean, krum
from coterie.core.federation.store import PrivateStore
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.kit.model_messages import UPDATE, GlobalModel, ModelUpdate
from coterie.core.methods.kit.uploads import Weighted
from coterie.core.methods.registry import METHODS
from coterie.core.protocol.journal import Journal
from coterie.core.run.checkpoint import bound_to, check_settings
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.aggregate import AggregateSettings
from coterie.core.settings.base import BaseSettings
from coterie.core.settings.schema import build

AVERAGING = [name for name in METHODS if name not in ("fedamp", "local", "central")]
RULES = ("mean", "median", "trimmed-mean", "krum", "multi-krum")
LENGTHS = [5, 1, 0, 6, 4, 4, 3, 2, 3]


def rule(name: str = "median", **more) -> Aggregation:
    return Aggregation(AggregateSettings(name, **more))  # type: ignore[arg-type]


def halves(name: str, **options):
    method = METHODS[name]
    general = {"epochs": 2, "batch_size": 3, "lr": 0.05, "rounds": 2}
    chosen = method.settings(**general | options)
    return method.server(lambda: built(Net), chosen), method.client(built(Net), chosen)


def trained(name: str, aggregation, chunk=None, data=None, **options) -> FederatedRun:
    data = split(LENGTHS) if data is None else data
    made = FederatedRun(
        Federation(*halves(name, **options), [data], chunk=chunk, aggregation=aggregation)
    )
    while not made.finished:
        made.advance()
    return made


def weights(made: FederatedRun) -> dict[str, torch.Tensor]:
    return made.federation.server.model(made.server_state)


def sent_by_each(state, data) -> ModelUpdate:
    """What every client uploads from a model, by itself."""
    client = halves("fedavg")[1]
    cohort = cohort_in_process(
        client, data, PrivateStore(), SECRET, (0, 1), Ledger(), Journal(), None
    )
    cohort.enrol()
    return cohort.ask(UPDATE, GlobalModel(state.weights)).up


def one_round(aggregation, data, **options):
    server, client = halves("fedavg", **options)
    state = server.begin(KEY)
    cohort = replace(
        cohort_in_process(client, data, PrivateStore(), SECRET, (0, 1), Ledger(), Journal()),
        aggregation=aggregation,
    )
    cohort.enrol()
    return state, server.round(state, cohort, KEY), cohort.journal


@pytest.mark.long
@pytest.mark.parametrize("weighting", ["samples", "equal"])
@pytest.mark.parametrize("name", AVERAGING)
def test_a_mean_without_a_bound_is_the_methods_own(name, weighting):
    plain = trained(name, None, weighting=weighting)
    ruled = trained(name, rule("mean", norm_bound=torch.inf), weighting=weighting)
    for parameter, value in weights(plain).items():
        torch.testing.assert_close(weights(ruled)[parameter], value, rtol=1e-10, atol=1e-12)
    for mine, other in zip(plain.history, ruled.history, strict=True):
        assert mine == pytest.approx({key: other[key] for key in mine}, rel=1e-8, nan_ok=True)


@pytest.mark.long
@pytest.mark.parametrize("which", RULES)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "dap-fl"])
def test_chunks_do_not_matter(name, which):
    first, *others = (weights(trained(name, rule(which), chunk)) for chunk in (None, 1, 4))
    for other in others:
        for parameter, value in first.items():
            torch.testing.assert_close(other[parameter], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("which", ["median", "trimmed-mean", "multi-krum"])
def test_the_model_moves_by_what_the_rule_finds(which):
    """In numpy: clients with data, shortened to the median norm, then compared."""
    data = split(LENGTHS)
    before, after, journal = one_round(rule(which), data)
    up = sent_by_each(before, data)
    some = (up.samples > 0).numpy()
    flat = np.concatenate([v.reshape(len(v), -1).numpy() for v in up.change.values()], 1)[some]
    norms = np.linalg.norm(flat, axis=1)
    bound = np.median(norms)
    assert journal.scalars["fed/norm_bound"] == pytest.approx(bound)
    assert journal.scalars["fed/bounded"] == 4
    flat = flat * np.minimum(1, bound / norms)[:, None]
    count, f = len(flat), int(0.3 * len(flat))
    if which == "median":
        expected = np.median(flat, axis=0)
    elif which == "trimmed-mean":
        expected = np.sort(flat, axis=0)[f : count - f].mean(0)
    else:
        squares = ((flat[:, None] - flat[None]) ** 2).sum(2)
        scores = np.sort(squares, axis=1)[:, 1 : count - f - 1].sum(1)
        expected = flat[np.argsort(scores)[: count - f]].mean(0)
        assert journal.scalars["fed/left_out"] == f
    found = np.concatenate([(after.weights[n] - w).flatten() for n, w in before.weights.items()])
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bound", [None, 0.05, 1e9])
def test_a_mean_of_bounded_uploads_weighs_as_the_method_does(bound):
    data = split(LENGTHS)
    before, after, journal = one_round(rule("mean", norm_bound=bound), data)
    up = sent_by_each(before, data)
    flat = np.concatenate([v.reshape(len(v), -1).numpy() for v in up.change.values()], 1)
    norms, n = np.linalg.norm(flat, axis=1), up.samples.double().numpy()
    most = np.median(norms[n > 0]) if bound is None else bound
    shorter = flat * np.minimum(1, most / norms.clip(1e-30))[:, None]
    found = np.concatenate([(after.weights[k] - w).flatten() for k, w in before.weights.items()])
    np.testing.assert_allclose(found, (n / n.sum()) @ shorter, rtol=1e-9, atol=1e-12)
    assert journal.scalars["fed/bounded"] == (norms[n > 0] > most).sum()


@pytest.mark.parametrize("which", RULES)
def test_one_who_sends_millions_moves_nothing_far(which):
    """Whatever the rule: with one liar of nine the model stays among those without."""

    class Lying(FedAvgClient):
        @UPDATE
        def update(self, down, mine, data, key):
            up, kept = super().update(down, mine, data, key)
            liar = (data.ids == 3).double()
            change = {
                n: v + 1e6 * liar.reshape(-1, *[1] * (v.dim() - 1)) for n, v in up.change.items()
            }
            samples = torch.where(data.ids == 3, 9_999_999, up.samples)
            return ModelUpdate(change, samples, up.loss), kept

    def moved(client) -> float:
        chosen = FedAvgSettings(epochs=2, batch_size=3, lr=0.05, rounds=1, weighting="equal")
        server = FedAvgServer(lambda: built(Net), chosen)
        given = Federation(server, client(built(Net), chosen), [split(LENGTHS)])
        made = FederatedRun(replace(given, aggregation=rule(which)))
        start = made.server_state.weights
        made.advance()
        return sum(float((made.server_state.weights[n] - w).norm()) for n, w in start.items())

    assert moved(Lying) < 3 * moved(FedAvgClient)


def test_nobody_has_data():
    before, after, _ = one_round(rule("median"), split([0, 0, 0]))
    assert all(torch.equal(after.weights[n], w) for n, w in before.weights.items())


def test_most_send_nothing():
    """Then the bound is 0, and so is what the others may send."""
    up = ModelUpdate(
        {"w": torch.tensor([[0.0], [0.0], [0.0], [5.0]])}, torch.ones(4).long(), torch.ones(4)
    )
    cast = Cast.of_clients(Weighted("equal"), up, 4)
    total = rule("mean").total(Weighted("equal"), cast, Journal())
    assert total.sums.change["w"].tolist() == [0.0]
    assert int(total.weight) == 4


def test_the_methods_that_average_say_so():
    saying = [name for name in METHODS if name != "central" and halves(name)[0].averages]
    assert saying == AVERAGING
    for name in ("fedamp", "local"):
        with pytest.raises(UserError, match="server averages what clients send, and"):
            trained(name, rule())


def stage_of(reading: str, aggregation, **game_options):
    """A stage of PAGE from its start: the server's state before and after, and what it got."""
    data = split([5, 3, 6, 4, 2])
    server, client = game(settings(reading, **game_options), data, Softmax)
    check_averages(server, rule())
    start = server.begin(KEY)

    def cohort():
        made = cohort_in_process(client, data, PrivateStore(), SECRET, (0, 1), Ledger(), Journal())
        made.enrol()
        return made

    ruled = replace(cohort(), aggregation=aggregation)
    after = server.round(start, ruled, KEY)
    ruled.check_averaged()
    if reading == "decoupled":
        start = replace(start, sizes=after.sizes)
    return server, start, after, cohort().ask(server.step, server.stage(start, 1)).up


@pytest.mark.parametrize("reading", ["recommended", "literal", "released", "decoupled"])
def test_the_follower_of_page_averages_by_the_rule(reading):
    """With equal weights W moves by the median of what the leaders sent, and so does c."""
    unbounded = rule("median", norm_bound=torch.inf)
    server, start, after, move = stage_of(reading, unbounded, tune_p=False)
    for name, w in start.weights.items():
        expected = np.median(move.change[name].numpy(), axis=0)
        np.testing.assert_allclose(server.model(after)[name] - w, expected, rtol=1e-9, atol=1e-12)
    if reading == "decoupled":
        for name, values in move.control.items():
            expected = np.median(values.numpy(), axis=0)
            np.testing.assert_allclose(after.control[name], expected, rtol=1e-9, atol=1e-12)


def test_multi_krum_leaves_the_follower_its_weights_and_a_median_does_not():
    given = rule("multi-krum", norm_bound=torch.inf, attackers=0.25)
    server, start, after, move = stage_of("recommended", given)
    flat = torch.cat([value.flatten(1) for value in move.change.values()], 1)
    kept = krum({"w": flat}, 5, 0.25, several=True)
    p = server._weights(start, start.seen, move, torch.arange(5), KEY)[1].double()
    shares = p[kept] / p[kept].sum()
    for name, w in start.weights.items():
        expected = torch.tensordot(shares, move.change[name][kept].double(), 1)
        torch.testing.assert_close(after.weights[name].double() - w, expected)
    with pytest.raises(UserError, match="median has no use for the weights that this server"):
        stage_of("recommended", rule("median"))


def test_a_claim_of_many_samples_moves_nothing_far():
    """SCAFFOLD's c moves by the sum over S divided by N, both of samples."""
    fold, ones = Weighted("samples"), torch.ones(10, 1)
    up = ModelUpdate({"w": ones}, torch.tensor([20] * 9 + [9_999_999]), torch.ones(10))
    total = rule("median").total(fold, Cast.of_clients(fold, up, 10), Journal())
    assert float(total.sums.change["w"]) == 200.0
    assert int(total.weight) == 200


def test_a_fold_that_is_not_known_to_be_a_mean_is_refused():
    class Halved(Weighted):
        def of(self, up):
            found = super().of(up)
            return replace(found, weight=found.weight / 2)

    assert not Halved("equal").counts_alike
    assert Weighted("equal").counts_alike
    with pytest.raises(UserError, match="Halved is not known to be one"):
        rule().check(Halved("equal"))

    class Renamed(Weighted):
        pass

    rule().check(Renamed("equal"))
    with pytest.raises(UserError, match="Renamed has no name by which they know it"):
        rule(over="nodes").check(Renamed("equal"))


def test_sixteen_bits_are_compared_in_more():
    values = torch.arange(4001.0)[:, None] / 4001
    for dtype in (torch.float16, torch.bfloat16):
        found = TrimmedMean(0.3)(values.to(dtype))
        assert found.dtype == dtype
        assert float(found) == pytest.approx(0.5, abs=0.004)


def test_a_checkpoint_of_another_rule_is_not_gone_on_with():
    data = split(LENGTHS)
    given = Federation(*halves("fedavg"), [data])
    saved = {"bound": bound_to(replace(given, aggregation=rule("median")))}
    check_settings(saved, replace(given, aggregation=rule("median")))
    for other in (None, rule("multi-krum")):
        with pytest.raises(UserError, match="aggregate"):
            check_settings(saved, replace(given, aggregation=other))


def test_a_server_of_ones_own_that_averages_past_the_rule_is_told():
    class Past(FedAvgServer):
        def round(self, state, cohort, key):
            up = cohort.ask(UPDATE, GlobalModel(state.weights)).up
            return replace(
                state, weights={n: w + up.change[n].mean(0) for n, w in state.weights.items()}
            )

    class By(FedAvgServer):
        def round(self, state, cohort, key):
            up = cohort.ask(UPDATE, GlobalModel(state.weights)).up
            share = torch.full((len(up.samples),), 1 / len(up.samples))
            moved = cohort.summed(up.change, share)
            return replace(state, weights={n: w + moved[n] for n, w in state.weights.items()})

    chosen = FedAvgSettings(rounds=1)
    for kind, fine in ((By, True), (Past, False)):
        given = Federation(
            kind(lambda: built(Net), chosen), FedAvgClient(built(Net), chosen), [split(LENGTHS)]
        )
        FederatedRun(given).advance()
        made = FederatedRun(replace(given, aggregation=rule()))
        if fine:
            made.advance()
            continue
        with pytest.raises(UserError, match="did not stand in for what the server made of"):
            made.advance()


@pytest.mark.parametrize("which", ["none", "mean"])
def test_a_bound_that_is_given_keeps_no_uploads(which, monkeypatch):
    monkeypatch.setattr(collected, "machine_memory", lambda: 10_000)
    made = [trained("fedavg", rule(which, norm_bound=0.05), chunk) for chunk in (None, 1, 4)]
    for other in made[1:]:
        for parameter, value in weights(made[0]).items():
            torch.testing.assert_close(weights(other)[parameter], value, rtol=1e-10, atol=1e-12)
        assert other.history[-1]["fed/bounded"] == made[0].history[-1]["fed/bounded"] == 8


def test_too_few_clients_for_krum():
    with pytest.raises(UserError, match="among 2 clients with data: it takes 3"):
        trained("fedavg", rule("krum"), data=split([4, 3]))


def test_what_does_not_fit_into_memory_is_refused(monkeypatch):
    monkeypatch.setattr(collected, "machine_memory", lambda: 10_000)
    with pytest.raises(UserError, match=r"median compares what 9 clients send, .* memory"):
        trained("fedavg", rule("median"))


def test_nodes_are_compared_by_their_means():
    """One node of five lies, with more clients than all others have."""
    fold, journal = Weighted("equal"), Journal()
    casts = []
    for node, count in enumerate([2, 3, 100, 1, 2]):
        value = 1e6 if count == 100 else float(node)
        change = {"w": torch.full((count, 1), value)}
        up = ModelUpdate(change, torch.ones(count).long(), torch.full((count,), 0.5))
        casts.append(Cast.of_node(fold, fold.of(up), count))
    whole = Cast(
        ModelUpdate(
            {"w": torch.cat([c.upload.change["w"] for c in casts])},
            torch.cat([c.upload.samples for c in casts]),
            torch.cat([c.upload.loss for c in casts]),
        ),
        torch.cat([c.weight for c in casts]),
    )
    total = rule("median", norm_bound=torch.inf).total(fold, whole, journal)
    assert int(total.weight) == 108
    assert float(total.sums.change["w"] / total.weight) == 3.0  # of 0, 1, 3, 4 and a million
    assert float(total.sums.loss / total.weight) == 0.5


def test_nodes_are_compared_only_where_there_are_some():
    with pytest.raises(UserError, match="all clients are in this process"):
        trained("fedavg", rule("median", over="nodes"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rule": "krum", "attackers": 0.5}, "below 0.5, not 0.5: no rule tells a majority"),
        ({"rule": "krum", "attackers": 0.0}, "above 0"),
        ({"norm_bound": 0.0}, "'aggregate.norm_bound' must be above 0"),
        ({"norm_bound": float("nan")}, "'aggregate.norm_bound' must be above 0"),
        ({"attackers": 0.2}, "'aggregate.attackers' has no effect without a rule"),
        ({"rule": "median", "attackers": 0.2}, "has no effect without a rule that counts them"),
        ({"over": "nodes"}, "'aggregate.over' has no effect without a rule"),
    ],
)
def test_settings_that_make_no_sense(given, why):
    with pytest.raises(UserError, match=why):
        build(BaseSettings, {f"aggregate.{key}": value for key, value in given.items()})


def test_nothing_said_is_nothing_done():
    assert aggregation_of(BaseSettings().aggregate) is None
    bounded = aggregation_of(AggregateSettings(norm_bound=2.0))
    assert bounded is not None


def test_a_certificate_is_not_for_another_game():
    from coterie.page.certificate.of_run import game_of

    with pytest.raises(UserError, match=r"leave aggregate\.\* out"):
        game_of(SimpleNamespace(federation=SimpleNamespace(aggregation=rule())))  # type: ignore[arg-type]


def test_a_run_of_two_rounds_is_not_changed_by_who_answers_first():
    """Of two orders of the clients' data the model is the same, to rounding."""
    data = split(LENGTHS)
    order = torch.tensor([3, 1, 8, 0, 5, 7, 2, 4, 6])
    one = trained("fedavg", rule("multi-krum"), data=data)
    other = trained("fedavg", rule("multi-krum"), data=data.take(order))
    for parameter, value in weights(one).items():
        torch.testing.assert_close(weights(other)[parameter], value, rtol=1e-10, atol=1e-12)
