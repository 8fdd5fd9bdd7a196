"""What a run of PPLR gives to other programs: an organisation's adapter, or its whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.errors import UserError
from coterie.core.export.of_run import of_run
from coterie.core.run.exported import Asked, Exported, Graph
from coterie.core.run.runfolder import RunFolder
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbones.base import Backbone
from coterie.llm.backbones.encoder import Encoder
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.export import (
    AXES,
    BASE,
    EMBEDDINGS,
    EXPERT,
    WEIGHTS,
    published_name,
    write_adapter,
    write_merged,
)
from coterie.llm.settings import USER_METHODS
from coterie.llm.trained_run import TrainedRun

_CHECKED = 64  # examples on which what was saved is compared
_FILES = {
    WEIGHTS: "the factors of LoRA, by the names that peft gives them",
    "adapter_config.json": "what peft asks of an adapter",
    BASE: "the frozen model, with its tokenizer where it reads text",
    "config.json": "the form of the network, for transformers",
    EMBEDDINGS: "embeddings of the items, which stage 2 scores against",
    AXES: "axes of the vectors, and the rest of the formula in its metadata",
    EXPERT: "what is scored beside the network; the factors in its metadata",
}


def exported(run: Path, asked: Asked, kept: Path | None = None) -> Exported:
    """Give what `coterie export` writes of a run.

    Args:
        run: its folder.
        asked: the organisation; of a method in which users are clients, the user.
        kept: folder in which `coterie llm serve` has kept its layers' part.

    Raises:
        UserError: there is no such run or client, or nothing can be given.
    """
    if RunFolder.open(run).settings.method in USER_METHODS:
        return of_run(run, asked, kept)
    if asked.user is not None:
        raise UserError("the clients of this run are organisations: say --client NUMBER")
    from transformers.utils import logging

    logging.disable_progress_bar()
    trained = TrainedRun(run, kept)
    if asked.client is None:
        last = trained.n_clients - 1
        raise UserError(f"every organisation has an adapter of its own: say --client 0 to {last}")
    trained.check_trained(asked.client)
    backbone = trained.backbone(asked.client)
    examples = trained.examples(asked.client, _CHECKED)
    items = trained.experiment.interactions
    graph, why = _graph(backbone, examples.history)
    return Exported(
        tested=f"round {trained.best_round}",
        tensors={},
        about={},
        absent=(
            "Adapters of the other organisations.",
            "Histories of users: give your own, as numbers of items.csv.",
        ),
        loading="",
        items=items,
        graph=graph,
        no_graph=why,
        writers={
            "peft": lambda folder: write_adapter(backbone, examples, items, folder),
            "safetensors": lambda folder: write_merged(backbone, examples, items, folder),
        },
        loadings={"peft": _peft_loading(backbone), "safetensors": _loading(backbone)},
        lacking={"peft": _base_line(backbone)},
        libraries={"peft": "peft", "safetensors": "transformers"},
        files=_FILES,
    )


def _kind(backbone: Backbone) -> str:
    """The class of transformers that loads the network."""
    name = type(backbone.model).__name__
    if name.endswith("ForCausalLM"):
        return "AutoModelForCausalLM"
    return "AutoModel" if isinstance(backbone, Encoder) else name


def _imports(backbone: Backbone) -> str:
    return "import torch\n" if _scoring(backbone) else ""


def _scoring(backbone: Backbone) -> str:
    """How the network is asked where an item is a token; prompts of texts take more than a line."""
    if not isinstance(backbone, TinyItem) or backbone.expert is not None:
        return ""
    n, most = backbone.n_items, backbone.context
    return f"""
history = [0, 1, 2]  # numbers of items.csv, oldest first, {most} at most
tokens = torch.tensor([[{n}, *history]])  # behind a start token
scores = model.eval()(input_ids=tokens).logits[0, -1, :{n}]  # of all items
"""


def _loading(backbone: Backbone) -> str:
    kind = _kind(backbone)
    where = "transformers" if kind.startswith("Auto") else "coterie.llm.backbones.recformer"
    return f"""\
{_imports(backbone)}from {where} import {kind}

model = {kind}.from_pretrained("FOLDER")  # this folder
{_scoring(backbone)}"""


def _peft_loading(backbone: Backbone) -> str:
    kind, name = _kind(backbone), published_name(backbone)
    where = "transformers" if kind.startswith("Auto") else "coterie.llm.backbones.recformer"
    base = repr(name) if name else '"FOLDER/base"'
    return f"""\
{_imports(backbone)}from peft import PeftModel
from {where} import {kind}

base = {kind}.from_pretrained({base})
model = PeftModel.from_pretrained(base, "FOLDER")  # this folder, wherever it is
{_scoring(backbone)}"""


def _base_line(backbone: Backbone) -> tuple[str, ...]:
    name = str(backbone.model.config.name_or_path)
    if not name:
        return (
            "A name by which AutoPeftModel finds the base from elsewhere: it looks for `base` in "
            "the working directory. So cd into this folder, or load as below.",
        )
    if Path(name).expanduser().exists():
        return (f"The base, which was the folder {Path(name).name}.",)
    return ()


class TokenScores(nn.Module):
    """Score all items after rows of item tokens, as `TinyItem` does.

    Args:
        backbone: with its adapter.
    """

    def __init__(self, backbone: TinyItem) -> None:
        super().__init__()
        self.model: Any = backbone.model
        self._n_items, self._pad = backbone.n_items, backbone.n_items + 1

    def forward(self, tokens: Tensor) -> Tensor:
        """Score after tokens ``(B, T)``: ``(B, n_items)``."""
        mask = (tokens != self._pad).long()
        out = self.model(input_ids=tokens, attention_mask=mask, use_cache=False, logits_to_keep=1)
        scores: Tensor = out.logits[:, -1, : self._n_items]
        return scores


@torch.no_grad()
def _graph(backbone: Backbone, history: Ragged) -> tuple[Graph | None, str]:
    """The network as a graph, or why there is none."""
    if not isinstance(backbone, TinyItem) or backbone.expert is not None:
        what = "with an expert" if backbone.expert is not None else "that reads texts"
        return None, f"it is a backbone {what}: say --format safetensors, or --format peft"
    backbone.eval()
    tokens, _ = backbone.tokens(history)
    first, pad = backbone.n_items, backbone.n_items + 1
    about = (
        f"numbers of items.csv, oldest first, {backbone.context} at most, behind a start token "
        f"{first}; shorter rows begin with {pad}"
    )
    scores = backbone.scores(history)
    graph = Graph(
        TokenScores(backbone),
        {"tokens": tokens},
        {"tokens": about},
        "scores",
        scores,
        free={"tokens": {1: "length"}},
    )
    return graph, ""
