"""DLPack: share memory between `xla` tensors and the arrays of other libraries."""

from typing import Any

import torch

from .._engine import transfer


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """Return a DLPack capsule of the memory of `xla_tensor`, for `from_dlpack` of another library. Wait for the device.

    A write by the receiver changes the tensor, but not the results of operations recorded before. A write to the tensor
    moves the tensor to new memory. If the memory's layout or dtype differs from the tensor's (after a transpose on the
    device, under `XLA_USE_BF16`), the capsule refers to a copy. A capsule can be consumed once.

    >>> import torch
    >>> from torch_xla.utils.dlpack import to_dlpack
    >>> x = torch.ones(3, device="xla") * 2
    >>> torch.utils.dlpack.from_dlpack(to_dlpack(x))
    tensor([2., 2., 2.])
    """
    return transfer.to_dlpack(xla_tensor)


def from_dlpack(ext_tensor: object) -> torch.Tensor:
    """Return an `xla` tensor on the memory of `ext_tensor`: a DLPack capsule, or an object with `__dlpack__`.

    CPU tensors of PyTorch, NumPy arrays and JAX arrays are such objects. Memory that no device of this process can
    address is copied to the current device. The owner must not write to shared memory while the tensor is in use,
    because operations run later than they are recorded. A write to the tensor moves the tensor to new memory.

    For a capsule of an `xla` tensor that has not been written to since, the result shares the storage of that tensor.
    `torch.asarray(capsule)` does the same; `torch.from_dlpack(capsule)` returns a CPU tensor if the memory is the
    host's.

    >>> import numpy as np
    >>> from torch_xla.utils.dlpack import from_dlpack
    >>> from_dlpack(np.arange(3))
    tensor([0, 1, 2], device='xla:0')
    """
    return transfer.from_dlpack(ext_tensor)
