"""Outputs behind masks: the run is that of plain outputs, and nobody sees a single peer's."""

from dataclasses import replace

import pytest
import torch
from scipy import stats
from tests.assisted.small_organisations import (
    N_ROWS,
    finished,
    make_organisations,
    make_run,
    make_settings,
    state_of,
)

from coterie.assisted.client import Organisation
from coterie.assisted.data import Organisations
from coterie.assisted.messages import FIT, RESIDUAL, Fits, Residuals, RoundChoice, Total
from coterie.assisted.prediction_messages import ANSWER, Answers, Predictions
from coterie.assisted.protection import Masks, added, check_sum, means_of_rounds
from coterie.assisted.settings import AssistSettings, DomainSettings, ProtectSettings, Settings
from coterie.core.errors import UserError
from coterie.core.privacy.check import assert_no_shared_storage, assert_non_interference
from coterie.core.protocol.common_secret import to_fixed
from coterie.core.settings.sections import PrivacySettings
from coterie.core.tensors.keys import Key

pytestmark = pytest.mark.usefixtures("rounds_alone")

SUM = ProtectSettings(sum=True)
WIDTHS = (5, 3, 4, 2)
RESOLUTION = 2.0**-20


def with_secret(widths=WIDTHS, binary=False, secret=99):
    data = make_organisations(widths=widths, binary=binary)
    each = [replace(one, secret=torch.tensor(secret)) for one in data.each]
    return Organisations(data.ids, each)


class Heard(Organisation):
    """Writes down what it sends and receives."""

    def __init__(self, settings):
        super().__init__(settings)
        self.notes = []


def _hear(name):
    bound = getattr(Organisation, name)

    def method(self, down, mine, data, key):
        up, new = bound(self, down, mine, data, key)
        self.notes.append((name, data.id, down, up))
        return up, new

    method.__name__, method.step = name, bound.step
    return method


for step in Organisation.steps():
    setattr(Heard, step, _hear(step))


def heard(settings, data):
    client = Heard(settings)
    return finished(make_run(settings, data, client)), client.notes


@pytest.mark.parametrize(
    ("feedback", "assist"),
    [
        ("explicit", AssistSettings()),
        ("explicit", AssistSettings(own="leave-out")),
        ("explicit", AssistSettings(eta_rule="optimal")),
        ("implicit", AssistSettings(eta_rule="optimal")),
    ],
    ids=["all", "peers only", "best eta", "best eta of labels"],
)
def test_a_run_by_sums_is_the_plain_run_up_to_the_resolution(feedback, assist) -> None:
    data = with_secret(binary=feedback == "implicit")
    plain = finished(make_run(make_settings(feedback, assist=assist), data))
    by_sums = finished(make_run(make_settings(feedback, assist=assist, protect=SUM), data))
    # Each output is rounded by 2^-21 at most, and a best η adds its own error.
    near = 1e-4 if assist.eta_rule == "optimal" else RESOLUTION
    for k in range(len(WIDTHS)):
        mine, other = state_of(plain, k), state_of(by_sums, k)
        torch.testing.assert_close(other.scores, mine.scores, rtol=0, atol=near)
        torch.testing.assert_close(other.held, mine.held, rtol=0, atol=near)
        assert not torch.equal(other.scores, mine.scores)  # they did go through fixed point
        for ours, theirs in zip(other.choices, mine.choices, strict=True):
            assert ours.models.tolist() == theirs.models.tolist()
            assert torch.equal(ours.weights, theirs.weights)
    assert by_sums.results.keys() == plain.results.keys()
    for name, value in plain.results.items():
        assert by_sums.results[name] == pytest.approx(value, abs=4 * near), name
    assert all(row["mtal/dropped"] == 0 for row in by_sums.history)


def test_the_sum_is_exact_in_integers_and_the_server_cannot_read_it() -> None:
    roster, generator = torch.tensor([4, 0, 7, 2]), torch.Generator().manual_seed(0)
    data = {k: make_organisations().each[0] for k in roster.tolist()}
    data = {k: replace(one, id=k, secret=torch.tensor(5)) for k, one in data.items()}
    masks = {k: Masks(one, roster, "fit", 3) for k, one in data.items()}
    sent = {k: {to: torch.randn(2, 6, generator=generator) for to in data if to != k} for k in data}
    totals = added({k: masks[k].hidden(sent[k]) for k in data}, roster.tolist())
    for to, total in totals.items():
        assert sorted([*total.senders.tolist(), to]) == sorted(data)
        exact = sum(to_fixed(sent[k][to]) for k in data if k != to)
        assert not bool((total.values == exact).any())  # the receiver's mask is missing still
        opened = masks[to].opened(total.values)
        assert torch.equal(opened, exact.double() * RESOLUTION)
        wrong = Masks(data[to], roster, "fit", 4).opened(total.values)
        assert not bool((wrong == opened).any())


