"""Attention and its gradients, compared with PyTorch's composition of products and softmax on the CPU."""

import math
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.support.rules import apply_rule
from torch_xla._engine.lowering.machinery import replica_axis
from torch_xla._engine.lowering.sequences import attention

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
QKV = list[torch.Tensor]


def qkv(
    *,
    batch: int = 2,
    heads: int = 4,
    key_heads: int | None = None,
    rows: int = 5,
    columns: int = 7,
    features: tuple[int, int] = (8, 6),
    dtype: torch.dtype = torch.float32,
) -> QKV:
    generator = torch.Generator().manual_seed(rows)
    shapes = (
        (batch, heads, rows, features[0]),
        (batch, key_heads or heads, columns, features[0]),
        (batch, key_heads or heads, columns, features[1]),
    )
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def composed(operands: QKV, mask: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*operands, attn_mask=mask, **options)


def check_forward(operands: QKV, mask: torch.Tensor | None = None, **options: Any) -> None:
    expected = composed(operands, mask, enable_gqa=operands[0].shape[-3] != operands[1].shape[-3], **options)
    got = apply_rule(FORWARD, *operands, mask, 0.0, options.pop("is_causal", False), **options)
    torch.testing.assert_close(got[0].to(expected.dtype), expected, equal_nan=True, **tolerance(expected.dtype))
    batch = operands[0].shape[0] if operands[0].dim() == 4 else 1
    assert got[1].shape == (batch, *operands[0].shape[-3:-1])


