"""Another processor, played on this one: results of products, sums and functions are moved.

How long a processor's vectors are, and whether it multiplies and adds in one step, decides in which
order sums are made and how a function's last bit comes out. Here the last bit of such a result goes
up, down or stays, as a hash of its own bits and of the operands' shapes says. So equal calls stay
equal, and no two ways to compute one thing, stacked or alone say, are equal by luck.

What is the same on every processor stays: integers, single operations that IEEE 754 rounds, sums
without rounding, such as counts, and sums and products of one term, such as rows picked by zeros
and ones.

The kernels are replaced below everything that Python or autograd does: modes, `vmap`, threads and
inference see it like any processor.
"""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Keep = Tensor | bool
"""Which elements of a result stay: all, none, or those that are marked."""

PRODUCTS = """
    mm bmm addmm addmm_ addmv addmv_ addr addbmm addbmm_ baddbmm baddbmm_ dot vdot convolution
    addcmul addcmul_ add add_ sub sub_
"""
"""Sums of products; with a single product there is one rounding."""

SUMS = """
    sum nansum cumsum cumsum_ trace index_add index_add_ scatter_add scatter_add_
    _index_put_impl_ embedding_dense_backward
"""
"""Sums, and so means; of two terms there is one rounding."""

FUNCTIONS = """
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
    sigmoid erf erfc erfinv lgamma digamma softplus gelu silu mish elu pow rsqrt xlogy hypot atan2
    exp_ exp2_ expm1_ log_ log2_ log10_ log1p_ sin_ cos_ tan_ tanh_ sigmoid_ erf_ erfc_ erfinv_
    lgamma_ digamma_ silu_ elu_ pow_ rsqrt_ xlogy_ hypot_ atan2_ logaddexp logaddexp2
    log_sigmoid_forward binary_cross_entropy addcdiv addcdiv_ lerp lerp_ prod cumprod cumprod_
    tanh_backward softplus_backward gelu_backward silu_backward mish_backward elu_backward
    log_sigmoid_backward binary_cross_entropy_backward nll_loss_forward nll_loss2d_forward
    _softmax _log_softmax _logcumsumexp _softmax_backward_data _log_softmax_backward_data
    var std var_mean std_mean norm linalg_vector_norm linalg__powsum renorm _cdist_forward
    _cdist_backward _pdist_forward native_layer_norm native_layer_norm_backward native_group_norm
    native_group_norm_backward native_batch_norm native_batch_norm_backward
    _native_batch_norm_legit _batch_norm_with_update batch_norm_backward convolution_backward
    mkldnn_rnn_layer mkldnn_rnn_layer_backward avg_pool2d avg_pool2d_backward
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
    _embedding_bag _embedding_bag_forward_only _embedding_bag_dense_backward
    linalg_cholesky_ex _linalg_eigh _linalg_svd _linalg_det _linalg_slogdet _linalg_solve_ex
    linalg_inv_ex linalg_lstsq linalg_qr linalg_solve_triangular linalg_matrix_exp
    linalg_lu_factor_ex linalg_lu_solve cholesky_inverse triangular_solve
    normal_ exponential_ log_normal_
"""
"""The rest; of these, small whole numbers stay, and what an operand is."""

_BITS = {torch.float64: 53, torch.float32: 24}
"""Types that are moved, and the bits of their fraction."""

_SIMPLE = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)
"""Powers that are made of products and roots, which IEEE 754 rounds."""

_registered: list[torch.library.Library] = []


def _compiled() -> ctypes.CDLL:
    """Compile what is done to numbers, once for every state of the source."""
    source = Path(__file__).with_name("last_bits.c")
    digest = zlib.crc32(source.read_bytes())
    built = source.parent / "build" / f"last_bits-{digest:08x}.so"
    if not built.exists():
        built.parent.mkdir(exist_ok=True)
        own = built.with_suffix(f".{os.getpid()}")  # others may be compiling it too
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", own, source, "-lm"], check=True)
        own.replace(built)
    return ctypes.CDLL(str(built))


_NUMBERS = _compiled()
_SIGNATURES = (
    ("move", None, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p)),
    (
        "move_function",
        None,
        (
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32),
            *(ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t),
        ),
    ),
    ("grid", ctypes.c_double, (ctypes.c_void_p, ctypes.c_size_t)),
    ("has_zero", ctypes.c_int, (ctypes.c_void_p, ctypes.c_size_t)),
)


