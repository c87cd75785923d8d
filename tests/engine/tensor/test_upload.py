"""Elements go to the device bit by bit, and nothing that happens to the host's memory afterwards reaches them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine import dtypes
from torch_xla._engine.tensor.device import device_at
from torch_xla._engine.tensor.storage import wrap
from torch_xla._engine.tensor.upload import dense_spec, from_numpy, to_numpy, upload


@pytest.mark.parametrize("size", [(), (3,), (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", dtypes.TO_TORCH.values(), ids=str)
def test_a_round_trip_keeps_bits_size_and_dtype(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    host = torch.arange(6.0)[: int(np.prod(size))].reshape(size).to(dtype)
    array = to_numpy(host)
    assert array.shape == size and dtypes.to_torch(array.dtype) is dtype
    again = from_numpy(array)
    assert again.dtype is dtype and again.shape == host.shape
    back = wrap(upload(host, device_at(0))).cpu()
    for found in (again, back):
        assert found.contiguous().view(-1).view(torch.uint8).equal(host.contiguous().view(-1).view(torch.uint8))


@given(st.permutations(range(3)), st.tuples(*[st.integers(1, 2)] * 3))
@settings(max_examples=30)
def test_any_order_of_memory_arrives(order: list[int], steps: tuple[int, ...]) -> None:
    host = torch.arange(4 * 6 * 2).reshape(4, 6, 2).permute(order)[tuple(slice(None, None, step) for step in steps)]
    value = upload(host, device_at(0))
    assert wrap(value).tolist() == host.tolist()
    assert value.spec.stride == (host.stride() if 1 in steps and set(steps) == {1} else host.contiguous().stride())


def test_what_is_a_view_of_other_numbers_is_resolved() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    np.testing.assert_array_equal(to_numpy(z.conj()), [1 - 2j, 3 + 1j])
    np.testing.assert_array_equal(to_numpy(z.conj().imag), [-2, 1])
    half = torch.tensor([[1, 2], [3, 4]], dtype=torch.bfloat16).t()
    np.testing.assert_array_equal(to_numpy(half).astype(np.float32), [[1, 3], [2, 4]])


def test_a_write_on_the_host_afterwards_does_not_reach_the_device() -> None:
    host = torch.arange(100.0)
    value = upload(host, device_at(0))
    host.zero_()
    assert wrap(value)[99].item() == 99


def test_a_few_numbers_are_remembered_and_many_are_not() -> None:
    few, many = torch.tensor([3, 1, 2]), torch.arange(65)
    value = upload(few, device_at(0))
    few.zero_()
    np.testing.assert_array_equal(value.contents, [3, 1, 2])
    for others in (many, torch.ones(2, dtype=torch.complex64), torch.ones(0)):
        assert upload(others, device_at(0)).contents is None


def test_memory_with_gaps_is_made_dense() -> None:
    assert dense_spec(torch.empty(4, 6)[:, :3]).stride == (3, 1)
    assert dense_spec(torch.empty(4, 6).t()).stride == (1, 6)
    assert dense_spec(torch.empty(1).expand(3)).stride == (1,)


def test_more_dimensions_than_numpy_has_are_refused() -> None:
    with pytest.raises(
        RuntimeError, match="^only tensors with up to 64 dims are supported on an xla device; this one "
    ):
        upload(torch.empty([1] * 64).unsqueeze(0).unsqueeze(0), device_at(0))
