"""Computations written by hand: operation by operation with XLA's builder, or as functions of JAX.

A computation of either kind is one operation of the PyTorch program that calls it, and is compiled with the operations
around it.
"""

from collections.abc import Callable, Hashable, Sequence
from operator import index
from typing import Any

import torch

from .._engine import export, interop, tensor
from .._engine.compat import removed_names
from .._engine.compat.names.torch import constant_in_graphs, pytree
from .._engine.interop import jax_functions
from .builder_op import Op as Op
from .builder_op import create_computation as create_computation
from .builder_op import mkleaf as mkleaf
from .builder_op import mkop as mkop
from .builder_op import mkparam as mkparam
from .builder_shape import Shape as Shape
from .builder_shape import Type as Type
from .builder_shape import mkshape as mkshape
from .builder_shape import tensor_shape as tensor_shape

__getattr__ = removed_names.asked_of(__name__)


def create_builder(name: str) -> interop.XlaBuilder:
    """Return a builder, which holds the operations of one computation.

    >>> import torch_xla.core.xla_builder as xb
    >>> builder = xb.create_builder("double")
    >>> x = xb.mkparam(builder, 0, xb.Shape.create(xb.Type.F32, (2,)))
    >>> computation = (x + x).build("double")
    >>> xb.xla_computation_as_func(computation)(torch.ones(2, device="xla"))
    tensor([2., 2.], device='xla:0')
    """
    return interop.XlaBuilder(name)


def computation_from_module_proto(name: str, proto: bytes) -> Any:
    """Return the computation of a serialised HLO module, such as one from `_XLAC._get_xla_tensors_hlo_proto`.

    Raises `ValueError` for bytes that are no such module.
    """
    return export.from_hlo(name, proto)


def get_computation_hlo(computation: Any) -> str:
    """Return a computation as HLO text, before XLA optimises it.

    >>> import torch_xla.core.xla_builder as xb
    >>> scalar = xb.Shape.create(xb.Type.F32, ())
    >>> print(xb.get_computation_hlo(xb.create_computation("plus", lambda x, y: x + y, (scalar, scalar))))
    HloModule jit_plus...
    """
    return interop.hlo_text_of_builder(computation, computation.parameters)


def xla_computation_as_func(computation: interop.BuilderComputation, name: str | None = None) -> Callable[..., Any]:
    """Return a function of tensors on `xla` that records `computation` as one operation called `name`.

    The function returns a tensor or a tuple of tensors. JAX differentiates it; a while loop has no gradient.
    """
    called = name or computation.name
    return lambda *tensors: call_jax(computation, tensors, {}, called)


class XlaCallable:
    """A function of builder operations (`Op`) as a function of tensors. It is built once for each kind of arguments.

    >>> import torch, torch_xla.core.xla_builder as xb
    >>> half_sum = xb.XlaCallable(lambda x, y: (x + y) * x.scalar_like(0.5))
    >>> half_sum(torch.ones(2, device="xla"), torch.ones(2, device="xla"))
    tensor([1., 1.], device='xla:0')
    """

    def __init__(self, xla_func: Callable[..., object], name: str | None = None) -> None:
        self.function = xla_func
        self.name: str = name if name else getattr(xla_func, "__name__", "computation")
        self._built: dict[Hashable, Callable[..., Any]] = {}

    def specialize(self, shapes: Sequence[Shape], **kwargs: object) -> interop.BuilderComputation:
        """Return the computation for arguments of these shapes; keywords are passed to the function unchanged."""
        return create_computation(self.name, self.function, shapes, **kwargs)

    def __call__(self, *tensors: torch.Tensor, **kwargs: object) -> Any:
        key = (*((tuple(each.shape), each.dtype) for each in tensors), *sorted(kwargs.items()))
        call = self._built.get(key)
        if call is None:
            call = xla_computation_as_func(self.specialize([tensor_shape(each) for each in tensors], **kwargs))
            self._built[key] = call
        return call(*tensors)


