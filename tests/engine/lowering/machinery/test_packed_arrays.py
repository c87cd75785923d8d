"""Packed values are unpacked unchanged."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xla._engine.lowering.machinery.packed_arrays import pack, unpack

SIZES = st.lists(st.sampled_from([(), (0,), (1,), (3,), (2, 3), (1, 0, 2)]), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=8)
@given(SIZES, st.sampled_from([np.float32, np.int32, np.bool_]))
def test_there_and_back(sizes: list[tuple[int, ...]], dtype: type) -> None:
    arrays = [
        jnp.asarray((np.arange(np.prod(size)) + number).reshape(size).astype(dtype))
        for number, size in enumerate(sizes)
    ]
    flat = pack(arrays)
    assert flat.ndim == 1 and flat.dtype == dtype
    for before, after in zip(arrays, unpack(flat, [list(size) for size in sizes]), strict=True):
        assert after.shape == before.shape
        np.testing.assert_array_equal(after, before)
