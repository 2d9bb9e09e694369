"""Casts and products that give the same numbers compiled and in Triton's CPU interpreter.

The interpreter truncates float32 to bfloat16, loses the carry into the exponent when it rounds to
e4m3, and multiplies bfloat16 matrices wrongly without an error. Where it runs, `cast` rounds to
the target's grid beforehand and `dot` multiplies in float32; compiled code has none of this.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Whether `@triton.jit` functions are interpreted in this process (decided when triton is imported).
IS_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

# 1.5 · 2^23: adding and subtracting it rounds a float32 to the nearest integer, ties to even.
ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def round_to_integer(x):
    """Nearest integer, ties to even, of a float32 below 2^22."""
    return (x + ROUNDER) - ROUNDER


@triton.jit
def cast(x, dtype: tl.constexpr):
    """`x` (float32) in `dtype`, rounded to nearest, ties to even."""
    if IS_INTERPRETED:
        if dtype == tl.bfloat16:
            x = _round_mantissa(x, 0.0, 0.0078125)  # 8 significant bits: quantum 2^(e-7)
        elif dtype == tl.float8e4nv:
            x = _round_mantissa(x, 0.015625, 0.125)  # 4 bits: 2^(e-3), subnormal below 2^-6
    return x.to(dtype)


@triton.jit
def _round_mantissa(x, smallest_power: tl.constexpr, ulp: tl.constexpr):
    """Round to a multiple of max(2^exponent(x), smallest_power) · ulp."""
    power = (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    quantum = tl.maximum(power, smallest_power) * ulp
    is_finite = (power < float("inf")) & (quantum > 0)
    safe = tl.where(is_finite, quantum, 1.0)
    return tl.where(is_finite, round_to_integer(x / safe) * safe, x)


@triton.jit
def dot(a, b, acc):
    """acc + a · b with a float32 accumulator, on the matrix unit of the operands' dtype."""
    if IS_INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc)
    else:
        return tl.dot(a, b, acc)
