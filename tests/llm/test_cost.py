"""What FedAvg and PPLR cost a client: golden numbers, plain sums, and what really crosses."""

import json
import math
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.llm.every_backbone import KINDS, TITLES, make
from tests.llm.organisations import examples
from tests.llm.tiny_split import use_start

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.llm.backbone_settings import LoraSettings
from coterie.llm.backbones.text import train_tokenizer
from coterie.llm.cost.formulas import (
    ModelSize,
    Usage,
    cost_of,
    costs,
    spread_of_splits,
    verdict,
)
from coterie.llm.cost.inputs import read_config, size_of, size_of_config
from coterie.llm.cost.measuring import measure_steps, prompt_tokens, training_tokens
from coterie.llm.split.channel import Channel
from coterie.llm.split.cut import cut
from coterie.llm.split.middle import Middle, Training

# LLaMA-7B: 4 h^2 for attention, 3 h m for the feed-forward part, 2 norms; LoRA of rank 8 on two
# projections; vocabulary of 32,000 in and out, and the last norm. fp16.
H, M = 4096, 11008
LAYER = 4 * H * H + 3 * H * M + 2 * H
LLAMA = ModelSize((LAYER,) * 32, 2 * 32000 * H + H, (2 * 8 * 2 * H,) * 32, 0, H, 2)
# k, share, client GB, server layers, adapters MB, break-even tokens
GOLDEN = [
    (1, 0.10, 1.33, 30, 1.0, 480),
    (2, 0.13, 1.74, 29, 1.6, 464),
    (10, 0.37, 4.98, 21, 5.8, 336),
    (20, 0.67, 9.02, 11, 11.0, 176),
]


@pytest.mark.parametrize(("k", "share", "storage", "server", "adapters", "tokens"), GOLDEN)
def test_llama_7b_over_k(k, share, storage, server, adapters, tokens):
    cost = cost_of(LLAMA, k, Usage(1000, 100))
    assert round(cost.share, 2) == share
    assert round(cost.storage / 1e9, 2) == storage
    assert (cost.server_layers, cost.passes) == (server, k + 1)
    assert round(cost.adapters / 1e6, 1) == adapters
    assert cost.break_even == tokens


def test_llama_7b_whole():
    cost = cost_of(LLAMA)
    assert round(sum(LLAMA.layers) / 1e9 + LLAMA.rest / 1e9, 3) == 6.738
    assert round(cost.adapters / 1e6, 1) == 16.8
    assert (cost.k, cost.passes, cost.share, cost.activations) == (None, 32, 1.0, 0.0)


def test_hidden_states_dominate_at_the_authors_settings():
    usage = Usage(205 * 5 * 200, 200)
    cost = cost_of(LLAMA, 20, usage)
    assert round(cost.activations / 1e9, 1) == 6.7
    assert cost.activations / cost_of(LLAMA).round == pytest.approx(400, rel=0.01)
    assert cost.query == 2 * 200 * H * 2
    said = verdict(costs(LLAMA, usage, [1, 20]))
    assert said.startswith("PPLR sends MORE than FedAvg at every k shown: 400 to 401 times")


def test_a_configuration_gives_the_sizes_without_the_model():
    config = read_config("llama")  # its defaults are those of LLaMA-7B
    assert size_of_config(config, LoraSettings(rank=8), 2) == LLAMA
    full = size_of_config(config, None, 2)
    assert full.trained_layers == full.layers == LLAMA.layers
    assert full.trained_rest == full.rest
    # Shipping all weights, even the authors' k = 20 sends less than FedAvg.
    assert "less than FedAvg at every k" in verdict(costs(full, Usage(205_000, 200), [1, 20]))


def sizes(draw_layers):
    return st.lists(st.integers(1, 10**6), min_size=draw_layers, max_size=12)


