"""A federated method of a caller's own is trained and checked as those that are there."""

from dataclasses import dataclass

import pytest
import torch
from tests.core.front.lit_modules import Conv, Lit, datasets
from torch import nn

import coterie
from coterie.core.front import method_settings
from coterie.core.front.federate import federate
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.scaffold import ScaffoldClient, ScaffoldServer, ScaffoldSettings
from coterie.core.training.trainer import fit


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setattr(method_settings, "_named", {})


class Pulled:
    """FedProx, written again."""

    @dataclass(frozen=True)
    class Settings(FedAvgSettings):
        mu: float = 0.1

    class Client(FedAvgClient):
        @property
        def pull(self):
            return lambda own, sent: {n: self.settings.mu * (own[n] - sent[n]) for n in own}

    @staticmethod
    def check(settings, lengths):
        if settings.mu > len(lengths):
            raise coterie.UserError(f"mu is {settings.mu:g}: choose at most {len(lengths)}")


class Half:
    """FedAvg that goes half of the way"""

    class Server(FedAvgServer):
        def moved(self, weights, total):
            mean = super().moved(weights, total)
            return {name: (w + mean[name]) / 2 for name, w in weights.items()}


def model(method, module=Lit, rounds=2, **given):
    made = federate(module(), datasets(), method, rounds=rounds, epochs=2, batch_size=4, **given)
    fit(made.run)
    return dict(made.server_model().named_parameters())


def assert_same(one, other):
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize("module", [Lit, Conv], ids=["mlp", "normed cnn"])
def test_a_class_is_a_method(module):
    wanted = model("fedprox", module, mu=0.7)
    assert_same(model(Pulled, module, mu=0.7), wanted)
    coterie.method("pulled")(Pulled)
    assert_same(model("Pulled", module, mu=0.7), wanted)
    assert_same(model(Pulled.Settings(mu=0.7, rounds=2, epochs=2, batch_size=4), module), wanted)
    other = model("pulled", module)
    assert any(
        float((value - wanted[name]).detach().abs().max()) > 1e-5 for name, value in other.items()
    )


def test_a_server_alone_is_a_method():
    start = dict(Lit().named_parameters())
    whole = model("fedavg", rounds=1)
    for name, value in model(Half, rounds=1).items():
        torch.testing.assert_close(value, (start[name] + whole[name]) / 2, rtol=0, atol=1e-6)


def test_halves_of_other_methods_may_be_taken():
    kind = type(
        "Mine",
        (),
        {"Client": ScaffoldClient, "Server": ScaffoldServer, "Settings": ScaffoldSettings},
    )
    assert_same(model(kind, lr_g=0.5), model("scaffold", lr_g=0.5))
    with pytest.raises(coterie.UserError, match="batch normalisation"):
        model(kind, Conv)


def test_methods_are_listed():
    assert coterie.method("half-way")(Half) is Half
    coterie.method("pulled")(Pulled)
    assert "half-way  FedAvg that goes half of the way" in repr(coterie.methods)
    assert coterie.methods["pulled"].about == "FedProx, written again"
    assert coterie.methods.Pulled is Pulled.Settings
    assert "fedprox" in coterie.methods


def test_checks_are_those_of_all_methods():
    for given, words in (
        ({"lr": -1}, "'lr' must be above 0"),
        ({"nu": 1}, "setting 'nu' of Pulled is unknown: known: .*lr, mu, "),
        ({"mu": "x"}, "mu='x' is a str: give float"),
        ({"mu": 4.0}, "mu is 4: choose at most 3"),
        ({"optimizer": "adam"}, "optimizer is adam by the settings and sgd by conf"),
    ):
        with pytest.raises(coterie.UserError, match=words):
            federate(Lit(), datasets(), Pulled, **given)


def test_a_name_is_taken_once():
    coterie.method("mine")(Pulled)
    coterie.method("mine")(Pulled)  # a cell of a notebook that is run again
    with pytest.raises(coterie.UserError, match="'mine' is the method Pulled already: choose"):
        coterie.method("MINE")(Half)
    for name in ("scaffold", "Dap_FL", "fedrod"):
        with pytest.raises(coterie.UserError, match="is a method that there is already"):
            coterie.method(name)
    with pytest.raises(coterie.UserError, match=r"write @coterie.method\(\"mine\"\), not <class"):
        coterie.method(Half)
    with pytest.raises(coterie.UserError, match="method 'mien' is unknown: did you mean 'mine'"):
        federate(Lit(), datasets(), "mien")


def test_what_is_no_method_is_one_line():
    def made(**parts):
        return type("Odd", (), parts)

    class Loose(FedAvgSettings):
        mu: float = 0.1

    for kind, words in (
        (made(), "Odd has neither a class Client nor a class Server"),
        (made(Client=nn.Linear), "Client of Odd must be a class made from ModelClient, and Linear"),
        (
            made(Server=FedAvgClient),
            "Server of Odd must be a class made from ModelServer, and Fed",
        ),
        (made(Client=FedAvgClient, Settings=Loose), r"Odd must be a frozen dataclass: write @data"),
        (made(Client=FedAvgClient, Settings={}), "Settings of Odd must be a class .*a dict is not"),
        (FedAvgClient, "FedAvgClient has neither a class Client"),
        (Lit(), "method is a Lit: give a name"),
    ):
        with pytest.raises(coterie.UserError, match=words):
            federate(Lit(), datasets(), kind)
