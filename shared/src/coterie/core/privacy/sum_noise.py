"""Noise of the server's, once, on a sum of what clients have clipped (DP-FedAvg).

McMahan, Ramage, Talwar and Zhang (ICLR 2018); the sum is divided by who answered, which is no
secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.core.errors import UserError
from coterie.core.privacy.noise import GaussianNoise
from coterie.core.privacy.releases import release_count
from coterie.core.protocol.uploads import UNBOUNDED, Fold
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key

SECRET_BYTES = 32


@dataclass(frozen=True)
class Summed:
    """What a sum is of.

    Attributes:
        step: that was asked for.
        when: coordinates of the round.
        draw: number of the ask for that step in the round.
        ending: whether it is asked at the end of a block, in which the numbers may begin anew.
        ids: ``(A,)`` whose answers are in it.
    """

    step: str
    when: tuple[int, ...]
    draw: int
    ending: bool
    ids: Tensor


@dataclass(frozen=True)
class SumNoise:
    """Adds N(0, σ²) to every number of a sum that is a release.

    It is drawn by the round and by whose answers are in the sum, under a secret of the server's. So
    a sum that is made again, by a run that goes on or in another try, gets the same noise, which
    tells nothing new; and one of other clients gets another, so that the difference of both is
    hidden as well.

    Attributes:
        settings: of clip and noise.
        secret: of the server.
    """

    settings: PrivacySettings
    secret: bytes

    def covers(self, step: str) -> bool:
        """Whether sums of answers to a step get noise."""
        return not self.settings.steps or step in self.settings.steps

    def checked(self, step: str, fold: Fold | None) -> Fold:
        """The fold by which clients' answers are summed, so that each moves the sum by C at most.

        Raises:
            UserError: they are not, or some weigh more than others.
        """
        if fold is None:
            raise UserError(
                f"'privacy.at' server adds noise to sums, and this method's server looks at the "
                f"answer of each client to '{step}': leave it out, for noise of the clients' own"
            )
        if not fold.counts_alike:
            raise UserError(
                "'privacy.at' server needs clients that count alike, or else one with many samples "
                "moves the sum by more than privacy.clip: set 'weighting' to equal"
            )
        return fold

    def __call__(self, fold: Fold, total: Any, made: Summed) -> Any:
        """Add the noise to what a fold gave.

        Raises:
            UserError: the sum has nothing that noise could cover.
        """
        sums, weight = fold.sums(total, made.ids.numel(), UNBOUNDED)
        if not release_count(sums):
            raise UserError(
                f"'privacy.at' server: the sum of the answers to '{made.step}' has nothing that "
                "noise could cover: leave it out"
            )
        key = Key(self.key(made).state[None])
        noisy = GaussianNoise(self.settings.scale)(tree.as_stack(sums), key)
        return fold.total(tree.as_one(noisy), torch.tensor(weight))

    def key(self, made: Summed) -> Key:
        """By which the noise of a sum is drawn."""
        said = repr((made.step, made.when, made.draw, made.ending)).encode()
        return self._key(b"noise", said, made.ids.sort().values.cpu().numpy().tobytes())

    def draws(self, when: tuple[int, ...], ids: Tensor, key: Key) -> Key:
        """By which a round's clients are drawn of ``ids``, where ``key`` is none of its secrets."""
        said = repr((when, key.state.tolist())).encode()
        return self._key(b"draw", said, ids.cpu().numpy().tobytes())

    def _key(self, *parts: bytes) -> Key:
        made = hashlib.blake2b(digest_size=8, key=self.secret)
        for part in parts:
            made.update(len(part).to_bytes(8, "big") + part)
        state = torch.tensor(int.from_bytes(made.digest(), "big", signed=True))
        return Key(state)


def sum_noise(settings: PrivacySettings, secret: bytes) -> SumNoise | None:
    """The server's noise by these settings; None where clients add their own, or nobody."""
    return SumNoise(settings, secret) if settings.at == "server" else None


def simulated_secret(settings: Mapping[str, Any]) -> bytes:
    """The secret of a simulated server, of all that its run keeps, the seed among it.

    So no two runs have the same noise, unless they are the same, on data that may have changed.
    """
    said = "\n".join(f"{key}={settings[key]!r}" for key in sorted(settings))
    return hashlib.blake2b(said.encode(), digest_size=SECRET_BYTES).digest()
