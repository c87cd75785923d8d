"""Attention in blocks, with few rows of scores in memory at once: what flash and splash attention compute."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import Tensor

from ..machinery.registry import lowers
from ..machinery.xla_op_schemas import define, differentiate

# Added to masked scores, as JAX's kernels do.
MASK_VALUE = -0.7 * float(np.finfo(np.float32).max)

# The number of rows of scores in memory at a time. Writing more rows would take longer than computing them again.
_ROWS = 512


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores become weights."""

    causal: bool
    scale: Any = 1.0
    soft_cap: Any = None
    window: int | None = None  # so far back, and so far ahead, a query attends

    def scores(
        self, block: jax.Array, k: jax.Array, bias: jax.Array | None, start: jax.Array | int, allowed: jax.Array | None
    ) -> jax.Array:
        """Return scores by (batch, head, row, key), of queries from row `start` on."""
        scores = jnp.einsum("bhqc,bhkc->bhqk", block, k, preferred_element_type=np.float32)
        scores = (scores if bias is None else scores + bias) * self.scale
        if self.soft_cap is not None:
            scores = jnp.tanh(scores / self.soft_cap) * self.soft_cap
        row = start + lax.broadcasted_iota(np.int32, scores.shape[2:], 0)
        column = lax.broadcasted_iota(np.int32, scores.shape[2:], 1)
        if self.causal:
            allowed = _both(allowed, (column <= row)[None, None])
        if self.window is not None:
            allowed = _both(allowed, (jnp.abs(column - row) <= self.window)[None, None])
        return scores if allowed is None else scores + jnp.where(allowed, 0.0, MASK_VALUE)


def _both(one: jax.Array | None, other: jax.Array) -> jax.Array:
    return other if one is None else one & other


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    causal: bool,
    scale: object,
) -> jax.Array:
    """Return softmax((q kᵀ + ab) · scale) v over sizes [batch, heads, length, width], block by block of the queries."""
    return by_blocks(q, k, v, ab, q_segments, kv_segments, Scoring(causal, scale))[0]


