"""Uses of 64-bit dtypes that a TPU's compiler does not get to see."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xla._engine.compile import tpu_dtypes

MATRIX = np.arange(6.0).reshape(2, 3)


def lowered(function: Any, *given: np.ndarray) -> jax.stages.Lowered:
    with jax.enable_x64(True):
        return jax.jit(function).lower(*given)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
@pytest.mark.parametrize("other", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_operands_of_a_product_have_one_dtype(dtype: type[np.generic], other: Any) -> None:
    def product(left: jax.Array, right: jax.Array) -> jax.Array:
        return jax.lax.dot_general(left, right, (((1,), (1,)), ((), ())))

    given = MATRIX.astype(other), (MATRIX + 2).astype(dtype)
    for operands in (given, given[::-1]):
        program = lowered(product, *operands)
        module = program.compiler_ir("stablehlo")
        tpu_dtypes.prepare(module)
        (text,) = [line for line in str(module).splitlines() if "dot_general" in line]
        kinds = text.rpartition(" : ")[2].replace("(", "").replace(")", "").replace("->", ",").split(", ")
        assert len({kind.strip().rpartition("x")[2] for kind in kinds}) == 1, text
        expected = np.asarray(operands[0], np.float64) @ np.asarray(operands[1], np.float64).T
        with jax.enable_x64(True):
            found = program.compile()(*operands)
        np.testing.assert_array_equal(np.asarray(found, np.float64), expected)


def test_other_products_stay_as_they_are() -> None:
    program = lowered(lambda x, y: (x @ x.T, y @ y.T), MATRIX.astype(np.float32), MATRIX.astype(np.int64))
    module = program.compiler_ir("stablehlo")
    before = str(module)
    tpu_dtypes.prepare(module)
    assert str(module) == before


def test_bits_of_float64_are_taken_as_unsigned() -> None:
    def negative(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        bits = jax.lax.bitcast_convert_type(x, jnp.int64)
        return jnp.signbit(x), jax.lax.bitcast_convert_type(bits ^ jnp.int64(-(2**63)), jnp.float64)

    given = np.array([1.5, -0.0, -np.inf, np.nan, 5e-324])
    program = lowered(negative, given)
    tpu_dtypes.prepare(program.compiler_ir("stablehlo"))
    text = str(program.compiler_ir("stablehlo"))
    assert "tensor<5xf64>) -> tensor<5xui64>" in text and "tensor<5xf64>) -> tensor<5xi64>" not in text
    with jax.enable_x64(True):
        signs, minus = program.compile()(given)
    np.testing.assert_array_equal(np.asarray(signs), np.signbit(given))
    np.testing.assert_array_equal(np.asarray(minus).view(np.int64), (-given).view(np.int64))


@pytest.mark.parametrize("digits", [52, 23, 7])
def test_float64_is_rounded_by_way_of_float32(digits: int) -> None:
    given = np.random.default_rng(0).normal(size=100)
    program = lowered(lambda x: jax.lax.reduce_precision(x / 1, 11, digits), given)
    tpu_dtypes.prepare(program.compiler_ir("stablehlo"))
    text = str(program.compiler_ir("stablehlo"))
    assert not [line for line in text.splitlines() if "reduce_precision" in line and "f64" in line]
    with jax.enable_x64(True):
        np.testing.assert_array_equal(np.asarray(program.compile()(given)), _rounded(given, digits))


def _rounded(given: np.ndarray, digits: int) -> np.ndarray:
    unit = 2.0 ** (np.floor(np.log2(np.abs(given))) - digits)
    return np.round(given / unit) * unit


def looped(x: jax.Array) -> jax.Array:
    found = jax.lax.while_loop(lambda a: a.real.sum() < 3, lambda a: a * 2, jax.lax.complex(x, x))
    return jnp.imag(found)


@pytest.mark.parametrize("function", [lambda x: x + 0j, lambda x: jax.lax.complex(x, x).real, looped])
def test_complex128_is_refused(function: Any) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="a TPU has no complex128.* Convert to torch.complex64"):
        tpu_dtypes.prepare(lowered(function, MATRIX).compiler_ir("stablehlo"))


def test_complex128_that_comes_and_goes_is_refused_too() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="a TPU has no complex128"):
        tpu_dtypes.prepare(lowered(lambda x: x, MATRIX.astype(np.complex128)).compiler_ir("stablehlo"))
    tpu_dtypes.prepare(lowered(lambda x: x * 2, MATRIX.astype(np.complex64)).compiler_ir("stablehlo"))
