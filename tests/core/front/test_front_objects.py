"""Callbacks, loggers and metrics of a caller's own, as objects."""

import lightning
import pytest
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.loggers import CSVLogger, Logger
from tests.core.front.lit_modules import Lit, datasets
from tests.core.front.plain_loop import QUIET

import coterie
from coterie.core.front.federate import federate
from coterie.core.training.callbacks.notes import Note


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.chdir(tmp_path)


class Kept(Logger):
    """Keeps what it is given."""

    name = version = "kept"

    def __init__(self):
        super().__init__()
        self.rows, self.settings = {}, None

    def log_hyperparams(self, params, *_):
        self.settings = params

    def log_metrics(self, metrics, step):
        self.rows.setdefault(step, {}).update(metrics)


class Fallen(Note):
    """A number of one's own, of every round."""

    def note(self, run):
        losses = [row["fed/loss"] for row in run.history[-2:]]
        run.journal.scalar("fed/fallen", losses[0] - losses[-1])


class Counts(Callback):
    def __init__(self):
        self.rounds = 0

    def on_train_epoch_end(self, trainer, pl_module):
        self.rounds += 1


def trained(**given):
    return coterie.train("page", preset="smoke", quiet=True, **{"rounds": 4, **given})


def stopping():
    return EarlyStopping("fed/loss", patience=1, mode="max")


def test_objects_see_every_round_of_a_paper():
    kept, counts = Kept(), Counts()
    run = trained(callbacks=[Fallen(), counts], loggers=[kept, CSVLogger("csv")], rounds=3)
    loss = run.history["fed/loss"]
    assert list(run.history["fed/fallen"]) == pytest.approx([0, *(-loss.diff()[1:])])
    assert [row["fed/fallen"] for row in kept.rows.values()] == list(run.history["fed/fallen"])
    assert counts.rounds == 3
    assert kept.settings["seed"] == 0


def test_objects_see_every_round_of_a_module():
    kept, counts = Kept(), Counts()
    made = federate(Lit(), datasets(), rounds=3)
    given = {**QUIET, "callbacks": [Fallen(), counts], "logger": kept}
    lightning.Trainer(max_epochs=-1, **given).fit(made)
    losses = [row["fed/loss"] for row in made.run.history]
    fallen = [0.0, losses[0] - losses[1], losses[1] - losses[2]]
    assert [row["fed/fallen"] for row in kept.rows.values()] == pytest.approx(fallen)
    assert counts.rounds == 3


@pytest.mark.long
def test_a_run_goes_on_with_the_callbacks_that_it_had():
    whole = trained(callbacks=[stopping()])
    assert len(whole.history) == 2  # stopped, as the loss falls
    run = trained(callbacks=[stopping()], trainer={"max_epochs": 1})
    on = {"quiet": True, "trainer": {"max_epochs": -1}}
    with pytest.raises(coterie.UserError, match="trained with the callback EarlyStopping, an obj"):
        run.resume(**on)
    run.resume(callbacks=[stopping()], loggers=[Kept()], **on)
    assert run.metrics == whole.metrics
    assert len(run.history) == 2


@pytest.mark.long
def test_a_callback_of_the_settings_may_be_left_out():
    patience = {"monitor": "fed/loss", "patience": 1, "mode": "max"}
    named = {"class_path": "EarlyStopping", "init_args": patience}
    run = trained(trainer={"max_epochs": 1, "callbacks": [named]})
    again = run.resume(quiet=True, trainer={"max_epochs": -1, "callbacks": []})
    assert len(again.history) == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"callbacks": 3}, "callbacks are a list of objects .*, not a int"),
        ({"callbacks": [3]}, "Callback, and one is a int"),
        ({"callbacks": stopping()}, r"give callbacks=\[...\] with the EarlyStopping in it"),
        ({"callbacks": [Counts]}, r"Counts is a class: make one, Counts\(\)"),
        ({"loggers": Kept()}, r"give loggers=\[...\] with the Kept in it"),
        ({"loggers": [stopping()]}, "Logger, and one is a EarlyStopping"),
        ({"logger": Kept()}, r"Kept is an object: give it by loggers=\[...\]"),
        ({"trainer": {"callbacks": [Counts()]}}, r"give it by callbacks=\[...\]"),
        ({"trainer.logger": [Kept()]}, r"give it by loggers=\[...\]"),
        ({"looger": [Kept()]}, "give it by loggers"),
        ({"trainer.fast_dev_run": 1}, "keeps nothing, so there is no Run to give"),
    ],
)
def test_other_objects_are_one_line(given, words, tmp_path):
    with pytest.raises(coterie.UserError, match=words):
        trained(**given)
    assert not list(tmp_path.iterdir())
