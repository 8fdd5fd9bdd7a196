"""Pre-training of a small backbone on a public slice of the users."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.backbone_settings import PretrainSettings
from coterie.llm.backbones.base import Backbone
from coterie.llm.data.examples import Examples, thinned

_CLIP = 1.0  # gradient norm; from a random start the first steps would else overshoot


def pretrain(
    backbone: Backbone,
    examples: Examples,
    held_out: Examples,
    settings: PretrainSettings,
    key: Key,
    max_history: int | None = None,
    shown: Callable[[int, float | None], None] | None = None,
) -> BestParameters:
    """Train all parameters by AdamW; keep those with the lowest held-out loss.

    The learning rate rises linearly during ``warmup`` and falls to 0 as a cosine. Without held-out
    examples all steps are made. The order of the examples and dropout depend on ``key`` only.

    The backbone is left in evaluation mode. Examples are of the public slice, those held out of
    other users. Of longer histories ``max_history`` items are drawn anew in every step. ``shown``
    gets every step at which it looked, and the held-out loss there (None without examples).

    Returns:
        What was measured, and which step was kept.

    Raises:
        UserError: there is nothing to train on, or the loss is not finite.
    """
    if not len(examples):
        raise UserError("the public slice has no example to pre-train on: raise its share of users")
    parameters = [p for p in backbone.parameters() if p.requires_grad]
    best = BestParameters(backbone, held_out, settings, shown)
    optimizer = torch.optim.AdamW(
        parameters, settings.lr, weight_decay=settings.weight_decay, foreach=True
    )
    step = 0
    best.look(step)
    for step, batch in _batches(examples, settings, key):
        if max_history is not None:
            batch = thinned(batch, max_history, key.fold("history", step))
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _rate(step, settings)
        backbone.train()
        with key.fold("dropout", step).torch_rng():
            loss = backbone.pretraining_loss(batch)
        _check(loss, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, _CLIP)
        optimizer.step()
        if (step % settings.check_every == 0 or step == settings.steps) and best.look(step):
            break
    # What comes next adds to gradients: it would start from these, unless it read the cache.
    optimizer.zero_grad(set_to_none=True)
    best.restore(step)
    return best


@torch.no_grad()
def mean_loss(backbone: Backbone, examples: Examples, batch: int) -> float:
    """Mean of `Backbone.loss` over examples, without gradients, in evaluation mode."""
    backbone.eval()
    total = 0.0
    for index in torch.arange(len(examples)).split(batch):
        total += float(backbone.loss(examples.take(index))) * index.numel()
    return total / len(examples)


class BestParameters:
    """Looks at the held-out loss now and then and remembers the best parameters.

    Attributes:
        losses: those held out, by the step before which they were measured.
        step: the one whose parameters are kept, 0 for the untrained ones.
    """

    def __init__(
        self,
        backbone: Backbone,
        held_out: Examples,
        settings: PretrainSettings,
        shown: Callable[[int, float | None], None] | None = None,
    ) -> None:
        self.backbone, self.held_out, self.settings = backbone, held_out, settings
        self._shown = shown or (lambda step, loss: None)
        self.losses: dict[int, float] = {}
        self.step = 0
        self._best = math.inf
        self._state: dict[str, Tensor] = {}
        self._worse = 0

    def look(self, step: int) -> bool:
        """Measure; return whether patience is used up."""
        self.backbone.eval()
        self.backbone.prepare()
        if not len(self.held_out):
            self._shown(step, None)
            return False
        loss = mean_loss(self.backbone, self.held_out, self.settings.batch)
        self.losses[step] = loss
        self._shown(step, loss)
        if loss < self._best:
            self._best, self.step, self._worse = loss, step, 0
            held = self.backbone.state_dict().items()
            self._state = {name: value.detach().clone() for name, value in held}
            return False
        self._worse += 1
        return self._worse >= self.settings.patience

    def restore(self, last: int) -> None:
        """Put the best parameters back; without held-out examples those of the ``last`` step."""
        if self._state:
            self.backbone.load_state_dict(self._state)
        else:
            self.step = last
        self.backbone.eval()
        self.backbone.prepare()


def _batches(
    examples: Examples, settings: PretrainSettings, key: Key
) -> Iterator[tuple[int, Examples]]:
    """Steps 1, 2, ... with their batches, epoch after epoch in a new order."""
    step, epoch = 0, 0
    while step < settings.steps:
        order = key.fold("order", epoch).uniform(len(examples), dtype=torch.float64).argsort()
        for index in order.split(settings.batch):
            if step == settings.steps:
                return
            step += 1
            yield step, examples.take(index)
        epoch += 1


def _rate(step: int, settings: PretrainSettings) -> float:
    """Share of the learning rate at a step, counted from 1."""
    if step <= settings.warmup:
        return step / settings.warmup
    done = (step - 1 - settings.warmup) / max(1, settings.steps - settings.warmup)
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _check(loss: Tensor, step: int) -> None:
    if not bool(torch.isfinite(loss)):
        value = float(loss.detach())
        raise UserError(f"the loss of pre-training is {value} at step {step}: lower 'pretrain.lr'")
