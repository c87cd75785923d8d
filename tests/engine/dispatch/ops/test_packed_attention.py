"""The calls that packed attention simplifies, and the ones it refuses, in the words of a user."""

import pytest
import torch

from torch_xla._engine.metrics.counters import value_of

aten = torch.ops.aten
HAS_SPLITS = "num_splits" in str(aten._flash_attention_forward.default._schema)


def call(longest: int, **options: object) -> torch.Tensor:
    query = torch.linspace(-1, 1, 64).reshape(8, 1, 8).to("xla")
    at = torch.tensor([0, 3, 8], dtype=torch.int32).to("xla")
    found = aten._flash_attention_forward(query, query, query, at, at, longest, longest, 0.0, True, False, **options)
    return found[0].cpu()  # type: ignore[no-any-return]


def test_the_longest_sequence_makes_no_program() -> None:
    first = call(5)
    compilations = value_of("UncachedCompile")
    assert torch.equal(call(6), first)
    assert value_of("UncachedCompile") == compilations


@pytest.mark.skipif(not HAS_SPLITS, reason="this PyTorch's packed attention takes no number of splits")
def test_the_number_of_splits_makes_no_program() -> None:
    first = call(5)
    compilations = value_of("UncachedCompile")
    assert torch.equal(call(8, num_splits=1), first)
    assert value_of("UncachedCompile") == compilations


def test_a_debug_mask_is_refused() -> None:
    query, at = torch.ones(4, 1, 8, device="xla"), torch.tensor([0, 4], dtype=torch.int32).to("xla")
    with pytest.raises(NotImplementedError, match="return_debug_mask=True is not supported on xla"):
        aten._flash_attention_forward(query, query, query, at, at, 4, 4, 0.0, False, True)
