"""A run that goes on needs the callbacks that were given to it as objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning
from lightning.pytorch import callbacks as theirs

from coterie.core.errors import UserError

_OURS = ("Blocks", "Checkpoints", "Costs", "Curves", "PrivacyBudget", "Refusals", "RoundProgress")
_OF_FLAGS = (*_OURS, "StreamScore", "TranscriptFile")


class GivenAgain(theirs.Callback):
    """Refuse to go on without a callback that has a state in the checkpoint, as early stopping has.

    Settings name some, and may leave them out when a run goes on; objects are in no settings, and
    without them the run would silently come to other numbers.
    """

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        """Look for them.

        Raises:
            UserError: one is missing.
        """
        given = {callback.state_key for callback in trainer.callbacks}  # type: ignore[attr-defined]
        named = checkpoint.get("hyper_parameters", {}).get("trainer.callbacks") or ()
        known = {*_OF_FLAGS, *map(_class_name, named)}
        for key in checkpoint.get("callbacks", {}):
            name = key.partition("{")[0]
            if key not in given and name not in known:
                raise UserError(
                    f"the run was trained with the callback {name}, an object: go on with "
                    f"run.resume(callbacks=[{name}(...)]), made as it was"
                )


def _class_name(given: str | Mapping[str, Any]) -> str:
    path = given if isinstance(given, str) else str(given["class_path"])
    return path.replace(":", ".").rpartition(".")[2]
