"""A paper's network as an ordinary `LightningModule` with a `LightningDataModule` of its data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

from coterie.core.errors import UserError
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking_report import Split
from coterie.core.run.networks import standalone_of
from coterie.core.standalone import Standalone
from coterie.core.tensors.device import CPU, computing_on, moved
from coterie.core.tensors.keys import Key


class NetworkModule(lightning.LightningModule):
    """Train a paper's network by any Trainer; `coterie.network` makes one.

    A training step is the paper's own loss of the paper's own batch. Logged are ``fed/loss``, its
    mean over the steps of an epoch, and in validation and test what the paper measures, under its
    keys. ``hparams`` are the settings, so ``NetworkModule.load_from_checkpoint(path)`` makes the
    network and its data again.

    Args:
        paper: its name.
        client: whose data it is trained on; None = those of all.
        network: of those networks that no setting names, such as ``lightgcn``.
        settings: of the paper, by dotted keys; those not given have their defaults.

    Attributes:
        network: the network itself.
        standalone: the network with its objective and data.

    Raises:
        UserError: there is no such network or client.

    Example:
        module = NetworkModule.load_from_checkpoint("lightning_logs/version_0/checkpoints/a.ckpt")
        lightning.Trainer().test(module, module.data)
    """

    def __init__(
        self, paper: str, client: int | None = None, network: str | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self.standalone: Standalone[Any, Any, Any] = standalone_of(paper, settings, client, network)
        self.network: nn.Module = self.standalone.network.train()  # Lightning keeps its mode
        which = {"paper": paper, "client": client, "network": network}
        self.save_hyperparameters({**which, **settings})
        self._outcomes: dict[str, list[Any]] = {"valid": [], "test": []}

    @cached_property
    def data(self) -> NetworkData:
        """What it is trained and measured on."""
        return NetworkData(self.standalone)

    @property
    def monitor(self) -> Monitor:
        """What an epoch is chosen by: ``EarlyStopping(module.monitor.key, mode=….summary)``."""
        return self.standalone.monitor

    def setup(self, stage: str) -> None:
        """Check that the Trainer can train it.

        Raises:
            UserError: it has several processes, or changes the format of the parameters.
        """
        if self.trainer.world_size > 1:
            raise UserError(
                "a paper's network is trained and measured by one process: say devices=1"
            )
        precision = str(self.trainer.precision)
        if precision.endswith("true") and precision != "32-true":
            raise UserError(
                f"precision {precision} changes parameters and not the data: take "
                "engine={'dtype': 'float64'} in coterie.network(…), or a mixed precision"
            )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the network."""
        return self.network(*args, **kwargs)

    def configure_optimizers(self) -> Optimizer:
        """The optimizer and rates of the paper's settings."""
        return self.standalone.optimizer()

    def on_after_backward(self) -> None:
        """Give a gradient of 0 to what a loss does not depend on: weight decay pulls it too."""
        for value in self.standalone.trained():
            if value.grad is None:
                value.grad = torch.zeros_like(value)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as the Trainer says, or, where it says nothing, as the paper's settings do."""
        own = self.standalone.clip
        if gradient_clip_val is None and own is not None:
            nn.utils.clip_grad_norm_(self.standalone.trained(), own)
            return
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Loss of a batch."""
        with computing_on(self.device):
            loss = self.standalone.loss(batch)
        self.log("fed/loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Answer some of the validation's questions."""
        self._ask("valid", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Answer some of the test's questions."""
        self._ask("test", batch)

    def on_validation_epoch_start(self) -> None:
        """Begin a validation."""
        self._begin("valid")

    def on_test_epoch_start(self) -> None:
        """Begin a test."""
        self._begin("test")

    def on_validation_epoch_end(self) -> None:
        """Log what the paper measures in validation."""
        self._measure("valid")

    def on_test_epoch_end(self) -> None:
        """Log what the paper measures in a test."""
        self._measure("test")

    def _begin(self, split: Split) -> None:
        self._outcomes[split] = []
        with computing_on(self.device):
            self.standalone.ready(split)

    def _ask(self, split: Split, question: Any) -> None:
        with computing_on(self.device):
            outcome = self.standalone.outcome(question)
        self._outcomes[split].append(moved(outcome, CPU))

    def _measure(self, split: Split) -> None:
        outcomes, self._outcomes[split] = self._outcomes[split], []
        if not outcomes:
            return
        found = self.standalone.measures(split, outcomes)
        known = {name: value for name, value in found.items() if value == value}
        self.log_dict(known, prog_bar=split == "valid", batch_size=1)


class NetworkData(lightning.LightningDataModule):
    """The data of a `NetworkModule`: ordinary ``DataLoader``s of whole batches.

    What an epoch holds, and in which order, follows from the run's seed and the epoch's number. No
    loader draws from torch's global generator.

    Args:
        standalone: gives the batches.
        num_workers: processes that make batches.

    Example:
        data = NetworkData(module.standalone, num_workers=2)
    """

    def __init__(self, standalone: Standalone[Any, Any, Any], num_workers: int = 0) -> None:
        super().__init__()
        self.standalone, self.num_workers = standalone, num_workers

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move a batch, which is a tree."""
        return batch if device == CPU else moved(batch, device)

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of an epoch; the Trainer says of which one."""
        batches = Batches(self.standalone)
        return self._loader(batches, Epochs(len(batches), self._epoch()))

    def val_dataloader(self) -> DataLoader[Any]:
        """What is asked in validation."""
        return self._loader(Questions(self.standalone, "valid"))

    def test_dataloader(self) -> DataLoader[Any]:
        """What is asked in a test."""
        return self._loader(Questions(self.standalone, "test"))

    def _epoch(self) -> int:
        """The epoch that comes next; workers make its batches before the Trainer says which."""
        if self.trainer is None:
            return 0
        loop = self.trainer.fit_loop
        seen: Any = loop.epoch_progress.current
        whole = seen.processed == seen.ready or loop.epoch_loop.batch_progress.is_last_batch
        return seen.ready if whole else max(seen.ready - 1, 0)

    def _loader(self, data: Dataset[Any], order: Sampler[int] | None = None) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(Key.from_seed(0).seed())  # of the workers' seeds
        workers = self.num_workers
        return DataLoader(
            data,
            batch_size=None,
            sampler=order,
            num_workers=workers,
            generator=generator,
            persistent_workers=workers > 0,
        )


class Batches(Dataset[Any]):
    """Training batches by number; those beyond the first epoch's are of later ones.

    Args:
        standalone: makes them.
    """

    def __init__(self, standalone: Standalone[Any, Any, Any]) -> None:
        self.standalone = standalone

    def __len__(self) -> int:
        return self.standalone.per_epoch

    def __getitem__(self, number: int) -> Any:
        return self.standalone.batch(number)


class Questions(Dataset[Any]):
    """What is asked of a network in validation or test.

    Args:
        standalone: asks.
        split: which.
    """

    def __init__(self, standalone: Standalone[Any, Any, Any], split: Split) -> None:
        self._questions = standalone.questions(split)

    def __len__(self) -> int:
        return len(self._questions)

    def __getitem__(self, number: int) -> Any:
        return self._questions[number]


class Epochs(Sampler[int]):
    """Numbers of the batches of one epoch after the other; Lightning says which it is.

    Args:
        per_epoch: batches in an epoch.
        epoch: the first one.

    Example:
        >>> order = Epochs(2)
        >>> order.set_epoch(3)
        >>> list(order), list(order)
        ([6, 7], [8, 9])
    """

    def __init__(self, per_epoch: int, epoch: int = 0) -> None:
        self._count, self._epoch = per_epoch, epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        epoch = self._epoch  # read late: a Trainer sets it between making and using an iterator
        yield from range(epoch * self._count, (epoch + 1) * self._count)
        self._epoch = epoch + 1  # for loops that set none

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next, as Lightning does."""
        self._epoch = epoch
