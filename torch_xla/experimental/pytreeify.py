"""Autograd functions with nested structures as arguments and results."""

from typing import Any

import torch

from .._engine.compat.names.torch import pytree


class _Call:
    """The data, apart from tensors, that the forward pass keeps for the backward pass."""

    def __init__(self, function: type, tree: Any, static: list[object]) -> None:
        self.function = function
        self.tree = tree
        self.static = static
        self.results: Any = None


class _Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the leaves of the result."""
        ctx.call = call
        found = call.function.forward(ctx, *_filled(call, tensors))  # type: ignore[attr-defined]
        leaves, call.results = pytree.tree_flatten(found)
        return tuple(leaves)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor | None, ...]:
        """Return a gradient or `None` for each leaf of the arguments."""
        call: _Call = ctx.call
        given = pytree.tree_unflatten(list(grads), call.results)
        found = call.function.backward(ctx, *(given if isinstance(given, tuple) else (given,)))  # type: ignore[attr-defined]
        found = found if isinstance(found, tuple) else (found,)
        arguments = call.tree.children()
        if len(found) != len(arguments):
            raise ValueError(f"backward gives a gradient for each of {len(arguments)} arguments; it gave {len(found)}")
        leaves: list[Any] = []
        for grad, tree in zip(found, arguments, strict=True):
            leaves += [None] * tree.num_leaves if grad is None else tree.flatten_up_to(grad)
        return (None, *leaves)


def _filled(call: _Call, tensors: Any) -> Any:
    return pytree.tree_unflatten(
        [given if fixed is _TENSOR else fixed for given, fixed in zip(tensors, call.static, strict=True)], call.tree
    )


_TENSOR = object()


def pytreeify(cls: type) -> type:
    """Let a `torch.autograd.Function` take and return nested structures of tensors. This is a class decorator.

    `forward(ctx, *args)` gets the arguments unchanged. `backward(ctx, *grads)` gets gradients nested as the result, and
    returns for each argument a gradient nested as the argument, or `None`.

    >>> import torch
    >>> from torch_xla.experimental.pytreeify import pytreeify
    >>> @pytreeify
    ... class Double(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return {name: 2 * value for name, value in x.items()}
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return {name: 2 * value for name, value in grad.items()}
    >>> a = torch.ones(2, requires_grad=True)
    >>> Double.apply({"a": a})["a"].sum().backward()
    >>> a.grad
    tensor([2., 2.])
    """

    def apply(*args: object) -> Any:
        leaves, tree = pytree.tree_flatten(args)
        call = _Call(cls, tree, [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])
        results: Any = _Flat.apply(call, *leaves)  # type: ignore[no-untyped-call]
        return pytree.tree_unflatten(list(results), call.results)

    return type(cls.__name__, (cls,), {"apply": staticmethod(apply), "__doc__": cls.__doc__})
