"""Freed memory stays with the process: what is asked for again costs no page faults."""

import resource

import pytest
import torch

from coterie.core.tensors.device import keep_freed

_BLOCK = 12 << 20  # numbers of 4 bytes: 48 MiB, which glibc by itself would give back
_PAGES = 12 << 10


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def make_ten():
    for _ in range(10):
        torch.ones(_BLOCK)


def test_a_block_that_is_made_again_has_its_pages():
    if not keep_freed():
        pytest.skip("this C library has no mallopt")
    make_ten()
    before = faults()
    make_ten()
    assert faults() - before < _PAGES
