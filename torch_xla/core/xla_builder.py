"""Functions of JAX as operations of a PyTorch program, under their documented name."""

from collections.abc import Callable
from typing import Any

from .._engine.interop import functions


def call_jax(
    jax_func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Any = None,
) -> Any:
    """Records `jax_func(*args, **kwargs)`, a pure function of JAX, as one operation called `name`.

    Tensors on `xla` among the arguments, in any nesting, reach it as arrays; the result has the structure that the
    function returns, with tensors. It has gradients. The function is traced once for each structure, size and dtype;
    programs are told apart by what it traces to, so `override_hash` is not needed and ignored.

    >>> import jax.numpy as jnp, torch
    >>> from torch_xla.core.xla_builder import call_jax
    >>> call_jax(jnp.add, (torch.ones(2, device="xla"), torch.ones(2, device="xla")))
    tensor([2., 2.], device='xla:0')
    """
    return functions.call(jax_func, args, kwargs or {}, name)
