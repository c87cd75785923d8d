"""The calls that packed attention simplifies, and the ones it refuses, in the words of a user."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

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


def _jagged(lengths: tuple[int, ...], seed: int, device: str) -> torch.Tensor:
    drawn = [torch.randn(n, 12, generator=torch.Generator().manual_seed(seed + n)) for n in lengths]
    return torch.nested.nested_tensor([each.to(device) for each in drawn], layout=torch.jagged, requires_grad=True)


def _one_by_one(leaves: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    """Attend to each sequence alone, in float64."""
    dense = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    heads = [[part.unflatten(-1, (2, 6)).transpose(0, 1) for part in leaf.unbind()] for leaf in dense]
    found = [F.scaled_dot_product_attention(*each, **options) for each in zip(*heads, strict=True)]
    together = torch.cat([each.transpose(0, 1).flatten(1) for each in found])
    together.square().sum().backward()
    return [together.detach(), *(leaf.grad.values() for leaf in dense)]  # type: ignore[union-attr]


@pytest.mark.parametrize("keys", [(2, 5, 1), (4, 3, 2)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.7}], ids=str)
def test_jagged_tensors_attend_one_by_one(options: dict[str, Any], keys: tuple[int, ...]) -> None:
    if options.get("is_causal") and keys != (2, 5, 1):
        pytest.skip("a causal mask needs as many keys as queries")
    leaves = [_jagged(lengths, seed, "xla") for seed, lengths in enumerate(((2, 5, 1), keys, keys))]
    heads = [leaf.unflatten(-1, (2, 6)).transpose(1, 2) for leaf in leaves]
    together = F.scaled_dot_product_attention(*heads, **options).transpose(1, 2).flatten(-2).values()
    together.square().sum().backward()
    found = [together.detach(), *(leaf.grad.values() for leaf in leaves)]  # type: ignore[union-attr]
    for got, wanted in zip(found, _one_by_one(leaves, **options), strict=True):
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=1e-5, atol=1e-5)


def test_jagged_attention_refuses_dropout() -> None:
    query = _jagged((2, 3), 0, "xla").unflatten(-1, (2, 6)).transpose(1, 2)
    with pytest.raises(RuntimeError, match=r"dropout_p=0.5 is not supported for jagged nested tensors on xla"):
        F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)
