"""A machine with an accelerator, played on the CPU: run papers on it and on the CPU, and compare.

    python tests/far_device.py '[["PAPER", "PLANT", "--KEY", "VALUE", ...], ...]'

A tensor of the played device says that it is elsewhere and is computed here. What a real one
refuses is refused: operations over tensors of two devices, and numpy. Run in a process of its own,
since torch knows the device from then on. PLANT is a mistake that is made on purpose, or "nothing".
One JSON object a line is printed, one for each of the list, of which the last may fail.
"""

import contextlib
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

import coterie
from coterie.core.federation.ledger import Ledger
from coterie.core.registry.papers import find_paper, load
from coterie.core.run import experiment as base
from coterie.core.run.driver import FederatedRun
from coterie.core.settings.configuration import configure
from coterie.core.tensors import tree

backend_registration._setup_privateuseone_for_python_backend("far")
# A wrapper cannot take the place of a parameter's data; swapped, tied parameters stay tied.
torch.__future__.set_swap_module_params_on_conversion(True)
FAR = torch.device("far", 0)
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
# The clone itself may lie in a folder of this name, and its environment in it.
OURS = tuple(f"{folder}/" for folder in coterie.__path__)
ROUNDS = 2
ON_PURPOSE = ("on_host", "add_lora", "coordinate")
"""Functions that draw first parameters on the CPU, so that they are the same everywhere, or solve a
problem of a dozen numbers in hundreds of steps, for which a device is too far."""


class FarTensor(Tensor):
    """A tensor on the played device; ``near`` holds its numbers."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "FarTensor":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
            requires_grad=near.requires_grad,
        )

    def __init__(self, near: Tensor) -> None:
        self.near = near

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """Computes what is on the played device, or made there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the numbers, if all its tensors are on one device."""
    found: list[Tensor] = []
    plain = brought(args, found), {name: brought(value, found) for name, value in kwargs.items()}
    far = [leaf for leaf in found if isinstance(leaf, FarTensor)]
    near = [leaf for leaf in found if not isinstance(leaf, FarTensor)]
    # As on a GPU, a single number may come from the CPU where it goes with every element.
    single = torch.Tag.pointwise in func.tags and not any(leaf.dim() for leaf in near)
    if far and near and func not in COPIES and not single:
        raise RuntimeError(f"{func}: tensors on two devices")
    wanted = kwargs.get("device")
    there = bool(far) if wanted is None else torch.device(wanted).type == FAR.type
    out = func(*plain[0], **plain[1] | ({} if wanted is None else {"device": "cpu"}))
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if func is torch.ops.aten._to_copy.default:
        out = out.clone()
    if not there:
        return out
    wrapped = sent(out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if far else wrapped


def brought(value: Any, found: list[Tensor]) -> Any:
    """Take the numbers of all tensors, and note these; torch's own trees take half of a run."""
    if isinstance(value, Tensor):
        found.append(value)
        return value.near if isinstance(value, FarTensor) else value
    if isinstance(value, (list, tuple)):
        return type(value)([brought(one, found) for one in value])
    return value


def sent(value: Any) -> Any:
    """Put numbers on the played device."""
    if isinstance(value, Tensor):
        return FarTensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)([sent(one) for one in value])
    return value


