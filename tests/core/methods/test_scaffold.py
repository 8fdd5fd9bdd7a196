"""SCAFFOLD against a naive loop over Algorithm 1 and the global optimum of quadratics."""

import pytest
import torch
from tests.core.methods.method_cases import (
    KEY,
    Linear,
    Net,
    assert_same,
    client_batches,
    gradient,
    method,
    moved,
    optimum,
    play,
    sample_data,
    start_weights,
    zeros,
)
from tests.core.test_fedavg import cohort_of

from coterie.core.errors import UserError
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer
from coterie.core.methods.settings.any_module import ScaffoldSettings
from coterie.core.methods.settings.fedavg import FedAvgSettings


def naive(build, data, chosen, epochs, size, lr, lr_g, weighting, clip=None):
    """Algorithm 1, client by client; ``chosen`` lists the clients of each round."""
    x = start_weights(build)
    c, own = zeros(x), {i: zeros(x) for i in range(len(data))}
    n = data.lengths.tolist()
    weight = [n_i if weighting == "samples" else int(n_i > 0) for n_i in n]
    trained = {}
    for number, members in enumerate(chosen, 1):
        moves, controls = zeros(x), zeros(x)
        for i in members:
            if not n[i]:
                continue
            y, batches = x, client_batches(data, i, number, epochs, size)
            for batch in batches:
                g = gradient(build, y, batch)
                norm = torch.sqrt(sum(v.square().sum() for v in g.values()))
                factor = 1.0 if clip is None else min(1.0, float(clip / (norm + 1e-6)))
                y = moved(y, {k: factor * g[k] - own[i][k] + c[k] for k in y}, lr)
            steps = len(batches)
            new = {k: own[i][k] - c[k] + (x[k] - y[k]) / (steps * lr) for k in x}
            for k in x:
                moves[k] += weight[i] * (y[k] - x[k])
                controls[k] += weight[i] * (new[k] - own[i][k])
            own[i], trained[i] = new, y
        here = sum(weight[i] for i in members)
        x = {k: x[k] + lr_g * moves[k] / here for k in x}
        c = {k: c[k] + controls[k] / sum(weight) for k in x}
    return x, c, own, trained


@pytest.mark.parametrize(
    ("build", "size", "weighting"),
    [(Linear, 4, "samples"), (Net, None, "samples"), (Net, 4, "equal")],
)
def test_equals_a_naive_loop(build, size, weighting):
    data = sample_data()
    options = {"epochs": 2, "batch_size": size, "weighting": weighting, "lr_g": 0.9}
    played = play(*method("scaffold", build, **options), data, 2, 3)
    everybody = [range(len(data))] * 2
    x, c, own, trained = naive(build, data, everybody, 2, size, 0.05, 0.9, weighting)
    assert_same(played.state.weights, x)
    assert_same(played.state.control, c)
    kept = played.store.take(data.ids)
    for i in range(len(data)):
        assert_same({k: v[i] for k, v in kept.control.items()}, own[i])
    for i, model in trained.items():
        assert_same({k: v[i] for k, v in kept.personal.items()}, model)


@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_some_clients_and_clipping(weighting):
    data = sample_data()
    options = {"epochs": 2, "batch_size": 3, "weighting": weighting, "fraction": 0.4, "clip": 0.5}
    server, client = method("scaffold", Net, **options)
    played = play(server, client, data, 3)
    chosen = []
    for number in range(1, 4):
        draws = KEY.fold("round", number).fold("sample").fold(data.ids)
        chosen.append(draws.uniform(dtype=torch.float64).argsort()[:4].sort().values.tolist())
    x, c, _, _ = naive(Net, data, chosen, 2, 3, 0.05, 0.9, weighting, clip=0.5)
    assert_same(played.state.weights, x)
    assert_same(played.state.control, c)


@pytest.mark.parametrize(("weighting", "fraction"), [("equal", 1), ("samples", 0.5)])
def test_converges_to_the_global_optimum_where_fedavg_does_not(weighting, fraction):
    data = sample_data([8, 5, 9, 20])
    n = [n / 42 for n in data.lengths.tolist()]
    best = optimum(data, n if weighting == "samples" else [0.25] * 4)
    options = {"epochs": 5, "lr": 0.1, "weighting": weighting, "fraction": fraction}
    played = play(*method("scaffold", Linear, lr_g=1.0, **options), data, 80)
    assert float((played.state.weights["w"] - best).norm()) < 1e-10
    settings = FedAvgSettings(evaluate_every=0, **options)
    averaged = play(FedAvgServer(Linear, settings), FedAvgClient(Linear(), settings), data, 25)
    assert float((averaged.state.weights["w"] - best).norm()) > 1e-2


def test_the_server_keeps_the_mean_of_all_control_variates():
    """The invariant behind the fixed point, in a new block with newcomers too."""
    data = sample_data()
    server, client = method("scaffold", Net, epochs=2, batch_size=3, fraction=0.5)
    old = data.take(torch.arange(6))
    before = play(server, client, old, 3)
    cohort = cohort_of(client, data, None, 4).keeping(before.store)
    after = server.start_block(before.state, 1, cohort, KEY)
    after = server.round(after, cohort, KEY.fold("round", 4))
    kept = before.store.take(data.ids)
    here = kept.block == 1  # the others have not been drawn in this block: their c_i is 0 there
    assert 0 < int(here.sum()) < len(data)
    share = here * data.lengths.double() / data.lengths.sum()
    for k, c in after.control.items():
        mean = (share.reshape(-1, *[1] * c.dim()) * kept.control[k]).sum(0)
        torch.testing.assert_close(c, mean, atol=1e-12, rtol=1e-12)


def test_server_step_size_is_checked():
    with pytest.raises(UserError, match="lr_g"):
        ScaffoldSettings(lr_g=0.0)
    with pytest.raises(UserError, match="lr_g"):
        ScaffoldSettings(lr_g=float("inf"))
