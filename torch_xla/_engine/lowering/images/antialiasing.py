"""Resize images with antialiasing: each pixel averages over all that it covers; and its gradient.

Rows and columns are resized one after the other, each by a matrix of weights that the sizes alone determine.
"""

from collections.abc import Callable, Sequence
from math import pi, sin

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.opmath import widened
from ..machinery.registry import lowers

aten = torch.ops.aten

_Kernel = Callable[[float], float]


def _triangle(x: float) -> float:
    return max(1 - abs(x), 0.0)


def _cubic(x: float) -> float:
    # With antialiasing PyTorch's free parameter is -1/2, without it is -3/4.
    a, x = -0.5, abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _lanczos(x: float) -> float:
    if x == 0:
        return 1.0
    return 3 * sin(pi * x) * sin(pi * x / 3) / (pi * x) ** 2 if abs(x) < 3 else 0.0


def _matrix(
    kernel: _Kernel, reach: int, inputs: int, outputs: int, align_corners: bool, scale: float | None
) -> np.ndarray:
    """Return the weights `(outputs, inputs)`; for a growing image, `reach` is the kernel's extent to each side."""
    if align_corners:
        step = (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
    else:
        step = 1 / scale if scale is not None and scale > 0 else inputs / outputs
    stretch = max(step, 1.0)
    matrix = np.zeros((outputs, inputs))
    for row in range(outputs):
        # Aligned corners change the step alone: the centres stay those of pixels that are areas.
        centre = step * (row + 0.5)
        first = max(int(centre - reach * stretch + 0.5), 0)
        last = min(int(centre + reach * stretch + 0.5), inputs)
        weights = np.array([kernel((pixel - centre + 0.5) / stretch) for pixel in range(first, last)])
        matrix[row, first:last] = weights / weights.sum() if weights.any() else weights
    return matrix


def _along(operand: jax.Array, matrix: np.ndarray, dim: int) -> jax.Array:
    """Multiply the matrix's rows with one dimension of the operand."""
    product = lax.dot_general(
        operand, jnp.asarray(matrix, operand.dtype), (((dim,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
    )
    return jnp.moveaxis(product, -1, dim)


def bytes_along(operand: jax.Array, matrix: np.ndarray, dim: int) -> jax.Array:
    """Multiply the rows with one dimension in PyTorch's arithmetic for bytes: weights of 16 bits, rounded sums.

    The operand holds bytes in float32, which is exact: no sum reaches 2²⁴.
    """
    bits = next((bits for bits in range(22) if int(0.5 + matrix.max() * 2 ** (bits + 1)) >= 2**15), 22)
    weights = np.trunc(matrix * 2**bits + np.copysign(0.5, matrix))
    sums = _along(operand, weights, dim)
    return jnp.clip(lax.floor((sums + 2 ** (bits - 1)) * 2.0**-bits), 0, 255)


def refuse_whole_numbers(operand: jax.Array) -> None:
    """Raise `TypeError` for integers other than bytes: no device of PyTorch defines the rounding of their mixtures."""
    if operand.dtype != np.uint8 and not jnp.issubdtype(operand.dtype, jnp.floating):
        raise TypeError(f"pixels of {operand.dtype} cannot be mixed")


def _forward(kernel: _Kernel, reach: int) -> Callable[..., jax.Array]:
    def lower(
        self: jax.Array,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> jax.Array:
        if list(self.shape[2:]) != list(output_size):
            refuse_whole_numbers(self)
        whole = self.dtype == np.uint8
        result = self.astype(np.float32) if whole else widened(self)
        for dim, scale in ((3, scales_w), (2, scales_h)):
            outputs = output_size[dim - 2]
            if outputs == self.shape[dim]:
                continue  # whatever the scale says; PyTorch's backward does not do so
            matrix = _matrix(kernel, reach, self.shape[dim], outputs, align_corners, scale)
            result = (bytes_along if whole else _along)(result, matrix, dim)
        return result

    return lower


def _backward(kernel: _Kernel, reach: int) -> Callable[..., jax.Array]:
    def lower(
        grad_output: jax.Array,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> jax.Array:
        result = widened(grad_output)
        for dim, scale in ((3, scales_w), (2, scales_h)):
            outputs = output_size[dim - 2]
            result = _along(result, _matrix(kernel, reach, input_size[dim], outputs, align_corners, scale).T, dim)
        return result

    return lower


for _name, _kernel, _reach in (("bilinear", _triangle, 1), ("bicubic", _cubic, 2), ("lanczos", _lanczos, 3)):
    # Lanczos is newer than PyTorch 2.11.
    if hasattr(aten, f"_upsample_{_name}2d_aa"):
        lowers(getattr(aten, f"_upsample_{_name}2d_aa").default)(_forward(_kernel, _reach))
        lowers(getattr(aten, f"_upsample_{_name}2d_aa_backward").default)(_backward(_kernel, _reach))