class JaxCallable:
    """A pure function of JAX as a function of tensors; see `call_jax`.

    >>> import jax.numpy as jnp, torch, torch_xla.core.xla_builder as xb
    >>> xb.JaxCallable(jnp.square)(torch.full((2,), 3.0, device="xla"))
    tensor([9., 9.], device='xla:0')
    """

    def __init__(self, jax_func: Callable[..., object]) -> None:
        self.function = jax_func

    def specialize(self, *args: object, **kwargs: object) -> str:
        """Return the HLO text of the function for these arguments, before XLA optimises it."""
        return jax_functions.hlo_text(self.function, args, kwargs)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return call_jax(self.function, args, kwargs)


def call_jax(
    jax_func: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object] | None = None,
    name: str | None = None,
    override_hash: object = None,
) -> Any:
    """Record a call of `jax_func`, a pure function of JAX, as one operation called `name`, and return its result.

    `jax_func` receives tensors on `xla` among the arguments, in any nesting, as arrays. The result has the structure
    that the function returns, with tensors, and has gradients. JAX traces the function once for each structure, size
    and dtype. The traced function is part of a program's key, so `override_hash` is not needed and ignored. Bodies of
    scans, loops and branches may call `call_jax`; so may graphs of `torch.compile`, unless `jax_func` calls Python on
    the host.

    >>> import jax.numpy as jnp, torch
    >>> from torch_xla.core.xla_builder import call_jax
    >>> call_jax(jnp.add, (torch.ones(2, device="xla"), torch.ones(2, device="xla")))
    tensor([2., 2.], device='xla:0')
    """
    if torch.compiler.is_dynamo_compiling():
        leaves, tree = pytree.tree_flatten((args, kwargs or {}))
        tensors: list[torch.Tensor] = []
        named: list[object] = []
        for leaf in leaves:
            named.append(f"{jax_functions.PLACE}{len(tensors)}" if isinstance(leaf, torch.Tensor) else leaf)
            if isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
        # A size that has changed is a symbol to Dynamo, and `index` fixes it: JAX traces for sizes that are numbers.
        kinds = tuple((tuple(map(index, each.shape)), each.dtype, each.device.type) for each in tensors)
        found = _described(jax_func, pytree.tree_unflatten(named, tree), kinds, name)
        if found is not None:
            called, order, nested = found
            results = torch.ops.xla.jax_function(called, [tensors[place] for place in order])
            return _filled(nested, results)
    return jax_functions.call(jax_func, args, kwargs or {}, name)


def _filled(nested: Any, results: Sequence[torch.Tensor]) -> Any:
    """Return the results in the nesting that `jax_functions.described` found."""
    if not isinstance(nested, tuple):
        return nested if nested is None else results[nested]
    kind, *parts = nested
    if kind == "dict":
        return {name: _filled(part, results) for name, part in parts}
    found = [_filled(part, results) for part in parts]
    return found if kind == "list" else tuple(found)


@constant_in_graphs
def _described(*arguments: Any) -> Any:
    return jax_functions.described(*arguments)


# The traced functions of JAX, each for one kind of arguments. `clear()` forgets them.
_JAX_TO_XLA_COMPUTATION_CACHE = jax_functions.known


def _jax_to_xla_computation_cache_elements() -> int:
    """Return the number of traced functions of JAX, each for one kind of arguments."""
    return jax_functions.traced()


def create_placeholder_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of this size and dtype on `xla` that holds no memory, for recording and printing programs.

    Evaluating an operation on it raises `RuntimeError`.

    >>> import torch, torch_xla
    >>> from torch_xla.core.xla_builder import create_placeholder_tensor
    >>> x = create_placeholder_tensor((1 << 20, 1 << 20), torch.bfloat16)
    >>> "bf16[1048576,1048576]" in torch_xla._XLAC._get_xla_tensors_hlo([x + x])
    True
    """
    return tensor.placeholder(shape, dtype)
