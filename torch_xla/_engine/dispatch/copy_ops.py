"""Operators that copy from a tensor of any device: functional `copy`, and writes into a part of a tensor.

PyTorch composes each of them of `copy_`, which takes a source of any device. Results are on the device of the
destination. Graphs of `torch.compile` contain these operators where a program calls `copy_`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .op_schema import operator_of
from .recording_kernel import recorder

_ONE = ("copy", "slice_scatter", "select_scatter", "diagonal_scatter")
_LISTS = ("_foreach_copy", "_foreach_copy_")


def _beside(source: Tensor, target: Tensor) -> Tensor:
    """Return `source` on the device of `target`. A number on the CPU may stay there, for it becomes one of the
    program.
    """
    if source.device == target.device or (source.device.type == "cpu" and not source.dim()):
        return source
    return source.to(target.device)


def of_one(name: str) -> Callable[..., object]:
    """Return the kernel of an operator with (self, src, …)."""
    record = recorder(f"aten::{name}")

    def kernel(self: Tensor, src: Tensor, *args: object, **kwargs: object) -> object:
        if self.device.type == "xla":
            return record(self, _beside(src, self), *args, **kwargs)
        return operator_of(f"aten::{name}").overload(self, src.to(self.device), *args, **kwargs)

    return kernel


def of_lists(name: str) -> Callable[..., object]:
    """Return the kernel of an operator with (self, src, …), both lists: pairs may be on other devices than other
    pairs.
    """
    record = recorder(f"aten::{name}")
    writes = name.endswith("_")

    def kernel(self: list[Tensor], src: list[Tensor], *args: Any, **kwargs: Any) -> object:
        if len(self) != len(src):
            # PyTorch's kernel of the form that writes nothing reads the second list beyond its end.
            raise RuntimeError(f"Tensor lists must have the same number of tensors, got {len(self)} and {len(src)}")
        if len({each.device for each in (*self, *src)}) == 1:
            return record(self, src, *args, **kwargs)
        pairs = zip(self, src, strict=True)
        if writes:
            for target, source in pairs:
                target.copy_(source, *args, **kwargs)
            return None
        return [torch.ops.aten.copy.default(target, source, *args, **kwargs) for target, source in pairs]

    return kernel


KERNELS: dict[str, Callable[..., object]] = {
    **{name: of_one(name) for name in _ONE},
    **{name: of_lists(name) for name in _LISTS},
}
