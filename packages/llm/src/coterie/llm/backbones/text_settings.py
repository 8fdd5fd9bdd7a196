"""Settings of backbones that read text; torch-free, docstrings of fields are ``--help`` texts."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.errors import UserError
from coterie.core.settings.sections import at_least, between


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters; the defaults are BIGRec's."""

    rank: int = 8
    """Rank r of the factors A and B."""
    alpha: float = 16.0
    """Scale: the product of the factors counts alpha / rank."""
    dropout: float = 0.05
    """Dropout before A."""
    targets: tuple[str, ...] = ()
    """Names of the linear modules with LoRA; default: query and value projections."""

    def __post_init__(self) -> None:
        at_least("lora.rank", self.rank, 1)
        between("lora.alpha", self.alpha, 0, float("inf"))
        if not 0 <= self.dropout < 1:
            raise UserError(f"'lora.dropout' must be from 0 to below 1, not {self.dropout:g}")


@dataclass(frozen=True)
class GenerationSettings:
    """How a causal language model writes a title; the defaults are BIGRec's."""

    beams: int = 4
    """Beams of the search; 1 is greedy."""
    candidates: int = 1
    """How many of the best texts are grounded, at most `beams`; the paper takes 1."""
    max_new_tokens: int = 128
    """Most tokens of a text, end token included."""
    length_penalty: float = 1.0
    """Beams are compared by log probability / length ** this."""
    temperature: float = 1.0
    """Of several candidates: the distance that counts as much as e times the probability."""
    batch: int = 64
    """Histories that are read at once."""

    def __post_init__(self) -> None:
        for name in ("beams", "candidates", "batch"):
            at_least(f"generation.{name}", getattr(self, name), 1)
        at_least("generation.max_new_tokens", self.max_new_tokens, 2)
        between("generation.temperature", self.temperature, 0, float("inf"))
        if self.candidates > self.beams:
            raise UserError(
                f"'generation.candidates' is {self.candidates}, above the {self.beams} beams: "
                "raise 'generation.beams'"
            )
