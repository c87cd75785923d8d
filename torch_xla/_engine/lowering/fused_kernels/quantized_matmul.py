"""Products with matrices of 8 or 4 bits, which are widened only where they are multiplied."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from ..machinery.registry import lowers
from ..machinery.xla_op_schemas import define, differentiate


def unpacked(w: jax.Array, axis: int) -> jax.Array:
    """Return int8 numbers from pairs of four bits along `axis`, the first of each pair in the lower bits."""
    both = jnp.stack((w & np.uint8(15), w >> np.uint8(4)), axis + 1)
    shape = [*w.shape]
    shape[axis] *= 2
    return ((both.reshape(shape) ^ np.uint8(8)).astype(np.int8) - np.int8(8)).astype(np.int8)


def _rounded(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return `x` as int8, and what each row was divided by."""
    by = jnp.abs(x.astype(np.float32)).max(-1, keepdims=True) / 127.0
    by = jnp.where(by == 0, 1, by)  # a row of zeros, or of numbers whose 127th part is none
    return jnp.clip(jnp.round(x.astype(np.float32) / by), -127, 127).astype(np.int8), by


def product(
    x: jax.Array, w: jax.Array, scaler: jax.Array, zero_point: jax.Array | None, block_size: int, activation: bool
) -> jax.Array:
    """Return x · (w · scaler - zero_point): w [out, in], or by blocks [in / size, size, out]; summed in float32 or
    int32.

    With `activation` both terms take the rounded `x`, as in PyTorch/XLA.
    """
    left, by = _rounded(x) if activation else (x, None)
    summed = np.int32 if activation else np.float32
    if block_size == -1:
        equation, blocks = "...i,oi->...o", left
    else:
        equation, blocks = "...si,sio->...so", left.reshape(*x.shape[:-1], -1, block_size)
    right = w if activation else w.astype(x.dtype)
    found = jnp.einsum(equation, blocks, right, preferred_element_type=summed).astype(np.float32)
    found = found * scaler.astype(np.float32)
    if zero_point is not None:
        size = x.shape[-1] if block_size == -1 else block_size
        sums = left.reshape(*x.shape[:-1], -1, size).astype(np.float32).sum(-1)
        less = sums[..., None] * zero_point.astype(np.float32)
        found = found - (less[..., 0, :] if block_size == -1 else less)
    if by is not None:
        found = found * (by if block_size == -1 else by[..., None])
    return (found if block_size == -1 else found.sum(-2)).astype(x.dtype)


def _product_like(x: Tensor, w: Tensor, *_: object, **__: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], w.shape[2] if w.dim() == 3 else w.shape[0])


MATMUL = define(
    "quantized_matmul(Tensor x, Tensor w, Tensor scale, Tensor? zero_point=None, int? block_size=-1, "
    "bool? int4_weight=False, bool? quantize_activation=False) -> Tensor",
    _product_like,
)
MATMUL_INT8 = define(
    "quantized_matmul_int8(Tensor x, Tensor w, Tensor scalar, Tensor? zero_point=None, "
    "Tensor? quant_block_size=None, bool quantize_activation=False, int? batch_block_size=None, "
    "int? out_block_size=None, int? in_block_size=None) -> Tensor",
    _product_like,
)


@lowers(MATMUL)
def quantized_matmul(
    x: jax.Array, w: jax.Array, scale: jax.Array, zero_point: jax.Array | None = None, block_size: int | None = -1,
    int4_weight: bool | None = False, quantize_activation: bool | None = False,
) -> jax.Array:  # fmt: skip
    """Return x · (w · scale - zero_point); a weight of uint8 holds two numbers of four bits in each byte."""
    size = -1 if block_size is None else block_size
    _check(x, w, scale, zero_point, size, bool(int4_weight))
    whole = unpacked(w, w.ndim - 1 if size == -1 else 1) if w.dtype == np.uint8 else w
    return product(x, whole, scale, zero_point, size, bool(quantize_activation))


@lowers(MATMUL_INT8)
def quantized_matmul_int8(
    x: jax.Array, w: jax.Array, scalar: jax.Array, zero_point: jax.Array | None = None, quant_block_size: object = None,
    quantize_activation: bool = False, batch_block_size: object = None, out_block_size: object = None,
    in_block_size: object = None,
) -> jax.Array:  # fmt: skip
    """Return x · (w · scalar - zero_point), w [out, in] of int8. Sizes of blocks of the computation are hints for
    TPUs.
    """
    if quant_block_size is not None:
        raise ValueError("quantized_matmul_int8() takes one scale a channel; for blocks use quantized_matmul")
    _check(x, w, scalar, zero_point, -1, False)
    return product(x, w, scalar, zero_point, -1, quantize_activation)


def _check(
    x: jax.Array, w: jax.Array, scale: jax.Array, zero_point: jax.Array | None, block_size: int, int4: bool
) -> None:
    if w.dtype != np.int8 and not (int4 and w.dtype == np.uint8):
        raise TypeError(f"a quantised weight is int8, or uint8 where it holds pairs of four bits; got {w.dtype}")
    pair = 2 if w.dtype == np.uint8 else 1
    if block_size == -1:
        fits = w.ndim == 2 and w.shape[1] * pair == x.shape[-1] and scale.shape == (w.shape[0],)
    else:
        blocks = -(-x.shape[-1] // max(block_size, 1))
        fits = (
            block_size > 0
            and w.ndim == 3
            and w.shape[:2] == (blocks, block_size // pair)
            and blocks * block_size == x.shape[-1]
        )
        fits = fits and scale.shape == (blocks, w.shape[2])
    if not fits or (zero_point is not None and zero_point.shape != scale.shape):
        wanted = (
            "w [out, in] and scale [out]" if block_size == -1 else "w [in / size, size, out], scale [in / size, out]"
        )
        came = f"x {list(x.shape)}, w {list(w.shape)}, scale {list(scale.shape)}"
        came += "" if zero_point is None else f", zero_point {list(zero_point.shape)}"
        raise ValueError(
            f"quantized_matmul with block_size={block_size} takes {wanted} (zero_point as scale); got {came}"
        )


def _widened(w: Tensor, scale: Tensor, zero_point: Tensor | None, block_size: int) -> Tensor:
    """Return the weight as floats, [out, in], in operations of PyTorch."""
    if w.dtype is torch.uint8:
        # Pairs are along the inputs: the last dimension, or the second one of blocks.
        pairs = torch.stack((w & 15, w >> 4), 2)
        size = (w.shape[0], -1) if block_size == -1 else (w.shape[0], block_size, w.shape[2])
        w = (pairs.reshape(size) ^ 8).to(torch.int8) - 8
    whole = w * scale[:, None]
    if zero_point is not None:
        whole = whole - zero_point[:, None]
    return whole if block_size == -1 else whole.reshape(-1, whole.shape[-1]).t()


def _gradients(inputs: dict[str, Any], grad: Tensor) -> dict[str, torch.Tensor]:
    scale = inputs["scale"] if "scale" in inputs else inputs["scalar"]
    size = inputs.get("block_size")
    whole = _widened(inputs["w"], scale, inputs["zero_point"], -1 if size is None else size)
    return {"x": (grad.to(whole.dtype) @ whole).to(inputs["x"].dtype)}


differentiate(MATMUL, _gradients)
differentiate(MATMUL_INT8, _gradients)
