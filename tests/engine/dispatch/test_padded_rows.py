"""Rows of integers to which one is appended again and again: equal to the CPU's, in programs that do not change."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import torch_xla
from torch_xla._engine.tensor.padded_rows import Grown
from torch_xla.debug import metrics

_CALLS = {
    "append": lambda x, i: torch.cat([x, x[..., -1:] + i], -1),
    "last": lambda x, i: torch.cat([x, x[..., -1].unsqueeze(-1) * 2], -1),
    "middle": lambda x, i: torch.cat([x, x[..., 1:2]], -1),
    "from the front": lambda x, i: torch.cat([x[..., i % 3 : i % 3 + 1], x], -1),
    "write": lambda x, i: x.clone().index_fill_(-1, torch.tensor([0], device=x.device), i),
    "write to a part": lambda x, i: _written(x, i),
    "add": lambda x, i: x + i,
    "ones": lambda x, i: torch.cat([x, x.new_ones((*x.shape[:-1], 1))], -1),
    "padded": lambda x, i: torch.cat([x, F.pad(x, (0, 5), value=i)[..., -1:]], -1),
    "truth": lambda x, i: torch.cat([x, F.pad(x.bool(), (0, 3)).sum(-1, keepdim=True)], -1),
    "every other": lambda x, i: torch.cat([x, x[..., ::2][..., -1:]], -1),
    "rows": lambda x, i: x[:1].expand(x.shape).contiguous(),
}


def _written(x: torch.Tensor, i: int) -> torch.Tensor:
    x[..., -1] = i
    return x


@settings(max_examples=6, deadline=None)
@given(st.lists(st.sampled_from(sorted(_CALLS)), min_size=3, max_size=8), st.sampled_from([(3,), (2, 3), (2, 1, 2)]))
def test_they_are_what_the_cpu_computes(names: list[str], size: tuple[int, ...]) -> None:
    ours, theirs = (torch.arange(24, device=device)[: torch.Size(size).numel()].view(size) for device in ("xla", "cpu"))
    for i, name in enumerate(["append", "append", *names]):
        ours, theirs = _CALLS[name](ours, i), _CALLS[name](theirs, i)
        assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
    assert ours.cpu().equal(theirs)


@pytest.mark.parametrize("fill", [1.5, -1.5, 2**40, float("inf"), float("nan"), 2**63, 1j], ids=str)
def test_padding_is_what_the_cpu_takes_for_it(fill: Any) -> None:
    found: list[Any] = []
    for device in ("cpu", "xla"):
        x = torch.tensor([[1, 2]], dtype=torch.int32, device=device)
        for _ in range(3):
            x = torch.cat([x, x[:, :1]], -1)
        try:
            found.append(F.pad(x, (0, 2), value=fill).tolist())
        except (RuntimeError, TypeError, OverflowError) as error:
            found.append(type(error))
    assert found[0] == found[1]


def _steps(count: int) -> tuple[torch.Tensor, list[int]]:
    """A text that grows, with a mask, positions and a read in each step; how many programs each step compiled."""
    ids = torch.tensor([[3, 1], [2, 5]], device="xla")
    mask, position = torch.ones_like(ids), torch.arange(2, device="xla").expand(2, 2).contiguous()
    seen, compiled = torch.zeros((), dtype=torch.int64, device="xla"), []
    for _ in range(count):
        before = _compilations()
        allowed = F.pad(mask.bool(), (0, 40 - mask.shape[1]))
        token = (ids[:, -1:] * 7 + position[:, -1:] + allowed.sum(-1, keepdim=True) + seen) % 11
        seen.add_(1)
        mask = torch.cat([mask, mask.new_ones((2, 1))], -1)
        position = torch.cat([position, position[:, -1:] + 1], -1)
        ids = torch.cat([ids, token], -1)
        bool((ids[:, -1] < 11).all())
        compiled.append(_compilations() - before)
    return ids, compiled


def _compilations() -> int:
    found: Any = metrics.metric_data("CompileTime")
    return found[0] if found else 0


def test_a_step_that_appends_is_one_program() -> None:
    ids, compiled = _steps(12)
    assert sum(compiled[4:]) == 0, compiled
    assert isinstance(ids.untyped_storage().value, Grown)  # type: ignore[attr-defined]
    again, compiled = _steps(12)
    assert sum(compiled[2:]) == 0, compiled
    assert again.cpu().equal(ids.cpu()) and ids.shape == (2, 14)


def test_a_counter_is_counted_once_though_each_step_is_cut_by_a_read() -> None:
    count, x = torch.zeros((), dtype=torch.int64, device="xla"), torch.ones(3, device="xla")
    compiled = []
    for _ in range(8):
        before = _compilations()
        y = x * count
        count.add_(1)  # the read does not need it, and the next step does
        y.sum().item()
        compiled.append(_compilations() - before)
    assert sum(compiled[3:]) == 0, compiled
    assert count.item() == 8


def test_a_single_concatenation_is_recorded_as_it_is() -> None:
    x, last = torch.zeros(4, 7, dtype=torch.int64, device="xla"), torch.ones(4, 1, dtype=torch.int64, device="xla")
    for _ in range(3):
        longer = torch.cat([x, last], -1)
        assert not isinstance(longer.untyped_storage().value, Grown)  # type: ignore[attr-defined]
    torch_xla.sync()