def check_backward(operands: QKV, mask: torch.Tensor | None = None, **options: Any) -> None:
    """The gradients of the math composition, from what our own forward computation left behind."""
    is_causal, scale = options.pop("is_causal", False), options.pop("scale", None)
    leaves = [t.clone().requires_grad_() for t in operands]
    wanted = list(leaves)
    bias = mask
    if mask is not None and mask.is_floating_point():
        bias = mask.clone().requires_grad_()
        wanted.append(bias)
    gqa = operands[0].shape[-3] != operands[1].shape[-3]
    result = composed(leaves, bias, is_causal=is_causal, scale=scale, enable_gqa=gqa)
    grad = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape).to(result.dtype)
    expected = torch.autograd.grad(result, wanted, grad)
    saved = apply_rule(FORWARD, *operands, mask, 0.0, is_causal, scale=scale)
    output, log_sum, seed, offset = saved[0].to(result.dtype), saved[1].float(), saved[6], saved[7]
    rest = (output, log_sum, None, None, 5, 7, 0.0, is_causal, seed, offset)
    got = apply_rule(BACKWARD, grad, *operands, mask, [True] * 3 + [len(wanted) > 3], *rest, scale=scale)
    for ours, theirs in zip(got, expected, strict=False):
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, **tolerance(result.dtype))


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    # PyTorch's composition rounds the result alone; as in its fused kernels, ours rounds the weights too.
    return {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize < 4 else {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_attention_without_a_mask(dtype: torch.dtype) -> None:
    operands = qkv(dtype=dtype)
    check_forward(operands)
    check_backward(operands)


def test_causal_rows_see_the_columns_up_to_their_own() -> None:
    for rows, columns in ((6, 6), (4, 7), (7, 4)):
        operands = qkv(rows=rows, columns=columns)
        check_forward(operands, is_causal=True)
        check_backward(operands, is_causal=True)


def test_the_scale_can_be_given() -> None:
    for scale in (0.3, 2.0, 0.0):
        check_forward(qkv(), scale=scale)
        check_backward(qkv(), scale=scale)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (4, 1, 7), (1, 4, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (2, 1, 1, 7)])
def test_masks_of_any_shape_are_added_or_choose(shape: tuple[int, ...]) -> None:
    additive = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    choosing = additive > -0.5
    check_forward(qkv(), additive)
    check_backward(qkv(), additive)
    check_forward(qkv(), choosing)
    check_backward(qkv(), choosing)


def test_a_row_that_sees_nothing_is_zero_and_has_no_gradient() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    for each in (mask, torch.zeros(5, 7).masked_fill(~mask, -math.inf)):
        check_forward(qkv(), each)
        check_backward(qkv(), each)
    assert (apply_rule(FORWARD, *qkv(), mask)[0][:, :, 2] == 0).all()


def test_query_heads_share_heads_of_keys_and_values() -> None:
    for key_heads in (1, 2):
        operands = qkv(key_heads=key_heads)
        check_forward(operands)
        check_forward(operands, torch.randn(4, 5, 7))
        check_backward(operands, torch.randn(4, 5, 7))
    with pytest.raises(ValueError, match="4 query heads cannot share 3 heads of keys and 3 of values"):
        apply_rule(FORWARD, *qkv(key_heads=3))


def test_attention_without_a_batch_dimension() -> None:
    operands = [t[0] for t in qkv()]
    check_forward(operands)
    check_forward(operands, torch.randn(5, 7), scale=0.5)
    check_backward(operands)
    check_backward(operands, torch.randn(4, 5, 7))


def test_one_batch_of_keys_serves_all_queries() -> None:
    query, key, value = qkv()
    check_forward([query, key[:1], value[:1]])
    check_backward([query, key[:1], value[:1]])


def test_empty_operands() -> None:
    for sizes in ({"rows": 0}, {"columns": 0}, {"batch": 0}, {"features": (8, 0)}):
        check_forward(qkv(**sizes))
        check_backward(qkv(**sizes))


def test_nan_spreads_along_its_row_only() -> None:
    operands = qkv()
    operands[0][0, 1, 3] = math.nan
    check_forward(operands)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of the 8 × 7 scores at a time, so that the second block of five rows is filled up."""
    monkeypatch.setattr(attention, "MOST_SCORES", 1)
    monkeypatch.setattr(attention, "SCORES_OF_A_BLOCK", 3 * 8 * 7)


@pytest.mark.usefixtures("small_blocks")
def test_rows_in_blocks_give_the_same() -> None:
    for mask in (torch.randn(4, 5, 7), torch.randn(2, 1, 1, 7)):
        check_forward(qkv(), mask)
        check_backward(qkv(), mask)
    check_forward(qkv(key_heads=2), is_causal=True)
    check_backward(qkv(key_heads=2, dtype=torch.bfloat16), is_causal=True)


@pytest.fixture
def blocks_of_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A TPU's blocks, of two rows."""
    target = SimpleNamespace(platform="tpu", is_spread=False, mesh=None, devices=(None,))
    monkeypatch.setattr(replica_axis, "target_in_use", lambda: target)
    monkeypatch.setattr(attention, "target_in_use", lambda: target)
    monkeypatch.setattr(attention, "SCORES_OF_A_TPU", 1)
    monkeypatch.setattr(attention, "ROWS_OF_A_TPU", 2)


@pytest.mark.usefixtures("blocks_of_a_tpu")
def test_blocks_of_a_tpu_give_the_same() -> None:
    check_forward(qkv(), torch.randn(4, 5, 7))
    check_backward(qkv(), torch.randn(4, 5, 7))
    check_backward(qkv(key_heads=2), is_causal=True)
    check_dropout(0.25)


def test_a_block_of_a_tpu_has_its_share_on_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = jnp.zeros((8, 12, 1, 2048, 64)), jnp.zeros((8, 12, 2048, 64))
    found = []
    for devices in (1, 256):
        target = SimpleNamespace(platform="tpu", is_spread=devices > 1, devices=(None,) * devices)
        monkeypatch.setattr(attention, "target_in_use", lambda target=target: target)
        found.append(attention._blocks(rows, columns))
    assert found == [(16, 128), (1, 2048)]


def check_dropout(p: float) -> None:
    operands = qkv(rows=64, columns=64, features=(8, 64), dtype=torch.float64)
    operands[2] = torch.eye(64, dtype=torch.float64).expand(2, 4, 64, 64).contiguous()
    saved = apply_rule(FORWARD, *operands, None, p)
    # With the identity for values, the output is the weights after dropout.
    weights = saved[0]
    kept = weights != 0
    assert abs(kept.double().mean() - (1 - p)) < 0.02
    query, key, value = (t.clone().requires_grad_() for t in operands)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    expected = (torch.softmax(scores, -1) * kept / (1 - p)) @ value
    torch.testing.assert_close(weights, expected)
    grad = torch.randn(weights.shape, dtype=torch.float64)
    rest = (saved[0], saved[1].float(), None, None, 64, 64, p, False, saved[6], saved[7])
    got = apply_rule(BACKWARD, grad, *operands, None, [True] * 3 + [False], *rest, seed=5)
    for ours, theirs in zip(got, torch.autograd.grad(expected, (query, key, value), grad), strict=False):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_gradient_drops_what_the_output_dropped(p: float) -> None:
    check_dropout(p)


@pytest.mark.usefixtures("small_blocks")
def test_dropout_in_blocks_is_the_same_forward_and_backward() -> None:
    check_dropout(0.25)


def test_dropping_everything_gives_zeros() -> None:
    assert (apply_rule(FORWARD, *qkv(), None, 1.0)[0] == 0).all()
