"""Tensors of a loop body that share memory: which bytes each shows, and one operand for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...compat.names.torch import address_of
from ...compat.names.torch_dynamo import innermost


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The bytes of a storage from the first to the last that a tensor shows."""

    storage: int
    start: int
    end: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Span":
        """Return the bytes that `tensor` shows."""
        tensor = innermost(tensor)
        start = int(tensor.storage_offset()) * tensor.itemsize
        return cls(address_of(tensor.untyped_storage()), start, start + _length(tensor) * tensor.itemsize)

    def overlaps(self, other: "Span") -> bool:
        """Return whether the two ranges share a byte."""
        return self.storage == other.storage and max(self.start, other.start) < min(self.end, other.end)


@dataclass(frozen=True, slots=True)
class Position:
    """The place of one argument, known by its number, in a memory."""

    number: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the tensor's view of this memory."""
        return memory.as_strided(self.size, self.stride, self.offset)


# Tensors that share one memory.
Group = tuple[Position, ...]


def groups_of(described: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> tuple[Group, ...]:
    """Return groups of tensors that share memory. Raises if the sharing cannot be reproduced.

    `described` are stand-ins for `tensors` with the same storage offsets and strides.
    """
    spans = sorted((Span.of(tensor), number) for number, tensor in enumerate(described))
    found: list[list[int]] = []
    reach = None  # the memory of those in the last list
    for span, number in spans:
        if reach is not None and reach.overlaps(span):
            found[-1].append(number)
            reach = Span(span.storage, reach.start, max(reach.end, span.end))
        else:
            found.append([number])
            reach = span
    return tuple(_group(described, tensors, sorted(numbers)) for numbers in found if len(numbers) > 1)


def on_one_memory(given: Sequence[torch.Tensor], groups: Sequence[Group]) -> list[torch.Tensor]:
    """Return the tensors `given`, with the tensors of each group replaced by copies that share one memory."""
    given = list(given)
    with torch.enable_grad():  # also where a graph without gradients is traced: what computes some inside sees views
        for group in groups:
            memory = _memory(given, group)
            for place in group:
                given[place.number] = place.of(memory)
    return given


def put(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write `value` to `tensor`, once to each element of an expanded one."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor, value = tensor.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    tensor.copy_(value)


def like(tensor: object) -> str:
    """Return a tensor in words: dtype and sizes; something else as it is written."""
    if not isinstance(tensor, torch.Tensor):
        return repr(tensor)
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}]"


def _group(described: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> Group:
    members = [described[number] for number in numbers]
    for refused, what in _REFUSED:
        if any(refused(tensors[number], members[0]) for number in numbers):
            raise RuntimeError(
                f"a body that the device runs by itself writes to memory that it sees through several tensors it "
                f"closes over, {' and '.join(map(like, members))}, {what}. Close over the one that the others are "
                f"views of, and make the views inside of the body"
            )
    offsets = [int(each.storage_offset()) for each in members]
    return tuple(
        Position(number, tuple(each.shape), tuple(each.stride()), offset - min(offsets))
        for number, each, offset in zip(numbers, members, offsets, strict=True)
    )


def _repeats(tensor: torch.Tensor) -> bool:
    """Return whether elements of `tensor` share memory for another reason than an expanded dimension."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


_REFUSED: tuple[tuple[Callable[[torch.Tensor, torch.Tensor], bool], str], ...] = (
    (lambda each, first: each.dtype is not first.dtype, "one of which shows the bytes as another dtype"),
    (lambda each, first: each.is_conj() or each.is_neg(), "one of which shows conjugates or negatives"),
    (lambda each, first: _repeats(each), "one of which shows elements more than once"),
)


def _memory(given: Sequence[torch.Tensor], group: Group) -> torch.Tensor:
    """Return one memory with what the tensors of a group hold."""
    length = max(place.offset + _length(given[place.number], place.stride) for place in group)
    for place in group:
        tensor = given[place.number]
        if tensor.numel() == length and tensor.is_contiguous() and place.stride == tensor.stride():
            return tensor.view(-1).clone()  # a copy: traces refuse writes to views through `as_strided`
    memory = torch.zeros(length, dtype=given[group[0].number].dtype, device=given[group[0].number].device)
    for place in group:
        put(place.of(memory), given[place.number])
    return memory


def _length(tensor: torch.Tensor, stride: Sequence[int] | None = None) -> int:
    """Return the number of elements of memory from the first to the last element of `tensor`, with such strides."""
    if not tensor.numel():
        return 0
    pairs = zip(tensor.shape, tensor.stride() if stride is None else stride, strict=True)
    return 1 + sum((size - 1) * step for size, step in pairs)
