"""Save a client's adapter, or its whole model, and check what was saved by reading it back."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from coterie.core.data.interactions.interactions import Interactions
from coterie.core.errors import UserError
from coterie.core.files import write_json, writing
from coterie.llm.adapter import Adapter
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.network import network_name, network_of
from coterie.llm.data.examples import Examples
from coterie.llm.export.adapter_files import ORIGIN, has_lora, load_adapter, save_adapter
from coterie.llm.export.item_embeddings import save_items

ITEMS = "items.csv"
_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-5}  # of W + BA; coarser formats below
_COARSE = 5e-2


def export_adapter(
    backbone: Backbone,
    examples: Examples,
    items: Interactions,
    origin: Mapping[str, Any],
    folder: Path,
) -> None:
    """Write the LoRA that is in a backbone as a folder of peft.

    Args:
        backbone: with a client's adapter.
        examples: on which what is read back must answer bit for bit as what was saved.
        items: whose numbers and titles are written beside it.
        origin: noted beside it.
        folder: a new one; it is there only if all went well.

    Raises:
        UserError: there is no LoRA, it is empty, or the folder is there or cannot be written.
    """
    with _new(folder) as temporary:
        save_adapter(backbone, temporary, origin)
        _write_items(items, temporary)
        before, adapter = answers(backbone, examples), Adapter(backbone.named_parameters())
        scored = backbone.scores(examples.history)
        row, frozen = adapter.row(), backbone.frozen_items
        adapter.load(torch.zeros_like(row))  # so that nothing but the files can bring it back
        backbone.frozen_items = None
        try:
            load_adapter(temporary, backbone)
            same = torch.equal(answers(backbone, examples), before)
            same &= torch.equal(backbone.scores(examples.history), scored)
        finally:
            adapter.load(row)
            backbone.frozen_items = frozen
            backbone.prepare()
        if not same:
            raise UserError("the adapter read back does not give the same scores: not exported")


def export_merged(
    backbone: Backbone,
    examples: Examples,
    items: Interactions,
    origin: Mapping[str, Any],
    folder: Path,
) -> float:
    """Write the whole network with the adapter merged into its weights, by ``save_pretrained``.

    Args:
        backbone: with a client's adapter.
        examples: on which the network read back must answer alike, up to the rounding of W + BA.
        items: whose numbers and titles are written beside it.
        origin: noted beside it.
        folder: a new one; it is there only if all went well.

    Returns:
        The largest difference of an answer, as a share of the largest answer.

    Raises:
        UserError: the folder is there or cannot be written, or the answers differ.
    """
    with _new(folder) as temporary:
        with writing(folder):
            network_of(backbone).save_pretrained(str(temporary), state_dict=merged_state(backbone))
            if (tokenizer := _tokenizer(backbone)) is not None:
                tokenizer.save_pretrained(str(temporary))
        save_items(backbone, temporary)
        _write_items(items, temporary)
        write_json(temporary / ORIGIN, dict(origin))
        before = answers(backbone, examples)
        after = _answers_of(temporary, backbone, examples)
        difference = float((after - before).abs().max() / before.abs().max())
        allowed = _ROUNDING.get(network_of(backbone).dtype, _COARSE) if has_lora(backbone) else 0.0
        if not difference <= allowed:
            raise UserError(
                f"the merged model read back differs by {difference:.1e} of the largest answer, "
                f"above {allowed:.0e}: not exported"
            )
    return difference


def merged_state(backbone: Backbone) -> dict[str, Tensor]:
    """Parameters of the network by their plain names, with the products of LoRA added."""
    from peft.tuners.lora import LoraLayer

    network = network_of(backbone)
    state = {
        name.replace(".base_layer.", "."): value
        for name, value in network.state_dict().items()
        if "lora_" not in name
    }
    for name, module in network.named_modules():
        if isinstance(module, LoraLayer):
            for adapter in module.active_adapters:
                weight = state[f"{name}.weight"]
                delta: Tensor = module.get_delta_weight(adapter)  # type: ignore[attr-defined]
                state[f"{name}.weight"] = weight + delta.to(weight)
    return state


@torch.no_grad()
def answers(backbone: Backbone, examples: Examples) -> Tensor:
    """What the network gives for examples: logits, or embeddings of sequences; float32, flat."""
    found: list[Tensor] = []

    def keep(module: Any, given: Any, out: Any) -> None:
        found.append((out if isinstance(out, Tensor) else out.logits).float().flatten().cpu())

    backbone.eval()
    backbone.prepare()
    hook = network_of(backbone).register_forward_hook(keep)
    try:
        backbone.loss(examples)
    finally:
        hook.remove()
    return torch.cat(found)


def _answers_of(folder: Path, backbone: Backbone, examples: Examples) -> Tensor:
    """Answers of a saved network in the place of the backbone's own."""
    name, own = network_name(backbone), network_of(backbone)
    positions = getattr(getattr(own, "embeddings", None), "item_position_embeddings", None)
    more = {} if positions is None else {"item_positions": positions.num_embeddings}  # RecFormer
    try:
        setattr(backbone, name, type(own).from_pretrained(str(folder), **more))
        return answers(backbone, examples)
    finally:
        setattr(backbone, name, own)
        backbone.prepare()


def _tokenizer(backbone: Backbone) -> Any:
    """The tokenizer of a backbone that reads text, or None."""
    readers = (getattr(backbone, name, None) for name in ("text", "items"))
    return next((found for r in readers if (found := getattr(r, "tokenizer", None))), None)


def _write_items(items: Interactions, folder: Path) -> None:
    """Write which number stands for which item."""
    table = pd.DataFrame({"number": range(items.n_items), "item": items.item_names})
    if items.titles is not None:
        table["title"] = items.titles
    with writing(folder):
        table.to_csv(folder / ITEMS, index=False)


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """Fill a temporary folder inside the block, then give it its name; an error leaves nothing.

    Raises:
        UserError: it is there already, or cannot be written.
    """
    if folder.exists():
        raise UserError(f"{folder} is there already: choose another folder by --to")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        os.chmod(temporary, 0o755)
        yield temporary
        with writing(folder):
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
