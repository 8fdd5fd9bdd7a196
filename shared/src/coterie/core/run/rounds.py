"""Lightning runs the rounds: one training step is one communication round, one epoch one block."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from coterie.core.errors import UserError
from coterie.core.federation.cohort import InProcessCohort
from coterie.core.federation.federation import Federation
from coterie.core.federation.ledger import Ledger
from coterie.core.federation.store import PrivateStore
from coterie.core.local_training.step_count import counting_steps
from coterie.core.protocol.journal import Journal
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.wire.restoring import restore

Measured = dict[str, tuple[Tensor, Tensor]]
"""Measurements of clients: name -> ids and values, both ``(R,)``."""


class FederatedModule(lightning.LightningModule):
    """Drive a federation under ``lightning.Trainer``.

    Where a run stands is the module's own state (block, round), never the batch index, so that a
    run continues from a checkpoint exactly where it was.

    Args:
        federation: what is run.

    Attributes:
        journal: what the last round measured.
        ledger: bytes that crossed the boundary.
        block: number of the block that the last round belongs to, from 0; -1 before the first.
        round: rounds done, over all blocks.
        block_round: rounds done in that block.
        block_open: whether that block goes on.
        finished: whether the run is complete.
        reopened: whether rounds follow after what was the end of the run when it was saved.
        results: final measurements, the journal's scalars named ``test/…``.
        client_results: the same of every client, ``name -> (ids, values)``, of the newest block.
    """

    def __init__(self, federation: Federation) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.federation = federation
        self.journal, self.ledger = Journal(), Ledger()
        self.store: PrivateStore[Any] = PrivateStore(stacked=federation.client.form == "stacked")
        self.block = -1
        self.round = self.block_round = 0
        self.history: list[dict[str, float]] = []
        self.results: dict[str, float] = {}
        self.client_results: Measured = {}
        self.block_open = self.finished = self.reopened = False
        root = Key.from_seed(federation.seed)
        self._secret, self._server_key = root.fold("clients"), root.fold("server")
        self.server_state = federation.server.begin(self._server_key.fold("begin"))

    def train_dataloader(self) -> DataLoader[int]:
        """Ticks, one a round, until the block ends."""
        return DataLoader(_Ticks(self), batch_size=None)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """Run one communication round, and tell the Trainer when it was the last."""
        self.advance()
        if self.finished:
            # Blocks are Lightning's epochs, but their number is known to the server alone.
            self.trainer.should_stop = True
        self._advance_global_step()

    def advance(self) -> None:
        """Run one communication round, and what opens or closes its block; needs no Trainer."""
        self.journal.clear()
        server = self.federation.server
        if not self.block_open:
            self._open_block()
        self.block_round += 1
        cohort, key = self._cohort(self.block_round), self._key(self.block_round)
        with counting_steps() as made:
            self.server_state = server.round(self.server_state, cohort, key)
        if made.total:  # 0 where the clients are processes of their own
            self.journal.scalar("cost/local_steps", made.total)
        self.round += 1
        self.history.append(dict(self.journal.scalars))
        decision = server.stop(self.server_state, self.history)
        if decision != "go":
            self.server_state = server.end_block(self.server_state, cohort, key.fold("end"))
            self.block_open = False
            self.finished = decision == "end" or self.block + 1 == len(self.federation.blocks)
        tests = {n: v for n, v in self.journal.scalars.items() if n.startswith("test/")}
        self.results.update(tests)
        measured = {n: v for n, v in self.journal.clients.items() if n.startswith("test/")}
        self.client_results.update(measured)

    def on_fit_start(self) -> None:
        """Go on with a run that was complete before it was given more rounds."""
        self.reopen()

    def reopen(self) -> None:
        """Take back the end of a run, where the server would not end it any more.

        Raises:
            UserError: the end cannot be taken back.
        """
        if self.finished and not self.ends_here():
            server = self.federation.server
            self.server_state = server.reopen(self.server_state, self.history)
            self.finished, self.block_open, self.reopened = False, True, True

    def ends_here(self) -> bool:
        """Whether the server would end the block after the rounds that are done."""
        return self.federation.server.stop(self.server_state, self.history) != "go"

    def on_train_start(self) -> None:
        """Stop at once if the checkpoint that is resumed is of a complete run."""
        self.trainer.should_stop = self.finished

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """An optimizer of nothing: Lightning counts its steps, and rounds must count."""
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=0.0)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add server state, private state of all clients, ledger and position."""
        checkpoint["federation"] = {
            "server": tree.to_plain(self.server_state),
            "store": self.store.to_plain(),
            "ledger": self.ledger.rows(),
            "history": self.history,
            "results": self.results,
            "client_results": {
                name: {"ids": ids, "values": values}
                for name, (ids, values) in self.client_results.items()
            },
            **{name: getattr(self, name) for name in _POSITION},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore what `on_save_checkpoint` added.

        Raises:
            UserError: the checkpoint is of another method or backbone.
        """
        saved = checkpoint.get("federation", {})
        try:
            self.server_state = restore(self.server_state, saved["server"])
            self.store.load_plain(saved["store"], self._private_structure())
            self.ledger.load(saved["ledger"])
            self.history, self.results = saved["history"], saved["results"]
            self.client_results = {
                name: (pair["ids"], pair["values"])
                for name, pair in saved["client_results"].items()
            }
            for name in _POSITION:
                setattr(self, name, saved[name])
        except (KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise UserError(
                f"the checkpoint does not fit this run ({error}): it is of another method, "
                "backbone or version; start a new run with another --run.name"
            ) from error

    def retest(self) -> dict[str, float]:
        """Measure the newest block again on its test data."""
        self.journal.clear()
        self.federation.server.test(self.server_state, self.newest_cohort())
        return dict(self.journal.scalars)

    def newest_cohort(self) -> InProcessCohort:
        """All clients of the newest block, or before it of the first, to look into a run.

        They have no middleware; before the first round they are not enrolled yet.
        """
        return dataclasses.replace(self._cohort(self.block_round), middleware=())

    def _open_block(self) -> None:
        self.block += 1
        self.block_round = 0
        self.history = []
        cohort = self._cohort(0)
        self.server_state = self.federation.server.start_block(
            self.server_state, self.block, cohort, self._key(0)
        )
        self.block_open = True

    def _cohort(self, round_in_block: int) -> InProcessCohort:
        federation = self.federation
        data = federation.blocks[max(self.block, 0)]
        return InProcessCohort(
            federation.client,
            data.ids,
            data,
            self.store,
            self._secret,
            (self.block, round_in_block),
            self.ledger,
            self.journal,
            federation.chunk,
            federation.middleware,
        )

    def _key(self, round_in_block: int) -> Key:
        return self._server_key.fold("block", self.block, "round", round_in_block)

    def _private_structure(self) -> Any:
        """Private state of one client, for its structure only."""
        blocks, client = self.federation.blocks, self.federation.client
        key = self._secret.fold(blocks[0].ids[:1])
        if client.form == "list":
            return client.enrol(blocks[0][0], Key(key.state[0]))
        return client.enrol(blocks[0].take(torch.tensor([0])), key)

    def _advance_global_step(self) -> None:
        # In manual optimisation the Trainer counts optimizer steps; callbacks and loggers rely on
        # its count.
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.step()


class _Ticks(IterableDataset[int]):
    """Yield one tick a round until the module closes the block."""

    def __init__(self, module: FederatedModule) -> None:
        self.module = module

    def __len__(self) -> int:
        return self.module.federation.rounds

    def __iter__(self) -> Iterator[int]:
        if self.module.finished:
            return
        yield self.module.round
        while self.module.block_open:
            yield self.module.round


_POSITION = ("block", "round", "block_round", "block_open", "finished")
