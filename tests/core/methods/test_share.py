"""A part of the model is shared: only that part travels and is averaged, the rest stays."""

import pytest
import torch
from tests.core.methods.labelled_clients import (
    KEY,
    LENGTHS,
    SECRET,
    Net,
    boundary_holds,
    built,
    close,
    labelled,
    run,
    samples_of,
    split,
    weights_of,
)
from tests.core.methods.mixing_modules import Both, Normed
from tests.core.methods.plain_federation import FEDERATED, OWN, Plain, halves, holds
from tests.hosted import Hosts, bits, each_alone, make_folders
from tests.in_process import cohort_in_process

from coterie.core.engines.host import ClientHost
from coterie.core.errors import UserError
from coterie.core.federation.cohort import ExchangeCohort
from coterie.core.federation.federation import Federation
from coterie.core.federation.ledger import Ledger
from coterie.core.methods.fedamp import CloudModel
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.kit.model_messages import GlobalModel, OwnStart
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.methods.kit.parts import matching
from coterie.core.protocol.journal import Journal
from coterie.core.run.certify import InShards
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.saved import load, save

GENERAL = {"epochs": 2, "batch_size": 3, "lr": 0.1, "weight_decay": 0.02}
ADAM = GENERAL | {"optimizer": "adam", "lr": 0.02}
NAMES = list(weights_of(built(Net)))
HEAD = ["head.weight", "head.bias"]
SOME = [4, 0, 7, 3]
each_method = pytest.mark.parametrize("name", FEDERATED)


def bytes_of(names, build=Net) -> int:
    weights = weights_of(built(build))
    return sum(weights[name].numel() * 8 for name in names)


def sent(made, step, field):
    """Messages and bytes of all fields that begin so."""
    found = {key[2]: v for key, v in made.ledger.totals.items() if key[0] == step}
    return {path: tuple(v) for path, v in found.items() if path.startswith(field)}


BODY = (("body.*",), NAMES[:-2])
SCATTERED = (("head.bias", "body.0.*"), [*NAMES[:2], "head.bias"])


@pytest.mark.parametrize(
    ("name", "share", "shared"),
    [*((name, *BODY) for name in FEDERATED), *((name, *SCATTERED) for name in ("fedavg", "ditto"))],
)
def test_a_part_is_averaged_as_in_a_loop(name, share, shared):
    data = split()
    server, client, settings = halves(name, Net, **ADAM, share=share)
    made = run(server, client, data, 2)
    plain = Plain(name, Net, data, settings).rounds(2)
    assert plain.shared == shared
    holds(made, plain)
    for model, part, where in (("global", "eval", "valid"), ("personal", "test", "test")):
        found = made.journals[-1].scalars[f"{part}/{model}_loss"]
        assert found == pytest.approx(plain.measured(model, where, "loss"), rel=1e-12)


@each_method
def test_a_part_of_a_module_with_batch_normalisation(name):
    data = split(SOME)
    server, client, settings = halves(name, Both, **ADAM, share=("body.*", "parts.*"))
    made = run(server, client, data, 2)
    holds(made, Plain(name, Both, data, settings, at_least=2, by_place=True).rounds(2))


@pytest.mark.parametrize(
    ("name", "share"),
    [("fedavg", ("*",)), *((name, ("head.*", "body.*")) for name in FEDERATED)],
)
def test_everything_shared_is_nothing_said(name, share):
    data = split(SOME)
    runs = [run(*halves(name, Net, **ADAM, **more)[:2], data, 2) for more in ({}, {"share": share})]
    plain, told = runs
    assert bits(told.state) == bits(plain.state)
    assert bits(told.private(data.ids)) == bits(plain.private(data.ids))
    assert told.ledger.totals == plain.ledger.totals
    assert [one.scalars for one in told.journals] == [one.scalars for one in plain.journals]
    assert not [step for step, *_ in told.ledger.totals if step == "receive"]
    assert told.private(data.ids).own == {}


@each_method
def test_only_the_matching_parameters_travel(name):
    data, count = split(), len(LENGTHS)
    server, client, _ = halves(name, Net, **GENERAL, share=("body.*",))
    made = run(server, client, data, 2)
    body = NAMES[:-2]
    assert list(made.state.weights) == body
    assert list(made.state.own) == HEAD
    down = sent(made, "update", "weights") | sent(made, "evaluate", "weights")
    assert list(down) == [f"weights.{name}" for name in body]
    assert sent(made, "receive", "own") == {
        f"own.{name}": (count, count * bytes_of([name])) for name in HEAD
    }
    assert sent(made, "update", "change") == {"change": (2 * count, 2 * count * bytes_of(body))}
    mine, weights = made.private(data.ids), made.state.weights
    asked = GlobalModel(weights)
    if name == "fedamp":
        cloud = {n: v.expand(count, *v.shape) for n, v in weights.items()}
        asked = CloudModel(cloud, torch.ones(count).double())
    up, after = client.update(asked, mine, data, SECRET.fold(data.ids).fold("look"))
    assert list(up.change) == body
    assert list(after.own) == HEAD
    assert list(after.personal) == (NAMES if name == "ditto" else body)
    assert not torch.equal(after.own["head.weight"][0], after.own["head.weight"][3])


