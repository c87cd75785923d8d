"""Dimensions that a tensor does not have, where PyTorch's meta kernels take any number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_xla._engine.lowering.machinery.dims import module_for

CALLS = {
    "sort": lambda x, dim: x.sort(dim),
    "stable sort": lambda x, dim: x.sort(stable=True, dim=dim),
    "argsort": lambda x, dim: x.argsort(dim),
    "cummax": lambda x, dim: x.cummax(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "amax": lambda x, dim: x.amax(dim),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_a_dimension_that_is_not_there_is_refused_as_on_the_cpu(name: str, shape: tuple[int, ...]) -> None:
    for dim in (3, -4):
        for device in ("cpu", "xla"):
            with pytest.raises(IndexError, match=f"but got {dim}"):
                CALLS[name](torch.ones(shape, device=device), dim)


def test_what_is_known_is_computed_beforehand() -> None:
    (size,) = jax.export.symbolic_shape("n")
    assert module_for(3, 4) is np and module_for(3, size) is jnp
