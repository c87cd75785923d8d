"""Pooling, forward and backward. Windows are walked element by element, and XLA fuses the steps."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from ...compat.names import jax as private
from ..machinery.dims import module_for
from ..machinery.jax_sharding import zero_behind_ends
from ..machinery.opmath import widened
from ..machinery.registry import lowers
from .window import with_zeros

aten = torch.ops.aten

_Ints = tuple[int, ...]


class _Windows:
    """The positions of the windows of a pool, one number per spatial dimension in each field."""

    def __init__(
        self, size: _Ints, kernel: list[int], stride: list[int], padding: object, dilation: object, ceil_mode: bool
    ) -> None:
        dims = len(size)
        self.size = size
        self.kernel = _each(kernel, dims)
        self.stride = _each(stride, dims) if stride else self.kernel
        self.padding = _each(padding, dims)
        self.dilation = _each(dilation, dims)
        self.outputs = tuple(self._count(dim, ceil_mode) for dim in range(dims))

    def _count(self, dim: int, ceil_mode: bool) -> int:
        span = self.size[dim] + 2 * self.padding[dim] - self.dilation[dim] * (self.kernel[dim] - 1) - 1
        count = (-(-span // self.stride[dim]) if ceil_mode else span // self.stride[dim]) + 1
        # A last window that starts beyond the image and its left margin would show nothing.
        if ceil_mode and jax.export.is_symbolic_dim(count):
            return private.smaller_size(count, (self.size[dim] + self.padding[dim] - 1) // self.stride[dim] + 1)
        if ceil_mode and (count - 1) * self.stride[dim] >= self.size[dim] + self.padding[dim]:
            count -= 1
        return count

    def within(self) -> "_Windows":
        """Return the same windows, without the elements that are outside of the image in every window."""
        if not all(isinstance(size, int) for size in self.size):
            return self
        found = copy.copy(self)
        kernels, paddings = [], []
        fields = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, self.outputs, strict=True)
        for size, kernel, step, before, apart, outputs in fields:
            # The last window shows an element furthest behind the image's begin, the first furthest before its end.
            first = max(0, -(((outputs - 1) * step - before) // apart))
            end = min(kernel, (size + before - 1) // apart + 1)
            kernels.append(max(1, end - first))
            paddings.append(before - first * apart)
        found.kernel, found.padding = tuple(kernels), tuple(paddings)
        return found

    def reach(self, dim: int) -> int:
        """Return the number of elements that the windows span, from the left margin on."""
        return (self.outputs[dim] - 1) * self.stride[dim] + self.dilation[dim] * (self.kernel[dim] - 1) + 1

    def margins(self) -> list[tuple[int, int, int]]:
        """Return the padding (if negative, the cropping) with which the windows fill the image exactly."""
        return [
            (self.padding[dim], self.reach(dim) - self.size[dim] - self.padding[dim], 0)
            for dim in range(len(self.size))
        ]

    def fill_the_image(self) -> bool:
        """Return whether windows have no gaps inside and leave no row or column of the image out."""
        margins = [margin for before, after, _ in self.margins() for margin in (before, after)]
        return max(self.dilation) == 1 and all(isinstance(margin, int) and margin >= 0 for margin in margins)

    def elements(self) -> Iterator[_Ints]:
        """Return the elements of a window, in the order in which the first maximum counts."""
        return product(*(range(n) for n in self.kernel))

    def shown(self, padded: jax.Array, element: _Ints) -> jax.Array:
        """Return the value of one element of the window, for all windows."""
        lead = padded.ndim - len(self.size)
        starts = [0] * lead + [e * d for e, d in zip(element, self.dilation, strict=True)]
        limits = list(padded.shape[:lead]) + [
            start + (count - 1) * step + 1
            for start, count, step in zip(starts[lead:], self.outputs, self.stride, strict=True)
        ]
        return lax.slice(padded, starts, limits, [1] * lead + list(self.stride))

    def spread(self, values: jax.Array, element: _Ints) -> jax.Array:
        """Return the inverse of `shown`: an image with zeros elsewhere."""
        margins = [(0, 0, 0)] * (values.ndim - len(self.size))
        for dim, e in enumerate(element):
            low = e * self.dilation[dim]
            last = low + (self.outputs[dim] - 1) * self.stride[dim]
            margins.append(
                (low - self.padding[dim], self.size[dim] + self.padding[dim] - 1 - last, self.stride[dim] - 1)
            )
        return with_zeros(values, margins)

    def sums(self, values: jax.Array) -> jax.Array:
        """Return for each element of the image the sum of the values of all windows that show it: dimension by
        dimension.
        """
        lead = values.ndim - len(self.size)
        for dim, size in enumerate(self.size):
            axis, kernel, before = lead + dim, self.kernel[dim], self.padding[dim]
            if self.outputs[dim] == 1 and self.dilation[dim] == 1:
                shown = jnp.broadcast_to(values, (*values.shape[:axis], kernel, *values.shape[axis + 1 :]))
                values = with_zeros(shown, _along_one(axis, values.ndim, (-before, size + before - kernel, 0)))
                continue
            last = (self.outputs[dim] - 1) * self.stride[dim]
            starts = [element * self.dilation[dim] - before for element in range(kernel)]
            margins = [(start, size - 1 - start - last, self.stride[dim] - 1) for start in starts]
            values = reduce(jnp.add, (with_zeros(values, _along_one(axis, values.ndim, each)) for each in margins))
        return values

    def index_dtype(self) -> np.dtype:
        """Return the narrowest dtype of an index into the image plane: a TPU computes int64 in two halves."""
        known = [size for size in self.size if isinstance(size, int)]
        return np.dtype(np.int32 if len(known) == len(self.size) and prod(known) < 2**31 else np.int64)

    def first_places(self, dtype: np.dtype) -> jax.Array:
        """Return the flat index in the image plane of the first element of every window that is inside the image."""
        flat = jnp.zeros(self.outputs, dtype)
        for dim, (before, apart) in enumerate(zip(self.padding, self.dilation, strict=True)):
            start = lax.broadcasted_iota(dtype, self.outputs, dim) * self.stride[dim] - before
            steps = lax.div(jnp.maximum(apart - 1 - start, 0), jnp.asarray(apart, dtype))
            flat = flat * self.size[dim] + start + steps * apart
        return flat

    def places(self, element: _Ints, dtype: np.dtype) -> jax.Array:
        """Return the flat index into the image plane of one element of every window."""
        flat = jnp.zeros(self.outputs, dtype)
        for dim, e in enumerate(element):
            at = lax.broadcasted_iota(dtype, self.outputs, dim)
            flat = flat * self.size[dim] + at * self.stride[dim] + (e * self.dilation[dim] - self.padding[dim])
        return flat


def _along_one(axis: int, ndim: int, margins: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    return [margins if dim == axis else (0, 0, 0) for dim in range(ndim)]


def _each(value: object, dims: int) -> _Ints:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * dims if len(values) == 1 else values


def _lowest(dtype: np.dtype) -> float:
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


def maxima(image: jax.Array, windows: _Windows) -> jax.Array:
    """Return the largest element of every window, NaN if it has one."""
    lead = image.ndim - len(windows.size)
    lowest = jnp.array(_lowest(image.dtype), image.dtype)
    ones, none = (1,) * lead, [(0, 0)] * lead
    padded = lax.pad(image, lowest, [(0, 0, 0)] * lead + windows.margins())
    return lax.reduce_window(
        padded,
        lowest,
        lax.max,
        ones + windows.kernel,
        ones + windows.stride,
        none + [(0, 0)] * len(windows.size),
        window_dilation=ones + windows.dilation,
    )


def maxima_and_places(image: jax.Array, windows: _Windows) -> tuple[jax.Array, jax.Array]:
    """Return the largest element of every window and its flat index in the image plane, by a walk of the elements."""
    lead = image.ndim - len(windows.size)
    lowest = jnp.array(_lowest(image.dtype), image.dtype)
    padded = lax.pad(image, lowest, [(0, 0, 0)] * lead + windows.margins())
    best = jnp.full((*image.shape[:lead], *windows.outputs), lowest)
    dtype = windows.index_dtype()
    place = jnp.broadcast_to(windows.first_places(dtype), best.shape)
    for element in windows.elements():
        shown = windows.shown(padded, element)
        here = jnp.broadcast_to(windows.places(element, dtype), shown.shape)
        # The first maximum wins, and NaN counts as larger than everything.
        larger = (shown > best) | (shown != shown)
        best, place = jnp.where(larger, shown, best), jnp.where(larger, here, place)
    return best, place


def gradient_at_maxima(gradient: jax.Array, image: jax.Array, windows: _Windows) -> jax.Array:
    """Return the gradient of `maxima`, in the dtype of `gradient`: the maxima are found in the image again."""
    lead = image.ndim - len(windows.size)

    def stays(one: jax.Array, other: jax.Array) -> jax.Array:
        return (one >= other) | ((one != one) & (other == other))

    margins = [(before, after) for before, after, _ in windows.margins()]

    @jax.custom_batching.custom_vmap  # JAX has no rule for a batch of them
    def scattered(image: jax.Array, gradient: jax.Array) -> jax.Array:
        return private.select_and_scatter(
            image.astype(gradient.dtype),
            stays,
            (1,) * lead + windows.kernel,
            (1,) * lead + windows.stride,
            [(0, 0)] * lead + margins,
            gradient,
            jnp.zeros((), gradient.dtype),
            lax.add,
        )

    @scattered.def_vmap
    def _(size: int, batched: Sequence[bool], *given: jax.Array) -> tuple[jax.Array, bool]:
        image, gradient = (
            each if is_batched else jnp.broadcast_to(each, (size, *each.shape))
            for each, is_batched in zip(given, batched, strict=True)
        )
        return gradient_at_maxima(gradient, image, windows), True

    return scattered(image, gradient)  # type: ignore[no-any-return]


def _max_pool(dims: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def lower(
        self: jax.Array,
        kernel_size: list[int],
        stride: list[int] | None = None,
        padding: object = 0,
        dilation: object = 1,
        ceil_mode: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        windows = _Windows(self.shape[-dims:], kernel_size, stride or [], padding, dilation, ceil_mode).within()

        def by_elements(image: jax.Array) -> tuple[jax.Array, jax.Array]:
            return maxima_and_places(image, windows)

        def at_once(image: jax.Array) -> tuple[jax.Array, jax.Array]:
            return maxima(image, windows), maxima_and_places(image, windows)[1]

        # A TPU has an instruction for the maxima. The walk for their places is dropped where nothing reads them.
        best, place = lax.platform_dependent(self, tpu=at_once, default=by_elements)
        return best, place.astype(np.int64)

    return lower


def _max_pool_backward(dims: int) -> Callable[..., jax.Array]:
    def lower(
        grad_output: jax.Array,
        self: jax.Array,
        kernel_size: list[int],
        stride: list[int],
        padding: object,
        dilation: object,
        ceil_mode: bool,
        indices: jax.Array,
    ) -> jax.Array:
        windows = _Windows(self.shape[-dims:], kernel_size, stride, padding, dilation, ceil_mode).within()

        def by_elements(gradient: jax.Array, indices: jax.Array) -> jax.Array:
            plane = windows.index_dtype()
            indices, zero = indices.astype(plane), jnp.zeros((), gradient.dtype)
            total = jnp.zeros(self.shape, gradient.dtype)
            for element in windows.elements():
                taken = jnp.where(indices == windows.places(element, plane), gradient, zero)
                total = total + windows.spread(taken, element)
            return total

        def by_index(gradient: jax.Array, indices: jax.Array) -> jax.Array:
            return scatter_by_index(gradient, self.shape, dims, indices)

        def at_maxima(gradient: jax.Array, indices: jax.Array) -> jax.Array:
            return gradient_at_maxima(gradient, self, windows)

        # The CPU adds one element after the other anyway. There the other form is also fused with the forward pool,
        # which it then computes again for every element of every window. A TPU has an instruction, for windows without
        # gaps that do not crop the image, and reads no indices for it.
        on_tpu = at_maxima if windows.fill_the_image() else by_elements
        return lax.platform_dependent(widened(grad_output), indices, cpu=by_index, tpu=on_tpu, default=by_elements)

    return lower


def _divisor(windows: _Windows, count_include_pad: bool, divisor_override: int | None) -> np.ndarray | jax.Array:
    if divisor_override:
        return np.array(divisor_override)
    counts = []
    for dim, size in enumerate(windows.size):
        xp = module_for(size)
        starts = xp.arange(windows.outputs[dim]) * windows.stride[dim] - windows.padding[dim]
        ends = xp.minimum(starts + windows.kernel[dim], xp.asarray(size + windows.padding[dim]))
        if not count_include_pad:
            starts, ends = xp.maximum(starts, 0), xp.minimum(ends, xp.asarray(size))
        counts.append(ends - starts)
    total: Any = np.ones((), np.int64)
    for dim, count in enumerate(counts):
        total = total * count.reshape([-1 if i == dim else 1 for i in range(len(counts))])
    return total


def _avg_pool(dims: int) -> Callable[..., jax.Array]:
    def lower(
        self: jax.Array,
        kernel_size: list[int],
        stride: list[int] | None = None,
        padding: object = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> jax.Array:
        windows = _Windows(self.shape[-dims:], kernel_size, stride or [], padding, 1, ceil_mode)
        x = widened(self)
        lead, within = self.ndim - dims, windows.within()
        padded = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * lead + within.margins())
        sums = lax.reduce_window(
            padded, np.zeros((), x.dtype), lax.add, (1,) * lead + within.kernel, (1,) * lead + within.stride, "VALID"
        )
        divisor = _divisor(windows, count_include_pad, divisor_override)
        if jnp.issubdtype(x.dtype, jnp.integer):
            return lax.div(sums, jnp.broadcast_to(jnp.asarray(divisor, x.dtype), sums.shape))
        means = sums / jnp.asarray(divisor, x.dtype)
        return means + 0.0 if (divisor_override or 0) < 0 else means  # the CPU adds to zeros

    return lower


def _avg_pool_backward(dims: int) -> Callable[..., jax.Array]:
    def lower(
        grad_output: jax.Array,
        self: jax.Array,
        kernel_size: list[int],
        stride: list[int],
        padding: object,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> jax.Array:
        windows = _Windows(self.shape[-dims:], kernel_size, stride, padding, 1, ceil_mode)
        gradient = widened(grad_output)
        share = gradient / jnp.asarray(_divisor(windows, count_include_pad, divisor_override), gradient.dtype)
        return windows.within().sums(share) + 0.0  # the CPU adds to zeros

    return lower


def _shares(inputs: int, outputs: int) -> np.ndarray | jax.Array:
    """Return the matrix that averages `inputs` elements down to `outputs`, in windows that divide them as evenly as can
    be.
    """
    if module_for(inputs, outputs) is jnp:
        starts, ends = _even_windows(inputs, outputs)
        place = jnp.arange(inputs)
        inside = (place >= starts[:, None]) & (place < ends[:, None])
        return jnp.where(inside, 1 / (ends - starts)[:, None], 0)
    matrix = np.zeros((outputs, inputs))
    for i in range(outputs):
        start, end = i * inputs // outputs, -(-(i + 1) * inputs // outputs)
        matrix[i, start:end] = 1 / (end - start)
    return matrix


def _even_windows(inputs: object, outputs: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and ends of windows that divide `inputs` elements as evenly as possible."""
    xp = module_for(inputs, outputs)
    index = xp.arange(outputs)
    size, count = xp.asarray(inputs), max(outputs, 1) if isinstance(outputs, int) else xp.asarray(outputs)
    return index * size // count, -(-(index + 1) * size // count)


