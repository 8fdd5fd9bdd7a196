"""A module that pretends to run rounds, under a real Trainer, for the tests of the loggers."""

import time
from collections.abc import Iterator

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from torch.utils.data import DataLoader, IterableDataset

from coterie.core.federation.ledger import Ledger
from coterie.core.protocol.journal import Journal

CLIENT_IDS = tuple(range(900_000_000_001, 900_000_000_006))  # numbers that occur nowhere else


class PretendedRounds(LightningModule):
    """Rounds in blocks of ``per_block``, with the attributes that the callbacks read.

    ``secret`` is private state: no logger may ever read it.
    """

    def __init__(self, rounds=6, per_block=3, ids=CLIENT_IDS, seconds=0.0, fail_at=None):
        super().__init__()
        self.automatic_optimization = False
        self.rounds, self.per_block, self.seconds, self.fail_at = (
            rounds,
            per_block,
            seconds,
            fail_at,
        )
        self.ids = torch.tensor(ids)
        self.secret = torch.full((len(ids), 4), 0.123456789)
        self.journal, self.ledger = Journal(), Ledger()
        self.round, self.block, self.finished, self.reopened = 0, -1, False, False

    def train_dataloader(self):
        return DataLoader(_Ticks(self), batch_size=None)

    def training_step(self, batch, batch_idx):
        self.journal.clear()
        number = self.round + 1
        if number == self.fail_at:
            raise RuntimeError("the round failed")
        if self.seconds:
            time.sleep(self.seconds)
        self.block = (number - 1) // self.per_block
        message = {"items": torch.zeros(len(self.ids), number)}
        self.ledger.up("update", message, len(self.ids))
        self.ledger.down("update", {"items": torch.zeros(7)}, len(self.ids))
        self._measure(number)
        self.round = number
        self.finished = number == self.rounds
        self.trainer.should_stop = self.finished
        self.optimizers().step()

    def _measure(self, number):
        self.journal.scalar("fed/loss", 1.0 / number)
        self.journal.scalar("fed/clients", len(self.ids))
        self.journal.scalar("eval/ndcg@20", self.score(number))
        values = torch.linspace(0, 1, len(self.ids)) * number
        self.journal.per_client("eval/ndcg@20", self.ids, values)
        if number % self.per_block == 0:
            self.journal.scalar(f"test/block{self.block}/ndcg@20", 0.25 + number)
            self.journal.per_client("test/ndcg@20", self.ids[:2], values[:2])

    def score(self, number):
        """Highest in the middle of a block, lower in later blocks."""
        return [0.1, 0.5, 0.3][(number - 1) % 3] / (1 + self.block)

    def configure_optimizers(self):
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.0)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["rounds"] = {
            "round": self.round,
            "block": self.block,
            "ledger": self.ledger.rows(),
        }

    def on_load_checkpoint(self, checkpoint):
        saved = checkpoint["rounds"]
        self.round, self.block = saved["round"], saved["block"]
        self.ledger.load(saved["ledger"])


class _Ticks(IterableDataset):
    def __init__(self, module):
        self.module = module

    def __len__(self) -> int:
        return self.module.rounds

    def __iter__(self) -> Iterator[int]:
        while self.module.round < self.module.rounds:
            yield self.module.round


def fit(module, callbacks, folder, resume=None):
    """Run the rounds; the last checkpoint is ``folder/last.ckpt``."""
    trainer = Trainer(
        default_root_dir=folder,
        max_epochs=1 if resume is None else 2,
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=any(isinstance(callback, ProgressBar) for callback in callbacks),
        accelerator="cpu",
        num_sanity_val_steps=0,
    )
    trainer.fit(module, ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return trainer


@pytest.fixture(name="PretendedRounds", scope="session")
def _pretended_rounds():
    return PretendedRounds


@pytest.fixture(name="fit", scope="session")
def _fit():
    return fit
