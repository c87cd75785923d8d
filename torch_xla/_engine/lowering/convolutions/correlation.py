"""The correlation behind every convolution, and its gradients by operand and kernel.

Layouts are PyTorch's: operand `[batch, channels, *spatial]`, kernel `[outputs, channels / groups, *spatial]`. XLA's own
convolution does all of it on every platform; on the CPU other forms of the same sums are often several times faster.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..machinery.jax_sharding import whole_along
from ..machinery.opmath import FLOAT64, widened
from .correlation_on_cpu import correlation_form, kernel_gradient_form, operand_gradient_form
from .window import Window

_Form = Callable[[jax.Array, jax.Array], jax.Array]


def correlate(operand: jax.Array, kernel: jax.Array, window: Window, groups: int) -> jax.Array:
    """Return the sums of products under the window, at every position: `[batch, outputs, *positions]`, in float32 at
    least.
    """
    shape = (operand.shape[0], kernel.shape[0], *window.positions(operand.shape[2:]))
    if 0 in (*operand.shape, *kernel.shape, *shape):
        return jnp.zeros(shape, widened(operand).dtype)

    def plain(operand: jax.Array, kernel: jax.Array) -> jax.Array:
        return window.convolve(operand, kernel, groups)

    return _on_platform(operand, kernel, plain, correlation_form(operand.shape, kernel.shape, window, groups))


def operand_gradient(
    grad: jax.Array, kernel: jax.Array, window: Window, groups: int, extent: tuple[int, ...]
) -> jax.Array:
    """Return the gradient of `correlate` by its operand, whose extent is `extent`, given that by its result."""
    back = window.fitted(extent, grad.shape[2:]).reverse()
    form = None if 0 in (*grad.shape, *kernel.shape) else operand_gradient_form(grad.shape, window, groups, extent)
    if form is None:
        return correlate(grad, _reversed(kernel, groups), back, groups)

    def plain(grad: jax.Array, kernel: jax.Array) -> jax.Array:
        return back.convolve(grad, _reversed(kernel, groups), groups)

    return _on_platform(grad, kernel, plain, form)


def _reversed(kernel: jax.Array, groups: int) -> jax.Array:
    """Return the kernel that goes with `Window.reverse`: flipped, with inputs and outputs of each group exchanged."""
    outputs, inputs, *size = kernel.shape
    flipped = lax.rev(kernel, range(2, kernel.ndim))
    grouped = flipped.reshape(groups, outputs // groups, inputs, *size)
    return jnp.swapaxes(grouped, 1, 2).reshape(groups * inputs, outputs // groups, *size)


def kernel_gradient(operand: jax.Array, grad: jax.Array, window: Window, groups: int) -> jax.Array:
    """Return the gradient of `correlate` by its kernel, given that by its result."""
    shape = (grad.shape[1], operand.shape[1] // groups, *window.kernel)
    if 0 in (*operand.shape, *grad.shape):
        return jnp.zeros(shape, widened(operand).dtype)

    def plain(operand: jax.Array, grad: jax.Array) -> jax.Array:
        # Batch and channels change places: the gradient is a kernel as large as its image, and sums over the batch.
        swapped = (1, 0, *range(2, operand.ndim))
        gradient_window = Window(grad.shape[2:], window.dilation, window.padding, window.stride, window.base)
        padding = gradient_window.fitted(operand.shape[2:], window.kernel).padding
        return lax.conv_general_dilated(
            operand,
            grad,
            window.dilation,
            padding,
            lhs_dilation=window.base,
            rhs_dilation=window.stride,
            dimension_numbers=lax.ConvDimensionNumbers(swapped, swapped, swapped),
            batch_group_count=groups,
        )

    cpu_form = kernel_gradient_form(operand.shape, grad.shape, window, groups)
    if groups == 1:
        return _on_platform(operand, grad, plain, cpu_form)
    # Channels that are divided across their groups end the process in XLA's partitioner.
    return whole_along(_on_platform(whole_along(operand, [1]), whole_along(grad, [1]), plain, cpu_form), [0])


def _on_platform(first: jax.Array, second: jax.Array, plain: _Form, cpu_form: _Form | None) -> jax.Array:
    """Run `plain`, or on the CPU `cpu_form`; narrow floats are widened before on the CPU, and after elsewhere.

    XLA's CPU convolutions of narrow floats compute in float32 anyway and then round; tensor cores want them narrow.
    cuDNN has none of whole numbers; those of float64 are as exact up to 2^53.
    Images and kernels are whole, those of the result too: where both are divided along an image, and along an axis of
    two, XLA adds up what is the same twice, in plain JAX too; and where the result is, it ends the process. Batch and
    channels may be divided.
    """
    first, second = (whole_along(each, range(2, each.ndim)) for each in (first, second))
    wide = widened(first).dtype
    is_whole = first.dtype.kind in "iu"
    if cpu_form is None and wide == first.dtype and not is_whole:
        result = plain(first, second)
    else:
        on_cpu = cpu_form or plain
        result = lax.platform_dependent(
            first,
            second,
            cpu=lambda a, b: on_cpu(a.astype(wide), b.astype(wide)),
            **({"cuda": lambda a, b: plain(a.astype(FLOAT64), b.astype(FLOAT64)).astype(wide)} if is_whole else {}),
            default=lambda a, b: plain(a, b).astype(wide),
        )
    return whole_along(result, range(2, result.ndim))
