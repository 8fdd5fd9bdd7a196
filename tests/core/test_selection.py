"""Which round is the best, when a run stops, and what it is tested by: in both directions."""

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from tests.core.saving_trainer import SavingTrainer

from coterie.core.federation.selection import NO_ROUND, BestRound, Selecting, best_of
from coterie.core.metrics.monitor import Monitor
from coterie.core.metrics.ranking import ranking_metrics
from coterie.core.metrics.ranking_report import rank_all
from coterie.core.protocol.journal import Journal
from coterie.core.run.checkpoint import read_checkpoint
from coterie.core.settings.sections import LoggerSettings, ValidationSettings
from coterie.core.tensors.keys import Key
from coterie.core.tensors.stacked import Ragged
from coterie.core.training.callbacks.checkpoints import Checkpoints
from coterie.core.training.callbacks.notes import StreamScore
from coterie.core.training.loggers.wandb import RoundWandbLogger, RunCard

RMSE = Monitor("eval/rmse", lower_is_better=True)
AUC = Monitor("eval/auc")


def test_lower_is_better_where_the_measure_says_so():
    assert RMSE.better(0.8, than=0.9)
    assert not RMSE.better(0.9, than=0.8)
    assert not RMSE.better(0.8, than=0.8)
    assert AUC.better(0.9, than=0.8)
    assert (RMSE.best([2.0, 1.0]), AUC.best([2.0, 1.0])) == (1.0, 2.0)
    assert (RMSE.summary, AUC.summary) == ("min", "max")


@pytest.mark.parametrize("monitor", [RMSE, AUC])
def test_nan_beats_nothing_and_any_number_beats_nan(monitor):
    assert not monitor.better(math.nan, than=math.nan)
    assert not monitor.better(math.nan, than=1.0)
    assert monitor.better(0.0, than=math.nan)
    assert monitor.best([math.nan, 3.0]) == 3.0
    assert math.isnan(monitor.best([math.nan]))


def test_a_tie_within_the_digits_keeps_the_earlier_round():
    monitor = Monitor("eval/auc", digits=2)
    assert not monitor.better(0.304, than=0.3)
    assert monitor.better(0.306, than=0.3)


def test_the_best_round_of_a_history():
    history = [{"eval/rmse": 0.9}, {}, {"eval/rmse": 0.7}, {"eval/rmse": 0.7}, {"fed/loss": 0.1}]
    assert best_of(history, RMSE) == BestRound(3, 0.7)
    assert best_of(history, AUC) is NO_ROUND


@dataclass(frozen=True)
class State:
    model: int = 0
    best: int = 0
    round: int = 0
    chosen: BestRound = NO_ROUND


@dataclass(frozen=True)
class FewRounds:
    rounds: int = 9
    patience: int = 2


class Scripted(Selecting[State]):
    """Measures its rounds by a script; None stands for a round that nobody could measure."""

    monitor, limits = RMSE, FewRounds()

    def __init__(self, script):
        self.script, self.tested, self.measured = script, [], []

    def round(self, state, cohort, key):
        return self.validated(replace(state, model=state.model + 1, round=state.round + 1), cohort)

    def measure(self, state, cohort, split):
        if split == "test":
            self.tested.append(state.best)
            return
        self.measured.append(state.round)
        if (score := self.script[state.round - 1]) is not None:
            cohort.journal.scalar("eval/rmse", score)

    def keep(self, state, cohort):
        return replace(state, best=state.model)


@dataclass
class Cohort:
    journal: Journal


def play(script, **validation):
    server, cohort, state, decision = Scripted(script), Cohort(Journal()), State(), "go"
    server.validation = ValidationSettings(**validation)
    while decision == "go":
        cohort.journal.clear()
        state = server.round(state, cohort, Key.from_seed(0))
        decision = server.stop(state, [])
    server.end_block(state, cohort, Key.from_seed(0))
    return server, cohort, state


def test_a_server_waits_in_vain_and_tests_its_best_round():
    server, cohort, state = play([0.9, 0.7, 0.8, 0.7, 0.1])
    assert (state.round, state.chosen) == (4, BestRound(2, 0.7))
    assert server.tested == [2]
    assert cohort.journal.scalars["test/best_round"] == 2


def test_a_round_that_nobody_measured_is_not_the_best():
    _, _, state = play([None, 0.9, None, None])
    assert (state.round, state.best, state.chosen) == (4, 2, BestRound(2, 0.9))


def test_where_nobody_measured_all_rounds_are_made_and_the_last_is_tested():
    server, cohort, state = play([None] * 9)
    assert (state.round, state.chosen, server.tested) == (9, NO_ROUND, [9])
    assert cohort.journal.scalars == {"test/last_round": 9.0}


@pytest.mark.parametrize(
    ("every", "ends", "best"),
    [(1, 5, 3), (2, 6, 4), (3, 6, 3), (4, 8, 4), (5, 9, 9), (9, 9, 9), (99, 9, 9)],
)
def test_rounds_are_chosen_among_those_that_are_due(every, ends, best):
    """Patience is 2 rounds: a block ends at a round that is due, and round 9 is due anyway."""
    script = [0.9, 0.8, 0.1, 0.2, 0.7, 0.6, 0.5, 0.4, 0.15]
    server, _, state = play(script, every=every)
    assert (state.round, state.chosen) == (ends, BestRound(best, script[best - 1]))
    assert server.tested == [best]
    measured = [n for n in range(1, ends + 1) if n % every == 0 or n == 9]
    assert server.measured == measured


