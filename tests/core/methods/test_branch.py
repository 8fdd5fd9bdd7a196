"""The personal branch beside what is sent: the same for every method that admits it."""

from dataclasses import replace

import pytest
import torch
from tests.core.methods.labelled_clients import (
    KEY,
    Net,
    Softmax,
    built,
    close,
    epochs_of,
    key_of,
    run,
    samples_of,
    sgd,
    split,
)
from tests.core.methods.mixing_modules import Normed

from coterie.core.errors import UserError
from coterie.core.local_training.step_count import counting_steps
from coterie.core.methods.registry import METHODS, client_half, server_half
from coterie.core.methods.settings.fedavg import BranchOptions

ADMIT = ("fedavg", "fedprox", "scaffold", "feddyn")
LENGTHS = [5, 3, 6]
BRANCH = BranchOptions(use=True, shares=5, epochs=2, rates=(1.0, 0.2))
COMMON = {"epochs": 3, "batch_size": 2, "lr": 0.3, "rounds": 9}


def halves(name, branch=None, build=Softmax, **more):
    chosen = METHODS[name].settings(**{**COMMON, **more, "branch": branch or BranchOptions()})
    return server_half(name, build, chosen), client_half(name, build, chosen)


@pytest.mark.parametrize(("name", "build"), [*((name, Softmax) for name in ADMIT), ("fedavg", Net)])
def test_a_branch_changes_nothing_but_the_own_model(name, build):
    data = split(LENGTHS)
    plain, branched = (run(*halves(name, b, build), data, 2) for b in (None, BRANCH))
    close(branched.state.weights, plain.state.weights, 0.0)
    kept, own = plain.private(data.ids), branched.private(data.ids)
    for part in {"control", "gradient"} & set(vars(kept)):
        close(getattr(own, part), getattr(kept, part), 0.0)
    moved = [(own.personal[n] - w).abs().max() for n, w in kept.personal.items()]
    assert max(moved) > 1e-3


@pytest.mark.parametrize("name", ADMIT)
def test_a_branch_is_the_best_mixture_of_a_plain_loop(name):
    """Of all shares and sources, by each client's validation loss, one model after the other."""
    data = split(LENGTHS)
    before = run(*halves(name), data, 1).state.weights
    sent = run(*halves(name), data, 2).private(data.ids).personal
    own = run(*halves(name, BRANCH), data, 2).private(data.ids).personal
    for c in range(len(LENGTHS)):
        held, key = samples_of(data.valid, c), key_of(c, "update", 2).fold("branch")
        sources = [{n: w[c] for n, w in sent.items()}]
        for rate in BRANCH.rates:
            module = built(Softmax)
            module.load_state_dict(before)
            batches = epochs_of(samples_of(data.train, c), c, BRANCH.epochs, 2, key)
            sgd(module, batches, rate * COMMON["lr"])
            sources.append({n: v.detach() for n, v in module.named_parameters()})
        tried = []
        for u in sources:
            for share in (0.0, 0.25, 0.5, 0.75, 1.0):
                mixed = {n: share * u[n] + (1 - share) * before[n] for n in before}
                module = built(Softmax)
                module.load_state_dict(mixed)
                tried.append((float(module.loss(held).detach()), mixed))
        close({n: v[c] for n, v in own.items()}, min(tried, key=lambda one: one[0])[1], 1e-9)


def test_the_steps_of_a_branch_are_counted():
    data = split([6, 4])
    _, client = halves("fedavg", BRANCH)
    assert client.work(data).tolist() == [3 * 3 + 2 * 2 * 3, 2 * 3 + 2 * 2 * 2]
    with counting_steps() as made:
        run(*halves("fedavg", BRANCH, evaluate_every=0), data, 1)
    assert made.total == int(client.work(data).sum())


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(ADMIT)))
def test_other_methods_have_an_own_model_and_refuse_a_branch(name):
    with pytest.raises(UserError, match=r"branch\.use"):
        client_half(name, Net, replace(METHODS[name].settings(), branch=BRANCH))


def test_modules_that_are_trained_alone_refuse_a_branch():
    with pytest.raises(UserError, match="side by side"):
        halves("fedavg", BRANCH, Normed)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shares": 1}, r"branch\.shares"),
        ({"epochs": -1}, r"branch\.epochs"),
        ({"rates": (0.0,)}, r"branch\.rates"),
        ({"rates": (1.5,)}, r"branch\.rates"),
    ],
)
def test_options_out_of_range_are_refused(given, said):
    with pytest.raises(UserError, match=said):
        BranchOptions(**given)


def test_a_branch_needs_the_whole_model_and_a_place():
    for more in ({"keep_models": False}, {"share": ("head.*",)}):
        with pytest.raises(UserError, match=r"branch\.use"):
            METHODS["fedavg"].settings(branch=BRANCH, **more)


def test_a_branch_that_diverges_is_not_chosen():
    data = split(LENGTHS)
    wild = BranchOptions(use=True, shares=3, epochs=4, rates=(1.0,))
    _, client = halves("fedavg", wild)
    start = {n: w.expand(3, *w.shape) for n, w in built(Softmax).state_dict().items()}
    sent = {n: torch.full_like(w, torch.nan) for n, w in start.items()}
    sent = {n: w.clone() for n, w in sent.items()}
    found = client.branch.best(start, sent, data, KEY.fold(data.ids))
    assert all(value.isfinite().all() for value in found.params.values())
    assert found.loss.isfinite().all()
