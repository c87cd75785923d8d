"""Count the multiplications of a convolution, as XLA's text describes it.

Compilers write matrix products as convolutions, too: a batch becomes a spatial dimension whose window is as large as
the batch and hangs out of the input on all sides but one. Only positions inside of the input count, and between the
elements of a dilated input there is none.
"""

import functools
import re
from dataclasses import dataclass

import numpy as np

from .hlo_parser import Leaf

_LABELS = re.compile(r"dim_labels=([0-9a-z?]+)_([0-9a-z?]+)->([0-9a-z?]+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_BATCH, _FEATURE = "b", "f"


@dataclass(frozen=True, slots=True)
class _Side:
    """One spatial dimension of a window."""

    stride: int
    low: int  # padding before the first element
    input_dilation: int
    kernel_dilation: int


def flops(attributes: str, left: Leaf, right: Leaf, given: Leaf) -> float:
    """Return the FLOPs of a convolution of `left` with the kernel `right`, whose result is `given`."""
    labels = _LABELS.search(attributes)
    if labels is None:
        return 0.0
    of_input, of_kernel, of_output = labels[1], labels[2], labels[3]
    sides = _sides(attributes, sum(label.isdigit() for label in of_kernel))
    products = left.dims[of_input.index(_FEATURE)] * given.dims[of_output.index(_FEATURE)]
    products *= left.dims[of_input.index(_BATCH)]
    products //= _number("feature_group_count", attributes) * _number("batch_group_count", attributes)
    for number, side in enumerate(sides):
        label = str(number)
        sizes = (left.dims[of_input.index(label)], right.dims[of_kernel.index(label)])
        products *= _inside(*sizes, given.dims[of_output.index(label)], side)
    return 2.0 * products


def _number(name: str, attributes: str) -> int:
    found = re.search(rf"{name}=(\d+)", attributes)
    return int(found[1]) if found else 1


def _sides(attributes: str, count: int) -> list[_Side]:
    window = _WINDOW.search(attributes)
    parts = dict(part.split("=", 1) for part in window[1].split()) if window else {}

    def of(name: str) -> list[int]:
        return [int(each) for each in parts[name].split("x")] if name in parts else [1] * count

    lows = [int(each.split("_")[0]) for each in parts["pad"].split("x")] if "pad" in parts else [0] * count
    columns = (of("stride"), lows, of("lhs_dilate"), of("rhs_dilate"))
    return [_Side(*each) for each in zip(*columns, strict=True)]


@functools.lru_cache(1024)
def _inside(size: int, kernel: int, output: int, side: _Side) -> int:
    """Return how many pairs of an output and a place of the kernel meet an element of the input."""
    last = (size - 1) * side.input_dilation
    outputs = np.arange(output, dtype=np.int64) * side.stride - side.low
    kernels = np.arange(kernel, dtype=np.int64) * side.kernel_dilation
    few, many = sorted((outputs, kernels), key=len)
    count = 0
    for one in few:
        places = many + one
        count += int(((places >= 0) & (places <= last) & (places % side.input_dilation == 0)).sum())
    return count
