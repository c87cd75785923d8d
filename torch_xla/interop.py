"""JAX from PyTorch: tensors are arrays underneath, so both change hands without a copy, and so do functions.

Tensors on `xla` live in `jax.Array`s. Whatever is written for JAX (Pallas kernels, optimizers, models) can be one
operation in a PyTorch program, compiled with what surrounds it and differentiated by JAX.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch

from ._engine.interop import jax_arrays
from .core import xla_builder


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """What `tensor`, on an `xla` device, shows now: an array of the same size and dtype, not a copy where possible.

    Computes the tensor first if it is only recorded. The array never changes; writing to the tensor afterwards moves
    the tensor to memory of its own. Raises `TypeError` for anything but a tensor on an `xla` device.

    >>> import torch, torch_xla.interop
    >>> torch_xla.interop.to_jax(torch.ones(2, device="xla") * 3)
    Array([3., 3.], dtype=float32)
    """
    return jax_arrays.to_jax(tensor)


def from_jax(array: jax.Array) -> torch.Tensor:
    """A tensor on the `xla` device where `array` lies, with its size and dtype, and its memory until one is written to.

    Raises `TypeError` for anything but an array, or while JAX traces it; `ValueError` for one on several devices.

    >>> import jax.numpy as jnp, torch_xla.interop
    >>> torch_xla.interop.from_jax(jnp.arange(3))
    tensor([0, 1, 2], device='xla:0', dtype=torch.int32)
    """
    return jax_arrays.from_jax(array)


def call_jax(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Records `function(*args, **kwargs)`, a pure function of JAX, as one operation; the result has its structure.

    Tensors among the arguments (in any nesting) reach it as arrays and results come back as tensors; other arguments
    must be hashable and are fixed in the program. It is traced once for each structure, size and dtype. Gradients are
    JAX's, of any order. 64-bit tensors keep their dtype; without one, `jax_enable_x64` decides as always.

    >>> import jax, torch, torch_xla.interop
    >>> x = torch.arange(3.0, device="xla", requires_grad=True)
    >>> torch_xla.interop.call_jax(jax.nn.softplus, x).sum().backward()
    >>> x.grad
    tensor([0.5000, 0.7311, 0.8808], device='xla:0')
    """
    return xla_builder.call_jax(function, args, kwargs)


def as_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: a function of JAX that takes and gives tensors. See `call_jax`.

    >>> import jax.numpy as jnp, torch, torch_xla.interop
    >>> @torch_xla.interop.as_torch
    ... def norm(x):
    ...     return jnp.sqrt((x * x).sum())
    >>> norm(torch.full((4,), 2.0, device="xla")).item()
    4.0
    """

    @functools.wraps(function)
    def of_tensors(*args: Any, **kwargs: Any) -> Any:
        return xla_builder.call_jax(function, args, kwargs)

    return of_tensors
