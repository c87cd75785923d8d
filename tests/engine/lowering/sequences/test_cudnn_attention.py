"""Attention by cuDNN, as far as a CPU can test it: the calls, their conditions, and the use of their results.

JAX lowers for a GPU without one; these tests answer its questions about the GPU and cuDNN.
"""

import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax._src.cudnn import fused_attention_stablehlo

from tests.support.rules import apply_rule
from torch_xla._engine.compat.names import jax as private
from torch_xla._engine.lowering.machinery import replica_axis
from torch_xla._engine.lowering.sequences import cudnn_attention
from torch_xla._engine.lowering.sequences.fused_attention import AttentionCall

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
GPU = SimpleNamespace(platform="gpu", mesh=None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules lower for a Hopper GPU with cuDNN 9.12."""
    monkeypatch.setattr(replica_axis, "target_in_use", lambda: GPU)
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(fused_attention_stablehlo, "is_cuda_compute_capability_equal", lambda _: False)


def given(heads: int = 8, rows: int = 64, features: int = 32, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, heads, rows, features), dtype)


def calls(function: Callable[..., Any], *operands: jax.ShapeDtypeStruct) -> list[str]:
    """The lines of a program for CUDA that call cuDNN."""
    text = jax.jit(function).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    return [line for line in text.splitlines() if "__cudnn$" in line]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("key_heads", [8, 2])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_training_step_asks_for_the_forward_kernel_and_its_gradient(key_heads: int, dtype: Any) -> None:
    def step(grad: Any, query: Any, key: Any, value: Any) -> Any:
        call = AttentionCall(query, key, value, is_causal=True, scale=0.25)
        return cudnn_attention.attention(call), cudnn_attention.gradients(call, grad, grad, grad)

    operands = given(dtype=dtype), given(dtype=dtype), *[given(key_heads, dtype=dtype)] * 2
    shapes = jax.eval_shape(step, *operands)
    assert [(each.shape, each.dtype) for each in shapes[0]] == [
        ((2, 8, 64, 32), np.dtype(dtype)), ((2, 8, 64), np.dtype(np.float32)),
    ]  # fmt: skip
    assert [each.shape for each in shapes[1]] == [each.shape for each in operands[1:]]
    forward, again, backward = calls(step, *operands)
    assert "@__cudnn$fmhaSoftmaxBackward" in backward and "@__cudnn$fmhaSoftmax(" in forward
    # Equal calls of equal operands are one to XLA.
    assert forward.partition("@")[2] == again.partition("@")[2]
    config = json.loads(re.search(r'backend_config = "(.*?)"[,}]', forward)[1].replace("\\22", '"'))  # type: ignore[index]
    asked = config["cudnn_fmha_backend_config"]
    assert asked["fmha_scale"] == 0.25 and asked["mask_type"] == "CAUSAL" and asked["dropout_rate"] == 0.0


@pytest.mark.usefixtures("gpu")
def test_the_scale_is_that_of_the_features_where_none_is_given() -> None:
    (call,) = calls(lambda *each: cudnn_attention.attention(AttentionCall(*each)), *[given(features=64)] * 3)
    assert re.search(r"fmha_scale\\22: 0\.125,", call) and "NO_MASK" in call


REFUSED: dict[str, dict[str, Any]] = {
    "float32": {"dtype": jnp.float32},
    "a mask": {"bias": given(rows=64, features=64)},
    "dropout": {"dropout_p": 0.1},
    "a causal mask that is not square": {"rows": 32, "is_causal": True},
    "a scale that is an argument": {"scale": jnp.float32(0.5)},
    "features that cuDNN does not take": {"features": 12},
    "several devices": {"target": SimpleNamespace(platform="gpu", mesh="some")},
    "a CPU": {"target": SimpleNamespace(platform="cpu", mesh=None)},
    "nothing that is lowered": {"target": None},
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_not_asked_for_what_it_cannot_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"bias": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "rows": 64, **REFUSED[name]}
    if "target" in options:
        monkeypatch.setattr(replica_axis, "target_in_use", lambda: options["target"])
    form = {name: options[name] for name in ("features", "dtype") if name in options}
    query, others = given(rows=options["rows"], **form), given(**form)
    rest = [options[name] for name in ("bias", "dropout_p", "is_causal", "scale")]
    found: list[Any] = []

    def ask(*operands: Any) -> None:
        call = AttentionCall(*operands, *rest)
        found.extend([cudnn_attention.attention(call), cudnn_attention.gradients(call, *[operands[0]] * 3)])

    jax.eval_shape(ask, query, others, others)
    assert found == [None, None]


def test_without_cudnn_the_scores_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_axis, "target_in_use", lambda: GPU)  # JAX of the CPU knows of no cuDNN
    operands = [torch.randn(1, 2, 4, 8, dtype=torch.bfloat16) for _ in range(3)]
    output = apply_rule(FORWARD, *operands)[0].to(torch.bfloat16)
    torch.testing.assert_close(output, F.scaled_dot_product_attention(*operands), rtol=0.02, atol=0.02)


def _stand_in(query: Any, key: Any, value: Any, *, scale: float, mask_type: Any, qkv_layout: str, **_: Any) -> Any:
    """Compute the documented result of cuDNN's kernel, by products."""
    assert qkv_layout == "BNTH"
    key, value = (jnp.repeat(each, query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = jnp.einsum("bnth,bnsh->bnts", query, key, preferred_element_type=jnp.float32) * scale
    if mask_type is private.cudnn_masks.CAUSAL:
        scores = jnp.where(jnp.tri(*scores.shape[2:], dtype=bool), scores, -jnp.inf)
    output = jnp.einsum("bnts,bnsh->bnth", jax.nn.softmax(scores), value, preferred_element_type=jnp.float32)
    return output.astype(query.dtype), jax.nn.logsumexp(scores, -1)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_what_the_kernel_gives_is_what_the_operator_returns(
    key_heads: int, is_causal: bool, scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(private, "cudnn_attention", lambda *a, **k: asked.append(1) or _stand_in(*a, **k))
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 6, 8), (2, key_heads, 6, 8), (2, key_heads, 6, 8), (2, 4, 6, 8)
    query, key, value, grad = (torch.randn(s, generator=generator).to(torch.bfloat16) for s in shapes)
    forward = apply_rule(FORWARD, query, key, value, None, 0.0, is_causal, scale=scale)
    gradients = apply_rule(
        BACKWARD, grad, query, key, value, None, [True] * 3 + [False], forward[0], forward[1], None, None, 6, 6, 0.0,
        is_causal, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64), scale=scale,
    )  # fmt: skip
    assert len(asked) == 2
    leaves = [each.double().requires_grad_() for each in (query, key, value)]
    expected = F.scaled_dot_product_attention(*leaves, is_causal=is_causal, scale=scale, enable_gqa=key_heads != 4)
    torch.testing.assert_close(forward[0].double(), expected, rtol=0.01, atol=0.02)  # bfloat16 has 8 bits
    wanted = torch.autograd.grad(expected, leaves, grad.double())
    for ours, theirs in zip(gradients[:3], wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0.01, atol=0.05)
    assert forward[1].shape == (2, 4, 6) and forward[1].dtype is torch.float32 and gradients[3] is None
