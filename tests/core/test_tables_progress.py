"""What work that is counted says of itself."""

import sys

from coterie.core.tables.jobs import Counting


class Clock:
    """Seconds, as a test sets them."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_log_gets_a_line_at_most_every_half_minute(capsys):
    clock = Clock()
    with Counting("Table 1", 9, clock=clock) as counting:
        for seconds, label in ((29, "a"), (30, "b"), (59, "c"), (61, "d")):
            clock.now = seconds
            counting.done(label)
        clock.now = 95
        counting.up_to(8)
    assert capsys.readouterr().err.splitlines() == [
        "Table 1: 2 of 9, b",
        "Table 1: 4 of 9, d",
        "Table 1: 8 of 9",
    ]


def test_nothing_is_said_where_nobody_wants_it(capsys):
    clock = Clock()
    with Counting("Table 1", 9, shown=False, clock=clock) as counting:
        clock.now = 99
        counting.done("a")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_alone(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    clock = Clock()
    with Counting("Table 1", 9, clock=clock) as counting:
        clock.now = 99
        counting.done("a")
        counting.up_to(5)
    said = capsys.readouterr().err
    assert "0/9" in said
    assert " of 9" not in said
