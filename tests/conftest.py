"""Fixtures shared by all tests."""

import os
from pathlib import Path

import hypothesis
import pytest
import torch

# What changes torch for a whole process, and so is never imported here.
collect_ignore = ["far_device.py", "processors"]

# The same examples in every run, and no deadline, since machines are busy;
# HYPOTHESIS_PROFILE=default searches further.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the public data sets; skips where they are absent."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("COTERIE_DATA", beside))
    if not (root / "ml-100k" / "u.data").is_file():
        pytest.skip(f"needs the public data sets: set COTERIE_DATA (looked in {root})")
    return root


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
