"""The methods without exchange as runs: rounds, the best one, resuming, what leaves."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from tests.assisted.small_domains import KEY, finished, organisations, own_domain, run_of

from coterie.assisted.apart import Apart
from coterie.assisted.data import Organisations
from coterie.assisted.experiment import score_users
from coterie.assisted.prediction_messages import ApartState, Epochs, Predictions
from coterie.assisted.readings import idle, resolve, unread
from coterie.assisted.settings import (
    AssistSettings,
    DomainSettings,
    ModelSettings,
    Settings,
    TrainSettings,
)
from coterie.core.errors import UserError
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.tensors import tree

TRAINED, UNTRAINED = ("aae", "mf", "mlp", "ncf"), ("base", "bias", "rate")


def settings(name="mf", method="alone", rounds=4, feedback="explicit", **changes):
    found = Settings(
        method=method,
        rounds=rounds,
        data=DomainSettings(feedback=feedback, domains="uniform", side=True),
        model=ModelSettings(name=name, hidden=6, code=8),
        train=TrainSettings(epochs=2, batch_rows=5, lr=0.05),
    )
    return resolve(replace(found, **changes))


def kind(name):
    return "implicit" if name == "rate" else "explicit"


def state_of(run):
    return dict(tree.tensors(run.to_plain()))


def kept_by(run, number):
    """What an organisation keeps to itself."""
    return run.store.take(torch.tensor([number]))


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(value.nan_to_num(-1.0), second[name].nan_to_num(-1.0))
        for name, value in first.items()
    )


@pytest.mark.parametrize("name", [*TRAINED, *UNTRAINED])
def test_joint_is_alone_of_one(name):
    """One organisation that holds the whole matrix; nothing else of it is special."""
    feedback = kind(name)
    data = organisations(1, feedback == "implicit")
    runs = [finished(run_of(settings(name, m, 2, feedback), data)) for m in ("alone", "joint")]
    assert same(*map(state_of, runs))
    assert runs[0].results == runs[1].results
    assert runs[0].round == (1 if name in UNTRAINED else 2)


def test_each_is_alone():
    """What an organisation learns does not depend on who else is there."""
    together = finished(run_of(settings(rounds=2), organisations(3)))
    data = organisations(3)
    by_itself = finished(run_of(settings(rounds=2), data.take(torch.tensor([1]))))
    of_both = [kept_by(run, 1) for run in (together, by_itself)]
    assert same(*(dict(tree.tensors(one.learned)) for one in of_both))


def test_measures_are_over_all_cells():
    data = organisations(3)
    assert len({len(one.train) for one in data.each}) > 1
    run = finished(run_of(settings(rounds=3), data))
    best = int(run.results["test/best_round"])
    assert run.history[best - 1]["eval/rmse"] == min(row["eval/rmse"] for row in run.history)
    client, squares, losses = run.federation.client, [], []
    for one in data.each:
        model = client.own(one)[1]
        mine = kept_by(run, one.id)
        found = model.predict(mine.best, one.test)
        squares.append((found - one.test.values).double().square())
        losses.append(mine.learned.loss * len(one.train))
    assert run.results["test/rmse"] == pytest.approx(float(torch.cat(squares).mean().sqrt()))
    cells = sum(len(one.train) for one in data.each)
    assert run.history[-1]["fed/loss"] == pytest.approx(float(sum(losses)) / cells, rel=1e-5)


@pytest.mark.parametrize("align", ["user", "item"])
def test_the_best_models_are_served(align):
    """Of two organisations, which number their columns one after the other."""
    data = organisations(2)
    widths = [one.train.n_columns for one in data.each]
    data = Organisations.of(
        [
            replace(one, domain=replace(one.domain, columns=first + one.domain.columns))
            for one, first in zip(data.each, (0, widths[0]), strict=True)
        ]
    )
    run = finished(run_of(settings("mlp", rounds=2), data))
    users = torch.arange(13 if align == "user" else sum(widths))
    table = torch.full((len(users), sum(widths) if align == "user" else 13), torch.nan)
    for places, scores in score_users(run, data, align, users):
        table[places] = scores
    table = table if align == "user" else table.T
    for one in data.each:
        cells = one.test
        expected = run.federation.client.predicted(kept_by(run, one.id), one, cells)
        found = table[cells.rows, one.domain.columns[cells.columns.values]]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", TRAINED)
def test_a_resumed_run_ends_in_the_same_bits(tmp_path, name):
    data = organisations(2)
    whole, second = (run_of(settings(name, rounds=3), data) for _ in range(2))
    whole.advance()
    torch.save(whole.to_plain(), tmp_path / "last.ckpt")
    finished(whole)
    second.load_plain(torch.load(tmp_path / "last.ckpt", weights_only=True))
    finished(second)
    assert same(state_of(whole), state_of(second))
    assert whole.history == second.history
    assert whole.results == second.results


@pytest.mark.parametrize("name", [*TRAINED, "bias"])
def test_test_data_change_nothing_but_the_test(name):
    def poisoned(one):
        test = replace(one.domain.test, values=-40.0 * one.domain.test.values)
        return replace(one, domain=replace(one.domain, test=test))

    data = organisations(2)
    other = Organisations.of([poisoned(one) for one in data.each])
    runs = [finished(run_of(settings(name, rounds=2), each)) for each in (data, other)]
    for run in runs:
        for row in run.history:
            for key in [key for key in row if key.startswith("test/")]:
                row.pop(key)
    assert runs[0].history == runs[1].history
    states = [{k: v for k, v in state_of(run).items() if k.startswith("store")} for run in runs]
    assert states[0]
    assert same(*states)
    assert runs[0].results["test/best_round"] == runs[1].results["test/best_round"]
    assert runs[0].results["test/rmse"] != runs[1].results["test/rmse"]


def test_the_model_of_the_round_that_validation_data_choose_is_kept():
    """With no rule to learn, early rounds are the best on new cells."""
    data, how = organisations(2), TrainSettings(10, 5, 0.05)
    run = finished(run_of(settings("mf", rounds=4, train=how), data))
    best = int(run.results["test/best_round"])
    assert best < 4
    shorter = finished(run_of(settings("mf", rounds=best, train=how), data))
    for number in (0, 1):
        kept, newest = kept_by(run, number), kept_by(shorter, number).learned.params
        assert same(kept.best, newest)
        assert not same(kept.best, kept.learned.params)


@pytest.mark.parametrize("name", [*TRAINED, *UNTRAINED])
def test_uploads_depend_on_what_they_declare(name):
    implicit = kind(name) == "implicit"
    one = own_domain(implicit=implicit, dtype=torch.float32)
    client = Apart(settings(name, feedback=kind(name)))
    mine = client.enrol(one, KEY)
    assert isinstance(mine, ApartState)
    for step, down in (("train", Epochs(1)), ("measure", Predictions("valid", {}, {}, 1))):
        assert_non_interference(client, step, down, mine, one, KEY)
        up, later = getattr(client, step)(down, mine, one, KEY)
        assert_no_shared_storage(up, later or mine)


def test_training_takes_tiny_numbers_as_zero(monkeypatch):
    one, seen = own_domain(dtype=torch.float32), []
    client = Apart(settings())
    mine = client.enrol(one, KEY)

    def train(now, key):
        seen.append(float(torch.full((8,), 2e-38).mul(0.25)[0]))
        return now

    monkeypatch.setattr(client.own(one)[1], "train", train)
    client.train(Epochs(1), mine, one, KEY)
    assert seen == [0.0]


def test_a_step_leaves_its_state_alone():
    one = own_domain(dtype=torch.float32)
    for name in TRAINED:
        client = Apart(settings(name))
        mine = client.enrol(one, KEY)
        before = tree.clone(mine)
        client.train(Epochs(1), mine, one, KEY)
        assert same(dict(tree.tensors(before)), dict(tree.tensors(mine))), name


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": ModelSettings("rate")}, "bias"),
        ({"train": TrainSettings(own_targets="none")}, "nothing to fit"),
        ({"method": "mtal", "model": ModelSettings("mf")}, "alone and joint"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, why):
    with pytest.raises(UserError, match=why):
        Settings(**{"method": "alone", **changes})


def test_what_was_set_in_vain_is_named():
    assert idle(settings("mf", data=DomainSettings())) == ["model.hidden"]
    assert idle(resolve(Settings(model=ModelSettings(biases="broadcast")))) == ["model.biases"]
    assert idle(settings("mf", data=DomainSettings(), start="bias")) == ["model.hidden", "start"]
    base = resolve(
        Settings(
            method="joint",
            model=ModelSettings("base"),
            data=DomainSettings(feedback="implicit", domains="uniform", side=True),
            train=TrainSettings(lr=0.1),
            assist=AssistSettings(eta=0.1),
            start="mean",
        )
    )
    assert sorted(idle(base)) == ["assist.eta", "data.domains", "data.side", "train.lr"]
    assert idle(resolve(Settings(method="alone", train=TrainSettings(hide=0.2)))) == []


def test_a_start_that_a_variant_has_not_is_never_called_without_effect():
    """Means of columns are F⁰ by each of three words; ``--variant best`` begins with one number."""
    variant = {"method": "residuals", "model": ModelSettings("autorec")}
    for start in ("constant", "mean", "smoothed", "logit"):
        assert "start" not in idle(resolve(Settings(start=start, **variant)))
        assert ("start" in unread(resolve(Settings(start=start, **variant)))) == (
            start != "constant"
        )


def test_clients_import_no_server():
    code = (
        "import sys; import coterie.assisted.client_halves; "
        "print([name for name in ('coterie.assisted.algorithm', "
        "'coterie.core.federation.selection', 'pandas', 'lightning') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
