"""A tensor on any ordinal, made of a description of memory that is not there."""

import gc

import pytest
import torch

from torch_xla._engine import dtypes
from torch_xla._engine.tensor import nonzero_ordinals
from torch_xla._engine.tensor.nonzero_ordinals import tensor_on_ordinal


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("size", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", dtypes.TO_JAX, ids=str)
def test_it_is_what_torch_empty_makes(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    made, expected = tensor_on_ordinal(3, size, dtype), torch.empty(size, dtype=dtype)
    assert made.device == torch.device("xla", 3)
    assert (made.dtype, made.shape, made.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert made.storage_offset() == 0 and not made.requires_grad


def test_descriptions_outlive_the_tensors_and_are_used_again() -> None:
    most = nonzero_ordinals._MOST_KEPT
    for _ in range(2):
        made = [tensor_on_ordinal(1, (n,), torch.float32) for n in range(5000)]
        assert [len(each) for each in made] == list(range(5000))
        assert len(nonzero_ordinals._kept) == most and len(nonzero_ordinals._made) <= most + 1
    del made  # PyTorch looks at the description of each once more
    gc.collect()
    assert tensor_on_ordinal(2, (3, 2), torch.int64).shape == (3, 2)
