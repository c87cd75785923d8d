"""The properties of a value that are known before it is computed."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_xla._engine.caching import interning
from torch_xla._engine.ir import value_spec
from torch_xla._engine.ir.sharding import Sharding
from torch_xla._engine.ir.value_spec import MOST_BYTES, contiguous_stride, refuse_impossible, sharded, spec_of

sizes = st.lists(st.integers(0, 4), max_size=4)


@given(sizes)
def test_contiguous_strides_are_those_of_pytorch(size: list[int]) -> None:
    assert contiguous_stride(tuple(size)) == torch.empty(size).stride()


@given(sizes, st.permutations(range(4)))
def test_what_is_contiguous_is_so_for_pytorch(size: list[int], order: list[int]) -> None:
    tensor = torch.empty(size).permute([dim for dim in order if dim < len(size)])
    found = spec_of(tuple(tensor.shape), tensor.stride(), tensor.dtype)
    assert found.numel == tensor.numel()
    if found.is_contiguous:
        assert tensor.is_contiguous()
    elif tensor.numel():
        assert tensor.stride() != torch.empty(tensor.shape).stride()


def test_equal_specs_are_one_object() -> None:
    row = spec_of((2, 3), (3, 1), torch.float32)
    assert spec_of((2, 3), (3, 1), torch.float32) is row
    others = [
        spec_of((3, 2), (3, 1), torch.float32),
        spec_of((2, 3), (1, 2), torch.float32),
        spec_of((2, 3), (3, 1), torch.float64),
        sharded(row, Sharding(((0,),))),
        sharded(row, Sharding(((), (0,)))),
    ]
    assert len({id(each) for each in [row, *others]}) == 6
    assert [each.is_complex for each in (row, spec_of((), (), torch.complex64), spec_of((), (), None))] == [0, 1, 0]


def test_a_divided_spec_knows_the_plain_one() -> None:
    plain, by_rows, by_columns = spec_of((2, 3), (3, 1), torch.int8), Sharding(((0,),)), Sharding(((), (0,)))
    divided = sharded(plain, by_rows)
    assert divided.plain is plain and plain.plain is plain and divided.sharding == by_rows
    assert sharded(divided, Sharding(((0,),))) is divided and sharded(divided, None) is plain
    assert sharded(divided, by_columns) is sharded(plain, by_columns)
    assert repr(divided) == "Spec((2, 3), (3, 1), torch.int8, [0])"


def test_specs_that_nobody_holds_leave() -> None:
    held = sharded(spec_of((7, 11, 13), (143, 13, 1), torch.int8), Sharding(((5,),)))
    sharded(spec_of((7, 11, 14), (154, 14, 1), torch.int8), Sharding(((5,),)))
    gc.collect()
    interning.drop_unused()
    assert ((7, 11, 14), (154, 14, 1), torch.int8) not in value_spec._specs
    assert sharded(spec_of((7, 11, 13), (143, 13, 1), torch.int8), Sharding(((5,),))) is held


def test_what_no_device_could_hold_is_refused() -> None:
    fits = spec_of((MOST_BYTES // 4,), (1,), torch.float32)
    refuse_impossible(fits)
    with pytest.raises(RuntimeError, match=r"^can't allocate memory: .* takes 35184372088840 bytes \(32 TiB\)"):
        refuse_impossible(spec_of((MOST_BYTES // 8 + 1,), (1,), torch.float64))
