"""A stream under `lightning.Trainer` is the stream of the plain driver of these tests."""

import lightning
import pytest
import torch
from tests.continual.stream import N_ITEMS, make_stream, settings, simulate

from coterie.continual.algorithm import F3CRec
from coterie.continual.client import ContinualClient
from coterie.core.federation.federation import Federation
from coterie.core.run.driver import FederatedRun
from coterie.core.tensors import tree
from coterie.core.training.module import FederatedModule


@pytest.mark.parametrize("method", ["f3crec", "spp"])
def test_same_run(method, tmp_path):
    blocks, chosen = make_stream(40), settings(method, rounds=3)
    run = simulate(chosen, blocks)
    parts = F3CRec(chosen, N_ITEMS), ContinualClient(chosen), blocks
    module = FederatedRun(Federation(*parts, seed=chosen.seed, rounds=chosen.rounds))
    lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    ).fit(FederatedModule(module))
    assert module.finished
    ids, profile = run.private()
    theirs = dict(tree.tensors(module.store.take(ids)))
    for name, value in tree.tensors(profile):
        assert torch.equal(theirs[name], value), name
    for name, value in tree.tensors(run.state):
        assert torch.equal(dict(tree.tensors(module.server_state))[name], value), name
    tests = {n: v for s in run.scalars for n, v in s.items() if n.startswith(("test/", "valid/"))}
    assert module.results == tests
    assert len(tests) == 15
