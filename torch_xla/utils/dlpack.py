"""DLPack: `xla` tensors and other libraries' arrays on the same memory."""

from typing import Any

import torch

from .._engine.transfer import dlpack


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """A DLPack capsule on the memory of `xla_tensor`, for `from_dlpack` of another library. Waits for the device.

    What the receiver writes, the tensor shows; what was recorded before does not see it. Writing to the tensor moves it
    to memory of its own. If its elements do not lie in memory as the tensor shows them (after a transpose on the
    device, under `XLA_USE_BF16`), the capsule is a copy's. A capsule can be taken once.

    >>> import torch
    >>> from torch_xla.utils.dlpack import to_dlpack
    >>> x = torch.ones(3, device="xla") * 2
    >>> torch.utils.dlpack.from_dlpack(to_dlpack(x))
    tensor([2., 2., 2.])
    """
    return dlpack.export(xla_tensor)


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """An `xla` tensor on the memory behind `ext_tensor`: a DLPack capsule, or an object with `__dlpack__`.

    CPU tensors of PyTorch, NumPy arrays and JAX arrays are such objects. Memory that no device of this process reaches
    is copied to the current one. What is shared must not be written to by its owner as long as the tensor is in use:
    operations run later than they are recorded. Writing to the tensor moves it to memory of its own.
    Memory of an `xla` tensor that was not written to since comes back as that tensor's: both share a storage. So it
    does by `torch.asarray(capsule)`; `torch.from_dlpack(capsule)` gives a CPU tensor if the memory is the host's.

    >>> import numpy as np
    >>> from torch_xla.utils.dlpack import from_dlpack
    >>> from_dlpack(np.arange(3))
    tensor([0, 1, 2], device='xla:0')
    """
    return dlpack.adopt(ext_tensor)
