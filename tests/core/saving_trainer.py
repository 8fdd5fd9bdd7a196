"""What callbacks see of a Trainer and its module, for tests that call their hooks by hand."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lightning.pytorch.callbacks import Callback

from coterie.core.training.callbacks.checkpoints import RunCheckpointIO


class SavingTrainer:
    """Saves a run, and the states of its callbacks, as a `lightning.Trainer` would."""

    def __init__(self, run: Any, callbacks: list[Callback]) -> None:
        self.callbacks, self.run = callbacks, run

    def call(self, hook: str) -> None:
        """Call a hook of all callbacks."""
        for callback in self.callbacks:
            getattr(callback, hook)(self, SimpleNamespace(run=self.run))

    def end_round(self) -> None:
        """What a Trainer calls after a round."""
        self.call("on_train_epoch_end")

    def save_checkpoint(self, path: Path, storage_options: Any = None) -> None:
        """Save all that there is."""
        states = {one.state_key: one.state_dict() for one in self.callbacks}
        content = {"federation": self.run.to_plain(), "callbacks": states, "loops": {}}
        RunCheckpointIO().save_checkpoint(content, path, storage_options)
