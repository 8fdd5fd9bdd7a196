"""Losses that cannot be trained are told in one line; what they read is read as a loop reads it."""

import copy
import itertools
import logging
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.core.methods.labelled_clients import KEY, built, labelled, run, samples_of, split
from tests.core.methods.loss_modules import GradientPenalty, Linear, TakesAway
from torch import nn

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.local_training.losses import MethodOf
from coterie.core.local_training.probing import check_layers
from coterie.core.local_training.watching import Unwatchable, reading
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.kit.model_server import ServerSamples
from coterie.core.methods.scaffold import ScaffoldClient, ScaffoldServer
from coterie.core.methods.settings.any_module import ScaffoldSettings
from coterie.core.models.classifier import SoftmaxRegression
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors.keys import Key

LENGTHS = (5, 9, 12)
OFTEN = 18  # rounds: steps are recorded after five


def federation(build, module=None, data=None, workers=1, measured=0, **options):
    given = {"rounds": OFTEN, "evaluate_every": measured, "batch_size": None, "lr": 0.01} | options
    settings = FedAvgSettings(**given)
    client = FedAvgClient(built(build) if module is None else module, settings)
    data = SplitSamples.of(labelled(LENGTHS)) if data is None else data
    chunk = 1 if workers > 1 else None
    server = FedAvgServer(build, settings)
    return FederatedRun(Federation(server, client, [data], chunk=chunk, workers=workers))


def made(change):
    """A module whose loss is what ``change`` makes of the loss and the batch."""

    class Made(Linear):
        def loss(self, batch):
            return change(super().loss(batch), batch)

    return Made


SHAPES = {
    "(1,)": (lambda loss, batch: loss.view(1), r"shape \(1,\)"),
    "(B,)": (lambda loss, batch: loss.expand(len(batch["y"])), r"shape \(5,\)"),
    "(1, 1)": (lambda loss, batch: loss.view(1, 1), r"shape \(1, 1\)"),
    "dict": (lambda loss, batch: {"loss": loss}, "a dict"),
    "tuple": (lambda loss, batch: (loss, batch), "a tuple"),
    "number": (lambda loss, batch: 1.0, "a float"),
    "nothing": (lambda loss, batch: None, "a NoneType"),
    "integers": (lambda loss, batch: loss.long(), "type int64"),
    "complex": (lambda loss, batch: loss + 0j, "type complex128"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [LENGTHS, (5, 5)], ids=["unequal", "equal"])
def test_a_loss_is_one_number(shape, lengths):
    change, words = SHAPES[shape]
    with pytest.raises(UserError, match=words) as caught:
        federation(made(change), data=SplitSamples.of(labelled(lengths))).advance()
    assert "\n" not in str(caught.value)


def test_what_is_right_is_one_truth_value_a_sample():
    class Column(Linear):
        def correct(self, batch):
            return self.scores(batch).argmax(-1, keepdim=True) == batch["y"]

    with pytest.raises(UserError, match=r"Column.correct\(batch\) gives"):
        federation(Column, data=split(), measured=1).advance()


_OWN = np.random.default_rng(0)
_DICE = random.Random(3)
DRAWS = {
    "numpy": lambda loss, batch: loss * np.random.rand(),
    "random": lambda loss, batch: loss * random.random(),
    "torch": lambda loss, batch: loss * torch.rand(()),
    "own generator": lambda loss, batch: loss * _OWN.random(),
    "own dice": lambda loss, batch: loss * _DICE.random(),
    "torch's own": lambda loss, batch: loss * torch.rand((), generator=_TORCH),
    "permutation": lambda loss, batch: loss + 0 * np.random.permutation(3)[0],
}
_TORCH = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("layer", [nn.Identity, nn.Dropout], ids=["stacked", "alone"])
def test_draws_that_no_key_governs_are_told(draw, layer):
    class Drawing(made(DRAWS[draw])):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(self.net, layer())

    if draw == "torch" and layer is nn.Dropout:
        federation(Drawing).advance()  # the client's key seeds it
        return
    started = federation(Drawing, workers=2 if draw.startswith("own") else 1)
    with pytest.raises(UserError, match=r"draw|changes") as caught:
        started.advance()
    assert "\n" not in str(caught.value)


LAYERS = {
    "lazy": (lambda: nn.LazyLinear(3), "LazyLinear without a shape"),
    "lazy norm": (lambda: nn.Sequential(nn.LazyBatchNorm1d()), "'net.0' is a LazyBatchNorm1d"),
    "norm": (lambda: nn.Embedding(4, 2, max_norm=1.0), "'net' has 'max_norm'"),
    "bag": (lambda: nn.EmbeddingBag(4, 2, max_norm=1.0), "'net' has 'max_norm'"),
    "hook": (lambda: hooked(nn.Parameter.register_hook), "'weight' of 'net' has a hook"),
    "hook after": (
        lambda: hooked(nn.Parameter.register_post_accumulate_grad_hook),
        "'weight' of 'net' has a hook",
    ),
    "script": (lambda: torch.jit.script(nn.Linear(2, 3)), "'net' is compiled"),
    "compiled": (lambda: torch.compile(nn.Linear(2, 3), backend="eager"), "'net' is compiled"),
}


def hooked(register):
    layer = nn.Linear(2, 3)
    register(layer.weight, lambda _: None)
    return layer


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_that_cannot_be_trained_are_told_at_construction(kind):
    layer, words = LAYERS[kind]

    class Layered(Linear):
        def __init__(self):
            super().__init__()
            self.net = layer()

    settings = FedAvgSettings()
    with pytest.raises(UserError, match=words) as caught:
        FedAvgClient(Layered(), settings)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=words):
        FedAvgServer(Layered, settings).begin(KEY)


