"""All methods run on a LightningModule, and give trained modules back."""

import lightning
import pytest
import torch
from tests.core.front.lit_modules import SIZES, Conv, FromDict, Lit, datasets, dicts, samples
from tests.core.front.plain_loop import QUIET
from torch import nn
from torch.utils.data import TensorDataset

from coterie.core.errors import UserError
from coterie.core.front.federate import federate
from coterie.core.methods.registry import METHODS
from coterie.core.methods.scaffold import ScaffoldSettings
from coterie.core.methods.settings.any_module import FedProxSettings
from coterie.core.models.classifier import Classifier
from coterie.core.training.trainer import fit

HEADED = ("fed-rod", "fedrecon")
ALONE = ("fedavg", "fedprox", "ditto", "fedamp", "local", "central")


def headed():
    with torch.random.fork_rng(devices=[]):
        body = nn.Sequential(nn.Linear(3, 6), nn.Tanh())
        return Classifier(body, nn.Linear(6, 4))


def made(method, **options):
    given = {"rounds": 2, "epochs": 1, "batch_size": 4, "lr": 0.05, "test": 0.3, **options}
    module, clients = (headed(), dicts()) if method in HEADED else (Lit(), datasets())
    found = federate(module, dict(zip(SIZES, clients, strict=True)), method, **given)
    fit(found.run)
    return found


def loss_of(model, batch):
    model = model.eval()
    if isinstance(model, Classifier):
        return float(model.loss(batch))
    return float(model.loss(model(batch["0"]), batch["1"]))


@pytest.mark.parametrize("method", METHODS)
def test_models_are_those_that_are_measured(method):
    """By what a client's own model loses on its own test samples, measured here."""
    found = made(method)
    results, data = found.run.results, found.run.federation.blocks[0].test
    tests = [data.take(torch.tensor([c])).samples for c in range(3)]
    kind = Classifier if method in HEADED else Lit
    if method != "central":
        own = [found.client_model(name) for name in SIZES]
        assert all(type(model) is kind for model in own)
        losses = [loss_of(model, test) for model, test in zip(own, tests, strict=True)]
        assert results["test/personal_loss"] == pytest.approx(sum(losses) / 3, rel=1e-5)
    if method not in ("local", "fedrecon"):
        model = found.server_model()
        assert type(model) is kind
        losses = [loss_of(model, test) for test in tests]
        assert results["test/global_loss"] == pytest.approx(sum(losses) / 3, rel=1e-5)


def test_to_look_at_models_changes_nothing():
    runs = [made("ditto", rounds=1) for _ in range(2)]
    rows, scalars = runs[0].run.ledger.rows(), dict(runs[0].run.journal.scalars)
    steps = runs[0].client_model("bob").state_dict()
    assert runs[0].run.ledger.rows() == rows
    assert dict(runs[0].run.journal.scalars) == scalars
    assert runs[0].run.results == runs[1].run.results
    assert any(not torch.equal(v, steps[n]) for n, v in runs[0].server_model().state_dict().items())


def test_who_has_no_model_says_so():
    with pytest.raises(UserError, match="no server's model: ask for client_model"):
        made("local").server_model()
    with pytest.raises(UserError, match=r"central training\): ask for server_model"):
        made("central").client_model("bob")
    with pytest.raises(UserError, match=r"keep_models is false\): ask for server_model"):
        made("fedavg", keep_models=False).client_model("bob")
    with pytest.raises(UserError, match="only a part of the model is the server's"):
        made("fedavg", share=["layers.0.*"]).server_model()
    with pytest.raises(UserError, match="fedrecon has no head that is the server's"):
        made("fedrecon").server_model()
    fresh = federate(Lit(), datasets())
    with pytest.raises(UserError, match=r"no round was run; call trainer.fit first"):
        fresh.client_model(0)
    with pytest.raises(UserError, match="there is no client 'bobby': did you mean 'bob'"):
        made("fedavg").client_model("bobby")


def test_a_head_that_the_server_reconstructs_is_in_its_model():
    x, y = samples("bob", seed=2)
    found = made("fedrecon", server_valid={"x": x, "y": y}, server_test={"x": x, "y": y})
    value = float(found.server_model().loss({"x": x, "y": y}))
    assert found.run.results["test/server_loss"] == pytest.approx(value, rel=1e-5)


