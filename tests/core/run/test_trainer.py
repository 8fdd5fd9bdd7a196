"""A federation under a `lightning.Trainer` of the user's own, and under `coterie train`'s."""

import csv
import dataclasses
import inspect
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
from coterie.core.settings.base import ELSEWHERE, TrainerSettings
from coterie.core.settings.configuration import configure
from coterie.core.tensors import tree
from coterie.core.training.callbacks.checkpoints import Checkpoints
from coterie.core.training.loggers.rounds import MetricsLogger
from coterie.core.training.module import FederatedModule

pytestmark = pytest.mark.long

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
    code, _, note = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15
    monkeypatch.chdir(tmp_path)
    told = code.replace('"--preset", "smoke"', ", ".join(f'"{flag}"' for flag in SMALL))
    assert told != code
    names = {}
    exec(note, names)
    told = told.replace("callbacks=[best]", "callbacks=[best, Improvement()]")
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
    losses = [scalars["fed/loss"] for scalars in rounds]
    assert curves["fed/improvement"][2] == pytest.approx(losses[0] - losses[1], abs=1e-6)
    scores = [scalars["eval/ndcg@20"] for scalars in rounds]
    best, last = names["best"], scores[-run.block_round :]  # of the newest block
    assert float(best.best_model_score) == pytest.approx(max(last))
    saved = torch.load(best.best_model_path, weights_only=True)["federation"]
    assert saved["round"] == run.round - len(last) + last.index(max(last)) + 1
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


class Falling(Callback):
    """Logs something that gets worse in every round, and never better in a later block."""

    def on_train_batch_end(self, trainer, module, *_):
        module.log("falling", -float(module.run.round), on_step=False, on_epoch=True)


def quiet_trainer(*callbacks, **asked):
    options = {"max_epochs": -1, "logger": False, **PLAIN, **asked}
    return lightning.Trainer(callbacks=list(callbacks), **options)


def test_early_stopping_ends_the_block_in_the_round_where_its_patience_ends():
    run = new_run("--rounds=6")
    stop = EarlyStopping(monitor="falling", mode="max", patience=2)
    quiet_trainer(Falling(), stop, enable_checkpointing=False).fit(FederatedModule(run))
    assert (run.round, run.finished, stop.stopped_epoch) == (6, True, 5)  # of two blocks
    assert {"test/block0/ndcg@20", "test/block1/ndcg@20"} <= run.results.keys()


BLOCKS = ["--data.fractions=[.6,.2]", "--rounds=6"]