def test_a_lazy_layer_with_a_shape_is_one_as_any():
    layer = nn.LazyLinear(3)
    layer(torch.ones(1, 2))
    check_layers(layer)


def test_a_buffer_that_training_writes_is_told():
    class Moving(Linear):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

        def loss(self, batch):
            value = super().loss(batch)
            self.mean.mul_(0.9).add_(value.detach(), alpha=0.1)
            return value

    with pytest.raises(UserError, match="writes into 'mean'"):
        federation(Moving).advance()


@pytest.mark.parametrize("lengths", [LENGTHS, (5, 5)], ids=["unequal", "equal"])
def test_a_batch_that_is_written_into_is_told(lengths):
    class Halving(Linear):
        def scores(self, batch):
            return super().scores({"x": batch["x"].mul_(0.5)})

    with pytest.raises(UserError, match="writes into 'x' of its batch"):
        federation(Halving, data=SplitSamples.of(labelled(lengths))).advance()


def test_who_draws_nothing_is_tried_without_the_generator_that_other_threads_see(monkeypatch):
    running = federation(Linear)
    monkeypatch.setattr(Key, "torch_rng", None)
    running.advance()


def test_a_loss_may_take_from_the_dict_that_it_is_given():
    loss = MethodOf(TakesAway(), "loss")
    batch = samples_of(labelled(LENGTHS), 0)
    assert loss({}, batch) == loss({}, batch)
    assert set(batch) >= {"x", "y"}


def test_a_loss_of_no_parameter_is_told():
    class Counted(Linear):
        def loss(self, batch):
            return (self.scores(batch).argmax(-1) == batch["y"]).double().mean()

    with pytest.raises(UserError, match=r"Counted\.loss depends on no parameter"):
        federation(Counted).advance()


def test_a_client_whose_loss_depends_on_nothing_is_none_to_judge_by():
    class Skipping(Linear):
        def loss(self, batch):
            return super().loss(batch) if len(batch["y"]) < 10 else torch.zeros(())

    running = federation(Skipping)  # the largest client has 12 samples
    first = {name: value.clone() for name, value in running.server_state.weights.items()}
    running.advance()
    assert not torch.equal(running.server_state.weights["net.weight"], first["net.weight"])


