"""JAX's flash attention for TPUs, whose residuals and backward computation it keeps to itself."""

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType

import jax

# The sides of the blocks of scores, the largest that divides the lengths.
_SIDES = (512, 256, 128)


@functools.cache
def _kernels() -> ModuleType:
    # It takes Pallas a second to be imported, which only programs of a TPU need.
    return importlib.import_module("jax.experimental.pallas.ops.tpu.flash_attention")


def _blocks(query: jax.Array, key: jax.Array) -> object:
    rows, columns = (next(side for side in _SIDES if each.shape[2] % side == 0) for each in (query, key))
    return _kernels().BlockSizes(rows, columns, columns, 1, rows, columns, columns, rows, columns, columns, rows)


def flash_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, segments: Sequence[jax.Array] | None, causal: bool, scale: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the output, and for each row the sum of its exponentials and its largest score.

    Lengths are multiples of 128. A row sees columns of its own segment alone: `segments` are those of rows and columns.
    """
    given = None if segments is None else _kernels().SegmentIds(*segments)
    found: tuple[jax.Array, jax.Array, jax.Array] = _kernels()._flash_attention(
        query, key, value, None, given, True, causal, scale, _blocks(query, key), False
    )
    return found


def flash_attention_gradients(
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: Sequence[jax.Array] | None,
    causal: bool,
    scale: float,
    residuals: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of query, key and value; `residuals` are the results of `flash_attention`."""
    given = None if segments is None else _kernels().SegmentIds(*segments)
    operands = query, key, value, None, given, *residuals
    found = _kernels()._flash_attention_bwd(False, causal, scale, _blocks(query, key), False, operands, grad)
    return found[0], found[1], found[2]
