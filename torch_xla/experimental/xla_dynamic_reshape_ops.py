"""Views with one size taken from another tensor: `torch.ops.xla.dynamic_expand` and `dynamic_view`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def dynamic_expand(input: Tensor, size: Sequence[object], src_tensor: Tensor, src_dim: int, target_dim: int) -> Tensor:
    """Expand `input` to `size`, with size `target_dim` replaced by that of dimension `src_dim` of `src_tensor`.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.xla_dynamic_reshape_ops import dynamic_expand
    >>> dynamic_expand(torch.ones(1, device="xla"), (1,), torch.ones(3, device="xla"), 0, 0)
    tensor([1., 1., 1.], device='xla:0')
    """
    result: Tensor = torch.ops.xla.dynamic_expand(input, size, src_tensor, src_dim, target_dim)
    return result


def dynamic_view(
    input: Tensor, size: Sequence[object], src_tensor: Tensor, src_dim: int, target_dim: int, mul_scaler: float
) -> Tensor:
    """Return the elements of `input` in `size`, with one size replaced by `mul_scaler` times that of another tensor.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.xla_dynamic_reshape_ops import dynamic_view
    >>> x = torch.ones(2, 3, device="xla")
    >>> dynamic_view(x, (1,), x, 0, 0, 3.0).shape
    torch.Size([6])
    """
    result: Tensor = torch.ops.xla.dynamic_view(input, size, src_tensor, src_dim, target_dim, float(mul_scaler))
    return result


# The operators are the same on the CPU.
dynamic_expand_xla, dynamic_view_xla = dynamic_expand, dynamic_view


def dynamic_expand_meta(*args: object) -> Tensor:
    """Return the result of `dynamic_expand` without values."""
    return dynamic_expand(*_on_meta(args))


def dynamic_view_meta(*args: object) -> Tensor:
    """Return the result of `dynamic_view` without values."""
    return dynamic_view(*_on_meta(args))


def _on_meta(args: tuple[object, ...]) -> list[Any]:
    return [each.to("meta") if isinstance(each, Tensor) else each for each in args]
