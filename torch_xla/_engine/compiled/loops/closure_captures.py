"""Find the tensors that a function closes over, by running it on tensors without memory."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...compat.names.torch import HigherOrderOperator, address_of, pytree, schema_of
from ...compat.names.torch_dynamo import (
    READS_ON_THE_HOST,
    FakeTensor,
    FakeTensorMode,
    ShapeEnv,
    TorchDispatchMode,
    innermost,
)
from ...metrics import user_lines
from .device_indices import Selections
from .nested_loops import Substitution, by_itself, depth, substituted
from .storage_aliasing import Group, Span, groups_of, like

_WIDEST = 16  # bytes of an element


@dataclass
class _Argument:
    """A tensor that a function receives instead of a captured tensor."""

    fake: torch.Tensor
    memories: tuple[Span, ...]  # the memory of the tensors that it replaces
    is_sliced: bool


class Tracing:
    """Where functions run on tensors that have sizes and dtypes but no memory, and what they captured there.

    Captured tensors that share memory are described by tensors that share it, at the same places.
    """

    def __init__(self) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
        self._writes = _Writes()
        self._captured: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._depth = depth()
        # By memory outside: it, so that its address is given to no other, and the first that was described on it.
        self._memories: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._arguments: dict[int, _Argument] = {}  # by their memory here
        self._shared: dict[int, _Argument] = {}  # arguments that share memory with captured tensors

    def describe(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor without memory that is like `tensor`."""
        with by_itself(), self.mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    def describe_slice(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor without memory like the slices of `tensor` along its first dimension."""
        with by_itself(), self.mode:
            size, stride = tensor.shape[1:], tensor.stride()[1:]
            return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)

    def memory_of(self, tensor: torch.Tensor) -> Span:
        """Return the memory of a tensor that is not described here."""
        outside = substituted(tensor, self._depth)
        with by_itself():
            return Span.of(outside)

    def give(self, described: torch.Tensor, memories: Sequence[Span], is_sliced: bool = False) -> None:
        """Register `described` as an argument: a copy of the contents of `memories`, or of slices of them."""
        with by_itself():
            argument = _Argument(described, tuple(memories), is_sliced)
            self._arguments[address_of(described.untyped_storage())] = argument

    def run(self, function: Callable[..., object], *args: object) -> object:
        """Return the result of `function` for such arguments."""
        selections = Selections(self._writes.to)
        substitution = Substitution(self._stand_in, selections)
        try:
            with by_itself(), torch.no_grad(), self.mode, self._writes, substitution:
                results = _seen(function(*args), self._stand_in)
                with by_itself():
                    selections.finish()
                return results
        except (*READS_ON_THE_HOST, _ReadsANumber) as error:
            raise RuntimeError(
                f"a body that the device runs by itself reads a value of a tensor on the host at "
                f"{_line_of(error)}, as a number, as a size or to decide what to run. Compute with the tensor "
                f"instead of `.item()`, give sizes as Python numbers (such as `num_classes` of one_hot), and "
                f"decide with torch.where or torch.cond"
            ) from error
        finally:
            substitution.end()

    def is_written(self, described: torch.Tensor) -> bool:
        """Return whether a function wrote to the memory of this tensor."""
        with by_itself():
            return self._writes.to(described) > 0

    @property
    def captured(self) -> list[torch.Tensor]:
        """The tensors that were used and are no arguments, in the order of their first use."""
        return [real for real, _ in self._captured.values()]

    @property
    def written(self) -> list[int]:
        """Return the captured tensors that a function changed, also through another tensor of their memory."""
        with by_itself():
            fakes = [fake for _, fake in self._captured.values()]
            return [place for place, fake in enumerate(fakes) if self._writes.to(fake)]

    def groups(self, places: Sequence[int]) -> tuple[Group, ...]:
        """Return which of the captured tensors at `places` share memory, numbered by their order."""
        tensors = [real for real, _ in self._captured.values()]
        fakes = [fake for _, fake in self._captured.values()]
        with by_itself():
            return groups_of([fakes[place] for place in places], [tensors[place] for place in places])

    def check_arguments(self, results: Sequence[object] = ()) -> None:
        """Raise if a function wrote to memory that is also one of its arguments, where that makes a difference.

        Of `results` each takes the place of an argument in the next round.
        """
        with by_itself():
            for argument, result in zip(self._arguments.values(), results, strict=False):
                if isinstance(result, torch.Tensor) and self._writes.to(argument.fake) and self._outside(result):
                    raise self._two_ways(argument)
            for argument in self._shared.values():
                if self._writes.to(argument.fake) or argument.is_sliced and self._is_written_outside(argument):
                    raise self._two_ways(argument)

    def memories(self) -> frozenset[int]:
        """Return the memory outside that was captured, if any of it or an argument was written to."""
        with by_itself():
            seen = [*(fake for _, fake in self._memories.values()), *(each.fake for each in self._arguments.values())]
            return frozenset(self._memories) if any(self._writes.reaches(each) for each in seen) else frozenset()

    def memories_of(self, results: Sequence[object]) -> list[tuple[Span, ...]]:
        """Return the memory that results show and that was captured, or that arguments were copies of; if any was
        written.
        """
        with by_itself():
            return [self._outside(each) if isinstance(each, torch.Tensor) else () for each in results]

    def _outside(self, result: torch.Tensor) -> tuple[Span, ...]:
        span = Span.of(result)
        if not self._writes:
            return ()
        if span.storage in self._shared:
            return self._shared[span.storage].memories
        here = [key for key, (_, fake) in self._memories.items() if Span.of(fake).storage == span.storage]
        return tuple(Span(key, span.start, span.end) for key in here)

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        inner = innermost(tensor)
        if isinstance(inner, FakeTensor) and inner.fake_mode is self.mode:
            if self._shared:
                self._check_use(inner)
            return tensor
        known = self._captured.get(id(tensor))
        if known is None:
            with by_itself():
                known = self._captured[id(tensor)] = tensor, self._capture(tensor)
        return known[1]

    def _capture(self, tensor: torch.Tensor) -> torch.Tensor:
        outside = substituted(tensor, self._depth)
        if innermost(outside) is not outside:
            return self.describe(tensor)  # of a transform, in which no loop runs
        span = Span.of(outside)
        known = self._memories.get(span.storage)
        with self.mode, torch.enable_grad():  # of views that are made without gradients not all can be written to
            found = _described(outside, None if known is None else known[1])
        if known is None:
            self._memories[span.storage] = outside.untyped_storage(), found
        for address, argument in self._arguments.items():
            if any(map(span.overlaps, argument.memories)):
                self._shared[address] = argument
        return found

    def _check_use(self, fake: torch.Tensor) -> None:
        with by_itself():
            argument = self._shared.get(address_of(fake.untyped_storage()))
            if argument is not None and self._is_written_outside(argument):
                raise self._two_ways(argument)

    def _is_written_outside(self, argument: _Argument) -> bool:
        """Return whether a function wrote, through a captured tensor, to the memory that an argument is a copy of."""
        for memory in argument.memories:
            if memory.storage in self._memories:
                fake = self._memories[memory.storage][1]
                if self._writes.to_span(Span(Span.of(fake).storage, memory.start, memory.end)):
                    return True
        return False

    def _two_ways(self, argument: _Argument) -> RuntimeError:
        return RuntimeError(
            f"a body that the device runs by itself writes to memory that it sees in two ways: through a tensor that "
            f"it closes over, and as its argument {like(argument.fake)}. The argument is a copy there, so one would "
            f"not see what is written to the other. Give the loop a `.clone()` of that tensor, or use it in one of "
            f"the ways alone"
        )


class _ReadsANumber(Exception):
    """A body asked for a number that the device alone knows."""


class _Writes(TorchDispatchMode):
    """Record which memory operators write to. Some operators do not change the version of the tensor they write."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._spans: dict[int, Counter[Span]] = defaultdict(Counter)  # by the address of the memory
        self._storages: list[torch.UntypedStorage] = []  # their addresses are given to no other meanwhile

    def __bool__(self) -> bool:
        return bool(self._spans)

    def reaches(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory of `tensor` was written to, inside or outside of the tensor's elements."""
        return Span.of(tensor).storage in self._spans

    def to(self, tensor: torch.Tensor) -> int:
        """Return the number of writes to the memory of `tensor`."""
        return self.to_span(Span.of(tensor))

    def to_span(self, span: Span) -> int:
        """Return the number of writes to a part of a memory."""
        return sum(count for each, count in self._spans.get(span.storage, {}).items() if each.overlaps(span))

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)  # a loop or branch, which writes to nothing
        if schema_of(func).is_mutable:
            for place, argument in enumerate(schema_of(func).arguments):
                value = kwargs.get(argument.name, args[place] if place < len(args) else None)
                if argument.alias_info is not None and argument.alias_info.is_write:
                    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
                    self._storages += [tensor.untyped_storage() for tensor in tensors]
                    for span in map(Span.of, tensors):
                        self._spans[span.storage][span] += 1
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


def _described(tensor: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor like `tensor`, at the same place of its memory; on the memory of `other` if there is one."""
    end = Span.of(tensor).end
    if other is None:
        if not tensor.storage_offset():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        memory = torch.empty(end // tensor.itemsize, dtype=tensor.dtype, device=tensor.device)
    else:
        storage = other.untyped_storage()
        if storage.nbytes() < end or storage.nbytes() % _WIDEST:
            storage.resize_(-(-max(end, storage.nbytes()) // _WIDEST) * _WIDEST)
        memory = other.detach().as_strided((storage.nbytes() // other.itemsize,), (1,), 0)
        memory = memory if other.dtype is tensor.dtype else memory.view(tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _line_of(error: BaseException) -> str:
    """Return the user's innermost line on the way to `error`."""
    found, frame = "an unknown line", error.__traceback__
    while frame is not None:
        if user_lines.belongs_to_user(frame.tb_frame.f_code.co_filename):
            found = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found


def _seen(results: object, substitute: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """Return results of a function; one that it closes over and returns as it is went through no function of
    PyTorch.
    """
    return pytree.tree_map_only(torch.Tensor, substitute, results)


def with_captured(
    function: Callable[..., object], captured: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Callable[..., Any]:
    """Return `function`, which finds the tensors `given` in place of those it closes over."""
    places = {id(tensor): place for place, tensor in enumerate(captured)}

    def substitute(tensor: torch.Tensor) -> torch.Tensor:
        place = places.get(id(tensor))
        return tensor if place is None else given[place]

    def run(*args: object) -> object:
        substitution = Substitution(substitute)
        try:
            with substitution:
                return _seen(function(*args), substitute)
        finally:
            substitution.end()

    return run
