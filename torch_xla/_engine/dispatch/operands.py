"""Operands that are not on the device: which are let in, and the error for the others."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..tensor.device import Device, device_for
from ..tensor.storage import value_of
from . import refusals
from .forms import Operator


def admit(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with every tensor on the device, or the error PyTorch raises for mixed devices."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [t for t in tensors if t.device.type == "xla"]
    target = device_for(ours[0].device if ours else kwargs.get("device"))
    changed = False
    written = [id(tensor) for tensor in refusals.written_tensors(operator, args, kwargs)]
    if operator.index_like:
        args = (args[0], indices_on_device(args[0], args[1], target), *args[2:])
        changed = True

    def convert(leaf: Any) -> Any:
        nonlocal changed
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.device.type == "xla":
            if getattr(leaf.untyped_storage(), "value", None) is None:
                value_of(leaf)
                changed = True
            return leaf
        # CPU scalars mix with device tensors, as they do with CUDA's.
        if leaf.device.type == "cpu" and leaf.dim() == 0 and id(leaf) not in written:
            changed = True
            return on_device(leaf, target)
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{ours[0].device if ours else 'xla:0'} and {leaf.device}! (when calling {operator.name}; "
            f"move the tensor of shape {list(leaf.shape)} with `.to({str(target.torch_device)!r})`)"
        )

    converted: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(convert, (args, kwargs))
    if not changed:
        raise TypeError(f"{operator.name}: an argument of a kind that the xla device does not know")
    return converted


def indices_on_device(
    tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], device: Device
) -> list[torch.Tensor | None]:
    """The indices of `tensor[indices]` on its device. What lies on the CPU is known: it is checked, masks are resolved."""
    result: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.device.type != "cpu":
            result.append(index)
        elif index.dtype in (torch.bool, torch.uint8):
            _check_mask(tensor, index, len(result))
            result += [places.to(device.torch_device) for places in index.nonzero().unbind(1)]
        else:
            _check_bounds(tensor, index, len(result))
            result.append(index.to(device.torch_device))
    return result


def _check_mask(tensor: torch.Tensor, mask: torch.Tensor, dim: int) -> None:
    for k, n in enumerate(mask.shape):
        if dim + k < tensor.dim() and tensor.shape[dim + k] != n:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {k} does not match the shape of the indexed "
                f"tensor {list(tensor.shape)} at index {dim + k}"
            )


def _check_bounds(tensor: torch.Tensor, index: torch.Tensor, dim: int) -> None:
    if dim >= tensor.dim() or not index.numel() or index.is_floating_point() or index.is_complex():
        return  # refused later, in PyTorch's words
    n = tensor.shape[dim]
    wrong = index[(index < -n) | (index >= n)]
    if wrong.numel():
        raise IndexError(f"index {int(wrong[0])} is out of bounds for dimension {dim} with size {n}")


def on_device(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """A CPU tensor's copy on `device`. A scalar becomes a number of the program, so a new value needs no compile."""
    if tensor.dim() == 0 and not tensor.dtype.is_complex:
        number = tensor.item()
        return torch.ops.aten.full.default([], number, dtype=tensor.dtype, device=device.torch_device)
    return tensor.to(device.torch_device)
