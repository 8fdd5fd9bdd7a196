"""Batch normalisation and torch's dropout: equal to one `nn.Module` a client, by itself."""

import re
from functools import partial

import pytest
import torch
from tests.core.methods.labelled_clients import (
    CLASSES,
    KEY,
    SECRET,
    WIDTH,
    Net,
    Run,
    boundary_holds,
    built,
    close,
    labelled,
    run,
    samples_of,
    split,
)
from tests.core.methods.mixing_modules import Both, Centred, Counting, Dropping, Normed
from tests.core.methods.plain_federation import (
    FEDERATED,
    FIRST,
    OWN,
    Learner,
    Plain,
    central,
    halves,
    holds,
    statistics,
    stored_backwards,
)
from tests.hosted import bits, same_both_ways
from torch import nn

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.data.samples.split_samples import pooled
from coterie.core.errors import UserError
from coterie.core.federation import chunks
from coterie.core.federation.federation import Federation
from coterie.core.local_training.alone import statistics_of, trained_alone
from coterie.core.local_training.losses import MethodOf
from coterie.core.methods.dap_fl import DapFLClient, DapFLSettings
from coterie.core.methods.fedala import FedALAClient, FedALASettings
from coterie.core.methods.fedamp import CloudModel
from coterie.core.methods.feddyn import FedDynClient
from coterie.core.methods.fedrecon import FedReconClient, FedReconSettings
from coterie.core.methods.fedrod import FedRODClient, FedRODSettings
from coterie.core.methods.kit.evaluation import Evaluator
from coterie.core.methods.kit.model_messages import GlobalModel
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.methods.pfedme import PFedMeClient
from coterie.core.methods.scaffold import ScaffoldClient
from coterie.core.methods.settings.any_module import (
    FedDynSettings,
    PFedMeSettings,
    ScaffoldSettings,
)
from coterie.core.models.classifier import Classifier
from coterie.core.protocol.messages import Aligned
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.tensors.saved import load, save

LENGTHS = [5, 0, 9, 4, 2, 7]  # batches of 4: a last one of 1 sample, none, of 1, whole, short, of 3
GENERAL = {"epochs": 2, "batch_size": 4, "lr": 0.1, "weight_decay": 0.01, "clip": 0.8}
ADAM = GENERAL | {"optimizer": "adam", "lr": 0.02}
REFUSING = {
    "scaffold": (ScaffoldClient, ScaffoldSettings),
    "feddyn": (FedDynClient, FedDynSettings),
    "pfedme": (PFedMeClient, PFedMeSettings),
    "fedala": (FedALAClient, FedALASettings),
    "fedrod": (FedRODClient, FedRODSettings),
    "fedrecon": (FedReconClient, FedReconSettings),
    "dap-fl": (DapFLClient, DapFLSettings),
}
each_method = pytest.mark.parametrize("name", OWN)


def shown(journal, names):
    return {name: journal.scalars[name] for name in names}


@pytest.mark.parametrize(
    ("name", "build"),
    [
        *((name, Both) for name in OWN),
        *((name, build) for name in ("fedavg", "ditto") for build in (Normed, Counting)),
    ],
)
def test_equals_a_module_of_its_own_for_each_client(name, build):
    data = split(LENGTHS)
    server, client, settings = halves(name, build, **(ADAM if build is Both else GENERAL))
    made = run(server, client, data, 2)
    plain = Plain(name, build, data, settings, at_least=2, by_place=True).rounds(2)
    holds(made, plain)
    who = ("personal",) if name == "local" else ("personal", "global")
    for model in who:
        for prefix, part in (("eval", "valid"), ("test", "test")):
            for measure, method in (("loss", "loss"), ("accuracy", "correct")):
                found = made.journals[-1].scalars[f"{prefix}/{model}_{measure}"]
                expected = plain.measured(model, part, method)
                assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


