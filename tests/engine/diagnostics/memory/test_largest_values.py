"""The biggest values on the devices, by the lines that made them."""

import sys

import torch

import torch_xla
from torch_xla._engine.diagnostics.memory.largest_values import Holding, holdings


def made_at(line: int) -> list[Holding]:
    return [each for each in holdings(1000) if each.line and each.line[:2] == (__file__, line)]


def test_each_buffer_is_counted_once() -> None:
    line = sys._getframe().f_lineno + 1
    x = torch.ones(100, 100, device="xla") + 1
    y, view = x.clone(), x[0]
    torch_xla.sync(wait=True)
    (mine,) = made_at(line)
    assert (mine.count, mine.bytes, mine.shape, mine.names) == (1, 40_000, "[100, 100] float32", ["x"])
    assert y.shape == (100, 100) and view.shape == (100,)


def test_the_values_of_a_line_come_together_and_the_largest_gives_the_shape() -> None:
    line = sys._getframe().f_lineno + 1
    kept = [torch.ones(size, device="xla") * 2 for size in (5, 9, 7)]
    torch_xla.sync(wait=True)
    (mine,) = made_at(line)
    assert (mine.count, mine.bytes, mine.shape) == (3, 84, "[9] float32")
    assert mine.names == ["kept[1]", "kept[2]", "kept[0]"]
    del kept[1:], mine
    torch_xla.sync(wait=True)
    (mine,) = made_at(line)
    assert (mine.count, mine.bytes) == (1, 20)


def test_the_lines_with_most_memory_come_first() -> None:
    kept = [torch.ones(1000, device="xla") * 3, torch.ones(3000, device="xla") * 3]
    torch_xla.sync(wait=True)
    found = holdings(1000)
    assert [each.bytes for each in found] == sorted((each.bytes for each in found), reverse=True)
    assert len(holdings(1)) == 1 and holdings(1)[0].bytes == found[0].bytes and len(kept) == 2
    assert Holding(None).shape == ""
