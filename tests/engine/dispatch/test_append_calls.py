"""Rows of integers to which one is appended again and again: equal to the CPU's, in programs that do not change."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import torch_xla
from torch_xla._engine.tensor import spare_capacity
from torch_xla._engine.tensor.spare_capacity import Grown
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


_OF_ROWS = {
    "append": lambda x, i: torch.cat([x, x[..., -1:, :] + i], -2),
    "append by another name": lambda x, i: torch.cat([x, x[:, :, :1] * 2], dim=x.dim() - 2),
    "scores": lambda x, i: torch.cat([x, (x @ x.transpose(-1, -2))[..., :1, :1].expand(x[..., :1, :].shape)], -2),
    "without the last": lambda x, i: x[..., :-1, :],
    "other batch": lambda x, i: x.index_select(0, torch.tensor([1, 0], device=x.device)),
    "repeated": lambda x, i: x[:, :, None].expand(2, 2, 2, -1, 3).reshape(2, 4, -1, 3)[:, ::2],
    "write": lambda x, i: x.clone().index_fill_(-2, torch.tensor([0], device=x.device), i),
    "half": lambda x, i: x.to(torch.float16).to(torch.float32),
    "attend": lambda x, i: torch.cat([x, F.scaled_dot_product_attention(x[..., -1:, :], x, x)], -2),
    "attend with scores": lambda x, i: torch.cat(
        [x, F.scaled_dot_product_attention(x[..., -1:, :], x, x, torch.zeros(1, x.shape[-2], device=x.device))], -2
    ),
    "attend causally": lambda x, i: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attend to fewer": lambda x, i: torch.cat(
        [x, F.scaled_dot_product_attention(x[..., -1:, :], x[..., :2, :], x[..., :2, :])], -2
    ),
}


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(sorted(_OF_ROWS)), min_size=2, max_size=6), st.booleans())
def test_rows_of_numbers_are_what_the_cpu_computes(names: list[str], without_gradients: bool) -> None:
    ours, theirs = (torch.linspace(-1, 1, 36, device=device).view(2, 2, 3, 3) for device in ("xla", "cpu"))
    with torch.set_grad_enabled(not without_gradients):
        for i, name in enumerate(["append", "append", *names]):
            ours, theirs = _OF_ROWS[name](ours, i), _OF_ROWS[name](theirs, i)
            assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
    torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-4)


def _written_with_a_cache(device: str, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, list[int]]:
    """Tokens, each chosen by attention to keys and values of all before; how many programs each compiled."""
    made = torch.Generator().manual_seed(0)
    table, wq, wk, wv = (torch.randn(n, 16, generator=made).to(dtype).to(device) for n in (11, 16, 16, 16))
    ids = torch.tensor([[3, 1, 7], [2, 5, 5]], device=device)
    keys, values = torch.tensor([], dtype=dtype, device=device), torch.tensor([], dtype=dtype, device=device)
    compiled = []
    for _ in range(count):
        before = _compilations()
        x = table[ids if not keys.numel() else ids[:, -1:]]
        heads = [(x @ w).unflatten(-1, (-1, 4)).transpose(1, 2) for w in (wq, wk[:, :8], wv[:, :8])]
        keys, values = torch.cat([keys, heads[1]], dim=-2), torch.cat([values, heads[2]], dim=-2)
        is_first = x.shape[1] > 1
        found = F.scaled_dot_product_attention(heads[0], keys, values, is_causal=is_first, enable_gqa=True)
        scores = found.transpose(1, 2).flatten(2)[:, -1] @ table.T
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], -1)
        bool((ids[:, -1] < 11).all())
        compiled.append(_compilations() - before)
    return ids.cpu(), compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_of_keys_and_values_that_grows_needs_a_program_for_each_doubling(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(spare_capacity, "_LEAST_ROWS", 8)
    with torch.no_grad():
        found, compiled = _written_with_a_cache("xla", 24, dtype)
        expected, _ = _written_with_a_cache("cpu", 24, dtype)
        assert found.equal(expected)
        # The prompt, the first token, and twice where the room grows: to 16 rows and to 32.
        assert sum(compiled) <= 8, compiled
        assert sum(compiled[-8:]) == 0, compiled
        again, compiled = _written_with_a_cache("xla", 24, dtype)
        assert again.equal(expected)
        assert sum(compiled) == 0, compiled


def test_texts_that_are_chosen_keep_growing() -> None:
    with torch.no_grad():
        for device in ("cpu", "xla"):
            x = torch.arange(24.0, device=device).view(2, 2, 3, 2)
            for chosen in ([1, 0], [1, 1], [0, 1]):
                x = torch.cat([x, x[:, :, :1] + 1], -2).index_select(0, torch.tensor(chosen, device=device))
            if device == "cpu":
                expected = x
        assert isinstance(x.untyped_storage().value, Grown)  # type: ignore[attr-defined]
        assert x.cpu().equal(expected) and x.stride() == expected.stride()
        assert x.index_select(-2, torch.tensor([4, 1], device="xla")).cpu().equal(expected[:, :, [4, 1]])
        with pytest.raises(IndexError):
            x.index_select(7, torch.tensor([0], device="xla"))


def test_with_gradients_rows_are_concatenated_as_they_are() -> None:
    x = torch.ones(2, 2, 3, 4, device="xla", requires_grad=True)
    longer = torch.cat([torch.cat([x, x[:, :, :1]], -2), x[:, :, :1]], -2)
    assert not isinstance(longer.untyped_storage().value, Grown)  # type: ignore[attr-defined]
    F.scaled_dot_product_attention(x, longer, longer).sum().backward()
    assert x.grad is not None
