"""Which settings a cached run depends on, and which rows a task allows."""

import pytest
import torch

from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.settings.schema import changed, values_of
from coterie.msmt.data.task import Schema, Task
from coterie.msmt.readings import resolve
from coterie.msmt.settings import Settings
from coterie.msmt.tables.ablations import PAPERS, VARIANTS
from coterie.msmt.tables.rows import FEDERATED_ROWS, OWN, ROWS, refused
from coterie.msmt.tables.study import bare, digest, essential


def same(method, **changes):
    """Whether a change leaves a method's runs as they were."""
    plain = changed(Settings(), {"method": method})
    more = {name.replace("__", "."): value for name, value in changes.items()}
    return essential(plain) == essential(changed(plain, more))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ditto", "fedamp", "local", "central"])
def test_other_methods_do_not_read_what_is_of_pf(method):
    assert same(method, pf__c=0.9, pf__psi=False, pf__lam=3.0, reading="literal", compare=True)
    assert not same(method, pf__generator="leaf")  # the template's network has it
    assert same(method, model__name="mmoe", pf__generator="leaf") == same(
        method, model__name="mmoe"
    )


@pytest.mark.parametrize(
    ("key", "value", "readers"),
    [
        ("fedprox.mu", 0.5, {"fedprox"}),
        ("ditto.lam", 0.5, {"ditto"}),
        ("fedamp.sigma", 0.5, {"fedamp"}),
        ("central.epochs", 2, {"central"}),
        ("train.share", ("inputs.*",), {"fedavg", "fedprox", "ditto", "fedamp"}),
        ("train.weighting", "equal", {"fedavg", "fedprox", "ditto"}),
        ("pf.c", 0.9, {"pf-msmtrec"}),
        ("reading", "literal", {"pf-msmtrec"}),
        (
            "train.participation",
            0.5,
            {"pf-msmtrec", "fedavg", "fedprox", "ditto", "fedamp", "local"},
        ),
    ],
)
def test_a_setting_is_of_the_methods_that_read_it(key, value, readers):
    methods = ("pf-msmtrec", "fedavg", "fedprox", "ditto", "fedamp", "local", "central")
    found = {method for method in methods if not same(method, **{key.replace(".", "__"): value})}
    assert found == readers


def test_everything_else_is_kept():
    vain = ("reading", "compare", "pf.", "fedprox.", "ditto.", "fedamp.", "central.", "train.share")
    usual = values_of(Settings())
    for key, value in {"rounds": 3, "seed": 4, "train.lr": 0.5, "model.embedding": 2}.items():
        assert not key.startswith(vain)
        assert usual[key] != value
        assert not same("fedavg", **{key.replace(".", "__"): value})
    assert not same("fedavg", data__name="world")


def test_references_read_the_samples_alone():
    some = changed(Settings(seed=3), {"data.name": "world", "data.shift": 0.6, "model.experts": 2})
    assert bare(some).data == some.data
    assert bare(some).seed == 3
    assert bare(some).model == Settings().model


def test_rows_are_settings_that_go_together():
    noisy = changed(Settings(), {"privacy.noise": "laplace", "privacy.scale": 0.1, "rounds": 7})
    for name, row in ROWS.items():
        found = resolve(row.settings(noisy))
        assert found.rounds == 7 + row.last
        assert (found.privacy.noise == "none") == (found.method in ("local", "central")), name
    made = {name: row.settings(Settings()) for name, row in ROWS.items() if row.of is None}
    assert len({repr(settings) for settings in made.values()}) == len(made)
    assert set(FEDERATED_ROWS) <= set(ROWS)
    assert ROWS[OWN].settings(Settings()) == Settings()


def test_ablations_differ_and_are_those_of_the_paper():
    made = {name: changed(Settings(), values) for name, (_, values) in VARIANTS.items()}
    assert len({repr(essential(settings)) for settings in made.values()}) == len(made)
    switches = {
        name: (made[name].pf.expert, made[name].pf.tower, made[name].pf.share) for name in PAPERS
    }
    assert switches == {
        "a1": ("fedavg", "fedavg", ()),
        "a2": ("fedavg", "pf", ("experts",)),
        "a3": ("fedavg", "pf", ()),
        "a4": ("pf", "fedavg", ()),
    }


def small_task(funnel, truth=None):
    client = {"ids": torch.tensor([[1], [2]]), "labels": torch.tensor([[0, 0], [1, 0]])}
    data = SampleData.from_clients([client])
    schema = Schema(("a", "b"), ("one",), (3,), 0, funnel=funnel)
    return Task("small", schema, SplitSamples(data, data, data), truth)


def test_networks_that_do_not_suit_the_tasks_are_named():
    rows = {name: refused(ROWS[name], Settings(), small_task(funnel=False)) for name in ROWS}
    assert {name for name, reason in rows.items() if reason} == {"esmm", "aitm", "fedavg-esmm"}
    assert "ESMM" in str(rows["esmm"])
    assert refused(ROWS["esmm"], Settings(), small_task(funnel=True)) is None


def test_pooling_needs_samples_in_memory():
    class Streamed:
        def __len__(self):
            return 1

        lengths = torch.tensor([2])

    task, held = small_task(funnel=True), Streamed()
    object.__setattr__(task.clients, "train", held)
    assert refused(ROWS["star"], Settings(), task) == "it needs all samples in memory"
    assert refused(ROWS["mmoe"], Settings(), task) is None


def test_the_digest_is_of_what_was_read():
    one, other = small_task(funnel=True), small_task(funnel=True)
    assert digest(one) == digest(other) != ""
    other.clients.test.samples["labels"][0, 0] = 1
    assert digest(one) != digest(other)
    assert digest(small_task(funnel=True, truth=torch.zeros(2, 2))) == ""
