"""Every method runs from the one set of settings, and each setting reaches its method."""

import math
from dataclasses import fields, replace
from typing import get_args

import pytest
from tests.parsing import parse

from coterie.core.errors import UserError
from coterie.core.methods.registry import METHODS
from coterie.core.methods.settings.fedavg import FedAvgSettings
from coterie.core.registry.papers import find_paper
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.settings.parser import leaves
from coterie.core.training.trainer import fit
from coterie.page.experiment import ACCURACIES, Experiment
from coterie.page.methods import remarks, settings_of
from coterie.page.readings import resolve
from coterie.page.settings import Method, Settings, TaskSettings, TrainSettings
from coterie.page.tasks import OF_TASK

SMALL = Settings(
    rounds=2, data=TaskSettings(clients=4), train=TrainSettings(epochs=2, batch_size=50)
)
LACKING = {"local": {"server_accuracy", "global_accuracy"}, "central": {"personal_accuracy"}}
REMARKS = {
    "dap-fl": ["dap-fl takes dap_fl.weighting (equal) in place of train.weighting"],
    "pfedme": ["pfedme takes pfedme.lr (0.005) in place of train.lr"],
    "fedamp": ["train.weighting has no effect on fedamp"],
    "local": ["train.weighting has no effect on local"],
    "central": [
        "central takes central.epochs (1) in place of train.epochs",
        "train.participation has no effect on central",
        "train.weighting has no effect on central",
        "the server holds all training samples: their upload is not in the ledger",
    ],
}


def ran(settings: Settings) -> tuple[Experiment, FederatedRun]:
    experiment = Experiment(settings)
    module = FederatedRun(experiment.federation())
    fit(module)
    return experiment, module


@pytest.mark.parametrize("method", [name for name in get_args(Method) if name != "fedrecon"])
def test_two_rounds_on_synthetic(method):
    experiment, module = ran(replace(SMALL, method=method))
    assert module.round == 2
    for row in module.history:
        assert all(math.isfinite(value) for value in row.values())
        found = {name for name in ACCURACIES if f"eval/{name}" in row and f"test/{name}" in row}
        assert found == set(ACCURACIES) - LACKING.get(method, set())
    results = experiment.final_metrics(module)
    assert all(0 <= results[f"test/{name}"] <= 1 for name in found)
    table = experiment.client_table(module)
    assert [row["client"] for row in table] == [0, 1, 2, 3]
    assert all(("personal_accuracy" in row) == (method != "central") for row in table)


def test_fedrecon_has_no_body_to_share_on_synthetic():
    with pytest.raises(UserError, match=r"FedRECON shares what is no head, .* choose another"):
        Experiment(replace(SMALL, method="fedrecon")).federation()


def test_all_methods_are_there():
    assert {"page", *METHODS} == set(get_args(Method))


