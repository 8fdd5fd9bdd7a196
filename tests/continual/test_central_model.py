"""The plain modules that `Central` trains have the loss and gradients of the stacked local step."""

import pytest
import torch
from tests.core.headed_models import FedMFHead, FedNCFHead, HeadedModel, PFedRecHead
from torch.nn import functional

from coterie.continual.backbones import make_backbone
from coterie.continual.batches import draw_batches
from coterie.continual.local_training import LocalTraining
from coterie.continual.settings import ModelSettings
from coterie.core.models.recommender import Pairs
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

DIM, N_ITEMS, LR, ITEM_LR = 4, 9, 0.3, 0.7
KEY = Key.from_seed(2)
OF_USER = torch.tensor([3])
HEADS = {
    "fedmf": lambda: FedMFHead(),
    "fedncf": lambda: FedNCFHead(DIM, KEY),
    "pfedrec": lambda: PFedRecHead(DIM, KEY),
}


def module_of(name, params, table):
    """The module with the parameters of one user."""
    model = HeadedModel(HEADS[name](), 1, N_ITEMS, DIM, KEY).double()
    with torch.no_grad():
        model.items.weight.copy_(table)
        if "user" in params:
            model.users.weight.copy_(params["user"])
        if name == "fedncf":
            weight = torch.cat([params["w_user"], params["w_item"]], dim=1)
            model.head.input.weight.copy_(weight)
            model.head.input.bias.copy_(params["bias"])
        if name == "pfedrec":
            model.head.out.weight.copy_(params["weight"])
            model.head.out.bias.copy_(params["bias"])
    return model


@pytest.mark.parametrize("name", list(HEADS))
def test_loss_and_gradients_of_one_batch(name):
    backbone = make_backbone(ModelSettings(name=name, lr=LR, lr_eta=1.0, init_std=1.0))
    params = backbone.start(KEY.fold(OF_USER), DIM, torch.float64)
    table = KEY.fold("table").normal(N_ITEMS, DIM, dtype=torch.float64)
    batches = draw_batches(
        KEY.fold(OF_USER).fold("batch"),
        Ragged.from_lists([[0, 2, 5]]),
        N_ITEMS,
        negatives=2,
        batch_size=64,
        epochs=1,
        dtype=torch.float64,
    )
    trained = LocalTraining(backbone, table, params, batches, ITEM_LR).run()

    user = torch.zeros(batches.item.numel(), dtype=torch.int64)
    pairs = Pairs(user, batches.item, batches.label)
    model = module_of(name, params, table)
    loss = model.loss(pairs)
    scores = model.score(pairs.user, pairs.item)
    expected = functional.binary_cross_entropy_with_logits(scores, pairs.label)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(trained.loss[0], loss.detach(), rtol=0, atol=1e-12)
    loss.backward()
    if name == "pfedrec":  # items step after the head, with a forward of their own
        moved = module_of(name, trained.params, table)
        moved.loss(pairs).backward()
        torch.testing.assert_close(
            trained.params["weight"], params["weight"] - LR * model.head.out.weight.grad
        )
        item_gradient = moved.items.weight.grad
    else:
        torch.testing.assert_close(
            trained.params["user"], params["user"] - LR * model.users.weight.grad
        )
        item_gradient = model.items.weight.grad
    torch.testing.assert_close(
        trained.rows.dense()[0], -ITEM_LR * item_gradient, rtol=0, atol=1e-12
    )
