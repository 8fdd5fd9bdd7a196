"""The played processor: what it moves, what stays, and that equal calls are equal."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

PROCESSORS = Path(__file__).with_name("processors")
SCRIPT = """
import torch
from concurrent.futures import ThreadPoolExecutor
draw = torch.Generator().manual_seed(0)
a, b = (torch.rand(*shape, generator=draw, dtype=torch.DTYPE) for shape in ((5, 7), (7, 6)))
w = torch.rand(5, 7, generator=draw, dtype=torch.DTYPE, requires_grad=True)
(w @ b).exp().sum().backward()
picked = torch.eye(7, dtype=torch.DTYPE)[:, [3, 1]]
with torch.inference_mode():
    inside = a @ b
found = {
    "product": a @ b, "again": a @ b, "sum": a.sum(0), "mean": a.mean(1), "exp": a.exp(),
    "softmax": a.softmax(1), "gradient": w.grad, "step": a.add(a * a, alpha=0.3),
    "inference": inside, "vmap": torch.func.vmap(lambda row: row @ b)(a),
    "thread": ThreadPoolExecutor(1).submit(torch.matmul, a, b).result(),
    "alone": a[:1] @ b, "stacked": (a @ b)[:1],
    "rows": a @ picked, "count": torch.ones(1000).sum(), "whole": torch.arange(8.0).mean(),
    "two": a[:2].sum(0), "out": torch.sum(torch.ones(3, 3), 0, out=torch.empty(3)),
    "vector": torch.ones(512, 9) @ torch.arange(9.0), "one": a.new_zeros(3).exp(),
    "product_of_two": a * a, "number": a - 1,
    "max": a.max(), "integers": torch.arange(9).sum(), "zero": (a * 0).sum(),
}
"""
PRINT = """
import json, sys
def computed(dtype):
    names = {}
    exec(sys.argv[1].replace("DTYPE", dtype), names)
    return {name: value.tolist() for name, value in names["found"].items()}
print(json.dumps({dtype: computed(dtype) for dtype in ("float32", "float64")}))
"""
MOVED = ["product", "sum", "mean", "exp", "softmax", "gradient", "step", "inference", "vmap"]
STAYS = [
    *("rows", "count", "whole", "two", "out", "vector", "one", "product_of_two", "number"),
    *("max", "integers", "zero"),
]


@cache
def computed(played: bool) -> dict[str, dict[str, Any]]:
    path = {"PYTHONPATH": str(PROCESSORS)} if played else {}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PRINT, SCRIPT]
    run = subprocess.run(command, env=kept | path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stderr == ""
    found: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return found


def tensors(dtype: str, played: bool) -> dict[str, torch.Tensor]:
    found = computed(played)[dtype]
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("float64", 53)])
def test_last_bits_are_moved_and_what_is_exact_stays(dtype: str, bits: int) -> None:
    here, there = tensors(dtype, played=False), tensors(dtype, played=True)
    for name in MOVED:
        far = ((here[name] - there[name]) / here[name]).abs().max()
        assert 0 < float(far) < 2.0 ** (5 - bits), name
    for name in STAYS:
        assert torch.equal(here[name], there[name]), name
    for name in ("again", "thread", "inference"):
        assert torch.equal(there[name], there["product"]), name
    assert not torch.equal(there["alone"], there["stacked"])


def test_torch_is_loaded_by_whoever_needs_it() -> None:
    code = "import sys, json; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    env = os.environ | {"PYTHONPATH": str(PROCESSORS)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