def by_blocks(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ab: jax.Array | None,
    q_segments: jax.Array | None,
    kv_segments: jax.Array | None,
    how: Scoring,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the result, and for each row the sum of its exponentials and its largest score: float32 [batch, heads,
    rows].
    """
    if k.shape[1] != q.shape[1]:
        k, v = (jnp.repeat(each, q.shape[1] // each.shape[1], axis=1) for each in (k, v))

    @jax.checkpoint
    def rows(start: jax.Array, block: jax.Array, bias: jax.Array | None, segments: jax.Array | None) -> Any:
        own = None if segments is None else segments[:, None, :, None] == kv_segments[:, None, None, :]  # type: ignore[index]
        scores = how.scores(block, k, bias, start, own)
        most = lax.stop_gradient(scores.max(-1))
        sums = lax.stop_gradient(jnp.exp(scores - most[..., None]).sum(-1))
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        return jnp.einsum("bhqk,bhkc->bhqc", weights, v).astype(q.dtype), sums, most

    length = q.shape[2]
    count = max(1, math.ceil(length / _ROWS))
    if length % count:
        count = 1
    if count == 1:
        return rows(jnp.zeros((), np.int32), q, ab, q_segments)  # type: ignore[no-any-return]
    size = length // count

    def cut(array: jax.Array | None, axis: int) -> jax.Array | None:
        if array is None:
            return None
        split = (*array.shape[:axis], count, size, *array.shape[axis + 1 :])
        return jnp.moveaxis(array.reshape(split), axis, 0)

    def once(start: jax.Array, block: Any) -> Any:
        return start + size, rows(start, *block)

    _, found = lax.scan(once, jnp.zeros((), np.int32), (cut(q, 2), cut(ab, 2), cut(q_segments, 1)))
    result, sums, most = (jnp.moveaxis(each, 0, 2) for each in found)
    return result.reshape(*q.shape[:3], v.shape[3]), sums.reshape(q.shape[:3]), most.reshape(q.shape[:3])


def gradients(
    grad: jax.Array, operands: tuple[Any, ...], segments: tuple[Any, Any], how: Scoring
) -> tuple[jax.Array, ...]:
    """Return the gradients by q, k, v and, where there is one, the bias."""
    given = [each for each in operands if each is not None]

    def of_given(*arrays: jax.Array) -> jax.Array:
        q, k, v, *rest = arrays
        return by_blocks(q, k, v, rest[0] if rest else None, *segments, how)[0]

    _, pull = jax.vjp(of_given, *given)
    found: tuple[jax.Array, ...] = pull(grad.astype(operands[0].dtype))
    return found


def like_query(q: Tensor, *_: object, **__: object) -> Tensor:
    """Return the result, without values."""
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def statistics(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums and largest scores of the rows, without values."""
    sums, most = (q.new_empty(q.shape[:3], dtype=torch.float32) for _ in range(2))
    return sums, most


FLASH = define("flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor", like_query)


@lowers(FLASH)
def flash(q: jax.Array, k: jax.Array, v: jax.Array, casual: bool = False) -> jax.Array:
    """Compute attention with a scale of 1. (The operator spells "causal" so.)"""
    return attention(q, k, v, None, None, None, casual, 1.0)


def flash_forward_like(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, q_segment_ids: object, kv_segment_ids: object, sm_scale: float,
    ab: Any, *_: object,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the results of the forward pass, without values."""
    bias = q.new_empty(0) if ab is None else torch.empty_like(ab)
    return (like_query(q), *map(torch.empty_like, (q, k, v)), *statistics(q), bias)


FLASH_FORWARD = define(
    "fa_custom_forward(Tensor q, Tensor k, Tensor v, bool causal, Tensor? q_segment_ids, Tensor? kv_segment_ids, "
    "float sm_scale, Tensor? ab, str? partition_spec, str? mesh, bool[] ctx_grad) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    flash_forward_like,
)


@lowers(FLASH_FORWARD)
def flash_forward(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    causal: bool,
    q_segment_ids: jax.Array | None,
    kv_segment_ids: jax.Array | None,
    sm_scale: float,
    ab: jax.Array | None,
    partition_spec: str | None,
    mesh: str | None,
    ctx_grad: object,
) -> list[jax.Array]:
    """Return the result, what it came from, and its sums and largest scores. Where operands are divided, XLA divides
    this.
    """
    found = by_blocks(q, k, v, ab, q_segment_ids, kv_segment_ids, Scoring(causal, sm_scale))
    return [found[0], q, k, v, *found[1:], jnp.zeros(0, q.dtype) if ab is None else ab]


def flash_backward_like(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return the results of the backward pass, without values."""
    ab = rest[5]
    return (*map(torch.empty_like, (q, k, v)), q.new_empty(0) if ab is None else torch.empty_like(ab))


FLASH_BACKWARD = define(
    "fa_custom_backward(Tensor grad_output, Tensor q, Tensor k, Tensor v, Tensor o, Tensor l, Tensor m, "
    "Tensor? q_segment_ids, Tensor? kv_segment_ids, Tensor? ab, bool causal, float sm_scale, str? partition_spec, "
    "str? mesh, SymInt[] q_full_shape, SymInt[] kv_full_shape, SymInt[]? ab_full_shape, bool[] ctx_grad) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    flash_backward_like,
)


@lowers(FLASH_BACKWARD)
def flash_backward(
    grad_output: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, o: object, l: object, m: object,  # noqa: E741
    q_segment_ids: object, kv_segment_ids: object, ab: object, causal: bool, sm_scale: object, *_: object,
) -> list[jax.Array]:  # fmt: skip
    """Return the gradients by q, k, v and ab. The rows are computed again; `o`, `l` and `m` are not needed."""
    segments = (q_segment_ids, kv_segment_ids)
    found = gradients(grad_output, (q, k, v, ab), segments, Scoring(causal, sm_scale))
    return [*found, jnp.zeros(0, q.dtype)][:4]


def _gradients_of_flash(inputs: dict[str, torch.Tensor], grad: Tensor) -> dict[str, torch.Tensor]:
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    found = torch.ops.xla.fa_custom_backward(
        grad, q, k, v, q, q, q, None, None, None, inputs["casual"], 1.0, None, None, [], [], None, [True] * 3
    )
    return dict(zip("qkv", found, strict=False))


differentiate(FLASH, _gradients_of_flash)


def _gradients_of_forward(inputs: dict[str, torch.Tensor], grad: Tensor, *_: object) -> dict[str, torch.Tensor]:
    names = ("q", "k", "v", "ab")
    q, k, v, ab = (inputs[name] for name in names)
    settings = [inputs[name] for name in ("q_segment_ids", "kv_segment_ids")]
    found = torch.ops.xla.fa_custom_backward(
        grad, q, k, v, q, q, q, *settings, ab, inputs["causal"], inputs["sm_scale"], None, None, [], [], None,
        inputs["ctx_grad"],
    )  # fmt: skip
    return {name: each for name, each in zip(names, found, strict=True) if inputs[name] is not None}


differentiate(FLASH_FORWARD, _gradients_of_forward)
