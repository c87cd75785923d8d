"""Composite operators recorded whole: one node forward and one backward, instead of a chain of reshapes.

PyTorch knows the gradient of such an operator but no forward-mode derivative. So inside `forward_ad.dual_level`,
PyTorch composes it again, of operators that have one.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...compat import patch_list
from ...compat.names import torch as private
from ...compat.names import torch_dispatch_keys
from ..checks.cpu_dtypes import refuse_without_kernel
from ..recording_kernel import recorder

_linear = recorder("aten::linear")
_linear_backward = recorder("aten::linear_backward")
_broad_bias = False  # whether a linear layer had a bias of more than one dimension
_twice: list[torch.library.Library] = []  # from the first linear layer on that PyTorch cannot differentiate twice


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Implement `aten::linear`."""
    global _broad_bias
    if bias is not None and bias.dim() > 1:
        _broad_bias = True
    if (weight.dim() == 1 or weight.is_complex()) and not _twice:
        library = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
        library.impl("linear_backward", _differentiable_backward, "AutogradPrivateUse1")
        _twice.append(library)
    result: Tensor = _linear(input, weight, bias)
    return result


def linear_backward(
    self: Tensor, grad_output: Tensor, weight: Tensor, output_mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Implement `aten::linear_backward`, which sums the gradient of the bias over all rows.

    The operator does not receive the size of the bias. For a bias of several dimensions, which PyTorch broadcasts,
    autograd sums the returned gradient to its size.
    """
    grad_input, grad_weight, grad_bias = _linear_backward(self, grad_output, weight, output_mask)
    if output_mask[2] and _broad_bias:
        grad_bias = grad_output
    return grad_input, grad_weight, grad_bias


def _differentiable_backward(
    self: Tensor, grad_output: Tensor, weight: Tensor, output_mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Implement `aten::linear_backward` above autograd: composed where it may be differentiated again.

    PyTorch's own formula refuses complex numbers, and weights that are no matrices. This one costs a Python call, only
    in programs that need it.
    """
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in (self, grad_output, weight))):
        with private.below_autograd():
            return torch.ops.aten.linear_backward(self, grad_output, weight, output_mask)
    matrix, rows = (weight, grad_output) if weight.dim() == 2 else (weight.unsqueeze(0), grad_output.unsqueeze(-1))
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_input = rows @ matrix.conj()
    if output_mask[1]:
        count = math.prod(self.shape[:-1])
        flat, of = rows.reshape(count, matrix.shape[0]), self.reshape(count, matrix.shape[1])
        grad_weight = (flat.mT @ of.conj()).reshape(weight.shape)
    if output_mask[2]:
        grad_bias = grad_output if _broad_bias else grad_output.sum_to_size(weight.shape[:-1])
    return grad_input, grad_weight, grad_bias


_rms_norm = private.redispatch_of(torch.ops.aten.rms_norm.default)
_fused_rms_norm = torch.ops.aten._fused_rms_norm.default


def rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Implement `aten::rms_norm` above autograd: composed for complex numbers, of which PyTorch has no whole gradient.

    Sizes that do not fit are refused by PyTorch's own kernel, which calls `aten::_fused_rms_norm`.
    """
    if input.is_complex():
        size = tuple(normalized_shape)
        if size and input.shape[-len(size) :] == size and (weight is None or weight.shape == size):
            composed: tuple[Tensor, Tensor] = _fused_rms_norm.decompose(input, normalized_shape, weight, eps)
            return composed[0]
    result: Tensor = _rms_norm(torch_dispatch_keys.PRIVATEUSE1_KEYS, input, normalized_shape, weight, eps)
    return result


_max_pool1d = private.redispatch_of(torch.ops.aten.max_pool1d.default)


def max_pool1d(self: Tensor, *args: object) -> Tensor:
    """Implement `aten::max_pool1d` above autograd: refuse the dtypes of which the CPU has no kernel.

    PyTorch composes it on accelerators, of an operator that takes integers too.
    """
    if not self.is_floating_point():
        refuse_without_kernel("aten::max_pool1d", self, *args)
    result: Tensor = _max_pool1d(torch_dispatch_keys.PRIVATEUSE1_KEYS, self, *args)
    return result


KERNELS: dict[str, Callable[..., object]] = {"linear_backward": linear_backward}

# `matmul` is none of them: its whole form has no second derivative either.
_WHOLE = {"linear": linear, "_fused_rms_norm": recorder("aten::_fused_rms_norm")}
_registered: list[torch.library.Library] = []
_above: list[torch.library.Library] = []  # what is registered above autograd, for good


def register_whole() -> None:
    """Register the kernels, and remove them while a level of dual numbers is open."""
    _register()
    above = torch.library.Library("aten", "IMPL", "AutogradPrivateUse1")
    above.impl("rms_norm", rms_norm, "AutogradPrivateUse1")
    above.impl("max_pool1d", max_pool1d, "AutogradPrivateUse1")
    _above.append(above)
    patch_list.enter_dual_level.wrap(_entering)
    patch_list.exit_dual_level.wrap(_leaving)


def _register() -> None:
    library = private.raw_library("aten")
    for name, kernel in _WHOLE.items():
        private.register_kernel(library, name, kernel)
    _registered.append(library)


def _entering(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def enter_dual_level() -> object:
        level = original()
        while _registered:
            private.unregister(_registered.pop())
        return level

    return enter_dual_level


def _leaving(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def exit_dual_level(*, level: object = None) -> None:
        original(level=level)
        if private.level_of_tangents() < 0 and not _registered:
            _register()

    return exit_dual_level
