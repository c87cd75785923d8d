"""Operands on other devices: which are accepted, and the error for the others."""

from typing import Any

import torch

from ...compat.names.torch import pytree
from ...tensor.device import Device, device_for
from ...tensor.storage import value_of
from ..op_schema import Operator
from . import cpu_errors


def admit(
    operator: Operator, args: tuple[object, ...], kwargs: dict[str, Any]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments with every tensor on the device, or the error PyTorch raises for mixed devices."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [t for t in tensors if t.device.type == "xla"]
    target = device_for(ours[0].device if ours else kwargs.get("device"))
    changed = False
    written = [id(tensor) for tensor in cpu_errors.written_tensors(operator, args, kwargs)]

    def convert(leaf: object) -> object:
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
            f"{_two_devices(operator, tensors, leaf.device)}! (when calling {operator.name}; "
            f"move the tensor of shape {list(leaf.shape)} with `.to({str(target.torch_device)!r})`)"
        )

    converted: tuple[tuple[object, ...], dict[str, object]] = pytree.tree_map(convert, (args, kwargs))
    if not changed:
        raise TypeError(f"{operator.name}: an argument of a kind that the xla device does not know")
    return converted


def _two_devices(operator: Operator, tensors: list[torch.Tensor], other: torch.device) -> str:
    """Return PyTorch's message for tensors on several devices."""
    devices = [tensor.device for tensor in tensors]
    if operator.name == "aten::block_diag":
        index = next(index for index, device in enumerate(devices) if device != devices[0])
        return (
            "torch.block_diag: input tensors must all be on the same device. "
            f"Input 0 is on device {devices[0]} and input {index} is on device {devices[index]}"
        )
    ours = next((device for device in devices if device.type == "xla"), "xla:0")
    return f"Expected all tensors to be on the same device, but found at least two devices, {ours} and {other}"


def on_device(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Return a CPU tensor's copy on `device`. A scalar becomes a number of the program, so a new value needs no
    compile.
    """
    if tensor.dim() == 0 and not tensor.dtype.is_complex:
        number = tensor.item()
        return torch.ops.aten.full.default([], number, dtype=tensor.dtype, device=device.torch_device)
    return tensor.to(device.torch_device)
