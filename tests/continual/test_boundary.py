"""What crosses the boundary, and a client whose numbers break."""

import dataclasses

import pytest
import torch
from tests.continual.stream import (
    ABLATIONS,
    BACKBONES,
    METHODS,
    F3CRec,
    block_data,
    settings,
    simulate,
)
from tests.continual.test_chunks import cohort_of

from coterie.continual.client import ContinualClient
from coterie.continual.messages import (
    UPDATE,
    EndedBlock,
    EvaluationTable,
    ItemTable,
    ItemUpdate,
    LookBack,
    StreamReport,
)
from coterie.core.metrics.ranking_report import RankingReport
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.protocol.messages import Down, Private, Report, Up, declared
from coterie.core.protocol.uploads import Sum
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

USERS = {
    2: ([0, 1, 2, 9], [3], [4]),
    5: ([5, 6], [], [1]),
    9: ([7, 8, 9, 10, 11], [1], [12]),
    11: ([3], [4], [5]),
}
DATA = block_data(USERS)
BROKEN = 9


def started(method, backbone="fedmf", data=DATA, **changes):
    """Server state and cohort after block 0, in the first round of block 1."""
    chosen = settings(method, backbone, **changes)
    run = simulate(chosen, [data], n_items=(14,))
    server = F3CRec(chosen, (14, 16))
    cohort = cohort_of(chosen, data, when=(1, 1))
    cohort.store._rows, cohort.store._place = run.store._rows, run.store._place
    cohort.store._count = run.store._count
    state = server.start_block(run.state, 1, cohort, Key.from_seed(8))
    return server, state, cohort


def test_every_upload_is_declared():
    ups = {step.up for step in ContinualClient.steps().values() if step.up is not None}
    assert ups == {ItemUpdate, RankingReport, StreamReport}
    for up in ups:
        assert issubclass(up, Up)
        assert {leaf.name for leaf in declared(up)} == {f.name for f in dataclasses.fields(up)}
    assert issubclass(RankingReport, Report)


def test_the_protocol():
    steps = {name: (step.down, step.up) for name, step in ContinualClient.steps().items()}
    assert set(steps) == {"start_block", "update", "evaluate", "keep_best", "end_block"}
    assert all(down is None or issubclass(down, Down) for down, _ in steps.values())
    assert not any(up is not None and issubclass(up, Private) for _, up in steps.values())


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("method", [*METHODS, *ABLATIONS])
def test_uploads_depend_on_what_they_declare(method, backbone):
    _, state, cohort = started(method, backbone)
    mine, key = cohort.store.take(DATA.ids), cohort.secret.fold(DATA.ids)
    client = cohort.client
    old = state.old if method == "reg" else None

    def change(memory):  # other items, with numbers that exist
        if isinstance(memory, dict):
            return {name: change(value) for name, value in memory.items()}
        return memory + 0.25 if memory.is_floating_point() else (memory + 1) % 14

    perturb = {"memory": change}
    for step, down in (
        ("update", ItemTable(state.items, old)),
        ("evaluate", EvaluationTable(state.items)),
        ("evaluate", EvaluationTable(state.items, "test")),
    ):
        assert_non_interference(client, step, down, mine, DATA, key, perturb)
        up, after = getattr(client, step)(down, tree.clone(mine), DATA, key)
        assert_no_shared_storage(up, after if after is not None else mine)
        assert_no_shared_storage(up, down)


@pytest.mark.parametrize("method", METHODS)
def test_steps_do_not_write_into_what_they_are_given(method):
    _, state, cohort = started(method)
    mine, key = cohort.store.take(DATA.ids), cohort.secret.fold(DATA.ids)
    down = ItemTable(state.items, state.old if method == "reg" else None)
    kept = tree.clone(mine), tree.clone(down), tree.clone(DATA)
    for step, message in (
        ("start_block", LookBack(1, state.old, state.old, state.old)),
        ("update", down),
        ("evaluate", EvaluationTable(state.items, "test")),
        ("keep_best", None),
        ("end_block", EndedBlock(state.items, 0)),
    ):
        getattr(cohort.client, step)(message, mine, DATA, key)
        for now, before in zip((mine, down, DATA), kept, strict=True):
            for (path, a), (_, b) in zip(tree.tensors(now), tree.tensors(before), strict=True):
                assert torch.equal(a, b), (step, path)


