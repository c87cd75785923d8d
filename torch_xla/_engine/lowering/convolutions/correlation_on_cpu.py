"""Faster forms of convolutions on the CPU. Every constant and choice below was measured against alternatives.

XLA:CPU has one good convolution: two spatial dimensions, one group, and enough output channels or columns to share
among threads. Everything else is led back to that one, or to matrix products:

- kernels of one element are matrix products of the images in their memory order (no transposes);
- kernels that never overlap are kernels of one element on rearranged images;
- depthwise kernels are sums of shifted products; other groups are joined to dense blocks of at least 32 channels;
- three dimensions become two, with the kernel's depth among the channels;
- images of few columns and outputs are placed side by side, because XLA divides only columns and output channels among
  threads;
- gradients of the operand, for few positions, are matrix products whose columns are added up (col2im);
- kernel gradients are matrix products with the operand's columns (im2col), a few images at a time.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from itertools import chain
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..machinery.barrier import apart
from .window import Window, with_zeros

_Form = Callable[[jax.Array, jax.Array], jax.Array]
_Shape = tuple[int, ...]

# Unrolled over the elements of the kernel; larger kernels would make programs that take long to compile.
_MOST_UNROLLED = 64
_LARGE_KERNEL = 27
# From this number of positions on, one product per image is as fast as one for the batch, and needs no transposes.
_POSITIONS_PER_PRODUCT = 128
# Of small images XLA's convolution takes up to a hundred times as long as a matrix product with their columns.
_FEW_POSITIONS = 16
# Kernel gradients sum over the positions: these many make a product efficient.
_POSITIONS_PER_STEP = 1024
# With fewer columns and fewer output channels, XLA gives all the work to one thread.
_SHARED_COLUMNS = 128
_SHARED_OUTPUTS = 96
_TRANSPOSED_CHANNELS = 16
# Below this many multiplications threads do not pay.
_WORTH_THREADS = 1 << 24
_DENSE_CHANNELS = 32
# The useful columns are the diagonal of the product of all columns. Computing the rest pays off for at most this number
# of
# columns, if the product fits into the cache.
_DIAGONAL_COLUMNS = 16
_DIAGONAL_ELEMENTS = 1 << 20
_MOST_COLUMN_ELEMENTS = 1 << 26


def _are_known(sizes: _Shape) -> bool:
    """Return whether sizes are numbers, not symbols of an exported program."""
    return all(isinstance(size, int) for size in sizes)


def correlation_form(operand: _Shape, kernel: _Shape, window: Window, groups: int) -> _Form | None:
    """Return the form for these shapes, or `None` for XLA's own convolution."""
    if prod(window.kernel) == 1:
        return lambda x, k: _pointwise(x, k, window, groups)
    if not _are_known(operand[2:]):
        return None
    if groups == 1 and _never_overlaps(window):
        return lambda x, k: _patchwise(x, k, window)
    if groups == 1 and _spreads_out(window):
        return lambda x, k: _spread(x, k, window)
    if groups > 1 and kernel[1] == 1 and prod(window.kernel) <= _MOST_UNROLLED:
        return apart(lambda x, k: _depthwise(x, k, window))
    if len(window.kernel) == 3:
        return lambda x, k: _as_planes(x, k, window, groups)
    if groups > 1:
        return lambda x, k: _joined_groups(x, k, window, groups)
    if prod(window.kernel) <= _MOST_UNROLLED and prod(window.positions(operand[2:])) <= _FEW_POSITIONS:
        return lambda x, k: _by_columns(x, k, window)
    if _leaves_threads_idle(operand, kernel, window):
        return lambda x, k: _side_by_side(x, k, window)
    return None


