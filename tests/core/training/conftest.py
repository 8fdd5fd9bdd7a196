"""Something that pretends to run rounds under the Trainer, for the loggers' tests."""

import time
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from lightning.pytorch.loggers import Logger

from coterie.core.federation.ledger import Ledger
from coterie.core.metrics.monitor import Monitor
from coterie.core.protocol.journal import Journal
from coterie.core.training.callbacks.checkpoints import Checkpoints
from coterie.core.training.module import FederatedModule
from coterie.core.training.trainer import fit as fit_rounds

CLIENT_IDS = tuple(range(900_000_000_001, 900_000_000_006))  # numbers that occur nowhere else


class PretendedRounds:
    """Rounds in blocks of ``per_block``, with the attributes that the callbacks read.

    ``secret`` is private state: no logger may ever read it.
    """

    def __init__(self, rounds=6, per_block=3, ids=CLIENT_IDS, seconds=0.0, fail_at=None):
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
        self.server_state = {"items": torch.zeros(2)}
        self.federation = SimpleNamespace(
            settings=self.settings,
            seed=0,
            rounds=per_block,
            monitor=self.monitor,
            device=torch.device("cpu"),
            aggregation=None,
        )

    block_open = True
    monitor = Monitor("eval/ndcg@20")
    settings: ClassVar[dict] = {}

    def reopen(self):
        self.finished = self.round == self.rounds

    def advance(self):
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

    def to_plain(self):
        return {
            "round": self.round,
            "block": self.block,
            "ledger": self.ledger.rows(),
            "bound": {"settings": {**self.settings, "seed": 0}},
        }

    def load_plain(self, saved):
        self.round, self.block = saved["round"], saved["block"]
        self.ledger.load(saved["ledger"])


def fit(run, beside, folder, resume=None):
    """Run the rounds; the last checkpoint is ``folder/last.ckpt``."""
    loggers = [one for one in beside if isinstance(one, Logger)]
    callbacks = [one for one in beside if not isinstance(one, Logger)]
    fit_rounds(FederatedModule(run), [*callbacks, Checkpoints(folder)], loggers, ckpt_path=resume)


@pytest.fixture(name="PretendedRounds", scope="session")
def _pretended_rounds():
    return PretendedRounds


@pytest.fixture(name="fit", scope="session")
def _fit():
    return fit
