"""Both kinds of backbones, split across a real second process, in float32 and bfloat16."""

from pathlib import Path

import pytest
import torch
from tests.llm.split_process import Server
from tests.llm.split_server import tiny
from tests.llm.tiny_split import batch, gradients
from torch import Tensor

from coterie.core.local_training.row_optimizer import RowState
from coterie.llm.adapter import Adapter
from coterie.llm.mixing import Mixing
from coterie.llm.split.cut import cut
from coterie.llm.split.part import Part

STEMS = {"llama": "network.model.layers", "longformer": "network.encoder.layer"}
ADAPTED = {"llama": 4, "longformer": 8}  # tensors of LoRA in a layer


def of_the_middle(part: Part, kind: str, n_layers: int, k: int, dtype: str) -> dict[str, Tensor]:
    """Gradients of the server's part by what it keeps, named as in the whole model.

    After the first step Adam's first moment is a tenth of the gradient.
    """
    parts = cut(tiny(kind, n_layers, dtype), k)
    assert isinstance(part.optimizer, RowState)
    row = part.optimizer.moments["exp_avg"]["row"][0] / 0.1
    named = Adapter(parts.stack.named_parameters()).named_tensors(row)
    pieces = {name: name.split(".", 2)[1:] for name in named}
    return {
        f"{STEMS[kind]}.{int(place) + k}.{rest}": named[name]
        for name, (place, rest) in pieces.items()
    }


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "n_layers", "k"), [("llama", 4, 1), ("longformer", 5, 2)])
def test_a_second_process_computes_what_the_whole_model_does(
    kind: str, n_layers: int, k: int, dtype: str, side: str, tmp_path: Path, servers: list[Server]
) -> None:
    """To the last bit on this side; of the other side we see the moments, rounded in float32."""
    flags = ["--kind", kind, "--dtype", dtype]
    servers.append(Server(tmp_path, *flags, n_layers=n_layers, k=k))
    tokens, mask = batch(side=side)
    whole = tiny(kind, n_layers, dtype)
    loss = whole.value(tokens, mask)
    loss.backward()
    expected = gradients(whole)

    backbone = tiny(kind, n_layers, dtype)
    parts = cut(backbone, k)
    parts.release()
    channel, layers = servers[0].channel(parts.model), servers[0].layers(parts.model, 1)
    parts.connect(channel)
    start = layers.begin()
    layers.use(start)
    with channel.session(0, training=True):
        split_loss = backbone.value(tokens, mask)
        split_loss.backward()
        channel.step()

    one = torch.tensor([0])
    kept = layers.mix(start, Mixing(one, one, torch.eye(1).double()), 1, floor=0, best=0)
    assert {grad.dtype for grad in expected.values()} == {getattr(torch, dtype)}
    assert split_loss == loss
    stem = STEMS[kind]
    last, moved = f"{stem}.{n_layers - 1}.", f"{stem}.{k + 1}."
    mine = {name.replace(moved, last): grad for name, grad in gradients(backbone).items()}
    theirs = of_the_middle(servers[0].part(kept), kind, n_layers, k, dtype)
    assert len(theirs) == ADAPTED[kind] * (n_layers - 1 - k)
    assert mine.keys().isdisjoint(theirs)
    assert (mine | theirs).keys() == expected.keys()
    for name, grad in mine.items():
        assert torch.equal(grad, expected[name]), name
    for name, grad in theirs.items():
        assert bool(expected[name].any()), name
        torch.testing.assert_close(grad, expected[name].float(), rtol=1e-5, atol=1e-6, msg=name)
