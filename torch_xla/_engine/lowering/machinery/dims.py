"""Dimension arguments as PyTorch reads them: negative ones, lists, none, and tensors without dimensions."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def one_dim(dim: int, ndim: int) -> int:
    """Return a dimension argument counted from the front; a tensor without dimensions accepts 0 and -1.

    Raises `IndexError` in PyTorch's words: some of its meta kernels take any number.
    """
    dims = max(ndim, 1)
    if not -dims <= dim < dims:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-dims}, {dims - 1}], but got {dim})")
    return dim % dims


def all_or_listed(dims: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return the dimensions to reduce: every one of them where none is listed."""
    return tuple(one_dim(dim, ndim) for dim in dims) if dims and ndim else tuple(range(ndim))


def dimensioned(operand: jax.Array) -> jax.Array:
    """Return `operand`, as a vector of one element if it has no dimensions."""
    return operand.reshape(1) if operand.ndim == 0 else operand


def without(dim: int, ndim: int) -> tuple[int, ...]:
    """Return all dimensions but one."""
    return tuple(other for other in range(ndim) if other != dim)


def module_for(*sizes: Any) -> Any:
    """Return NumPy, whose results are constants of the program; JAX's where a size is known to a run alone."""
    return jnp if any(map(jax.export.is_symbolic_dim, sizes)) else np
