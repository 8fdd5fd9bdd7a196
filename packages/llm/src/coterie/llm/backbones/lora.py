"""LoRA through peft: the part of a frozen model that clients train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from coterie.core.errors import UserError
from coterie.core.tensors.device import CPU, computing_on
from coterie.core.tensors.keys import Key
from coterie.llm.settings.backbone import LoraSettings


def add_lora(model: nn.Module, settings: LoraSettings, targets: tuple[str, ...], key: Key) -> None:
    """Add LoRA to a model in place and freeze everything else (Hu et al. 2022).

    The factor A is random, by ``key``; B starts at 0, so the model's output is unchanged.

    Raises:
        UserError: no module has one of these names, or the model has an adapter already, which
            peft would empty.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    if any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise UserError(
            "the model has an adapter of peft on top already: merge it first, by merge_and_unload()"
        )
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    if missing := [target for target in targets if target not in names]:
        raise UserError(
            f"the model has no module named {missing[0]!r} for LoRA: name its linear modules by "
            "--lora.targets"
        )
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # peft takes floats too
        lora_dropout=settings.dropout,
        target_modules=list(targets),
        bias="none",
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with key.fold("lora").torch_rng(), computing_on(CPU):  # drawn there, moved to their layers
        inject_adapter_in_model(config, model)


@contextmanager
def base_model(model: nn.Module) -> Iterator[None]:
    """Switch LoRA off inside the block, so that the model is the frozen one.

    A module that stands for layers elsewhere can take part: if it has an attribute
    ``adapters_enabled``, this is False inside the block.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    remote = [module for module in model.modules() if hasattr(module, "adapters_enabled")]
    # peft's switch also unfreezes what it switches on.
    trained = [(p, p.requires_grad) for module in adapted for p in module.parameters()]
    try:
        _switch(adapted, remote, False)
        yield
    finally:
        _switch(adapted, remote, True)
        for parameter, requires_grad in trained:
            parameter.requires_grad_(requires_grad)


def _switch(adapted: list, remote: list, on: bool) -> None:
    for module in adapted:
        module.enable_adapters(on)
    for module in remote:
        module.adapters_enabled = on
