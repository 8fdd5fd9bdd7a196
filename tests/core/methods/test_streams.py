"""Sums over rounds in a stream of blocks: the fixed point is that of the newest block's data."""

import pytest
import torch
from tests.core.methods.method_cases import (
    KEY,
    Linear,
    method,
    optimum,
    play,
    sample_data,
)
from tests.core.test_fedavg import cohort_of

BEFORE, AFTER = [8, 5, 9, 20], [64, 5, 9, 2]


@pytest.mark.long
@pytest.mark.parametrize(  # by samples the sums must begin anew, also of who is asked later
    ("fraction", "weighting", "name"),
    [
        (0.5, "samples", "scaffold"),
        (1.0, "equal", "scaffold"),
        (0.5, "samples", "feddyn"),
        (1.0, "equal", "feddyn"),
    ],
)
def test_clients_that_grow_and_shrink_between_blocks(fraction, weighting, name):
    options = {"epochs": 5, "lr": 0.1, "weighting": weighting, "fraction": fraction}
    server, client = method(name, Linear, **options)
    played = play(server, client, sample_data(BEFORE), 20)
    data, state = sample_data(AFTER), played.state
    for number in range(21, 150):
        cohort = cohort_of(client, data, None, number).keeping(played.store)
        if number == 21:
            state = server.start_block(state, 1, cohort, KEY)
        state = server.round(state, cohort, KEY.fold("round", number))
    weights = [n / sum(AFTER) for n in AFTER] if weighting == "samples" else [0.25] * 4
    best = optimum(data, weights)
    assert float((server.model(state)["w"] - best).norm()) < 1e-3
    assert float((played.state.weights["w"] - best).norm()) > 1e-2


def test_a_block_of_the_same_data_begins_with_zeros_on_both_sides():
    server, client = method("scaffold", Linear)
    data = sample_data(BEFORE)
    played = play(server, client, data, 3)
    assert any(bool(c.any()) for c in played.state.control.values())
    cohort = cohort_of(client, data, None, 4).keeping(played.store)
    state = server.start_block(played.state, 1, cohort, KEY)
    assert not any(bool(c.any()) for c in state.control.values())
    server.round(state, cohort, KEY.fold("round", 4))
    assert played.store.take(data.ids).block.tolist() == [1] * 4
    assert torch.equal(played.store.take(data.ids).rounds, torch.full((4,), 4))
