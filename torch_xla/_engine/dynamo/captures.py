"""What a function uses besides its arguments: tensors it closes over, found by running it on tensors without memory."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..metrics import lines
from ..private.dynamo import READS_ON_THE_HOST, FakeTensor, FakeTensorMode, ShapeEnv, TorchDispatchMode, innermost
from ..private.torch import HigherOrderOperator, address_of, pytree, schema_of
from .indices import Selections
from .nesting import Substitution, by_itself


class Tracing:
    """Where functions run on tensors that have sizes and dtypes but no memory, and what they captured there."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self._writes = _Writes()
        self._captured: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def describe(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor without memory that is like `tensor`."""
        with by_itself(), self.mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    def describe_slice(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor without memory like the slices of `tensor` along its first dimension."""
        with by_itself(), self.mode:
            size, stride = tensor.shape[1:], tensor.stride()[1:]
            return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """The result of `function` for such arguments."""
        selections = Selections(self._writes.counts)
        with by_itself(), torch.no_grad(), self.mode, self._writes, Substitution(self._stand_in, selections):
            try:
                results = _seen(function(*args), self._stand_in)
                selections.finish()
                return results
            except (*READS_ON_THE_HOST, _ReadsANumber) as error:
                raise RuntimeError(
                    f"a body that the device runs by itself reads a value of a tensor on the host at "
                    f"{_line_of(error)}, as a number, as a size or to decide what to run. Compute with the tensor "
                    f"instead of `.item()`, give sizes as Python numbers (such as `num_classes` of one_hot), and "
                    f"decide with torch.where or torch.cond"
                ) from error

    def is_written(self, described: torch.Tensor) -> bool:
        """Whether a function wrote to the memory of this tensor."""
        return address_of(innermost(described).untyped_storage()) in self._writes.counts

    @property
    def captured(self) -> list[torch.Tensor]:
        """The tensors that were used and are no arguments, in the order of their first use."""
        return [real for real, _ in self._captured.values()]

    @property
    def written(self) -> list[int]:
        """Which of them were written to."""
        return [place for place, (_, fake) in enumerate(self._captured.values()) if self.is_written(fake)]

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        inner = innermost(tensor)
        if isinstance(inner, FakeTensor) and inner.fake_mode is self.mode:
            return tensor
        known = self._captured.get(id(tensor))
        if known is None:
            known = self._captured[id(tensor)] = tensor, self.describe(tensor)
        return known[1]


class _ReadsANumber(Exception):
    """A body asked for a number that the device alone knows."""


class _Writes(TorchDispatchMode):
    """Notes which memory operators write to; not all of them change the version of what they write to."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[int] = Counter()
        self._storages: list[torch.UntypedStorage] = []  # their addresses are given to no other meanwhile

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)  # a loop or branch, which writes to nothing
        if schema_of(func).is_mutable:
            for place, argument in enumerate(schema_of(func).arguments):
                value = kwargs.get(argument.name, args[place] if place < len(args) else None)
                if argument.alias_info is not None and argument.alias_info.is_write:
                    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
                    storages = [tensor.untyped_storage() for tensor in tensors]
                    self._storages += storages
                    self.counts.update(map(address_of, storages))
        elif func.namespace == "aten":
            # Of what is composed of others, such as a batch norm, only the pieces say what they write to.
            with self:
                composed = func.decompose(*args, **kwargs)
            if composed is not NotImplemented:
                return composed
        result = func(*args, **kwargs)
        if isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise _ReadsANumber
        return result


def _line_of(error: BaseException) -> str:
    """The user's innermost line on the way to `error`."""
    found, frame = "an unknown line", error.__traceback__
    while frame is not None:
        if lines.belongs_to_user(frame.tb_frame.f_code.co_filename):
            found = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found


def _seen(results: Any, substitute: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Results of a function; one that it closes over and returns as it is went through no function of PyTorch."""
    return pytree.tree_map_only(torch.Tensor, substitute, results)


def with_captured(
    function: Callable[..., Any], captured: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    """`function`, which finds the tensors `given` in place of those it closes over."""
    places = {id(tensor): place for place, tensor in enumerate(captured)}

    def substitute(tensor: torch.Tensor) -> torch.Tensor:
        place = places.get(id(tensor))
        return tensor if place is None else given[place]

    def run(*args: Any) -> Any:
        with Substitution(substitute):
            return _seen(function(*args), substitute)

    return run
