"""The operators of `torch.ops.xla`: what they are called with. Their rules stand with their families."""

import json
from typing import Any

import jax
import torch
from torch import Tensor

from .registry import lowers

# Held as long as the process lives: dropping it would take the operators back.
LIBRARY = torch.library.Library("xla", "DEF")

LIBRARY.define("mark_tensor(Tensor x, str name, int pos, str id, bool is_input, Any? attr=None) -> Tensor")


@torch.library.impl(LIBRARY, "mark_tensor", "CompositeExplicitAutograd")
def mark_tensor(x: Tensor, name: str, pos: int, id: str, is_input: bool, attr: Any = None) -> Tensor:
    """A copy of `x`; in an exported program it marks an input or output of the composite `name`, number `pos`."""
    if attr is not None and not isinstance(json.loads(attr), dict):
        raise ValueError(f"mark_tensor() takes the attributes of {name!r} as a JSON object; got {attr!r}")
    return x.clone()


@torch.library.impl(LIBRARY, "mark_tensor", "Meta")
def _mark_tensor_meta(x: Tensor, name: str, pos: int, id: str, is_input: bool, attr: Any = None) -> Tensor:
    return torch.empty_like(x)


def _identity_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (grad, None, None, None, None, None)


torch.library.register_autograd("xla::mark_tensor", _identity_gradient, lib=LIBRARY)


@lowers(torch.ops.xla.mark_tensor.default)
def mark_tensor_rule(x: jax.Array, name: str, pos: int, id: str, is_input: bool, attr: Any = None) -> jax.Array:
    return x
