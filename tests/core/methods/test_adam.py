"""Methods with Adam: equal to one `torch.optim.Adam` a client, whose state lives from round on."""

import pytest
import torch
from tests.core.methods.labelled_clients import (
    KEY,
    LENGTHS,
    Net,
    built,
    close,
    epochs_of,
    refused_alone,
    run,
    split,
    weights_of,
)
from tests.core.methods.plain_federation import (
    OWN,
    Plain,
    central,
    go_on,
    halves,
    holds,
    stored_backwards,
)

from coterie.core.errors import UserError
from coterie.core.methods.dap_fl import DapFLSettings
from coterie.core.methods.fedavg import FedAvgSettings
from coterie.core.methods.settings.any_module import (
    CentralSettings,
    FedALASettings,
    FedDynSettings,
    FedReconSettings,
    FedRODSettings,
    LocalSettings,
    PFedMeSettings,
    ScaffoldSettings,
)
from coterie.core.tensors import tree

ADAM = {
    "optimizer": "adam",
    "lr": 0.02,
    "epochs": 2,
    "batch_size": 3,
    "weight_decay": 0.05,
    "evaluate_every": 0,
}
each_method = pytest.mark.parametrize("name", OWN)
each_memory = pytest.mark.parametrize("keep", [True, False], ids=["kept", "anew"])
PLAIN_METHODS = [
    ScaffoldSettings,
    FedDynSettings,
    PFedMeSettings,
    FedALASettings,
    FedRODSettings,
    FedReconSettings,
    DapFLSettings,
]


@each_method
@pytest.mark.parametrize(("keep", "chunk"), [(True, 3), (False, None)], ids=["kept", "anew"])
def test_equals_an_optimizer_of_its_own_for_each_client(name, keep, chunk):
    data = split()
    server, client, settings = halves(name, Net, **ADAM, keep_moments=keep)
    made = run(server, client, data, 2, chunk)
    holds(made, Plain(name, Net, data, settings).rounds(2))


@each_method
def test_gradients_are_clipped_before_the_optimizer_sees_them(name):
    data = split([5, 0, 7])
    server, client, settings = halves(name, Net, **ADAM | {"clip": 0.1, "batch_size": None})
    made = run(server, client, data, 2, 1)
    holds(made, Plain(name, Net, data, settings).rounds(2))


def test_moments_that_are_kept_matter():
    """Else the comparison with a loop could not tell one from the other."""
    data = split()
    ends = []
    for keep in (True, False):
        server, client, _ = halves("fedavg", Net, **ADAM, keep_moments=keep)
        ends.append(run(server, client, data, 2).state.weights["head.weight"])
    assert float((ends[0] - ends[1]).abs().max()) > 1e-4


@each_method
def test_client_order_makes_no_difference(name):
    data = split()
    server, client, _ = halves(name, Net, **ADAM)
    straight, turned = run(server, client, data, 2), stored_backwards(server, client, data, 2)
    found = dict(tree.tensors(turned.private(data.ids)))
    for path, leaf in tree.tensors(straight.private(data.ids)):
        torch.testing.assert_close(found[path], leaf, atol=1e-12, rtol=1e-12)


