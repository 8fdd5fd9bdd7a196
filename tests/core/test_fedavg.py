"""FedAvg and FedProx against a naive loop in float64 and closed forms."""

import inspect
import traceback
from pathlib import Path

import pytest
import torch
from tests.in_process import OpenCohort, cohort_in_process
from torch import Tensor, nn

from coterie.core.data.samples.samples import MiniBatches, SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.local_training.row_optimizer import RowSGD
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.methods.fedprox import FedProxClient
from coterie.core.methods.kit.model_server import ServerModel
from coterie.core.methods.settings.any_module import FedProxSettings
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key

KEY = Key.from_seed(3)
SECRET = KEY.fold("clients")
LENGTHS = [5, 1, 0, 6, 4, 4, 3, 2, 6, 4]
MU = 0.7


class Linear(nn.Module):
    """Least squares: each client's loss is quadratic in w."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def loss(self, batch):
        return 0.5 * (batch["x"] @ self.w - batch["y"]).square().mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(3, 4, dtype=torch.float64)
        self.out = nn.Linear(4, 1, dtype=torch.float64)

    def loss(self, batch):
        return (self.out(torch.relu(self.hidden(batch["x"])))[:, 0] - batch["y"]).square().mean()


def sample_data(lengths=LENGTHS, ids=None) -> SampleData:
    clients = [
        {
            "x": KEY.fold("x", c).normal(n, 3, dtype=torch.float64) + 0.3 * c,
            "y": KEY.fold("y", c).normal(n, dtype=torch.float64),
        }
        for c, n in enumerate(lengths)
    ]
    return SampleData.from_clients(clients, ids)


def cohort_of(client, data, chunk=None, round_number=1, middleware=()) -> OpenCohort:
    cohort = cohort_in_process(
        client,
        SplitSamples.of(data, valid=data),
        PrivateStore(),
        SECRET,
        (0, round_number),
        Ledger(),
        Journal(),
        chunk,
        middleware,
    )
    cohort.enrol()
    return cohort


def algorithm(name, build, **options):
    with KEY.torch_rng():
        module = build()
    if name == "fedprox":
        settings = FedProxSettings(mu=MU, **options)
        return FedAvgServer(build, settings), FedProxClient(module, settings)
    settings = FedAvgSettings(**options)
    return FedAvgServer(build, settings), FedAvgClient(module, settings)


def run(server, client, data, rounds, chunk=None) -> tuple[ServerModel, list[Journal]]:
    state, journals = server.begin(KEY), []
    for number in range(1, rounds + 1):
        cohort = cohort_of(client, data, chunk, number)
        state = server.round(state, cohort, KEY.fold("round", number))
        journals.append(cohort.journal)
    return state, journals


def naive(build, data, rounds, epochs, batch_size, lr, mu) -> dict[str, Tensor]:
    """FedAvg and FedProx, client by client with an ordinary optimizer."""
    with KEY.torch_rng():
        module = build()
    weights = {k: v.detach().clone() for k, v in module.named_parameters()}
    for number in range(1, rounds + 1):
        total = {k: torch.zeros_like(v) for k, v in weights.items()}
        n_all = int(data.lengths.sum())
        for c in range(len(data)):
            one = data.take(torch.tensor([c]))
            # The client's own key for the first ask ("update") of this round.
            key = SECRET.fold(one.ids).fold("update", 0, number, 0)
            batches = MiniBatches(one, epochs, batch_size, key)
            module.load_state_dict(weights)
            sgd = torch.optim.SGD(module.parameters(), lr=lr)
            for b in range(int(batches.steps[0])):
                sgd.zero_grad()
                loss = module.loss({k: v[0] for k, v in batches(b, torch.tensor([0])).items()})
                for k, v in module.named_parameters():
                    loss = loss + mu / 2 * (v - weights[k]).square().sum()
                loss.backward()
                sgd.step()
            for k, v in module.named_parameters():
                total[k] += int(one.lengths[0]) / n_all * v.detach()
        weights = total
    return weights


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
@pytest.mark.parametrize(
    ("build", "batch_size", "chunk"),
    [(Linear, None, 1), (Linear, 4, 7), (Net, None, 7), (Net, 4, 1), (Net, 4, None)],
)
def test_equals_a_naive_loop(name, batch_size, build, chunk):
    data = sample_data()
    server, client = algorithm(name, build, epochs=2, batch_size=batch_size, lr=0.05)
    state, _ = run(server, client, data, 2, chunk)
    expected = naive(build, data, 2, 2, batch_size, 0.05, MU if name == "fedprox" else 0.0)
    assert list(state.weights) == list(expected)
    for key, value in expected.items():
        torch.testing.assert_close(state.weights[key], value, atol=1e-12, rtol=1e-12)


def test_one_full_batch_step_is_centralised_sgd():
    data = sample_data()
    server, client = algorithm("fedavg", Net, lr=0.1)
    state, journals = run(server, client, data, 5, 3)
    with KEY.torch_rng():
        module = Net()
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    seen = []
    for _ in range(5):
        sgd.zero_grad()
        loss = module.loss(data.samples)
        loss.backward()
        sgd.step()
        seen.append(loss.item())
    for key, value in module.named_parameters():
        torch.testing.assert_close(state.weights[key], value.detach(), atol=1e-13, rtol=1e-13)
    losses = [journal.scalars["fed/loss"] for journal in journals]
    assert losses == pytest.approx(seen, rel=1e-12)


def test_evaluation_is_a_mean_over_clients_with_samples():
    data = sample_data()
    server, client = algorithm("fedavg", Net, lr=0.01)
    state, (journal,) = run(server, client, data, 1)
    with KEY.torch_rng():
        module = Net()
    module.load_state_dict(state.weights)
    ones = [data.take(torch.tensor([c])).samples for c in range(len(data)) if data.lengths[c]]
    losses = [module.loss(one).item() for one in ones]
    assert journal.scalars["eval/global_loss"] == pytest.approx(sum(losses) / len(ones), rel=1e-12)
    assert journal.scalars["eval/personal_loss"] < journal.scalars["eval/global_loss"]
    assert not any(name.startswith("test/") for name in journal.scalars)  # no test samples


def test_fedavg_fixed_point_of_quadratic_clients():
    """E full-batch steps map w to w_k* + (I - lr H_k)^E (w - w_k*): a linear fixed point."""
    data, epochs, lr = sample_data([8, 5, 9]), 4, 0.1
    server, client = algorithm("fedavg", Linear, epochs=epochs, lr=lr)
    eye = torch.eye(3, dtype=torch.float64)
    pull, push = torch.zeros_like(eye), torch.zeros(3, dtype=torch.float64)
    for c in range(3):
        one = data.take(torch.tensor([c])).samples
        n = len(one["y"])
        hessian = one["x"].T @ one["x"] / n
        best = torch.linalg.solve(hessian, one["x"].T @ one["y"] / n)
        kept = torch.linalg.matrix_power(eye - lr * hessian, epochs)
        pull += n / 22 * (eye - kept)
        push += n / 22 * (eye - kept) @ best
    fixed = ServerModel({"w": torch.linalg.solve(pull, push)})
    after = server.round(fixed, cohort_of(client, data), KEY)
    torch.testing.assert_close(after.weights["w"], fixed.weights["w"], atol=1e-12, rtol=1e-12)


def test_fedprox_converges_to_the_proximal_point():
    """With many local steps, w_k = (H_k + mu I)^-1 (b_k + mu w): the proximal operator."""
    data = sample_data([8, 5, 9])
    server, client = algorithm("fedprox", Linear, epochs=400, lr=0.1)
    start = server.begin(KEY)
    after = server.round(start, cohort_of(client, data), KEY)
    eye, expected = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for c in range(3):
        one = data.take(torch.tensor([c])).samples
        n = len(one["y"])
        left = one["x"].T @ one["x"] / n + MU * eye
        right = one["x"].T @ one["y"] / n + MU * start.weights["w"]
        expected += n / 22 * torch.linalg.solve(left, right)
    torch.testing.assert_close(after.weights["w"], expected, atol=1e-9, rtol=1e-9)


def test_from_a_round_to_a_step_of_the_optimizer_are_few_files(monkeypatch):
    """Whoever reads how FedAvg trains opens eight, about 1,500 lines."""
    step, files = RowSGD.step, set()

    def noting(*arguments, **options):
        stack = traceback.extract_stack()
        first = next(n for n, frame in enumerate(stack) if frame.name == "round")
        files.update(f.filename for f in stack[first:-1] if "src/coterie" in f.filename)
        return step(*arguments, **options)

    monkeypatch.setattr(RowSGD, "step", noting)
    run(*algorithm("fedavg", Net, batch_size=2), sample_data(), 1)
    files.add(inspect.getfile(RowSGD))
    assert len(files) <= 8, sorted(files)
    assert sum(len(Path(file).read_text().splitlines()) for file in files) <= 1600


def test_fedprox_without_mu_is_fedavg():
    data = sample_data()
    server, client = algorithm("fedavg", Net, epochs=2, batch_size=3)
    plain, _ = run(server, client, data, 2)
    settings = FedProxSettings(mu=0.0, epochs=2, batch_size=3)
    prox, _ = run(FedAvgServer(Net, settings), FedProxClient(Net(), settings), data, 2)
    for key, value in plain.weights.items():
        torch.testing.assert_close(prox.weights[key], value, atol=1e-15, rtol=1e-15)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_client_order_makes_no_difference(name):
    """The same clients, stored in another order under the same ids."""
    data = sample_data()
    server, client = algorithm(name, Net, epochs=2, batch_size=3)
    straight, _ = run(server, client, data, 2, chunk=4)
    turn = torch.arange(len(data)).flip(0)
    turned = data.take(turn)
    state = server.begin(KEY)
    for number in (1, 2):
        cohort = cohort_of(client, data, 3, number)
        cohort = cohort.holding(SplitSamples.of(turned))
        state = server.round(state, cohort, KEY.fold("round", number))
    for key, value in straight.weights.items():
        torch.testing.assert_close(state.weights[key], value, atol=1e-13, rtol=1e-13)


def test_one_client_is_plain_sgd():
    data = sample_data([6])
    server, client = algorithm("fedavg", Linear, epochs=2, lr=0.1)
    state, _ = run(server, client, data, 1)
    w = server.begin(KEY).weights["w"]
    x, y = data.samples["x"], data.samples["y"]
    for _ in range(2):
        w = w - 0.1 * x.T @ (x @ w - y) / 6
    torch.testing.assert_close(state.weights["w"], w, atol=1e-14, rtol=1e-14)