def test_what_is_not_shared_begins_with_the_servers_first_values():
    """Also with those who join later; they are sent it once, and the others never again."""
    data = split()
    server, client, _ = halves("fedavg", Net, **GENERAL, share=("body.*",))
    few = data.take(torch.tensor([0, 3, 4]))
    made = run(server, client, few, 2)
    first = weights_of(built(Net))
    trained = made.private(few.ids).own
    assert not torch.equal(trained["head.bias"][0], first["head.bias"])
    cohort = cohort_in_process(client, data, made.store, SECRET, (1, 0), made.ledger, Journal())
    server.start_block(made.state, 1, cohort, KEY)
    kept = made.private(data.ids).own
    for c, client_id in enumerate(data.ids.tolist()):
        old = few.ids.tolist().index(client_id) if client_id in few.ids else None
        for name in HEAD:
            expected = first[name] if old is None else trained[name][old]
            assert torch.equal(kept[name][c], expected)
    assert sent(made, "receive", "own.head.bias") == {
        "own.head.bias": (len(data), len(data) * bytes_of(["head.bias"]))
    }


def test_who_has_not_trained_is_measured_with_first_values():
    data = split([4] * 6)
    server, client, _ = halves("fedavg", Net, **GENERAL, share=("body.*",), fraction=0.3)
    made = run(server, client, data, 1)
    kept = made.private(data.ids)
    assert int(kept.rounds.sum()) == 2
    losses = []
    for c in range(6):
        module = built(Net)
        mine = {n: v[c] for n, v in {**kept.personal, **kept.own}.items()}
        trained = bool(kept.rounds[c])
        module.load_state_dict(mine if trained else {**weights_of(module), **made.state.weights})
        losses.append(module.loss(samples_of(data.valid, c)).item())
    found = made.journals[0].scalars["eval/personal_loss"]
    assert found == pytest.approx(sum(losses) / 6, rel=1e-12)


@each_method
def test_a_server_that_has_a_part_measures_no_model_on_its_own_samples(name):
    held = ServerSamples(labelled([9], "server").samples, labelled([9], "reported").samples)
    whole, part = (
        run(*halves(name, Net, held, **GENERAL, **more)[:2], split(SOME), 1).journals[0].scalars
        for more in ({}, {"share": ("body.*",)})
    )
    assert {"eval/server_loss", "test/server_accuracy"} <= set(whole)
    assert not [key for key in part if "server" in key]
    assert part["eval/accuracy"] == part["eval/personal_accuracy"]


def test_models_that_are_not_kept_keep_their_own_part():
    data = split(SOME)
    ends = []
    for keep in (True, False):
        server, client, _ = halves("fedavg", Net, **ADAM, share=("body.*",), keep_models=keep)
        ends.append(run(server, client, data, 2))
    close(ends[1].state.weights, ends[0].state.weights, 0.0)
    kept = ends[1].private(data.ids)
    assert kept.personal == {}
    close(kept.own, ends[0].private(data.ids).own, 0.0)
    assert "eval/personal_loss" not in ends[1].journals[-1].scalars


def test_frozen_parameters_are_neither_shared_nor_kept():
    class Frozen(Net):
        def __init__(self):
            super().__init__()
            self.body.requires_grad_(False)

    made = run(*halves("fedavg", Frozen, **GENERAL, share=("head.w*",))[:2], split(SOME), 1)
    assert list(made.state.weights) == ["head.weight"]
    assert list(made.private([0]).own) == ["head.bias"]
    with pytest.raises(UserError, match=r"named as 'body\.\*'"):
        halves("fedavg", Frozen, **GENERAL, share=("body.*",))


