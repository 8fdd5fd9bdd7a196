"""Which numbers are members, whatever the order: as torch says, in less time."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.tensors.ordering import among

NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 9), max_size=12)


@given(NUMBERS, NUMBERS, st.booleans())
def test_it_is_what_torch_finds(numbers, members, ascending):
    wanted = torch.tensor(numbers, dtype=torch.int64)
    known = torch.tensor(sorted(members) if ascending else members, dtype=torch.int64)
    before = known.clone()
    assert torch.equal(among(wanted, known), torch.isin(wanted, known))
    assert torch.equal(known, before)
