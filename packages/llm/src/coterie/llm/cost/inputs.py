"""What `coterie llm cost` compares: sizes of a model, and the tokens of the clients' data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from coterie.core.errors import UserError
from coterie.core.tensors import tree
from coterie.core.tensors.keys import Key
from coterie.llm.backbone import make_backbone
from coterie.llm.backbone_settings import GenerationSettings, LoraSettings
from coterie.llm.backbones.base import Backbone, add_lora
from coterie.llm.backbones.causal_text import CausalText
from coterie.llm.backbones.encoder import Encoder
from coterie.llm.backbones.hub import from_hub
from coterie.llm.backbones.recformer import RecFormer
from coterie.llm.cost.formulas import KILO, MEGA, ModelSize, Usage, spread_of_splits
from coterie.llm.cost.measuring import (
    CatalogueTokens,
    StepCost,
    catalogue_tokens,
    generated_tokens,
    measure_steps,
    prompt_tokens,
    recommending_tokens,
    training_tokens,
    validation_tokens,
)
from coterie.llm.data.examples import Examples, Queries, thinned
from coterie.llm.experiment import Experiment
from coterie.llm.split.channel import WIRE_TYPES


def size_of(network: nn.Module, layers: Iterable[nn.Module], hidden: int, bytes: int) -> ModelSize:
    """Count the parameters of a network of width h and of its N layers; shared ones count once.

    Example:
        >>> layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        >>> size_of(nn.Sequential(nn.Embedding(3, 2), *layers), layers, 2, 4).layers
        (6, 6)
    """
    layers = list(layers)
    plain = [_count(layer, trained=False) for layer in layers]
    trained = [_count(layer, trained=True) for layer in layers]
    return ModelSize(
        layers=tuple(plain),
        rest=_count(network, trained=False) - sum(plain),
        trained_layers=tuple(trained),
        trained_rest=_count(network, trained=True) - sum(trained),
        hidden=hidden,
        bytes=bytes,
    )


def size_of_config(config: Any, lora: LoraSettings | None, bytes: int) -> ModelSize:
    """Count the parameters of a Hugging Face model without making it.

    Args:
        config: of a causal language model with ``model.layers``, or of an encoder with
            ``encoder.layer``, such as Longformer.
        lora: the adapter; None trains all parameters.
        bytes: a number.

    Raises:
        UserError: the model has no such layers, or lacks a module that is to get LoRA.
    """
    with torch.device("meta"):
        network = _kind(config).from_config(config)
    layers, like = _layers(network)
    if lora is not None:  # on meta too
        add_lora(network, lora, lora.targets or like.targets, Key.from_seed(0), like.place)
    return size_of(network, layers, int(config.hidden_size), bytes)


def read_config(name: str) -> Any:
    """Read a Hugging Face configuration.

    Args:
        name: a file ``config.json`` or its folder; a kind of model such as ``llama``, for its
            defaults (those of ``llama`` are LLaMA-7B's); or a name on the hub.

    Raises:
        UserError: there is none.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if name in CONFIG_MAPPING and not Path(name).exists():
        return AutoConfig.for_model(name)
    return from_hub(AutoConfig, name)


def writes(config: Any) -> bool:
    """Whether a configuration is that of a causal language model; otherwise of an encoder."""
    return _kind(config).__name__ == "AutoModelForCausalLM"


def _kind(config: Any) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM

    for kind in (AutoModelForCausalLM, AutoModel):
        if type(config) in kind._model_mapping:
            return kind
    raise UserError(f"a {config.model_type} is no language model: give a causal LM or an encoder")


def _layers(network: nn.Module) -> tuple[nn.ModuleList, type[Backbone]]:
    """The layers, and the backbone that has such ones."""
    names = {name.rpartition(".")[2] for name, _ in network.named_modules()}
    like: type[Backbone]
    for like in (CausalText, RecFormer, Encoder):
        try:
            found = network.get_submodule(like.place)
        except AttributeError:
            continue
        if isinstance(found, nn.ModuleList) and names.issuperset(like.targets):
            return found, like
    raise UserError(
        f"a {type(network).__name__} has neither 'model.layers' nor 'encoder.layer': use a model "
        "built like Llama or Longformer"
    )


def _count(module: nn.Module, *, trained: bool) -> int:
    """Numbers that are trained, or those that are not LoRA's."""
    return sum(
        parameter.numel()
        for name, parameter in module.named_parameters()
        if (parameter.requires_grad if trained else "lora_" not in name)
    )


_SAMPLE = 200  # users who stand for all
_ENCODER = (
    "Histories are counted in BIGRec's prompt, and the items' texts, which an encoder such as "
    "RecFormer embeds for every validation, are not: --model.name recformer counts them."
)
_TITLES = (
    "The titles of all items, which cross once for LoRA and in every validation for --full, are "
    "not counted."
)


@dataclass(frozen=True)
class Inputs:
    """Of the cost table.

    Attributes:
        title: what is compared.
        size: of the model.
        round_tokens: tokens of a round of each client, without the items' texts.
        usage: of a client on average.
        notes: how they were found.
    """

    title: str
    size: ModelSize
    round_tokens: list[float]
    usage: Usage
    notes: list[str]


def of_experiment(experiment: Experiment) -> Inputs:
    """Size and tokens of a run's own backbone."""
    settings, backbone, parts = experiment.settings, _untrained(experiment), _read(experiment)
    train, users = settings.train, experiment.clients.valid
    catalogue = catalogue_tokens(backbone)
    epoch = [training_tokens(backbone, part, train.batch_size) for part in parts]
    tokens = [float(train.epochs * count) for count in epoch]
    valid = sum(validation_tokens(backbone, queries) for queries in users) / len(users)
    usage = Usage(
        round_tokens=_mean(tokens),
        query_tokens=_query_tokens(backbone, users),
        validation_tokens=valid + catalogue.validation,
    )
    size = _size(backbone, settings.split.wire)
    title = f"{settings.model.name} on {settings.data.name}, a client and round"
    notes = [_tokens_note(tokens, sum(epoch) / sum(map(len, parts)), "padding included")]
    if size.splits:
        notes += _catalogue_notes(catalogue, size, train.stages or 1)
    if size.splits and isinstance(backbone, CausalText):
        notes.append(_generation_note(settings.generation, usage.query_tokens, size))
    return Inputs(title, size, tokens, usage, notes)


def of_config(
    experiment: Experiment, name: str, *, full: bool, bytes: int, tokens: int | None
) -> Inputs:
    """Size of a Hugging Face model that is not loaded, and tokens of a run's data in its prompts.

    Args:
        experiment: gives the data, and how titles are written.
        name: see `read_config`.
        full: train all parameters instead of LoRA.
        bytes: a number.
        tokens: of an example; None counts those of BIGRec's prompt.

    Raises:
        UserError: there is no such model, or it is of a kind that cannot be split.
    """
    settings, users = experiment.settings, experiment.clients.valid
    config = read_config(name)
    size = size_of_config(config, None if full else settings.lora, bytes)
    parts = _read(experiment)
    how = "as given by --tokens"
    example = float(tokens or 0)
    if tokens is None:
        tokenizer, how = _tokenizer(name)
        titles = experiment.data.catalogue.require_titles()
        example = prompt_tokens(reduce(tree.concatenate, parts), titles, tokenizer)
    read = [settings.train.epochs * len(part) * example for part in parts]
    notes, query = [_tokens_note(read, example, how)], example
    if writes(config):
        query = generated_tokens(example, 1, settings.generation)
        notes += [_generation_note(settings.generation, query, size), _TITLES]
    else:
        notes.append(_ENCODER)
    usage = Usage(_mean(read), query, validation_tokens=query * _mean(list(map(len, users))))
    what = "all parameters" if full else f"LoRA of rank {settings.lora.rank}"
    title = f"{name} ({bytes} bytes a number, {what}) on {settings.data.name}, a client and round"
    return Inputs(title, size, read, usage, notes)


def measured(experiment: Experiment, splits: Sequence[int] | None, repeats: int) -> list[StepCost]:
    """Measure a training step of the largest client over k.

    Raises:
        UserError: the backbone cannot be split.
    """
    backbone, settings = _untrained(experiment), experiment.settings
    largest = max(_read(experiment), key=len)
    batch = largest.take(torch.arange(min(len(largest), settings.train.batch_size)))
    size = _size(backbone)
    if not size.splits:
        size.middle(1)  # refuses, and says what is needed
    key = Key.from_seed(settings.seed).fold("cost")
    return measure_steps(backbone, batch, splits or spread_of_splits(size), repeats, key)


def _untrained(experiment: Experiment) -> Backbone:
    """The model before pre-training, which changes neither its sizes nor its speed."""
    settings = experiment.settings
    settings = replace(settings, pretrain=replace(settings.pretrain, steps=0))
    with TemporaryDirectory() as cache:
        return make_backbone(settings, experiment.data, Path(cache))


def _size(backbone: Backbone, wire: str | None = None) -> ModelSize:
    number = next(p for p in backbone.parameters() if p.is_floating_point())
    size = size_of(backbone, list(backbone.layers), backbone.hidden, number.element_size())
    return size if wire is None else replace(size, wire=WIRE_TYPES[wire].itemsize)


def _query_tokens(backbone: Backbone, users: Sequence[Queries]) -> float:
    """Tokens to recommend to one of them, each alone and so without padding, on average."""
    most = _SAMPLE // len(users) + 1
    alone = [
        queries.history.take(row)
        for queries in users
        for row in torch.arange(min(len(queries), most))[:, None]
    ]
    return _mean([recommending_tokens(backbone, history) for history in alone])


def _read(experiment: Experiment) -> list[Examples]:
    """Every client's examples as a backbone reads them in an epoch."""
    key = Key.from_seed(experiment.settings.seed).fold("cost")
    longest = experiment.settings.data.max_history
    return [thinned(part, longest, key) for part in experiment.clients.train]


def _tokenizer(name: str) -> tuple[object | None, str]:
    from transformers import CONFIG_MAPPING, AutoTokenizer

    guess = "estimated from BIGRec's prompt, 4 characters a token"
    if name in CONFIG_MAPPING:  # a kind of model has no tokenizer of its own
        return None, guess
    try:
        return from_hub(AutoTokenizer, name), "counted in BIGRec's prompt"
    except UserError:
        return None, guess


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _tokens_note(tokens: Sequence[float], example: float, how: str) -> str:
    return (
        f"A client reads {_mean(tokens):,.0f} tokens in a round on average ({min(tokens):,.0f} to "
        f"{max(tokens):,.0f}), {example:,.1f} an example, {how}."
    )


def _catalogue_notes(catalogue: CatalogueTokens, size: ModelSize, stages: int) -> list[str]:
    """Tell when the texts of all items cross; nothing where they never do."""
    tokens = catalogue.validation or catalogue.once
    much = f"{2 * tokens * size.crossing / MEGA:,.3g} MB"
    if catalogue.validation:
        end = f" In stage {stages} they are frozen, and none crosses." if stages > 1 else ""
        return [f"Of a validation {much} are the items' texts, embedded anew.{end}"]
    said = f"A client embeds the items' texts once, by the frozen model: {much}, in no column."
    return [said] if catalogue.once else []


def _generation_note(how: GenerationSettings, query: float, size: ModelSize) -> str:
    """Tell what it costs to recommend by writing titles, in ``query`` tokens at most."""
    prompts = query - generated_tokens(0, 1, how)
    texts = f"the best {how.candidates} texts, no titles, are"
    if how.candidates == 1:
        texts = "the best text, no title, is"
    return (
        f"A query costs from {2 * prompts * size.crossing / KILO:,.0f} kB, for {how.beams} beams "
        f"that read the prompt, up to what is shown, where all write {how.max_new_tokens} tokens "
        f"and {texts} embedded; a validation likewise. How soon texts end is not known beforehand."
    )
