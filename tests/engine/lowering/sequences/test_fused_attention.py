"""The call of attention that fused kernels take."""

from typing import Any

import jax.numpy as jnp
import pytest

from torch_xla._engine.lowering.sequences.fused_attention import AttentionCall

OPERAND = jnp.zeros((1, 2, 3, 4))


@pytest.mark.parametrize(
    "option",
    [{"bias": OPERAND}, {"dropout_p": 0.5}, {"dropout_p": jnp.zeros(())}, {"scale": jnp.ones(())}],
    ids=lambda option: "".join(option),
)
def test_a_mask_dropout_and_an_unknown_scale_are_not_plain(option: dict[str, Any]) -> None:
    assert AttentionCall(OPERAND, OPERAND, OPERAND, is_causal=True, scale=2).is_plain
    assert not AttentionCall(OPERAND, OPERAND, OPERAND, **option).is_plain


def test_scores_are_multiplied_by_the_scale_or_by_that_of_the_features() -> None:
    empty = jnp.zeros((1, 2, 3, 0))
    assert AttentionCall(OPERAND, OPERAND, OPERAND).factor == 0.5
    assert AttentionCall(OPERAND, OPERAND, OPERAND, scale=0.2).factor == 0.2
    assert AttentionCall(empty, empty, empty).factor == 1
