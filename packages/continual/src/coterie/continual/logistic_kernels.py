"""Sigmoid and cross entropy of a batch, as a compiled loop that uses the width of the processor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coterie.core.kernels.compiled import compiled

_ONE, _TWO, _HALF = np.float32(1), np.float32(2), np.float32(0.5)
# exp(z) = 2^k exp(r): k to the nearest, r what is left, ln 2 in two parts so that r is exact.
_LOG2_E, _LN2_HIGH, _LN2_LOW = (np.float32(c) for c in (1.44269504, 0.693359375, -2.12194440e-4))
_LEAST = np.float32(-87.3)  # the smallest normal number is exp of that
_FAR = np.float32(88.7)  # torch's sigmoid is 0 below minus that
_E2, _E3, _E4, _E5, _E6, _E7 = (np.float32(1 / math.factorial(n)) for n in range(2, 8))
# log(1 + e) = 2 artanh(t), t = e / (2 + e) in [0, 1/3].
_T3, _T5, _T7, _T9, _T11, _T13 = (np.float32(2 / n) for n in (3, 5, 7, 9, 11, 13))


@compiled
def logistic(packed: Any, scores: Any, losses: Any, bits: Any) -> None:
    """Turn scores into ``sigmoid(score) - label``, and find the binary cross entropies.

    Args:
        packed: ``(s,)``, labels in the lowest bit.
        scores: ``(s,)`` or longer, is written to.
        losses: the same.
        bits: the same, int32.
    """
    if scores.itemsize == 4:
        _single(packed, scores, losses, bits)
    else:
        _double(packed, scores, losses)


@compiled
def _single(packed: Any, scores: Any, losses: Any, bits: Any) -> None:
    """In float32; the loops are apart so that each is one of simple steps."""
    powers = bits.view(np.float32)
    for n in range(packed.size):
        far = -abs(scores[n])
        z = _LEAST if far < _LEAST else far  # NaN stays
        k = np.floor(z * _LOG2_E + _HALF)
        r = (z - k * _LN2_HIGH) - k * _LN2_LOW
        p = _E4 + r * (_E5 + r * (_E6 + r * _E7))
        losses[n] = _ONE + r * (_ONE + r * (_E2 + r * (_E3 + r * p)))
        bits[n] = (np.int32(k) + np.int32(127)) << np.int32(23)  # 2^k
    for n in range(packed.size):
        score, label = scores[n], np.float32(packed[n] & 1)
        e = losses[n] * powers[n]
        if abs(score) > _FAR:
            e = np.float32(0)
        t = e / (_TWO + e)
        t2 = t * t
        log = t * (
            _TWO + t2 * (_T3 + t2 * (_T5 + t2 * (_T7 + t2 * (_T9 + t2 * (_T11 + t2 * _T13)))))
        )
        above = _ONE / (_ONE + e)
        missed = score - _TWO * score * label
        losses[n] = log + (missed if missed > 0 else missed * np.float32(0))
        scores[n] = (above if score >= 0 else e * above) - label


@compiled
def _double(packed: Any, scores: Any, losses: Any) -> None:
    for n in range(packed.size):
        score, label = scores[n], float(packed[n] & 1)
        e = math.exp(-abs(score))
        missed = score - 2.0 * score * label
        losses[n] = math.log1p(e) + (missed if missed > 0 else missed * 0.0)
        scores[n] = (1.0 if score >= 0 else e) / (1.0 + e) - label
