"""FedAMP against a naive loop over Algorithm 1, its attention, and quadratic clients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.core.methods.method_cases import (
    KEY,
    Linear,
    Net,
    assert_same,
    client_batches,
    gradient,
    method,
    moved,
    play,
    quadratic,
    sample_data,
    start_weights,
)
from tests.core.test_fedavg import cohort_of

from coterie.core.data.samples.samples import SampleData
from coterie.core.errors import UserError
from coterie.core.methods.fedamp import (
    ClientModels,
    check_for,
    flat,
    median_distance,
    message_weights,
    squared_distances,
)
from coterie.core.methods.settings.any_module import FedAMPSettings

LAM, SIGMA, LR = 1.0, 20.0, 0.05
NOBODY = torch.zeros(6, dtype=torch.bool)


def pairwise(w):
    """Squared distances between all models, pair by pair."""
    return {
        (i, j): sum(float((w[i][k] - w[j][k]).square().sum()) for k in w[i])
        for i in w
        for j in w
        if i < j
    }


def naive(build, data, chosen, epochs, size, alpha, lam=LAM, relative=False):
    """Algorithm 1, pair by pair and client by client, with a fixed alpha_k small enough.

    Relative: sigma, alpha and lambda are multiples of the median distance, if there is one.
    """
    clients = range(len(data))
    w = dict.fromkeys(clients, start_weights(build))
    silent = set()
    for number, members in enumerate(chosen, 1):
        median = float(np.percentile(list(pairwise(w).values()), 50, method="lower"))
        unit = (median or 1.0) if relative else 1.0
        strength = lam / alpha
        u = {}
        for i in members:
            rest, u[i] = 1.0, {k: torch.zeros_like(v) for k, v in w[i].items()}
            for j in clients:
                if j == i or j in silent:
                    continue
                distance = sum(float((w[i][k] - w[j][k]).square().sum()) for k in w[i])
                weight = alpha * unit * math.exp(-distance / (SIGMA * unit)) / (SIGMA * unit)
                rest -= weight
                u[i] = {k: v + weight * w[j][k] for k, v in u[i].items()}
            assert rest >= alpha / SIGMA
            u[i] = {k: v + rest * w[i][k] for k, v in u[i].items()}
        for i in members:
            local = u[i]
            for batch in client_batches(data, i, number, epochs, size):
                g = gradient(build, local, batch)
                slope = {k: g[k] + strength * (v - u[i][k]) for k, v in local.items()}
                local = moved(local, slope, LR)
            w = {**w, i: local}
            if not data.lengths[i]:
                silent.add(i)
    return w, [i for i in clients if i not in silent]


@pytest.mark.parametrize("build", [Linear, Net])
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_equals_a_naive_loop(build, size, fraction):
    data = sample_data()
    options = {"epochs": 2, "batch_size": size, "alpha": 0.8, "sigma": SIGMA, "fraction": fraction}
    server, client = method("fedamp", build, **options)
    played = play(server, client, data, 4, 3)
    chosen = [range(10)] * 4
    if fraction < 1:
        for number in range(4):
            draws = KEY.fold("round", number + 1).fold("sample").fold(data.ids)
            chosen[number] = draws.uniform(dtype=torch.float64).argsort()[:4].tolist()
    w, heard = naive(build, data, chosen, 2, size, 0.8)
    for i, model in w.items():
        assert_same({k: v[i] for k, v in played.state.models.items()}, model)
    mean = {k: sum(w[i][k] for i in heard) / len(heard) for k in w[0]}
    assert_same(server.model(played.state), mean)
    kept = played.store.take(data.ids)
    for i in kept.rounds.nonzero().flatten().tolist():
        assert_same({k: v[i] for k, v in kept.personal.items()}, w[i])


def test_distances_are_those_of_pairs():
    models = {"a": KEY.normal(6, 3, 2, dtype=torch.float64), "b": KEY.fold(1).normal(6, 4).double()}
    vectors = flat(models) + 1000
    expected = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square()
    torch.testing.assert_close(squared_distances(vectors), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("alpha", [0.1, 5.0, 1e6])
def test_weights_are_convex_combinations(alpha):
    vectors = KEY.normal(6, 4, dtype=torch.float64)
    weights, used = message_weights(squared_distances(vectors), 3.0, alpha, NOBODY)
    torch.testing.assert_close(weights.sum(1), torch.ones(6, dtype=torch.float64))
    assert bool((weights > 0).all())
    assert used <= alpha
    assert bool((weights.diagonal() >= used / 3.0 - 1e-15).all())
    assert used == alpha or alpha > 0.5


def test_the_messages_are_the_gradient_of_the_attention():
    """U = W - alpha_k A', half the gradient of sum_{i<j} A(|w_i - w_j|^2) (as printed, Eq. 5)."""
    vectors = KEY.normal(6, 4, dtype=torch.float64).requires_grad_()
    total = sum(
        1 - torch.exp(-(vectors[i] - vectors[j]).square().sum() / 3.0)
        for i in range(6)
        for j in range(i)
    )
    (slope,) = torch.autograd.grad(total, vectors)
    rows = vectors.detach()
    weights, used = message_weights(squared_distances(rows), 3.0, 0.2, NOBODY)
    assert used == 0.2
    torch.testing.assert_close(weights @ rows, rows - 0.2 * slope / 2, atol=1e-12, rtol=1e-12)


