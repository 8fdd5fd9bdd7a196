"""An upload as it leaves a scenario whose uploads are clipped and get noise, for the attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from coterie.core.local_training.row_optimizer import Params
from coterie.core.methods.kit.fields import changed
from coterie.core.privacy.noise import Clip, GaussianNoise
from coterie.core.protocol.messages import Up
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key


@dataclass(frozen=True)
class _Sent(Up):
    change: Params = changed("what is attacked")


def behind_noise(
    increments: Mapping[str, Tensor], clip: float, scales: Sequence[float], key: Key
) -> dict[str, Params]:
    """Protect an upload in several ways, with the core's own clipping and Gaussian noise.

    Args:
        increments: of one scenario, plain, of any shapes.
        clip: largest L2 norm C of all of them together.
        scales: noise multipliers: N(0, (scale · C)²) is added to every number. All use the same
            draws.
        key: of the scenario, one key.

    Returns:
        The uploads by what was done: ``plain``, ``clipped``, and ``noise s`` for each scale s.

    Example:
        >>> import torch
        >>> found = behind_noise({"w": torch.tensor([3.0, 4.0])}, 1.0, [0.5], Key.from_seed(0))
        >>> list(found), found["clipped"]["w"].tolist()
        (['plain', 'clipped', 'noise 0.5'], [0.6000000238418579, 0.800000011920929])
    """
    one = Key(key.state.reshape(1))
    clipped = Clip(clip)(_Sent(tree.as_stack(dict(increments))), one)
    found = {"plain": dict(increments), "clipped": tree.as_one(clipped.change)}
    for scale in scales:
        noisy = GaussianNoise(scale * clip)(clipped, one)
        found[f"noise {scale:g}"] = tree.as_one(noisy.change)
    return found