def kernel_gradient_form(operand: _Shape, grad: _Shape, window: Window, groups: int) -> _Form | None:
    """Choose likewise the form of the gradient by the kernel."""
    if prod(window.kernel) == 1:
        return lambda x, g: _pointwise_gradient(x, g, window, groups)
    if not _are_known(operand[2:]):
        return None
    if prod(window.kernel) > _MOST_UNROLLED:
        return None
    if groups > 1 and operand[1] == groups:
        if _are_diagonals_worth_the_rest(operand, grad, window):
            return lambda x, g: _depthwise_gradient_by_diagonals(x, g, window)
        return lambda x, g: _depthwise_gradient(x, g, window)
    if len(window.kernel) == 3:
        return lambda x, g: _gradient_of_planes(x, g, window, groups)
    if operand[1] * prod(window.kernel) * prod(grad[2:]) > _MOST_COLUMN_ELEMENTS:
        return None
    return lambda x, g: _gradient_by_columns(x, g, window, groups)


def operand_gradient_form(grad: _Shape, window: Window, groups: int, extent: _Shape) -> _Form | None:
    """Choose likewise the form of the gradient by the operand, of extent `extent`; it takes gradient and kernel."""
    if not _are_known(extent):
        return None
    few = 1 < prod(window.kernel) <= _MOST_UNROLLED and prod(grad[2:]) <= _FEW_POSITIONS
    if groups == 1 and few and max(window.base) == 1:
        return lambda g, k: _operand_gradient_by_columns(g, k, window, extent)
    return None


def _correlate(operand: jax.Array, kernel: jax.Array, window: Window, groups: int) -> jax.Array:
    form = correlation_form(operand.shape, kernel.shape, window, groups)
    return form(operand, kernel) if form else window.convolve(operand, kernel, groups)


