"""The formulas of `coterie llm cost` against what real split models send, to the byte."""

import json
from collections import defaultdict

import pytest
import torch
from tests.llm.every_backbone import TITLES, make
from tests.llm.organisations import examples
from tests.llm.tiny_split import use_start

from coterie.core.cli.main import main
from coterie.core.registry.papers import find_paper, load
from coterie.core.settings.configuration import configure
from coterie.core.tensors.stacked import Ragged
from coterie.llm.cost.formulas import cost_of
from coterie.llm.cost.inputs import _untrained, of_experiment
from coterie.llm.cost.measuring import (
    catalogue_tokens,
    recommending_tokens,
    validation_tokens,
)
from coterie.llm.data.examples import OrganisationData
from coterie.llm.split.channel import Channel
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training

CLIENTS = 3
# One batch a client and histories that are not drawn, so that every epoch has the same padding.
FIXED = f"--data.clients {CLIENTS} --data.shots 60 --data.span 10 --train.batch_size 512"
FIXED += " --data.public 0.8"  # few to validate and test
SMALL = "--model.layers 3 --model.width 16 --pretrain.steps 1 --rounds 1 --engine.threads 1"
TEXT = (
    "--model.name tiny-text --model.layers 4 --data.valid_users 8 --pretrain.steps 100 "
    "--generation.beams 3 --generation.candidates 2 --generation.max_new_tokens 10"
)


class Run:
    """A split run of one round (of each stage): its ledger, and the formulas' inputs."""

    def __init__(self, folder, flags):
        argv = [*f"{SMALL} {FIXED} {flags}".split(), "--split.k", "1"]
        quiet = ["--run.out", str(folder), "--run.progress", "false", "--logger.wandb", "off"]
        assert main(["train", "pplr", *argv, *quiet]) == 0
        [run] = folder.glob("pplr/sample*")
        self.sent = defaultdict(int)
        for row in json.loads((run / "ledger.json").read_text()):
            self.sent[row["step"], row["field"]] += row["bytes"]
        self.metrics = json.loads((run / "summary.json").read_text())["metrics"]
        settings = configure(find_paper("llm"), argv).settings
        self.experiment = load(find_paper("llm").experiment)(settings)
        self.inputs = of_experiment(self.experiment)
        self.cost = cost_of(self.inputs.size, 1, self.inputs.usage)

    def hidden(self, step):
        return self.sent[step, "activations"] + self.sent[step, "gradients"]

    def tested(self):
        """Tokens of the test's users, of all clients."""
        data: OrganisationData = self.experiment.clients
        backbone = _untrained(self.experiment)
        backbone.prepare()
        return sum(validation_tokens(backbone, queries) for queries in data.test)


@pytest.mark.long
def test_recformer_sends_its_catalogue_for_validations_of_stage_1_only(tmp_path, capsys):
    run = Run(tmp_path, "--model.name recformer")
    size, usage, cost = run.inputs.size, run.inputs.usage, run.cost
    way = size.hidden * 4  # bytes of a token, one way
    backbone = _untrained(run.experiment)
    items = CLIENTS * catalogue_tokens(backbone).validation
    assert items > CLIENTS * usage.round_tokens > 0
    # Two rounds, whose adapters have been validated, so that their items are there.
    assert run.hidden("update") == 2 * CLIENTS * cost.activations
    assert run.hidden("freeze") == 0
    assert run.sent["update", "row"] == 2 * CLIENTS * cost.adapters
    # A validation before the first round and after both, of which the last has the catalogue
    # frozen; and the test of the best one.
    once = CLIENTS * (cost.validation - cost.adapters / 2)
    expected = 3 * once - 2 * items * way + 2 * run.tested() * way
    assert run.hidden("evaluate") == expected
    assert run.sent["evaluate", "row"] == 4 * CLIENTS * cost.adapters / 2
    # All that the formula leaves out: a mask, a byte a token, and the numbers of the reports.
    assert run.sent["update", "masks"] == CLIENTS * 2 * usage.round_tokens
    others = {f for s, f in run.sent if s == "update"}
    assert others == {"activations", "gradients", "masks", "row", "loss", "examples"}


