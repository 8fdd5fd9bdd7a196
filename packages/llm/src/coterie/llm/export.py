"""Write a client's adapter, or its whole model, for other programs, and check it by reading it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.llm.adapter import Adapter
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.encoder import Encoder
from coterie.llm.backbones.folder import writing_tensors
from coterie.llm.data.examples import Examples

WEIGHTS, ITEMS = "adapter_model.safetensors", "items.csv"
BASE = "base"  # folder of the frozen model, where it is no published one
EMBEDDINGS = "item_embeddings.safetensors"  # what stage 2 scores against
_EMBEDDED = "item_embeddings"
AXES = "axes.safetensors"  # of an encoder's vectors: centre, axes, and the rest of the formula
EXPERT = "expert.safetensors"  # trained bias, the client's own counts, dense vectors; factors
_PREFIX = "base_model.model."  # what peft puts before the names of the wrapped model
_ADAPTER = "default"  # peft's name of the one adapter
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-5}  # of W + BA; coarser formats below
_COARSE = 5e-2


def write_adapter(
    backbone: Backbone, examples: Examples, items: Interactions, folder: Path
) -> float:
    """Write the LoRA that is in a backbone as ``PeftModel.from_pretrained`` reads it.

    The frozen model is written beside it, as a folder `BASE`, if it has no published name, and
    named by that folder: peft looks for it in the working directory.

    Args:
        backbone: with a client's adapter.
        examples: on which what is read back must answer bit for bit as what was saved.
        items: whose numbers and titles are written beside it.
        folder: where to.

    Returns:
        0: what was read back answers bit for bit as before.

    Raises:
        UserError: there is no LoRA, it is empty, it cannot be written, or what is read back gives
            other scores.
    """
    factors, network = _factors(backbone), backbone.model
    config = copy.copy(network.peft_config[_ADAPTER])
    config.inference_mode = True
    published = published_name(backbone)
    config.base_model_name_or_path = published or BASE
    if type(network).__name__.endswith("ForCausalLM"):
        config.task_type = "CAUSAL_LM"
    with writing_tensors(folder):
        config.save_pretrained(str(folder))
        tensors = {name: factor.contiguous() for name, factor in factors.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    if not published:
        _save_network(backbone, folder / BASE, merged=False)
    _describe(backbone, items, folder)
    if not _reads_back(backbone, examples, factors, folder):
        raise UserError("the adapter read back does not give the same scores: not exported")
    return 0.0


def published_name(backbone: Backbone) -> str:
    """Name of the frozen model on the hub; of a folder here its last part, "" where it has none."""
    name = str(backbone.model.config.name_or_path)
    path = Path(name).expanduser()
    return path.name if path.is_absolute() or path.exists() else name


def write_merged(
    backbone: Backbone, examples: Examples, items: Interactions, folder: Path
) -> float:
    """Write the whole network with the adapter merged into its weights, by ``save_pretrained``.

    Arguments are as of `write_adapter`; answers must be alike up to the rounding of W + BA.

    Returns:
        The largest difference of an answer, as a share of the largest answer.

    Raises:
        UserError: it cannot be written, or the answers differ.
    """
    _save_network(backbone, folder, merged=True)
    _describe(backbone, items, folder)
    before = answers(backbone, examples)
    after = _answers_of(folder, backbone, examples)
    difference = float((after - before).abs().max() / before.abs().max())
    rounding = _ROUNDING.get(backbone.model.dtype, _COARSE)
    allowed = rounding if _has_lora(backbone) else 0.0
    if not difference <= allowed:
        raise UserError(
            f"the merged model read back differs by {difference:.1e} of the largest answer, "
            f"above {allowed:.0e}: not exported"
        )
    return difference


@torch.no_grad()
def answers(backbone: Backbone, examples: Examples) -> Tensor:
    """What the network gives for examples: logits, or embeddings of sequences; float32, flat.

    Of an encoder it is the last state of the items in them, before pooling and axes.
    """
    backbone.eval()
    backbone.prepare()
    if isinstance(backbone, Encoder):
        items = torch.cat([examples.history.values, examples.target])
        return backbone.states_by_layer(items)[-1].float().flatten().cpu()
    found: list[Tensor] = []

    def keep(module: Any, given: Any, out: Any) -> None:
        found.append((out if isinstance(out, Tensor) else out.logits).float().flatten().cpu())

    hook = backbone.model.register_forward_hook(keep)
    try:
        backbone.loss(examples)
    finally:
        hook.remove()
    return torch.cat(found)


def _answers_of(folder: Path, backbone: Backbone, examples: Examples) -> Tensor:
    """Answers of a saved network in the place of the backbone's own."""
    own = backbone.model
    positions = getattr(getattr(own, "embeddings", None), "item_position_embeddings", None)
    more = {} if positions is None else {"item_positions": positions.num_embeddings}  # RecFormer
    try:
        backbone.model = type(own).from_pretrained(str(folder), **more)
        return answers(backbone, examples)
    finally:
        backbone.model = own
        backbone.prepare()


