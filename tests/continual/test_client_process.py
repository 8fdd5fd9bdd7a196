"""F³CRec's client half in a process of its own answers the in-process engine's bytes."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from tests.in_process import cohort_in_process, in_process_bytes, request_bytes

from coterie.continual.client import make_client
from coterie.continual.messages import EvaluationTable, ItemTable, LookBack
from coterie.core.data.interactions.user_rows import UserRows
from coterie.core.engines.folder import ClientFolder
from coterie.core.engines.process import serve
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.protocol.journal import Journal
from coterie.core.tensors.keys import Key
from coterie.core.tensors.ragged import Ragged

SETTINGS = {
    "model.dim": 4,
    "model.batch_size": 8,
    "replay.top_n": 5,
    "replay.epsilon": 0.01,
    "replay.lambda_kd": 1.0,
    "kd.strength": 1.0,
}
SECRET = Key.from_seed(3).fold("clients")
FORBIDDEN = {
    "lightning",
    "wandb",
    "pandas",
    "coterie.continual.algorithm",
    "coterie.core.federation.cohort",
}


def blocks():
    ids = torch.tensor([0, 1, 2])
    first = [[0, 1, 2, 3, 4], [5, 6], [1, 3, 5, 7]]
    second = [[8, 9, 10], [0, 11, 2, 4, 6, 8], [9]]
    nothing = Ragged.from_lists([[], [], []])
    held = Ragged.from_lists([[6], [], [2]])
    return [
        UserRows(ids, Ragged.from_lists(first), held, nothing),
        UserRows(ids, Ragged.from_lists(second), nothing, held),
    ]


def table(n_items):
    return Key.from_seed(5).fold(torch.arange(n_items)).normal(4)


def asks():
    """Every step of two blocks: (block, round, step, message, how often asked before)."""
    best = ItemTable(table(10) * 1.5)
    yield 0, 1, "update", ItemTable(table(10)), 0
    yield 0, 1, "evaluate", EvaluationTable(table(10)), 0
    yield 0, 1, "keep_best", None, 0
    yield 0, 1, "end_block", best, 0
    yield 1, 0, "start_block", LookBack(best.items, table(10), -table(10)), 0
    yield 1, 1, "update", ItemTable(table(12), best.items), 0
    yield 1, 1, "keep_best", None, 0
    yield 1, 1, "end_block", ItemTable(table(12)), 0
    yield 1, 1, "evaluate", EvaluationTable(table(12), "test"), 0


@pytest.mark.parametrize("backbone", ["fedmf", "fedncf", "pfedrec"])
@pytest.mark.parametrize("method", ["ft", "reg", "kd", "rlp2", "spp", "f3crec"])
def test_the_process_answers_the_same_bytes(tmp_path, method, backbone):
    settings = SETTINGS | {"method": method, "model.name": backbone, "model.lr": 0.05}
    client, store = make_client(**settings), PrivateStore()
    place = torch.tensor([1])
    for block, round_, step, down, asked in asks():
        data = blocks()[block]
        cohort = cohort_in_process(
            client, data, store, SECRET, (block, round_), Ledger(), Journal(), chunk=1
        )
        cohort.enrol()
        expected = in_process_bytes(cohort, step, down, asked)[1]
        request = request_bytes(cohort, step, down, asked)
        folder = ClientFolder.create(
            tmp_path,
            "coterie.continual.client:make_client",
            data.take(place),
            SECRET.fold(1),
            arguments=settings,
        )
        # One step in a real child of its own; the others through the same code in this process.
        real = method == "f3crec" and backbone == "fedmf" and step == "update" and block == 1
        if real:
            command = [sys.executable, "-X", "importtime", "-m", "coterie.core.engines.process"]
            done = subprocess.run(
                [*command, "--folder", str(folder.path)], input=request, capture_output=True
            )
            assert done.returncode == 0, done.stderr.decode()[-500:]
            reply = done.stdout
            imported = {line.split("|")[-1].strip() for line in done.stderr.decode().splitlines()}
            assert not {name for name in imported if name.split(".")[0] in FORBIDDEN}
            assert not FORBIDDEN & imported
        else:
            reply = serve(folder.path, request)
        assert reply == expected, step


def test_a_client_holds_its_own_secret_only(tmp_path):
    data = blocks()[0].take(torch.tensor([1]))
    factory = "coterie.continual.client:make_client"
    folder = ClientFolder.create(tmp_path, factory, data, SECRET.fold(1), arguments=SETTINGS)
    assert int(folder.secret.state) != int(SECRET.state)
    assert {field.name for field in dataclasses.fields(data)} == {"ids", "train", "valid", "test"}
    assert data.ids.tolist() == [1]
    assert data.train.tolists() == [[5, 6]]