def break_params(cohort, how):
    """Give one client private parameters that cannot be trained on."""
    ids = torch.tensor([BROKEN])
    mine = cohort.store.take(ids)
    value = {"nan": float("nan"), "overflow": 1e200}[how]
    params = {name: torch.full_like(v, value) for name, v in mine.params.items()}
    cohort.store.commit(ids, dataclasses.replace(mine, params=params))


def bits(profile):
    return {path: value.numpy().tobytes() for path, value in tree.tensors(profile)}


@pytest.mark.parametrize(
    ("backbone", "how"),  # only FedMF's p_u enters squared, and overflows
    [*((name, "nan") for name in BACKBONES), ("fedmf", "overflow")],
)
@pytest.mark.parametrize("method", ["ft", "reg", "spp", "f3crec"])
def test_a_broken_client_is_left_out(method, backbone, how):
    server, state, cohort = started(method, backbone)
    break_params(cohort, how)
    broken = torch.tensor([BROKEN])
    before = bits(cohort.store.take(broken))
    after = server.round(state, cohort, Key.from_seed(4))
    refused = [(step, client) for step, client, _ in cohort.journal.refused]
    assert ("update", BROKEN) in refused
    assert {client for _, client in refused} == {BROKEN}
    assert all("NaN or infinity" in why for _, _, why in cohort.journal.refused)
    now = bits(cohort.store.take(broken))
    if how == "overflow":  # finite before training: other steps than the update are accepted
        now, before = (
            {n: v for n, v in b.items() if n.startswith("params")} for b in (now, before)
        )
    assert now == before
    assert cohort.journal.scalars["fed/clients"] == 3

    # The others: as if the broken one had not been there.
    server, state2, full = started(method, backbone)
    for name, value in tree.tensors(state):
        assert torch.equal(value, dict(tree.tensors(state2))[name])
    others = full.part((DATA.ids != BROKEN).nonzero().flatten())
    alone = server.round(state2, others, Key.from_seed(4))
    torch.testing.assert_close(after.items, alone.items, rtol=0, atol=1e-13)
    ids = others.ids
    for (path, a), (_, b) in zip(
        tree.tensors(cohort.store.take(ids)), tree.tensors(full.store.take(ids)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13, msg=path)


@pytest.mark.parametrize("method", [*METHODS, "f3crec-wo-arm"])
def test_a_broken_client_does_not_end_the_run(method):
    """All steps of a block, tests included, go on without it."""
    server, state, cohort = started(method)
    break_params(cohort, "nan")
    ids = torch.tensor([BROKEN])
    mine = cohort.store.take(ids)
    cohort.store.commit(ids, dataclasses.replace(mine, best=mine.params))
    state = server.start_block(
        dataclasses.replace(state, block=0), 1, dataclasses.replace(cohort), Key.from_seed(8)
    )
    state = server.round(state, cohort, Key.from_seed(4))
    state = server.end_block(state, cohort, Key.from_seed(5))
    assert {client for _, client, _ in cohort.journal.refused} == {BROKEN}
    assert bool(state.items.isfinite().all())
    assert 0 <= cohort.journal.scalars["test/block1/ndcg@20"] <= 1
    ids, _ = cohort.journal.clients["test/ndcg@20"]
    assert BROKEN not in ids.tolist()


def test_nobody_is_left():
    """If all answers are refused, the table stays."""
    server, state, cohort = started("f3crec")
    mine = cohort.store.take(DATA.ids)
    params = {name: value * float("nan") for name, value in mine.params.items()}
    cohort.store.commit(DATA.ids, dataclasses.replace(mine, params=params))
    after = server.round(state, cohort, Key.from_seed(4))
    torch.testing.assert_close(after.items, state.items, rtol=0, atol=1e-15)
    assert len([1 for step, _, _ in cohort.journal.refused if step == "update"]) == 4


def test_the_upload_of_a_client_holds_its_touched_rows_only():
    _, state, cohort = started("ft", model={"negatives": 0})
    rows = cohort.ask(UPDATE, ItemTable(state.items)).up.items.wire()
    assert rows.index.tolists() == [sorted(train) for train, _, _ in USERS.values()]


def test_folding_is_the_sum_of_the_uploads():
    _, state, cohort = started("f3crec")
    down = ItemTable(state.items)
    kept = cohort.ask(UPDATE, down).up.items.dense().mean(0)
    _, _, again = started("f3crec")
    folded = again.ask(UPDATE, down, reduce=Sum()).total.items.sum() / len(USERS)
    torch.testing.assert_close(folded, kept, rtol=0, atol=1e-15)
