"""Views with a size taken from another tensor, as exported graphs write them, and notes for readers."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor

from ..machinery.registry import lowers
from ..machinery.xla_op_schemas import define, differentiate


def _with(
    size: Sequence[int], src: jax.Array | torch.Tensor, src_dim: int, target_dim: int, factor: float = 1.0
) -> tuple[int, ...]:
    found = list(size)
    found[target_dim] = int(src.shape[src_dim] * factor)
    return tuple(found)


def _expanded_like(x: Tensor, size: Sequence[int], src: Tensor, src_dim: int, target_dim: int) -> Tensor:
    return x.new_empty(_with(size, src, src_dim, target_dim))


def _viewed_like(
    x: Tensor, size: Sequence[int], src: Tensor, src_dim: int, target_dim: int, factor: float
) -> Tensor:  # fmt: skip
    return x.new_empty(_with(size, src, src_dim, target_dim, factor))


EXPAND = define(
    "dynamic_expand(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim) -> Tensor",
    _expanded_like,
)
VIEW = define(
    "dynamic_view(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim, float mul_scaler) "
    "-> Tensor",
    _viewed_like,
)
NOTE = define("write_mlir_debuginfo(Tensor x, str data) -> Tensor", lambda x, data: torch.empty_like(x))


@lowers(EXPAND)
def dynamic_expand(
    x: jax.Array, size: Sequence[int], src_tensor: jax.Array, src_dim: int, target_dim: int
) -> jax.Array:
    """Return `x` repeated to `size`, in which one is a size of another tensor."""
    return jnp.broadcast_to(x, _with(size, src_tensor, src_dim, target_dim))


@lowers(VIEW)
def dynamic_view(
    x: jax.Array, size: Sequence[int], src_tensor: jax.Array, src_dim: int, target_dim: int, mul_scaler: float
) -> jax.Array:
    """Return the elements of `x` in `size`, in which one is a multiple of a size of another tensor."""
    return x.reshape(_with(size, src_tensor, src_dim, target_dim, mul_scaler))


@lowers(NOTE)
def write_mlir_debuginfo(x: jax.Array, data: str) -> jax.Array:
    """Return `x`, with a note in the locations of StableHLO: on an operation that the compiler takes out again."""
    with jax.named_scope(data):
        return lax.reshape(lax.expand_dims(x, (0,)), x.shape)


def _same(inputs: Mapping[str, object], grad: Tensor) -> dict[str, torch.Tensor]:
    return {"x": grad}


def _summed(inputs: dict[str, torch.Tensor], grad: Tensor) -> dict[str, torch.Tensor]:
    return {"input": grad.sum_to_size(inputs["input"].shape)}


def _reshaped(inputs: dict[str, torch.Tensor], grad: Tensor) -> dict[str, torch.Tensor]:
    return {"input": grad.reshape(inputs["input"].shape)}


differentiate(NOTE, _same)
differentiate(EXPAND, _summed)
differentiate(VIEW, _reshaped)
