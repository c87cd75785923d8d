"""A placeholder for a buffer has a size and a dtype, takes no memory, and refuses to be read."""

import jax
import numpy as np
import pytest

from torch_xla._engine.runtime.abstract_buffer import Placeholder


def test_it_is_described_as_an_array_is() -> None:
    made = Placeholder((2, 3), np.dtype(np.float32))
    array = jax.ShapeDtypeStruct((2, 3), np.float32)
    assert (made.shape, made.dtype, made.ndim) == (array.shape, array.dtype, array.ndim)
    assert made.nbytes == 0 and not made.is_deleted() and made.is_fully_addressable and made.sharding is None


def test_a_read_of_its_contents_is_refused_with_what_to_do() -> None:
    made = Placeholder((2, 3), np.dtype(np.float32))
    for want in (lambda: np.asarray(made), made.block_until_ready, made.refuse):
        with pytest.raises(
            RuntimeError, match=r"^a placeholder tensor \(float32\[2, 3\]\) holds no memory, .*torch.empty"
        ):
            want()
