"""What a client keeps of earlier blocks: nothing, a pull, lists to rehearse and to leave out."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from coterie.continual.backbones import Backbone, Params
from coterie.continual.local_training import Pull
from coterie.continual.messages import ClientState, ItemTable, LookBack
from coterie.continual.rehearsal import Rehearsal, Shrinking
from coterie.continual.settings import RegSettings, ReplaySettings
from coterie.core.data.interactions.splits import UserRows
from coterie.core.errors import UserError
from coterie.core.metrics.ranking import top_k
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged

Memory = dict[str, Any]


class Retention:
    """Keep nothing: fine-tuning, L_u = mean over the batch of BCE(sigmoid(s_ui), y_ui).

    All methods share the base block; each overrides only what it adds. Everything is stacked over
    the C users of a chunk and must treat each user alone.

    Attributes:
        corrects: whether scores are corrected before items are ranked.
        pulls: whether `pull` may say something in all blocks but the first.
        listed: most items that `replay` puts beside a batch, in all blocks but the first.
    """

    corrects: ClassVar[bool] = False
    pulls: ClassVar[bool] = False
    listed: int = 0

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def empty(self, params: Params) -> Memory:
        """Make the memory of newcomers."""
        return {}

    def at_block_start(self, mine: ClientState, down: LookBack, data: UserRows) -> Memory:
        """Look back before a new block; ``mine.best`` is of the last one's best round."""
        return mine.memory

    def before_training(
        self, mine: ClientState, down: ItemTable, data: UserRows, key: Key
    ) -> Memory:
        """Bring the memory up to date before a round's local training; keys are ``(C,)``."""
        return mine.memory

    def at_block_end(self, mine: ClientState, table: Tensor, data: Any, key: Key) -> Memory:
        """Note what is worth keeping of a finished block, whose best item table is ``(n, d)``.

        In ``mine`` are already the parameters that are carried on.
        """
        return mine.memory

    def replay(self, mine: ClientState, round: int, key: Key) -> Rehearsal | None:
        """Say what is practised again beside each batch; None for nothing."""
        return None

    def pull(self, mine: ClientState, down: ItemTable, item_lr: float) -> Pull | None:
        """Say where parameters are pulled to; None for nowhere."""
        return None

    def correct(self, scores: Tensor, mine: ClientState, table: Tensor) -> Tensor:
        """Correct the scores ``(C, n)`` before items are ranked."""
        return scores


def score_items(backbone: Backbone, params: Params, table: Tensor) -> Tensor:
    """Scores of all items, ``(C, n)``."""
    vector, offset = backbone.query(params)
    return torch.addmm(offset[:, None], vector, table.T)


# Reg: a squared pull towards the parameters of the previous block.


class Regularisation(Retention):
    """L = L_Rec + λ (1[u is old] R(Φ_u - Φ_u_old) + R(Q_u[old items] - Q_old)).

    R is the squared error, mean or sum over the entries. "Adds an MSE loss to constrain parameter
    deviation from the previous task" (section 5.1); how is nowhere printed, so the reduction and
    what is pulled are this project's reading. The pull moves every old row, in the batch or not;
    as it is the same share for all rows, the upload carries that share, not a dense table.
    """

    pulls = True

    def __init__(self, backbone: Backbone, settings: RegSettings) -> None:
        super().__init__(backbone)
        self.settings = settings

    def empty(self, params: Params) -> Memory:
        """The private parameters at the start of the block."""
        return {"start": {name: value.clone() for name, value in params.items()}}

    def at_block_end(self, mine: ClientState, table: object, data: object, key: object) -> Memory:
        """Remember the private parameters of the best round."""
        return {"start": {name: value.clone() for name, value in mine.best.items()}}

    def pull(self, mine: ClientState, down: ItemTable, item_lr: float) -> Pull | None:
        """Pull old items of all users, and private parameters of old users."""
        if down.old is None:
            return None
        old_user = (mine.blocks > 0).to(down.items.dtype)
        rates = {
            name: self._rate(self.backbone.rates[name], value[0].numel()) * old_user
            for name, value in mine.params.items()
        }
        item_rate = self._rate(item_lr, down.old.numel())
        return Pull(down.old, item_rate, mine.memory["start"], rates)

    def _rate(self, lr: float, entries: int) -> float:
        """Share of the distance that one SGD step covers: lr * 2 λ / (1 or the entries).

        Raises:
            UserError: the step overshoots (share of 2 or more) and would diverge.
        """
        rate = 2 * self.settings.strength * lr
        rate /= entries if self.settings.reduction == "mean" else 1
        if rate >= 2:
            raise UserError(
                f"reg.strength {self.settings.strength} with learning rate {lr:g} diverges: one "
                f"step covers {rate:.3g} of the distance; use reg.strength below "
                f"{self.settings.strength * 2 / rate:.2g} or reg.reduction mean"
            )
        return rate


# KD: distil the previous model on its own top-N list.