def test_masked_outputs_look_uniform_and_no_mask_comes_twice() -> None:
    _, notes = heard(make_settings(protect=SUM, rounds=3), with_secret())
    sent = [
        (name, k, to, values)
        for name, k, _, up in notes
        if name in ("fit", "answer")
        for to, values in up.masked.items()
    ]
    assert len(sent) == 4 * 3 * (3 + 1)
    for name, _, down, up in notes:
        if name in ("fit", "answer"):
            assert up.values is None
        if name == "combine":
            assert down.values == {}
        if name == "measure":
            assert down.values == {} == down.rounds
    everything = torch.cat([values.flatten() for *_, values in sent])
    shares = everything.double() / 2.0**64 + 0.5
    assert stats.kstest(shares.numpy(), "uniform").pvalue > 0.01
    assert len(everything.unique()) == len(everything)


@pytest.mark.parametrize("step", ["fit", "answer"])
def test_masked_uploads_depend_on_what_they_say(step) -> None:
    settings = make_settings(protect=SUM, rounds=2)
    run, notes = heard(settings, with_secret())
    down = next(down for name, k, down, _ in reversed(notes) if (name, k) == (step, 1))
    plain, mine, data = Organisation(settings), state_of(run, 1), run.newest_data[1]
    valid = {"shared": lambda numbers: numbers.flip(0), "peers": lambda peers: peers}
    assert_non_interference(plain, step, down, mine, data, Key.from_seed(1), valid)
    up, _ = getattr(plain, step)(down, mine, data, Key.from_seed(1))
    assert_no_shared_storage(up, mine)


class Absent(Organisation):
    """Organisation 1 fails in one step of one round."""

    fails, in_round = "", 2

    @RESIDUAL
    def residual(self, down, mine, data, key):
        up, new = super().residual(down, mine, data, key)
        return (Residuals(up.values * torch.nan) if self._now("residual", down, data) else up), new

    @FIT
    def fit(self, down, mine, data, key):
        up, new = super().fit(down, mine, data, key)
        short = {name: values[1:] for name, values in up.masked.items()}
        return (Fits(None, short) if self._now("fit", down, data) else up), new

    @ANSWER
    def answer(self, down, mine, data, key):
        up, new = super().answer(down, mine, data, key)
        if self.fails == "answer" and data.id == 1:
            up = Answers(None, {k: v[:, 1:] for k, v in up.masked.items()}, up.rounds)
        return up, new

    def _now(self, step, down, data):
        return self.fails == step and data.id == 1 and down.round == self.in_round


def run_without(step, widths=WIDTHS, **more):
    settings = make_settings(protect=SUM, **more)
    client = Absent(settings)
    client.fails = step
    return finished(make_run(settings, with_secret(widths), client))


def test_who_drops_out_before_its_outputs_came_costs_everybody_the_round() -> None:
    run = run_without("fit")
    assert [row["mtal/dropped"] for row in run.history] == [0, 1, 0]
    assert run.history[1]["mtal/eta"] == 0
    assert run.history[1]["eval/rmse"] == run.history[0]["eval/rmse"]
    for k in range(len(WIDTHS)):
        mine = state_of(run, k)
        assert [choice.round for choice in mine.choices] == [1, 3]
        assert len(mine.models) == (3 if k != 1 else 2)
    assert run.results["test/rmse"] < 3  # the prediction stage copes with the gap


def test_who_sends_no_residuals_is_in_no_sum() -> None:
    run = run_without("residual")
    assert [row["mtal/dropped"] for row in run.history] == [0, 0, 0]
    for k in range(len(WIDTHS)):
        models = {one.round: sorted(one.models.tolist()) for one in state_of(run, k).choices}
        assert models[1] == models[3] == [0, 1, 2, 3]
        assert models.get(2) == ([0, 2, 3] if k != 1 else None)


def test_its_gap_is_the_same_in_the_prediction_stage() -> None:
    """Cells of the test are those of validation, so both ways must score them alike."""
    settings = make_settings(protect=SUM)
    client = Absent(settings)
    client.fails = "residual"
    data = with_secret()
    each = [replace(one, domain=replace(one.domain, test=one.valid)) for one in data.each]
    run = finished(make_run(settings, Organisations(data.ids, each), client))
    best = int(run.results["test/best_round"])
    assert best >= 2
    wanted = run.history[best - 1]["eval/rmse"]
    assert run.results["test/rmse"] == pytest.approx(wanted, abs=100 * RESOLUTION)