def _pointwise(operand: jax.Array, kernel: jax.Array, window: Window, groups: int) -> jax.Array:
    if max(window.stride) > 1:
        operand = _at_positions(operand, window)
    batch, inputs, *extent = operand.shape
    outputs, positions = kernel.shape[0], prod(extent)
    matrix = kernel.reshape(groups, outputs // groups, inputs // groups)
    if not _are_known(tuple(extent)) or positions >= _POSITIONS_PER_PRODUCT:
        rows = jnp.broadcast_to(matrix, (batch, *matrix.shape)).reshape(batch * groups, *matrix.shape[1:])
        columns = operand.reshape(batch * groups, inputs // groups, positions)
        result = _products(rows, columns, 2, 1)
    else:
        columns = operand.reshape(batch, groups, inputs // groups, positions).transpose(1, 2, 0, 3)
        result = _products(matrix, columns.reshape(groups, inputs // groups, batch * positions), 2, 1)
        result = result.reshape(outputs, batch, positions).transpose(1, 0, 2)
    result = result.reshape(batch, outputs, *extent)
    return result if max(window.stride) > 1 else window.padded(result)


def _pointwise_gradient(operand: jax.Array, grad: jax.Array, window: Window, groups: int) -> jax.Array:
    batch, outputs, *extent = grad.shape
    positions, inputs = prod(extent), operand.shape[1]
    operand = _at_positions(operand, window).reshape(batch * groups, inputs // groups, positions)
    grad = grad.reshape(batch * groups, outputs // groups, positions)
    if not _are_known(tuple(extent)) or positions >= _POSITIONS_PER_STEP:
        result = jnp.sum(_products(grad, operand, 2, 2).reshape(batch, groups, -1), 0)
    else:
        rows, columns = (
            array.reshape(batch, groups, -1, positions).transpose(1, 2, 0, 3).reshape(groups, -1, batch * positions)
            for array in (grad, operand)
        )
        result = _products(rows, columns, 2, 2)
    return result.reshape(outputs, inputs // groups, *window.kernel)


def _at_positions(operand: jax.Array, window: Window) -> jax.Array:
    """Return the elements of the operand that a kernel of one element reads."""
    padded = window.padded(operand)
    return next(window.shifts(padded, window.positions(operand.shape[2:])))


def _never_overlaps(window: Window) -> bool:
    no_margins = not any(map(any, window.padding))
    return window.kernel == window.stride and no_margins and max(window.dilation + window.base) == 1


def _patchwise(operand: jax.Array, kernel: jax.Array, window: Window) -> jax.Array:
    positions = window.positions(operand.shape[2:])
    cropped = operand[(..., *(slice(count * size) for count, size in zip(positions, window.kernel, strict=True)))]
    count = len(positions)
    split = cropped.reshape(*operand.shape[:2], *chain(*zip(positions, window.kernel, strict=True)))
    order = (0, 1, *range(3, 3 + 2 * count, 2), *range(2, 2 + 2 * count, 2))
    patches = split.transpose(order).reshape(operand.shape[0], -1, *positions)
    return _pointwise(patches, kernel.reshape(kernel.shape[0], -1, *[1] * count), _single(count), 1)


def _spreads_out(window: Window) -> bool:
    """Return whether every element makes a patch of the result, without overlaps: the reverse of `_patchwise`."""
    if window.kernel != window.base or max(window.dilation + window.stride) > 1:
        return False
    margins = zip(window.padding, window.kernel, strict=True)
    return all(low == size - 1 and high >= size - 1 for (low, high), size in margins)


def _spread(operand: jax.Array, kernel: jax.Array, window: Window) -> jax.Array:
    batch, inputs, *extent = operand.shape
    outputs, count = kernel.shape[0], len(extent)
    # The margins turn the kernel round: its last element meets the first element of a patch.
    flipped = lax.rev(kernel, range(2, kernel.ndim))
    rows = flipped.transpose(0, *range(2, kernel.ndim), 1).reshape(-1, inputs, *[1] * count)
    patches = _pointwise(operand, rows, _single(count), 1).reshape(batch, outputs, *window.kernel, *extent)
    order = (0, 1, *(dim for i in range(count) for dim in (2 + count + i, 2 + i)))
    whole = patches.transpose(order).reshape(
        batch, outputs, *(size * step for size, step in zip(extent, window.kernel, strict=True))
    )
    beyond = [(0, high - size + 1, 0) for (_, high), size in zip(window.padding, window.kernel, strict=True)]
    return lax.pad(whole, jnp.zeros((), whole.dtype), [(0, 0, 0)] * 2 + beyond)


def _single(count: int) -> Window:
    ones = (1,) * count
    return Window(ones, ones, ((0, 0),) * count, ones, ones)


def _depthwise(operand: jax.Array, kernel: jax.Array, window: Window) -> jax.Array:
    positions = window.positions(operand.shape[2:])
    operand = _for_each_output(operand, kernel.shape[0], 1)
    factors = kernel.reshape(kernel.shape[0], -1, *[1] * len(positions))
    shifts = enumerate(window.shifts(window.padded(operand), positions))
    total = reduce(jnp.add, (shift * factors[:, index] for index, shift in shifts))
    return total + jnp.zeros((), total.dtype)  # a sum of -0 is 0


def _for_each_output(operand: jax.Array, outputs: int, channels: int) -> jax.Array:
    """Repeat each channel of the operand, along the axis `channels`, for each output that reads it."""
    multiplier = outputs // operand.shape[channels]
    return jnp.repeat(operand, multiplier, channels) if multiplier > 1 else operand


def _are_diagonals_worth_the_rest(operand: _Shape, grad: _Shape, window: Window) -> bool:
    if not _are_known(grad) or grad[-1] > _DIAGONAL_COLUMNS:
        return False
    columns = operand[-1] * window.base[-1] + sum(window.padding[-1])
    return prod(grad[:-1]) * prod(window.kernel[:-1]) * columns <= _DIAGONAL_ELEMENTS


def _depthwise_gradient_by_diagonals(operand: jax.Array, grad: jax.Array, window: Window) -> jax.Array:
    """Return for each row of the kernel all columns of the operand by all of the gradient: an element is a diagonal's
    sum.
    """
    outputs, (*positions, columns) = grad.shape[1], grad.shape[2:]
    padded = window.padded(_for_each_output(operand, outputs, 1)).swapaxes(0, 1)
    seen = replace(window, kernel=(*window.kernel[:-1], 1), stride=(*window.stride[:-1], 1))
    shifts = list(seen.shifts(padded, (*positions, padded.shape[-1])))
    rows = jnp.moveaxis(jnp.stack(shifts, 1), -1, 2).reshape(outputs, len(shifts) * padded.shape[-1], -1)
    slopes = grad.swapaxes(0, 1).reshape(outputs, -1, columns)
    products = _products(rows, slopes, 2, 1).reshape(outputs, len(shifts), -1, columns)
    squares = _from(len(positions), window).shifts(products.swapaxes(2, 3), (columns,))
    on_diagonal = np.eye(columns, dtype=np.bool_)
    sums = [jnp.sum(square, (2, 3), where=on_diagonal) for square in squares]
    return jnp.stack(sums, 2).reshape(outputs, 1, *window.kernel)


def _depthwise_gradient(operand: jax.Array, grad: jax.Array, window: Window) -> jax.Array:
    outputs, positions = grad.shape[1], grad.shape[2:]

    def sums(padded: jax.Array, slopes: jax.Array, seen: Window) -> jax.Array:
        # All but the last dimension first: those sums run along the lanes of a vector.
        inner = range(1, len(positions))
        return jnp.stack([jnp.sum(shift * slopes, inner) for shift in seen.shifts(padded, positions)], 1)

    def by_rows(padded: jax.Array, slopes: jax.Array) -> jax.Array:
        # A large kernel, unrolled by one row only, compiles in half the time.
        seen = replace(window, kernel=(1, *window.kernel[1:]))
        reach = (positions[0] - 1) * window.stride[0] + 1

        def row(first: jax.Array) -> jax.Array:
            return sums(lax.dynamic_slice_in_dim(padded, first, reach, 1), slopes, seen)

        starts = window.dilation[0] * np.arange(window.kernel[0], dtype=np.int32)
        return lax.map(row, jnp.asarray(starts)).swapaxes(0, 1).reshape(outputs, -1, positions[-1])

    def step(total: jax.Array, image: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        one, slopes = image
        padded = window.padded(_for_each_output(one, outputs, 0))
        large = prod(window.kernel) > _LARGE_KERNEL and len(positions) > 1
        return total + (by_rows(padded, slopes) if large else sums(padded, slopes, window)), None

    # One image at a time stays in the cache for all elements of the kernel.
    none_yet = jnp.zeros((outputs, prod(window.kernel), positions[-1]), operand.dtype)
    total, _ = lax.scan(step, none_yet, (operand, grad))
    return jnp.sum(total, -1).reshape(outputs, 1, *window.kernel)


def _joined_groups(operand: jax.Array, kernel: jax.Array, window: Window, groups: int) -> jax.Array:
    outputs, inputs, *size = kernel.shape
    joined = 1
    while joined * inputs < _DENSE_CHANNELS and groups % (2 * joined) == 0:
        joined *= 2
    blocks = groups // joined
    own = jnp.eye(joined, dtype=kernel.dtype).reshape(1, joined, 1, joined, 1, *[1] * len(size))
    dense = kernel.reshape(blocks, joined, outputs // groups, 1, inputs, *size) * own
    dense = dense.reshape(blocks, outputs // blocks, joined * inputs, *size)
    parts = jnp.split(operand, blocks, 1)
    return jnp.concatenate([_correlate(part, block, window, 1) for part, block in zip(parts, dense, strict=True)], 1)


def _as_planes(operand: jax.Array, kernel: jax.Array, window: Window, groups: int) -> jax.Array:
    batch, outputs, depth = operand.shape[0], kernel.shape[0], window.positions(operand.shape[2:])[0]
    kernel = kernel.swapaxes(1, 2).reshape(outputs, -1, *window.kernel[1:])
    result = _correlate(_planes(operand, window, groups), kernel, _from(1, window), groups)
    return result.reshape(batch, depth, *result.shape[1:]).swapaxes(1, 2)


def _gradient_of_planes(operand: jax.Array, grad: jax.Array, window: Window, groups: int) -> jax.Array:
    outputs, inputs = grad.shape[1], operand.shape[1] // groups
    planes, flat = _planes(operand, window, groups), _from(1, window)
    grad = grad.swapaxes(1, 2).reshape(-1, outputs, *grad.shape[3:])
    form = kernel_gradient_form(planes.shape, grad.shape, flat, groups)
    gradient = form(planes, grad) if form else _gradient_by_columns(planes, grad, flat, groups)
    return gradient.reshape(outputs, window.kernel[0], inputs, *window.kernel[1:]).swapaxes(1, 2)


def _planes(operand: jax.Array, window: Window, groups: int) -> jax.Array:
    """Return for each position in depth an image, with what the kernel sees in depth among the channels of each
    group.
    """
    batch, inputs, _, height, width = operand.shape
    (kernel, *_), (stride, *_), (margins, *_), (dilation, *_), (base, *_) = window.fields()
    along = Window((kernel, 1), (stride, 1), (margins, (0, 0)), (dilation, 1), (base, 1))
    flat = operand.reshape(batch, groups, inputs // groups, -1, height * width)
    positions = along.positions(flat.shape[3:])
    seen = jnp.stack(list(along.shifts(along.padded(flat), positions)), 2)
    return seen.transpose(0, 4, 1, 2, 3, 5).reshape(batch * positions[0], -1, height, width)


def _from(dim: int, window: Window) -> Window:
    """Return the window in the dimensions from this one on."""
    return Window(*(field[dim:] for field in window.fields()))


def _leaves_threads_idle(operand: _Shape, kernel: _Shape, window: Window) -> bool:
    positions = window.positions(operand[2:])
    if len(positions) != 2 or max(window.base) > 1 or operand[0] == 1:
        return False
    if not all(isinstance(size, int) for size in (operand[0], *positions)):
        return False  # sizes that change: whether it would pay is not known
    narrow = kernel[0] < _SHARED_OUTPUTS and positions[1] < _SHARED_COLUMNS
    # Few input channels make the transposes dearer than the convolution.
    return narrow and operand[1] >= _TRANSPOSED_CHANNELS and operand[0] * prod(positions + kernel) >= _WORTH_THREADS


def _side_by_side(operand: jax.Array, kernel: jax.Array, window: Window) -> jax.Array:
    """Return the whole batch as one wide image, with the margins between the images."""
    batch, inputs, height, width = operand.shape
    columns, stride, (low, high) = window.positions(operand.shape[2:])[1], window.stride[1], window.padding[1]
    width += low + high
    margins = (low, high - width % -stride)  # so that the window meets each image at the same column
    width -= width % -stride
    between = replace(window, padding=((0, 0), margins)).padded(operand)
    wide = between.transpose(2, 0, 3, 1).reshape(1, height, batch * width, inputs)
    # Windows that cross from one image to the next give columns that are never read.
    rows, all_columns = window.positions(operand.shape[2:])[0], batch * width // stride
    padding = replace(window, padding=(window.padding[0], (0, 0))).fitted(wide.shape[1:3], (rows, all_columns)).padding
    result = lax.conv_general_dilated(
        wide,
        kernel.transpose(2, 3, 1, 0),
        window.stride,
        padding,
        rhs_dilation=window.dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return result.reshape(rows, batch, -1, kernel.shape[0])[:, :, :columns].transpose(1, 3, 0, 2)


def _by_columns(operand: jax.Array, kernel: jax.Array, window: Window) -> jax.Array:
    batch, outputs = operand.shape[0], kernel.shape[0]
    positions = window.positions(operand.shape[2:])
    padded = window.padded(jnp.swapaxes(operand, 0, 1))
    columns = jnp.stack(list(window.shifts(padded, positions)), 1).reshape(-1, batch * prod(positions))
    result = lax.dot_general(kernel.reshape(outputs, -1), columns, (((1,), (0,)), ((), ())))
    return jnp.swapaxes(result.reshape(outputs, batch, *positions), 0, 1)


def _operand_gradient_by_columns(grad: jax.Array, kernel: jax.Array, window: Window, extent: _Shape) -> jax.Array:
    # The reverse of `_by_columns`. The kernel, which is larger than such images, is used in its memory order.
    batch, outputs, *positions = grad.shape
    slopes = jnp.moveaxis(grad, 1, -1).reshape(-1, outputs)
    columns = lax.dot_general(slopes, kernel.reshape(outputs, -1), (((1,), (0,)), ((), ())))
    columns = columns.reshape(batch, *positions, kernel.shape[1], -1)
    total = jnp.zeros((batch, *extent, kernel.shape[1]), columns.dtype)
    for index, element in enumerate(np.ndindex(window.kernel)):
        margins = []
        for size, count, step, at, (before, _), spacing in zip(
            extent, positions, window.stride, element, window.padding, window.dilation, strict=True
        ):
            low, reach = at * spacing - before, (count - 1) * step + 1
            if not -reach < low < size:
                break  # all positions show the padding
            margins.append((low, size - low - reach, step - 1))
        else:
            total = total + with_zeros(columns[..., index], [(0, 0, 0), *margins, (0, 0, 0)])
    return jnp.moveaxis(total, -1, 1)


def _gradient_by_columns(operand: jax.Array, grad: jax.Array, window: Window, groups: int) -> jax.Array:
    if len(window.kernel) == 1:
        window = Window(*(((0, 0) if field is window.padding else 1, *field) for field in window.fields()))
        return _gradient_by_columns(operand[:, :, None], grad[:, :, None], window, groups)[:, :, 0]
    batch, outputs, height, width = grad.shape
    inputs, elements, count = operand.shape[1], prod(window.kernel), height * width
    images = next(n for n in range(1, batch + 1) if batch % n == 0 and (n * count >= _POSITIONS_PER_STEP or n == batch))
    rows = window.dilation[0] * np.arange(window.kernel[0])[:, None] + window.stride[0] * np.arange(height)
    along = _from(1, window)

    def step(some: jax.Array, slopes: jax.Array) -> jax.Array:
        # Rows are gathered and columns sliced: so it runs and compiles faster than with slices alone.
        seen = jnp.take(window.padded(some).transpose(1, 2, 0, 3), rows.astype(np.int32), 1, mode="clip")
        columns = jnp.stack(list(along.shifts(seen, (width,))), 2)
        columns = columns.reshape(groups, inputs // groups * elements, count * images)
        slopes = slopes.transpose(1, 2, 0, 3).reshape(groups, outputs // groups, count * images)
        return _products(slopes, columns, 2, 2)

    if images == batch:
        total = step(operand, grad)
    else:
        steps = tuple(array.reshape(batch // images, images, *array.shape[1:]) for array in (operand, grad))
        none_yet = jnp.zeros((groups, outputs // groups, inputs // groups * elements), operand.dtype)
        total, _ = lax.scan(lambda total, pair: (total + step(*pair), None), none_yet, steps)
    return total.reshape(outputs, inputs // groups, *window.kernel)


def _products(left: jax.Array, right: jax.Array, left_dim: int, right_dim: int) -> jax.Array:
    """Multiply matrices along the first dimension, contracting one dimension of each."""
    if left.shape[0] == 1:
        return lax.dot_general(left[0], right[0], (((left_dim - 1,), (right_dim - 1,)), ((), ())))[None]
    return lax.dot_general(left, right, (((left_dim,), (right_dim,)), ((0,), (0,))))
