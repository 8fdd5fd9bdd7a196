"""Errors of the disk are one line where safetensors writes too, whose errors are its own."""

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from coterie.core.errors import UserError
from coterie.llm.backbones.folder import writing_tensors

# What it says on a full disk, which a test cannot have.
FULL = "Error while serializing: I/O error: No space left on device (os error 28)"


def test_a_full_disk_is_one_line() -> None:
    with (
        pytest.raises(UserError, match="no space left for a: free some"),
        writing_tensors(Path("a")),
    ):
        raise SafetensorError(FULL)


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "a.safetensors"
    with pytest.raises(UserError, match=r"cannot write .*no such file"), writing_tensors(path):
        save_file({"a": torch.ones(3)}, path)


def test_an_error_that_is_none_of_the_disk_stays() -> None:
    with pytest.raises(SafetensorError, match="of another kind"), writing_tensors(Path("a")):
        raise SafetensorError("a tensor of another kind")
