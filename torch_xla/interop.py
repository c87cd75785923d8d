"""JAX and PyTorch together: convert tensors to arrays and back without a copy, and call functions of one in the other.

A tensor on `xla` is stored in a `jax.Array`. Code written for JAX (Pallas kernels, optimizers, models) can be one
operation of a PyTorch program: it is compiled together with the operations around it and differentiated by JAX. A
`torch.nn.Module` can be a pure function of a JAX program.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch

from ._engine import interop
from ._engine.interop import torch_modules
from ._engine.interop.torch_modules import ModuleFunction as ModuleFunction
from .core import xla_builder


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return the current value of `tensor` as an array of the same size and dtype, without a copy where possible.

    Computes the tensor first if it is only recorded. The array never changes: a later write to the tensor moves the
    tensor to new memory. Raises `TypeError` for anything but a tensor on an `xla` device.

    >>> import torch, torch_xla.interop
    >>> torch_xla.interop.to_jax(torch.ones(2, device="xla") * 3)
    Array([3., 3.], dtype=float32)
    """
    return interop.to_jax(tensor)


def from_jax(array: jax.Array) -> torch.Tensor:
    """Return a tensor with the size, dtype and value of `array`, on the `xla` device that holds `array`.

    The tensor shares the array's memory until the tensor is written to. Raises `TypeError` for anything but an array,
    and for a traced one; raises `ValueError` for an array on several devices.

    >>> import jax.numpy as jnp, torch_xla.interop
    >>> torch_xla.interop.from_jax(jnp.arange(3))
    tensor([0, 1, 2], device='xla:0', dtype=torch.int32)
    """
    return interop.from_jax(array)


def call_jax(function: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """Record a call of `function`, a pure function of JAX, as one operation, and return its result with tensors.

    `function` receives tensors among the arguments (in any nesting) as arrays, and its resulting arrays become tensors.
    Other arguments must be hashable; they are constants of the program. JAX traces `function` once for each structure,
    size and dtype, and differentiates it, to any order. 64-bit tensors keep their dtype; without such a tensor,
    `jax_enable_x64` decides, as in JAX.

    >>> import jax, torch, torch_xla.interop
    >>> x = torch.arange(3.0, device="xla", requires_grad=True)
    >>> torch_xla.interop.call_jax(jax.nn.softplus, x).sum().backward()
    >>> x.grad
    tensor([0.5000, 0.7311, 0.8808], device='xla:0')
    """
    return xla_builder.call_jax(function, args, kwargs)


def as_torch(function: Callable[..., object]) -> Callable[..., Any]:
    """Make a function of JAX take and return tensors. This is a decorator; see `call_jax`.

    >>> import jax.numpy as jnp, torch, torch_xla.interop
    >>> @torch_xla.interop.as_torch
    ... def norm(x):
    ...     return jnp.sqrt((x * x).sum())
    >>> norm(torch.full((4,), 2.0, device="xla")).item()
    4.0
    """

    @functools.wraps(function)
    def of_tensors(*args: object, **kwargs: object) -> Any:
        return xla_builder.call_jax(function, args, kwargs)

    return of_tensors


def as_jax(module: torch.nn.Module, *, derivatives: str = "torch") -> tuple[dict[str, jax.Array], ModuleFunction]:
    """Return the parameters of `module` as arrays by name, and the module as a pure function of them for JAX.

    `function(parameters, *args, **kwargs)` takes and returns arrays in the structures of the module, and works under
    `jax.grad`, `jax.jvp`, `jax.vmap` and `jax.jit`. It computes in the mode (training or evaluation) that the module
    and its submodules have now. The module itself stays as it is.

    - Buffers and parameters that need no gradient are in `function.buffers`. A call with `buffers=...` returns a pair:
      the output, and the buffers after the call. Without it, a call that would change a buffer raises `ValueError`.
    - A module that draws random numbers takes `rng=jax.random.key(...)`, and draws the same for the same key.
    - Gradients are those of PyTorch's autograd. Forward derivatives (`jax.jvp`, `jax.jacfwd`, `jax.hessian`) are the
      transposed backward pass; `NotImplementedError` is raised where JAX cannot transpose it, as for maximum pooling,
      and for third derivatives that are all forward. With `derivatives="jax"`, JAX differentiates the operations
      instead, without the module's own `autograd.Function`s and `no_grad`.
    - Where JAX has no 64-bit numbers (`jax_enable_x64` is off), its int32 arguments are int64 to PyTorch.

    The module is traced once for each size and dtype of its arguments; other arguments must be hashable.

    >>> import jax, jax.numpy as jnp, torch, torch_xla.interop
    >>> parameters, function = torch_xla.interop.as_jax(torch.nn.Linear(3, 1))
    >>> def loss(parameters, x):
    ...     return jnp.mean(function(parameters, x) * 2)
    >>> jax.jit(jax.grad(loss))(parameters, jnp.ones((4, 3)))
    {'bias': Array([2.], dtype=float32), 'weight': Array([[2., 2., 2.]], dtype=float32)}
    """
    return torch_modules.as_jax(module, derivatives)
