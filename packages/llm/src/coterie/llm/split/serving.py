"""The server's half of a run, made of the same settings as the client's."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from coterie.core.errors import UserError
from coterie.core.files import writing
from coterie.core.registry.data_sets import data_sets, default_core
from coterie.core.settings.schema import values_of
from coterie.llm.backbones.base import Backbone
from coterie.llm.settings import FederatedDataSettings, Settings
from coterie.llm.split.cut import Cut, cut
from coterie.llm.split.middle import Middle
from coterie.llm.split.state_folder import StateFolder
from coterie.llm.split.training import Limits, Training

_SHARED = ("model.", "pretrain.", "lora.")  # sections both sides must agree on
# Of the data: what decides which examples the backbone is pre-trained on, and how they are read.
_PUBLIC = ("columns", "min_rating", "public", "max_history", "min_history", "span", "stride")


def training_of(settings: Settings) -> Training:
    """Give the way the middle is trained: as the client trains its own part.

    Args:
        settings: with the reading's choices resolved.
    """
    train = settings.train
    mu = train.mu if settings.method == "fedprox" else 0.0
    return Training(train.lr, mu=mu, keep_optimizer=train.keep_optimizer)


def agreement(settings: Settings) -> str:
    """Write down what client and server must agree on, for `coterie.llm.split.cut.cut`.

    Args:
        settings: with the reading's choices resolved.
    """
    how = training_of(settings)
    shared = {n: v for n, v in values_of(settings).items() if n.startswith(_SHARED)}
    shared |= {"seed": settings.seed, "dtype": settings.engine.dtype}
    shared |= {"data": _public_data(settings.data)}
    shared |= {"lr": how.lr, "mu": how.mu, "keep_optimizer": how.keep_optimizer}
    return json.dumps(shared, sort_keys=True, default=str)


def _public_data(data: FederatedDataSettings) -> dict[str, Any]:
    """Describe the public slice: the same wherever the data lie, another if it is another."""
    least = default_core(data.name) if data.min_interactions is None else data.min_interactions
    chosen = {name: getattr(data, name) for name in _PUBLIC}
    return {"source": _source(data.name), "min_interactions": least, **chosen}


def _source(name: str) -> str:
    """A known name, or for a file of the user's own the digest of what is in it."""
    path = Path(name).expanduser()
    if name in data_sets() or not path.is_file():
        return name
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def rounds_to_keep(settings: Settings) -> int:
    """Count the committed rounds that a server must keep for a run that is killed at any moment.

    Since the last checkpoint of the coordinator it has committed up to ``checkpoint_every`` rounds;
    to go on, it must have the one before those. A second stage begins by going back one more.

    Args:
        settings: with the reading's choices resolved.
    """
    return settings.run.checkpoint_every + (2 if (settings.train.stages or 1) > 1 else 1)


def cut_backbone(backbone: Backbone, k: int, settings: Settings) -> Cut:
    """Cut a backbone in two, as `coterie.llm.split.cut.cut`, with the settings' agreement.

    Raises:
        UserError: k is out of range, or the layers are of a kind that cannot be split.
    """
    return cut(backbone, k, settings=agreement(settings))


def make_middle(
    parts: Cut, settings: Settings, limits: Limits | None = None, state: Path | None = None
) -> Middle:
    """Make the server's half of a backbone that is cut.

    Args:
        parts: with the middle.
        settings: of the run.
        limits: of a client's use.
        state: folder of committed rounds; None for memory only.

    Raises:
        UserError: the middle is not here, has nothing to train, or the folder is of another model.
    """
    if parts.stack is None:
        raise UserError("the middle is not here: it is the server's")
    folder = None if state is None else StateFolder(state, parts.model)
    return Middle(parts.stack, training_of(settings), limits=limits, folder=folder)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a folder of committed rounds; a second server would overwrite the first one's.

    Raises:
        UserError: another process holds it, or it cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (folder / "lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another server uses {folder}: stop it, or choose another folder by --state DIR"
            ) from None
        yield


def parse_layers(text: str) -> tuple[int, int]:
    """Read which layers the server has, as ``k:N-1``.

    Raises:
        UserError: it is no such range.

    Example:
        >>> parse_layers("2:7")
        (2, 7)
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise UserError(
            f"--layers '{text}' is no range: write the first layer of the server and the one after "
            "its last, from 0, as 2:7"
        )
    return int(found[1]), int(found[2])


def check_layers(layers: tuple[int, int], backbone: Backbone) -> int:
    """Compare a range with the model; give k.

    Raises:
        UserError: the client would not keep some lower layers and exactly the last one.
    """
    (first, end), total = layers, len(backbone.layers)
    if end != total - 1 or first < 1:
        last = total - 1
        remedy = f"as {min(max(first, 1), last - 1)}:{last}" if total > 2 else "with more layers"
        raise UserError(
            f"--layers {first}:{end} does not fit a model of {total} layers, of which the client "
            f"keeps the lowest and the last: serve it {remedy}"
        )
    return first


def use_threads(settings: Settings) -> None:
    """Use as many threads as the settings say."""
    if settings.engine.threads is not None:
        torch.set_num_threads(settings.engine.threads)