class Factories(TorchFunctionMode):
    """Notes which tensors are made elsewhere than on the played device, and by whom."""

    def __init__(self) -> None:
        super().__init__()
        self.made, self.astray, self.noting = 0, set[str](), False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self._called(func, args, kwargs or {})
        if func in _device_constructors():
            self.note(func.__name__, out)
        return out

    def note(self, name: str, made: Any) -> None:
        """Take notice of what a factory gave."""
        if self.noting:
            self.made += 1
            if isinstance(made, Tensor) and made.device != FAR:
                self._astray(name)

    def from_numpy(self, array: Any) -> Tensor:
        """Stand for `torch.from_numpy`, which tells no mode of its calls."""
        return torch.as_tensor(array, device="cpu")

    def _called(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call, round the places where torch reaches past what Python can play."""
        if func is Tensor.tolist and isinstance(args[0], FarTensor):
            return args[0].cpu().tolist()
        if func is Tensor.new_tensor and isinstance(args[0], FarTensor):
            return args[0].near.new_tensor(*args[1:], **kwargs).to(FAR)
        wanted = kwargs.get("device")
        from_values = func in (torch.tensor, torch.as_tensor, torch.asarray)
        if from_values and wanted is not None and torch.device(wanted).type == FAR.type:
            return func(*args, **kwargs | {"device": "cpu"}).to(FAR)
        return func(*args, **kwargs)

    def _astray(self, name: str) -> None:
        frames = traceback.extract_stack()
        if any(frame.name in ON_PURPOSE for frame in frames):
            return
        ours = [f for f in frames if f.filename.startswith(OURS) or f.name.startswith("plant")]
        where = f"{ours[-1].filename.split('/coterie/')[-1]}:{ours[-1].name}" if ours else "?"
        self.astray.add(f"{name} in {where}")


def plant_factory() -> Any:
    """A tensor made on the CPU in a round, and used there."""
    return torch.zeros(3, device="cpu") + 1


def plant_numpy() -> Any:
    """A tensor of numpy's, which no context moves."""
    return torch.from_numpy(np.ones(3))


CONSTANT = torch.arange(3)


def plant_constant() -> Any:
    """A tensor made when its module was imported, used in a round."""
    return torch.zeros(3) + CONSTANT


PLANTS: dict[str, Callable[[], Any]] = {
    "factory": plant_factory,
    "numpy": plant_numpy,
    "constant": plant_constant,
}


def telling_of_numpy(factories: Factories) -> Any:
    """Note the calls of `torch.from_numpy` too."""
    return mock.patch.object(torch, "from_numpy", factories.from_numpy)


@contextlib.contextmanager
def planted(what: str) -> Iterator[None]:
    """Do something wrong wherever an upload is counted."""
    if what == "nothing":
        yield
        return
    count = Ledger.up

    def wrong(self: Ledger, *args: Any, **options: Any) -> None:
        PLANTS[what]()
        count(self, *args, **options)

    with mock.patch.object(Ledger, "up", wrong):
        yield


def run_on(
    device: torch.device, paper: str, flags: Sequence[str], out: str, factories: Factories
) -> FederatedRun:
    """Run some rounds, stop, go on from the checkpoint in a run made anew, and test.

    Data are read on the CPU; what is made is noted from the first round's begin on.
    """
    flags = [*flags, "--preset", "smoke", "--logger.wandb", "off", "--run.out", out]
    chosen = find_paper(paper)
    settings = configure(chosen, flags).settings
    with mock.patch.object(base, "choose_device", return_value=device):
        federation = load(chosen.experiment)(settings).federation()
    factories.noting = device == FAR
    first, run = FederatedRun(federation), FederatedRun(federation)
    first.advance()
    run.load_plain(first.to_plain())
    for _ in range(ROUNDS - 1):
        run.advance()
    run.retest()
    return run


@cache
def numbers_on_the_cpu(paper: str, *flags: str) -> dict[str, float]:
    """What a run measures."""
    with tempfile.TemporaryDirectory() as out:
        near = run_on(torch.device("cpu"), paper, flags, out, Factories())
    return near.journal.scalars | near.history[-1]


def play(paper: str, plant: str, *flags: str) -> dict[str, Any]:
    """Run on both devices."""
    factories = Factories()
    with (
        tempfile.TemporaryDirectory() as out,
        factories,
        Device(),
        planted(plant),
        telling_of_numpy(factories),
    ):
        there = run_on(FAR, paper, flags, out, factories)
        factories.noting = False
        state = {"server": there.server_state, "store": there.store.to_plain()}
        left = [path for path, leaf in tree.tensors(tree.to_plain(state)) if leaf.device != FAR]
        saved = tree.tensors(there.to_plain()["server"])
        kept = [path for path, leaf in saved if leaf.device.type != "cpu"]
    return {
        "made": factories.made,
        "astray": sorted(factories.astray),
        "state_elsewhere": left,
        "checkpoint_elsewhere": kept,
        "near": numbers_on_the_cpu(paper, *flags),
        "far": there.journal.scalars | there.history[-1],
    }


if __name__ == "__main__":
    for one in json.loads(sys.argv[1]):
        print(json.dumps(play(*one)), flush=True)
