"""FedAvg as one writes it in an afternoon: modules, optimizers, batches; nothing of the core."""

import copy

import torch

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def plain_fedavg(module, batches, sizes, rounds, lr, optimizer=torch.optim.SGD, **options):
    """Train; batches of clients are ``batches(client, round)``. Gives the server's parameters.

    Running statistics stay with the clients.
    """
    server = copy.deepcopy(module)
    own = [copy.deepcopy(module).train() for _ in sizes]
    for number in range(1, rounds + 1):
        total = {n: torch.zeros_like(p) for n, p in server.named_parameters()}
        for client, (size, local) in enumerate(zip(sizes, own, strict=True)):
            with torch.no_grad():
                for name, value in local.named_parameters():
                    value.copy_(dict(server.named_parameters())[name])
            steps = optimizer(local.parameters(), lr=lr, **options)
            for batch in batches(client, number):
                steps.zero_grad()
                loss = local.loss(local(batch[0]), batch[1])
                loss.backward()
                steps.step()
            for name, value in local.named_parameters():
                total[name] += size * value.detach() / sum(sizes)
        with torch.no_grad():
            for name, value in server.named_parameters():
                value.copy_(total[name])
    return {n: p.detach() for n, p in server.named_parameters()}, own


def same(module, right):
    """Whether a module has these parameters; and that they have moved from its own class's."""
    first = dict(type(module)().named_parameters())
    moved = 0.0
    for name, value in module.named_parameters():
        torch.testing.assert_close(value.detach(), right[name], rtol=0, atol=1e-6, msg=name)
        moved = max(moved, float((first[name] - value).detach().abs().max()))
    assert moved > 1e-2