def test_early_stopping_and_the_best_checkpoint_are_per_block(tmp_path):
    """Each block stops after two rounds without a better one, and the next has all its patience."""
    seen = []

    class Log(MetricsLogger):
        def log_clients(self, measured, step):
            seen.extend((step, name) for name in measured if name == "test/ndcg@20")

    run, module = (made := new_run(*BLOCKS)), FederatedModule(made)
    stop = EarlyStopping(monitor="falling", mode="max", patience=2)
    keep = ModelCheckpoint(tmp_path, monitor="falling", mode="max", filename="{epoch}")
    trainer = quiet_trainer(Falling(), stop, keep, logger=Log(tmp_path))
    trainer.fit(module)
    assert run.finished
    assert seen == [(3, "test/ndcg@20"), (6, "test/ndcg@20"), (9, "test/ndcg@20")]  # each once
    with (tmp_path / "metrics.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert [row["block"] for row in rows] == list("000111222")
    assert [row["round"] for row in rows] == list("123456789")
    for block in range(3):  # what a block's end measures is in the line of its last round
        tests = [row[f"test/block{block}/ndcg@20"] != "" for row in rows]
        assert tests == [n == 3 * block + 2 for n in range(9)]
    assert rows[1]["falling"] == "-2"  # a callback's own number is in the line of its round
    # The best round of each block is its first.
    assert [path.name for path in sorted(tmp_path.glob("*.ckpt"))] == [
        f"epoch={n}.ckpt" for n in (0, 3, 6)
    ]
    assert keep.best_model_path.endswith("epoch=6.ckpt")
    after = run.retest()
    [tested] = trainer.test(module, ckpt_path="best", verbose=False)
    names = [f"test/block{block}/ndcg@20" for block in range(3)]
    assert [tested[name] for name in names[:2]] == [float(run.results[name]) for name in names[:2]]
    assert set(after) <= set(tested)
    assert run.round == 7  # the state is that of the best round


def test_early_stopping_that_is_resumed_gives_the_same_bits(tmp_path):
    """From the checkpoints of every round: in a block, at its end, and at the end of the run."""

    def fit(run, folder, ckpt_path=None):
        beside = [
            Falling(),
            EarlyStopping(monitor="falling", mode="max", patience=1),
            Checkpoints(folder),
            ModelCheckpoint(folder / "all", save_top_k=-1, filename="{epoch}"),
        ]
        quiet_trainer(*beside).fit(FederatedModule(run), ckpt_path=ckpt_path)
        return run

    whole = fit(new_run(*BLOCKS), tmp_path)
    assert whole.round == 6
    for number in range(6):
        folder = tmp_path / str(number)
        path = tmp_path / "all" / f"epoch={number}.ckpt"
        assert same(fit(new_run(*BLOCKS), folder, path), whole)
    assert same(fit(new_run(*BLOCKS), tmp_path, tmp_path / "last.ckpt"), whole)


def test_a_block_that_was_ended_stays_so_with_more_rounds(tmp_path):
    run = new_run("--rounds=6")
    stop = EarlyStopping(monitor="falling", mode="max", patience=1)
    quiet_trainer(Falling(), stop, Checkpoints(tmp_path)).fit(FederatedModule(run))
    again = new_run("--rounds=9")
    quiet_trainer().fit(FederatedModule(again), ckpt_path=tmp_path / "last.ckpt")
    assert (again.round, again.finished) == (4, True)


def test_what_else_stops_a_trainer_leaves_the_run_unfinished():
    class Stopping(Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = True

    run = new_run()
    quiet_trainer(Stopping(), enable_checkpointing=False).fit(FederatedModule(run))
    assert (run.round, run.block_open, run.finished) == (1, True, False)


def test_the_least_rounds_hold_early_stopping_back():
    run = new_run("--rounds=6")
    stop = EarlyStopping(monitor="falling", mode="max", patience=1)
    trainer = quiet_trainer(Falling(), stop, min_epochs=4, enable_checkpointing=False)
    trainer.fit(FederatedModule(run))
    assert (run.round, run.finished) == (6, True)  # 4 in the first block, 2 in the second


def test_validating_and_the_settings(tmp_path, expected):
    rounds = expected[1]
    module = FederatedModule(new_run())
    trainer = quiet_trainer(logger=(log := CSVLogger(tmp_path)), enable_checkpointing=False)
    with pytest.raises(UserError, match=r"nothing to validate: no round was run"):
        trainer.validate(module, verbose=False)
    trainer.fit(module)
    [measured] = trainer.validate(module, verbose=False)
    assert measured["eval/ndcg@20"] == pytest.approx(rounds[-1]["eval/ndcg@20"])
    assert not any(name.startswith("test/") for name in measured)
    with pytest.raises(UserError, match=r"recommend by coterie\.load\(folder\)\.recommend\(\)"):
        trainer.predict(module)
    assert module.hparams["model.dim"] == 4
    assert "model.dim: 4" in (Path(log.log_dir) / "hparams.yaml").read_text()


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
    patient = {"class_path": "EarlyStopping", "init_args": {"monitor": "fed/loss", "patience": 60}}
    flags = [
        "--trainer.logger=[lightning.pytorch.loggers.CSVLogger]",
        f"--trainer.callbacks=[mine:patient, {json.dumps(patient)}]",
    ]
    assert train(tmp_path, "stopped", *flags, "--trainer.max_epochs=2") == 0
    stopped = tmp_path / "f3crec" / "stopped"
    assert not (stopped / "summary.json").exists()
    states = {k: v for k, v in checkpoint(stopped)["callbacks"].items() if "EarlyStopping" in k}
    assert [state["patience"] for state in states.values()] == [50, 60]
    assert train(tmp_path, "stopped", *flags, "--trainer.max_epochs=-1", "--resume") == 0
    plain = tmp_path / "f3crec" / "plain"
    numbers = [json.loads((f / "summary.json").read_text())["metrics"] for f in (plain, stopped)]
    assert numbers[0] == numbers[1]
    rounds = [list(csv.DictReader((f / "metrics.csv").open())) for f in (plain, stopped)]
    first, second = ([row["eval/ndcg@20"] for row in rows] for rows in rounds)
    assert first == second
    logged = [row for file in stopped.rglob("version_*/metrics.csv") for row in file.open()]
    assert len(logged) == 2 + len(rounds[0])


def test_a_stopped_run_says_how_to_go_on(tmp_path, capsys):
    assert train(tmp_path, "one", "--trainer.max_epochs=1") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "stopped by the Trainer after round 1, before the run's end: --resume goes on" in out


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--trainer.logger=[tensorbored]", "tensorbored' cannot be made (AttributeError"),
        ("--trainer.callbacks=[Nothing]", "'Nothing'"),
        ("--trainer.callbacks=[{class_path: EarlyStopping}]", "TypeError"),
        ("--trainer.callbacks=[{init_args: {}}]", "must be package.module.Class or {class_path"),
        ("--trainer.callbacks=[{class_path: a.B, init_args: 3}]", "init_args of a.B must be pairs"),
        ("--trainer.gradient_clip_val=1", "set the 'clip' of their method"),
        ("--trainer.precision=16-mixed", "unknown setting '--trainer.precision': clients compute"),
        ("--trainer.devices=2", "by 'engine.workers'"),
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


def test_lightning_is_imported_by_no_command_that_only_looks_into_a_run(tmp_path):
    assert train(tmp_path, "one") == 0
    of_run = ["--run", str(tmp_path / "f3crec" / "one")]
    commands = [["evaluate", *of_run], ["recommend", "--user=42", *of_run]]
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


def test_every_argument_of_the_trainer_is_a_flag_or_says_what_does_it():
    arguments = set(inspect.signature(lightning.Trainer).parameters)
    flags = {field.name for field in dataclasses.fields(TrainerSettings)}
    assert not flags & set(ELSEWHERE)
    assert arguments <= flags | set(ELSEWHERE)
    assert flags <= arguments


def test_a_try_keeps_nothing(tmp_path, capsys):
    assert train(tmp_path, "one", "--trainer.fast_dev_run=1") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "stopped by the Trainer after round 1" in said
    assert said.endswith("nothing of it is kept"), "no folder that is gone is named"
    assert not (tmp_path / "f3crec").exists()


def test_a_try_that_reaches_the_end_names_no_folder_that_is_gone(tmp_path, capsys):
    words = ["train", "page", "--preset", "smoke", "--rounds", "1", "--logger.wandb", "off"]
    assert main([*words, "--out", str(tmp_path), "--trainer.fast_dev_run", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 rounds in" in said
    assert said.endswith("nothing of it is kept")
    assert main([*words, "--trainer.fast_dev_run", "1", "--json"]) == 2
    assert "keeps nothing that --json could print" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()