@each_method
def test_dropout_draws_as_a_loop_that_is_seeded_step_by_step(name):
    """Clients of one sample and batches of one are allowed: dropout mixes no samples."""
    data = split([5, 1, 0, 9])
    server, client, settings = halves(name, Dropping, **GENERAL | {"batch_size": 2})
    made = run(server, client, data, 2)
    holds(made, Plain(name, Dropping, data, settings, by_place=True).rounds(2))


@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("build", [Normed, Both])
def test_central_training_equals_one_module(build, batch_size):
    data, options = split(LENGTHS), ADAM | {"batch_size": batch_size}
    held = ServerSamples(labelled([15], "server").samples, labelled([9], "reported").samples)
    server, client, settings = central(build, data.train, held, **options)
    made = run(server, client, data, 2)
    learner = Learner(built(build), settings, settings.lr)
    for number in (1, 2):
        everything = pooled(data.train)
        key = KEY.fold("round", number).fold("central").fold(everything.ids)
        batches = MiniBatches(everything, 2, batch_size, key, at_least=2, by_place=True)
        steps = (batches(step, FIRST) for step in range(int(batches.steps[0])))
        learner.train([{n: v[0] for n, v in batch.items()} for batch in steps], key)
    close(made.state.weights, learner.weights())
    close(made.state.statistics, statistics(learner.module))
    module = learner.module.eval()
    with torch.no_grad():
        on_server = module.loss(held.test).item()
        right = [module.correct(samples_of(data.test, c)).double().mean() for c in range(6)]
    scalars = made.journals[-1].scalars
    assert scalars["test/server_loss"] == pytest.approx(on_server, rel=1e-12)
    assert scalars["test/global_accuracy"] == pytest.approx(float(sum(right)) / 6, rel=1e-12)
    assert ("evaluate", "down", "statistics.parts.0.running_mean") in made.ledger.totals


@each_method
def test_chunks_order_and_torchs_generator_make_no_difference(name):
    """The same bits, whatever is asked with whom, and whoever drew before."""
    data, found = split(LENGTHS), []
    for turn, chunk in enumerate((1, None, "backwards")):
        server, client, _ = halves(name, Both, **GENERAL)
        play = stored_backwards if chunk == "backwards" else partial(run, chunk=chunk)
        with KEY.fold("noise", turn).torch_rng():
            before = torch.get_rng_state()
            kept = play(server, client, data, 1).private(data.ids)
            assert torch.equal(torch.get_rng_state(), before)
        found.append(bits(kept))
        assert found[-1] == found[0], chunk


def test_a_chunk_is_as_large_as_what_its_clients_keep_and_send(monkeypatch):
    """Small clients answer together; where memory holds two, two at most do, in an even number."""
    server, client, _ = halves("fedavg", Both, **ADAM)
    data, calls, update = split([5, 7, 9, 4, 6, 8]), [], type(client).update

    def noted(self, down, mine, part, key):
        up, new = update(self, down, mine, part, key)
        calls.append((len(part), sum(leaf.nbytes for _, leaf in tree.tensors([mine, new, up]))))
        return up, new

    monkeypatch.setattr(type(client), "update", noted)
    run(server, client, data, 1)
    ((count, held),) = calls
    estimate = client.footprint(data, None)
    assert count == 6
    assert held <= int(estimate.sum()) <= 3 * held
    calls.clear()
    monkeypatch.setattr(chunks, "WORKING_MEMORY", 2 * int(estimate.max()))
    monkeypatch.setattr(chunks, "_AT_LEAST", 1)
    run(server, client, data, 1)
    assert [count for count, _ in calls] == [1, 1, 2, 2]


def asks(name, server):
    weights = server.begin(KEY).weights
    down = GlobalModel(weights)
    if name == "fedamp":
        ids = torch.tensor([0, 1, 2])
        factor = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
        cloud = {n: v * factor.reshape(-1, *[1] * v.dim()) for n, v in weights.items()}
        down = Aligned(ids, CloudModel(cloud, 0.5 * factor))
    return [("update", down), ("update", down), ("evaluate", GlobalModel(weights))]