MISTAKES = {
    "a class": (lambda: FedAvgClient(Linear, FedAvgSettings()), r"make one, as Linear\(\)"),
    "a function": (lambda: FedAvgClient(print, FedAvgSettings()), "train a torch.nn.Module, not"),
    "no loss": (
        lambda: FedAvgClient(nn.Linear(1, 1), FedAvgSettings()),
        r"Linear has no method loss\(batch\)",
    ),
    "a module for the server": (
        lambda: FedAvgServer(Linear(), FedAvgSettings()),
        "such as the class Linear, not a module",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_no_module_is_told(mistake):
    make, words = MISTAKES[mistake]
    with pytest.raises(UserError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_module_that_cannot_be_copied_is_told():
    class Locked(Linear):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(UserError, match="Locked cannot be copied"):
        federation(Locked)


class Scheduled:
    """Something that a module holds."""

    def __init__(self):
        self.now, self.steps = [0.1], 0

    def step(self):
        self.steps += 1


SCALE = 0.1


class Config:
    scale = 0.1


def _set_global(module):
    global SCALE
    SCALE = 1.0


def _reads(read):
    class Reading(Linear):
        of_class = 0.1

        def __init__(self):
            super().__init__()
            self.scale, self.current_epoch = 0.1, 0
            self.held = {"weights": [0.1]}
            self.schedule = Scheduled()
            self.part = nn.Sequential(nn.Identity())
            self.part[0].scale = 0.1
            self.array = np.array([0.1])
            self.tensor = torch.tensor(0.1)
            self.register_buffer("constant", torch.tensor(0.1))
            self.closure = _closure()

        def loss(self, batch):
            return super().loss(batch) * read(self)

    return Reading


def _closure():
    box = [0.1]

    def scale():
        return box[0]

    scale.box = box
    return scale


CHANGES = {
    "attribute": (lambda m: m.scale, lambda m: setattr(m, "scale", 1.0)),
    "epoch": (
        lambda m: 1.0 if m.current_epoch >= 20 else 0.1,
        lambda m: setattr(m, "current_epoch", 20),
    ),
    "list in a dict": (
        lambda m: m.held["weights"][0],
        lambda m: m.held["weights"].__setitem__(0, 1.0),
    ),
    "object": (lambda m: m.schedule.now[0], lambda m: m.schedule.now.__setitem__(0, 1.0)),
    "submodule": (lambda m: m.part[0].scale, lambda m: setattr(m.part[0], "scale", 1.0)),
    "class": (lambda m: m.of_class, lambda m: setattr(type(m), "of_class", 1.0)),
    "global": (lambda m: SCALE, _set_global),
    "class beside it": (lambda m: Config.scale, lambda m: setattr(Config, "scale", 1.0)),
    "closure": (lambda m: m.closure(), lambda m: m.closure.box.__setitem__(0, 1.0)),
    "array": (lambda m: float(m.array[0]), lambda m: m.array.fill(1.0)),
    "tensor": (lambda m: m.tensor, lambda m: m.tensor.fill_(1.0)),
    "other tensor": (lambda m: m.tensor, lambda m: setattr(m, "tensor", torch.tensor(1.0))),
    "buffer": (lambda m: m.constant, lambda m: m.constant.fill_(1.0)),
    "method": (lambda m: 0.1, lambda m: setattr(m, "loss", lambda b: Linear.loss(m, b))),
}


@pytest.mark.parametrize(
    ("change", "layer"),
    [
        *((name, nn.Identity) for name in CHANGES if name != "method"),
        *((name, nn.BatchNorm1d) for name in ("attribute", "global", "buffer")),
    ],
)
def test_what_a_callback_changes_has_its_effect(change, layer, monkeypatch):
    monkeypatch.setattr(Config, "scale", 0.1)
    monkeypatch.setitem(globals(), "SCALE", 0.1)
    read, act = CHANGES[change]

    class Build(_reads(read)):
        def __init__(self):
            super().__init__()
            if layer is nn.BatchNorm1d:
                self.net = nn.Sequential(self.net, layer(4).double())

    module = built(Build)
    running = federation(Build, module)
    losses = []
    for number in range(OFTEN):
        if number == 9:
            act(module)
        running.advance()
        losses.append(running.journal.scalars["fed/loss"])
    assert max(losses[:9]) < 0.3 < 0.9 < min(losses[9:])


def test_a_measure_reads_what_a_callback_changes(monkeypatch):
    build = _reads(CHANGES["attribute"][0])
    module = built(build)
    running = federation(build, module, data=split(), measured=1)
    running.advance()
    before = running.journal.scalars["test/global_loss"]
    module.scale = 1.0
    running.advance()
    assert running.journal.scalars["test/global_loss"] > 5 * before


def test_a_loss_that_takes_gradients_is_measured():
    data = split()
    running = federation(GradientPenalty, data=data, measured=1)
    running.advance()
    module = built(GradientPenalty)
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(running.server_state.weights[name])
    right = [float(module.loss(samples_of(data.test, c))) for c in range(len(data))]
    found = running.journal.scalars["test/global_loss"]
    assert found == pytest.approx(sum(right) / len(right), rel=1e-9)


def test_a_loss_that_keeps_a_mean_is_measured_from_where_the_module_stands():
    class Remembering(Linear):
        def __init__(self):
            super().__init__()
            self.mean = torch.zeros(4, dtype=torch.float64)

        def scores(self, batch):
            scores = super().scores(batch)
            self.mean = 0.9 * self.mean + 0.1 * scores.detach().mean(0)
            return scores - self.mean

    data, module = split(), built(Remembering)
    running = federation(Remembering, module, data=data, measured=1)
    running.advance()
    right = []
    for c in range(len(data)):
        one = copy.deepcopy(module)
        with torch.no_grad():
            for name, value in one.named_parameters():
                value.copy_(running.server_state.weights[name])
        right.append(float(one.loss(samples_of(data.test, c)).detach()))
    found = running.journal.scalars["test/global_loss"]
    assert found == pytest.approx(sum(right) / len(right), rel=1e-9)


_CALLS = itertools.count()


def _seen():
    calls = {"n": 0}

    def count():
        calls["n"] += 1
        return calls["n"]

    return count


class Counting(Linear):
    """Raises the weight of its loss by itself, in the ways in which one can count."""

    def __init__(self, way):
        super().__init__()
        self.way, self.calls, self.list, self.held = way, 0, [], Scheduled()
        self.iterator, self.closure = itertools.count(1), _seen()
        self.tensor = torch.tensor(0)

    def count(self):
        if self.way == "attribute":
            self.calls += 1
            return self.calls
        if self.way == "list":
            self.list.append(1)
            return len(self.list)
        if self.way == "object":
            self.held.step()
            return self.held.steps
        if self.way == "iterator":
            return next(self.iterator)
        if self.way == "tensor":
            self.tensor = self.tensor + 1
            return int(self.tensor)
        return self.closure()

    def loss(self, batch):
        return super().loss(batch) * (0.1 if self.count() <= 45 else 1.0)


WAYS = ("attribute", "list", "object", "iterator", "tensor", "closure")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_a_loss_counts_is_counted_as_in_a_loop(way, optimizer):
    """Three clients of unequal sizes, a step each: the 46th call is the first of round 16."""
    rounds, options = 25, {"rounds": 25, "lr": 0.05, "optimizer": optimizer}
    module = built(lambda: Counting(way))
    running = federation(lambda: Counting(way), module, **options)
    first = {name: value.clone() for name, value in running.server_state.weights.items()}
    losses = []
    for _ in range(rounds):
        running.advance()
        losses.append(running.journal.scalars["fed/loss"])
    if optimizer == "adam":
        assert max(losses[:14]) < 0.3 < min(losses[16:])
        return
    looped = built(lambda: Counting(way))
    if way == "closure":  # copies of a module have a function in common, so a trial has counted
        looped.closure(), looped.closure()
    data, weights, right = labelled(LENGTHS), first, []
    for _ in range(rounds):
        total, mean = {n: torch.zeros_like(v) for n, v in weights.items()}, 0.0
        for c, n in enumerate(LENGTHS):
            looped.load_state_dict(weights)
            looped.zero_grad()
            loss = looped.loss(data.take(torch.tensor([c])).samples)
            loss.backward()
            mean += n * float(loss.detach()) / sum(LENGTHS)
            for name, value in looped.named_parameters():
                total[name] += n / sum(LENGTHS) * (value - 0.05 * value.grad).detach()
        weights = total
        right.append(mean)
    assert losses == pytest.approx(right, rel=1e-9)
    torch.testing.assert_close(running.server_state.weights, weights, rtol=1e-9, atol=1e-12)
    if way == "attribute":
        assert module.calls == 3 * rounds


def test_counting_wants_its_clients_in_order():
    with pytest.raises(UserError, match=r"leave 'engine.workers' at 1"):
        federation(lambda: Counting("attribute"), workers=2).advance()
    settings = ScaffoldSettings(rounds=1)
    server = ScaffoldServer(lambda: Counting("list"), settings)
    client = ScaffoldClient(Counting("list"), settings)
    with pytest.raises(UserError, match="changes list, so clients must be trained in their order"):
        run(server, client, split(), 1)


def test_a_slope_is_that_of_the_loss():
    class Weighted(SoftmaxRegression):
        """Inherits a slope of another loss."""

        def __init__(self):
            super().__init__(3, 4)
            self.double()

        def loss(self, batch):
            weight = torch.tensor([1.0, 5.0, 0.2, 3.0], dtype=torch.float64)
            return F.cross_entropy(self(batch["x"]), batch["y"], weight=weight)

    with pytest.raises(UserError, match=r"Weighted\.slope does not give the gradients"):
        federation(Weighted).advance()
    Weighted.slope = None
    federation(Weighted).advance()


def test_a_round_in_which_everybody_is_refused_ends_the_run():
    def without(loss, batch):
        return F.cross_entropy(loss.expand(len(batch["y"]), 4), torch.full_like(batch["y"], -100))

    running = federation(made(without))
    with pytest.raises(
        UserError, match=r"nobody's answer to 'update' counts.*\(3 of 3\)"
    ) as caught:
        running.advance()
    assert "\n" not in str(caught.value)
    assert running.round == 0


def test_one_whose_answer_counts_keeps_the_run_going():
    data = labelled(LENGTHS)
    data.samples["x"][:5] = torch.nan
    running = federation(Linear, data=SplitSamples.of(data))
    running.advance()
    assert [client for _, client, _ in running.journal.refused] == [0]
    assert running.journal.scalars["fed/clients"] == 2


def test_a_round_of_empty_clients_is_no_round_of_refused_ones():
    running = federation(Linear, data=SplitSamples.of(labelled((0, 0))))
    running.advance()
    assert running.round == 1


def test_measured_losses_are_those_of_all_samples_of_a_client():
    """Also where they are measured in parts, and on the server's samples."""

    class Roots(Linear):
        def loss(self, batch):
            return F.mse_loss(self.scores(batch)[:, 0], batch["y"].double()).sqrt()

    many = labelled((1300, 40, 7), "test")
    held = ServerSamples(test=labelled((1100,), "server").samples)
    settings = FedAvgSettings(rounds=1, lr=0.1)
    data = SplitSamples.of(labelled(LENGTHS), test=many)
    server = FedAvgServer(Roots, settings, held)
    found = run(server, FedAvgClient(built(Roots), settings), data, 1)
    module, weights = built(Roots), found.state.weights
    module.load_state_dict(weights)
    with torch.no_grad():
        right = [float(module.loss(many.take(torch.tensor([c])).samples)) for c in range(3)]
        on_server = float(module.loss(held.test))
    scalars = found.journals[-1].scalars
    assert scalars["test/global_loss"] == pytest.approx(sum(right) / 3, rel=1e-9)
    assert scalars["test/server_loss"] == pytest.approx(on_server, rel=1e-9)


def test_a_reading_is_equal_until_something_changes():
    module = built(lambda: Counting("attribute"))
    assert reading(module) == reading(module)
    for change in (
        lambda: module.list.append(0),
        lambda: module.held.step(),
        lambda: next(module.iterator),
        lambda: module.closure(),
        lambda: module.tensor.add_(1),
        lambda: module.train(not module.training),
    ):
        before = reading(module)
        change()
        assert reading(module) != before
    module.generator = (n for n in range(3))
    with pytest.raises(Unwatchable):
        reading(module)
    module.generator = list(range(20_000))
    with pytest.raises(Unwatchable):
        reading(module)


def test_what_is_too_much_to_watch_is_read_anew(caplog):
    """Not recorded, and right."""

    class Big(Linear):
        def __init__(self):
            super().__init__()
            self.numbers = [0.1] * 20_000

        def loss(self, batch):
            return super().loss(batch) * self.numbers[7]

    module = built(Big)
    running, losses = federation(Big, module), []
    with caplog.at_level(logging.WARNING):
        for number in range(OFTEN):
            if number == 9:
                module.numbers[7] = 1.0
            running.advance()
            losses.append(running.journal.scalars["fed/loss"])
    assert max(losses[:9]) < 0.3 < 0.9 < min(losses[9:])


def test_samples_know_what_they_were_taken_from():
    data = SampleData.from_clients([{"x": torch.ones(n)} for n in (2, 3, 1)])
    part = data.take(torch.tensor([2, 0])).take(torch.tensor([1]))
    assert part.whole is data
    assert data.whole is data
    assert "_origin" not in part.__getstate__()
