"""The module inside a `XlaFullyShardedDataParallel`, with the metadata of its flat parameters."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..._engine.distributed import UnitHandle as Handle


class XlaFlattenParamsWrapper(nn.Module):
    """A module whose parameters a `XlaFullyShardedDataParallel` divides. Calls are forwarded to the module.

    With `flatten_parameters=True` its parameters are stored in flat parameters, which `flat_params` lists.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fpw_module = module
        self._handles: Sequence[Handle] = ()

    @property
    def module(self) -> nn.Module:
        """Return the user's module."""
        return self._fpw_module

    @property
    def flat_params(self) -> list[nn.Parameter]:
        """Return this process's shards of the flat parameters; an empty list without `flatten_parameters`."""
        return [handle.shard for handle in self._handles]

    @property
    def flat_param(self) -> nn.Parameter:
        """Return the only flat parameter. Raises `IndexError` if there is none."""
        return self.flat_params[0]

    def metadata(self, flat_param_idx: int) -> tuple[list[str], list[torch.Size], list[int]]:
        """Return names, sizes and numbers of elements of the parameters that a flat parameter holds, in order."""
        pieces = self._handles[flat_param_idx].pieces
        return (
            [piece.names[0] for piece in pieces],
            [piece.size for piece in pieces],
            [piece.size.numel() for piece in pieces],
        )

    def forward(self, *inputs: object, **kwinputs: object) -> Any:
        """Call the module."""
        return self._fpw_module(*inputs, **kwinputs)

    def __getattr__(self, name: str) -> torch.Tensor | torch.nn.Module:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fpw_module"), name)

    def __getitem__(self, key: object) -> torch.nn.Module:
        module: Any = self._fpw_module
        return module[key]
