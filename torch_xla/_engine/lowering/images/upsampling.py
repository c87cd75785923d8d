"""Resizing, dimension by dimension: between pixels, and the backward of all modes.

To the nearest pixel, PyTorch's own decompositions index only the pixels they need. Backward would scatter; a product
with the small matrix of weights of each dimension is faster and has one form.
"""

from collections.abc import Callable
from math import floor

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..opmath import widened
from ..registry import lowers
from .antialiasing import bytes_along, refuse_whole_numbers

aten = torch.ops.aten

# The weights of one output pixel: (input pixel, weight) pairs. Takes its position and the number of input pixels.
_Weights = Callable[[float, int], list[tuple[int, float]]]

_CUBIC = -0.75  # the free parameter of the cubic kernel, as PyTorch has it


def _step(inputs: int, outputs: int, align_corners: bool, scale: float | None) -> float:
    """How far apart two neighbouring output pixels lie, in input pixels."""
    if align_corners:
        return (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else inputs / outputs


def _nearest(position: float, inputs: int) -> list[tuple[int, float]]:
    return [(min(floor(position), inputs - 1), 1.0)]


def _linear(position: float, inputs: int) -> list[tuple[int, float]]:
    position = max(position, 0.0)
    low = min(floor(position), inputs - 1)
    part = min(max(position - low, 0.0), 1.0)
    return [(low, 1 - part), (min(low + 1, inputs - 1), part)]


def _cubic(position: float, inputs: int) -> list[tuple[int, float]]:
    low = floor(position)
    part = position - low

    def near(x: float) -> float:
        return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1

    def far(x: float) -> float:
        return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC

    weights = (far(part + 1), near(part), near(1 - part), far(2 - part))
    return [(min(max(low - 1 + i, 0), inputs - 1), weight) for i, weight in enumerate(weights)]


def _matrix(weights: _Weights, positions: list[float], inputs: int) -> np.ndarray:
    """The matrix (outputs, inputs) of one dimension."""
    matrix = np.zeros((len(positions), inputs))
    for row, position in enumerate(positions):
        for column, weight in weights(position, inputs):
            matrix[row, column] += weight
    return matrix


def _gathered(
    grad_output: jax.Array, input_size: list[int], matrices: Callable[[int, int, int, type], np.ndarray]
) -> jax.Array:
    x = widened(grad_output)
    # PyTorch finds the positions in the dtype it computes in; a float64 position may round to another pixel.
    real = np.float64 if x.dtype == np.float64 else np.float32
    for dim in range(2, len(input_size)):
        matrix = matrices(dim - 2, input_size[dim], grad_output.shape[dim], real)
        product = lax.dot_general(
            x, jnp.asarray(matrix, x.dtype), (((dim,), (0,)), ((), ())), precision=lax.Precision.HIGHEST
        )
        x = jnp.moveaxis(product, -1, dim)
    return x


def _nearest_backward(offset: float) -> Callable[..., jax.Array]:
    def lower(
        grad_output: jax.Array, output_size: list[int], input_size: list[int], *scales: float | None
    ) -> jax.Array:
        def matrices(dim: int, inputs: int, outputs: int, real: type) -> np.ndarray:
            step = real(_step(inputs, outputs, False, scales[dim] if scales else None))
            positions = [float((real(i) + real(offset)) * step) for i in range(outputs)]
            return _matrix(_nearest, positions, inputs)

        return _gathered(grad_output, input_size, matrices)

    return lower


def _positions(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> list[float]:
    """Where the output pixels lie among the input pixels."""
    step = real(_step(inputs, outputs, align_corners, scale))
    offset = real(0.0 if align_corners else 0.5)
    return [float(step * (real(i) + offset) - offset) for i in range(outputs)]


def _interpolated(weights: _Weights) -> Callable[..., jax.Array]:
    def lower(self: jax.Array, output_size: list[int], align_corners: bool, *scales: float | None) -> jax.Array:
        if 0 in self.shape[1:]:
            raise ValueError(f"images of the size {self.shape[1:]} have no pixels to mix")
        refuse_whole_numbers(self)
        whole = self.dtype == np.uint8
        x = self.astype(np.float32) if whole else widened(self)
        real = np.float64 if whole or x.dtype == np.float64 else np.float32
        for dim in reversed(range(2, self.ndim)):
            inputs, outputs = self.shape[dim], output_size[dim - 2]
            positions = _positions(inputs, outputs, align_corners, scales[dim - 2] if scales else None, real)
            if not whole:
                x = _mixed(x, [weights(position, inputs) for position in positions], dim)
            elif inputs != outputs:
                x = bytes_along(x, _matrix(weights, positions, inputs), dim)
        return x

    return lower


def _mixed(x: jax.Array, pixels: list[list[tuple[int, float]]], dim: int) -> jax.Array:
    """For each output pixel, the sum of its input pixels with their weights."""
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    total = jnp.zeros((), x.dtype)
    for parts in zip(*pixels, strict=True):
        columns, weights = zip(*parts, strict=True)
        total = total + jnp.take(x, np.array(columns), dim) * np.array(weights, x.dtype).reshape(shape)
    return total


def _interpolated_backward(weights: _Weights) -> Callable[..., jax.Array]:
    def lower(
        grad_output: jax.Array,
        output_size: list[int],
        input_size: list[int],
        align_corners: bool,
        *scales: float | None,
    ) -> jax.Array:
        def matrices(dim: int, inputs: int, outputs: int, real: type) -> np.ndarray:
            positions = _positions(inputs, outputs, align_corners, scales[dim] if scales else None, real)
            return _matrix(weights, positions, inputs)

        return _gathered(grad_output, input_size, matrices)

    return lower


def _with_named_scales(lower: Callable[..., jax.Array], names: tuple[str, ...]) -> Callable[..., jax.Array]:
    def rule(*args: object, **kwargs: object) -> jax.Array:
        scales = [kwargs.pop(name, None) for name in names if name in kwargs]
        return lower(*args, *scales, **kwargs)

    return rule


_SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}

for _dims, _names in _SCALES.items():
    lowers(getattr(aten, f"upsample_nearest{_dims}d_backward").default)(
        _with_named_scales(_nearest_backward(0.0), _names)
    )
    lowers(getattr(aten, f"_upsample_nearest_exact{_dims}d_backward").default)(
        _with_named_scales(_nearest_backward(0.5), _names)
    )
for _name, _weights, _dims in (
    ("linear1d", _linear, 1),
    ("bilinear2d", _linear, 2),
    ("trilinear3d", _linear, 3),
    ("bicubic2d", _cubic, 2),
):
    lowers(getattr(aten, f"upsample_{_name}_backward").default)(
        _with_named_scales(_interpolated_backward(_weights), _SCALES[_dims])
    )
    lowers(getattr(aten, f"upsample_{_name}").default)(_with_named_scales(_interpolated(_weights), _SCALES[_dims]))
