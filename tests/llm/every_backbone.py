"""Untrained backbones of every kind over the same twelve items, with or without LoRA."""

from coterie.core.tensors.keys import Key
from coterie.llm.backbone_settings import GenerationSettings, LoraSettings, ModelSettings
from coterie.llm.backbones.causal_text import tiny_text
from coterie.llm.backbones.recformer import small_recformer
from coterie.llm.backbones.tiny_item import TinyItem

TITLES = [
    f"{first} {last}" for first in ("Red", "Blue", "Old") for last in ("Sea", "Ox", "Sky", "I")
]
KINDS = ("tiny-item", "tiny-text", "recformer")


def make(kind, layers=3, rank=2, seed=0, trained=True, alpha=4.0):
    """One of `KINDS`; rank None is without LoRA. With ``trained`` no factor is 0."""
    key = Key.from_seed(seed)
    if kind == "tiny-item":
        model = TinyItem(len(TITLES), width=8, layers=layers, heads=2, context=4, key=key)
    elif kind == "tiny-text":
        size = ModelSettings(layers=layers, width=16, heads=2, vocabulary=300, context=48)
        generation = GenerationSettings(beams=2, max_new_tokens=6)
        model = tiny_text(TITLES, size, key, generation)
    else:
        size = ModelSettings(layers=layers, width=16, heads=2, vocabulary=300)
        titles = [(("title", title),) for title in TITLES]
        model = small_recformer(titles, size, key, window=4)
    if rank is not None:
        model.add_lora(LoraSettings(rank=rank, alpha=alpha, dropout=0.0), key)
        for number, (name, parameter) in enumerate(model.named_parameters()):
            if "lora_B" in name and trained:
                parameter.data = 0.3 * Key.from_seed(100 + number).normal(*parameter.shape)
    return model.eval()