def test_identical_models_share_alike():
    vectors = KEY.normal(6, 4, dtype=torch.float64)
    vectors[4] = vectors[1]
    weights, used = message_weights(squared_distances(vectors), 2.0, 0.1, NOBODY)
    turned = weights[[0, 4, 2, 3, 1, 5]][:, [0, 4, 2, 3, 1, 5]]
    torch.testing.assert_close(weights, turned, atol=1e-14, rtol=1e-14)
    assert float(weights[1, 4]) == pytest.approx(used / 2.0)
    alike = message_weights(torch.zeros(6, 6, dtype=torch.float64), 2.0, 1e9, NOBODY)[0]
    torch.testing.assert_close(alike, torch.full((6, 6), 1 / 6, dtype=torch.float64))


def test_silent_clients_are_not_heard():
    silent = torch.tensor([True, False, False, True, False, False])
    squares = squared_distances(KEY.normal(6, 4, dtype=torch.float64))
    weights, _ = message_weights(squares, 3.0, 0.3, silent)
    off = weights.clone().fill_diagonal_(0)
    assert bool((off[:, silent] == 0).all())
    assert bool((off[0, ~silent] > 0).all())


def test_clients_of_the_same_data_stay_alike_and_others_apart():
    """Two groups of equal quadratics: within a group the models agree, as in the paper's idea."""
    base = sample_data([6, 6])
    groups = [{k: v[6 * g : 6 * g + 6] for k, v in base.samples.items()} for g in (0, 1, 0, 1)]
    groups = [{"x": one["x"], "y": one["y"] + 8 * (g % 2)} for g, one in enumerate(groups)]
    data = SampleData.from_clients(groups)
    options = {"epochs": 5, "lr": 0.1, "sigma": 1.0, "alpha": 0.2, "lam": 0.2}
    played = play(*method("fedamp", Linear, **options), data, 40)
    w = played.state.models["w"]
    torch.testing.assert_close(w[:2], w[2:], atol=1e-12, rtol=1e-12)
    squares = squared_distances(w)
    weights, _ = message_weights(squares, 1.0, 0.2, NOBODY[:4])
    assert float(weights[0, 2]) > 5 * float(weights[0, 1])


def test_the_model_is_the_proximal_point_at_the_cloud_model():
    """With many steps, w_i = (H_i + lam/alpha I)^-1 (b_i + lam/alpha u_i)."""
    data = sample_data([8, 5, 9])
    options = {"epochs": 300, "lr": 0.1, "sigma": SIGMA, "alpha": 0.8}
    server, client = method("fedamp", Linear, **options)
    before = play(server, client, data, 2).state.models["w"]
    after = play(server, client, data, 3).state.models["w"]
    weights, used = message_weights(squared_distances(before), SIGMA, 0.8, NOBODY[:3])
    assert used == 0.8
    cloud = weights @ before
    for c in range(3):
        hessian, right = quadratic(data, c)
        eye = torch.eye(3, dtype=torch.float64)
        exact = torch.linalg.solve(hessian + eye / 0.8, right + cloud[c] / 0.8)
        torch.testing.assert_close(after[c], exact, atol=1e-9, rtol=1e-9)


def test_newcomers_start_at_the_mean():
    data = sample_data()
    server, client = method("fedamp", Linear, epochs=2)
    old = data.take(torch.tensor([1, 3, 4]))
    before = play(server, client, old, 2)
    state = server.round(before.state, cohort_of(client, data.take(torch.tensor([0, 2])), 1), KEY)
    assert state.ids.tolist() == [0, 1, 2, 3, 4]
    torch.testing.assert_close(
        state.models["w"][[1, 3, 4]], before.state.models["w"], atol=0, rtol=0
    )
    assert state.silent.tolist() == [False, False, True, False, False]


def test_steps_that_would_diverge_are_refused():
    server, client = method("fedamp", Linear, lr=0.1, sigma=1.0, alpha=1.0, lam=5.0)
    with pytest.raises(UserError, match="diverges"):
        play(server, client, sample_data(), 1)


@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_relative_distances_equal_a_naive_loop(fraction):
    """With a part of the clients most pairs are equal at first, and there is no unit."""
    data, lam = sample_data(), 0.01
    options = {"epochs": 2, "size": None, "alpha": 0.8, "lam": lam}
    server, client = method(
        "fedamp", Net, epochs=2, sigma=SIGMA, alpha=0.8, lam=lam, relative=True, fraction=fraction
    )
    played = play(server, client, data, 4, 3)
    chosen = [range(10)] * 4
    if fraction < 1:
        draws = [KEY.fold("round", n + 1).fold("sample").fold(data.ids) for n in range(4)]
        chosen = [one.uniform(dtype=torch.float64).argsort()[:4].tolist() for one in draws]
    w, _ = naive(Net, data, chosen, relative=True, **options)
    for i, model in w.items():
        assert_same({k: v[i] for k, v in played.state.models.items()}, model)
    last = played.journals[-1].scalars
    assert last["fed/sigma"] == pytest.approx(SIGMA * last["fed/distance"], rel=1e-12)
    assert last["fed/alpha"] == 0.8
    assert last["fed/distance"] > 0
    assert played.journals[0].scalars["fed/distance"] == 0


