"""Private names of PyTorch for dispatch keys, by which a call says whose kernels may serve it, and why."""

import torch

from .torch import transforms_are_active

DispatchKeySet = torch._C.DispatchKeySet
# Views are made by PyTorch's own Meta kernels, which only look at sizes and strides.
META_KEYS = DispatchKeySet(torch._C.DispatchKey.Meta)
PRIVATEUSE1_KEYS = DispatchKeySet(torch._C.DispatchKey.PrivateUse1)
CPU_KEYS = DispatchKeySet(torch._C.DispatchKey.CPU)


def register_above_autograd(library: torch.library.Library, name: str, kernel: object) -> None:
    """Register `kernel`, whose first argument is the call's dispatch keys, in place of autograd's for our device."""
    assert library.m is not None
    library.m.impl(name, "AutogradPrivateUse1", kernel, True)


def stands_for_another(tensor: torch.Tensor, keys: DispatchKeySet) -> bool:
    """Return whether a tensor in a call with these `keys` is a fake one, or wraps another one."""
    is_of_subclass = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return is_of_subclass or transforms_are_active() or keys.has(torch._C.DispatchKey.Functionalize)


def with_meta(keys: DispatchKeySet) -> DispatchKeySet:
    """Return the keys of a call with Meta: PyTorch's own kernels serve it, and its Python does not begin it anew."""
    return (keys | META_KEYS).remove(torch._C.DispatchKey.PythonDispatcher)