def _along(x: jax.Array, matrix: np.ndarray | jax.Array, dim: int) -> jax.Array:
    moved = lax.dot_general(
        x, jnp.asarray(matrix, x.dtype), (((dim,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
    )
    return jnp.moveaxis(moved, -1, dim)


def _adaptive_avg_pool(self: jax.Array, output_size: list[int]) -> jax.Array:
    x = widened(self)
    if len(output_size) == 3 and 0 in x.shape[1:]:
        raise ValueError(f"volumes of the size {x.shape[1:]} have no mean")  # PyTorch refuses them, but not images
    dims = range(x.ndim - len(output_size), x.ndim)
    for dim, outputs in zip(dims, output_size, strict=True):
        inputs = x.shape[dim]
        if outputs and inputs % outputs == 0:
            x = jnp.mean(x.reshape(*x.shape[:dim], outputs, inputs // outputs, *x.shape[dim + 1 :]), dim + 1)
        else:
            x = _along(x, _shares(inputs, outputs), dim)
    return x


def _adaptive_avg_pool_backward(dims: int) -> Callable[..., jax.Array]:
    def lower(grad_output: jax.Array, self: jax.Array) -> jax.Array:
        x = widened(grad_output)
        for dim in range(self.ndim - dims, self.ndim):
            inputs, outputs = self.shape[dim], x.shape[dim]
            if inputs % outputs == 0:
                x = jnp.repeat(x / (inputs // outputs), inputs // outputs, dim)
            else:
                x = _along(x, _shares(inputs, outputs).T, dim)
        return x + 0.0  # the CPU adds to zeros

    return lower


def _adaptive_max_pool(dims: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def lower(self: jax.Array, output_size: list[int]) -> tuple[jax.Array, jax.Array]:
        size = self.shape[-dims:]
        lead = self.ndim - dims
        gathered = self
        place = jnp.arange(prod(size), dtype=np.int64).reshape(size)
        inside: jax.Array | np.ndarray = np.ones((), bool)
        for dim, outputs in enumerate(output_size):
            xp = module_for(size[dim], outputs)
            starts, ends = _even_windows(size[dim], outputs)
            if xp is np:
                length = int((ends - starts).max(initial=1))
            else:
                length = -(-size[dim] // outputs) + 1  # one more than it may be, where that is not known
            index = starts[:, None] + xp.arange(length)
            # Each dimension becomes (outputs, length); the lengths are brought to the end below.
            shown = xp.minimum(index, xp.asarray(size[dim] - 1))
            gathered = jnp.take(gathered, shown, lead + 2 * dim)
            place = jnp.take(place, shown, 2 * dim)
            shape = [1] * (2 * dims)
            shape[2 * dim], shape[2 * dim + 1] = index.shape
            inside = inside & (index < ends[:, None]).reshape(shape)
        order = [*range(0, 2 * dims, 2), *range(1, 2 * dims, 2)]
        gathered = gathered.transpose([*range(lead), *(lead + i for i in order)])
        most = prod(place.shape[1::2])  # number of elements of a window
        flat = gathered.reshape(*self.shape[:lead], *output_size, most)
        places = jnp.broadcast_to(place.transpose(order).reshape(*output_size, most), flat.shape)
        counted = (
            module_for(*place.shape).broadcast_to(inside, place.shape).transpose(order).reshape(*output_size, most)
        )
        flat = jnp.where(counted, flat, jnp.array(_lowest(self.dtype), self.dtype))
        is_nan = flat != flat
        chosen = jnp.where(jnp.any(is_nan, -1), jnp.argmax(is_nan, -1), jnp.argmax(flat, -1))[..., None]
        return (
            jnp.take_along_axis(flat, chosen, -1)[..., 0],
            jnp.take_along_axis(places, chosen, -1)[..., 0],
        )

    return lower


def scatter_by_index(grad_output: jax.Array, size: _Ints, dims: int, indices: jax.Array) -> jax.Array:
    """Return an image of `size` with each element of the gradient added at its flat index into the image plane."""
    planes = prod(size[:-dims])
    flat = (planes, prod(indices.shape[-dims:]))
    gradient = widened(grad_output).reshape(flat)
    total = jnp.zeros((planes, prod(size[-dims:])), gradient.dtype)
    places = jnp.arange(planes)[:, None], indices.reshape(flat)
    return total.at[places].add(zero_behind_ends(gradient)).reshape(size)


def _adaptive_max_pool_backward(dims: int) -> Callable[..., jax.Array]:
    def lower(grad_output: jax.Array, self: jax.Array, indices: jax.Array) -> jax.Array:
        return scatter_by_index(grad_output, self.shape, dims, indices)

    return lower


lowers(aten.max_pool2d_with_indices.default)(_max_pool(2))
lowers(aten.max_pool3d_with_indices.default)(_max_pool(3))
lowers(aten.max_pool2d_with_indices_backward.default)(_max_pool_backward(2))
lowers(aten.max_pool3d_with_indices_backward.default)(_max_pool_backward(3))
lowers(aten.avg_pool2d.default)(_avg_pool(2))
lowers(aten.avg_pool3d.default)(_avg_pool(3))
lowers(aten.avg_pool2d_backward.default)(_avg_pool_backward(2))
lowers(aten.avg_pool3d_backward.default)(_avg_pool_backward(3))
lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)(_adaptive_avg_pool)
lowers(aten._adaptive_avg_pool2d_backward.default)(_adaptive_avg_pool_backward(2))
lowers(aten._adaptive_avg_pool3d_backward.default)(_adaptive_avg_pool_backward(3))
lowers(aten.adaptive_max_pool2d.default)(_adaptive_max_pool(2))
lowers(aten.adaptive_max_pool3d.default)(_adaptive_max_pool(3))
lowers(aten.adaptive_max_pool2d_backward.default)(_adaptive_max_pool_backward(2))
lowers(aten.adaptive_max_pool3d_backward.default)(_adaptive_max_pool_backward(3))
