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
from coterie.core.data.interactions.interactions import k_core
from coterie.core.data.interactions.splits import split_block, temporal_blocks
from coterie.core.data.sources.catalogue import load
from coterie.core.protocol.uploads import Sum
from coterie.core.settings.sections import EngineSettings
from coterie.core.tensors.keys import Key

pytestmark = pytest.mark.real_data


@pytest.fixture(scope="module")
def base_block(data_root):
    stream = temporal_blocks(k_core(load("ml-100k", root=str(data_root)), 10))
    return split_block(stream, stream.blocks[0], "random", 0), stream.blocks[0].n_items


def started(base_block, dtype):
    """The cohort of all users and the table, both in float32 as they begin, but far from there."""
    data, n_items = base_block
    single, chosen = (
        Settings(method="ft", model=ModelSettings(lr=1.0), engine=EngineSettings(dtype=one))
        for one in ("float32", dtype)
    )
    kind = getattr(torch, dtype)
    # Away from the start N(0, .01²), where hardly anything moves.
    items = 20 * F3CRec(single, (n_items,)).begin(Key.from_seed(1)).items
    first, cohort = cohort_of(single, data), cohort_of(chosen, data)
    first.enrol()
    cohort.enrol()
    users = 20 * first.store.take(data.ids).params["user"]
    mine = cohort.store.take(data.ids)
    assert mine.params["user"].dtype == kind
    cohort.store.commit(data.ids, replace(mine, params={"user": users.to(kind)}))
    return cohort, items.to(kind)


@pytest.fixture(scope="module")
def expected(base_block):
    """Users and table after the round, and mean loss: by autograd in float64, user by user."""
    data, n_items = base_block
    assert (len(data.ids), n_items, data.train.values.numel()) == (587, 1136, 46_552)
    cohort, table = started(base_block, "float64")
    params, model = cohort.store.take(data.ids).params, cohort.client.settings.model
    key = cohort.secret.fold(data.ids).fold("update", 0, 1, 0).fold("batches")
    batches = draw_batches(
        key, data.train, n_items, negatives=4, batch_size=512, epochs=1, dtype=torch.float64
    )
    total, losses, moved, users = torch.zeros(n_items, 32).double(), 0.0, 0.0, []
    for user, samples in enumerate(naive.expand(batches, len(data.ids))):
        start = {"user": params["user"][user]}
        change, after, loss, _ = naive.train_user(model, start, table, samples)
        total += change
        losses += loss
        moved = max(moved, float(change.abs().max()))
        users.append(after["user"])
    assert moved > 1
    return torch.stack(users), table + total / len(data.ids), losses / len(data.ids)


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float64", 1e-10)])
def test_first_round_of_the_base_block(base_block, expected, dtype, tolerance):
    """From the same start, on the same samples; settings of the public code."""
    data, _ = base_block
    users, table, loss = expected
    cohort, items = started(base_block, dtype)
    replies = cohort.ask(UPDATE, ItemTable(items), reduce=Sum())
    assert replies.total.loss.dtype == items.dtype
    after = cohort.store.take(data.ids).params["user"]
    torch.testing.assert_close(after.double(), users, rtol=0, atol=tolerance)
    found = items + replies.total.items.sum() / len(replies)
    torch.testing.assert_close(found.double(), table, rtol=0, atol=tolerance)
    assert float(replies.total.loss / len(replies)) == pytest.approx(loss, abs=tolerance)
