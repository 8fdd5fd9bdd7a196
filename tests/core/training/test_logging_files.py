"""metrics.csv, costs, refusals, the stream's score and the progress lines."""

import csv as stdlib_csv
import logging
import math
import os

import pytest

from coterie.continual.paper import KEYS as F3CREC_KEYS
from coterie.core.errors import UserError
from coterie.core.metrics.monitor import Monitor
from coterie.core.registry.keys import KEYS, documented
from coterie.core.run.metrics_file import number
from coterie.core.training.callbacks.notes import Costs, Refusals, StreamScore
from coterie.core.training.callbacks.progress import RoundProgress
from coterie.core.training.loggers.rounds import MetricsLogger

NDCG = Monitor("eval/ndcg@20")


def callbacks_of(folder):
    return [Refusals(), Costs(), StreamScore(NDCG), MetricsLogger(folder)]


def lines_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return list(stdlib_csv.DictReader(file))


def without_time(lines):
    return [{k: v for k, v in line.items() if "seconds" not in k} for line in lines]


def test_one_line_a_round_with_the_documented_keys(PretendedRounds, fit, tmp_path):
    fit(PretendedRounds(), callbacks_of(tmp_path), tmp_path)
    lines = lines_of(tmp_path)
    assert [line["round"] for line in lines] == list("123456")
    assert [line["block"] for line in lines] == list("000111")
    assert list(lines[0])[:2] == ["round", "block"]
    assert all(documented(key, (*KEYS, *F3CREC_KEYS)) for key in lines[0])
    assert float(lines[2]["fed/loss"]) == 1 / 3
    assert [line["test/block1/ndcg@20"] for line in lines] == [""] * 5 + ["6.25"]
    assert not list(tmp_path.glob("*.tmp"))


def test_costs_are_the_ledgers(PretendedRounds, fit, tmp_path):
    module = PretendedRounds()
    fit(module, callbacks_of(tmp_path), tmp_path)
    lines = lines_of(tmp_path)
    assert [int(line["cost/up_bytes"]) for line in lines] == [5 * 4 * r for r in range(1, 7)]
    assert {line["cost/down_bytes"] for line in lines} == {str(5 * 7 * 4)}
    assert int(lines[-1]["cost/up_bytes_total"]) == module.ledger.bytes("up") == 20 * 21
    seconds = [float(line["cost/seconds"]) for line in lines]
    assert float(lines[-1]["cost/seconds_total"]) == pytest.approx(sum(seconds))


def test_the_streams_score_is_the_mean_of_later_blocks_best(PretendedRounds, fit, tmp_path):
    fit(PretendedRounds(rounds=9), callbacks_of(tmp_path), tmp_path)
    scores = [line["eval/ndcg@20_stream"] for line in lines_of(tmp_path)]
    assert scores[:-1] == [""] * 8
    assert float(scores[-1]) == pytest.approx((0.5 / 2 + 0.5 / 3) / 2)


def test_a_resumed_file_is_that_of_an_uninterrupted_run(PretendedRounds, fit, tmp_path):
    fit(PretendedRounds(rounds=8), callbacks_of(tmp_path / "whole"), tmp_path)
    folder = tmp_path / "parts"
    fit(PretendedRounds(rounds=4), callbacks_of(folder), tmp_path)
    checkpoint = (tmp_path / "last.ckpt").rename(tmp_path / "four.ckpt")
    # The first process went on to round 6, with a new column, and died while writing round 7.
    text = (folder / "metrics.csv").read_text().splitlines()
    text = [text[0] + ",late/key", *(line + "," for line in text[1:])]
    text += [line.replace("4,1", f"{r},1", 1) + "9" for r, line in ((5, text[4]), (6, text[4]))]
    (folder / "metrics.csv").write_text("\n".join(text) + "\n2")
    fit(PretendedRounds(rounds=8), callbacks_of(folder), tmp_path, resume=checkpoint)
    parts, whole = lines_of(folder), lines_of(tmp_path / "whole")
    for line in parts:  # the first part ended its run in round 4, so noted a stream score there
        if line["round"] == "4":
            line["eval/ndcg@20_stream"] = ""
    assert without_time(parts) == without_time(whole)
    assert float(parts[-1]["cost/seconds_total"]) == pytest.approx(
        sum(float(line["cost/seconds"]) for line in parts)
    )


