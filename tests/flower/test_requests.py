"""What a node was asked: noted before a reply leaves, put aside when large, held to the card."""

from __future__ import annotations

import json
import os

import pytest
import torch

from coterie.core.engines.envelope import Parcel, ParcelHeader, RequestHeader
from coterie.core.engines.worker import Service
from coterie.core.errors import UserError
from coterie.core.flower.requests import LOG, Asked, note, noted, remarks
from coterie.core.flower.resident import answered
from coterie.core.wire.codec import encode

CARD = {"messages": {"update": "a", "evaluate": "b"}, "settings": {"rounds": 5}, "blocks": 2}


def asked(**facts) -> Asked:
    given = {"time": "now", "folder": "clients-0", "parcel": "p", "run": "r", "step": "update"}
    return Asked(**(given | {"turn": 1, "round": 1} | facts))


def test_lines_come_back_in_their_order_over_files(tmp_path):
    for number in range(30):
        note(tmp_path, asked(turn=number), most=500)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) > 3
    assert all(path.stat().st_size < 1000 for path in tmp_path.iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    assert [one.turn for one in noted(tmp_path)] == list(range(30))


def test_a_line_that_was_cut_short_is_left_out(tmp_path):
    note(tmp_path, asked())
    with (tmp_path / LOG).open("a") as file:
        file.write('{"time": "now", "fol')
    assert list(noted(tmp_path)) == [asked()]


def test_nothing_leaves_that_cannot_be_noted(tmp_path):
    (tmp_path / LOG).symlink_to("/dev/full")
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with pytest.raises(UserError, match="no space left"):
        answered(tmp_path, {}, "clients-0", b"parcel")


def test_requests_that_fit_the_card_have_no_remarks():
    lines = [asked(turn=turn, round=turn) for turn in range(1, 6)]
    assert remarks([asked(step="@present"), *lines, asked(turn=6, block=1)], CARD) == []


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([asked(step="leak")], "step 'leak', which the card does not have"),
        ([asked(block=2)], "block 2, which the card does not have"),
        ([asked(round=6)], "round 6 of block 0 is beyond the card's 5"),
        ([asked(), asked(run="other")], "2 runs have asked: r, other"),
        ([asked(), asked(attempt=1)], "round 1 of run r was tried 2 times with clients-0"),
        ([asked(), asked(epoch=1)], "round 1 of run r was tried 2 times with clients-0"),
        ([asked(why="it is of another run")], "refused: it is of another run"),
    ],
)
def test_what_an_owner_should_know(lines, word):
    (said,) = remarks(lines, CARD)
    assert said.startswith(word)


class Fixed(Service):
    """Clients that give a fixed reply."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply

    def answer(self, request: bytes) -> bytes:
        return self.reply


def test_a_line_says_what_was_asked_and_what_left(tmp_path):
    from coterie.core.engines.envelope import ReplyHeader

    message = encode(None, RequestHeader(1, 3, 0, "update", torch.tensor([4, 5, 6])))
    missed = encode(None, RequestHeader(0, 9, 0, "keep_best", torch.tensor([4])))
    parcel = Parcel(ParcelHeader("a run", "since", 2, 7, 1), (missed, message))
    reply = encode(
        None, ReplyHeader(parcel.name, torch.tensor([4, 5]), {"6": "its loss is not finite"})
    )
    sent = parcel.to_bytes()
    assert answered(tmp_path, {"clients-1": Fixed(reply)}, "clients-1", sent) == reply
    (one,) = noted(tmp_path)
    assert (one.folder, one.parcel, one.run) == ("clients-1", parcel.name, "a run")
    assert (one.epoch, one.turn, one.attempt, one.block, one.round) == (2, 7, 1, 1, 3)
    assert (one.step, one.missed, one.answered) == ("update", 1, 2)
    assert (one.down, one.up, one.why) == (len(sent), len(reply), "its loss is not finite")


def test_what_is_no_parcel_and_for_nobody_is_noted_too(tmp_path):
    service = Service(tmp_path)
    service.answer = lambda request: Service.answer(service, request)
    assert answered(tmp_path, {}, "clients-9", b"junk") == b""
    (one,) = noted(tmp_path)
    assert (one.folder, one.down, one.why) == ("clients-9", 4, "this node has no such folder")
    assert json.loads((tmp_path / LOG).read_text())["answered"] == 0


def test_a_line_that_a_full_disk_cut_short_takes_no_other_with_it(tmp_path):
    note(tmp_path, asked(turn=1))
    with (tmp_path / LOG).open("a") as file:
        file.write('{"time": "now", "fol')
    note(tmp_path, asked(turn=3))
    assert [one.turn for one in noted(tmp_path)] == [1, 3]
