"""The references that the executor drops."""

import gc

import jax
import torch

import torch_xla


def test_large_results_that_nobody_holds_are_let_go() -> None:
    x = torch.ones(1 << 19).to("xla")
    size = x.nbytes

    def living() -> int:
        return sum(array.nbytes == size and not array.is_deleted() for array in jax.live_arrays())

    torch_xla.sync(wait=True)
    gc.collect()  # what earlier tests left would go meanwhile
    before = living()
    for _ in range(12):
        y = x * 2  # the only result, so it shows when its program has ended
        torch_xla.sync()
        assert y.shape == x.shape
        del y
        for array in jax.live_arrays():
            if not array.is_deleted():
                array.block_until_ready()
    assert living() <= before + 2
    torch_xla.sync(wait=True)
    assert living() == before
