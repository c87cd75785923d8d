"""Products with matrices of 8 or 4 bits."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.lowering.fused_kernels import quantized_matmul

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 8), np.float32)
W = RANDOM.integers(-8, 8, (5, 8)).astype(np.int8)
BLOCKS = RANDOM.integers(-8, 8, (2, 4, 5)).astype(np.int8)


def packed(w: np.ndarray, axis: int) -> np.ndarray:
    """Pairs of four bits, the first of each in the lower ones."""
    pairs = np.moveaxis(w, axis, -1).reshape(*np.moveaxis(w, axis, -1).shape[:-1], -1, 2).astype(np.uint8)
    return np.moveaxis((pairs[..., 0] & 15) | (pairs[..., 1] << 4).astype(np.uint8), -1, axis)


@settings(max_examples=20)
@given(st.lists(st.integers(-8, 7), min_size=8, max_size=8))
def test_pairs_of_four_bits_come_apart(numbers: list[int]) -> None:
    w = np.array(numbers, np.int8).reshape(2, 4)
    np.testing.assert_array_equal(quantized_matmul.unpacked(jnp.asarray(packed(w, 1)), 1), w)


@pytest.mark.parametrize("int4", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("block_size", [-1, 4, None])
def test_the_weight_is_widened_where_it_is_multiplied(block_size: int | None, zero: bool, int4: bool) -> None:
    is_whole = block_size in (-1, None)
    w = W if is_whole else BLOCKS
    scale, point = (RANDOM.random((5,) if is_whole else (2, 5)).astype(np.float32) + 0.1 for _ in range(2))
    floats = w.astype(np.float64) * scale[:, None] - (point[:, None] if zero else 0)
    floats = floats.T if is_whole else floats.reshape(8, 5)
    given = packed(w, 1) if int4 else w
    found = quantized_matmul.quantized_matmul(
        *map(jnp.asarray, (X, given, scale)), jnp.asarray(point) if zero else None, block_size, int4
    )
    np.testing.assert_allclose(found, X @ floats, rtol=1e-4, atol=1e-4)
    rounded = quantized_matmul.quantized_matmul(
        *map(jnp.asarray, (X, given, scale)), jnp.asarray(point) if zero else None, block_size, int4, True
    )
    assert np.abs(np.asarray(rounded) - X @ floats).max() < 0.03 * np.abs(X @ floats).max()


@pytest.mark.parametrize("scale_of_x", [1e-30, 1e-8, 1.0, 1e30])
def test_rows_of_any_size_are_rounded_to_127_parts_with_the_zero_point(scale_of_x: float) -> None:
    x = (np.array([[127, -50, 3, 0], [0, 0, 0, 0]]) * scale_of_x).astype(np.float32)
    w = np.array([[1, 2, 3, 4]], np.int8)
    # 127 - 100 + 9 of the weight, less the sum 80 of the rounded row times the zero point
    found = quantized_matmul.quantized_matmul(
        jnp.asarray(x), jnp.asarray(w), jnp.array([2.0]), jnp.array([0.5]), -1, False, True
    )
    np.testing.assert_allclose(found, [[(36 * 2 - 80 * 0.5) * scale_of_x], [0]], rtol=1e-6)


def test_the_zero_point_takes_the_rounded_row() -> None:
    x, w = np.array([[127, 0.4]], np.float32), np.array([[0, 0]], np.int8)
    found = quantized_matmul.quantized_matmul(jnp.asarray(x), jnp.asarray(w), jnp.ones(1), jnp.ones(1), -1, False, True)
    assert found.tolist() == [[-127]]
    blocks = jnp.zeros((2, 1, 1), np.int8)
    found = quantized_matmul.quantized_matmul(
        jnp.asarray(x), blocks, jnp.ones((2, 1)), jnp.ones((2, 1)), 1, False, True
    )
    assert found.tolist() == [[-127]]


def test_numbers_of_eight_bits_use_all_of_them() -> None:
    w = np.array([[-128, 127, 0, 1]], np.int8)
    found = quantized_matmul.quantized_matmul_int8(jnp.ones((2, 4)), jnp.asarray(w), jnp.array([0.5]))
    assert found.tolist() == [[0.0], [0.0]]
    with pytest.raises(ValueError, match="takes one scale a channel"):
        quantized_matmul.quantized_matmul_int8(
            jnp.ones((2, 4)), jnp.asarray(w), jnp.ones(1), quant_block_size=jnp.ones(1)
        )


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"w": W.astype(np.int16)}, TypeError, "a quantised weight is int8, .* got int16"),
        ({"w": W.astype(np.uint8)}, TypeError, "got uint8"),
        ({"w": W.T}, ValueError, r"block_size=-1 takes w \[out, in\] .* got x \[3, 8\], w \[8, 5\], scale \[5\]"),
        ({"scale": np.ones(4)}, ValueError, r"scale \[4\]"),
        ({"zero_point": np.ones(4)}, ValueError, r"zero_point \[4\]"),
        ({"block_size": 4}, ValueError, r"block_size=4 takes w \[in / size, size, out\]"),
        ({"w": BLOCKS, "block_size": 0}, ValueError, "block_size=0 takes"),
        ({"w": BLOCKS, "block_size": -2}, ValueError, "block_size=-2 takes"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"x": X, "w": W, "scale": np.ones(5, np.float32), **change}
    with pytest.raises(error, match=words):
        quantized_matmul.quantized_matmul(
            **{k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
        )
