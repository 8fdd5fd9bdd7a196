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

import math
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Keep = NDArray[np.bool_] | bool
"""Which elements of a result stay."""

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

_KINDS = {torch.float64: (np.int64, 53), torch.float32: (np.int32, 24)}
"""Types that are moved: integers of their size, and the bits of their fraction."""

_SIMPLE = (-2, -1, -0.5, 0, 0.5, 1, 2, 3)
"""Powers that are made of products and roots, which IEEE 754 rounds."""

_registered: list[torch.library.Library] = []


def move(values: Tensor, seed: int, keep: Keep = False) -> None:
    """Move the last bits of values in place: up, down or not at all.

    Args:
        values: numbers; zeros and what is not finite stay, and so does what has no fraction.
        seed: of the way in which they were computed, 31 bits.
        keep: which of them stay.
    """
    if keep is True or values.dtype not in _KINDS:
        return
    numbers = np.atleast_1d(values.detach().numpy())
    whole = _KINDS[values.dtype][0]
    bits = numbers.view(whole)
    half = bits.itemsize * 4 - 1
    hashed = bits * whole(0x5851F42D) + whole(seed)
    hashed ^= hashed >> whole(half)
    hashed *= whole(0x2545F491)
    hashed ^= hashed >> whole(half + 2)
    hashed *= whole(0x5851F42D)
    last = whole(bits.itemsize * 8 - 1)
    step = hashed >> last | hashed >> (last - whole(2)) & whole(1)  # half go down, a fourth up
    size = np.abs(numbers)
    step *= (size > _LEAST) & (size < _MOST)
    if keep is not False:
        step *= ~keep
    bits += step


_LEAST, _MOST = 1e-37, 1e38


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


def same_in_any_order(run: Callable[..., Any], given: Any, options: Any, most: int) -> Keep:
    """Which sums come out alike in whatever order they are added.

    They do where everything is a multiple of a power of two that is not too small, and where there
    are few terms: their number is what the operation gives for operands that are 1 where they are
    not 0.

    Args:
        run: the operation.
        given: its arguments.
        options: and those with names.
        most: terms that have no order.
    """
    operands = _floats(given) + _floats(options[o] for o in options if o != "out")
    if not operands or operands[0].dtype not in _KINDS:
        return True
    arrays = [operand.detach().numpy() for operand in operands]
    grid = math.prod(map(_grid, arrays))
    if grid:
        grid *= math.prod(_grid(np.array(float(options[o]))) for o in _SCALES if o in options)
    if grid:
        largest = _on_others(run, given, options, torch.abs)
        if (
            not largest.numel()
            or float(largest.max()) / grid <= 2.0 ** _KINDS[operands[0].dtype][1]
        ):
            return True
    full = all(np.count_nonzero(array) == array.size for array in arrays)
    if full and (len(arrays) > 1 or arrays[0].size > _FEW):
        return False
    return (_on_others(run, given, options, _is_there) < most + 0.5).numpy()


_FEW = 256


def same_as_given(result: Tensor, operands: list[Tensor]) -> Keep:
    """Which results are small whole numbers, or what an operand is there.

    Args:
        result: of a function.
        operands: of it.
    """
    found = result.detach().numpy()
    keep = found == np.rint(found)
    for operand in operands:
        if operand.shape == result.shape and operand.data_ptr() != result.data_ptr():
            keep |= found == operand.detach().numpy()
    return keep & (np.abs(found) < 1 << 16) if keep.any() else False


def _floats(parts: Any) -> list[Tensor]:
    return [part for part in parts if isinstance(part, Tensor) and part.dtype in _KINDS]


_SCALES = ("alpha", "beta", "value")


def _is_there(values: Tensor) -> Tensor:
    return (values != 0).to(values.dtype)


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


def _grid(array: Any) -> float:
    """Largest power of two up to 1 of which all are multiples; 0 where it is less than 2^-10."""
    if any(number * 1024 % 1 for number in array.flat[:4].tolist()):
        return 0.0
    for step in (1.0, 2.0**-4, 2.0**-10):
        scaled = array / step
        if (scaled == np.rint(scaled)).all():
            return step
    return 0.0


def _as_tensors(given: Any, places: list[int]) -> Any:
    """Make tensors of numbers, as they come in the place of one, which promote no other."""
    like = next(part for part in given if isinstance(part, Tensor))
    return [
        torch.tensor(part, dtype=torch.result_type(like, part))
        if number in places and isinstance(part, int | float)
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

        if any(n < len(given) and not isinstance(given[n], Tensor) for n in tensors):
            given = _as_tensors(given, tensors)
        if _stays(name, given, options):
            return run(*given, **options)
        operands = _floats(given) + _floats(options[o] for o in options if o != "out")
        seed = seed_of(name, operands)
        keep = False if most is None else same_in_any_order(run, given, options, most)
        result = run(*given, **options)
        for part in result if isinstance(result, tuple | list) else (result,):
            if part.dtype in _KINDS:
                move(part, seed, same_as_given(part, operands) if most is None else keep)
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
