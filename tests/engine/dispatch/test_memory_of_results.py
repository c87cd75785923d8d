"""Operators that share memory with an operand, copy a part of a storage, or fill an `out=` by a way of their own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla.debug.metrics as met

Make = Callable[[torch.Tensor], torch.Tensor]

MATRIX = torch.tensor([[3.0, 1.0, 4.0], [1.0, 5.0, 1.0]])

CALLS: dict[str, Callable[[Make], Any]] = {
    "all of no dimensions": lambda on: torch.all(on(MATRIX).t(), ()),
    "any of no dimensions": lambda on: torch.any(on(MATRIX).t(), (), keepdim=True),
    "no images made larger": lambda on: torch.nn.functional.interpolate(on(MATRIX[None, None, :])[:0], scale_factor=2),
    "nansum over no dimensions": lambda on: (torch.nansum(on(MATRIX), ()), torch.nansum(on(MATRIX), (), keepdim=True)),
    "as_strided_copy": lambda on: torch.as_strided_copy(on(MATRIX)[1:], (2, 2), (3, 1), 1),
    "as_strided_scatter": lambda on: torch.as_strided_scatter(on(MATRIX).t(), on(torch.zeros(2)), (2,), (2,), 1),
    "cummax": lambda on: torch.cummax(on(MATRIX), 1, out=(on(torch.empty(0)), on(torch.empty(0, dtype=torch.int64)))),
    "cummin": lambda on: torch.cummin(on(MATRIX), 1, out=(on(torch.empty(0)), on(torch.empty(0, dtype=torch.int64)))),
    "kron": lambda on: torch.kron(on(MATRIX), on(MATRIX), out=on(torch.empty(0))),
    "logcumsumexp": lambda on: torch.logcumsumexp(on(MATRIX), 1, out=on(torch.empty(0))),
    "linspace": lambda on: torch.linspace(0, 2.5, 3, out=on(torch.empty(0, dtype=torch.int64))),
    "logspace": lambda on: torch.logspace(0, 1.2, 2, 5.0, out=on(torch.empty(0, dtype=torch.int64))),
    "mode": lambda on: torch.mode(on(MATRIX), 1, out=(on(torch.empty(0)), on(torch.empty(0, dtype=torch.int64)))),
    "unsafe_chunk": lambda on: torch.unsafe_chunk(on(MATRIX), 3, 1),
    "unsafe_split": lambda on: torch.unsafe_split(on(MATRIX), 2, 1),
    "unsafe_split_with_sizes": lambda on: torch.unsafe_split_with_sizes(on(MATRIX), [2, 1], 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_values_and_strides_agree_without_the_cpu(name: str) -> None:
    met.clear_all()
    ours, theirs = CALLS[name](lambda t: t.to("xla")), CALLS[name](lambda t: t)
    assert not met.executed_fallback_ops()
    pairs = zip(*(r if isinstance(r, tuple | list) else (r,) for r in (ours, theirs)), strict=True)
    for mine, yours in pairs:
        assert mine.device.type == "xla" and mine.stride() == yours.stride()
        torch.testing.assert_close(mine.cpu(), yours)


def test_a_scattered_copy_leaves_its_source_alone() -> None:
    x = MATRIX.to("xla")
    torch.as_strided_scatter(x, torch.zeros(2, device="xla"), (2,), (1,), 4)
    assert torch.equal(x.cpu(), MATRIX)
    with pytest.raises(RuntimeError, match=r"expected src to have a size equal to the slice of self"):
        torch.as_strided_scatter(x, torch.zeros(3, device="xla"), (2,), (1,))


def test_a_part_of_an_unsafe_split_shares_the_memory() -> None:
    x = MATRIX.to("xla")
    torch.unsafe_split(x, 2, 1)[1].fill_(9)
    assert x[:, 2].tolist() == [9, 9]
