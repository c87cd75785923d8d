"""Resize images dimension by dimension, and the gradients of all modes.

To the nearest pixel, PyTorch's own decompositions index only the pixels they need. Backward would scatter; a product
with the small matrix of weights of each dimension is faster and has one form.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ..machinery.opmath import widened
from ..machinery.registry import lowers
from .antialiasing import bytes_along, refuse_whole_numbers

aten = torch.ops.aten

# The weights of all output pixels: pairs of an input pixel for each, and its weight. Takes NumPy, or JAX's where a size
# is known to a run alone, the positions of the output pixels and the number of input pixels.
_Weights = Callable[[Any, Any, Any], list[tuple[Any, Any]]]

_CUBIC = -0.75  # the free parameter of the cubic kernel, as PyTorch has it


def _step(inputs: int, outputs: int, align_corners: bool, scale: float | None) -> float:
    """Return the distance of two neighbouring output pixels, in input pixels."""
    if outputs == 0:
        raise ValueError("an image needs at least one pixel in each dimension")
    if align_corners:
        return (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else inputs / outputs


def _nearest(xp: Any, positions: Any, inputs: Any) -> list[tuple[Any, Any]]:
    return [(xp.minimum(xp.floor(positions).astype(int), inputs - 1), xp.ones_like(positions))]


def _linear(xp: Any, positions: Any, inputs: Any) -> list[tuple[Any, Any]]:
    positions = xp.maximum(positions, 0.0)
    low = xp.minimum(xp.floor(positions).astype(int), inputs - 1)
    part = xp.clip(positions - low, 0.0, 1.0)
    return [(low, 1 - part), (xp.minimum(low + 1, inputs - 1), part)]


def _cubic(xp: Any, positions: Any, inputs: Any) -> list[tuple[Any, Any]]:
    low = xp.floor(positions).astype(int)
    part = positions - low

    def near(x: Any) -> Any:
        return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC

    weights = (far(part + 1), near(part), near(1 - part), far(2 - part))
    return [(xp.clip(low - 1 + i, 0, inputs - 1), weight) for i, weight in enumerate(weights)]


def _matrix(weights: _Weights, positions: np.ndarray, inputs: int) -> np.ndarray:
    """Return the matrix (outputs, inputs) of one dimension."""
    matrix = np.zeros((len(positions), inputs))
    for columns, parts in weights(np, positions, inputs):
        np.add.at(matrix, (np.arange(len(positions)), columns), parts)
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
            positions = (np.arange(outputs, dtype=real) + real(offset)) * step
            return _matrix(_nearest, positions.astype(np.float64), inputs)

        return _gathered(grad_output, input_size, matrices)

    return lower


def _positions(inputs: int, outputs: int, align_corners: bool, scale: float | None, real: type) -> np.ndarray:
    """Return the positions of the output pixels, in input pixels."""
    step = real(_step(inputs, outputs, align_corners, scale))
    offset = real(0.0 if align_corners else 0.5)
    positions: np.ndarray = step * (np.arange(outputs, dtype=real) + offset) - offset
    return positions.astype(np.float64)


def _positions_of_a_run(
    inputs: object, outputs: object, align_corners: bool, scale: float | None, real: type
) -> jax.Array:
    """Return the same where a size is known to a run alone."""
    offset = 0.0 if align_corners else 0.5
    count, known = jnp.asarray(outputs, real), jnp.asarray(inputs, real)
    if align_corners:
        step = jnp.where(count > 1, (known - 1) / jnp.maximum(count - 1, 1), 0)
    else:
        step = jnp.asarray(1 / scale, real) if scale is not None and scale > 0 else known / count
    return step * (jnp.arange(outputs, dtype=real) + offset) - offset


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
            scale = scales[dim - 2] if scales else None
            if any(map(jax.export.is_symbolic_dim, (inputs, outputs))):
                if whole:
                    raise NotImplementedError(
                        "images of bytes are resized with weights rounded for their size, which must be known: "
                        "leave the height and the width fixed, or resize x.float()"
                    )
                places = _positions_of_a_run(inputs, outputs, align_corners, scale, real)
                x = _mixed(x, weights(jnp, places, jnp.asarray(inputs)), dim)
                continue
            if _is_as_it_is(weights, inputs, outputs):
                continue
            positions = _positions(inputs, outputs, align_corners, scale, real)
            if not whole:
                x = _mixed(x, weights(np, positions, inputs), dim)
            elif inputs != outputs:
                x = bytes_along(x, _matrix(weights, positions, inputs), dim)
        return x

    return lower


def _is_as_it_is(weights: _Weights, inputs: int, outputs: int) -> bool:
    """Return whether a dimension keeps its pixels, whatever scale is given: PyTorch looks at the sizes first."""
    return weights is _linear and inputs == outputs


def _mixed(x: jax.Array, pixels: list[tuple[Any, Any]], dim: int) -> jax.Array:
    """Return for each output pixel, the sum of its input pixels with their weights."""
    total = jnp.zeros((), x.dtype)
    for columns, weights in pixels:
        shape = [weights.shape[0] if d == dim else 1 for d in range(x.ndim)]
        total = total + jnp.take(x, columns, dim) * weights.astype(x.dtype).reshape(shape)
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
            scale = scales[dim] if scales and not _is_as_it_is(weights, inputs, outputs) else None
            return _matrix(weights, _positions(inputs, outputs, align_corners, scale, real), inputs)

        return _gathered(grad_output, input_size, matrices)

    return lower


def _with_named_scales(lower: Callable[..., jax.Array], names: tuple[str, ...]) -> Callable[..., jax.Array]:
    """Return a rule whose scales may have names, and may be left out from the last one on."""
    before = lower.__code__.co_argcount

    def rule(*args: object, **kwargs: object) -> jax.Array:
        rest = names[len(args) - before :] if len(args) >= before else ()
        return lower(*args, *(kwargs.pop(name, None) for name in rest), **kwargs)

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