@given(sizes(3), st.integers(0, 9**6), st.integers(1, 999), st.sampled_from([1, 2, 4]), st.data())
def test_costs_equal_plain_sums(layers, rest, hidden, number, data):
    trained = [data.draw(st.integers(0, size)) for size in layers]
    size = ModelSize(tuple(layers), rest, tuple(trained), rest // 3, hidden, number)
    k = data.draw(st.integers(1, len(layers) - 2))
    tokens = data.draw(st.integers(0, 10**6))
    cost, whole = cost_of(size, k, Usage(tokens, 7)), cost_of(size)
    held = [*range(k), len(layers) - 1]
    assert cost.storage == number * (rest + sum(layers[i] for i in held))
    assert cost.adapters == 2 * number * (rest // 3 + sum(trained[i] for i in held))
    assert whole.adapters == 2 * number * (rest // 3 + sum(trained))
    assert cost.activations == 4 * tokens * hidden * number
    assert cost.server_layers + cost.passes == len(layers) == whole.passes
    # The break-even is where the two rounds are equal.
    for count, cheaper in ((cost.break_even * 0.99, True), (cost.break_even * 1.01 + 0.01, False)):
        if count > 0:
            assert (cost_of(size, k, Usage(count, 7)).round < whole.round) == cheaper


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 64))
def test_a_validation_passes_forward_only(trained, tokens, hidden):
    size = ModelSize((10**6,) * 4, 7, (trained,) * 4, 3, hidden, 4, wire=2)
    usage = Usage(tokens, 5, 11)
    cost, whole = cost_of(size, 1, usage), cost_of(size)
    way = 2 * hidden  # bytes of a token, one way
    assert cost.activations == 4 * tokens * way
    assert cost.validation == 4 * (2 * trained + 3) + 2 * 11 * way
    assert whole.validation == 4 * (4 * trained + 3)
    assert cost.query == 2 * 5 * way
    # The break-even is where the two rounds are equal.
    assert cost_of(size, 1, Usage(cost.break_even, 5)).round == pytest.approx(whole.round)


def test_verdict_counts_the_validation():
    size = ModelSize((100,) * 4, 1, (100,) * 4, 0, 10, 4)  # the middle of k = 1 saves 1,600 bytes
    assert "MORE than FedAvg at every k" in verdict(costs(size, Usage(11, 1), [1]))
    less = "PPLR sends less than FedAvg at every k shown."
    assert verdict(costs(size, Usage(9, 1, 11), [1])) == less
    more = " With a validation after every round it sends MORE at every k shown."
    assert verdict(costs(size, Usage(9, 1, 13), [1])) == less + more


def test_which_k_can_be():
    assert [cost.k for cost in costs(LLAMA, Usage(1, 1))] == [None, *range(1, 31)]
    assert spread_of_splits(LLAMA, 4) == [1, 11, 20, 30]
    assert spread_of_splits(LLAMA, 99) == list(range(1, 31))
    with pytest.raises(UserError, match="k = 31 leaves no layer to the server of 32: choose 1 to"):
        cost_of(LLAMA, 31, Usage(1, 1))
    two = ModelSize((1, 1), 1, (1, 1), 0, 1, 4)
    assert "cannot be split" in verdict(costs(two, Usage(1, 1)))
    with pytest.raises(UserError, match="use at least 3 layers"):
        cost_of(two, 1, Usage(1, 1))


def test_verdict_names_the_k_where_more_is_sent():
    said = verdict(costs(LLAMA, Usage(300, 1), [1, 10, 20]))
    assert "at k = 20: " in said


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_those_of_the_parameters(kind):
    plain, adapted = make(kind, rank=None), make(kind, rank=2)
    size = size_of(adapted, adapted.layers, adapted.hidden, 4)
    assert sum(size.layers) + size.rest == sum(p.numel() for p in plain.parameters())
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert (sum(size.trained_layers), size.trained_rest) == (trained, 0)
    for number, layer in enumerate(plain.layers):
        assert size.layers[number] == sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_that_cross(kind):
    model, data = make(kind, layers=3), examples(7, seed=1)
    tokens = training_tokens(model, data, batch_size=3)
    parts = cut(model, 1)
    middle = Middle(parts.stack, Training(lr=0.1))
    use_start(middle)
    channel = Channel(middle)
    parts.connect(channel)
    with channel.session(0, training=False):
        model.prepare()
    channel.traffic.drain()
    with channel.session(0, training=True, key=Key.from_seed(0)):
        for index in torch.arange(7).split(3):
            model.loss(data.take(index)).backward()
    crossed = {(way, field): size for way, field, _, size in channel.traffic.drain()}
    size = size_of(make(kind), make(kind).layers, model.hidden, 4)
    expected = cost_of(size, 1, Usage(tokens, 0)).activations
    assert sum(n for (_, field), n in crossed.items() if field != "masks") == expected


def test_no_example_reads_no_token():
    assert training_tokens(make("tiny-item"), examples(0, seed=1), 4) == 0


def test_prompts_are_counted_without_padding():
    data, tokenizer = examples(5, seed=2), train_tokenizer(TITLES, 400)
    found = prompt_tokens(data, TITLES, tokenizer)
    one_by_one = [prompt_tokens(data.take(torch.tensor([i])), TITLES, tokenizer) for i in range(5)]
    assert found == pytest.approx(sum(one_by_one) / 5)
    estimate = prompt_tokens(data, TITLES, None)
    assert estimate == pytest.approx(
        sum(prompt_tokens(data.take(torch.tensor([i])), TITLES, None) for i in range(5)) / 5
    )
    assert 90 < estimate < 140  # BIGRec's instruction alone is about 400 characters


def test_measured_steps_leave_the_backbone_as_it_was():
    model, batch = make("tiny-item", layers=4), examples(6, seed=3)
    before, layers = model.loss(batch), list(model.layers)
    whole, *split = measure_steps(model, batch, [1, 2], 2, Key.from_seed(0))
    assert list(model.layers) == layers
    model.eval()
    assert torch.equal(model.loss(batch), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [step.k for step in (whole, *split)] == [None, 1, 2]
    assert all(len(step.seconds) == 2 and min(step.seconds) > 0 for step in (whole, *split))
    assert whole.server_seconds == (0.0, 0.0)
    assert all(min(step.server_seconds) > 0 for step in split)
    size = size_of(model, model.layers, model.hidden, 4)
    for step in split:
        held = cost_of(size, step.k, Usage(0, 0))
        lora = held.adapters // 2
        assert step.model == held.storage + lora  # parameters and the adapter
        assert step.optimizer == 3 * lora
    assert split[0].activations < split[1].activations < whole.activations
    # Every layer keeps as much, so that the memory is linear in k.
    a, b = split[1].activations - split[0].activations, whole.activations - split[1].activations
    assert a == pytest.approx(b, rel=0.2)


@pytest.mark.usefixtures("own_backbones")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("cost --hf gpt2", "a GPT2LMHeadModel has neither 'model.layers' nor 'encoder.layer'"),
        ("cost --hf vit", "a ViTModel has neither 'model.layers' nor 'encoder.layer'"),
        ("cost --hf llama --measure", "--measure runs the model of the settings: leave --hf out"),
        ("cost --k 3 --model.layers 4", "k = 3 leaves no layer to the server of 4: choose 1 to 2"),
        ("cost --k 0", "argument --k: expected a whole number above 0, not '0'"),
        ("cost --layers 4", "unknown setting '--layers': did you mean '--model.layers'?"),
        ("cost --measure --model.layers 2", "use at least 3 layers"),
        ("cots", "llm has no command 'cots': did you mean 'cost'?"),
    ],
)
def test_mistakes_are_one_line(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["llm", *argv.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("error: ") == 1
    err = err.splitlines()[-1]  # before it may stand that the backbone is pre-trained
    assert message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["cost", "attack", "export"])
def test_help_imports_nothing_heavy(command):
    code = (
        "import sys\nfrom coterie.core.cli.main import main\n"
        f"try: main(['llm', '{command}', '--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = [n for n in ('torch', 'transformers', 'peft', 'grpc') if n in sys.modules]\n"
        "print(heavy, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert f"usage: coterie llm {command}" in done.stdout


@pytest.mark.usefixtures("own_backbones")
def test_the_command_prints_the_table(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["llm", "cost", "--model.layers", "4", "--model.trained", "lora"]
    assert main([*argv, "--json"]) == 0
    whole, *split = json.loads(capsys.readouterr().out)
    assert (whole["method"], whole["k"], [row["k"] for row in split]) == ("fedavg", None, [1, 2])
    assert len(whole["tokens"]) == 5
    mean = sum(whole["tokens"]) / 5
    assert split[0]["activations"] == pytest.approx(4 * mean * 64 * 4)
    assert math.isclose(split[0]["round"], split[0]["adapters"] + split[0]["activations"])
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "all (FedAvg)" in shown
    assert "PPLR sends MORE than FedAvg at every k shown" in shown
    assert not list(tmp_path.iterdir())  # nothing is trained, so nothing is kept


def test_the_command_counts_the_items_of_a_recformer(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "500")  # sentences in one line
    monkeypatch.chdir(tmp_path)
    argv = ["llm", "cost", "--model.name", "recformer", "--model.layers", "3", "--data.shots", "50"]
    argv += ["--data.valid_users", "4"]
    assert main([*argv, "--json"]) == 0
    whole, first = json.loads(capsys.readouterr().out)
    mean = sum(whole["tokens"]) / 5
    assert first["activations"] == pytest.approx(4 * mean * 64 * 4)
    assert first["validation"] > 1e6
    assert any(
        re.search(r"Of a validation [\d.]+ MB are the items' texts", note)
        for note in first["notes"]
    )
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "are the items' texts, embedded anew" in shown
    assert "0 of 5" in shown


@pytest.mark.parametrize(("kind", "note"), [("llama", "4 beams"), ("longformer", "are not: --mod")])
def test_the_command_says_what_a_configuration_leaves_open(kind, note, capsys):
    assert main(["llm", "cost", "--hf", kind, "--k", "1", "--tokens", "100"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert note in shown
    assert "100.0 an example, as given by --tokens." in shown


def test_the_command_measures_and_draws(capsys, tmp_path):
    argv = ["llm", "cost", "--measure", "--model.layers", "3", "--repeats", "1"]
    assert main([*argv, "--run.out", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["k"] for row in rows] == [None, 1]
    (png,) = tmp_path.rglob("*.png")
    assert png.read_bytes().startswith(b"\x89PNG")
