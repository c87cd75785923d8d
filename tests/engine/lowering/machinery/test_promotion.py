"""Type promotion is PyTorch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.lowering.machinery.promotion import common_dtype, float_dtype

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
]
TENSORS = st.tuples(st.sampled_from(DTYPES), st.integers(0, 1))
NUMBERS = st.sampled_from([True, 3, 2.5, 1j])


def on_device(dtype: torch.dtype) -> torch.dtype:
    # XLA has no complex numbers of narrow parts; those of bfloat16 are in PyTorch since 2.15.
    return torch.complex64 if dtype in (torch.complex32, getattr(torch, "bcomplex32", None)) else dtype


def made(kind: tuple[torch.dtype, int]) -> torch.Tensor:
    return torch.empty((2,) * kind[1], dtype=kind[0])


@settings(max_examples=200)
@given(TENSORS, TENSORS)
def test_of_two_tensors(one: tuple[torch.dtype, int], other: tuple[torch.dtype, int]) -> None:
    assert common_dtype([one, other], []) is on_device(torch.result_type(made(one), made(other)))


@settings(max_examples=100)
@given(TENSORS, NUMBERS, st.sampled_from([torch.float32, torch.float64]))
def test_of_a_tensor_and_a_number(tensor: tuple[torch.dtype, int], number: complex, default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        assert common_dtype([tensor], [number]) is on_device(torch.result_type(made(tensor), number))
    finally:
        torch.set_default_dtype(before)


def test_a_double_complex_number_beside_single_floats_is_single() -> None:
    x, z = torch.full((2,), 0.1), torch.tensor(0.1 + 0j, dtype=torch.complex128)
    assert (x == z).tolist() == (x.to("xla") == z.to("xla")).tolist() == [True, True]


def test_nothing_has_no_dtype_and_integers_become_floats() -> None:
    with pytest.raises(ValueError, match="at least one tensor or number"):
        common_dtype([], [])
    assert common_dtype([], [True, 2]) is torch.int64
    assert [float_dtype(each) for each in (torch.bool, torch.int8, torch.float16, torch.complex128)] == [
        *(torch.float32, torch.float32, torch.float16, torch.complex128)
    ]
