"""Pre-training keeps the best parameters, stops in time, and depends on its key alone."""

import pytest
import torch

from coterie.core.errors import UserError
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.llm.backbone import _progress
from coterie.llm.backbone_settings import PretrainSettings
from coterie.llm.backbones.pretraining import mean_loss, pretrain
from coterie.llm.backbones.tiny_item import TinyItem
from coterie.llm.data.examples import Examples

KEY = Key.from_seed(3)
NOTHING = Examples(Ragged.from_lists([]), torch.empty(0, dtype=torch.int64))


def cycle(step: int) -> Examples:
    """Items that follow each other at a distance of ``step``, of ten."""
    start = torch.arange(10)
    rows = [[s, (s + step) % 10, (s + 2 * step) % 10] for s in start.tolist()]
    return Examples(Ragged.from_lists(rows), (start + 3 * step) % 10)


def backbone() -> TinyItem:
    return TinyItem(10, width=8, layers=1, heads=2, context=10, key=KEY)


def settings(**changed) -> PretrainSettings:
    few = {"steps": 40, "batch": 4, "lr": 1e-2, "warmup": 5, "check_every": 10, "patience": 2}
    return PretrainSettings(**few | changed)


def test_loss_falls_and_the_best_step_is_kept():
    model = backbone()
    report = pretrain(model, cycle(1), cycle(1), settings(), KEY)
    losses = report.losses
    assert list(losses) == [0, 10, 20, 30, 40]
    assert losses[report.step] == min(losses.values()) < losses[0]
    assert mean_loss(model, cycle(1), 4) == pytest.approx(losses[report.step])
    assert not model.training


def test_every_look_is_shown():
    seen: dict[int, float | None] = {}
    report = pretrain(backbone(), cycle(1), cycle(1), settings(), KEY, shown=seen.__setitem__)
    assert seen == report.losses
    alone: dict[int, float | None] = {}
    pretrain(backbone(), cycle(1), NOTHING, settings(steps=7), KEY, shown=alone.__setitem__)
    assert alone == {0: None, 7: None}


def test_a_long_pre_training_says_how_far_it_is(capsys):
    now = iter([0.0, 5.0, 31.0, 40.0, 62.0])
    shown = _progress(400, lambda: next(now))
    for step, loss in ((25, 5.0), (50, 4.0), (75, 3.5), (100, None)):
        shown(step, loss)
    assert capsys.readouterr().err.splitlines() == [
        "pre-training step 50 of 400, 31 s, held-out loss 4.000",
        "pre-training step 100 of 400, 62 s",
    ]


def test_training_away_from_the_held_out_examples_is_undone():
    model = backbone()
    pretrain(model, cycle(3), cycle(3), settings(), KEY)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = pretrain(model, cycle(1), cycle(3), settings(steps=100), KEY)
    assert (report.step, list(report.losses)) == (0, [0, 10, 20])  # two without a better loss
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_without_held_out_examples_all_steps_count():
    report = pretrain(backbone(), cycle(1), NOTHING, settings(steps=7), KEY)
    assert (report.step, report.losses) == (7, {})


def test_no_steps_leave_the_start():
    model = backbone()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert list(pretrain(model, cycle(1), cycle(1), settings(steps=0), KEY).losses) == [0]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_result_depends_on_the_key_alone():
    results = []
    for key in (KEY, KEY, KEY.fold("other")):
        model = backbone()
        torch.rand(5)  # the global generator has no part in it
        pretrain(model, cycle(1), cycle(2), settings(steps=10), key)
        results.append(mean_loss(model, cycle(1), 4))
    assert results[0] == results[1] != results[2]


def test_nothing_to_train_on_is_refused():
    with pytest.raises(UserError, match="no example to pre-train on"):
        pretrain(backbone(), NOTHING, cycle(1), settings(), KEY)


def test_diverging_loss_is_refused():
    model = backbone()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match=r"nan at step 1: lower 'pretrain\.lr'"):
        pretrain(model, cycle(1), NOTHING, settings(), KEY)