@pytest.mark.parametrize("name", FEDERATED)
def test_a_process_of_its_own_answers_the_same_bits(name, tmp_path):
    server, client, _ = halves(name, Both, **ADAM)
    same_both_ways(tmp_path, client, split([5, 0, 4]), asks(name, server), SECRET)


@pytest.mark.parametrize("name", FEDERATED)
def test_statistics_stay_with_their_client(name):
    """They are in no upload, and what is uploaded depends on what it declares."""
    data = split(LENGTHS)
    server, client, _ = halves(name, Normed, **ADAM)
    made = run(server, client, data, 2)
    up = [field for _, direction, field in made.ledger.totals if direction == "up"]
    assert not [field for field in up if "running" in field or "num_batches" in field]
    assert not [name for name in made.state.weights if name in statistics_of(built(Normed))]
    mine = made.private(data.ids)
    cloud = {n: torch.stack([v] * 6) for n, v in made.state.weights.items()}
    down = GlobalModel(made.state.weights)
    update = CloudModel(cloud, torch.ones(6).double()) if name == "fedamp" else down
    boundary_holds(client, {"update": update, "evaluate": down}, mine, data)


@each_method
def test_the_module_given_stays_as_it_is(name):
    server, client, _ = halves(name, Both, **ADAM)
    client.module.eval()
    before = {n: v.clone() for n, v in client.module.state_dict().items()}
    drawn = {n: v.clone() for n, v in server.module.state_dict().items()}
    run(server, client, split([5, 0, 4]), 1)
    assert not client.module.training
    for module, old in ((client.module, before), (server.module, drawn)):
        for path, value in module.state_dict().items():
            assert torch.equal(value, old[path]), path


@pytest.mark.parametrize("name", ["local", "central"])
def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(name, tmp_path):
    """The bounds; federated methods are in test_share.py."""
    data = split([5, 0, 4])

    def new_run():
        if name == "central":
            server, client, _ = central(Both, data.train, **ADAM, rounds=3)
        else:
            server, client, _ = halves(name, Both, **ADAM, rounds=3)
        return FederatedRun(Federation(server, client, [data], seed=3))

    whole, begun, later = new_run(), new_run(), new_run()
    while not whole.finished:
        whole.advance()
    begun.advance()
    save(begun.to_plain(), tmp_path / "one.ckpt")
    later.load_plain(load(tmp_path / "one.ckpt"))
    while not later.finished:
        later.advance()
    assert bits(later.to_plain()) == bits(whole.to_plain())
    assert later.history == whole.history


def with_head(*parts):
    body = nn.Sequential(nn.Linear(WIDTH, 4), *parts, nn.Tanh())
    return Classifier(body, nn.Linear(4, CLASSES))


@pytest.mark.parametrize("name", REFUSING)
@pytest.mark.parametrize(
    ("part", "why"),
    [
        (nn.BatchNorm1d(4), "'body.1' is batch normalisation"),
        (nn.Dropout(0.5), "dropout draws for all clients at once"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "'body.1' is batch normalisation"),
    ],
    ids=["norm", "dropout", "statistics"],
)
def test_other_methods_refuse_in_one_line(name, part, why):
    client, settings = REFUSING[name]
    client(with_head(), settings())
    with pytest.raises(UserError, match=re.escape(why)) as caught:
        client(with_head(part), settings())
    assert "fedavg, fedprox, ditto, fedamp, local, central" in str(caught.value)
    assert "\n" not in str(caught.value)


@each_method
def test_a_single_sample_has_no_variance(name):
    server, client, _ = halves(name, Normed, **GENERAL)
    with pytest.raises(UserError, match=r"^client 12 has a single training sample") as caught:
        run(server, client, split([4, 1, 3], ids=[7, 12, 13]), 1)
    assert "\n" not in str(caught.value)
    server, client, _ = halves(name, Normed, **GENERAL | {"batch_size": 1})
    with pytest.raises(UserError, match=r"^batch normalisation needs batches of 2"):
        run(server, client, split([4, 3]), 1)


