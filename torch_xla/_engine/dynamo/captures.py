"""What a function uses besides its arguments: tensors it closes over, found by running it on tensors without memory."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..private.dynamo import FakeTensor, FakeTensorMode, ShapeEnv


class Stage:
    """Where functions run on tensors that have sizes and dtypes but no memory, and what they captured there."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self._writes = _Writes()
        self._captured: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def describe(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor without memory that is like `tensor`."""
        with self.mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of `function` for such arguments."""
        with torch.no_grad(), self.mode, self._writes, _Substitution(self._stand_in):
            return function(*args)

    def is_written(self, described: torch.Tensor) -> bool:
        """Whether a function wrote to the memory of this tensor."""
        return described.untyped_storage()._cdata in self._writes.storages

    @property
    def captured(self) -> list[torch.Tensor]:
        """The tensors that were used and are no arguments, in the order of their first use."""
        return [real for real, _ in self._captured.values()]

    @property
    def written(self) -> list[int]:
        """Which of them were written to."""
        return [place for place, (_, fake) in enumerate(self._captured.values()) if self.is_written(fake)]

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        known = self._captured.get(id(tensor))
        if known is None:
            known = self._captured[id(tensor)] = tensor, self.describe(tensor)
        return known[1]


class _Writes(TorchDispatchMode):
    """Notes which memory operators write to; not all of them change the version of what they write to."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for place, argument in enumerate(func._schema.arguments):
                value = kwargs.get(argument.name, args[place] if place < len(args) else None)
                if argument.alias_info is not None and argument.alias_info.is_write:
                    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
                    self.storages.update(tensor.untyped_storage()._cdata for tensor in tensors)
        elif func.namespace == "aten":
            # Of what is composed of others, such as a batch norm, only the pieces say what they write to.
            with self:
                composed = func.decompose(*args, **kwargs)
            if composed is not NotImplemented:
                return composed
        return func(*args, **kwargs)


def with_captured(
    function: Callable[..., Any], captured: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    """`function`, which finds the tensors `given` in place of those it closes over."""
    places = {id(tensor): place for place, tensor in enumerate(captured)}

    def substitute(tensor: torch.Tensor) -> torch.Tensor:
        place = places.get(id(tensor))
        return tensor if place is None else given[place]

    def run(*args: Any) -> Any:
        with _Substitution(substitute):
            return function(*args)

    return run


class _Substitution(TorchFunctionMode):
    """Gives every function of PyTorch other tensors in place of some."""

    def __init__(self, substitute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._substitute = substitute

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._substitute, (args, kwargs or {}))
        return func(*args, **kwargs)
