"""Custom operations of a program, written with XLA's builder."""

from collections.abc import Callable
from typing import Any

import torch

from . import xla_builder


class Op:
    """An operation on tensors called `name`, made from `opfn`, a function of builder operations.

    Keywords are passed to `opfn` unchanged. The operation is built once for each kind of arguments. JAX differentiates
    it.

    >>> import torch, torch_xla
    >>> from torch_xla.core import xla_op_registry
    >>> scale = xla_op_registry.register("mine::scale", lambda x, by: x * by)
    >>> scale(torch.ones(2, device="xla"), by=3.0)
    tensor([3., 3.], device='xla:0')
    """

    def __init__(self, name: str, opfn: Callable[..., object]) -> None:
        self.name = name
        self._call = xla_builder.XlaCallable(opfn, name)

    def __call__(self, *args: torch.Tensor, **kwargs: object) -> Any:
        return self._call(*args, **kwargs)


def register(name: str, opfn: Callable[..., object]) -> Op:
    """Register `opfn`, a function of builder operations, as the operation `name`; see `Op`."""
    return Op(name, opfn)
