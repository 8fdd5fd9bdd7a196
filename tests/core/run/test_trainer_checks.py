"""What a Trainer is asked for works, has no effect, or is refused in one line."""

import copy
import warnings

import lightning
import pytest
import torch
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import nn
from torch.utils.data import DataLoader

from coterie.core.cli.main import main
from coterie.core.data.samples.samples import SampleData
from coterie.core.data.samples.split_samples import SplitSamples
from coterie.core.errors import UserError
from coterie.core.federation.federation import Federation
from coterie.core.methods.fedavg import FedAvgClient, FedAvgServer, FedAvgSettings
from coterie.core.registry.papers import find_paper, load, papers
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tensors import tree
from coterie.core.tensors.device import as_written
from coterie.core.tensors.keys import Key
from coterie.core.training.checks import REFUSED, check_callbacks
from coterie.core.training.module import FederatedModule

PLAIN = {
    "accelerator": "cpu",
    "max_epochs": -1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
ROUNDS = 3


class Net(nn.Module):
    """Of a few layers, whose loss also makes a tensor that names no format."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))

    def loss(self, batch):
        weight = torch.full((), 0.5)
        return weight * nn.functional.cross_entropy(self.layers(batch["x"]), batch["y"])

    def correct(self, batch):
        return self.layers(batch["x"]).argmax(-1) == batch["y"]


def new_run() -> FederatedRun:
    key, dtype = Key.from_seed(1), torch.get_default_dtype()
    data = SampleData.from_clients(
        [
            {"x": key.fold("x", c).normal(n, 3).to(dtype), "y": torch.arange(n) % 2}
            for c, n in enumerate((3, 4, 1))
        ]
    )
    settings = FedAvgSettings(rounds=ROUNDS, epochs=1, batch_size=2, lr=0.3)
    halves = FedAvgServer(Net, settings), FedAvgClient(Net(), settings)
    return FederatedRun(Federation(*halves, blocks=[SplitSamples.of(data, valid=data, test=data)]))


def finish(run):
    while not run.finished:
        run.advance()
    return run


@pytest.fixture(scope="module")
def expected() -> FederatedRun:
    torch.set_num_threads(1)
    return finish(new_run())


def same(first, second):
    left, right = (dict(tree.tensors(run.to_plain())) for run in (first, second))
    assert left.keys() == right.keys()
    for path, value in left.items():
        assert value.dtype == right[path].dtype, path
        assert torch.equal(value.nan_to_num(-1.0), right[path].nan_to_num(-1.0)), path
    assert first.results == second.results


def trainer_of(tmp_path, **asked):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning, about precisions on a CPU
        return lightning.Trainer(**{**PLAIN, "default_root_dir": tmp_path, **asked})


def fitted(tmp_path, **asked):
    module = FederatedModule(new_run())
    trainer = trainer_of(tmp_path, **asked)
    trainer.fit(module)
    return module, trainer


@pytest.mark.parametrize(
    "asked",
    [
        {"inference_mode": False},
        {"limit_train_batches": 3},
        {"overfit_batches": 1},
        {"detect_anomaly": True},
        {"reload_dataloaders_every_n_epochs": 1},
        {"min_epochs": 9},
        {"min_steps": 9},
        {"max_epochs": None},
        {"val_check_interval": 1.0},
        {"callbacks": [theirs.Timer("00:00:10:00"), theirs.LambdaCallback()]},
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_what_has_no_effect_has_none(tmp_path, expected, asked):
    module, trainer = fitted(tmp_path, **asked)
    same(module.run, expected)
    assert trainer.global_step == ROUNDS
    [tested] = trainer.test(module, verbose=False)
    wanted = expected.retest()
    assert {name: tested[name] for name in wanted} == wanted
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("asked", "rounds"),
    [({"fast_dev_run": True}, 1), ({"max_epochs": 2}, 2), ({"max_steps": 2}, 2)],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_what_stops_a_run_earlier_stops_it_there(tmp_path, expected, asked, rounds):
    module, _ = fitted(tmp_path, **asked)
    assert (module.run.round, module.run.finished) == (rounds, False)
    same(finish(module.run), expected)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"limit_train_batches": 0}, "'limit_train_batches' 0 leaves nothing to do"),
        ({"check_val_every_n_epoch": 2}, "no.* of: leave them out; .*'validation.every'"),
        ({"num_nodes": 2, "strategy": "ddp"}, "2 processes, and each would run the whole"),
        ({"devices": 2, "strategy": "ddp_spawn"}, "cannot be copied, nor sent"),
        ({"precision": "bf16-mixed", "devices": 2, "strategy": "ddp_spawn"}, "cannot be copied"),
        ({"strategy": "ddp"}, "strategy DDPStrategy is for several devices.*'engine.workers'"),
        ({"gradient_clip_val": 1.0}, "no gradients to clip: .*the 'clip' of their method"),
        ({"accumulate_grad_batches": 2}, "to accumulate: .*the clients' batches"),
        ({"plugins": [AsyncCheckpointIO()]}, "written in one way: leave AsyncCheckpointIO out"),
        *(
            ({"precision": name}, f"'{name}' has no effect on clients: .*'engine.dtype'")
            for name in ("bf16-mixed", "bf16-true", "16-true", "64-true")
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else str(value),
)
def test_what_cannot_work_is_refused_before_the_first_round(tmp_path, monkeypatch, asked, said):
    module = FederatedModule(new_run())
    # Two processes of Lightning would wait for each other.
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: None)
    with pytest.raises(UserError, match=said) as caught:
        trainer_of(tmp_path, **asked).fit(module)
    assert "\n" not in str(caught.value)
    assert module.run.round == 0


def test_a_trainer_that_scales_gradients_is_refused(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.strategy.precision_plugin = lightning.pytorch.plugins.MixedPrecision(
        "16-mixed", "cuda", torch.amp.GradScaler("cpu")
    )
    with pytest.raises(UserError, match="'16-mixed' has no effect on clients"):
        trainer.fit(FederatedModule(new_run()))


def test_nothing_is_tested_only_if_that_is_said(tmp_path):
    module, trainer = fitted(tmp_path, limit_test_batches=0)
    with pytest.raises(UserError, match="leaves nothing to do"):
        trainer.test(module)


def test_validating_reads_no_test_samples_into_its_numbers(tmp_path, expected):
    """The server measures both in one ask; a validation gives what rounds are chosen by alone."""
    module, trainer = fitted(tmp_path)
    [measured] = trainer.validate(module, verbose=False)
    wanted = {n: v for n, v in expected.retest().items() if n.startswith("eval/")}
    assert wanted
    assert measured == wanted


def test_data_given_to_the_trainer_are_refused(tmp_path):
    other = DataLoader([torch.zeros(1), torch.ones(1)], batch_size=None)
    module = FederatedModule(new_run())
    with pytest.raises(UserError, match="federation's are with its clients: leave 'dataloaders'"):
        trainer_of(tmp_path).fit(module, train_dataloaders=other)
    assert module.run.round == 0
    module, trainer = fitted(tmp_path)
    with pytest.raises(UserError, match="are with its clients"):
        trainer.test(module, dataloaders=other)


def test_a_compiled_or_copied_module_is_refused(tmp_path):
    module = FederatedModule(new_run())
    module._compiler_ctx = {"compiler": "dynamo"}  # what torch.compile leaves for Lightning
    with pytest.raises(UserError, match=r"no module for torch\.compile"):
        trainer_of(tmp_path).fit(module)
    with pytest.raises(UserError, match="cannot be copied"):
        copy.deepcopy(FederatedModule(new_run()))


# What is set around a run, with or without a Trainer.


@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        torch.no_grad,
        torch.inference_mode,
        torch.autograd.detect_anomaly,
    ],
    ids=["autocast", "no_grad", "inference_mode", "detect_anomaly"],
)
def test_what_is_set_around_a_run_has_no_effect(expected, around):
    with warnings.catch_warnings(), around():
        warnings.simplefilter("ignore")  # of torch, that the detection of anomalies is slow
        run = finish(new_run())
        tested = run.retest()
    same(run, expected)
    assert tested == expected.retest()


def test_a_federation_keeps_the_default_format_that_it_was_made_in(expected):
    torch.set_default_dtype(torch.float64)
    try:
        doubled = new_run()
    finally:
        torch.set_default_dtype(torch.float32)
    finish(doubled)
    tensors = [t for _, t in tree.tensors(doubled.server_state) if t.is_floating_point()]
    assert {tensor.dtype for tensor in tensors} == {torch.float64}
    single = new_run()
    torch.set_default_dtype(torch.float64)
    try:
        finish(single)
    finally:
        torch.set_default_dtype(torch.float32)
    same(single, expected)


@pytest.mark.parametrize("name", sorted(papers()))
def test_a_paper_is_not_made_in_another_default_format(name):
    paper = find_paper(name)
    settings = configure(paper, ["--preset", "smoke"]).settings
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(UserError, match=r"default format is torch\.float64, .*engine\.dtype"):
            load(paper.experiment)(settings)
    finally:
        torch.set_default_dtype(torch.float32)


def fail_inside():
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad(), as_written(torch.float64):
        assert torch.zeros(()).dtype == torch.float64
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        raise ValueError("mine")


def test_formats_are_as_before_after_an_error():
    with pytest.raises(ValueError, match="mine"):
        fail_inside()
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


# Callbacks.

WORKING = {
    "Callback": theirs.Callback,
    "Checkpoint": None,  # a base class
    "DeviceStatsMonitor": None,  # needs a logger: below
    "EarlyStopping": lambda: theirs.EarlyStopping("fed/loss", patience=9),
    "LambdaCallback": theirs.LambdaCallback,
    "ModelCheckpoint": lambda: theirs.ModelCheckpoint(monitor="fed/loss"),
    "ModelSummary": theirs.ModelSummary,
    "OnExceptionCheckpoint": lambda: theirs.OnExceptionCheckpoint("."),
    "ProgressBar": None,  # a base class
    "RichModelSummary": theirs.RichModelSummary,
    "RichProgressBar": theirs.RichProgressBar,
    "TQDMProgressBar": theirs.TQDMProgressBar,
    "Timer": theirs.Timer,
}


def test_every_callback_of_lightnings_was_looked_at():
    # A name that is in neither list is new in Lightning: try it under a Trainer, then enter it.
    assert set(theirs.__all__) - set(REFUSED) == set(WORKING)
    assert not set(REFUSED) & set(WORKING)


@pytest.mark.parametrize("name", [name for name, make in WORKING.items() if make is not None])
def test_callbacks_that_work_change_no_number(tmp_path, monkeypatch, expected, capsys, name):
    monkeypatch.chdir(tmp_path)
    options = {"enable_checkpointing": None, "enable_progress_bar": None}
    if name == "ModelSummary":
        options["enable_model_summary"] = None
    module, trainer = fitted(tmp_path, callbacks=[WORKING[name]()], **options)
    same(module.run, expected)
    assert any(type(one).__name__ == name for one in trainer.callbacks)


def test_the_monitor_of_devices_works(tmp_path, expected):
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    module, _ = fitted(
        tmp_path, callbacks=[theirs.DeviceStatsMonitor(cpu_stats=False)], logger=logger
    )
    same(module.run, expected)


class Finetuning(theirs.BaseFinetuning):
    def freeze_before_training(self, pl_module): ...

    def finetune_function(self, pl_module, epoch, optimizer): ...


class Writer(theirs.BasePredictionWriter):
    """Would never be called."""


def averaging(name, *args):
    return lambda: getattr(theirs, name)(*args)


MADE = {
    "BackboneFinetuning": theirs.BackboneFinetuning,
    "BaseFinetuning": Finetuning,
    "BasePredictionWriter": Writer,
    "BatchSizeFinder": theirs.BatchSizeFinder,
    "EMAWeightAveraging": averaging("EMAWeightAveraging"),
    "GradientAccumulationScheduler": lambda: theirs.GradientAccumulationScheduler({1: 2}),
    "LearningRateFinder": theirs.LearningRateFinder,
    "LearningRateMonitor": theirs.LearningRateMonitor,
    "ModelPruning": lambda: theirs.ModelPruning("l1_unstructured", amount=0.5),
    "StochasticWeightAveraging": lambda: theirs.StochasticWeightAveraging(0.1),
    "ThroughputMonitor": lambda: theirs.ThroughputMonitor(batch_size_fn=len),
    "WeightAveraging": averaging("WeightAveraging"),
}


@pytest.mark.parametrize("name", [name for name in MADE if hasattr(theirs, name)])
def test_callbacks_that_cannot_work_are_refused_before_the_first_round(tmp_path, name):
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)  # some ask for one first
    module = FederatedModule(new_run())
    trainer = trainer_of(tmp_path, callbacks=[MADE[name]()], logger=logger)
    with pytest.raises(UserError, match=r"cannot work on a federation: .*leave it out") as caught:
        trainer.fit(module)
    assert "\n" not in str(caught.value)
    assert module.run.round == 0


def test_what_is_made_of_a_refused_one_is_refused_and_a_namesake_is_not():
    class Mine(theirs.StochasticWeightAveraging):
        pass

    with pytest.raises(UserError, match="the callback Mine cannot work"):
        check_callbacks([Mine(0.1)])
    namesake = type("WeightAveraging", (theirs.Callback,), {"__module__": "somebody.callbacks"})
    check_callbacks([namesake()])


@pytest.mark.parametrize("hook", ["on_after_backward", "on_before_optimizer_step"])
def test_a_callback_that_looks_at_gradients_is_refused(hook):
    seen = {hook: lambda self, *args: None}
    with pytest.raises(UserError, match=rf"Clipping cannot work .*gradients \({hook}\)"):
        check_callbacks([type("Clipping", (theirs.Callback,), seen)()])
    with pytest.raises(UserError, match="LambdaCallback cannot work"):
        check_callbacks([theirs.LambdaCallback(**{hook: lambda *args: None})])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: theirs.EarlyStopping("a", check_on_train_epoch_end=False), "may look after rou"),
        (lambda: theirs.ModelCheckpoint(save_on_train_epoch_end=False), "may save after rounds"),
        (
            lambda: theirs.ModelCheckpoint(monitor="eval/auc", every_n_train_steps=1),
            "sees 'eval/auc' of the round before; it may save by every_n_epochs",
        ),
    ],
)
def test_callbacks_that_would_look_at_the_wrong_time_are_refused(make, said):
    with pytest.raises(UserError, match=said):
        check_callbacks([make()])


def test_a_checkpoint_by_steps_without_a_measure_works(tmp_path, expected):
    kept = theirs.ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
    module, _ = fitted(tmp_path, callbacks=[kept], enable_checkpointing=True)
    [saved] = tmp_path.glob("*.ckpt")
    assert torch.load(saved, weights_only=True)["federation"]["round"] == 2
    same(module.run, expected)


def test_tuners_are_refused(tmp_path):
    tuner = lightning.pytorch.tuner.Tuner(trainer_of(tmp_path))
    with pytest.raises(UserError, match="LearningRateFinder cannot work"):
        tuner.lr_find(FederatedModule(new_run()))


@pytest.mark.parametrize("name", ["LearningRateFinder", "BatchSizeFinder", "WeightAveraging"])
def test_the_command_line_refuses_them_before_anything_is_written(tmp_path, capsys, name):
    flags = ["--preset", "smoke", "--out", str(tmp_path), "--logger.wandb", "off"]
    called = f"--trainer.callbacks=[lightning.pytorch.callbacks:{name}]"
    assert main(["train", "f3crec", *flags, called]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert f"the callback {name} cannot work on a federation" in line
    assert not list(tmp_path.iterdir())
