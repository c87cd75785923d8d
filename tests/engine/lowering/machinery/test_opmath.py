"""Numbers and narrow floats meet at the precision that PyTorch computes in."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.support.rules import apply_rule
from torch_xla._engine.lowering.machinery import replica_axis
from torch_xla._engine.lowering.machinery.opmath import (
    bound_as,
    in_double,
    is_number,
    number_as,
    on_operands,
    quotient,
    same_dtype,
    widened,
)


def test_weakly_typed_scalars_are_numbers_and_arrays_are_not() -> None:
    seen = []
    with jax.enable_x64(True):
        jax.jit(lambda number, array: seen.extend([is_number(number), is_number(array)]))(2.5, jnp.ones((), np.float32))
    assert seen == [True, False]
    assert is_number(True) and is_number(1j) and not is_number(np.ones(()))


def test_an_integer_wraps_around_in_a_narrow_dtype() -> None:
    assert number_as(-1, np.dtype(np.uint8)) == 255
    assert number_as(300, np.dtype(np.int8)) == 44
    assert number_as(2.7, np.dtype(np.int64)) == 2


def test_only_narrow_floats_are_widened() -> None:
    for dtype, expected in ((np.float16, np.float32), (jnp.bfloat16, np.float32), (np.int8, np.int8)):
        assert widened(jnp.ones(2, dtype)).dtype == expected
    assert widened(0.5) == 0.5


def test_numbers_take_the_dtype_of_the_arrays() -> None:
    array, number = same_dtype(jnp.ones(2, jnp.bfloat16), 0.1)
    assert number.dtype == array.dtype
    both = on_operands(lambda *operands: operands)(jnp.ones(2, jnp.bfloat16), 0.1)
    assert [each.dtype for each in both] == [np.float32, np.float32]
    assert both[1] == np.asarray(0.1, jnp.bfloat16)


def test_a_size_that_an_export_leaves_open_is_a_number() -> None:
    (size,) = jax.export.symbolic_shape("n")
    assert is_number(size)

    def mixed(floats: jax.Array, truths: jax.Array) -> Any:
        found = [same_dtype(floats, size)[1], *same_dtype(truths, size), bound_as(size, floats.dtype)]
        assert [str(each.dtype) for each in found] == ["float32", "int64", "int64", "float32"]
        assert bound_as(size, truths.dtype) is size
        return found

    with jax.enable_x64(True):
        described = [jax.ShapeDtypeStruct((size,), dtype) for dtype in (np.float32, np.bool_)]
        exported = jax.export.export(jax.jit(mixed))(*described)
        found = exported.call(np.ones(3, np.float32), np.array([True, False, True]))
    assert [np.asarray(each).tolist() for each in found] == [3.0, [1, 0, 1], 3, 3.0]


def test_functions_in_double_see_float64_and_leave_integers_alone() -> None:
    with jax.enable_x64(True):
        floats, integers, number = in_double(lambda *args: args)(jnp.ones(2, np.float32), jnp.ones(2, np.int32), 3)
    assert (floats.dtype, integers.dtype, number) == (np.float64, np.int32, 3)


@pytest.mark.parametrize("dtype, small", [(np.float16, 1e-3), (np.float32, 1e-25), (np.float64, 1e-200)])
def test_quotients_of_quotients_are_not_merged_into_products_that_vanish(dtype: type, small: float) -> None:
    divisor = np.full(3, small, dtype)
    with jax.enable_x64(True):
        twice = jax.jit(lambda x, y: quotient(quotient(x, y), y))(divisor, divisor)
        inverse = jax.jit(lambda x, y: quotient(x, quotient(y, x)))(divisor, np.ones_like(divisor))
    assert np.array_equal(twice, 1 / divisor)
    assert np.array_equal(inverse, divisor / (1 / divisor))


def test_a_quotient_is_rounded_once_whatever_its_divisor_is() -> None:
    whole = np.arange(1, 500, dtype=np.float32)
    for divisor in (np.float32(49), whole[:, None], jnp.float32(3)):
        assert np.array_equal(jax.jit(quotient)(whole, divisor), whole / np.asarray(divisor))
    assert np.isnan(quotient(jnp.asarray([np.nan], np.float32), np.float32(2)))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules lower for an NVIDIA GPU."""
    monkeypatch.setattr(replica_axis, "target_in_use", lambda: SimpleNamespace(platform="gpu", mesh=None))


def divided_on_cuda(dtype: Any) -> str:
    """The program for CUDA of a quotient of two arrays."""
    operands = [jax.ShapeDtypeStruct((3,), dtype)] * 2
    with jax.enable_x64(True):
        return str(jax.jit(quotient).trace(*operands).lower(lowering_platforms=("cuda",)).as_text())


@pytest.mark.usefixtures("gpu")
def test_on_a_gpu_quotients_are_rounded_once_too() -> None:
    # XLA's own division of float32 is off by two units in the last place there.
    numbers = torch.cat([torch.arange(1.0, 300.0), torch.tensor([0.0, -0.0, torch.inf, torch.nan, 1e-5, 3e30])])
    for dividend, divisor in ((numbers[:, None], numbers), (numbers, torch.tensor(49.0))):
        found = apply_rule(torch.ops.aten.div.Tensor, dividend, divisor)
        torch.testing.assert_close(found, dividend / divisor, rtol=0, atol=0, equal_nan=True)
    text = divided_on_cuda(jnp.float32)
    assert "xf64>" in text and "m51" in text
    assert "xf64>" not in divided_on_cuda(jnp.bfloat16)
