"""Parameters packed and named again."""

import torch
from tests.assisted.plain_aae import KEY

from coterie.assisted.aae import training
from coterie.assisted.aae.network import AAE
from coterie.assisted.aae.training import Packing


def test_what_is_packed_comes_back(monkeypatch):
    network = AAE(7, 90, {"profile": 2}, hidden=6, code=3)
    named = network.start(KEY)
    named = {name: named[name] for name in reversed(named)}  # in any order
    for large, tensors in ((1 << 16, 1), (100, 2), (7, 8)):
        monkeypatch.setattr(training, "_LARGE", large)
        packed = Packing(network.shapes).pack(named)
        assert len(packed) == tensors
        back = Packing(network.shapes).unpack(packed)
        assert back.keys() == named.keys()
        assert all(torch.equal(back[name], named[name]) for name in named)
    monkeypatch.setattr(training, "_LARGE", 100)
    kept = Packing(network.shapes).pack(named)["decoder.wide.weight"]
    assert kept is named["decoder.wide.weight"]