def test_too_few_with_residuals_leave_a_round_without_fits() -> None:
    run = run_without("residual", widths=(5, 3, 4))
    assert [row["mtal/dropped"] for row in run.history] == [0, 1, 0]
    assert [one.round for one in state_of(run, 0).choices] == [1, 3]
    assert [one.round for one in state_of(run, 0).models] == [1, 3]


def test_who_does_not_answer_in_the_prediction_stage_is_left_out_of_the_means() -> None:
    run = run_without("answer")
    assert run.results["test/rmse"] < 3
    ids, _ = run.client_results["test/rmse"]
    assert ids.tolist() == [0, 2, 3]
    alone = run_without("answer", widths=(5, 3, 4))
    assert "test/rmse" not in alone.results


@pytest.mark.parametrize("own", [True, False])
def test_means_are_over_those_of_a_round_who_answer_now(own) -> None:
    """Of the models 0 to 3 of round 2, organisation 1 does not answer; 4 had none in that round."""
    roster, one = torch.tensor([0, 2, 3, 4]), make_organisations().each[0]
    data = {k: replace(one, id=k, secret=torch.tensor(5)) for k in roster.tolist()}
    outputs = {2: [7.0, 2.0], 3: [7.0, 5.0], 4: [7.0, 0.0]}
    sent = {k: {0: torch.tensor(each)[:, None].double()} for k, each in outputs.items()}
    hidden = {k: Masks(data[k], roster, "answer", 2, 1).hidden(each) for k, each in sent.items()}
    total = Total(sum(each["0"] for each in hidden.values()), torch.tensor([2, 3, 4]), attempt=1)
    down = Predictions("test", {}, {}, 2, total)
    models = torch.tensor([0, 1, 2, 3] if own else [1, 2, 3])
    weights = torch.full((len(models),), 1 / len(models))
    choice = RoundChoice(2, models, torch.tensor(0.5), weights)
    found = means_of_rounds(data[0], down, {1: torch.tensor([9.0]), 2: torch.tensor([11.0])})(
        choice
    )
    assert found.shape == (1, len(models))
    assert found.unique().tolist() == [(2 + 5 + 11) / 3 if own else (2 + 5) / 2]


def test_what_goes_down_of_a_sum_is_the_sum_alone() -> None:
    _, notes = heard(make_settings(protect=SUM, rounds=1), with_secret())
    sent = {k: up.masked for name, k, _, up in notes if name == "fit"}
    for name, k, down, _ in notes:
        if name == "combine":
            parts = [sent[one][str(k)] for one in sent if one != k]
            assert torch.equal(down.total.values, torch.stack(parts).sum(0))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"assist": AssistSettings(weights="optimal")}, "assist.weights constant"),
        ({"data": DomainSettings(common=0.5)}, "data.common 1"),
        ({"data": DomainSettings(domains="uniform", count=2)}, "3 organisations"),
        ({"method": "alone"}, "no residual is exchanged"),
        ({"privacy": PrivacySettings(clip=1.0, noise="laplace", scale=1.0)}, "privacy.steps"),
    ],
)
def test_what_a_sum_cannot_be_had_with_is_refused(more, words) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        Settings(protect=SUM, **more)
    assert "\n" not in str(refusal.value)


def test_noise_on_residuals_alone_goes_with_sums() -> None:
    noise = PrivacySettings(
        clip=8.0, clip_by="entry", noise="laplace", scale=1.0, steps=("residual",)
    )
    assert Settings(protect=SUM, privacy=noise).protect.sum


def test_organisations_that_cannot_be_summed_are_refused() -> None:
    rows = torch.arange(N_ROWS)
    check_sum({0: rows, 1: rows.flip(0), 2: rows})
    with pytest.raises(UserError, match="3 organisations"):
        check_sum({0: rows, 1: rows})
    with pytest.raises(UserError, match="know the same users"):
        check_sum({0: rows, 1: rows, 2: rows[1:]})
    data = make_organisations().each[0]
    with pytest.raises(UserError, match="secret that the organisations share"):
        Masks(data, torch.arange(3), "fit", 1)
    for roster in (None, torch.arange(2)):
        with pytest.raises(UserError, match="3 organisations"):
            Masks(replace(data, secret=torch.tensor(1)), roster, "fit", 1)
