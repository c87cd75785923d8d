"""Memory that a body sees through several tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torch_xla._engine.compiled.loops.storage_aliasing import Span, groups_of, like, on_one_memory, put
from torch_xla.experimental.scan import scan


def test_a_span_is_the_bytes_that_a_tensor_shows() -> None:
    memory = torch.zeros(4, 3)
    row, column = Span.of(memory[1]), Span.of(memory[:, 1])
    assert (row.start, row.end, column.start, column.end) == (12, 24, 4, 44) and row.storage == column.storage
    assert row.overlaps(column) and not row.overlaps(Span.of(memory[2])) and not row.overlaps(Span.of(torch.ones(9)))
    assert Span.of(memory[:0]).end == 0 and not Span.of(memory[1, :0]).overlaps(row)
    assert like(memory[1]) == "float32[3]" and like(3) == "3"


def test_tensors_of_one_memory_see_what_is_written_to_the_others() -> None:
    memory = torch.arange(8.0)
    other = torch.ones(2)
    for tensors in (
        [memory, other, memory[2:6].view(2, 2)],
        [memory[:5], other, memory[3:], memory[4].expand(3)],
        [memory.view(2, 4).t(), other, memory[1]],
    ):
        groups = groups_of(tensors, tensors)
        assert [place.number for place in groups[0]] == [n for n in range(len(tensors)) if n != 1] and len(groups) == 1
        given = on_one_memory([each.clone() for each in tensors], groups)
        torch.testing.assert_close(given, tensors)
        given[0].add_(1)
        expected = memory.clone()
        tensors[0].add_(1)
        torch.testing.assert_close(given, tensors)
        memory.copy_(expected)
        assert memory.tolist() == list(range(8))


def test_parts_of_a_memory_that_do_not_overlap_are_apart() -> None:
    memory, other = torch.zeros(12), torch.zeros(2)
    tensors = [memory[8:], memory[:3], memory[2:4], other, memory[3:6], memory[6:8].view(torch.int32)]
    assert [[each.number for each in group] for group in groups_of(tensors, tensors)] == [[1, 2, 4]]


def test_what_was_expanded_is_written_once() -> None:
    memory = torch.zeros(3)
    put(memory.expand(4, 3), torch.ones(4, 3))
    assert memory.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (lambda x: x.view(torch.int32), r"float32\[4\] and int32\[4\], one of which shows the bytes as another dtype"),
        (lambda x: x.unfold(0, 2, 1), r"float32\[4\] and float32\[3, 2\], one of which shows elements more than once"),
        (torch._neg_view, "one of which shows conjugates or negatives"),
    ],
)
def test_what_cannot_be_put_on_one_memory_is_refused(view: Callable[[torch.Tensor], torch.Tensor], words: str) -> None:
    buffer = torch.zeros(4, device="xla")
    seen = view(buffer)

    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        buffer.add_(x)
        return carry + seen.sum(), x

    with pytest.raises(RuntimeError, match=rf"sees through several tensors it closes over, .*{words}\. Close over"):
        scan(body, torch.zeros((), device="xla"), torch.ones(2, 4, device="xla"))
    # Tensors that are only read may share memory in any way.
    carry, _ = scan(lambda c, x: (c + seen.sum() + buffer.sum(), x), torch.zeros(()).to("xla"), torch.ones(2).to("xla"))
    assert carry.item() == 0
