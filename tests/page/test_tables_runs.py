"""What is kept of a run, what it depends on, the trivial baseline and the stopwatch."""

import json
from dataclasses import replace

import pytest
import torch

from coterie.core.run.driver import FederatedRun
from coterie.core.settings.schema import changed
from coterie.core.tables.result import RunResult
from coterie.core.tables.stopwatch import Stopwatch, one_thread
from coterie.core.tables.study import fingerprint
from coterie.page.experiment import Experiment
from coterie.page.settings import (
    FedProxOptions,
    GameSettings,
    ModelSettings,
    Settings,
    TaskSettings,
    TrainSettings,
)
from coterie.page.tables import times
from coterie.page.tables.study import digest, essential, majority, train


def tiny(method="page", **changes):
    settings = Settings(
        method=method,
        rounds=3,
        data=TaskSettings(clients=4),
        train=TrainSettings(epochs=3, batch_size=30),
    )
    return replace(settings, **changes)


def finished(settings):
    module = FederatedRun(Experiment(settings).federation())
    epochs = []
    while not module.finished:
        module.advance()
        if "page/epochs" in module.journal.clients:
            epochs.append(module.journal.clients["page/epochs"][1])
    return module, epochs


# A run


@pytest.fixture
def keep_denormals():
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("method", ["page", "fedavg", "fed-rod"])
def test_workers_that_flush_denormals_change_no_number(method, keep_denormals):
    """A model so sure that softmax gives probabilities below 1e-38, as after many rounds."""
    found = []
    for flush in (False, True):
        assert torch.set_flush_denormal(flush)
        module = FederatedRun(Experiment(tiny(method)).federation())
        weights = module.server_state.weights
        for value in weights.values():
            value.copy_(40 * torch.randn(value.shape, generator=torch.Generator().manual_seed(3)))
        features = module.federation.server.samples.test["x"]
        chances = (features @ weights["head.weight"].T).softmax(-1)
        assert ((chances > 0) & (chances < 1e-38)).any() != flush
        while not module.finished:
            module.advance()
        found.append((module.history, module.server_state.weights))
    (history, weights), (same, again) = found
    assert repr(history) == repr(same)
    assert all(torch.equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize("method", ["page", "fedavg"])
def test_a_result_is_what_the_run_noted(method, tmp_path):
    settings = tiny(method)
    module, _ = finished(settings)
    train(settings).write(tmp_path / "r.json")
    result = RunResult.read(tmp_path / "r.json")
    assert result.rounds == 3
    assert not result.found["settled"]
    assert (result.chosen_by, result.lower_is_better) == ("eval/accuracy", False)
    for name in module.history[0]:
        assert result.curve(name) == pytest.approx([row[name] for row in module.history])
    both = [(row["eval/server_accuracy"], row["eval/personal_accuracy"]) for row in module.history]
    assert result.curve("eval/accuracy") == pytest.approx([sum(pair) / 2 for pair in both])
    for way in ("up", "down"):
        crossed = sum(
            row["bytes"]
            for row in module.ledger.rows()
            if row["direction"] == way and row["step"] != "evaluate"
        )
        assert result.total(f"cost/{way}_bytes") == crossed > 0
    assert result.total("cost/cpu_seconds") > 0


def test_steps_of_page_are_those_of_the_epochs_that_its_clients_chose():
    settings = tiny(train=TrainSettings(epochs=9, batch_size=30))
    module, epochs = finished(settings)
    batches = (module.federation.blocks[0].lengths + 29) // 30
    expected = [int((chosen * batches).sum()) for chosen in epochs]
    assert train(settings).curve("cost/local_steps") == expected
    full = int(9 * batches.sum())
    assert min(expected) < full  # else nothing was chosen
    assert train(replace(settings, method="fedavg")).curve("cost/local_steps") == [full] * 3


def test_only_some_rounds_and_the_last_are_evaluated():
    settings = tiny("fedavg", train=TrainSettings(epochs=1, batch_size=30, evaluate_every=2))
    result = train(settings)
    assert result.measured == [2, 3]
    assert len(result.curve("test/server_accuracy")) == 3
    assert result.best_round in (2, 3)


def test_a_certificate_is_kept_where_it_is_asked_for():
    quick = replace(
        Settings().certificate, horizon=1, screen_seeds=1, seeds=2, leaders=1, off_path=0, grid=2
    )
    result = train(tiny(rounds=1, certify=True, certificate=quick))
    after, before = (result.found[name] for name in ("certificate", "certificate_before"))
    assert isinstance(after["holds"], bool)
    assert after["leaders"] != before["leaders"]
    json.dumps(result.found)
    assert train(essential(tiny("fedavg", rounds=1, certify=True))).found == {"settled": False}


# What a result depends on


@pytest.mark.parametrize(
    ("method", "change", "matters"),
    [
        ("page", {"game": GameSettings(tune_p=False)}, True),
        ("fedavg", {"game": GameSettings(tune_p=False)}, False),
        ("page", {"reading": "literal"}, True),
        ("ditto", {"reading": "literal"}, False),
        ("fedprox", {"fedprox": FedProxOptions(mu=0.5)}, True),
        ("page", {"fedprox": FedProxOptions(mu=0.5)}, False),
        ("fedavg", {"fedprox": FedProxOptions(mu=0.5)}, False),
        ("fedavg", {"certify": True}, False),
        ("page", {"certify": True}, True),
        ("fedavg", {"train": TrainSettings(lr=1e-4)}, True),
        ("local", {"seed": 1}, True),
        ("local", {"model": ModelSettings("small-cnn")}, True),
    ],
)
def test_the_fingerprint_changes_with_what_the_method_reads(method, change, matters):
    plain = Settings(method=method)
    other = replace(plain, **change)
    found = [fingerprint(essential(settings), "") for settings in (plain, other)]
    assert (found[0] != found[1]) == matters


def test_essential_settings_run_the_same_run():
    for method in ("fedprox", "page"):
        settings = tiny(method, fedprox=FedProxOptions(mu=0.3))
        first, second = (train(s) for s in (settings, essential(settings)))
        assert second.curves.keys() == first.curves.keys()
        assert first.curve("test/server_loss") == second.curve("test/server_loss")


def test_data_that_are_drawn_need_no_digest_and_data_that_are_read_do():
    task = Experiment(tiny()).task
    assert digest(task) == ""
    read = replace(task, name="cifar-100")
    other = replace(read, server_test={n: v.clone() for n, v in read.server_test.items()})
    assert digest(read) == digest(other) != ""
    other.server_test["y"][0] += 1
    assert digest(read) != digest(other)


# The majority class


def test_the_majority_class_is_counted_on_training_samples():
    task = Experiment(tiny()).task
    result = majority(task)
    train_y, test_y = task.clients.train.samples["y"], task.clients.test.samples["y"]
    common = max(range(task.n_classes), key=lambda c: int((train_y == c).sum()))
    own, shared = [], []
    for c in range(4):
        here = train_y[int(task.clients.train.offsets[c]) : int(task.clients.train.offsets[c + 1])]
        test = test_y[int(task.clients.test.offsets[c]) : int(task.clients.test.offsets[c + 1])]
        guess = max(range(task.n_classes), key=lambda k, y=here: int((y == k).sum()))
        own.append(float((test == guess).double().mean()))
        shared.append(float((test == common).double().mean()))
    assert result.best("test/personal_accuracy") == pytest.approx(sum(own) / 4)
    assert result.best("test/global_accuracy") == pytest.approx(sum(shared) / 4)
    server = (task.server_test["y"] == common).double().mean()
    assert result.best("test/server_accuracy") == pytest.approx(float(server))


# Times


class Both:
    """Something to be timed."""

    def outer(self):
        self.inner()
        return "done"

    def inner(self):
        raise NotImplementedError


class Inner(Both):
    """Its inner part does something."""

    def inner(self):
        return None


def test_time_inside_of_another_function_is_taken_off_and_all_is_restored():
    ticks = iter(float(2**n) for n in range(20))
    watch, one = Stopwatch(lambda: next(ticks)), Inner()
    with watch.on([(one, "inner", "a"), (one, "outer", "b"), (Inner, "inner", "class")]):
        assert one.outer() == "done"
    # outer 1, inner 2 to 4, end 8.
    assert dict(watch.seconds) == {"a": 2.0, "b": 5.0}
    assert vars(one) == {}
    assert Inner.inner is not one.inner
    assert Inner().outer() == "done"
    assert dict(watch.seconds) == {"a": 2.0, "b": 5.0}


def test_a_function_that_fails_is_timed_and_restored():
    ticks = iter(range(20))
    watch, one = Stopwatch(lambda: float(next(ticks))), Both()
    with pytest.raises(NotImplementedError), watch.on([(one, "inner", "a"), (one, "outer", "b")]):
        one.outer()
    assert dict(watch.seconds) == {"a": 1.0, "b": 2.0}
    assert vars(one) == {}


@pytest.mark.parametrize("follower", ["best-response", "ddpg"])
def test_the_times_of_a_round_are_of_the_parts_that_run(follower):
    settings = tiny(rounds=4, game=GameSettings(follower=follower), train=TrainSettings(epochs=3))
    found, *more = (times.measure(settings) for _ in range(3))
    shares = {label: times.share(label, found) for label in found if label != times.EVALUATION}
    assert sum(shares.values()) == pytest.approx(100)
    answers = {"ddpg": times.SERVER_AGENT, "best-response": times.BEST_RESPONSE}
    for label in (times.TRAINING, times.CLIENT_AGENTS, times.MEASURING, answers[follower]):
        assert found[label] > 0
    assert found[times.EVALUATION] > 0
    assert (times.BEST_RESPONSE in found) == (follower == "best-response")
    least = {label: min(found[label], *(one[label] for one in more)) for label in found}
    del least[times.REST]  # what a busy machine adds to
    assert least[times.TRAINING] == max(least.values())


def test_fedavg_has_no_agents_to_time():
    found = times.measure(changed(tiny("fedavg", rounds=1), {"engine.workers": 2}))
    assert times.CLIENT_AGENTS not in found
    assert found[times.AGGREGATION] > 0
    assert found[times.TRAINING] > 0  # in this process, whatever the user's own runs do
    note = times.agents_note("x", [{times.TRAINING: 0.9, times.CLIENT_AGENTS: 0.1}])
    assert note == "x: agents and best response together cost 10.00 % of a round, MORE than 5 %."


def test_threads_are_as_before():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
