"""Exchange values of a GPU with PyTorch's CUDA tensors without a copy through the host.

Operators without a rule are run by PyTorch's kernels: on CUDA, if the device is an NVIDIA GPU and PyTorch is built for
CUDA. The values are copied on the device, because a kernel may write to its operands and XLA may donate them.
"""

import torch

from .. import dtypes
from ..ir.tape import Value
from ..runtime import buffers
from ..step.sync import materialise
from ..tensor.device import Device
from ..tensor.storage import hold, shows_all, snapshot, value_of, wrap
from ..tensor.upload import dense_spec
from . import dlpack

# The dtypes that DLPack supports.
EXCHANGED = frozenset((
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
))  # fmt: skip


def gpu_of(device: Device) -> torch.device | None:
    """Return the GPU that `device` is, as PyTorch calls it; `None` if it is none, or PyTorch is not built for it."""
    target = device.target
    if target.platform != "gpu" or target.mesh is not None or not torch.cuda.is_available():
        return None
    return torch.device("cuda", target.device.local_hardware_id)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of PyTorch's own with what a device tensor shows, and with its strides where they are dense."""
    value = snapshot(tensor)
    buffer = materialise(value)
    own = buffers.copied(buffers.converted(buffer, dtypes.to_jax(value.spec.dtype)))
    buffers.wait(own)  # a bare capsule orders no streams
    copy = torch.utils.dlpack.from_dlpack(buffers.offered(own))
    stride = dense_spec(tensor).stride
    if copy.stride() == stride:
        return copy
    return torch.empty_strided(tensor.shape, stride, dtype=copy.dtype, device=copy.device).copy_(copy)


def taken(tensor: torch.Tensor) -> torch.Tensor:
    """Return a device tensor on the memory of a CUDA tensor of PyTorch that is not written to by others."""
    value = _value(tensor)
    value.spec = dense_spec(tensor)
    return wrap(value)


def write_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Overwrite a device tensor with a CUDA tensor of PyTorch of the same dtype and shape."""
    base, value = value_of(target), _value(source)
    if shows_all(target, base.spec):
        value.spec = base.spec
    hold(target, value)


def _value(tensor: torch.Tensor) -> Value:
    return value_of(dlpack.adopt(tensor.detach().resolve_conj().resolve_neg().contiguous()))