def _factors(backbone: Backbone) -> dict[str, nn.Parameter]:
    """The factors of LoRA by the names that they have in peft's files.

    Raises:
        UserError: there are none, or they change nothing, or are not finite.
    """
    if not _has_lora(backbone):
        raise UserError(
            "the backbone has no LoRA, all its parameters are trained: there is no adapter apart "
            "from the model; train by --model.trained lora, or export the model by --format "
            "safetensors"
        )
    found = {
        _PREFIX + name.replace(f".{_ADAPTER}.", "."): parameter
        for name, parameter in backbone.model.named_parameters()
        if "lora_" in name
    }
    bad = [name for name, factor in found.items() if not bool(factor.isfinite().all())]
    if bad:
        raise UserError(f"the adapter has numbers in '{bad[0]}' that are not finite: train again")
    if not any(bool(factor.any()) for name, factor in found.items() if "lora_B" in name):
        raise UserError("the adapter is empty: all its factors B are 0, so that it changes nothing")
    return found


def _has_lora(backbone: Backbone) -> bool:
    return any("lora_" in name for name, _ in backbone.named_parameters())


@torch.no_grad()
def _reads_back(
    backbone: Backbone, examples: Examples, factors: Mapping[str, nn.Parameter], folder: Path
) -> bool:
    """Whether the files alone bring back the same answers and scores."""
    before, scored = answers(backbone, examples), backbone.scores(examples.history)
    adapter = Adapter(backbone.named_parameters())
    row, frozen, expert = adapter.row(), backbone.frozen_items, backbone.expert
    held = {} if expert is None else expert.parts()
    adapter.load(torch.zeros_like(row))  # so that nothing but the files can bring it back
    backbone.forget()
    space = backbone.space if isinstance(backbone, Encoder) else None
    try:
        tensors = load_file(folder / WEIGHTS)
        for name, factor in factors.items():
            factor.copy_(tensors[name])
        if expert is not None:
            expert.use({n: part.clone() for n, part in load_file(folder / EXPERT).items()})
        if isinstance(backbone, Encoder):
            backbone.space = _axes(folder)
        if frozen is not None:
            # Products round by where a tensor lies in memory, and in a file it lies anywhere.
            backbone.frozen_items = load_file(folder / EMBEDDINGS)[_EMBEDDED].clone()
        same = torch.equal(answers(backbone, examples), before)
        return same and torch.equal(backbone.scores(examples.history), scored)
    finally:
        adapter.load(row)
        backbone.frozen_items = frozen
        if isinstance(backbone, Encoder):
            backbone.space = space
        if expert is not None:
            expert.use(held)
        backbone.forget()
        backbone.prepare()


def _axes(folder: Path) -> tuple[Tensor, Tensor] | None:
    """Read the axes of an encoder's vectors; None where they are left as they are."""
    held = load_file(folder / AXES)
    return (held["centre"].clone(), held["axes"].clone()) if held else None


def _save_network(backbone: Backbone, folder: Path, *, merged: bool) -> None:
    """Write the network and its tokenizer by ``save_pretrained``, as if there were no LoRA."""
    with writing_tensors(folder):
        state = plain_state(backbone, merged=merged)
        backbone.model.save_pretrained(str(folder), state_dict=state)
        reader = backbone if isinstance(backbone, Encoder) else backbone.reader
        if reader is not None and reader.tokenizer is not None:
            reader.tokenizer.save_pretrained(str(folder))


def plain_state(backbone: Backbone, *, merged: bool) -> dict[str, Tensor]:
    """Parameters of the network by their plain names, with the products of LoRA or without."""
    from peft.tuners.lora import LoraLayer

    network = backbone.model
    state = {
        name.replace(".base_layer.", "."): value
        for name, value in network.state_dict().items()
        if "lora_" not in name
    }
    for name, module in network.named_modules() if merged else ():
        if isinstance(module, LoraLayer):
            for adapter in module.active_adapters:
                weight = state[f"{name}.weight"]
                delta: Tensor = module.get_delta_weight(adapter)
                state[f"{name}.weight"] = weight + delta.to(weight)
    return state


def _describe(backbone: Backbone, items: Interactions, folder: Path) -> None:
    """Write beside it which number is which item, frozen embeddings and the expert."""
    table = pd.DataFrame({"number": range(items.n_items), "item": items.item_names})
    if items.titles is not None:
        table["title"] = items.titles
    expert = backbone.expert
    if expert is not None and expert.words is not None:
        table["words"] = expert.words.titles  # may be other ones than titles
    with writing_tensors(folder):
        table.to_csv(folder / ITEMS, index=False)
        if backbone.frozen_items is not None:
            save_file({_EMBEDDED: backbone.frozen_items.contiguous()}, folder / EMBEDDINGS)
        if isinstance(backbone, Encoder):
            space = backbone.space
            axes = {} if space is None else {"centre": space[0], "axes": space[1].contiguous()}
            save_file(axes, folder / AXES, metadata=backbone.formula())
        if expert is not None:
            held = {name: part.contiguous() for name, part in expert.parts().items()}
            save_file(held, folder / EXPERT, metadata=expert.factors())
