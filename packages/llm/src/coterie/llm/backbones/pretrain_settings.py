"""Settings of pre-training; torch-free, the docstring of a field is its ``--help`` text."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.settings.sections import at_least, between


@dataclass(frozen=True)
class PretrainSettings:
    """How a small backbone is trained on the public slice, before adapters are added to it."""

    steps: int = 400
    """Most optimizer steps."""
    batch: int = 64
    """Examples in a step."""
    lr: float = 3e-3
    """Learning rate of AdamW, reached after the warm-up; it falls to 0 as a cosine."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    warmup: int = 20
    """Steps in which the learning rate rises."""
    check_every: int = 25
    """Steps between two looks at the held-out examples."""
    patience: int = 4
    """Looks without a better loss before training stops."""

    def __post_init__(self) -> None:
        for name in ("steps", "warmup"):
            at_least(f"pretrain.{name}", getattr(self, name), 0)
        for name in ("batch", "check_every", "patience"):
            at_least(f"pretrain.{name}", getattr(self, name), 1)
        between("pretrain.lr", self.lr, 0, float("inf"))
        at_least("pretrain.weight_decay", self.weight_decay, 0)