@given(count=st.integers(1, 8), seed=st.integers(0, 99))
def test_the_median_is_numpys(count, seed):
    vectors = KEY.fold(seed).normal(count, 4, dtype=torch.float64)
    vectors[count // 2 :] = vectors[-1:]  # some are equal
    pairs = [float((a - b).square().sum()) for n, a in enumerate(vectors) for b in vectors[:n]]
    expected = float(np.percentile(pairs, 50, method="lower")) if pairs else 0.0
    found = median_distance(squared_distances(vectors))
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 3, 7, 10])
def test_equal_models_are_no_distance_apart(count, dtype):
    """However many numbers they have; a sum of float32 would leave some rounding as the unit."""
    vector = 0.1 * KEY.normal(100_003, dtype=dtype)
    assert not squared_distances(vector.expand(count, -1)).any()
    others = torch.cat([vector.expand(count, -1), vector[None] * 1.01])
    squares = squared_distances(others)
    assert not squares[:count, :count].any()
    expected = float((0.01 * vector.double()).square().sum())
    assert squares[-1, :-1].tolist() == pytest.approx([expected] * count, rel=1e-4)
    assert squares.dtype == dtype


def mixed(models, **options):
    """What six clients would receive, and the round's journal."""
    data = sample_data([4] * 6)
    server, client = method("fedamp", Linear, **options)
    cohort = cohort_of(client, data)
    state = ClientModels({"w": models.mean(0)}, ids=data.ids, models={"w": models}, silent=NOBODY)
    return server.clouds(state, data.ids, cohort), cohort.journal.scalars


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_relative_messages_do_not_depend_on_the_scale_of_parameters(scale):
    models = KEY.normal(6, 9, dtype=torch.float64)
    options = {"relative": True, "sigma": 0.7, "alpha": 0.3, "lam": 1e-9}
    (one, journal), (other, scaled) = (mixed(factor * models, **options) for factor in (1, scale))
    torch.testing.assert_close(other.weights["w"], scale * one.weights["w"], atol=0, rtol=1e-9)
    for name, power in (("own_weight", 0), ("alpha", 0), ("sigma", 2), ("distance", 2)):
        expected = journal[f"fed/{name}"] * scale**power
        assert scaled[f"fed/{name}"] == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(other.pull, one.pull, atol=0, rtol=1e-9)
    squares = squared_distances(models)
    unit = median_distance(squares)
    weights, _ = message_weights(squares / unit, 0.7, 0.3, NOBODY)
    torch.testing.assert_close(one.weights["w"], weights @ models, atol=1e-12, rtol=1e-12)
    absolute = {"sigma": 20.0, "alpha": 0.3, "lam": 1e-9}
    here, there = (mixed(factor * models, **absolute)[0].weights["w"] for factor in (1, scale))
    assert float((there / scale - here).abs().max()) > 1e-3


def test_models_of_millions_of_parameters_are_alone_in_absolute_units():
    """Their distances are so far above sigma that the weights of others underflow.

    A million parameters that differ by 0.1 are as far apart as a hundred that differ by 10.
    """
    models = 10 * KEY.normal(6, 100)
    alone, journal = mixed(models)
    assert journal["fed/own_weight"] == 1
    assert journal["fed/distance"] == pytest.approx(2 * 1e6 * 0.1**2, rel=0.5)
    assert torch.equal(alone.weights["w"], models)
    heard, journal = mixed(models, relative=True, sigma=1.0, alpha=1.0)
    assert 0 < journal["fed/own_weight"] < 0.9
    assert not torch.allclose(heard.weights["w"], models, atol=1.0)


def test_a_first_round_is_the_same_in_relative_units():
    """The models are equal: there is no unit, and all weigh alike."""
    models = (0.1 * KEY.normal(100_003)).expand(6, -1).clone()
    down, journal = mixed(models, relative=True, sigma=3.0, alpha=0.4, lam=0.1)
    assert down.pull.tolist() == pytest.approx([0.25] * 6)
    torch.testing.assert_close(down.weights["w"], models)
    assert journal["fed/distance"] == 0
    assert journal["fed/sigma"] == 3


def test_a_pull_that_would_diverge_is_refused_before_the_first_round():
    options = {"relative": True, "lr": 0.1, "lam": 1e3}
    with pytest.raises(UserError, match="diverges from 2 on: lower 'lr' or 'lam'") as caught:
        check_for(FedAMPSettings(**options), torch.ones(6))
    assert "\n" not in str(caught.value)
    check_for(FedAMPSettings(optimizer="adam", **options), torch.ones(6))  # steps are bounded


@pytest.mark.parametrize("name", ["lam", "alpha", "sigma"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_settings_are_checked(name, value):
    with pytest.raises(UserError, match=name):
        FedAMPSettings(**{name: value})
