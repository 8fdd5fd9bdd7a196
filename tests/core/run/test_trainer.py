"""A federation under a `lightning.Trainer` of the user's own, and under `coterie train`'s."""

import csv
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger
from tensorboardX.proto.event_pb2 import Event

from coterie.core.cli.main import main
from coterie.core.errors import UserError
from coterie.core.registry.papers import find_paper, load
from coterie.core.run.driver import FederatedRun
from coterie.core.training.module import FederatedModule
from coterie.core.training.train import fit
from coterie.core.settings.configuration import configure
from coterie.core.tensors import tree

SMALL = ["--rounds=3", "--model.dim=4", "--patience=9", "--data.fractions=[0.9]"]
PLAIN = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}


def new_run(*flags):
    paper = find_paper("f3crec")
    settings = configure(paper, [*SMALL, *flags]).settings
    return FederatedRun(load(paper.experiment)(settings).federation())


@pytest.fixture(scope="module")
def expected():
    """The same run without a Trainer, and what each round measured."""
    run, rounds = new_run(), []
    while not run.finished:
        run.advance()
        rounds.append(dict(run.journal.scalars))
    return run, rounds


def same(first, second):
    left, right = dict(tree.tensors(first.to_plain())), dict(tree.tensors(second.to_plain()))
    return left.keys() == right.keys() and all(
        torch.equal(value.nan_to_num(-1.0), right[path].nan_to_num(-1.0))
        for path, value in left.items()
    )


def events(folder):
    """Read scalars of TensorBoard's files: name -> {step: value}."""
    found = {}
    for path in folder.rglob("events.out.*"):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:  # tensorboardX has no @ in names
                found.setdefault(value.tag.replace("@", "_"), {})[event.step] = value.simple_value
    return found


def test_the_example_of_the_docs(tmp_path, monkeypatch, expected):
    page = Path(__file__).parents[3] / "docs" / "lightning.md"
    [code] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15
    monkeypatch.chdir(tmp_path)
    told = code.replace('"--preset", "smoke"', ", ".join(f'"{flag}"' for flag in SMALL))
    assert told != code
    names = {}
    fitting, testing = told.split("tested = ")
    exec(fitting, names)
    run, rounds = expected
    assert same(names["run"], run)
    curves = events(tmp_path)  # tensorboardX names files by the second: a test replaces them
    assert curves["eval/ndcg_20"] == {
        step: pytest.approx(scalars["eval/ndcg@20"])
        for step, scalars in enumerate(rounds, start=1)
        if "eval/ndcg@20" in scalars
    }
    scores = [scalars["eval/ndcg@20"] for scalars in rounds]
    best = names["best"]
    assert float(best.best_model_score) == pytest.approx(max(scores))
    saved = torch.load(best.best_model_path, weights_only=True)["federation"]
    assert saved["round"] == scores.index(max(scores)) + 1
    assert (
        eval(testing, names)[0].items()
        >= {
            name: pytest.approx(value)
            for name, value in run.results.items()
            if name in run.retest()
        }.items()
    )


def test_every_round_reaches_lightnings_csv(tmp_path, expected):
    run = new_run()
    trainer = lightning.Trainer(max_epochs=-1, logger=CSVLogger(tmp_path), **PLAIN)
    trainer.fit(FederatedModule(run))
    [file] = tmp_path.rglob("metrics.csv")
    with file.open() as opened:
        rows = list(csv.DictReader(opened))
    assert [int(row["step"]) for row in rows] == list(range(1, run.round + 1))
    for row, scalars in zip(rows, expected[1], strict=True):
        assert float(row["fed/loss"]) == pytest.approx(scalars["fed/loss"])
        assert float(row["cost/up_bytes"]) > 0
    assert float(trainer.callback_metrics["cost/up_bytes_total"]) == run.ledger.bytes("up")
    assert trainer.global_step == run.round


def test_early_stopping_stops_in_the_round_where_its_patience_ends():
    class Falling(Callback):
        def on_train_batch_end(self, trainer, module, *_):
            module.log("falling", -float(module.run.round), on_epoch=True)

    run = new_run("--rounds=6")
    stop = EarlyStopping(monitor="falling", mode="max", patience=2)
    trainer = lightning.Trainer(
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        callbacks=[Falling(), stop],
        **PLAIN,
    )
    trainer.fit(FederatedModule(run))
    assert (run.round, run.finished, stop.stopped_epoch) == (3, False, 2)


