"""Arrays that are tensors, and tensors that are arrays: without a copy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from torch_xla.interop import from_jax, to_jax


def test_a_tensor_and_its_array_share_their_memory() -> None:
    x = torch.arange(6.0).to("xla")
    array = to_jax(x)
    assert array.unsafe_buffer_pointer() == to_jax(x).unsafe_buffer_pointer()
    assert to_jax(from_jax(array)) is array


@pytest.mark.parametrize("dtype", (torch.bool, torch.int64, torch.float64, torch.bfloat16, torch.complex64))
def test_dtypes_survive_the_way_there_and_back(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 3]).to(dtype).to("xla")
    back = from_jax(to_jax(x))
    assert back.dtype is dtype and torch.equal(back.cpu(), x.cpu())


def test_writing_to_a_tensor_leaves_its_array_alone() -> None:
    x = torch.zeros(4).to("xla")
    pending = x + 1  # x is an operand already when its array is taken
    array = to_jax(x)
    for _ in range(3):
        x.add_(1)
        torch_xla.sync(wait=True)
    del x
    torch_xla.sync(wait=True)
    np.testing.assert_array_equal(array, np.zeros(4))
    assert pending.tolist() == [1.0] * 4
    t = from_jax(array)
    t.mul_(0).add_(7)
    torch_xla.sync(wait=True)
    np.testing.assert_array_equal(array, np.zeros(4))


def test_an_array_of_a_view_shows_the_view() -> None:
    x = torch.arange(6.0).to("xla").reshape(2, 3)
    np.testing.assert_array_equal(to_jax(x.t()), x.t().cpu().numpy())
    np.testing.assert_array_equal(to_jax(x[:, 1]), [1.0, 4.0])
    z = torch.tensor([1 + 2j]).to("xla")
    np.testing.assert_array_equal(to_jax(z.conj()), [1 - 2j])


def test_what_is_no_array_of_one_device_or_no_tensor_of_ours_is_refused() -> None:
    with pytest.raises(TypeError, match=r"one on cpu. Move it with `.to\('xla'\)`"):
        to_jax(torch.ones(2))
    with pytest.raises(TypeError, match="got a int"):
        to_jax(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a jax.Array; got a ndarray"):
        from_jax(np.ones(2))
    with pytest.raises(TypeError, match="JAX is tracing"):
        jax.jit(lambda x: from_jax(x))(jnp.ones(2))
    for array in (jnp.zeros(2, jnp.int4), jax.random.key(0)):
        with pytest.raises(TypeError, match="cannot be a tensor"):
            from_jax(array)


def test_what_is_recorded_is_computed_for_the_array_and_conjugates_are_resolved() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j]).to("xla")
    np.testing.assert_array_equal(to_jax((z * 2).conj()), [2 - 4j, 6 + 2j])
    np.testing.assert_array_equal(to_jax(z.conj().imag), [-2, 1])