@each_memory
def test_step_counts_are_of_the_rounds_in_which_a_client_takes_part(keep):
    data = split()
    server, client, _ = halves("fedavg", Net, **ADAM, keep_moments=keep, fraction=0.4)
    kept = run(server, client, data, 4).private(data.ids)
    assert len(set(kept.rounds.tolist())) > 1
    if not keep:
        assert kept.optimizer is None
        return
    per_round = torch.tensor([2 * -(-n // 3) for n in LENGTHS])
    assert kept.optimizer.steps.tolist() == (kept.rounds * per_round).tolist()
    idle = (kept.optimizer.steps == 0).nonzero().flatten()
    assert len(idle) >= 2  # the one without samples, and one that was not chosen
    for _, moment in tree.tensors(kept.optimizer.moments):
        assert not moment[idle].any()


@each_method
def test_a_refused_client_keeps_its_old_moments(name):
    """Its samples turn to NaN after the first round, and are healed before the third."""
    data, broken, chunk = split(), 3, 4
    server, client, settings = halves(name, Net, **ADAM)
    made = run(server, client, data, 1, chunk)
    before = tree.clone(made.private([broken]))
    x, place = data.train.samples["x"], int(data.train.offsets[broken])
    healthy = x[place].clone()
    x[place] = torch.nan
    go_on(made, server, client, data, 2, chunk)
    assert broken in [who for _, who, _ in made.journals[-1].refused]
    after = made.private([broken])
    for (path, leaf), (_, old) in zip(tree.tensors(after), tree.tensors(before), strict=True):
        assert torch.equal(leaf, old), path
    assert int(after.rounds) == 1
    assert int(made.private([4]).optimizer.steps) == 2 * 2 * 2
    if name != "local":  # the loop has no refusals; a client alone goes on as if nothing had been
        return
    x[place] = healthy
    go_on(made, server, client, data, 2, chunk)
    alone = Plain(name, Net, data.take(torch.tensor([broken])), settings).rounds(2)
    kept = made.private([broken])
    close({n: v[0] for n, v in kept.personal.items()}, alone.learners[0].weights())


def test_who_is_refused_from_the_start_has_no_moments():
    made, without = refused_alone(*halves("fedavg", Net, **ADAM)[:2], split(), broken=3)
    kept = made.private([3]).optimizer
    assert int(kept.steps) == 0
    for _, moment in tree.tensors(kept.moments):
        assert not moment.any()
    others = torch.tensor([0, 1, 2, 4, 5, 6, 7])
    expected = dict(tree.tensors(without.private(others).optimizer))
    for path, leaf in tree.tensors(made.private(others).optimizer):
        torch.testing.assert_close(leaf, expected[path], atol=1e-12, rtol=1e-12)


def test_gradient_descent_remembers_nothing():
    made = run(*halves("fedavg", Net, **ADAM | {"optimizer": "sgd"})[:2], split([4, 2]), 1)
    assert made.private([0, 1]).optimizer is None


@each_memory
def test_central_training_equals_one_optimizer(keep):
    data = split()
    server, client, _ = central(Net, data.train, **ADAM, keep_moments=keep)
    made = run(server, client, data, 3)
    module, optimizer = built(Net), None
    for number in (1, 2, 3):
        if optimizer is None or not keep:
            optimizer = torch.optim.Adam(module.parameters(), lr=0.02, weight_decay=0.05)
        key = KEY.fold("round", number).fold("central").fold(torch.tensor([0]))
        for batch in epochs_of(data.train.samples, 0, 2, 3, key):
            optimizer.zero_grad()
            module.loss(batch).backward()
            optimizer.step()
    close(made.state.weights, weights_of(module))
    assert (made.state.optimizer is not None) == keep
    if keep:
        assert made.state.optimizer.steps.tolist() == [3 * 2 * -(-sum(LENGTHS) // 3)]


@pytest.mark.parametrize("settings", PLAIN_METHODS)
@pytest.mark.parametrize(
    ("more", "remedy"),
    [({"optimizer": "adam"}, "set 'optimizer' to sgd"), ({"share": ("w",)}, "leave 'share' out")],
    ids=["adam", "share"],
)
def test_methods_derived_for_gradient_descent_refuse(settings, more, remedy):
    settings()
    with pytest.raises(UserError, match=remedy) as caught:
        settings(**more)
    assert settings.plain in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [LocalSettings, CentralSettings])
def test_nothing_travels_in_the_bounds_so_nothing_is_shared(settings):
    with pytest.raises(UserError, match=r"'share' has no effect in .* training"):
        settings(share=("w",))
    assert settings(optimizer="adam").optimizer == "adam"


def test_adam_is_not_the_default():
    assert FedAvgSettings().optimizer == "sgd"