def _of_both_types(name: str, result: Any, arguments: Any) -> dict[torch.dtype, Any]:
    found = {}
    for dtype in _BITS:
        function = _NUMBERS[f"{name}_{str(dtype).removeprefix('torch.')}"]
        function.restype, function.argtypes = result, arguments
        found[dtype] = function
    return found


_MOVE, _MOVE_FUNCTION, _GRID, _HAS_ZERO = (_of_both_types(*each) for each in _SIGNATURES)


def move(values: Tensor, seed: int, keep: Keep = False) -> None:
    """Move the last bits of values in place: up, down or not at all.

    Args:
        values: float32 or float64; zeros and what is not finite stay.
        seed: of the way in which they were computed, 31 bits.
        keep: which of them stay.
    """
    if keep is True:
        return
    whole = values.contiguous()
    marked = None if keep is False else keep.contiguous()
    place = None if marked is None else marked.data_ptr()
    _MOVE[values.dtype](whole.data_ptr(), whole.numel(), seed, place)
    _put_back(values, whole)


def move_function(values: Tensor, seed: int, operands: list[Tensor]) -> None:
    """Move results of a function in place, but small whole numbers and what an operand is there.

    Args:
        values: the results, float32 or float64.
        seed: of the way in which they were computed, 31 bits.
        operands: of the function.
    """
    whole = values.contiguous()
    alike = [
        operand.contiguous()
        for operand in operands
        if operand.shape == values.shape and operand.data_ptr() != values.data_ptr()
        if operand.dtype == values.dtype
    ]
    places = (ctypes.c_void_p * len(alike))(*[operand.data_ptr() for operand in alike])
    _MOVE_FUNCTION[values.dtype](whole.data_ptr(), whole.numel(), seed, places, len(alike))
    _put_back(values, whole)


def _put_back(values: Tensor, whole: Tensor) -> None:
    if whole is not values and whole.data_ptr() != values.data_ptr():
        values.detach().copy_(whole.detach())


def seed_of(name: str, operands: list[Tensor]) -> int:
    """What is the same for calls that are alike, in every process.

    Args:
        name: of the operation.
        operands: of which the shapes count.
    """
    shapes = (name, *[operand.shape for operand in operands])
    if (seed := _seeds.get(shapes)) is None:
        text = f"{name} {[tuple(operand.shape) for operand in operands]}"
        seed = _seeds[shapes] = zlib.crc32(text.encode()) >> 1
    return seed


_seeds: dict[Any, int] = {}


def same_in_any_order(
    run: Callable[..., Any],
    given: Any,
    options: Any,
    most: int,
    operands: list[Tensor],
    seed: int,
) -> Keep:
    """Which sums come out alike in whatever order they are added.

    They do where everything is a multiple of a power of two that is not too small, and where there
    are few terms: their number is what the operation gives for operands that are 1 where they are
    not 0.

    Args:
        run: the operation.
        given: its arguments.
        options: and those with names.
        most: terms that have no order.
        operands: tensors with a fraction among the arguments.
        seed: of the operation and the operands' shapes.
    """
    if not operands or operands[0].dtype not in _BITS:
        return True
    if options.get("beta") == 0:  # what is added is not read, and may never have been written
        operands = operands[1:]
    grid = math.prod(map(_grid, operands))
    if grid:
        grid *= math.prod(_grid_of(float(options[o])) for o in _SCALES if o in options)
    if grid:
        largest = _on_others(run, given, options, torch.abs)
        if not largest.numel() or float(largest.max()) / grid <= 2.0 ** _BITS[operands[0].dtype]:
            return True
    full = not any(map(_has_zero, operands))
    if full and (several := _several.get(form := _form(given, options, seed))):
        return False
    few = _on_others(run, given, options, _is_there) < most + 0.5
    if full and several is None and form is not None:
        _several[form] = not bool(few.any())
    return few


_several: dict[Any, bool] = {}
"""Whether all results of an operation have several terms, where no operand is 0, by its form."""


def _form(given: Any, options: Any, seed: int) -> Any:
    """What the number of terms depends on where no operand is 0; None where it is in indices."""
    rest = []
    for part in (*given, *options.values()):
        if not isinstance(part, Tensor):
            rest.append(str(part))
        elif not part.is_floating_point():
            return None
    return seed, *rest


def _grid(operand: Tensor) -> float:
    """Largest power of two up to 1 of which all are multiples; 0 where it is less than 2^-10."""
    whole = operand.contiguous()
    return float(_GRID[operand.dtype](whole.data_ptr(), whole.numel()))


