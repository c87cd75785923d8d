"""Operators of extensions, which have a kernel for the CPU and none for this device: run there, counted and named.

`torch.library.custom_op(..., device_types="cpu")`, `torch.library.impl(..., "CPU")` and packages in C++ make such
operators, before and after this package is imported. So there is one kernel for all of them, which PyTorch calls where
it has no other for the device.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..compat.names import torch as private
from ..errors import NoLowering
from . import cpu_fallback
from .cpu_fallback_list import ON_THE_CPU, READS_MEMORY
from .op_schema import Operator, operator_of


def register_extensions() -> torch.library.Library:
    """Register the kernel; it is in force as long as the library that is returned."""
    return private.register_fallback("PrivateUse1", run)


def run(overload: Any, *args: Any, **kwargs: Any) -> object:
    """Run an operator on copies of its tensors on the CPU, and bring its results and what it wrote to the device."""
    return cpu_fallback.run(_operator(overload.name()), args, kwargs)


@functools.cache
def _operator(name: str) -> Operator:
    # Not cached where it raises: a kernel may be registered later.
    if not private.has_kernel(name, "CPU"):
        raise NoLowering(
            f"{name} has no kernel for the xla device, and none for the CPU, where xla runs the operators of "
            f"extensions. Write one of PyTorch's operators, which run on every device: "
            f"`torch.library.impl({name!r}, 'default', function)`."
        )
    return operator_of(name)


def _on_the_host(name: str) -> Callable[..., object]:
    return lambda *args, **kwargs: cpu_fallback.run(operator_of(name), args, kwargs)


KERNELS: dict[str, Callable[..., object]] = {
    name.removeprefix("aten::"): _on_the_host(name) for name, why in ON_THE_CPU.items() if why is READS_MEMORY
}
