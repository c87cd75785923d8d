"""The fast paths of transformer layers, compared with PyTorch's own on the CPU."""

from typing import Any

import pytest
import torch

from tests.support.rules import apply_rule, check_rule

aten = torch.ops.aten
BATCH, ROWS, FEATURES, HEADS, HIDDEN = 2, 5, 16, 4, 24

MASKS: dict[str, tuple[torch.Tensor | None, int | None]] = {
    "none": (None, None),
    "of the source": (torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1), 0),
    "of padding": (torch.arange(ROWS) >= torch.tensor([[3], [5]]), 1),
    "of both": (torch.rand(BATCH, HEADS, ROWS, ROWS, generator=torch.Generator().manual_seed(0)) > 0.7, 2),
}


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).mul(0.5).to(dtype)


def projections(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    shapes = ((3 * FEATURES, FEATURES), (3 * FEATURES,), (FEATURES, FEATURES), (FEATURES,))
    return [values(*shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_projected_rows_are_split_into_heads(dtype: torch.dtype) -> None:
    qkv = values(BATCH, ROWS, 3 * FEATURES, dtype=dtype)
    check_rule(aten._transform_bias_rescale_qkv.default, qkv, values(3 * FEATURES, dtype=dtype), HEADS)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_multi_head_attention_hides_what_the_mask_says(mask: Any) -> None:
    op = aten._native_multi_head_attention.default
    x = values(BATCH, ROWS, FEATURES)
    for average in (True, False):
        arguments = (x, x, x, FEATURES, HEADS, *projections(), mask[0], True, average, mask[1])
        check_rule(op, *arguments)


def test_multi_head_attention_of_three_inputs_without_weights() -> None:
    op = aten._native_multi_head_attention.default
    query, key, value = (values(BATCH, ROWS, FEATURES) + shift for shift in range(3))
    arguments = (query, key, value, FEATURES, HEADS, *projections(), None, False)
    torch.testing.assert_close(apply_rule(op, *arguments)[0], op(*arguments)[0])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer(mask: Any, norm_first: bool) -> None:
    norms = [values(FEATURES) + 1, values(FEATURES), values(FEATURES) - 1, values(FEATURES)]
    shapes = ((HIDDEN, FEATURES), (HIDDEN,), (FEATURES, HIDDEN), (FEATURES,))
    feed_forward = [values(*shape) for shape in shapes]
    for use_gelu in (False, True):
        options = (use_gelu, norm_first, 1e-5)
        arguments = (values(BATCH, ROWS, FEATURES), FEATURES, HEADS, *projections(), *options, *norms, *feed_forward)
        check_rule(aten._transformer_encoder_layer_fwd.default, *arguments, *mask, rtol=1e-5, atol=1e-5)


def test_an_encoder_layer_in_bfloat16() -> None:
    layer = torch.nn.TransformerEncoderLayer(FEATURES, HEADS, HIDDEN, batch_first=True).eval().bfloat16()
    attention = layer.self_attn
    x = values(BATCH, ROWS, FEATURES, dtype=torch.bfloat16)
    arguments = [
        *(x, FEATURES, HEADS, attention.in_proj_weight, attention.in_proj_bias),
        *(attention.out_proj.weight, attention.out_proj.bias, False, False, 1e-5),
        *(layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias),
        *(layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias),
    ]
    with torch.no_grad():
        # Every one of the ten steps rounds to bfloat16, here and there in other places.
        check_rule(aten._transformer_encoder_layer_fwd.default, *arguments, rtol=3e-2, atol=3e-2)