def _grid_of(number: float) -> float:
    return _grid(torch.tensor(number, dtype=torch.float64))


def _has_zero(operand: Tensor) -> bool:
    whole = operand.contiguous()
    return bool(_HAS_ZERO[operand.dtype](whole.data_ptr(), whole.numel()))


def _floats(parts: Any) -> list[Tensor]:
    return [part for part in parts if isinstance(part, Tensor) and part.dtype in _BITS]


_SCALES = ("alpha", "beta", "value")


def _is_there(values: Tensor) -> Tensor:
    return (values.abs() > 1e-37).to(values.dtype)  # as in last_bits.c


def _on_others(
    run: Callable[..., Any], given: Any, options: Any, change: Callable[[Tensor], Tensor]
) -> Tensor:
    """Run an operation on changed copies of its operands."""

    def changed(part: Any) -> Any:
        return (
            change(part.detach()) if isinstance(part, Tensor) and part.is_floating_point() else part
        )

    others = {name: changed(part) for name, part in options.items()}
    for name in _SCALES:
        if name in others:
            others[name] = change(torch.tensor(float(others[name]))).item()
    if "out" in others:
        others["out"] = others["out"].new_empty(0)
    found: Tensor = run(*map(changed, given), **others)
    return found


def _as_tensors(given: Any, places: list[int]) -> Any:
    """Make tensors of numbers, as they come in the place of one, which promote no other."""
    like = next(part for part in given if isinstance(part, Tensor))
    return [
        torch.tensor(part, dtype=torch.result_type(like, part))
        if number in places and isinstance(part, int | float | complex)
        else part
        for number, part in enumerate(given)
    ]


def _stays(name: str, given: Any, options: dict[str, Any]) -> bool:
    """Whether an operation is rounded once, or not at all, on every processor."""
    if name in ("add", "add_", "sub", "sub_"):
        return math.frexp(float(options.get("alpha", 1)))[0] in (0.5, -0.5)
    if name in ("pow", "pow_"):
        return given[1] in _SIMPLE if isinstance(given[1], int | float) else False
    if name == "_index_put_impl_":
        return len(given) < 4 or not given[3]
    if name in ("linalg_vector_norm", "norm"):
        return len(given) > 1 and given[1] in (0, math.inf, -math.inf)
    return False


def _kernel(overload: str, name: str, most: int | None) -> Callable[..., Any]:
    """The kernel of the played processor for one operation."""
    original = torch.library.get_kernel(overload, "CPU")
    schema = torch._C._get_schema(*(overload.split(".") if "." in overload else (overload, "")))
    tensors = [number for number, part in enumerate(schema.arguments) if str(part.type) == "Tensor"]

    def kernel(keys: Any, *given: Any, **options: Any) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            return original.call_boxed(keys, *args, **named)

        if any(not isinstance(given[n], Tensor) for n in tensors if n < len(given)):
            given = _as_tensors(given, tensors)
        if _stays(name, given, options):
            return run(*given, **options)
        operands = _floats(given) + _floats(options[o] for o in options if o != "out")
        seed = seed_of(name, operands)
        keep = most is not None and same_in_any_order(run, given, options, most, operands, seed)
        result = run(*given, **options)
        for part in _floats(result if isinstance(result, tuple | list) else (result,)):
            if most is None:
                move_function(part, seed, operands)
            else:
                move(part, seed, keep)
        return result

    return kernel


def play() -> None:
    """Play the processor from now on, in all threads of this process; once."""
    if _registered:
        return
    library = torch.library.Library("aten", "IMPL")
    _registered.append(library)
    known = torch._C._dispatch_get_all_op_names()
    own = [op for op in known if torch._C._dispatch_has_kernel_for_dispatch_key(op, "CPU")]
    composed = ["aten::convolution", "aten::convolution_backward", "aten::embedding_dense_backward"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of every kernel that is replaced
        for names, most in ((PRODUCTS, 1), (SUMS, 2), (FUNCTIONS, None)):
            chosen = set(names.split())
            for overload in sorted({*own, *composed}):
                name = overload.removeprefix("aten::").split(".")[0]
                if overload.startswith("aten::") and name in chosen:
                    kernel = _kernel(overload, name, most)
                    library.impl(
                        overload.removeprefix("aten::"),
                        kernel,
                        "CPU",
                        with_keyset=True,
                        allow_override=True,
                    )
