"""The parameters of a computation that is being built, and the tensors that they represent."""

import torch

from .._engine import interop
from .builder_op import Op, mkparam
from .builder_shape import tensor_shape


class Parameters:
    """The parameters and their tensors, for a builder called `name`.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.scan import Builder
    >>> builder = Builder("mine")
    >>> number = builder.add_param(torch.ones(2, device="xla"))
    >>> number, builder.num_params(), builder.params()[0].shape()
    (0, 1, f32[2])
    """

    def __init__(self, name: str) -> None:
        self.builder = interop.XlaBuilder(name)
        self._parameters: list[Op] = []
        self._tensors: list[torch.Tensor] = []

    def add_param(self, val: torch.Tensor, idx: int | None = None) -> int:
        """Add a parameter with the size and dtype of `val`, with the next number or `idx`, and return its number."""
        number = len(self._parameters) if idx is None else idx
        self._parameters.append(mkparam(self.builder, number, tensor_shape(val)))
        self._tensors.append(val)
        return number

    def params(self) -> tuple[Op, ...]:
        """Return the parameters."""
        return tuple(self._parameters)

    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors."""
        return tuple(self._tensors)

    def num_params(self) -> int:
        """Return the number of parameters."""
        return len(self._parameters)