def test_tiny_item_sends_histories_only(tmp_path, capsys):
    run = Run(tmp_path, "--model.name tiny-item")
    cost = run.cost
    assert len(run.inputs.notes) == 1
    assert run.hidden("update") == CLIENTS * cost.activations
    assert run.sent["update", "row"] == CLIENTS * cost.adapters
    once = CLIENTS * (cost.validation - cost.adapters / 2)
    expected = 2 * once + 2 * run.tested() * run.inputs.size.hidden * 4
    assert run.hidden("evaluate") == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_tiny_text_sends_at_most_what_is_shown(tmp_path, capsys):
    """Pre-trained a little, since a model that knows no letters writes what takes more to embed."""
    run = Run(tmp_path, TEXT)
    cost, size = run.cost, run.inputs.size
    assert run.hidden("update") == CLIENTS * cost.activations
    catalogue = catalogue_tokens(_untrained(run.experiment))
    most = 2 * CLIENTS * run.inputs.usage.validation_tokens + run.tested()
    # The frozen model embeds the titles once; clients that play in one process share them.
    tokens = run.hidden("evaluate") / (2 * size.hidden * 4) - catalogue.once
    assert most / 3 < tokens <= most
    assert any("not known beforehand" in note for note in run.inputs.notes)


def test_the_wire_format_counts(tmp_path, capsys):
    run = Run(tmp_path, "--model.name recformer --train.stages 1 --split.wire bfloat16")
    assert run.inputs.size.wire == 2
    assert run.hidden("update") == CLIENTS * run.cost.activations
    assert run.sent["update", "row"] == CLIENTS * run.cost.adapters  # float32


class Recorded(Channel):
    """Notes the tokens that cross, with the adapter and without it."""

    tokens = (0, 0)

    def forward(self, hidden, context):
        found = list(self.tokens)
        found[not context.adapted] += hidden.shape[0] * hidden.shape[1]
        self.tokens = tuple(found)
        return super().forward(hidden, context)


def recorded(model):
    parts = cut(model, 1)
    middle = Middle(parts.stack, Training(lr=0.1))
    use_start(middle)
    channel = Recorded(middle)
    parts.connect(channel)
    return channel


@pytest.mark.parametrize("kind", ["tiny-item", "recformer"])
def test_a_query_is_what_crosses(kind):
    model, history = make(kind), examples(5, seed=3).history
    model.prepare()
    expected = recommending_tokens(model, history)
    channel = recorded(model)
    with channel.session(0, training=False):
        model.prepare()
        channel.tokens = (0, 0)
        model.scores(history)
    assert sum(channel.tokens) == expected


def test_every_beam_reads_the_prompt_and_writes():
    """A model that never ends a title reaches the bound of what is written, to the token."""
    model, history = make("tiny-text"), examples(5, seed=3).history
    expected = recommending_tokens(model, history)
    model.text.tokenizer.eos_token_id = None
    how, prompts = model.generation, model.text.prompts(history)
    written = how.beams * 5 * (max(map(len, prompts)) + how.max_new_tokens - 1)
    channel = recorded(model)
    with channel.session(0, training=False):
        model.item_vectors()
        channel.tokens = (0, 0)
        model.scores(history)
    assert channel.tokens[0] == written
    assert channel.tokens[1] > 0
    assert expected == written + 5 * how.candidates * how.max_new_tokens


@pytest.mark.parametrize(
    ("kind", "rank", "when"),
    [
        ("tiny-item", 2, set()),
        ("tiny-text", 2, {"once"}),
        ("tiny-text", None, {"validation"}),
        ("recformer", 2, {"validation"}),
        ("recformer", None, {"validation"}),
    ],
)
def test_the_catalogue_is_what_crosses(kind, rank, when):
    expected = catalogue_tokens(make(kind, rank=rank))
    assert {name for name, count in vars(expected).items() if count} == when
    model, nothing = make(kind, rank=rank), Ragged.from_lists([])
    channel = recorded(model)
    with channel.session(0, training=False):
        model.prepare()
        model.scores(nothing)
        assert sum(channel.tokens) == expected.validation + expected.once
        with torch.no_grad():
            next(p for p in model.parameters() if p.requires_grad).add_(1.0)
        model.prepare()
        model.scores(nothing)
        assert sum(channel.tokens) == 2 * expected.validation + expected.once


def test_counting_leaves_the_layers_as_they_were():
    model = make("recformer")
    layers, data = list(model.layers), examples(4, seed=1)
    before = model.scores(data.history)
    catalogue_tokens(model)
    model.prepare()
    recommending_tokens(model, data.history)
    assert list(model.layers) == layers
    assert torch.equal(model.scores(data.history), before)
    assert len(TITLES) == model.n_items
