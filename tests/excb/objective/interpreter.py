"""Triton's interpreter with a true `dot`: its own multiplies bfloat16 as the integers that hold it."""

from typing import Any

import numpy as np
import torch


def correct() -> None:
    """Have the interpreter multiply bfloat16 as what it is, float32 as three products of TF32, and round to bfloat16.

    For a process of its own, with TRITON_INTERPRET=1.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def convert_float(data: Any, old: Any, new: Any, rounding: Any) -> Any:
        if (old, new) != (tl.float32, tl.bfloat16):
            return convert(data, old, new, rounding)
        rounded = torch.from_numpy(np.ascontiguousarray(data)).bfloat16()  # to the nearest, as on a GPU
        return rounded.view(torch.int16).numpy().view(np.uint16)

    def create_dot(_self: Any, a: Any, b: Any, sums: Any, precision: Any, _inexact: Any) -> Any:
        assert a.dtype == b.dtype
        if a.dtype.scalar == tl.bfloat16:
            product = _from_bfloat16(a.data) @ _from_bfloat16(b.data)
        else:
            assert a.dtype.scalar == tl.float32
            assert precision.name == "TF32x3"
            (a_high, a_low), (b_high, b_low) = _split(a.data), _split(b.data)
            product = a_low @ b_high + a_high @ b_low + a_high @ b_high
        return interpreter.TensorHandle(product + sums.data, sums.dtype.scalar)

    interpreter._convert_float = convert_float
    interpreter.InterpreterBuilder.create_dot = create_dot


def _from_bfloat16(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _split(numbers: Any) -> tuple[Any, Any]:
    """A float32 as the sum of two TF32: rounded by Triton (cvt.rna), and what is left, cut off by the matrix unit."""
    numbers = np.ascontiguousarray(numbers)
    high = _cut(numbers, rounding=0x1000)
    return high, _cut(numbers - high)


def _cut(numbers: Any, rounding: int = 0) -> Any:
    """The numbers with TF32's 10 bits of mantissa."""
    return (numbers.view(np.uint32) + np.uint32(rounding) & np.uint32(0xFFFFE000)).view(np.float32)
