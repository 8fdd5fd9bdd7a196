"""An encoder in two halves: the numbers of the whole, and what crosses for the catalogue."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from coterie.core.run.driver import FederatedRun
from coterie.core.settings.sections import EngineSettings
from coterie.llm.backbone_settings import LoraSettings, ModelSettings, SplitSettings
from coterie.llm.experiment import Experiment
from coterie.llm.halves import cut_backbone, make_middle
from coterie.llm.settings import FederatedDataSettings, Settings, TrainSettings
from coterie.llm.split.remote.server import MiddleServer
from coterie.llm.split.remote.tokens import make_secret
from coterie.llm.split.sessions import Limits

DATA = FederatedDataSettings(clients=3, shots=60)


def settings(model, top, k=None, method="pplr", **more):
    return Settings(
        method=method,
        rounds=2,
        model=ModelSettings(name="encoder", path=model, context=16),
        lora=LoraSettings(rank=2, dropout=0.0, top=top),
        train=TrainSettings(lr=0.01),
        split=SplitSettings(k=k, **more),
        engine=EngineSettings(dtype="float64"),
        data=DATA,
    )


def finished(chosen):
    experiment = Experiment(chosen)
    run = FederatedRun(experiment.federation())
    while not run.finished:
        run.advance()
    return experiment, run


MEASURED = ("fed/loss", "eval/", "start/", "test/", "pplr/")


@pytest.mark.long
@pytest.mark.parametrize("method", ["pplr", "fedavg", "fedprox"])
@pytest.mark.parametrize("top", [1, 2, 3])
def test_the_split_run_is_the_whole_one(sample_encoder, top, method):
    whole, split = (finished(settings(sample_encoder, top, k, method))[1] for k in (None, 2))
    for row, other in zip(whole.history, split.history, strict=True):
        names = [name for name in row if name.startswith(MEASURED)]
        assert {"fed/loss", "eval/recall@10"} <= set(names)
        for name in names:
            assert other[name] == pytest.approx(row[name], rel=0, abs=1e-12), name
    assert whole.history[0]["fed/loss"] != whole.history[1]["fed/loss"]
    assert split.results == pytest.approx(whole.results, rel=0, abs=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("top", [1, 3])
def test_so_it_is_over_grpc(sample_encoder, top, tmp_path):
    """With a middle that is trained, and one that is not; the catalogue crosses as here."""
    held = Experiment(settings(sample_encoder, top, 2))
    parts = cut_backbone(held.backbone, 2, held.settings)
    middle = make_middle(parts, held.settings, Limits())
    secret = tmp_path / "secret"
    server = MiddleServer(middle, parts.model, make_secret(secret), tmp_path / "kept")
    server.start()
    try:
        there = settings(sample_encoder, top, 2, server=server.address, secret=str(secret))
        _, apart = finished(there)
    finally:
        server.stop()
    (_, whole), (_, here) = (finished(settings(sample_encoder, top, k)) for k in (None, 2))
    assert apart.results == pytest.approx(whole.results, rel=0, abs=1e-12)
    assert apart.results == here.results
    for row, other in zip(whole.history, apart.history, strict=True):
        assert other["fed/loss"] == pytest.approx(row["fed/loss"], rel=0, abs=1e-12)
    assert activations(apart) == activations(here) != Counter()


def activations(run):
    """Bytes of activations that crossed, by step and direction."""
    found = Counter()
    for row in run.ledger.rows():
        if row["field"] == "activations":
            found[row["step"], row["direction"]] += row["bytes"]
    return found


def crossed(chosen):
    """Bytes of activations up in each round, by step; and the experiment."""
    experiment = Experiment(chosen)
    run, found, before = FederatedRun(experiment.federation()), [], Counter()
    while not run.finished:
        run.advance()
        now = Counter()
        for row in run.ledger.rows():
            if row["field"] == "activations" and row["direction"] == "up":
                now[row["step"]] += row["bytes"]
        found.append(now - before)
        before = now
    return experiment, found


def test_behind_a_frozen_middle_the_catalogue_crosses_once_a_client(sample_encoder):
    experiment, (first, second) = crossed(settings(sample_encoder, 1, 2))
    size = experiment.backbone._tokens.values.numel() * experiment.backbone.hidden * 8
    assert 3 * size <= first["evaluate"] < 4 * size  # with padding
    assert set(first) == {"evaluate"}
    assert not second


def test_behind_a_trained_middle_it_crosses_once_a_row(sample_encoder):
    """What a validation was made with is what the next training begins with."""
    experiment, (first, second) = crossed(settings(sample_encoder, 3, 2))
    size = experiment.backbone._tokens.values.numel() * experiment.backbone.hidden * 8
    assert 2 * 3 * size <= first["evaluate"] < 2 * 4 * size  # of round 0, of round 1
    assert second["evaluate"] * 2 == first["evaluate"]
    data = experiment.clients.train
    examples = sum(len(part.history.values) + len(part) for part in data)
    longest = int(experiment.backbone._tokens.lengths.max())
    for each in (first, second):  # the items of batches alone
        assert 0 < each["update"] <= examples * longest * experiment.backbone.hidden * 8


def test_items_are_those_of_the_middle_in_use(sample_encoder):
    """The client's own row is the same; what the server holds for it is another."""
    experiment = Experiment(settings(sample_encoder, 3, 2))
    federation = experiment.federation()
    client, layers = federation.client, federation.server.halves.layers
    kept, found = layers.begin(), []
    for scale in (0.0, 1.0, 0.0):
        rows = kept.part.rows + scale * torch.arange(kept.part.rows.shape[1])
        layers.use(replace(kept, part=replace(kept.part, rows=rows)))
        with client.channel.session(0, training=False):
            client.load(client.start)
            found.append(client.backbone.catalogue().clone())
    assert torch.equal(found[0], found[2])
    assert not torch.allclose(found[0], found[1])


def test_dropout_does_not_depend_on_what_is_remembered(sample_encoder):
    """A run that is resumed has no catalogue: its first training makes one, and drops the same."""
    chosen = settings(sample_encoder, 3, 2)
    chosen = replace(chosen, lora=replace(chosen.lora, dropout=0.3))
    whole = FederatedRun(Experiment(chosen).federation())
    whole.advance()
    halfway = whole.to_plain()
    whole.advance()
    later = FederatedRun(Experiment(chosen).federation())
    later.load_plain(halfway)
    later.advance()
    assert later.history[1]["fed/loss"] == whole.history[1]["fed/loss"]
    assert torch.equal(later.server_state.rows, whole.server_state.rows)
