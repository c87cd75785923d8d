"""The TPU's attention kernel, its values in Pallas' interpreter and its program by the TPU's compiler."""

import importlib
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.experimental.pallas import tpu as pallas_tpu

import torch_xla
from tests.support.topologies import needs_tpu_compiler
from torch_xla._engine.lowering.sequences import flash_attention_on_tpu as flash
from torch_xla._engine.lowering.sequences import packed_attention
from torch_xla._engine.lowering.sequences.fused_attention import AttentionCall
from torch_xla.debug import plan

# Sizes of query, sizes of key and value, and whether each row sees only the columns up to its own.
CASES: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = [
    ((1, 2, 256, 64), (1, 2, 256, 64), True),
    ((2, 2, 128, 64), (2, 1, 256, 64), False),
    ((1, 2, 130, 64), (1, 2, 130, 64), True),
    ((1, 2, 140, 64), (1, 1, 200, 64), False),
    ((1, 1, 300, 32), (1, 1, 200, 32), True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_are_those_of_the_formula(case: tuple[tuple[int, ...], tuple[int, ...], bool]) -> None:
    sizes, sizes_of_key, is_causal = case
    random = torch.Generator().manual_seed(0)
    query, key, value, grad = (
        torch.randn(each, generator=random) for each in (sizes, sizes_of_key, sizes_of_key, sizes)
    )
    wide = [each.double().requires_grad_() for each in (query, key, value)]
    expected = F.scaled_dot_product_attention(*wide, is_causal=is_causal, scale=0.2, enable_gqa=True)
    gradients = torch.autograd.grad(expected, wide, grad.double())
    arrays = [np.asarray(each) for each in (query, key, value)]
    with pallas_tpu.force_tpu_interpret_mode(True), jax.default_matmul_precision("highest"):
        call = AttentionCall(*map(jax.numpy.asarray, arrays), is_causal=is_causal, scale=0.2)
        output, log_sum = flash.forward(call)
        found = flash.backward(call, jax.numpy.asarray(grad), output, log_sum)
    for one, other in zip((output, *found), (expected, *gradients), strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=2e-4, atol=2e-5)


def planned(sizes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, **options: Any) -> Any:
    """Return the plan of attention with its gradient on one v5e."""
    query, key, value = (torch.zeros(sizes, dtype=dtype, device="xla", requires_grad=True) for _ in range(3))
    torch_xla.sync()

    def step() -> Any:
        output = F.scaled_dot_product_attention(query, key, value, **options)
        return torch.autograd.grad(output.float().sum(), (query, key, value))

    return plan(step, topology="v5e:1x1", steps=1).programs[0]


@needs_tpu_compiler
def test_the_kernel_is_taken_and_keeps_no_scores() -> None:
    program = planned((1, 4, 2048, 128), is_causal=True)
    assert program.text.count('custom_call_target="tpu_custom_call"') == 3
    assert program.sizes.intermediate < 2048 * 2048  # a byte for each score of one head


@needs_tpu_compiler
def test_float32_with_the_highest_precision_compiles() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        for dtype in (torch.float32, torch.bfloat16):
            assert "tpu_custom_call" in planned((1, 1, 512, 64), dtype, is_causal=True).text
    finally:
        torch.set_float32_matmul_precision(before)


@needs_tpu_compiler
@pytest.mark.parametrize("options", [{"dropout_p": 0.1}, {"attn_mask": True}], ids=str)
def test_what_the_kernel_lacks_is_composed(options: dict[str, Any]) -> None:
    if "attn_mask" in options:
        options = {"attn_mask": torch.ones(512, 512, dtype=torch.bool, device="xla")}
    assert "tpu_custom_call" not in planned((1, 1, 512, 64), **options).text


# Lengths of sequences of rows and of columns, how many rows and columns there are, and whether the attention is causal.
PACKED: list[tuple[list[int], list[int], int, int, bool]] = [
    ([100, 156], [100, 156], 256, 256, True),
    ([30, 0, 107], [30, 0, 107], 150, 150, True),
    ([30, 70, 40], [100, 0, 72], 140, 180, False),
]


@pytest.mark.parametrize("case", PACKED, ids=str)
def test_packed_sequences_see_themselves(case: tuple[list[int], list[int], int, int, bool]) -> None:
    lengths, of_keys, rows, columns, is_causal = case
    random = torch.Generator().manual_seed(0)
    sizes = (rows, 4, 64), (columns, 2, 64), (columns, 2, 64), (rows, 4, 64)
    given = [torch.randn(each, generator=random) for each in sizes]
    query, key, value = wide = [each.double().requires_grad_() for each in given[:3]]
    counts, counts_of_keys = ([*each, size - sum(each)] for each, size in ((lengths, rows), (of_keys, columns)))
    parts = []
    for one, two, three in zip(
        query.split(counts), key.split(counts_of_keys), value.split(counts_of_keys), strict=True
    ):
        operands = [each.transpose(0, 1)[None] for each in (one, two, three)]
        part = F.scaled_dot_product_attention(*operands, is_causal=is_causal, scale=0.2, enable_gqa=True)
        parts.append(part[0].transpose(0, 1))
    sees_nothing = torch.tensor([rows_of == 0 for rows_of in [*of_keys, 0]]).repeat_interleave(torch.tensor(counts))
    expected = torch.cat(parts).nan_to_num().masked_fill(sees_nothing[:, None, None], 0)
    weights = given[3].double().masked_fill(sees_nothing[:, None, None], 0)
    gradients = [each.nan_to_num() for each in torch.autograd.grad(expected, wide, weights)]
    gradients[0] = gradients[0].masked_fill(sees_nothing[:, None, None], 0)
    starts = [np.cumsum([0, *each]).astype(np.int32) for each in (lengths, of_keys)]
    arrays = [jax.numpy.asarray(each.numpy()) for each in given]
    with pallas_tpu.force_tpu_interpret_mode(True), jax.default_matmul_precision("highest"):
        call = AttentionCall(*map(packed_attention._packed, arrays[:3]), is_causal=is_causal, scale=0.2)
        kernel = packed_attention._Kernel(call, starts[0], starts[1])
        output, log_sum = kernel.forward()
        found = kernel.backward(arrays[3], output, log_sum)
    assert (np.isneginf(log_sum) == sees_nothing.numpy()).all()
    for one, other in zip((output, *found), (expected, *gradients), strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=2e-4, atol=2e-5)


@needs_tpu_compiler
@pytest.mark.parametrize(("options", "kernels"), [({}, 3), ({"window_size": (-1, 0)}, 3), ({"window_size": (9, 0)}, 0)])
def test_packed_sequences_take_the_kernel(options: dict[str, Any], kernels: int) -> None:
    varlen: Any = importlib.import_module("torch.nn.attention.varlen")
    with torch.device("xla"):
        operands = [torch.zeros(512, 2, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        starts = torch.tensor([0, 100, 512], dtype=torch.int32)
    torch_xla.sync()

    def step() -> Any:
        output = varlen.varlen_attn(*operands, starts, starts, 412, 412, **options)
        return torch.autograd.grad(output.float().sum(), operands)

    program = plan(step, topology="v5e:1x1", steps=1).programs[0]
    assert program.text.count('custom_call_target="tpu_custom_call"') == kernels
    assert program.sizes.intermediate < 1 << 20
