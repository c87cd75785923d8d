"""How parameters are divided and come together again."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.distributed.fsdp import parameter_shards
from torch_xla._engine.distributed.fsdp.parameter_shards import ShardLayout

LAYOUTS = st.builds(
    ShardLayout,
    st.lists(st.integers(0, 5), max_size=3).map(torch.Size),
    st.integers(1, 5),
    st.booleans(),
    st.integers(1, 3),
)


def numbers(size: torch.Size) -> torch.Tensor:
    return torch.arange(1.0, size.numel() + 1).reshape(size)


@settings(max_examples=60)
@given(LAYOUTS)
def test_parts_of_one_size_are_the_whole_again(layout: ShardLayout) -> None:
    tensor = numbers(layout.size)
    parts = [layout.shard(tensor, place) for place in range(layout.count)]
    assert {tuple(part.shape) for part in parts} == {layout.shard_size}
    rows = torch.stack([part.reshape(-1) for part in parts])
    assert torch.equal(layout.rows(tensor), rows) and torch.equal(layout.whole(rows), tensor)
    assert rows.sum() == tensor.sum()  # the rest is zeros
    if not layout.on_dim_0 or not layout.size:
        assert math.prod(layout.shard_size) % layout.multiple == 0


@settings(max_examples=30)
@given(LAYOUTS.filter(lambda layout: layout.on_dim_0 and layout.size))
def test_rows_stay_rows(layout: ShardLayout) -> None:
    tensor = numbers(layout.size)
    step = layout.shard_size[0]
    for place in range(layout.count):
        own = tensor[place * step : (place + 1) * step]
        assert torch.equal(layout.shard(tensor, place)[: len(own)], own)


def test_a_part_has_memory_of_its_own_and_no_gradient() -> None:
    tensor = torch.ones(4, requires_grad=True)
    part = ShardLayout(torch.Size([4]), 2).shard(tensor, 0)
    part.fill_(7)
    assert tensor.tolist() == [1, 1, 1, 1] and not part.requires_grad


def test_one_process_has_it_all() -> None:
    given_parts = [torch.ones(3), torch.zeros(2, 2)]
    found = parameter_shards.gather(given_parts, 1, ())
    assert [tuple(each.shape) for each in found] == [(1, 3), (1, 4)] and parameter_shards.gather([], 4, ()) == []
    assert (
        parameter_shards.reduce_scatter(found, 1, ())[0] is found[0]
        and parameter_shards.reduce_scatter([], 4, (), 1.0) == []
    )


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([torch.float32, torch.bfloat16])), min_size=1, max_size=8),
    st.sampled_from([1e-6, 16 / 2**20, 1.0]),
)
def test_what_travels_together_comes_apart(kinds: list[tuple[int, torch.dtype]], mebibytes: float) -> None:
    rows = [torch.full((1, width), float(number), dtype=dtype) for number, (width, dtype) in enumerate(kinds)]
    sent: list[torch.Tensor] = []

    def exchange(joined: torch.Tensor) -> torch.Tensor:
        sent.append(joined)
        return torch.cat([joined, joined + 100])

    found = parameter_shards._in_buckets(rows, mebibytes, exchange)
    for row, result in zip(rows, found, strict=True):
        assert result.dtype is row.dtype and torch.equal(result, torch.cat([row, row + 100]))
    assert sum(joined.shape[1] for joined in sent) == sum(width for width, _ in kinds)
    most = mebibytes * 2**20
    assert all(joined.nbytes <= most or joined.shape[1] <= 6 for joined in sent)


@pytest.mark.parametrize(("size", "expected"), [((), (1,)), ((5,), (2,)), ((0, 3), (1,))])
def test_the_smallest_parts(size: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert ShardLayout(torch.Size(size), 3).shard_size == expected
