"""``kill -9`` of whom at which moment: the bits of the undisturbed run, each time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.flower.clusters import (
    PROGRAMS,
    SHORT,
    bits,
    deployed,
    ended,
    kill,
    requests,
    undisturbed,
    when,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]
UNDER_WAY = 2.5  # seconds after which Flower has brought the next request to the nodes
MOMENTS = {
    "update": ("@enrol", UNDER_WAY),
    "commit": ("update", 0.0),
    "evaluate": ("evaluate", 0.0),
    "end of block": ("end_block", 0.0),
}
"""What a node has answered, and seconds after that."""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("who", PROGRAMS)
def test_a_kill_changes_nothing(who: str, moment: str, tmp_path: Path) -> None:
    root = tmp_path / "d"
    nodes = deployed(root, SHORT)
    step, seconds = MOMENTS[moment]

    def is_answered() -> bool:
        return any(line.step == step and line.turn == 1 for line in requests(nodes))

    def strike() -> None:
        time.sleep(seconds)
        kill(who, root)

    with when(is_answered, strike) as done:
        state = ended(root, nodes)
    assert done
    assert state["state"] == "finished"
    assert bits(root, state) == undisturbed(root)
