"""The networks by name, and which one the paper trains on which task. Torch-free."""

from __future__ import annotations

from typing import Literal, get_args

Network = Literal["softmax", "small-cnn", "resnet18", "resnet18-small-stem", "char-lstm"]

NETWORKS: tuple[str, ...] = get_args(Network)

OF_TASK: dict[str, Network] = {
    "synthetic": "softmax",
    "synthetic-fedprox": "softmax",
    "cifar-100": "resnet18",
    "tiny-imagenet-200": "resnet18",
    "shakespeare": "char-lstm",
}
"""What section 5.1 trains on each task."""
