"""Users' splits as the loaders of a Trainer."""

import lightning
from torch import Tensor

from coterie.core.data.interactions.negatives import EpochBatches, RankingChunks
from coterie.core.data.interactions.splits import UserRows
from coterie.core.methods.ranking.client import known_items
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged


class PairsData(lightning.LightningDataModule):
    """In validation train items are left out of the ranking, in a test those of validation too."""

    def __init__(
        self,
        users: Tensor,
        train: Ragged,
        valid: Ragged,
        test: Ragged,
        n_items: int,
        key: Key,
        chunk_size: int = 1024,
        **options: object,
    ) -> None:
        super().__init__()
        self.rows, self.chunk_size = UserRows(users, train, valid, test), chunk_size
        self.batches = EpochBatches(
            users, train, n_items, key, epoch=lambda: self.trainer.current_epoch, **options
        )

    def train_dataloader(self) -> EpochBatches:
        return self.batches

    def val_dataloader(self) -> RankingChunks:
        rows = self.rows
        return RankingChunks(rows.ids, rows.train, rows.valid, self.chunk_size)

    def test_dataloader(self) -> RankingChunks:
        rows = self.rows
        return RankingChunks(rows.ids, known_items(rows), rows.test, self.chunk_size)
