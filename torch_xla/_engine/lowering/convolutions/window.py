"""The window of a convolution or pooling: extent, strides and padding in every spatial dimension."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..machinery.jax_sharding import spaced


@dataclass(frozen=True, slots=True)
class Window:
    """One number per spatial dimension in each field; `padding` may be negative, which crops."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]  # the distance of the kernel's elements
    base: tuple[int, ...]  # the distance of the operand's elements: between them are zeros

    def fields(self) -> tuple[Any, ...]:
        """Return the fields in order, to take apart by dimensions."""
        return self.kernel, self.stride, self.padding, self.dilation, self.base

    def positions(self, extent: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of positions of the window in an operand of this extent."""
        return tuple(
            ((base * (size - 1) + 1 if size else 0) + sum(margins) - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, margins, dilation, base in zip(
                extent, self.kernel, self.stride, self.padding, self.dilation, self.base, strict=True
            )
        )

    def fitted(self, extent: tuple[int, ...], positions: tuple[int, ...]) -> "Window":
        """Return this window with the trailing padding for `positions` windows in an operand of `extent`."""
        padding = tuple(
            (low, (count - 1) * stride + dilation * (kernel - 1) + 1 - base * (size - 1) - 1 - low)
            for size, count, kernel, stride, (low, _), dilation, base in zip(
                extent, positions, self.kernel, self.stride, self.padding, self.dilation, self.base, strict=True
            )
        )
        return replace(self, padding=padding)

    def reverse(self) -> "Window":
        """Return the window that leads from the result back to the operand, with a flipped kernel."""
        padding = tuple(
            (dilation * (kernel - 1) - low, dilation * (kernel - 1) - high)
            for kernel, (low, high), dilation in zip(self.kernel, self.padding, self.dilation, strict=True)
        )
        return Window(self.kernel, self.base, padding, self.dilation, self.stride)

    def convolve(self, operand: jax.Array, kernel: jax.Array, groups: int) -> jax.Array:
        """Convolve by XLA's own operation, which it lacks for 64-bit integers on a TPU."""
        spatial = "DHW"[-len(self.kernel) :]

        def at_once(operand: jax.Array, kernel: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(
                operand,
                kernel,
                self.stride,
                self.padding,
                lhs_dilation=self.base,
                rhs_dilation=self.dilation,
                dimension_numbers=("NC" + spatial, "OI" + spatial, "NC" + spatial),
                feature_group_count=groups,
            )

        if operand.dtype not in (np.int64, np.uint64):
            return at_once(operand, kernel)
        products: jax.Array = lax.platform_dependent(
            operand, kernel, tpu=partial(self._products_and_sums, groups), default=at_once
        )
        return products

    def _products_and_sums(self, groups: int, operand: jax.Array, kernel: jax.Array) -> jax.Array:
        """Add up, for each element of the kernel, its products with what it meets."""
        (outputs, inputs), positions = kernel.shape[:2], self.positions(operand.shape[2:])
        batch, ones = operand.shape[0], (1,) * len(positions)
        total = jnp.zeros((batch, groups, outputs // groups, *positions), operand.dtype)
        elements = product(*map(range, self.kernel))
        for element, met in zip(elements, self.shifts(self.padded(operand), positions), strict=True):
            factor = kernel[:, :, *element].reshape(1, groups, outputs // groups, inputs, *ones)
            total += (met.reshape(batch, groups, 1, inputs, *positions) * factor).sum(3)
        return total.reshape(batch, outputs, *positions)

    def padded(self, operand: jax.Array) -> jax.Array:
        """Return the operand with its margins, and with the zeros between its elements."""
        config = [(low, high, base - 1) for (low, high), base in zip(self.padding, self.base, strict=True)]
        if not any(map(any, config)):
            return operand
        return with_zeros(operand, [(0, 0, 0)] * (operand.ndim - len(config)) + config)

    def shifts(self, padded: jax.Array, positions: tuple[int, ...]) -> Iterator[jax.Array]:
        """Yield, for each element of the kernel, the elements of a padded operand that it is multiplied with."""
        leading = padded.shape[: padded.ndim - len(positions)]
        for element in product(*map(range, self.kernel)):
            start = [index * dilation for index, dilation in zip(element, self.dilation, strict=True)]
            stop = [
                first + (count - 1) * stride + 1
                for first, count, stride in zip(start, positions, self.stride, strict=True)
            ]
            yield lax.slice(
                padded, [0] * len(leading) + start, [*leading, *stop], [1] * len(leading) + list(self.stride)
            )


def with_zeros(array: jax.Array, margins: Sequence[tuple[int, int, int]]) -> jax.Array:
    """Insert zeros before, after and between the elements of `array`; negative margins cut elements off.

    Elements are moved apart before the leading ones are cut off: doing both at once crashes XLA's partitioner.
    """
    cut = [-low if low < 0 < between else 0 for low, _, between in margins]
    config = [(low + gone, high, between) for (low, high, between), gone in zip(margins, cut, strict=True)]
    apart = spaced(array, jnp.zeros((), array.dtype), config)
    return lax.slice(apart, cut, apart.shape) if any(cut) else apart