def test_a_sample_of_clients_is_named_beside_the_results():
    server = Scripted([])
    assert server.remarks(10_000) == []
    server.validation = ValidationSettings(every=3, clients=1000)
    assert server.remarks(20_000) == [
        "the best round is the best of every 3 rounds",
        "rounds were chosen by 1,000 of 20,000 clients, tests are of all",
    ]
    assert len(server.remarks(1000)) == 1


def test_the_most_rounds_count_from_the_beginning_of_the_search():
    best = BestRound(3, 0.5)
    assert best.over(9, rounds=9, patience=100)
    assert not best.over(9, rounds=9, patience=100, since=1)
    assert not best.over(6, rounds=99, patience=3, since=4)  # it has waited since round 4 only
    assert best.over(7, rounds=99, patience=3, since=4)


class Rounds:
    """Where a run stands, for callbacks."""

    def __init__(self):
        self.journal, self.ledger, self.reopened = Journal(), None, False
        self.block = self.round = 0
        self.block_open, self.finished = True, False
        self.exchange = SimpleNamespace(keep_best=lambda: None)

    def to_plain(self):
        return {"round": self.round}


def saved_round(path):
    return read_checkpoint(path)["federation"]["round"]


@pytest.mark.parametrize(("monitor", "best", "stream"), [(RMSE, 5, 0.2), (AUC, 6, 0.4)])
def test_checkpoints_and_the_streams_score_follow_the_direction(tmp_path, monitor, best, stream):
    checkpoints, score = Checkpoints(tmp_path, 1, monitor), StreamScore(monitor)
    rounds = Rounds()
    for number, value in enumerate([0.1, 0.9, 0.5, 0.3, 0.2, 0.4], start=1):
        rounds.journal.clear()
        rounds.journal.scalar(monitor.key, value)
        rounds.round = number
        rounds.block, rounds.finished = int(number > 3), number == 6
        score.note(rounds)
        SavingTrainer(rounds, [checkpoints]).end_round()
    assert saved_round(tmp_path / "best.ckpt") == best
    assert rounds.journal.scalars[f"{monitor.key}_stream"] == stream


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("killed", range(1, 6))
@pytest.mark.parametrize(("monitor", "best"), [(RMSE, 5), (AUC, 4)])
def test_after_a_kill_no_worse_round_becomes_the_best_checkpoint(
    tmp_path, monitor, best, killed, every
):
    """Of the second block, whose scores are the last three; the best one comes early."""
    scores = [0.1, 0.9, 0.5, 0.4, 0.2, 0.3]

    def go_on(last):
        checkpoints, rounds = Checkpoints(tmp_path, every, monitor), Rounds()
        if (tmp_path / "last.ckpt").exists():
            saved = read_checkpoint(tmp_path / "last.ckpt")
            rounds.round = saved["federation"]["round"]
            checkpoints.load_state_dict(saved["callbacks"]["Checkpoints"])
        while rounds.round < last:
            rounds.journal.scalar(monitor.key, scores[rounds.round])
            rounds.round += 1
            rounds.block = int(rounds.round > 3)
            SavingTrainer(rounds, [checkpoints]).end_round()

    go_on(killed)
    go_on(6)
    assert saved_round(tmp_path / "best.ckpt") == best


def test_the_best_checkpoint_is_of_the_round_that_is_tested(tmp_path):
    """A gain beyond the digits that count makes no round the best one."""
    monitor = Monitor("eval/auc", digits=5)
    checkpoints, rounds = Checkpoints(tmp_path, 1, monitor), Rounds()
    scores = [0.3, 0.300004, 0.2]
    for number, value in enumerate(scores, start=1):
        rounds.journal.scalar(monitor.key, value)
        rounds.round = number
        SavingTrainer(rounds, [checkpoints]).end_round()
    chosen = best_of([{monitor.key: score} for score in scores], monitor)
    assert saved_round(tmp_path / "best.ckpt") == chosen.round == 1


def test_w_and_b_keeps_the_better_end(tmp_path):
    card = RunCard("mtal", "mtal", "sample", 0)
    log = RoundWandbLogger(LoggerSettings(), tmp_path, card, RMSE)
    assert log.summaries["eval/rmse"] == "min"
    assert log.summaries["fed/loss"] == "min"
    assert log.summaries["cost/seconds"] is None


def test_a_report_is_the_full_ranking_at_every_length():
    scores = torch.rand(6, 30)
    seen = Ragged.from_lists([[c, c + 1] for c in range(6)])
    targets = Ragged.from_lists([[10 + c, 21 - c] if c != 3 else [] for c in range(6)])
    found = rank_all(scores, targets, (5, 20), (seen,))
    for column, k in enumerate((5, 20)):
        expected = ranking_metrics(scores, targets, k, seen)
        for name in ("recall", "ndcg"):
            ours, theirs = getattr(found, name)[:, column], getattr(expected, name)
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_a_diverged_client_reports_infinity_alone():
    scores = torch.rand(3, 8)
    scores[1, 4] = torch.nan
    found = rank_all(scores, Ragged.from_lists([[1], [2], [3]]), (4,))
    assert found.ndcg.isinf()[:, 0].tolist() == [False, True, False]
    huge = torch.full((2, 8), 3e38)  # finite, though their sum is not
    assert rank_all(huge, Ragged.from_lists([[0], [7]]), (4,)).recall[:, 0].tolist() == [1.0, 0.0]