def test_a_checkpoint_of_lightnings_goes_on_to_the_same_bits(tmp_path, expected):
    keep = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}")
    options = {"max_epochs": -1, "logger": False, **PLAIN}
    lightning.Trainer(callbacks=[keep], **options).fit(FederatedModule(new_run()))
    later = FederatedModule(new_run())
    trainer = lightning.Trainer(**options, enable_checkpointing=False)
    trainer.fit(later, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert same(later.run, expected[0])
    assert float(trainer.callback_metrics["cost/up_bytes_total"]) == later.run.ledger.bytes("up")


def test_the_bar_says_rounds_and_the_table_counts_the_server(capsys, tmp_path):
    run = new_run("--rounds=2")
    bar = RichProgressBar()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        callbacks=[bar],
        default_root_dir=tmp_path,
    )
    module = FederatedModule(run)
    trainer.fit(module)
    out = capsys.readouterr().out
    assert "Block 0 round 2/2" in out
    assert "Epoch" not in out
    assert bar.is_enabled  # again, for trainer.test
    tensors = [t for _, t in tree.tensors(new_run().server_state) if t.is_floating_point()]
    assert sum(p.numel() for p in module.parameters()) == sum(t.numel() for t in tensors) > 1000
    assert f"{sum(t.numel() for t in tensors) / 1e3:.1f} K" in out


def test_nothing_to_test_before_the_first_round():
    trainer = lightning.Trainer(logger=False, enable_checkpointing=False, **PLAIN)
    with pytest.raises(UserError, match=r"no round was run; call trainer\.fit first"):
        trainer.test(FederatedModule(new_run()))


FLAGS = [*SMALL, "--logger.wandb=off", "--run.progress=false"]


def train(out, name, *flags):
    return main(["train", "f3crec", *FLAGS, "--run.out", str(out), "--run.name", name, *flags])


def checkpoint(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def test_the_trainer_of_the_command_line_gives_the_same_run(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from lightning.pytorch.callbacks import EarlyStopping\n"
        "def patient():\n"
        "    return EarlyStopping('eval/ndcg@20', mode='max', patience=50)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert train(tmp_path, "plain") == 0
    flags = ["--trainer.logger=csv", "--trainer.callbacks=[mine:patient]"]
    assert train(tmp_path, "stopped", *flags, "--trainer.max_epochs=2") == 0
    stopped = tmp_path / "f3crec" / "stopped"
    assert not (stopped / "summary.json").exists()
    [state] = [v for k, v in checkpoint(stopped)["trainer"].items() if "EarlyStopping" in k]
    assert state["best_score"] > -1
    assert train(tmp_path, "stopped", *flags, "--trainer.max_epochs=-1", "--resume") == 0
    plain = tmp_path / "f3crec" / "plain"
    numbers = [json.loads((f / "summary.json").read_text())["metrics"] for f in (plain, stopped)]
    assert numbers[0] == numbers[1]
    rounds = [list(csv.DictReader((f / "metrics.csv").open())) for f in (plain, stopped)]
    first, second = ([row["eval/ndcg@20"] for row in rows] for rows in rounds)
    assert first == second
    logged = [row for file in stopped.glob("lightning/*/metrics.csv") for row in file.open()]
    assert len(logged) == 2 + len(rounds[0])


def test_a_stopped_run_says_how_to_go_on(tmp_path, capsys):
    assert train(tmp_path, "one", "--trainer.max_epochs=1") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "stopped by the Trainer after round 1, before the run's end: --resume goes on" in out


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--trainer.logger=tensorbored", "did you mean"),
        ("--trainer.callbacks=[nothing]", "must be package.module:Class, not 'nothing'"),
        ("--trainer.callbacks=[no.such:Thing]", "ModuleNotFoundError"),
        ("--trainer.callbacks=[lightning.pytorch.callbacks:Nope]", "AttributeError"),
        ("--trainer.callbacks=[collections:Counter]", "gives a Counter: a callback of Lightning"),
        ("--trainer.callbacks=[lightning.pytorch.callbacks:EarlyStopping]", "TypeError"),
        ("--trainer.max_time=soon", "must be DD:HH:MM:SS"),
        ("--trainer.max_epochs=-2", "must be at least -1"),
        ("--trainer.gpus=1", "trainer.gpus"),
    ],
)
def test_what_is_wrong_is_one_line_and_leaves_no_folder(tmp_path, capsys, flag, said):
    assert train(tmp_path, "one", flag) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert not (tmp_path / "f3crec").exists()


def test_lightning_is_imported_by_no_command_that_does_not_ask_for_it(tmp_path):
    of_run = ["--run", str(tmp_path / "f3crec" / "one")]
    commands = [
        ["train", "f3crec", *FLAGS, "--run.out", str(tmp_path), "--run.name=one"],
        ["evaluate", *of_run],
        ["recommend", "--user=42", *of_run],
    ]
    heavy = {"lightning", "torchmetrics", "transformers", "wandb", "torch._dynamo"}
    code = (
        "import sys\nfrom coterie.core.cli.main import main\n"
        f"for words in {commands!r}:\n"
        "    assert main(words) == 0\n"
        f"    print('heavy', words[0], sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = [line for line in done.stdout.splitlines() if line.startswith("heavy")]
    assert told == [f"heavy {words[0]} []" for words in commands]


def test_the_loop_tells_callbacks_of_an_exception():
    run, told = new_run(), []

    class Telling:
        def __getattr__(self, name):
            def called(_):
                told.append(name)
                if name == "write":
                    raise KeyboardInterrupt

            return called

    with pytest.raises(KeyboardInterrupt):
        fit(run, [Telling()])
    assert told == ["start", "before_round", "note", "write", "failed"]
