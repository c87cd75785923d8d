"""The schemas of the operators of `torch.ops.xla`. Their rules are with their families."""

import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch import Tensor

from ...compat.names.torch import OpOverload, schema_of
from ...compiler_options import WITHOUT_BFLOAT16_KERNELS
from .registry import lowers, rule_of

# Held as long as the process lives: dropping it would take the operators back.
LIBRARY = torch.library.Library("xla", "DEF")


def define(schema: str, like: Callable[..., object], on_cpu: Callable[..., object] | None = None) -> OpOverload:
    """Return the operator of this schema in `torch.ops.xla`; `like` makes its results from tensors without values.

    With a rule it runs on `xla`; on the CPU `on_cpu` computes it, or else the same rule.
    """
    LIBRARY.define(schema)
    name = schema.partition("(")[0]
    packet, _, overload = name.partition(".")
    op: OpOverload = getattr(getattr(torch.ops.xla, packet), overload or "default")
    LIBRARY.impl(name, like, "Meta")
    LIBRARY.impl(name, on_cpu or (lambda *args, **kwargs: _on_cpu(op, args, kwargs)), "CPU")
    return op


def differentiate(op: OpOverload, backward: Callable[..., Any]) -> None:
    """Register `backward(inputs, *grads)` for `op`; inputs and the returned gradients are by argument name."""
    names = [argument.name for argument in schema_of(op).arguments]

    def keep(ctx: Any, inputs: tuple[object, ...], output: object) -> None:
        tensors = [each if isinstance(each, Tensor) else None for each in inputs]
        ctx.save_for_backward(*tensors)
        ctx.others = [None if isinstance(each, Tensor) else each for each in inputs]

    def gradients(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs = [
            other if tensor is None else tensor for tensor, other in zip(ctx.saved_tensors, ctx.others, strict=True)
        ]
        found = backward(dict(zip(names, inputs, strict=True)), *grads)
        return tuple(found.get(name) for name in names)

    torch.library.register_autograd(op.name(), gradients, setup_context=keep, lib=LIBRARY)


def _on_cpu(op: OpOverload, args: Any, kwargs: Any) -> Any:
    filled = {argument.name: argument.default_value for argument in schema_of(op).arguments[len(args) :]}
    filled.update(kwargs)
    leaves, tree = jax.tree.flatten((args, filled))
    others = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    tensors = [leaf.detach().resolve_conj().resolve_neg().contiguous() for leaf in leaves if isinstance(leaf, Tensor)]
    with jax.enable_x64(True):
        result = _jitted(op, tree, *others)(*map(jax.dlpack.from_dlpack, tensors))
    found = jax.tree.map(lambda array: torch.utils.dlpack.from_dlpack(array).clone(), result)
    return tuple(found) if isinstance(found, list) else found


@functools.lru_cache(maxsize=256, typed=True)  # 1 is not 1.0, and not True
def _jitted(op: OpOverload, tree: object, *others: object) -> Callable[..., Any]:
    """Return the rule of `op` on arrays; `others` has what is none in its place, and `None` for each array."""
    rule = rule_of(op)
    assert rule is not None, op
    lower = rule.lower

    def run(*arrays: jax.Array) -> jax.Array | list[jax.Array]:
        given = iter(arrays)
        args, kwargs = jax.tree.unflatten(tree, [next(given) if other is None else other for other in others])
        return lower(*args, **kwargs)

    return jax.jit(run, compiler_options=WITHOUT_BFLOAT16_KERNELS)


LIBRARY.define("mark_tensor(Tensor x, str name, int pos, str id, bool is_input, Any? attr=None) -> Tensor")


@torch.library.impl(LIBRARY, "mark_tensor", "CompositeExplicitAutograd")
def mark_tensor(x: Tensor, name: str, pos: int, id: str, is_input: bool, attr: object = None) -> Tensor:
    """Return a copy of `x`; in an exported program it marks an input or output of the composite `name`, number
    `pos`.
    """
    check_attributes(name, attr)
    return x.clone()


def check_attributes(name: str, attr: Any) -> None:
    """Raise `ValueError` for attributes of the composite `name` that are no JSON object."""
    if attr is not None and not isinstance(json.loads(attr), dict):
        raise ValueError(f"mark_tensor() takes the attributes of {name!r} as a JSON object; got {attr!r}")


@torch.library.impl(LIBRARY, "mark_tensor", "Meta")
def mark_tensor_meta(x: Tensor, name: str, pos: int, id: str, is_input: bool, attr: object = None) -> Tensor:
    """Return a tensor like `x`, without values."""
    return torch.empty_like(x)


def _identity_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (grad, None, None, None, None, None)


torch.library.register_autograd("xla::mark_tensor", _identity_gradient, lib=LIBRARY)


@lowers(torch.ops.xla.mark_tensor.default)
def mark_tensor_rule(x: jax.Array, name: str, pos: int, id: str, is_input: bool, attr: object = None) -> jax.Array:
    """Return `x` itself: what is marked is looked for in the graph."""
    check_attributes(name, attr)
    return x
