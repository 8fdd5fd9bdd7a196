"""The loop that the benchmark compares with: FedMF and F³CRec one client at a time, in plain torch.

Fair to the loop: tensors stay in memory, one ``nn.Module`` serves all clients (parameters are
copied in place), every client and round gets a fresh ``torch.optim.SGD``, nothing is deep-copied,
negatives are drawn by tensor operations, and tables are summed as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from coterie.continual.backbones import make_backbone
from coterie.continual.settings import ReplaySettings, Settings
from coterie.core.tensors.stacked import Ragged

Batch = tuple[Tensor, Tensor]  # items, labels
DrawSubset = Callable[[int, int, int], Tensor]
"""(client, step, m) -> m of the N places in the list of remembered items."""


class Factors(nn.Module):
    """Matrix factorisation as one client sees it: its vector and a whole item table."""

    def __init__(self, n_items: int, dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.user = nn.Parameter(torch.zeros(dim, dtype=dtype))
        self.items = nn.Parameter(torch.zeros(n_items, dim, dtype=dtype))

    def forward(self, item: Tensor) -> Tensor:
        """Scores of some items."""
        return self.items[item] @ self.user


@dataclass(frozen=True)
class Remembered:
    """What the clients remember of the previous block (F³CRec)."""

    items: Tensor  # (C, N) S_u
    taught: Tensor  # (C, N) the teacher's probabilities
    old: list[bool]  # which clients have a list


class ClientLoop:
    """Rounds of FedMF, with F³CRec's replay where clients remember something.

    Args:
        settings: with the reading's choices resolved.
        train: positives of each client.
        n_items: rows of the item table.
        users: ``(C, d)`` the clients' private vectors; trained in place.
        seed: of negatives, order and replay.
        remembered: None replays nothing.
    """

    def __init__(
        self,
        settings: Settings,
        train: Ragged,
        n_items: int,
        users: Tensor,
        seed: int,
        remembered: Remembered | None = None,
    ) -> None:
        self.settings, self.users, self.remembered = settings, users, remembered
        self.positives = list(torch.split(train.values, train.lengths.tolist()))
        self.known = train.mask(n_items)
        self.model = Factors(n_items, users.shape[1], users.dtype)
        backbone = make_backbone(settings.model)
        scale = n_items if settings.model.item_lr_scale == "num_items" else 1
        self.user_lr, self.item_lr = backbone.rates["user"], backbone.item_lr * scale
        self.generator = torch.Generator().manual_seed(seed)
        self.loss = users.new_zeros(len(self.positives))

    def round(
        self,
        table: Tensor,
        batches: Callable[[int], Iterable[Batch]] | None = None,
        subset: DrawSubset | None = None,
    ) -> Tensor:
        """Train every client from ``table`` and return the mean of their tables, ``(n_items, d)``.

        Batches of a client, and the replayed part of its memory, that are not given are drawn.
        """
        total = torch.zeros_like(table)
        for client in range(len(self.positives)):
            own = self._draw(client) if batches is None else batches(client)
            self._train(client, table, own, subset or self._draw_subset)
            total += self.model.items.detach()
        return total / len(self.positives)

    def _train(
        self, client: int, table: Tensor, batches: Iterable[Batch], subset: DrawSubset
    ) -> None:
        """Train one client; note its loss, summed over batches."""
        model = self.model
        with torch.no_grad():
            model.items.copy_(table)
            model.user.copy_(self.users[client])
        items = {"params": [model.items], "lr": self.item_lr}
        optimizer = torch.optim.SGD([{"params": [model.user], "lr": self.user_lr}, items])
        total = table.new_zeros(())
        for step, (item, label) in enumerate(batches):
            optimizer.zero_grad()
            loss = bce(model(item), label)
            total += loss.detach()
            if self.remembered is not None and self.remembered.old[client]:
                loss = loss + self._distillation(self.remembered, client, step, subset)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            self.users[client] = model.user
            self.loss[client] = total

    def _draw(self, client: int) -> Iterable[Batch]:
        """Draw negatives, again where they are positives, and shuffle."""
        positive, known = self.positives[client], self.known[client]
        n_items = known.numel()
        count = self.settings.model.negatives * positive.numel()
        negative = torch.randint(n_items, (count,), generator=self.generator)
        rejected = known[negative].nonzero().flatten()
        while rejected.numel():
            again = torch.randint(n_items, (rejected.numel(),), generator=self.generator)
            negative[rejected] = again
            rejected = rejected[known[again]]
        item = torch.cat([positive, negative])
        label = torch.zeros(item.numel(), dtype=self.users.dtype)
        label[: positive.numel()] = 1
        order = torch.randperm(item.numel(), generator=self.generator)
        for part in order.split(self.settings.model.batch_size):
            yield item[part], label[part]

    def _draw_subset(self, client: int, step: int, count: int) -> Tensor:
        places = torch.randperm(self.settings.replay.top_n, generator=self.generator)
        return places[:count]

    def _distillation(
        self, remembered: Remembered, client: int, step: int, subset: DrawSubset
    ) -> Tensor:
        """λ_KD times Eq. 5 on a memory that shrinks with the preference shift (Eq. 2 to 4)."""
        replay: ReplaySettings = self.settings.replay
        listed, taught = remembered.items[client], remembered.taught[client]
        with torch.no_grad():
            scores = self.model.items @ self.model.user
            rank = (scores > scores[listed][:, None]).sum(1)
            shift = (rank - torch.arange(listed.numel())).abs().sum().to(torch.float64)
            count = int(torch.exp(-replay.epsilon * shift) * replay.top_n)
        if count == 0:
            return scores.new_zeros(())
        chosen = subset(client, step, count)
        loss = bce(self.model(listed[chosen]), taught[chosen], reduction=replay.reduction or "mean")
        return replay.lambda_kd * (loss if replay.sign == "minus" else -loss)


class LoopByHand(ClientLoop):
    """The same rounds with the gradient written out and rows of a client's own items alone.

    FedMF without replay; as fast as a loop over clients gets, and it measures no loss.
    """

    def round(
        self,
        table: Tensor,
        batches: Callable[[int], Iterable[Batch]] | None = None,
        subset: DrawSubset | None = None,
    ) -> Tensor:
        """Train every client and return the mean of their tables; arguments as of the loop's."""
        total = torch.zeros_like(table)
        for client in range(len(self.positives)):
            own = list(self._draw(client) if batches is None else batches(client))
            items, places = torch.cat([item for item, _ in own]).unique(return_inverse=True)
            rows, user = table[items], self.users[client]
            for place, (_, label) in zip(places.split([len(y) for _, y in own]), own, strict=True):
                touched = rows[place]
                error = (torch.sigmoid(touched @ user) - label) / len(label)
                rows.index_add_(0, place, torch.outer(error, user), alpha=-self.item_lr)
                user = user - self.user_lr * (error @ touched)
            self.users[client] = user
            total.index_add_(0, items, rows - table[items])
        return table + total / len(self.positives)