@pytest.mark.parametrize("half", ["server", "client"])
def test_a_pattern_that_fits_nothing_names_what_there_is(half):
    settings = FedAvgSettings(share=("body.*", "expert.*"))
    made = {
        "server": lambda: FedAvgServer(Net, settings).begin(KEY),
        "client": lambda: FedAvgClient(built(Net), settings),
    }[half]
    with pytest.raises(UserError, match=r"'expert\.\*'") as caught:
        made()
    assert ", ".join(NAMES) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_are_chosen_in_the_order_of_the_model():
    names = ["a.x", "b", "a.y", "c.x"]
    assert matching(names, ["c.*", "a.*"]) == ["a.x", "a.y", "c.x"]
    assert matching(names, ["*"]) == names
    assert matching(names, []) == names
    with pytest.raises(UserError, match=r"'A\.x'"):
        matching(names, ["A.x"])  # not by the rules of a file system
    with pytest.raises(UserError, match="x0, x1, x2, x3, x4, x5 and 4 more"):
        matching([f"x{n}" for n in range(10)], ["y"])


@each_method
def test_uploads_depend_on_what_they_declare(name):
    data = split(SOME)
    server, client, _ = halves(name, Normed, **ADAM, share=("body.*",))
    made = run(server, client, data, 2)
    weights = made.state.weights
    cloud = {n: torch.stack([v] * len(data)) for n, v in weights.items()}
    down = GlobalModel(weights)
    update = CloudModel(cloud, torch.ones(len(data)).double()) if name == "fedamp" else down
    boundary_holds(client, {"update": update, "evaluate": down}, made.private(data.ids), data)
    given = OwnStart(made.state.own)
    _, after = client.receive(given, made.private(data.ids), data, SECRET.fold(data.ids))
    for name, value in after.own.items():
        assert value.is_contiguous()
        assert value.untyped_storage().data_ptr() != given.own[name].untyped_storage().data_ptr()


def driven(server, exchange, rounds):
    """Whole rounds by the server's own asks, and what they measured."""
    state, ledger, found = server.begin(KEY), Ledger(), []
    for number in range(rounds + 1):
        journal = Journal()
        cohort = ExchangeCohort(exchange, exchange.present(0), (0, number), ledger, journal)
        key = KEY.fold("round", number)
        if number:
            state = server.round(state, cohort, key)
        else:
            state = server.start_block(state, 0, cohort, key)
        assert not journal.refused
        found.append(journal.scalars)
    return state, found, ledger.rows()


@pytest.mark.parametrize("name", OWN)
def test_processes_of_their_own_give_the_same_bits(name, tmp_path):
    """All that a server asks for is what its clients answer, by name, behind bytes."""
    share = {} if name == "local" else {"share": ("body.*", "parts.*")}
    server, client, _ = halves(name, Both, **ADAM, **share)
    data = split([5, 0, 4])
    shards = each_alone(data.ids)
    inside = InShards(client, {0: data}, SECRET.fold, shards=shards)
    outside = Hosts(make_folders(tmp_path, {0: data}, SECRET, shards), client)
    (one, scalars, rows), (other, *more) = (
        driven(server, exchange, 2) for exchange in (inside, outside)
    )
    assert bits(other) == bits(one)
    assert more == [scalars, rows]
    assert "eval/personal_accuracy" in scalars[-1]
    for host, shard in zip(outside.hosts, shards, strict=True):
        kept = ClientHost(host.folder, client).exchange.store
        assert bits(kept.take(shard)) == bits(inside.store.take(shard))


@each_method
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(name, tmp_path):
    def new_run():
        options = ADAM | {"rounds": 3, "fraction": 0.7, "share": ("body.*", "parts.*")}
        server, client, _ = halves(name, Both, **options)
        return FederatedRun(Federation(server, client, [split(SOME)], seed=3))

    whole, begun = new_run(), new_run()
    while not whole.finished:
        whole.advance()
    for _ in range(2):
        begun.advance()
    save(begun.to_plain(), tmp_path / "two.ckpt")
    later = new_run()
    later.load_plain(load(tmp_path / "two.ckpt"))
    while not later.finished:
        later.advance()
    assert bits(later.to_plain()) == bits(whole.to_plain())
    assert later.history == whole.history
    assert later.ledger.rows() == whole.ledger.rows()
    kept = later.store.take(torch.arange(len(SOME)))
    assert list(kept.own) == HEAD
    assert int(kept.optimizer.steps.max()) > 0
    assert int(kept.statistics["parts.0.num_batches_tracked"].max()) > 0


def test_a_checkpoint_of_another_part_is_refused():
    def new_run(share):
        server, client, _ = halves("fedavg", Net, **ADAM, share=share)
        return FederatedRun(Federation(server, client, [split(SOME)]))

    begun = new_run(("body.*",))
    begun.advance()
    with pytest.raises(UserError, match="does not fit this run"):
        new_run(("head.*",)).load_plain(begun.to_plain())
