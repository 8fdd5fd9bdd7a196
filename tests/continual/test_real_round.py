"""The first round of the base block of MovieLens-100K against a loop over all its users."""

from dataclasses import replace

import pytest
import torch
from tests.continual import reference as naive
from tests.continual.test_chunks import cohort_of

from coterie.continual.algorithm import F3CRec
from coterie.continual.batches import draw_batches
from coterie.continual.messages import UPDATE, ItemTable
from coterie.continual.settings import ModelSettings, Settings
from coterie.core.data.interactions.blocks import temporal_blocks
from coterie.core.data.interactions.kcore import k_core
from coterie.core.data.interactions.splits import split_block
from coterie.core.data.sources.catalogue import load
from coterie.core.protocol.folds import Sum
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors.keys import Key

pytestmark = pytest.mark.real_data


@pytest.fixture(scope="module")
def base_block(data_root):
    stream = temporal_blocks(k_core(load("ml-100k", root=str(data_root)), 10))
    return split_block(stream, stream.blocks[0], "random", 0), stream.blocks[0].n_items


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-10)])
def test_first_round_of_the_base_block(base_block, dtype, tolerance):
    """Both against autograd in float64, on the same samples; settings of the public code."""
    data, n_items = base_block
    assert (len(data.ids), n_items, data.train.values.numel()) == (587, 1136, 46_552)
    model = ModelSettings(lr=1.0)
    chosen = Settings(method="ft", model=model, engine=EngineSettings(dtype=dtype))
    cohort = cohort_of(chosen, data)
    cohort.enrol()
    # Away from the start N(0, .01²), where hardly anything moves.
    items = 20 * F3CRec(chosen, (n_items,)).begin(Key.from_seed(1)).items
    mine = cohort.store.take(data.ids)
    mine = replace(mine, params={"user": 20 * mine.params["user"]})
    cohort.store.commit(data.ids, mine)
    replies = cohort.ask(UPDATE, ItemTable(items), reduce=Sum())
    found = items + replies.total.items.sum() / len(replies)
    users = cohort.store.take(data.ids).params["user"]

    key = cohort.secret.fold(data.ids).fold("update", 0, 1, 0).fold("batches")
    batches = draw_batches(
        key, data.train, n_items, negatives=4, batch_size=512, epochs=1, dtype=torch.float64
    )
    table, total, losses, moved = items.double(), torch.zeros(n_items, 32).double(), 0.0, 0.0
    for user, samples in enumerate(naive.expand(batches, len(data.ids))):
        start = {"user": mine.params["user"][user].double()}
        change, params, loss, _ = naive.train_user(model, start, table, samples)
        total += change
        losses += loss
        moved = max(moved, float(change.abs().max()))
        torch.testing.assert_close(users[user].double(), params["user"], rtol=0, atol=tolerance)
    expected = table + total / len(data.ids)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance)
    assert float(replies.total.loss / len(replies)) == pytest.approx(
        losses / len(data.ids), abs=tolerance
    )
    assert moved > 1
