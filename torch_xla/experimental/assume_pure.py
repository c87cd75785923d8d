"""Trace functions once instead of at every call, and call functions of JAX."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from .._engine.compat import removed_names
from .._engine.compiled.loops.closure_captures import Tracing
from .._engine.interop import pure_functions
from ..core.xla_builder import call_jax

__getattr__ = removed_names.asked_of(__name__)


# What was traced of pure functions: `len` tells how much, `clear()` forgets it.
_XLA_COMPUTATION_CACHE = pure_functions.Kept()


def assume_pure(fn: Callable[..., object] | None = None, *, add_rng_seed_argument: bool = False) -> Callable[..., Any]:
    """Declare that `fn` is pure, so that Python runs it once and not at every call. This is a decorator.

    `fn` takes and returns tensors on `xla` and other values, nested as you like. It is traced once for each structure,
    size, dtype and hashable value of its arguments; every later call records a single operation, with gradients.
    Parameters must be arguments (`PureModule` passes them), and `fn` must not read or change anything else. In the body
    of a scan, loop or branch, `fn` is traced as a part of the body. Every call draws new random numbers; with
    `add_rng_seed_argument`, the keyword `rng_seed` (an int) seeds them.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.assume_pure import assume_pure
    >>> @assume_pure
    ... def double(x):
    ...     return x * 2
    >>> x = torch.ones(2, device="xla")
    >>> double(double(x))
    tensor([4., 4.], device='xla:0')
    """
    if fn is None:
        return lambda function: _assume_pure(function, add_rng_seed_argument)
    return _assume_pure(fn, add_rng_seed_argument)


def _assume_pure(function: Callable[..., object], takes_seed: bool) -> Callable[..., Any]:
    run = pure_functions.assume_pure(function, takes_seed)

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> object:
        # A graph of torch.compile contains the operators of `function`: Dynamo traces the function once, too.
        if torch.compiler.is_dynamo_compiling() and not takes_seed:
            return function(*args, **kwargs)
        return run(*args, **kwargs)

    return called


def assume_pure_torch(func: Callable[..., object], use_cache: bool = False) -> Callable[..., Any]:
    """Call `assume_pure(func)`. The traced function is cached, and has gradients, in either case."""
    del use_cache
    return _assume_pure(func, False)


def make_fake_inputs(input: object) -> object:
    """Return a tensor like `input` without memory, on the same device; return anything else unchanged.

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.assume_pure import make_fake_inputs
    >>> make_fake_inputs(torch.ones(2, device="xla")).shape, make_fake_inputs(3)
    (torch.Size([2]), 3)
    """
    return Tracing().describe(input) if isinstance(input, torch.Tensor) else input


def j2t_autograd(fn: Callable[..., object]) -> Callable[..., Any]:
    """Return `fn`, a pure function of JAX, as a function of tensors whose gradients come from `jax.vjp`.

    >>> import jax.numpy as jnp, torch
    >>> from torch_xla.experimental.assume_pure import j2t_autograd
    >>> x = torch.ones(2, device="xla", requires_grad=True)
    >>> j2t_autograd(lambda x: jnp.square(x).sum())(x).backward()
    >>> x.grad
    tensor([2., 2.], device='xla:0')
    """
    return lambda *args, **kwargs: call_jax(fn, args, kwargs)


class PureModule(nn.Module):
    """A module with a pure forward pass, which is traced once for each kind of arguments, not at every call.

    Its parameters and buffers may change between calls, but `forward` must not change buffers itself (batch norm in
    training mode does).

    >>> import torch, torch_xla
    >>> from torch_xla.experimental.assume_pure import PureModule
    >>> model = PureModule(torch.nn.Linear(2, 1, bias=False)).to("xla")
    >>> model(torch.ones(3, 2, device="xla")).sum().backward()
    >>> model.module.weight.grad.tolist()
    [[3.0, 3.0]]
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._pure = _assume_pure(_call_module, False)

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        """Return the module's own result."""
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return self._pure(_Identity(self.module), named, args, kwargs)


class _Identity:
    """A module as a hashable constant; training and evaluation mode are two constants."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._key = (id(module), *(m.training for m in module.modules()))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._key == other._key


def _call_module(
    identity: _Identity, named: dict[str, torch.Tensor], args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    return functional_call(identity.module, named, args, kwargs)