@pytest.mark.parametrize("method", METHODS)
def test_settings_reach_the_method(method):
    train = TrainSettings(3, 7, 0.03, 1e-3, 2.0, 0.5, "equal", 4)
    chosen = settings_of(replace(SMALL, method=method, train=train))
    common = {f.name: getattr(train, f.name) for f in fields(train)}
    common["fraction"] = common.pop("participation")
    section = METHODS[method].section
    options = getattr(SMALL, section) if section else None
    own = {f.name: getattr(options, f.name) for f in fields(options)} if options else {}
    assert isinstance(chosen, FedAvgSettings)
    for name, value in {**common, "rounds": 2, **own}.items():
        assert getattr(chosen, name) == value
    notes = remarks(replace(SMALL, method=method, train=train))
    assert notes == REMARKS.get(method, [])
    assert not [
        note for note in remarks(replace(SMALL, method=method)) if note.startswith("train.")
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method=dap-fl", "--train.lr=1e-5"], "'dap_fl.lr_min' .* the most, 'train.lr'"),
        (["--method=ditto", "--ditto.lam=30"], "'train.lr' times 'ditto.lam' is 3"),
        (["--method=pfedme", "--pfedme.lr=1"], "'pfedme.lr' times 'pfedme.lam' is 15"),
        (
            ["--method=fedamp", "--fedamp.sigma=0.001", "--fedamp.lam=1", "--data.clients=5"],
            r"^'train.lr' times 'fedamp.lam' / α_k is 500 with α_k = 0.0002, training diverges "
            r"from 2 on: lower 'train.lr' or 'fedamp.lam', or raise 'fedamp.sigma'$",
        ),
        (
            ["--method=fedamp", "--fedamp.alpha=0.01", "--data.clients=5"],
            r"'fedamp.lam' / α_k is 10 with α_k = 0.01, .* or raise 'fedamp.alpha'$",
        ),
        (["--method=fedprox", "--fedprox.mu=25"], "'train.lr' times 'fedprox.mu' is 2.5"),
        (["--method=feddyn", "--feddyn.alpha=25"], "'train.lr' times 'feddyn.alpha' is 2.5"),
        (
            ["--method=feddyn", "--feddyn.alpha=1", "--data.quantity_skew=2", "--data.clients=20"],
            r"'train.lr' times 'feddyn.alpha' is .* with \d+ samples, .* set 'train.weighting' to",
        ),
        (["--method=local", "--privacy.clip=1"], "'privacy.clip' .* in local none is sent"),
        (
            ["--method=central", "--privacy.noise=laplace", "--privacy.scale=1"],
            "in central the server has the samples themselves",
        ),
        (["--method=scaffold", "--scaffold.lr_g=0"], "'scaffold.lr_g' must be above 0"),
        (["--client_agent.tau=2"], "'client_agent.tau' must be"),
    ],
)
def test_errors_name_the_whole_key(flags, message):
    with pytest.raises(UserError, match=message):
        Experiment(parse(Settings, flags)).federation()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data=shakespeare", "--data.label_skew=0.1"], "label_skew' .* the task shakespeare"),
        (["--data=shakespeare", "--data.partition=shards"], "partition' .* the task shakespeare"),
        (["--data=synthetic", "--data.valid=0.2"], "valid' .* the task synthetic"),
        (
            ["--data=synthetic-fedprox", "--data.quantity_skew=1"],
            "quantity_skew' .* the task synthetic-fedprox",
        ),
        (["--data=cifar-100", "--data.feature_skew=0"], "feature_skew' .* the task cifar-100"),
        (["--data=cifar-100", "--data.shards=3"], "shards' .* the partition dirichlet"),
        (
            ["--data=cifar-100", "--data.partition=shards", "--data.label_skew=1"],
            "label_skew' .* the partition shards",
        ),
    ],
)
def test_settings_without_effect_are_refused(flags, message):
    with pytest.raises(UserError, match=f"^'data.{message}: leave it out$"):
        configure(find_paper("page"), flags)


@pytest.mark.parametrize("task", OF_TASK)
def test_every_task_has_its_configuration(task):
    found = configure(find_paper("page"), ["--data", task]).settings
    assert found.data == TaskSettings(name=task)
    experiment = Experiment(found)
    assert experiment.settings.model.name == OF_TASK[task]
    sources = configure(find_paper("page"), ["--data", task]).sources
    if task != "synthetic":
        assert f"configs/page/{task}.yaml" in sources


def test_a_reading_leaves_what_the_user_set():
    flags = ["--reading=released", "--client_agent.noise_dt=0.5", "--server_agent.noise_sigma=0.1"]
    found = resolve(parse(Settings, [*flags, "--model.name=small-cnn", "--game.order=after"]))
    assert (found.client_agent.noise_dt, found.client_agent.init) == (0.5, "fan_out")
    assert (found.server_agent.noise_dt, found.server_agent.noise_sigma) == (0.01, 0.1)
    assert (found.model.name, found.game.order) == ("small-cnn", "after")


def test_a_network_of_ones_own_choice_has_a_configuration():
    argv = ["--data", "cifar-100", "--model.name", "small-cnn"]
    found = configure(find_paper("page"), argv)
    assert found.variants == ("cifar-100", "cifar-100-small-cnn")
    assert found.settings.train.lr != 0.2
    assert set(leaves(Settings)["model.name"].choices) >= set(OF_TASK.values())


def test_fedamp_is_run_with_what_was_tuned_and_not_with_a_full_pull_to_the_mixture():
    """By validation; λ = α_k, the plain default, costs it eight points already here."""
    found = []
    for own in ([], ["--fedamp.lam", "1"]):
        words = ["--method", "fedamp", "--data.clients", "12", "--train.epochs", "5", *own]
        settings = configure(find_paper("page"), [*words, "--rounds", "6"]).settings
        found.append(ran(settings)[1].history[-1]["eval/personal_accuracy"])
    assert found[0] > found[1] + 0.04