def test_the_servers_statistics_are_the_mean_of_the_clients():
    found = federate(Conv(), datasets(), rounds=2, lr=0.05)
    fit(found.run)
    name, sizes = "layers.2.running_var", list(SIZES.values())
    own = [found.client_model(c).state_dict()[name] for c in range(3)]
    mean = sum(n * one for n, one in zip(sizes, own, strict=True)) / sum(sizes)
    torch.testing.assert_close(found.server_model().state_dict()[name], mean)
    assert not torch.equal(mean, Conv().state_dict()[name])


def test_what_needs_a_head_says_so():
    words = r"not by that of FromDict: give a .*Classifier\(body, head\).*fedrecon, which takes any"
    with pytest.raises(UserError, match=words):
        federate(FromDict(), dicts(), "fed-rod")
    words = r"named as 'head.\*': it has layers.0.weight.*name the head.*head=\('layers.2.\*',\)"
    with pytest.raises(UserError, match=words):
        federate(FromDict(), dicts(), "fedrecon")
    with pytest.raises(UserError, match="beside its head FromDict has no parameters to train"):
        federate(FromDict(), dicts(), "fedrecon", head="*")


def test_a_head_that_is_named_is_reconstructed_as_that_of_a_classifier():
    """FedRECON on any module, by the pattern of its head's parameters."""
    whole = headed()
    steps = Lit()
    steps.layers = nn.Sequential(*whole.body, whole.head)
    x, y = samples("bob", seed=2)
    given = {"rounds": 2, "batch_size": 4, "lr": 0.05, "test": 0.3, "recon_lr": 0.2}
    one = federate(whole, dicts(), "fedrecon", server_valid={"x": x, "y": y}, **given)
    held = TensorDataset(x, y)
    other = federate(steps, datasets(), "fedrecon", head="layers.2.*", server_valid=held, **given)
    for run in (one.run, other.run):
        fit(run)
    assert other.run.results["test/personal_loss"] == pytest.approx(
        one.run.results["test/personal_loss"], rel=1e-5
    )
    pairs = (
        (one.server_model(), other.server_model()),
        (one.client_model(1), other.client_model(1)),
    )
    for theirs, mine in pairs:
        for first, second in zip(theirs.parameters(), mine.parameters(), strict=True):
            torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    (sent,) = [row for row in other.run.ledger.rows() if row["field"] == "change"]
    assert sent["bytes"] == sent["messages"] * 4 * (3 * 6 + 6)  # of the base alone


@pytest.mark.parametrize("method", [name for name in METHODS if name not in HEADED])
def test_normed_modules_are_trained_or_refused(method):
    if method in ALONE:
        fit(federate(Conv(), datasets(), method, rounds=1, lr=0.05).run)
    else:
        with pytest.raises(UserError, match=r"normalisation.*GroupNorm"):
            federate(Conv(), datasets(), method, rounds=1, lr=0.05)


def test_a_method_by_its_settings_and_by_name_are_one():
    by_name = made("scaffold", lr_g=0.5)
    settings = ScaffoldSettings(lr_g=0.5, batch_size=4)
    by_settings = made(settings, batch_size=None)
    for one, other in zip(
        *(m.server_model().parameters() for m in (by_name, by_settings)), strict=True
    ):
        assert torch.equal(one, other)
    assert made(FedProxSettings(mu=1.0)).run.federation.client.settings.mu == 1.0


@pytest.mark.parametrize("word", ["fedrod", "Fed_ROD", "dap_fl", "DapFL", "SCAFFOLD"])
def test_names_may_be_written_in_any_way(word):
    assert made(word if "rod" not in word.lower() else "scaffold", rounds=1).run.finished


def test_a_run_goes_on_from_a_checkpoint_of_the_trainer(tmp_path):
    whole = federate(Lit(), datasets(), "scaffold", rounds=4)
    lightning.Trainer(max_epochs=-1, **QUIET).fit(whole)
    first = federate(Lit(), datasets(), "scaffold", rounds=4)
    trainer = lightning.Trainer(max_epochs=2, **QUIET)
    trainer.fit(first)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    rest = federate(Lit(), datasets(), "scaffold", rounds=4)
    again = lightning.Trainer(max_epochs=-1, **QUIET)
    again.fit(rest, ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    for one, other in zip(
        rest.server_model().parameters(), whole.server_model().parameters(), strict=True
    ):
        assert torch.equal(one, other)
    others = federate(Lit(), datasets(seed=1), "scaffold", rounds=4)
    with pytest.raises(UserError, match="the data have changed"):
        lightning.Trainer(max_epochs=-1, **QUIET).fit(
            others, ckpt_path=tmp_path / "half.ckpt", weights_only=False
        )