@pytest.mark.parametrize("name", FEDERATED)
def test_a_server_without_statistics_measures_no_model_on_its_own_samples(name):
    held = ServerSamples(labelled([9], "server").samples)
    normed, dropping = (
        run(*halves(name, build, held, **GENERAL)[:2], split([4, 5]), 1).journals[0].scalars
        for build in (Normed, Dropping)
    )
    assert not [key for key in normed if "server" in key]
    assert normed["eval/accuracy"] == normed["eval/personal_accuracy"]
    assert "eval/server_loss" in dropping


def test_one_sample_to_measure_on_is_enough():
    data = split([4, 3])
    for part in (data.valid, data.test):
        assert part.lengths.tolist() == [6, 5]
    few = type(data)(data.train, labelled([1, 0], "valid"), labelled([0, 1], "test"))
    server, client, settings = halves("fedavg", Normed, **GENERAL)
    made = run(server, client, few, 1)
    plain = Plain("fedavg", Normed, few, settings, at_least=2, by_place=True).rounds(1)
    for prefix, part in (("eval", "valid"), ("test", "test")):
        found = made.journals[-1].scalars[f"{prefix}/personal_loss"]
        assert found == pytest.approx(plain.measured("personal", part, "loss"), rel=1e-12)


def test_no_client_at_all_is_measured_as_nothing():
    module = built(Normed)
    params = {n: v[None].expand(0, *v.shape) for n, v in module.state_dict().items()}
    nobody = labelled([3]).take(torch.empty(0, dtype=torch.int64))
    assert Evaluator(module).of_clients(params, nobody).loss.shape == (0,)


def test_a_broken_client_keeps_its_old_statistics():
    data, made = split(LENGTHS), Run(None)
    data.train.samples["x"][data.train.offsets[2]] = torch.nan
    server, client, _ = halves("fedavg", Normed, **GENERAL)
    made = run(server, client, data, 1)
    assert [who for _, who, _ in made.journals[0].refused] == [2]
    kept = made.private([2, 3]).statistics
    assert kept["parts.0.num_batches_tracked"].tolist() == [0, 2]
    assert not kept["parts.0.running_mean"][0].any()
    assert kept["parts.0.running_mean"][1].all()


def test_what_a_call_does_not_name_is_the_modules_own():
    """Also after a call that named it."""
    module, data = built(Normed), labelled([6])
    loss = MethodOf(module, "loss", training=False)
    with torch.no_grad():
        own = module.eval().loss(data.samples)
        assert torch.equal(loss({}, data.samples), own)
        other = {name: value + 1 for name, value in module.state_dict().items()}
        assert not torch.equal(loss(other, data.samples), own)
        assert torch.equal(loss({}, data.samples), own)


def test_one_tensor_in_two_places_is_given_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def loss(self, batch):
            return self.second(self.first(batch["x"])).square().mean()

    module, x = built(Tied), KEY.normal(4, 3)
    weight = torch.eye(3)
    found = MethodOf(module, "loss", training=True)({"first.weight": weight}, {"x": x})
    expected = (x + module.first.bias + module.second.bias).square().mean()
    torch.testing.assert_close(found, expected)


def test_constants_and_what_is_seen_as_alone():
    module = Centred()
    assert list(statistics_of(module)) == ["running_mean"]
    assert [trained_alone(one) for one in (module, built(Net), nn.Dropout(0.1))] == [
        True,
        False,
        True,
    ]


def test_training_steps_that_no_client_makes_leave_statistics_alone():
    data = SampleData.from_clients([samples_of(labelled([0, 4]), 1), samples_of(labelled([0]), 0)])
    server, client, _ = halves("fedavg", Normed, **GENERAL)
    others = [labelled([2, 2], part) for part in ("valid", "test")]
    made = run(server, client, type(split([1]))(data, *others), 2)
    assert made.private([0, 1]).statistics["parts.0.num_batches_tracked"].tolist() == [4, 0]