class Distillation(Retention):
    """Replay the whole list S_u of N remembered items (baseline KD, and F³CRec w/o a.r.m).

    S_u is the top N of the previous model over the old items (Eq. 1), the teacher's probability
    y_old = sigmoid(s_old) is frozen, and

        L = L_Rec + λ_KD mean over S_u of -[y_old log y + (1 - y_old) log(1 - y)].

    The paper prints Eq. 5 as a sum without the minus sign; its code takes the mean with it, the
    default here (`reduction`, `sign`). New users have no list and no such term.
    """

    def __init__(self, backbone: Backbone, settings: ReplaySettings) -> None:
        super().__init__(backbone)
        self.settings, self.listed = settings, settings.top_n

    def empty(self, params: Params) -> Memory:
        """No list yet, and no room for one; with one, both are ``(C, N)``."""
        first = next(iter(params.values()))
        shape = (first.shape[0], 0)
        return {"items": torch.zeros(shape, dtype=torch.int32), "taught": first.new_zeros(shape)}

    def at_block_start(self, mine: ClientState, down: LookBack, data: UserRows) -> Memory:
        """List S_u and the teacher's probabilities from θ_u of the last block (Eq. 1).

        The public code keeps the list, and has its probabilities from the newest table: of users
        of the last block with the parameters of its best round, of those who missed it with the
        ones that they carry.
        """
        assert down.items is not None
        teacher, items = mine.best, mine.memory["items"]
        if self.settings.remember == "last-seen":
            teacher = tree.where_rows(mine.last < down.block - 1, mine.params, mine.best)
        scores = score_items(self.backbone, teacher, down.items)
        if self.settings.remember == "block-start":
            items = self._best(scores)
        return {"items": items, "taught": torch.sigmoid(scores.gather(1, items.long()))}

    def at_block_end(self, mine: ClientState, table: Tensor, data: object, key: Key) -> Memory:
        """List S_u now, if the list is that of the last block seen (public code)."""
        if self.settings.remember == "block-start":
            return mine.memory
        return mine.memory | {"items": self._best(score_items(self.backbone, mine.best, table))}

    def _best(self, scores: Tensor) -> Tensor:
        """Top N, ``(C, N)`` int32. Users whose scores are not finite are refused later, alone."""
        return top_k(scores.nan_to_num(), self.settings.top_n).int()

    def replay(self, mine: ClientState, round: int, key: Key) -> Rehearsal | None:
        """Replay of old users, for every batch; λ_KD is shared among the items for the mean."""
        old = mine.blocks > 0
        if not bool(old.any()):
            return None
        items, taught = mine.memory["items"], mine.memory["taught"]
        strength = self.settings.lambda_kd * (1 if self.settings.sign == "minus" else -1)
        weights = (strength * old.to(taught.dtype))[:, None].repeat(1, taught.shape[1])
        return self._rehearsal(items, taught, weights, key)

    def _rehearsal(self, items: Tensor, taught: Tensor, weights: Tensor, key: Key) -> Rehearsal:
        """Of the whole list."""
        if self._mean:
            weights /= max(items.shape[1], 1)
        return Rehearsal(items, taught, weights)

    @property
    def _mean(self) -> bool:
        return self.settings.reduction == "mean"


# Adaptive replay memory, the client side of F³CRec (section 4.2).


class AdaptiveReplay(Distillation):
    """Replay fewer of the remembered items the more the user's taste has shifted.

    Δ_u = Σ_k |rank(i_k) - k| over S_u (Eq. 2), δ_u = exp(-ε Δ_u) (Eq. 3), and the memory is a
    draw of ⌊δ_u N⌋ items of S_u without replacement (Eq. 4), anew for every batch (Algorithm 1,
    line 7).
    """

    def _rehearsal(self, items: Tensor, taught: Tensor, weights: Tensor, key: Key) -> Rehearsal:
        """Of M_u (Eq. 4)."""
        shrinking = Shrinking(self.settings.epsilon, key.fold("replay"), self._mean)
        return Rehearsal(items, taught, weights, shrinking)


# The client's memory as a list of what not to recommend again; no part of the paper.

FREE = -1  # as `top_k` fills up


class LeaveOut:
    """Note what the user trained on and the model would recommend first, and rank it no more.

    Half of what a model ranks highest for a user of several blocks, and more of S_u, are items that
    the user had in earlier ones. They are never a right answer where items are consumed once, and
    distilling S_u keeps them on top. A list of N numbers a block costs no training, no traffic, and
    no more room than S_u.

    Args:
        length: N, most items noted of a block; 0 notes none.
        n_blocks: of the stream.

    Example:
        >>> once = LeaveOut(length=2, n_blocks=1)
        >>> train, nobody = Ragged.from_lists([[0, 1]]), torch.zeros(1, dtype=torch.int64)
        >>> scores = torch.tensor([[0.1, 0.9, 0.8]])
        >>> noted = once.noted(once.empty(1), nobody, scores, train)
        >>> noted.tolist(), once.rows(noted).tolists()
        ([[1, 0]], [[1, 0]])
    """

    def __init__(self, length: int, n_blocks: int) -> None:
        self.length, self.n_blocks = length, n_blocks

    def empty(self, n_users: int) -> Tensor:
        """Free places for the items of all blocks, ``(C, N · blocks)`` int32."""
        return torch.full((n_users, self.length * self.n_blocks), FREE, dtype=torch.int32)

    def widened(self, left_out: Tensor) -> Tensor:
        """Add free places for blocks that came since, ``(C, W)`` to ``(C, N · blocks)``."""
        more = self.length * self.n_blocks - left_out.shape[1]
        return left_out if more <= 0 else pad(left_out, (0, more), value=FREE)

    def noted(self, left_out: Tensor, blocks: Tensor, scores: Tensor, train: Ragged) -> Tensor:
        """Add the items of a block: of its train items the N that rank highest.

        Args:
            left_out: ``(C, W)``, as `empty` gives it.
            blocks: ``(C,)`` int64, blocks finished before this one.
            scores: ``(C, n)`` of all items by the block's best round.
            train: the users' train items of the block.
        """
        if not self.length:
            return left_out
        items = top_k(scores.nan_to_num(), self.length, ~train.mask(scores.shape[1]))
        places = blocks[:, None] * self.length + torch.arange(self.length)
        return left_out.scatter(1, places, items.to(left_out.dtype))

    def rows(self, left_out: Tensor) -> Ragged:
        """Items that are not ranked, a row for each user."""
        noted = left_out != FREE
        return Ragged.from_lengths(left_out[noted].long(), noted.sum(1))