def test_a_new_run_in_an_old_folder_starts_afresh(PretendedRounds, fit, tmp_path):
    fit(PretendedRounds(rounds=5), callbacks_of(tmp_path), tmp_path)
    fit(PretendedRounds(rounds=2), callbacks_of(tmp_path), tmp_path)
    assert [line["round"] for line in lines_of(tmp_path)] == ["1", "2"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_one_clear_line(PretendedRounds, fit, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"cannot write .*metrics.csv"):
        fit(PretendedRounds(), [MetricsLogger(tmp_path)], tmp_path)


def test_a_file_in_place_of_the_folder_is_one_clear_line(PretendedRounds, fit, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*metrics.csv.*--out"):
        fit(PretendedRounds(), [MetricsLogger(tmp_path / "taken")], tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_clear_line_and_loses_no_round(PretendedRounds, fit, tmp_path):
    log = MetricsLogger(tmp_path)

    class FillsUp(PretendedRounds):
        def _measure(self, number):
            super()._measure(number)
            if number == 3:
                del self.journal.scalars["test/block0/ndcg@20"]
                log.file._file.close()
                log.file._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115

    with pytest.raises(UserError, match=r"no space left for .*go on by --resume"):
        fit(FillsUp(), [log], tmp_path)
    assert [line["round"] for line in lines_of(tmp_path)] == ["1", "2"]


@pytest.mark.parametrize("value", [0.1, 587.0, 1e-30, -3.5, 123456789012345.0, math.inf, math.nan])
def test_numbers_read_back_the_same(value):
    back = float(number(value))
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_a_refused_client_is_named_once_a_step(PretendedRounds, fit, tmp_path, caplog):
    class Refusing(PretendedRounds):
        def _measure(self, number):
            super()._measure(number)
            self.journal.refuse("update", 17, "NaN or infinity in upload 'items'")
            if number == 2:
                for client in range(30):
                    self.journal.refuse("evaluate", client, "NaN or infinity in upload 'ndcg'")

    with caplog.at_level(logging.WARNING, logger="coterie"):
        fit(Refusing(rounds=3), callbacks_of(tmp_path), tmp_path)
    said = [record.message for record in caplog.records if record.name.startswith("coterie")]
    assert said[0] == "client 17 left out of round 1: NaN or infinity in upload 'items'"
    assert len(said) == 1 + 10 + 1
    assert said[-1] == "20 more left out of round 2"
    assert [line["fed/refused"] for line in lines_of(tmp_path)] == ["1", "31", "1"]


def test_plain_lines_are_few(PretendedRounds, fit, tmp_path, capsys):
    bar = RoundProgress(every=2, live=False)
    fit(PretendedRounds(), [bar], tmp_path)
    out = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Block")]
    assert out == [
        "Block 0 round 2/3 loss=0.5000 ndcg@20=0.5000",
        "Block 0 round 3/3 loss=0.3333 ndcg@20=0.3000",
        "Block 1 round 2/3 loss=0.2000 ndcg@20=0.2500",
        "Block 1 round 3/3 loss=0.1667 ndcg@20=0.1500",
    ]


def test_slow_rounds_are_not_silent(PretendedRounds, fit, tmp_path, capsys):
    """Ten seconds a round: a line every third one, and the last of each block."""
    seconds = iter(range(0, 10**6, 10))
    bar = RoundProgress(every=99, live=False, clock=lambda: next(seconds))
    fit(PretendedRounds(), [bar], tmp_path)
    out = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Block")]
    slow = iter(range(0, 10**6, 31))
    bar = RoundProgress(every=99, live=False, clock=lambda: next(slow))
    fit(PretendedRounds(), [bar], tmp_path)
    all_of = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Block")]
    assert len(out) < len(all_of) == 6


def test_the_bar_goes_on_in_its_block_after_a_resume(PretendedRounds, fit, tmp_path, capsys):
    fit(PretendedRounds(rounds=4), [RoundProgress(every=1, live=False)], tmp_path)
    capsys.readouterr()
    bar = RoundProgress(every=1, live=False)
    fit(PretendedRounds(rounds=6), [bar], tmp_path, resume=tmp_path / "last.ckpt")
    out = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Block")]
    assert [line.split(" loss")[0] for line in out] == ["Block 1 round 2/3", "Block 1 round 3/3"]


def test_on_a_terminal_each_block_leaves_its_bar(PretendedRounds, fit, tmp_path, capsys):
    fit(PretendedRounds(seconds=0.02), [RoundProgress(live=True)], tmp_path)
    shown = capsys.readouterr().out.replace("\r", "\n")
    for block in (0, 1):
        assert f"Block {block} round 3/3" in shown
    assert "ndcg@20=0.1500" in shown
    assert "<00:0" in shown  # time left


def test_key_names_are_unique_and_start_with_a_namespace():
    names = [key.name for key in KEYS]
    assert len(set(names)) == len(names)
    namespaces = {"fed", "start", "eval", "test", "cost", "privacy"}
    assert {name.split("/")[0] for name in names[2:]} <= namespaces
